//! The lock of a connection: one holder, and those who wait are served in the order they came.
//!
//! Two kinds of threads want it. A thread that can sleep waits on its [`Ticket`]. A writer thread, which must never
//! wait, leaves a closure that tells it when the lock is its own. A release hands the lock over to the first in the
//! queue, so nobody is overtaken and nobody starves.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex};

use super::locked;

/// See the module's documentation. Its inner mutex is held for a few instructions only.
pub struct Lock {
    state: Mutex<State>,
}

struct State {
    held: bool,
    queue: VecDeque<Waiter>,
}

enum Waiter {
    Sleeper(Arc<Ticket>),
    Writer(Box<dyn FnOnce() + Send>),
}

/// The place in the queue of a thread that sleeps until it is its turn.
#[derive(Debug, Default)]
pub struct Ticket {
    state: Mutex<TicketState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TicketState {
    granted: bool,
    disturbed: bool,
}

impl Lock {
    /// A lock that is `held` from the start, or free.
    pub fn new(held: bool) -> Self {
        Self { state: Mutex::new(State { held, queue: VecDeque::new() }) }
    }

    /// Takes the lock if it is free.
    pub fn try_acquire(&self) -> bool {
        !std::mem::replace(&mut locked(&self.state).held, true)
    }

    /// Takes the lock if it is free; else takes a place in the queue.
    pub fn acquire_or_queue(&self) -> Option<Arc<Ticket>> {
        let mut state = locked(&self.state);
        if !std::mem::replace(&mut state.held, true) {
            return None;
        }
        let ticket = Arc::new(Ticket::default());
        state.queue.push_back(Waiter::Sleeper(Arc::clone(&ticket)));
        Some(ticket)
    }

    /// Takes the lock if it is free (true); else `granted` is called, on the thread that released it, when the lock is
    /// the caller's. `granted` must not block and must not use this lock.
    pub fn acquire_or_tell(&self, granted: impl FnOnce() + Send + 'static) -> bool {
        let mut state = locked(&self.state);
        if !std::mem::replace(&mut state.held, true) {
            return true;
        }
        state.queue.push_back(Waiter::Writer(Box::new(granted)));
        false
    }

    /// Leaves the queue; a lock that was granted in the meantime is handed on.
    pub fn give_up(&self, ticket: &Arc<Ticket>) {
        let mut state = locked(&self.state);
        let place = state
            .queue
            .iter()
            .position(|waiter| matches!(waiter, Waiter::Sleeper(other) if Arc::ptr_eq(other, ticket)));
        match place {
            Some(place) => {
                state.queue.remove(place);
            }
            None => {
                drop(state);
                self.release();
            }
        }
    }

    /// Hands the lock to the first in the queue, or frees it. Only its holder may call this.
    pub fn release(&self) {
        let mut state = locked(&self.state);
        match state.queue.pop_front() {
            None => state.held = false,
            Some(next) => {
                drop(state);
                match next {
                    Waiter::Sleeper(ticket) => ticket.grant(),
                    Waiter::Writer(granted) => granted(),
                }
            }
        }
    }

    /// Whether anybody holds it.
    pub fn is_held(&self) -> bool {
        locked(&self.state).held
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("held", &self.is_held()).finish_non_exhaustive()
    }
}

impl Ticket {
    /// Sleeps until the lock is the caller's (true) or until somebody calls [`Ticket::disturb`] (false: still in the
    /// queue; wait again or give up).
    pub fn wait(&self) -> bool {
        let mut state = locked(&self.state);
        while !state.granted && !state.disturbed {
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        state.disturbed = false;
        state.granted
    }

    /// Makes [`Ticket::wait`] return soon.
    pub fn disturb(&self) {
        locked(&self.state).disturbed = true;
        self.changed.notify_all();
    }

    fn grant(&self) {
        locked(&self.state).granted = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn hands_over_in_the_order_of_arrival() {
        let lock = Arc::new(Lock::new(true));
        let (order, seen) = mpsc::channel();
        let first = lock.acquire_or_queue().unwrap();
        let tell = order.clone();
        assert!(!lock.acquire_or_tell(move || tell.send("writer").unwrap()));
        let last = lock.acquire_or_queue().unwrap();
        assert!(!lock.try_acquire());

        lock.release();
        assert!(first.wait());
        assert!(seen.try_recv().is_err());
        lock.release();
        assert_eq!(seen.recv().unwrap(), "writer");
        lock.release();
        assert!(last.wait());
        lock.release();
        assert!(!lock.is_held());
    }

    #[test]
    fn a_grant_that_met_a_giving_up_goes_on_to_the_next() {
        let lock = Lock::new(true);
        let first = lock.acquire_or_queue().unwrap();
        let second = lock.acquire_or_queue().unwrap();
        lock.release();
        lock.give_up(&first);
        assert!(second.wait());
        lock.release();
        assert!(lock.try_acquire());
    }

    #[test]
    fn who_gave_up_is_not_served() {
        let lock = Lock::new(true);
        let first = lock.acquire_or_queue().unwrap();
        lock.give_up(&first);
        lock.release();
        assert!(!lock.is_held());
    }

    #[test]
    fn a_disturbed_sleeper_keeps_its_place() {
        let lock = Lock::new(true);
        let ticket = lock.acquire_or_queue().unwrap();
        ticket.disturb();
        assert!(!ticket.wait());
        lock.release();
        assert!(ticket.wait());
    }

    #[test]
    fn only_one_thread_is_inside() {
        let lock = Arc::new(Lock::new(false));
        let inside = Arc::new(Mutex::new(()));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (lock, inside) = (Arc::clone(&lock), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..1_000 {
                        if let Some(ticket) = lock.acquire_or_queue() {
                            assert!(ticket.wait());
                        }
                        drop(inside.try_lock().expect("nobody else is inside"));
                        lock.release();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(!lock.is_held());
    }
}
