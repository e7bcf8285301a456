//! The Ruby surface of pgbus_native: how a Ruby object becomes an engine call and back.

// Ruby is the reader of this crate's functions; their documentation is the YARD of lib/.
#![allow(missing_docs)]

use magnus::{Error, Ruby};

mod backlog;
mod born;
mod cursor;
mod fork;
mod gvl;
mod lock;
mod master_hub;
mod outlet;
mod owners;
mod recipe;
mod writers;

#[magnus::init]
fn init(ruby: &Ruby) -> Result<(), Error> {
    fork::watch();
    let module = ruby.define_module("PgbusNative")?;
    cursor::init(ruby, module)?;
    lock::init(ruby, module)?;
    outlet::init(ruby, module)?;
    owners::init(ruby, module)?;
    backlog::init(ruby, module)?;
    writers::init(ruby, module)?;
    master_hub::init(ruby, module)
}
