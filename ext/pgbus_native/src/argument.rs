//! What Ruby hands over, as the engine wants it, or an exception that names it.

use std::time::Duration;

use magnus::value::LazyId;
use magnus::{prelude::*, Error, Integer, Ruby, TryConvert, Value};
use pgbus_native_engine::pump::{Limit, Overflow};

static MSG_ID: LazyId = LazyId::new("msg_id");

/// Milliseconds as any real number; a deadline that is over from the start lets a write be tried once.
pub fn deadline(ruby: &Ruby, deadline_ms: Value) -> Result<Duration, Error> {
    let milliseconds = f64::try_convert(deadline_ms).ok().filter(|number| !number.is_nan()).ok_or_else(|| {
        let text = format!("deadline_ms must be a number of milliseconds, got {}", deadline_ms.inspect());
        Error::new(ruby.exception_arg_error(), text)
    })?;
    Ok(Duration::try_from_secs_f64(milliseconds.max(0.0) / 1000.0).unwrap_or(Duration::MAX))
}

/// Seconds from 0 on, as any Float.
pub fn seconds(ruby: &Ruby, seconds: f64) -> Result<Duration, Error> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| Error::new(ruby.exception_arg_error(), format!("{seconds} seconds: {error}")))
}

/// The position of an envelope, as an Integer of any size.
pub fn position_of(ruby: &Ruby, envelope: Value) -> Result<Value, Error> {
    if !envelope.respond_to(*MSG_ID, false)? {
        let text = format!("each of envelopes must respond to msg_id, got {}", envelope.inspect());
        return Err(Error::new(ruby.exception_type_error(), text));
    }
    envelope.funcall(*MSG_ID, ())
}

/// Whether the position says that the message is ephemeral.
pub fn is_negative(ruby: &Ruby, msg_id: Value) -> Result<bool, Error> {
    match i64::try_convert(msg_id) {
        Ok(number) => Ok(number < 0),
        Err(_) => Ok(msg_id.is_kind_of(ruby.class_integer()) && msg_id.funcall("negative?", ())?),
    }
}

/// A position: an Integer of 64 bits; nothing else is turned into one.
pub fn msg_id(ruby: &Ruby, value: Value) -> Result<i64, Error> {
    let class = match Integer::from_value(value).map(|number| number.to_i64()) {
        Some(Ok(number)) => return Ok(number),
        Some(Err(_)) => ruby.exception_range_error(),
        None => ruby.exception_type_error(),
    };
    Err(Error::new(class, format!("a msg_id must be an Integer of at most 64 bits, got {}", value.inspect())))
}

/// `buffer_limit` as pgbus means it: no limit unless it is positive.
pub fn limit(ruby: &Ruby, frames: i64, overflow: magnus::Symbol) -> Result<Limit, Error> {
    let overflow = match &*overflow.name()? {
        "drop_oldest" => Overflow::DropOldest,
        "disconnect" => Overflow::Disconnect,
        other => return Err(Error::new(ruby.exception_arg_error(), format!("unknown overflow policy {other:?}"))),
    };
    Ok(Limit { frames: usize::try_from(frames).unwrap_or(0), overflow })
}
