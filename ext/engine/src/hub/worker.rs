//! One worker: its connection, what waits for it, and when it is given up.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};

use bytes::Bytes;
use indexmap::IndexSet;
use tokio::net::UnixStream;
use tokio::sync::Notify;

use super::outbox::{Limits, Outbox};
use super::socket::shut_down;
use super::stats::Stats;
use super::{MAX_QUEUE_BYTES, MAX_SUBSCRIPTIONS};
use crate::inherit::Kept;
use crate::session::Queue;

/// Pieces of one vectored write.
const SLICES: usize = 64;
/// Vectored writes to one worker before the others have their turn.
const WRITES: usize = 16;
/// Probes in a row that find a worker over its limit and reading nothing until it is evicted. A second in all: among
/// five busy Ruby threads a worker's reader may wait half of that for its turn. Probes are counted, not time, so a
/// machine that was suspended gives up nobody.
const PROBES: u32 = 10;

/// The number of a connection, counted from 1 in the life of a hub.
pub type WorkerId = u64;

pub struct Worker {
    pub id: WorkerId,
    pub stream: Kept<UnixStream>,
    pub subscriptions: RefCell<IndexSet<Queue>>,
    /// Subs that have no ack yet.
    pub pending_acks: Cell<usize>,
    /// Frames that meant nothing, for the throttling of log lines.
    pub unknown: Cell<u64>,
    /// Whether it is in the router's list of workers to flush.
    pub is_dirty: Cell<bool>,
    /// Wakes its task when [`Self::watch`] has changed.
    pub wakeup: Notify,
    /// What its task waits for.
    pub watched: Cell<Watch>,
    outbox: RefCell<Outbox>,
    limits: Limits,
    futile_probes: Cell<u32>,
    is_open: Cell<bool>,
}

/// What there is to wait for on a worker's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Watch {
    /// Requests may be read.
    pub readable: bool,
    /// Frames wait for room in the socket.
    pub writable: bool,
    /// More wait than a worker may have that reads nothing, so it is probed.
    pub probe: bool,
    /// The connection was closed.
    pub closed: bool,
}

impl Worker {
    pub fn new(id: WorkerId, stream: Kept<UnixStream>, limits: Limits) -> Self {
        Self {
            id,
            stream,
            subscriptions: RefCell::default(),
            pending_acks: Cell::new(0),
            unknown: Cell::new(0),
            is_dirty: Cell::new(false),
            wakeup: Notify::new(),
            watched: Cell::default(),
            outbox: RefCell::new(Outbox::new(limits)),
            limits,
            futile_probes: Cell::new(0),
            is_open: Cell::new(true),
        }
    }

    pub fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// Ends the connection. Returns false if it was closed already.
    pub fn close(&self, stats: &Stats) -> bool {
        if !self.is_open.replace(false) {
            return false;
        }
        stats.queued_frames.sub(self.outbox.replace(Outbox::new(self.limits)).len());
        shut_down(&self.stream);
        self.wakeup.notify_one();
        true
    }

    /// Adds a frame that is never dropped.
    pub fn push(&self, frame: Bytes, stats: &Stats) {
        if self.is_open() {
            self.outbox.borrow_mut().push(frame);
            stats.queued_frames.add(1);
        }
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

    /// Frames that the socket did not take yet.
    pub fn waiting_frames(&self) -> usize {
        self.outbox.borrow().len()
    }

    /// Whether more requests may be read. A worker that asks faster than it reads the answers is not read further, so
    /// that acks alone never make it overfull.
    pub fn may_ask(&self) -> bool {
        self.is_open() && self.outbox.borrow().kept() + self.pending_acks.get() < (self.limits.hard / 2).max(1)
    }

    /// What of a sub for this queue is more than a worker may have.
    pub fn excess(&self, name: &str) -> Option<String> {
        let subscriptions = self.subscriptions.borrow();
        if name.len() > MAX_QUEUE_BYTES {
            Some(format!("queue name of {} bytes (at most {MAX_QUEUE_BYTES})", name.len()))
        } else if subscriptions.len() >= MAX_SUBSCRIPTIONS && !subscriptions.contains(name) {
            Some(format!("more than {MAX_SUBSCRIPTIONS} subscriptions"))
        } else {
            None
        }
    }

    /// What its task has to wait for now.
    pub fn watch(&self) -> Watch {
        let outbox = self.outbox.borrow();
        Watch {
            readable: self.may_ask(),
            writable: !outbox.is_empty(),
            probe: outbox.is_overfull(),
            closed: !self.is_open(),
        }
    }

    /// Whether it has to go: too much waits for it, or it has read nothing for too long.
    pub fn is_given_up(&self) -> bool {
        let outbox = self.outbox.borrow();
        outbox.is_too_large() || (outbox.is_overfull() && self.futile_probes.get() >= PROBES)
    }

    /// Writes what the socket takes at once, within one turn's share.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn flush(&self, stats: &Stats) -> io::Result<()> {
        self.write_by(stats, |slices| self.stream.try_write_vectored(slices)).map(drop)
    }

    /// Tries a worker whose socket has not become writable: a socket says so only when three quarters of its buffer
    /// were read.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn probe(&self, stats: &Stats) -> io::Result<()> {
        if !self.write_by(stats, |slices| Ok(rustix::io::writev(&*self.stream, slices)?))? {
            self.futile_probes.set(self.futile_probes.get() + 1);
        }
        Ok(())
    }

    /// Returns whether the socket took anything.
    fn write_by(&self, stats: &Stats, write: impl Fn(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<bool> {
        let mut outbox = self.outbox.borrow_mut();
        let mut progress = false;
        for _ in 0..WRITES {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = outbox.fill(&mut slices);
            if count == 0 {
                break;
            }
            match write(&slices[..count]) {
                Ok(bytes) => {
                    let through = outbox.took(bytes);
                    stats.queued_frames.sub(through);
                    stats.frames_out.add(through);
                    progress = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if progress {
            self.futile_probes.set(0);
        }
        Ok(progress)
    }
}
