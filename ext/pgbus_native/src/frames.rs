//! The frames of envelopes that were posted of late: a frame's bytes are made once for all connections it goes to.
//!
//! pgbus hands the same envelope objects over for one connection after the other, within moments. So the frames are kept
//! by the envelope's identity, in Ruby hashes, for one to two [`LIFE`]s: the hash in use, and the one before it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use magnus::value::{LazyId, Opaque};
use magnus::{gc, prelude::*, Error, RHash, RString, Ruby, Value};
use pgbus_native_engine::frame::Frame;
use pgbus_native_engine::pump::Item;

static CALL: LazyId = LazyId::new("call");

/// After the first frame of a hash, a new hash is begun.
pub const LIFE: Duration = Duration::from_millis(500);

/// A frame in a hash.
#[magnus::wrap(class = "PgbusNative::Frame", free_immediately, size)]
struct Made(Item);

/// See the module's documentation. For threads with the GVL.
pub struct Frames {
    /// Called with msg_id and envelope; gives the bytes, or a Symbol that says why there are none.
    encoder: Opaque<Value>,
    young: Cell<Opaque<RHash>>,
    old: Cell<Opaque<RHash>>,
    since: Cell<Instant>,
}

impl Frames {
    pub fn new(ruby: &Ruby, encoder: Value) -> Result<Self, Error> {
        Ok(Self {
            encoder: encoder.into(),
            young: Cell::new(by_identity(ruby)?.into()),
            old: Cell::new(by_identity(ruby)?.into()),
            since: Cell::new(Instant::now()),
        })
    }

    pub fn mark(&self, marker: &gc::Marker) {
        marker.mark(self.encoder);
        marker.mark(self.young.get());
        marker.mark(self.old.get());
    }

    /// The frame of an envelope, whose msg_id was asked for already.
    pub fn of(&self, ruby: &Ruby, envelope: Value, msg_id: i64) -> Result<Item, Error> {
        self.age(ruby)?;
        for hash in [&self.young, &self.old] {
            let found: Option<&Made> = ruby.get_inner(hash.get()).lookup2(envelope, None::<Value>)?;
            if let Some(made) = found {
                return Ok(made.0.clone());
            }
        }
        let item = self.make(ruby, envelope, msg_id)?;
        if envelope.is_frozen() {
            ruby.get_inner(self.young.get()).aset(envelope, Made(item.clone()))?;
        }
        Ok(item)
    }

    /// Forgets what is too old. Returns whether anything is left.
    pub fn age(&self, ruby: &Ruby) -> Result<bool, Error> {
        if self.since.get().elapsed() >= LIFE {
            // Emptied, not left to the garbage collector: a stack may still show the hash.
            ruby.get_inner(self.old.get()).clear()?;
            self.young.swap(&self.old);
            self.since.set(Instant::now());
        }
        Ok(!self.is_empty(ruby))
    }

    pub fn is_empty(&self, ruby: &Ruby) -> bool {
        ruby.get_inner(self.young.get()).is_empty() && ruby.get_inner(self.old.get()).is_empty()
    }

    /// Makes the bytes, with pgbus's own method.
    fn make(&self, ruby: &Ruby, envelope: Value, msg_id: i64) -> Result<Item, Error> {
        let position = (msg_id >= 0).then_some(msg_id);
        let encoded: Value = ruby.get_inner(self.encoder).funcall(*CALL, (msg_id, envelope))?;
        Ok(match RString::from_value(encoded) {
            // SAFETY: the bytes are copied before anything of Ruby runs.
            Some(bytes) => Item::Frame(Arc::new(Frame { msg_id: position, bytes: unsafe { bytes.as_slice() }.into() })),
            None => Item::Broken { msg_id: position, reason: encoded.to_string().into() },
        })
    }
}

fn by_identity(ruby: &Ruby) -> Result<RHash, Error> {
    ruby.hash_new().funcall("compare_by_identity", ())
}

#[allow(clippy::unnecessary_wraps)]
pub fn init(ruby: &Ruby, module: magnus::RModule) -> Result<(), Error> {
    module.define_class("Frame", ruby.class_object())?.undef_default_alloc_func();
    module.funcall::<_, _, Value>("private_constant", ("Frame",)).map(drop)
}
