//! `PgbusNative::Cursor`: the last msg_id that reached a socket whole.

use magnus::{Error, RModule, Ruby};

pub fn init(_ruby: &Ruby, _module: RModule) -> Result<(), Error> {
    Ok(())
}
