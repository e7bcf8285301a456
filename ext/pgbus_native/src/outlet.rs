//! `PgbusNative::Outlet`: the engine's side of one pgbus connection.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use magnus::rb_sys::{AsRawId, AsRawValue, FromRawValue};
use magnus::typed_data::Obj;
use magnus::value::{IntoId, LazyId, Opaque};
use magnus::{gc, method, prelude::*, DataTypeFunctions, Error, RArray, RModule, RString, Ruby, TypedData, Value};
use pgbus_native_engine::frame::Frame;
use pgbus_native_engine::pump::{self, Handed, Item, Job, Pump};

use crate::argument;
use crate::born::Born;
use crate::writers::Writers;

static OUTLET: LazyId = LazyId::new("@outlet");

#[derive(TypedData)]
#[magnus(class = "PgbusNative::Outlet", free_immediately, mark, size)]
pub struct Outlet {
    outlet: Born<Arc<pump::Outlet>>,
    writers: Opaque<Obj<Writers>>,
    /// The class that the connection must be of, without a singleton class.
    class: Opaque<Value>,
    deadlines: Deadlines,
}

/// How long a browser may take no byte.
#[derive(Clone, Copy)]
pub struct Deadlines {
    /// What pgbus's dispatcher gives to a fan-out. It protects the others, which nobody here needs.
    pub fan_out: Duration,
    /// The connection's own.
    pub write: Duration,
}

impl Deadlines {
    fn of(&self, given: Duration) -> Duration {
        if given == self.fan_out {
            given.max(self.write)
        } else {
            given
        }
    }
}

impl DataTypeFunctions for Outlet {
    fn mark(&self, marker: &gc::Marker) {
        marker.mark(self.writers);
        marker.mark(self.class);
    }
}

/// Nobody can hand anything over any more, nor use the socket.
impl Drop for Outlet {
    fn drop(&mut self) {
        if let Some(outlet) = self.outlet.get() {
            outlet.release();
            outlet.close();
        }
    }
}

impl Outlet {
    /// Takes the connection's socket over. None: it stays Ruby's.
    pub fn adopt(
        ruby: &Ruby,
        writers: Obj<Writers>,
        pump: &Pump,
        (connection, io): (Value, Value),
        deadlines: Deadlines,
    ) -> Result<Option<Self>, Error> {
        let id = connection.funcall::<_, _, Value>("id", ())?.to_string();
        let cursor = argument::msg_id(ruby, connection.funcall("last_msg_id_sent", ())?)?;
        let fd: i32 = io.funcall("fileno", ())?;
        // From here on closing the IO only marks it closed.
        io.funcall::<_, _, Value>("autoclose=", (false,))?;
        // SAFETY: the descriptor is open, since `fileno` did not raise and the GVL is held since, and Ruby does not
        // close it any more.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        match pump.adopt(id, cursor, socket) {
            Ok(outlet) => Ok(Some(Self {
                outlet: Born::new(outlet),
                writers: writers.into(),
                class: connection.class().as_value().into(),
                deadlines,
            })),
            Err(socket) => {
                let _ = socket.into_raw_fd();
                io.funcall::<_, _, Value>("autoclose=", (true,))?;
                Ok(None)
            }
        }
    }

    /// The outlet of this connection, if it has one.
    pub fn of<'a>(ruby: &Ruby, connection: Value) -> Option<&'a Self> {
        if rb_sys::SPECIAL_CONST_P(connection.as_raw()) {
            return None;
        }
        // SAFETY: reading an instance variable of an object on the heap; that neither raises nor calls Ruby.
        let value =
            unsafe { Value::from_raw(rb_sys::rb_ivar_get(connection.as_raw(), OUTLET.into_id_with(ruby).as_raw())) };
        if value.is_nil() {
            return None;
        }
        <&Self>::try_convert(value).ok()
    }

    /// None in a forked child of the process that made it.
    pub fn get(&self) -> Option<&Arc<pump::Outlet>> {
        self.outlet.get()
    }

    /// Whether the connection is what it was when it was taken in: nobody gave it methods of its own since.
    pub fn is_unmodified(&self, ruby: &Ruby, connection: Value) -> bool {
        // SAFETY: the connection is an object on the heap, since it has an instance variable; `klass` is its class, or
        // its singleton class if it has one.
        let class = unsafe { (*(connection.as_raw() as *const rb_sys::RBasic)).klass };
        class == ruby.get_inner(self.class).as_raw()
    }

    /// The job of a post: everything is read and made before anything is handed over.
    pub fn job(&self, ruby: &Ruby, outlet: &pump::Outlet, envelopes: RArray, deadline: Duration) -> Result<Job, Error> {
        let writers = ruby.get_inner(self.writers);
        let (cursor, queued_to, mut known_from) = (outlet.cursor(), outlet.queued_to(), None);
        let mut items = Vec::with_capacity(envelopes.len());
        let mut index = 0;
        // The length is asked again each time: what is called in between may change the array.
        while index < envelopes.len() {
            let envelope: Value = envelopes.entry(index as isize)?;
            let position = argument::position_of(ruby, envelope)?;
            if argument::is_negative(ruby, position)? {
                let text = format!(
                    "OutboundPump received an ephemeral (negative msg_id) envelope ({position}); ephemeral fanout must \
                     stay inline on the dispatcher thread"
                );
                return Err(Error::new(ruby.exception_arg_error(), text));
            }
            let msg_id = argument::msg_id(ruby, position)?;
            if msg_id > queued_to {
                items.push(writers.frames.of(ruby, envelope, msg_id)?);
            } else if msg_id > cursor {
                known_from = Some(known_from.unwrap_or(msg_id).min(msg_id));
            }
            index += 1;
        }
        Ok(Job { items, known_from, batch_max: None, deadline: self.deadlines.of(deadline) })
    }

    /// `Connection#enqueue`: hands over each message that the browser lacks, whatever its kind. Gives those.
    fn enqueue(ruby: &Ruby, rb_self: &Self, envelopes: RArray, deadline_ms: Value) -> Result<RArray, Error> {
        let taken = ruby.ary_new();
        let Some(outlet) = rb_self.get() else { return Ok(taken) };
        let deadline = rb_self.deadlines.of(argument::deadline(ruby, deadline_ms)?);
        let writers = ruby.get_inner(rb_self.writers);
        let mut index = 0;
        while index < envelopes.len() && !outlet.is_closed() {
            let envelope: Value = envelopes.entry(index as isize)?;
            index += 1;
            let msg_id = argument::msg_id(ruby, argument::position_of(ruby, envelope)?)?;
            if msg_id >= 0 && msg_id <= outlet.queued_to() {
                continue;
            }
            if outlet.push(writers.frames.of(ruby, envelope, msg_id)?, deadline) == Handed::Taken {
                taken.push(envelope)?;
            }
        }
        Ok(taken)
    }

    /// Hands over bytes that are no message: a comment, the farewell. False: the connection is closed.
    fn write(&self, bytes: RString) -> bool {
        // SAFETY: the bytes are copied before anything of Ruby runs.
        let bytes = unsafe { bytes.as_slice() };
        let Some(outlet) = self.get() else { return false };
        if bytes.is_empty() {
            return !outlet.is_closed();
        }
        let frame = Arc::new(Frame { msg_id: None, bytes: bytes.into() });
        outlet.push(Item::Frame(frame), self.deadlines.write) == Handed::Taken
    }

    /// Reports the cursor as acknowledged when everything that was handed over is out.
    fn acknowledge(&self) {
        if let Some(outlet) = self.get() {
            outlet.post(Job { items: Vec::new(), known_from: None, batch_max: None, deadline: self.deadlines.write });
        }
    }

    fn cursor(&self) -> Option<i64> {
        self.get().map(|outlet| outlet.cursor())
    }

    /// A forked child's copy has no socket.
    fn is_dead(&self) -> bool {
        self.get().is_none_or(|outlet| outlet.is_closed())
    }

    /// Seconds.
    fn idle_for(&self) -> f64 {
        self.get().map_or(0.0, |outlet| outlet.idle_for().as_secs_f64())
    }

    fn close(&self) {
        if let Some(outlet) = self.get() {
            outlet.close();
        }
    }

    fn end(&self) {
        if let Some(outlet) = self.get() {
            outlet.end();
        }
    }

    fn release(&self) {
        if let Some(outlet) = self.get() {
            outlet.release();
        }
    }

    fn key(&self) -> Option<u32> {
        self.get().map(|outlet| outlet.key())
    }
}

pub fn init(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    let class = module.define_class("Outlet", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_method("enqueue", method!(Outlet::enqueue, 2))?;
    class.define_method("write", method!(Outlet::write, 1))?;
    class.define_method("acknowledge", method!(Outlet::acknowledge, 0))?;
    class.define_method("cursor", method!(Outlet::cursor, 0))?;
    class.define_method("dead?", method!(Outlet::is_dead, 0))?;
    class.define_method("idle_for", method!(Outlet::idle_for, 0))?;
    class.define_method("close", method!(Outlet::close, 0))?;
    class.define_method("end", method!(Outlet::end, 0))?;
    class.define_method("release", method!(Outlet::release, 0))?;
    class.define_method("key", method!(Outlet::key, 0))
}
