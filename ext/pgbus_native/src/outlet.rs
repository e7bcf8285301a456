//! `PgbusNative::Outlet`: the seam between a pgbus connection and the engine.

use magnus::{Error, RModule, Ruby};

pub fn init(_ruby: &Ruby, _module: RModule) -> Result<(), Error> {
    Ok(())
}
