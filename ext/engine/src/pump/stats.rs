//! Counters of a pump, cheap enough to be read at any time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that any thread may change.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds and returns the new value.
    pub fn add(&self, amount: usize) -> u64 {
        self.0.fetch_add(amount as u64, Relaxed) + amount as u64
    }

    /// Subtracts; what is subtracted was added before.
    pub fn sub(&self, amount: usize) {
        self.0.fetch_sub(amount as u64, Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What a pump did and what it holds.
#[derive(Debug, Default)]
pub struct Stats {
    /// Frames posted.
    pub posted: Counter,
    /// Frames that are whole in their sockets.
    pub written: Counter,
    /// Bytes that are in the sockets.
    pub bytes: Counter,
    /// Jobs dropped because of the limit.
    pub dropped: Counter,
    /// Connections that the pump found dead.
    pub dead: Counter,
    /// Jobs acknowledged.
    pub acks: Counter,
    /// Frames that wait or are under way.
    pub waiting: Counter,
    /// Living connections that had a job from this pump.
    pub connections: Counter,
    /// System calls that wrote.
    pub writes: Counter,
}
