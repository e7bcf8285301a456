//! `PgbusNative::Writers`: the writer threads of an `OutboundPump`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use magnus::typed_data::Obj;
use magnus::{
    function, gc, method, prelude::*, DataTypeFunctions, Error, IntoValue, RArray, RHash, RModule, Ruby, Symbol,
    TryConvert, TypedData, Value,
};
use pgbus_native_engine::pump::{Job, Pump, Report};

use crate::born::Born;
use crate::frames::{self, Frames};
use crate::outlet::{Deadlines, Outlet};
use crate::{argument, gvl, system_call};

#[derive(TypedData)]
#[magnus(class = "PgbusNative::Writers", free_immediately, mark, size)]
pub struct Writers {
    pump: Born<Pump>,
    pub frames: Frames,
    /// Reports that were received and not yet handed out.
    pending: RefCell<VecDeque<Report>>,
    /// The reporter is to end when nothing can come any more.
    closing: Cell<bool>,
    /// A reporter was asked for and was not yet told to end.
    reporting: Cell<bool>,
}

impl DataTypeFunctions for Writers {
    fn mark(&self, marker: &gc::Marker) {
        self.frames.mark(marker);
    }
}

impl Writers {
    fn new(ruby: &Ruby, threads: usize, limit: i64, overflow: Symbol, encoder: Value) -> Result<Self, Error> {
        Ok(Self {
            pump: Born::new(Pump::new(threads, argument::limit(ruby, limit, overflow)?)),
            frames: Frames::new(ruby, encoder)?,
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
        pump.start().map_err(|error| {
            system_call::error(ruby, "starting the pump's writer threads", error.raw_os_error().unwrap_or(0))
        })?;
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

    /// Takes a connection's socket over; `deadlines_ms` are that of a fan-out and the connection's own. Gives its outlet,
    /// or nil where the socket stays Ruby's.
    fn adopt(
        ruby: &Ruby,
        rb_self: Obj<Self>,
        connection: Value,
        io: Value,
        deadlines_ms: (Value, Value),
    ) -> Result<Option<Outlet>, Error> {
        let Some(pump) = rb_self.pump.get() else { return Ok(None) };
        let (fan_out, write) = deadlines_ms;
        let deadlines =
            Deadlines { fan_out: argument::deadline(ruby, fan_out)?, write: argument::deadline(ruby, write)? };
        Outlet::adopt(ruby, rb_self, pump, (connection, io), deadlines)
    }

    /// False: this is one for the Ruby way.
    fn post(
        ruby: &Ruby,
        rb_self: &Self,
        connection: Value,
        envelopes: Value,
        batch_max: Value,
        deadline_ms: Value,
    ) -> Result<bool, Error> {
        // A forked child has no part in its parent's pump.
        let Some(pump) = rb_self.pump.get() else { return Ok(true) };
        let Some(native) = Outlet::of(ruby, connection) else { return Ok(false) };
        let Some(outlet) = native.get() else { return Ok(true) };
        let Some(envelopes) = RArray::from_value(envelopes) else { return Ok(false) };
        if !outlet.belongs_to(pump) || !native.is_unmodified(ruby, connection) {
            return Ok(false);
        }
        let is_empty = envelopes.is_empty();
        let job = native.job(ruby, outlet, envelopes, argument::deadline(ruby, deadline_ms)?)?;
        let batch_max = match i64::try_convert(batch_max) {
            Ok(batch_max) => is_empty.then_some(batch_max),
            Err(_) if is_empty => return Ok(false),
            Err(_) => None,
        };
        outlet.post(Job { batch_max, ..job });
        Ok(true)
    }

    /// Sleeps without the GVL until there is something to report, then yields what there is: `:ack, key, accepted_max`,
    /// `:overflow, key, dropped_jobs`, `:dead, key, nil` or `level, nil, text`. False: nothing will come any more.
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
                Err(_) => rb_self.wait(ruby, pump)?,
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

    /// Waits for reports, and lets frames that nobody needs any more go meanwhile.
    fn wait(&self, ruby: &Ruby, pump: &Pump) -> Result<Option<Vec<Report>>, Error> {
        // Ruby has shelved an interrupt that came while the reporter had a report in hand.
        gvl::check_interrupts(ruby)?;
        let timeout = if self.frames.age(ruby)? { frames::LIFE } else { Duration::MAX };
        gvl::without_gvl(|| pump.reports().recv_timeout(timeout).unwrap_or_default(), || pump.disturb_reports())
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
    let (what, key, detail) = match report {
        Report::Ack { key, accepted_max } => ("ack", Some(key), accepted_max.into_value_with(ruby)),
        Report::Overflow { key, dropped } => ("overflow", Some(key), dropped.into_value_with(ruby)),
        Report::Dead { key } => ("dead", Some(key), ruby.qnil().as_value()),
        Report::Log(line) => (line.level.name(), None, line.text.into_value_with(ruby)),
    };
    ruby.yield_values::<_, Value>((ruby.to_symbol(what), key, detail)).map(drop)
}

pub fn init(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    let class = module.define_class("Writers", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("new", function!(Writers::new, 4))?;
    class.define_method("usable?", method!(Writers::is_usable, 0))?;
    class.define_method("start", method!(Writers::start, 0))?;
    class.define_method("stop", method!(Writers::stop, 0))?;
    class.define_method("alive?", method!(Writers::is_alive, 0))?;
    class.define_method("join", method!(Writers::join, 2))?;
    class.define_method("adopt", method!(Writers::adopt, 3))?;
    class.define_method("post", method!(Writers::post, 4))?;
    class.define_method("report", method!(Writers::report, 0))?;
    class.define_method("close", method!(Writers::close, 0))?;
    class.define_method("stats", method!(Writers::stats, 0))
}
