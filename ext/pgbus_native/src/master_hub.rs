//! `PgbusNative::MasterHub`: the hub.

use magnus::{Error, RModule, Ruby};

pub fn init(_ruby: &Ruby, _module: RModule) -> Result<(), Error> {
    Ok(())
}
