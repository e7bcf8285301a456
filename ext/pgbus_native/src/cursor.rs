//! `PgbusNative::Cursor`: the last msg_id that reached a socket whole.

use std::sync::Arc;

use magnus::{function, method, prelude::*, Error, Integer, RModule, Ruby, Value};
use pgbus_native_engine::pump;

/// Plain atomics: the same object serves a forked child as well.
#[magnus::wrap(class = "PgbusNative::Cursor", free_immediately, size)]
pub struct Cursor(pub Arc<pump::Cursor>);

impl Cursor {
    fn new(ruby: &Ruby, msg_id: Value) -> Result<Self, Error> {
        Ok(Self(Arc::new(pump::Cursor::new(msg_id_of(ruby, msg_id)?))))
    }

    fn get(&self) -> i64 {
        self.0.get()
    }

    fn set(ruby: &Ruby, rb_self: &Self, msg_id: Value) -> Result<Value, Error> {
        rb_self.0.set(msg_id_of(ruby, msg_id)?);
        Ok(msg_id)
    }
}

/// An Integer of 64 bits; nothing else is turned into one.
pub fn msg_id_of(ruby: &Ruby, value: Value) -> Result<i64, Error> {
    let class = match Integer::from_value(value).map(|number| number.to_i64()) {
        Some(Ok(number)) => return Ok(number),
        Some(Err(_)) => ruby.exception_range_error(),
        None => ruby.exception_type_error(),
    };
    Err(Error::new(class, format!("a msg_id must be an Integer of at most 64 bits, got {}", value.inspect())))
}

pub fn init(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    let class = module.define_class("Cursor", ruby.class_object())?;
    class.define_singleton_method("new", function!(Cursor::new, 1))?;
    class.define_method("get", method!(Cursor::get, 0))?;
    class.define_method("set", method!(Cursor::set, 1))?;
    class.define_method("value", method!(Cursor::get, 0))?;
    class.define_method("value=", method!(Cursor::set, 1))
}
