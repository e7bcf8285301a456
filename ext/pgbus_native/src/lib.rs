//! The Ruby surface of pgbus_native: how a Ruby object becomes an engine call and back.

// Ruby is the reader of this crate's functions; their documentation is the YARD of lib/.
#![allow(missing_docs)]

use magnus::{Error, Ruby};

mod argument;
mod born;
mod feed;
mod fork;
mod frames;
mod gvl;
mod master_hub;
mod outlet;
mod recipe;
mod system_call;
mod writers;

#[magnus::init]
fn init(ruby: &Ruby) -> Result<(), Error> {
    fork::watch();
    let module = ruby.define_module("PgbusNative")?;
    frames::init(ruby, module)?;
    outlet::init(ruby, module)?;
    writers::init(ruby, module)?;
    master_hub::init(ruby, module)?;
    feed::init(ruby, module)
}
