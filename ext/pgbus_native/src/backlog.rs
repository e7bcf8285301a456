//! `PgbusNative::Backlog`: what waits for a connection that is written to by Ruby threads.

use std::cell::RefCell;

use magnus::value::Opaque;
use magnus::{
    function, gc, method, prelude::*, DataTypeFunctions, Error, RArray, RModule, Ruby, Symbol, TypedData, Value,
};
use pgbus_native_engine::pump::{self, Limit, Overflow, Pushed, Weight};

struct Job {
    job: Opaque<Value>,
    frames: usize,
}

impl Weight for Job {
    fn frames(&self) -> usize {
        self.frames
    }
}

#[derive(TypedData)]
#[magnus(class = "PgbusNative::Backlog", free_immediately, mark, size)]
struct Backlog {
    limit: Limit,
    jobs: RefCell<pump::Backlog<Job>>,
}

impl DataTypeFunctions for Backlog {
    fn mark(&self, marker: &gc::Marker) {
        let jobs = self.jobs.borrow();
        for index in 0..jobs.len() {
            if let Some(job) = jobs.get(index) {
                marker.mark(job.job);
            }
        }
    }
}

impl Backlog {
    fn new(ruby: &Ruby, limit: i64, overflow: Symbol) -> Result<Self, Error> {
        Ok(Self { limit: limit_of(ruby, limit, overflow)?, jobs: RefCell::default() })
    }

    /// The jobs that were dropped for this one; nil if it was refused.
    fn push(ruby: &Ruby, rb_self: &Self, job: Value, frames: usize) -> Result<Option<RArray>, Error> {
        let pushed = rb_self.jobs.borrow_mut().push(Job { job: job.into(), frames }, rb_self.limit);
        match pushed {
            Pushed::Refused(_) => Ok(None),
            Pushed::Waits(dropped) => {
                let list = ruby.ary_new();
                for job in dropped {
                    list.push(job.job)?;
                }
                Ok(Some(list))
            }
        }
    }

    fn shift(&self) -> Option<Opaque<Value>> {
        self.jobs.borrow_mut().pop().map(|job| job.job)
    }

    fn size(&self) -> usize {
        self.jobs.borrow().len()
    }

    fn frames(&self) -> usize {
        self.jobs.borrow().waiting_frames()
    }
}

/// `buffer_limit` as pgbus means it: no limit unless it is positive.
pub fn limit_of(ruby: &Ruby, frames: i64, overflow: Symbol) -> Result<Limit, Error> {
    let overflow = match &*overflow.name()? {
        "drop_oldest" => Overflow::DropOldest,
        "disconnect" => Overflow::Disconnect,
        other => return Err(Error::new(ruby.exception_arg_error(), format!("unknown overflow policy {other:?}"))),
    };
    Ok(Limit { frames: usize::try_from(frames).unwrap_or(0), overflow })
}

pub fn init(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    let class = module.define_class("Backlog", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("new", function!(Backlog::new, 2))?;
    class.define_method("push", method!(Backlog::push, 2))?;
    class.define_method("shift", method!(Backlog::shift, 0))?;
    class.define_method("size", method!(Backlog::size, 0))?;
    class.define_method("frames", method!(Backlog::frames, 0))
}
