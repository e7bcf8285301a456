//! `PgbusNative::Lock`: a Mutex that Ruby threads and writer threads share.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Instant;

use magnus::value::Opaque;
use magnus::{function, gc, method, prelude::*, DataTypeFunctions, Error, RClass, RModule, Ruby, TypedData, Value};
use pgbus_native_engine::pump;

use crate::born::Born;
use crate::gvl;

#[derive(TypedData)]
#[magnus(class = "PgbusNative::Lock", free_immediately, mark, size)]
pub struct Lock {
    /// Made anew in a forked child, where the holder may have been a thread that does not exist there.
    lock: RefCell<Born<Arc<pump::Lock>>>,
    /// Which Ruby fiber holds it, if any does.
    owner: Cell<Option<Owner>>,
}

#[derive(Clone, Copy)]
struct Owner {
    fiber: Opaque<Value>,
    thread: Opaque<Value>,
}

impl DataTypeFunctions for Lock {
    fn mark(&self, marker: &gc::Marker) {
        if let Some(owner) = self.owner.get() {
            marker.mark(owner.fiber);
            marker.mark(owner.thread);
        }
    }
}

impl Lock {
    fn new() -> Self {
        Self { lock: RefCell::new(Born::new(Arc::new(pump::Lock::new(false)))), owner: Cell::new(None) }
    }

    /// The engine's lock of this process.
    pub fn of_this_process(&self, ruby: &Ruby) -> Arc<pump::Lock> {
        if let Some(lock) = self.lock.borrow().get() {
            return Arc::clone(lock);
        }
        // What the forking thread held itself, it still holds here.
        let held = self.owner.get().is_some_and(|owner| same(ruby, owner.thread, ruby.thread_current().as_value()));
        if !held {
            self.owner.set(None);
        }
        let lock = Arc::new(pump::Lock::new(held));
        self.lock.replace(Born::new(Arc::clone(&lock)));
        lock
    }

    fn lock(ruby: &Ruby, rb_self: &Self) -> Result<(), Error> {
        let lock = rb_self.of_this_process(ruby);
        let me =
            Owner { fiber: ruby.fiber_current().as_value().into(), thread: ruby.thread_current().as_value().into() };
        if let Some(owner) = rb_self.owner.get() {
            if same(ruby, owner.fiber, ruby.get_inner(me.fiber)) {
                return Err(thread_error(ruby, "deadlock; recursive locking"));
            }
            if same(ruby, owner.thread, ruby.get_inner(me.thread)) {
                return Err(thread_error(
                    ruby,
                    "deadlock; lock already owned by another fiber belonging to the same thread",
                ));
            }
        }
        if let Some(ticket) = lock.acquire_or_queue() {
            // An interrupt may act while we wait. If it raises, the place in the queue, or the lock that was granted
            // meanwhile, is given back.
            loop {
                match gvl::without_gvl(|| ticket.wait(), || ticket.disturb()) {
                    Ok(Some(true)) => break,
                    Ok(_) => gvl::check_interrupts(ruby),
                    Err(error) => Err(error),
                }
                .inspect_err(|_| lock.give_up(&ticket))?;
            }
        }
        rb_self.owner.set(Some(me));
        Ok(())
    }

    fn lock_method(
        ruby: &Ruby,
        rb_self: magnus::typed_data::Obj<Self>,
    ) -> Result<magnus::typed_data::Obj<Self>, Error> {
        Self::lock(ruby, &rb_self)?;
        Ok(rb_self)
    }

    fn unlock(ruby: &Ruby, rb_self: &Self) -> Result<(), Error> {
        let lock = rb_self.of_this_process(ruby);
        if !Self::is_owned(ruby, rb_self) {
            let what = if lock.is_held() {
                "Attempt to unlock a mutex which is locked by another thread/fiber"
            } else {
                "Attempt to unlock a mutex which is not locked"
            };
            return Err(thread_error(ruby, what));
        }
        rb_self.owner.set(None);
        lock.release();
        Ok(())
    }

    fn unlock_method(
        ruby: &Ruby,
        rb_self: magnus::typed_data::Obj<Self>,
    ) -> Result<magnus::typed_data::Obj<Self>, Error> {
        Self::unlock(ruby, &rb_self)?;
        Ok(rb_self)
    }

    fn try_lock(ruby: &Ruby, rb_self: &Self) -> bool {
        let taken = rb_self.of_this_process(ruby).try_acquire();
        if taken {
            let (fiber, thread) = (ruby.fiber_current().as_value(), ruby.thread_current().as_value());
            rb_self.owner.set(Some(Owner { fiber: fiber.into(), thread: thread.into() }));
        }
        taken
    }

    fn is_locked(ruby: &Ruby, rb_self: &Self) -> bool {
        rb_self.of_this_process(ruby).is_held()
    }

    fn is_owned(ruby: &Ruby, rb_self: &Self) -> bool {
        rb_self.owner.get().is_some_and(|owner| same(ruby, owner.fiber, ruby.fiber_current().as_value()))
    }

    /// Nothing of Ruby runs between taking the lock and the block, nor between the block's end, however it ends, and
    /// the unlock: no interrupt can leave it locked.
    fn synchronize(ruby: &Ruby, rb_self: &Self) -> Result<Value, Error> {
        if !ruby.block_given() {
            return Err(thread_error(ruby, "must be called with a block"));
        }
        Self::lock(ruby, rb_self)?;
        let result = ruby.yield_values::<_, Value>(());
        Self::unlock(ruby, rb_self)?;
        result
    }

    /// What `ConditionVariable#wait` calls: sleeps unlocked, and comes back locked whatever happens.
    fn sleep(ruby: &Ruby, rb_self: &Self, args: &[Value]) -> Result<Value, Error> {
        let args = magnus::scan_args::scan_args::<(), (Option<Option<Value>>,), (), (), (), ()>(args)?;
        let timeout = args.optional.0.flatten();
        let began = Instant::now();
        Self::unlock(ruby, rb_self)?;
        let slept: Result<Value, Error> = match timeout {
            Some(timeout) => ruby.module_kernel().funcall("sleep", (timeout,)),
            None => ruby.module_kernel().funcall("sleep", ()),
        };
        let mut interrupted = None;
        while let Err(error) = Self::lock(ruby, rb_self) {
            interrupted = Some(error);
        }
        let slept = slept?;
        if let Some(error) = interrupted {
            return Err(error);
        }
        let timed_out = match timeout {
            Some(timeout) => began.elapsed().as_secs_f64() >= timeout.funcall::<_, _, f64>("to_f", ())?,
            None => false,
        };
        Ok(if timed_out { ruby.qnil().as_value() } else { slept })
    }
}

fn same(ruby: &Ruby, one: Opaque<Value>, other: Value) -> bool {
    use magnus::rb_sys::AsRawValue;
    ruby.get_inner(one).as_raw() == other.as_raw()
}

fn thread_error(ruby: &Ruby, message: &'static str) -> Error {
    Error::new(ruby.exception_thread_error(), message)
}

pub fn init(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    let mutex: RClass = ruby.class_object().const_get("Mutex")?;
    let class = module.define_class("Lock", mutex)?;
    class.undef_default_alloc_func();
    class.define_singleton_method("new", function!(Lock::new, 0))?;
    class.define_method("lock", method!(Lock::lock_method, 0))?;
    class.define_method("unlock", method!(Lock::unlock_method, 0))?;
    class.define_method("try_lock", method!(Lock::try_lock, 0))?;
    class.define_method("locked?", method!(Lock::is_locked, 0))?;
    class.define_method("owned?", method!(Lock::is_owned, 0))?;
    class.define_method("synchronize", method!(Lock::synchronize, 0))?;
    class.define_method("sleep", method!(Lock::sleep, -1))
}
