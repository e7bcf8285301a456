//! `PgbusNative::Lock`: a Mutex that a writer thread can share.

use magnus::{Error, RModule, Ruby};

pub fn init(_ruby: &Ruby, _module: RModule) -> Result<(), Error> {
    Ok(())
}
