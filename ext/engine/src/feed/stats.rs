//! Figures of a feed, cheap enough to be read at any time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::pump::Counter;

/// What a feed did and what it holds.
#[derive(Debug, Default)]
pub struct Stats {
    /// Browsers that it serves.
    pub browsers: Counter,
    /// Streams that somebody is on.
    pub streams: Counter,
    /// Wakes heard.
    pub wakes: Counter,
    /// Pages read.
    pub pages: Counter,
    /// Rows read.
    pub rows: Counter,
    /// Questions asked.
    pub questions: Counter,
    /// Browsers that were given up.
    pub given_up: Counter,
    /// How often the source of wakes was lost.
    pub losses: Counter,
    /// Whether wakes are heard now.
    pub hears: Flag,
}

/// A truth that any thread may change.
#[derive(Debug, Default)]
pub struct Flag(AtomicBool);

impl Flag {
    /// Changes it.
    pub fn set(&self, value: bool) {
        self.0.store(value, Relaxed);
    }

    /// What it is.
    pub fn get(&self) -> bool {
        self.0.load(Relaxed)
    }
}
