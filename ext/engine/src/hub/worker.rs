//! One worker: its connection, its outbox, and how long the hub waits for it.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use bytes::Bytes;
use indexmap::IndexSet;
use tokio::net::UnixStream;
use tokio::sync::Notify;

use super::outbox::{Limits, Outbox};
use super::socket::sever;
use super::stats::Stats;
use crate::inherit::Kept;
use crate::session::Queue;

/// Pieces of one vectored write.
const SLICES: usize = 64;

/// The number of a connection, counted from 1 in the life of a hub.
pub type WorkerId = u64;

pub struct Worker {
    pub id: WorkerId,
    pub stream: Kept<UnixStream>,
    pub subscriptions: RefCell<IndexSet<Queue>>,
    /// Subs whose ack is still owed.
    pub owed: Cell<usize>,
    /// Frames that meant nothing, for the throttling of log lines.
    pub unknown: Cell<u64>,
    /// Rings when its task has to look again: something waits, may be read again, or it was closed.
    pub look: Notify,
    /// Whether it stands in the router's list of workers to flush.
    pub listed: Cell<bool>,
    patience: Patience,
    outbox: RefCell<Outbox>,
    limits: Limits,
    open: Cell<bool>,
}

impl Worker {
    pub fn new(id: WorkerId, stream: Kept<UnixStream>, limits: Limits) -> Self {
        Self {
            id,
            stream,
            subscriptions: RefCell::default(),
            owed: Cell::new(0),
            unknown: Cell::new(0),
            look: Notify::new(),
            listed: Cell::new(false),
            patience: Patience::new(limits.hard),
            outbox: RefCell::new(Outbox::new(limits)),
            limits,
            open: Cell::new(true),
        }
    }

    pub fn is_open(&self) -> bool {
        self.open.get()
    }

    /// Severs it. False: it was closed already.
    pub fn close(&self, stats: &Stats) -> bool {
        if !self.open.replace(false) {
            return false;
        }
        stats.queued_frames.sub(self.outbox.replace(Outbox::new(self.limits)).len());
        sever(&self.stream);
        self.look.notify_one();
        self.patience.progressed.notify_one();
        true
    }

    /// Adds a frame that is never dropped. True: more wait than may.
    pub fn push(&self, frame: Bytes, stats: &Stats) -> bool {
        if !self.is_open() {
            return false;
        }
        let mut outbox = self.outbox.borrow_mut();
        outbox.push(frame);
        stats.queued_frames.add(1);
        outbox.overfull()
    }

    /// Adds a durable wake, unless it is redundant.
    pub fn push_durable(&self, queue: &Queue, frame: Bytes, stats: &Stats) {
        if !self.is_open() {
            return;
        }
        if self.outbox.borrow_mut().push_durable(queue, frame) {
            stats.queued_frames.add(1);
        } else {
            stats.dropped_durable_wakes.add(1);
        }
    }

    pub fn overfull(&self) -> bool {
        self.outbox.borrow().overfull()
    }

    /// Frames that the socket did not take yet.
    pub fn waiting_frames(&self) -> usize {
        self.outbox.borrow().len()
    }

    /// Whether it has read nothing for longer than the hub waits for a worker.
    pub fn is_stuck(&self) -> bool {
        self.patience.last_progress.get().elapsed() > self.patience.window
    }

    /// Whether something waits that the socket did not take.
    pub fn is_waiting(&self) -> bool {
        !self.outbox.borrow().is_empty()
    }

    /// Whether more requests may be read: a worker that asks faster than it reads the answers is not read further, so
    /// that acks alone never make it overfull.
    pub fn may_ask(&self) -> bool {
        self.outbox.borrow().kept() + self.owed.get() < (self.limits.hard / 2).max(1)
    }

    /// Writes what the socket takes at once.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn flush(&self, stats: &Stats) -> io::Result<()> {
        self.flush_by(stats, |slices| self.stream.try_write_vectored(slices))
    }

    /// Writes what the socket takes even before it says that it is writable, which it does only when three quarters of
    /// its buffer are read.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn probe(&self, stats: &Stats) -> io::Result<()> {
        self.flush_by(stats, |slices| Ok(rustix::io::writev(&*self.stream, slices)?))
    }

    fn flush_by(&self, stats: &Stats, write: impl Fn(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<()> {
        let mut progress = false;
        let result = loop {
            if !self.is_open() {
                break Ok(());
            }
            let mut outbox = self.outbox.borrow_mut();
            let written = {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let count = outbox.fill(&mut slices);
                if count == 0 {
                    break Ok(());
                }
                write(&slices[..count])
            };
            match written {
                Ok(bytes) => {
                    let through = outbox.took(bytes);
                    stats.queued_frames.sub(through);
                    stats.frames_out.add(through);
                    progress = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        if progress {
            self.patience.progress();
        }
        result
    }

    /// Waits until it is not overfull any more, while it reads on and as long as the hub has patience with it. Gives
    /// whether it may stay.
    pub async fn make_room(&self, stats: &Stats) -> bool {
        while self.is_open() && self.overfull() {
            let more = self.patience.wait().await;
            if self.probe(stats).is_err() {
                return true; // it is gone, which its task finds out too
            }
            if !more {
                return !self.overfull();
            }
        }
        true
    }
}

/// How long the hub takes no more wakes from the database because one worker's outbox is full.
///
/// A worker that reads, only slower than PostgreSQL sends in a burst, must not be evicted; a wedged one must not hold
/// up the others. So the hub waits for a worker while it goes on reading: each time at most as long as a slow reader
/// (2,000 frames a second) needs for a full outbox, half a second by default, which is also how long a Ruby thread may
/// wait for its turn among five busy ones; and in all at most five times that, an allowance that grows again by a tenth
/// of the time that passes. A worker that had been wedged before the burst is not waited for at all.
struct Patience {
    progressed: Notify,
    window: Duration,
    last_progress: Cell<Instant>,
    left: Cell<Duration>,
    counted_at: Cell<Instant>,
}

const PER_FRAME: Duration = Duration::from_micros(500);
const ALLOWANCE_WINDOWS: u32 = 5;
const REGAIN: u32 = 10;
/// How often a worker that is waited for is tried.
const PROBE: Duration = Duration::from_millis(5);

impl Patience {
    fn new(hard_limit: usize) -> Self {
        let window = PER_FRAME.saturating_mul(hard_limit.min(5_000) as u32);
        let now = Instant::now();
        Self {
            progressed: Notify::new(),
            window,
            last_progress: Cell::new(now),
            left: Cell::new(window * ALLOWANCE_WINDOWS),
            counted_at: Cell::new(now),
        }
    }

    fn progress(&self) {
        self.last_progress.set(Instant::now());
        self.progressed.notify_one();
    }

    /// Waits for progress, or a little. False: there was none in time.
    async fn wait(&self) -> bool {
        let begun = Instant::now();
        let regained = begun.duration_since(self.counted_at.get()) / REGAIN;
        self.counted_at.set(begun);
        let left = (self.left.get() + regained).min(self.window * ALLOWANCE_WINDOWS);
        let until = (self.last_progress.get() + self.window).min(begun + left);
        let _ = tokio::time::timeout_at(until.min(begun + PROBE).into(), self.progressed.notified()).await;
        self.left.set(left.saturating_sub(begun.elapsed()));
        Instant::now() < until
    }
}
