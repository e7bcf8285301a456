//! The way to one writer thread, which may come and go.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use mio::Waker;

use super::outlet::Outlet;
use super::shared::lock_ignoring_poison;

/// See the module's documentation.
pub(super) struct Mailbox {
    sender: Sender<Arc<Outlet>>,
    receiver: Receiver<Arc<Outlet>>,
    /// Connections for which something waits: those in this mailbox and on the thread's lists.
    pub scheduled: AtomicUsize,
    /// The thread sleeps in its event loop, or is about to.
    parked: AtomicBool,
    phase: Mutex<Phase>,
    ended: Condvar,
}

#[derive(Default)]
struct Phase {
    running: bool,
    stopping: bool,
    waker: Option<Waker>,
}

impl Mailbox {
    pub fn new() -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self {
            sender,
            receiver,
            scheduled: AtomicUsize::new(0),
            parked: AtomicBool::new(false),
            phase: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// Never blocks; a system call only when the thread sleeps.
    ///
    /// No wake-up is lost: the thread sets `parked` before it looks at the channel a last time, and this looks at
    /// `parked` after it has sent. Whichever comes second sees the other.
    pub fn send(&self, outlet: Arc<Outlet>) {
        let _ = self.sender.send(outlet);
        if self.parked.swap(false, SeqCst) {
            self.wake();
        }
    }

    pub fn receive(&self) -> Option<Arc<Outlet>> {
        self.receiver.try_recv().ok()
    }

    pub fn is_empty(&self) -> bool {
        self.receiver.is_empty()
    }

    pub fn set_parked(&self, parked: bool) {
        self.parked.store(parked, SeqCst);
    }

    fn wake(&self) {
        if let Some(waker) = &lock_ignoring_poison(&self.phase).waker {
            let _ = waker.wake();
        }
    }

    /// Runs `start`, which gives the waker of a thread that it started, unless one runs.
    pub fn start<E>(&self, start: impl FnOnce() -> Result<Waker, E>) -> Result<(), E> {
        let mut phase = lock_ignoring_poison(&self.phase);
        phase.stopping = false;
        if !phase.running {
            phase.waker = Some(start()?);
            phase.running = true;
        }
        Ok(())
    }

    /// Tells the thread to end as soon as nothing is scheduled.
    pub fn stop(&self) {
        lock_ignoring_poison(&self.phase).stopping = true;
        self.wake();
    }

    pub fn runs(&self) -> bool {
        lock_ignoring_poison(&self.phase).running
    }

    /// Decides, against a start and a stop at the same time, whether the thread is to end now.
    pub fn may_end(&self) -> bool {
        let mut phase = lock_ignoring_poison(&self.phase);
        if !phase.stopping || self.scheduled.load(SeqCst) > 0 {
            return false;
        }
        phase.running = false;
        phase.waker = None;
        true
    }

    pub fn notify_joins(&self) {
        // Under the lock, so that nobody misses it between a look and a wait.
        let _phase = lock_ignoring_poison(&self.phase);
        self.ended.notify_all();
    }

    /// Waits for the thread's end; false if `deadline` or `interrupted` came first.
    pub fn join(&self, deadline: Instant, interrupted: &AtomicBool) -> bool {
        let mut phase = lock_ignoring_poison(&self.phase);
        while phase.running && !interrupted.load(SeqCst) {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            phase = self.ended.wait_timeout(phase, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        !phase.running
    }
}
