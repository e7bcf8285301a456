//! What the hub says to the world outside its thread.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use super::{Event, Notice};
use crate::log::{Level, Line};

/// Log lines in a burst, and how soon each may be followed by another after it. Whoever makes the hub talk without end
/// fills neither memory nor disk.
const BURST: u32 = 200;
const PACE: Duration = Duration::from_millis(100);
/// Events that may wait for a reader before log lines and notices are left out.
const BACKLOG: usize = 4096;

/// The hub thread's end of the events.
pub struct Reporter {
    events: Sender<Event>,
    allowance: Cell<u32>,
    counted_at: Cell<Instant>,
    left_out: Cell<u64>,
}

impl Reporter {
    pub fn new(events: Sender<Event>) -> Self {
        let allowance = Cell::new(BURST);
        Self { events, allowance, counted_at: Cell::new(Instant::now()), left_out: Cell::new(0) }
    }

    /// Gives an order to the Ruby session. Orders are never left out.
    pub fn order(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Tells those who watch, unless nobody takes what was told before.
    pub fn notice(&self, notice: Notice) {
        if self.events.len() < BACKLOG {
            let _ = self.events.send(Event::Notice(notice));
        }
    }

    /// Logs a line, unless too many came before it.
    pub fn log(&self, line: Line) {
        self.refill();
        if self.allowance.get() == 0 || self.events.len() >= BACKLOG {
            self.left_out.set(self.left_out.get() + 1);
            return;
        }
        self.allowance.set(self.allowance.get() - 1);
        let left_out = self.left_out.take();
        if left_out > 0 {
            let _ = self.events.send(Event::Log(Line::new(Level::Warn, format!("{left_out} log lines were left out"))));
        }
        let _ = self.events.send(Event::Log(line));
    }

    pub fn warn(&self, text: impl Into<String>) {
        self.log(Line::new(Level::Warn, text));
    }

    pub fn error(&self, text: impl Into<String>) {
        self.log(Line::new(Level::Error, text));
    }

    fn refill(&self) {
        let periods = (self.counted_at.get().elapsed().as_millis() / PACE.as_millis()) as u32;
        if periods > 0 {
            self.counted_at.set(self.counted_at.get() + PACE * periods);
            self.allowance.set(self.allowance.get().saturating_add(periods).min(BURST));
        }
    }
}
