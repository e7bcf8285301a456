//! Counters and gauges of a hub, written by its thread and read by any.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

/// A number that is only ever read for people to look at.
#[derive(Debug, Default)]
pub struct Figure(AtomicU64);

impl Figure {
    pub(super) fn add(&self, by: usize) {
        self.0.fetch_add(by as u64, Relaxed);
    }

    pub(super) fn sub(&self, by: usize) {
        self.0.fetch_sub(by as u64, Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Its value now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What a hub counts.
#[derive(Debug, Default)]
pub struct Stats {
    /// Workers connected now.
    pub workers: Figure,
    /// Subscriptions of all workers now.
    pub subscriptions: Figure,
    /// Frames that wait for all workers now.
    pub queued_frames: Figure,
    /// Wakes that the session told, whether anybody had subscribed or not.
    pub wakes_in: Figure,
    /// Frames that sockets took whole.
    pub frames_out: Figure,
    /// Redundant durable wakes that were left out.
    pub dropped_durable_wakes: Figure,
    /// Workers that were severed because they did not read.
    pub evicted_workers: Figure,
    /// How often the session came back after a loss.
    pub reconnects: Figure,
    connected_since: Figure,
}

impl Stats {
    /// May be told again while it is up.
    pub(super) fn session_is_up(&self) {
        if self.connected_since_ms().is_some() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.connected_since.set(now.as_millis() as u64);
    }

    pub(super) fn session_is_down(&self) {
        self.connected_since.set(0);
    }

    /// Since when the session is up, in milliseconds since the epoch; None while it is down.
    pub fn connected_since_ms(&self) -> Option<u64> {
        Some(self.connected_since.get()).filter(|ms| *ms > 0)
    }
}
