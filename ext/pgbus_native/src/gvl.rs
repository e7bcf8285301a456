//! Waiting without the GVL.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};

use crossbeam_channel::{bounded, Receiver};
use magnus::{Error, Ruby};
use rb_sys::rb_thread_call_without_gvl2;

struct Call<'a, R> {
    wait: Option<Box<dyn FnOnce() -> R + 'a>>,
    result: Option<Result<R, Box<dyn Any + Send>>>,
}

/// Runs `wait` without the GVL and returns what it gives. `None`: it did not run, since an interrupt (`Thread#kill`,
/// `Timeout`, a signal, process exit) is pending.
///
/// `unblock` is called from another thread, maybe more than once, when the waiting thread is to come back; it must make
/// `wait` return soon and must not touch Ruby. What arrived by then must be in the result: interrupts are *not* checked
/// here afterwards, so the caller decides what to do with the result before it calls [`check_interrupts`].
///
/// # Errors
/// A panic inside `wait` becomes a fatal Ruby exception.
pub fn without_gvl<R>(wait: impl FnOnce() -> R, unblock: impl Fn() + Sync) -> Result<Option<R>, Error> {
    unsafe extern "C" fn call<R>(data: *mut c_void) -> *mut c_void {
        // SAFETY: `data` is the `Call` on the stack of `without_gvl`, which is blocked until this returns.
        let call = unsafe { &mut *data.cast::<Call<'_, R>>() };
        if let Some(wait) = call.wait.take() {
            call.result = Some(catch_unwind(AssertUnwindSafe(wait)));
        }
        std::ptr::null_mut()
    }
    unsafe extern "C" fn unblock_with<U: Fn() + Sync>(data: *mut c_void) {
        // SAFETY: `data` is the closure on the stack of `without_gvl`; Ruby calls this only while it is blocked there.
        let unblock = unsafe { &*data.cast::<U>() };
        let _ = catch_unwind(AssertUnwindSafe(unblock));
    }
    fn unblock_of<U: Fn() + Sync>(_: &U) -> unsafe extern "C" fn(*mut c_void) {
        unblock_with::<U>
    }

    let mut pending = Call { wait: Some(Box::new(wait)), result: None };
    // SAFETY: called with the GVL held (a `Ruby` can only be had so); both pointers outlive the call, which returns
    // when `call` has returned; `call` does not touch Ruby and no panic leaves it.
    unsafe {
        rb_thread_call_without_gvl2(
            Some(call::<R>),
            (&raw mut pending).cast(),
            Some(unblock_of(&unblock)),
            (&raw const unblock).cast_mut().cast(),
        );
    }
    match pending.result {
        None => Ok(None),
        Some(Ok(result)) => Ok(Some(result)),
        Some(Err(panic)) => Err(panicked(&*panic)),
    }
}

/// Waits without the GVL for what `wait` gives. None from it means that its receiver said so: somebody wants the thread
/// back; what was asked of it acts then, and the wait goes on.
///
/// Interrupts act before the first wait, too: Ruby has shelved one that came while a helper had something in hand.
pub fn wait<T>(ruby: &Ruby, wait: impl Fn(&Receiver<()>) -> Option<T>) -> Result<T, Error> {
    loop {
        check_interrupts(ruby)?;
        if let Some(result) = wait_once(&wait)? {
            return Ok(result);
        }
    }
}

/// Waits once, see [`wait`]. None also when an interrupt is pending.
pub fn wait_once<T>(wait: impl FnOnce(&Receiver<()>) -> Option<T>) -> Result<Option<T>, Error> {
    let (unblock, interrupt) = bounded(1);
    Ok(without_gvl(|| wait(&interrupt), || _ = unblock.try_send(()))?.flatten())
}

/// Lets pending interrupts act: raises what `Thread#raise`, `Timeout` or `Thread#kill` asked for.
pub fn check_interrupts(ruby: &Ruby) -> Result<(), Error> {
    ruby.thread_check_ints()
}

/// The Ruby exception for a panic: a bug of this gem, told without taking the process down.
fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default();
    let class = match Ruby::get() {
        Ok(ruby) => ruby.exception_runtime_error(),
        Err(_) => unreachable!("the GVL is held here"),
    };
    Error::new(class, format!("bug in pgbus_native, please report it: {text}"))
}
