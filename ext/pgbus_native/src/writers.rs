//! `PgbusNative::Writers`: the writer threads of an `OutboundPump`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};

use magnus::rb_sys::{protect, AsRawId, AsRawValue, FromRawValue};
use magnus::value::{IntoId, LazyId};
use magnus::{
    function, method, prelude::*, Error, ExceptionClass, IntoValue, RArray, RHash, RModule, RString, Ruby, Symbol,
    TryConvert, Value,
};
use pgbus_native_engine::log::Level;
use pgbus_native_engine::pump::{Frame, Job, Posted, Pump, Report};

use crate::backlog::limit_of;
use crate::born::Born;
use crate::cursor::msg_id_of;
use crate::outlet::Outlet;
use crate::{gvl, owners};

static OUTLET: LazyId = LazyId::new("@outlet");
static MSG_ID: LazyId = LazyId::new("msg_id");
static CALL: LazyId = LazyId::new("call");

#[magnus::wrap(class = "PgbusNative::Writers", free_immediately, size)]
struct Writers {
    /// Its name in the registry.
    id: u64,
    pump: Born<Pump>,
    /// Reports that were received and not yet handed out.
    pending: RefCell<VecDeque<Report>>,
    /// The reporter is to end when nothing can come any more.
    closing: Cell<bool>,
    /// A reporter was asked for and was not yet told to end.
    reporting: Cell<bool>,
}

/// Jobs in flight are nobody's any more. In a child they aren't in the registry: see there.
impl Drop for Writers {
    fn drop(&mut self) {
        owners::forget(self.id);
    }
}

/// What a post came to, as Ruby sees it.
enum Way {
    /// Done, or there is nothing to do.
    Native,
    /// `Connection#enqueue` is to be called by a Ruby thread.
    Ruby,
    /// ... as soon as the reporter says that the connection is idle.
    RubyWhenIdle,
}

impl Writers {
    fn new(ruby: &Ruby, threads: usize, limit: i64, overflow: Symbol) -> Result<Self, Error> {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            id: LAST_ID.fetch_add(1, SeqCst),
            pump: Born::new(Pump::new(threads, limit_of(ruby, limit, overflow)?)),
            pending: RefCell::default(),
            closing: Cell::new(false),
            reporting: Cell::new(false),
        })
    }

    /// False in a forked child of the process that made it.
    fn is_usable(&self) -> bool {
        self.pump.get().is_some()
    }

    /// Returns whether there is no reporter.
    fn start(ruby: &Ruby, rb_self: &Self) -> Result<bool, Error> {
        let Some(pump) = rb_self.pump.get() else { return Ok(false) };
        pump.start().map_err(|error| system_call_error(ruby, &error))?;
        rb_self.closing.set(false);
        Ok(!rb_self.reporting.replace(true))
    }

    /// Tells the threads to end when nothing waits.
    fn stop(&self) {
        if let Some(pump) = self.pump.get() {
            pump.stop();
        }
    }

    fn is_alive(&self) -> bool {
        self.pump.get().is_some_and(|pump| (0..pump.writers()).any(|writer| pump.runs(writer)))
    }

    /// Waits for one thread's end; false if it did not come in time.
    fn join(ruby: &Ruby, rb_self: &Self, writer: usize, seconds: f64) -> Result<bool, Error> {
        let Some(pump) = rb_self.pump.get() else { return Ok(true) };
        let deadline = Instant::now() + Duration::from_secs_f64(seconds);
        loop {
            let interrupted = AtomicBool::new(false);
            let ended = gvl::without_gvl(
                || pump.join(writer, deadline, &interrupted),
                || {
                    interrupted.store(true, SeqCst);
                    pump.disturb_joins();
                },
            )?;
            if ended == Some(true) || Instant::now() >= deadline {
                return Ok(!pump.runs(writer));
            }
            gvl::check_interrupts(ruby)?;
        }
    }

    fn post(
        ruby: &Ruby,
        rb_self: &Self,
        connection: Value,
        envelopes: Value,
        batch_max: Value,
        deadline_ms: Value,
        encoder: Value,
    ) -> Result<Option<bool>, Error> {
        Ok(match Self::way(ruby, rb_self, connection, envelopes, batch_max, deadline_ms, encoder)? {
            Way::Native => Some(true),
            Way::Ruby => Some(false),
            Way::RubyWhenIdle => None,
        })
    }

    fn way(
        ruby: &Ruby,
        rb_self: &Self,
        connection: Value,
        envelopes: Value,
        batch_max: Value,
        deadline_ms: Value,
        encoder: Value,
    ) -> Result<Way, Error> {
        // A forked child has no part in its parent's pump.
        let Some(pump) = rb_self.pump.get() else { return Ok(Way::Native) };
        let Some(seam) = outlet_of(ruby, connection) else { return Ok(Way::Ruby) };
        let Some(outlet) = seam.get() else { return Ok(Way::Ruby) };
        let in_ruby = || {
            let busy = owners::await_idle(seam.place.get(), rb_self.id, connection);
            Ok(if busy { Way::RubyWhenIdle } else { Way::Ruby })
        };
        let Some(envelopes) = RArray::from_value(envelopes).filter(|_| seam.suits(ruby, connection)) else {
            return in_ruby();
        };

        let frames = frames_of(ruby, envelopes, encoder)?;
        let deadline = deadline_of(ruby, deadline_ms)?;
        let accepted_when_empty = match i64::try_convert(batch_max) {
            Ok(batch_max) => batch_max,
            Err(_) if frames.is_empty() => return in_ruby(),
            Err(_) => 0,
        };
        if outlet.is_dead() {
            return Ok(Way::Native);
        }
        let io = ruby.get_inner(seam.io);
        let closed = is_closed(io)?;
        if !closed && !seam.attached.get() {
            let fd: i32 = io.funcall("fileno", ())?;
            // SAFETY: the descriptor is open for as long as we hold the GVL, since closing it needs the GVL.
            if outlet.attach(unsafe { BorrowedFd::borrow_raw(fd) }).is_err() {
                // No descriptor left: this job goes on with Ruby's own.
                return in_ruby();
            }
            seam.attached.set(true);
        }

        let former = seam.place.get();
        let place = owners::retain(former, rb_self.id, connection);
        seam.place.set(Some(place));
        if closed {
            if !pump.kill(outlet, place.index, 1) {
                owners::release(place.index, 1);
            }
            return Ok(Way::Native);
        }
        match pump.post(outlet, place.index, Job::new(frames, accepted_when_empty, deadline)) {
            Posted::Taken => Ok(Way::Native),
            Posted::Dead => {
                owners::release(place.index, 1);
                Ok(Way::Native)
            }
            Posted::Elsewhere => {
                owners::release(place.index, 1);
                seam.place.set(former);
                in_ruby()
            }
        }
    }

    /// Whether the connection has jobs in flight; if so, the reporter will say when it is idle.
    fn is_busy(ruby: &Ruby, rb_self: &Self, connection: Value) -> bool {
        outlet_of(ruby, connection).is_some_and(|seam| owners::await_idle(seam.place.get(), rb_self.id, connection))
    }

    /// Sleeps without the GVL until there is something to report, then yields what there is: `:ack, connection,
    /// accepted_max, idle`, `:overflow, connection, dropped_jobs, idle`, `:dead, connection, nil, idle`, `:gone,
    /// connection, nil, true` or `level, nil, text, false`. Idle: a Ruby thread waits for this connection, and its last
    /// job is done. Returns false when nothing will come any more.
    fn report(ruby: &Ruby, rb_self: &Self) -> Result<bool, Error> {
        let Some(pump) = rb_self.pump.get() else { return Ok(false) };
        let receiver = pump.reports();
        if rb_self.pending.borrow().is_empty() {
            let batch = match receiver.try_recv() {
                Ok(batch) => Some(batch),
                Err(_) if rb_self.closing.get() && !rb_self.is_alive() => {
                    rb_self.reporting.set(false);
                    return Ok(false);
                }
                Err(_) => {
                    // Ruby has shelved an interrupt that came while the reporter had a report in hand.
                    gvl::check_interrupts(ruby)?;
                    gvl::without_gvl(|| receiver.recv().unwrap_or_default(), || pump.disturb_reports())?
                }
            };
            rb_self.pending.borrow_mut().extend(batch.into_iter().flatten());
        }
        rb_self.pending.borrow_mut().extend(receiver.try_iter().flatten());
        loop {
            // One by one: whatever the block raises, no other report is lost.
            let Some(report) = rb_self.pending.borrow_mut().pop_front() else { return Ok(true) };
            hand_out(ruby, report)?;
        }
    }

    /// The reporter ends when the writers did and everything is told.
    fn close(&self) {
        self.closing.set(true);
        if let Some(pump) = self.pump.get() {
            pump.disturb_reports();
        }
    }

    fn stats(ruby: &Ruby, rb_self: &Self) -> Result<RHash, Error> {
        let hash = ruby.hash_new();
        if let Some(pump) = rb_self.pump.get() {
            let stats = pump.stats();
            for (name, counter) in [
                ("posted", &stats.posted),
                ("written", &stats.written),
                ("bytes", &stats.bytes),
                ("dropped", &stats.dropped),
                ("dead", &stats.dead),
                ("acks", &stats.acks),
                ("waiting", &stats.waiting),
                ("connections", &stats.connections),
                ("writes", &stats.writes),
            ] {
                hash.aset(ruby.to_symbol(name), counter.get())?;
            }
        }
        Ok(hash)
    }
}

fn hand_out(ruby: &Ruby, report: Report) -> Result<(), Error> {
    let (owner, jobs) = match &report {
        Report::Ack { owner, .. } => (*owner, 1),
        Report::Dead { owner, jobs } | Report::Gone { owner, jobs } => (*owner, *jobs),
        // That releases nothing, but says whose it is.
        Report::Overflow { owner, .. } => (*owner, 0),
        Report::Log(line) => {
            let level = match line.level {
                Level::Debug => "debug",
                Level::Info => "info",
                Level::Warn => "warn",
                Level::Error => "error",
            };
            return ruby.yield_values::<_, Value>((ruby.to_symbol(level), (), line.text.as_str(), false)).map(drop);
        }
    };
    let Some(released) = owners::release(owner, jobs) else { return Ok(()) };
    let connection = ruby.get_inner(released.connection);
    let idle = released.idle && released.awaited;
    let (kind, detail) = match report {
        Report::Ack { accepted_max, .. } => ("ack", accepted_max.into_value_with(ruby)),
        Report::Overflow { dropped, .. } => ("overflow", dropped.into_value_with(ruby)),
        Report::Dead { .. } => ("dead", ruby.qnil().as_value()),
        Report::Gone { .. } if idle => ("gone", ruby.qnil().as_value()),
        Report::Gone { .. } | Report::Log(_) => return Ok(()),
    };
    ruby.yield_values::<_, Value>((ruby.to_symbol(kind), connection, detail, idle)).map(drop)
}

/// The outlet that the seam gave to this connection, if it has one.
fn outlet_of<'a>(ruby: &Ruby, connection: Value) -> Option<&'a Outlet> {
    if rb_sys::SPECIAL_CONST_P(connection.as_raw()) {
        return None;
    }
    // SAFETY: reading an instance variable of an object on the heap; that neither raises nor calls Ruby.
    let value =
        unsafe { Value::from_raw(rb_sys::rb_ivar_get(connection.as_raw(), OUTLET.into_id_with(ruby).as_raw())) };
    if value.is_nil() {
        return None;
    }
    <&Outlet>::try_convert(value).ok()
}

fn is_closed(io: Value) -> Result<bool, Error> {
    // SAFETY: `io` is an IO; an uninitialized one raises, which `protect` catches.
    protect(|| unsafe { rb_sys::rb_io_closed_p(io.as_raw()) }).map(|closed| closed == rb_sys::Qtrue as rb_sys::VALUE)
}

/// The frames of the envelopes; all of them, or an error and nothing happened.
fn frames_of(ruby: &Ruby, envelopes: RArray, encoder: Value) -> Result<Vec<Arc<Frame>>, Error> {
    let mut frames = Vec::with_capacity(envelopes.len());
    let mut index = 0;
    // The length is asked again each time: what is called in between may change the array.
    while index < envelopes.len() {
        let envelope: Value = envelopes.entry(index as isize)?;
        let frame = match owners::frame_of(envelope) {
            Some(frame) => frame,
            None => make_frame(ruby, envelope, encoder)?,
        };
        frames.push(frame);
        index += 1;
    }
    Ok(frames)
}

/// Makes the bytes of an envelope, with pgbus's own method.
fn make_frame(ruby: &Ruby, envelope: Value, encoder: Value) -> Result<Arc<Frame>, Error> {
    if !envelope.respond_to(*MSG_ID, false)? {
        let class = ruby.exception_type_error();
        return Err(Error::new(class, format!("each of envelopes must respond to msg_id, got {}", envelope.inspect())));
    }
    let msg_id: Value = envelope.funcall(*MSG_ID, ())?;
    let negative = match i64::try_convert(msg_id) {
        Ok(number) => number < 0,
        Err(_) => msg_id.is_kind_of(ruby.class_integer()) && msg_id.funcall("negative?", ())?,
    };
    if negative {
        return Err(Error::new(
            ruby.exception_arg_error(),
            format!(
                "OutboundPump received an ephemeral (negative msg_id) envelope ({msg_id}); ephemeral fanout must stay \
                 inline on the dispatcher thread"
            ),
        ));
    }
    let msg_id_number = msg_id_of(ruby, msg_id)?;
    let encoded: Value = encoder.funcall(*CALL, (msg_id, envelope))?;
    let body = match RString::from_value(encoded) {
        // SAFETY: the bytes are copied before anything of Ruby runs.
        Some(bytes) => Ok(unsafe { bytes.as_slice() }.into()),
        None => Err(encoded.to_string()),
    };
    let frame = Arc::new(Frame { msg_id: msg_id_number, body });
    if envelope.is_frozen() {
        owners::remember(envelope, &frame);
    }
    Ok(frame)
}

/// Milliseconds as any real number; a deadline that is over from the start lets a write be tried once.
fn deadline_of(ruby: &Ruby, deadline_ms: Value) -> Result<Duration, Error> {
    let milliseconds = f64::try_convert(deadline_ms).ok().filter(|number| !number.is_nan()).ok_or_else(|| {
        let class: ExceptionClass = ruby.exception_arg_error();
        Error::new(class, format!("deadline_ms must be a number of milliseconds, got {}", deadline_ms.inspect()))
    })?;
    Ok(Duration::try_from_secs_f64(milliseconds.max(0.0) / 1000.0).unwrap_or(Duration::MAX))
}

fn system_call_error(ruby: &Ruby, error: &std::io::Error) -> Error {
    let exception = ruby.exception_system_call_error().funcall::<_, _, magnus::Exception>(
        "new",
        ("starting the pump's writer threads", error.raw_os_error().unwrap_or(0)),
    );
    match exception {
        Ok(exception) => exception.into(),
        Err(error) => error,
    }
}

pub fn init(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    let class = module.define_class("Writers", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("new", function!(Writers::new, 3))?;
    class.define_method("usable?", method!(Writers::is_usable, 0))?;
    class.define_method("start", method!(Writers::start, 0))?;
    class.define_method("stop", method!(Writers::stop, 0))?;
    class.define_method("alive?", method!(Writers::is_alive, 0))?;
    class.define_method("join", method!(Writers::join, 2))?;
    class.define_method("busy?", method!(Writers::is_busy, 1))?;
    class.define_method("post", method!(Writers::post, 5))?;
    class.define_method("report", method!(Writers::report, 0))?;
    class.define_method("close", method!(Writers::close, 0))?;
    class.define_method("stats", method!(Writers::stats, 0))
}
