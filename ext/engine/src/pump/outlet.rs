//! One connection: its socket, what waits for it, how far it got, and whether it lives.
//!
//! Any thread may hand something over, or end the connection; none of that blocks. Only the connection's writer thread
//! touches the socket, but for `shutdown(2)`.

use std::fmt;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::job::{Item, Job};
use super::pump::Pump;
use super::queue::{Overflowed, Posted, Queue};
use super::report::Report;
use super::shared::{lock_ignoring_poison, Shared};
use crate::frame::Frame;
use crate::inherit::Kept;

/// A connection's socket. Its number stays taken until nothing of ours and nothing of Ruby's means it any more.
pub(super) type Socket = Arc<Kept<OwnedFd>>;

/// What became of something that was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handed {
    /// It waits for its turn.
    Taken,
    /// The connection has it, or it waits already.
    Known,
    /// The connection is closed, or it ended just now; nothing is written to it any more.
    Closed,
}

/// What became of a frame that was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It waits for its turn, or the connection has it.
    Taken,
    /// No room. The watcher is notified when there is for a frame of the archive.
    Full,
    /// The connection is closed.
    Closed,
}

/// What a connection's watcher is notified of, once each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// There is room again after an [`Offer::Full`].
    Room,
    /// The connection ended.
    Ended,
}

/// Is called on any thread, with the connection's lock held: must not block and must not use the outlet.
pub type Watcher = Box<dyn Fn(Notice) + Send + Sync>;

/// See the module's documentation. Any thread may call its methods.
pub struct Outlet {
    key: u32,
    id: String,
    shared: Arc<Shared>,
    /// Nothing is taken any more: set once, under the lock.
    closed: AtomicBool,
    inner: Mutex<Inner>,
}

/// What the lock guards. It is held for a few instructions, and for `shutdown(2)` when the connection ends.
pub(super) struct Inner {
    pub queue: Queue,
    pub turn: Turn,
    /// When the socket took no more, if it took no byte since.
    pub blocked_since: Option<Instant>,
    /// When the last frame was whole in the socket.
    pub last_write: Instant,
    socket: Option<Socket>,
    ended: bool,
    /// Ruby's IO object is closed, so that the descriptor's number may be given back.
    released: bool,
    wants_room: bool,
    watcher: Option<Watcher>,
}

/// Where a connection stands at its writer thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing waits, and the writer does not know of it.
    Idle,
    /// Its turn comes without further doing.
    Ready,
    /// Its socket is full; the writer waits for room.
    Blocked,
}

impl Outlet {
    pub(super) fn new(shared: Arc<Shared>, key: u32, id: String, cursor: i64, socket: Kept<OwnedFd>) -> Self {
        shared.stats.connections.add(1);
        let inner = Inner {
            queue: Queue::new(cursor),
            turn: Turn::Idle,
            blocked_since: None,
            last_write: Instant::now(),
            socket: Some(Arc::new(socket)),
            ended: false,
            released: false,
            wants_room: false,
            watcher: None,
        };
        Self { key, id, shared, closed: AtomicBool::new(false), inner: Mutex::new(inner) }
    }

    /// What the reports call this connection.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The connection's name in log lines.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether nothing is taken any more: the connection ended, or will as soon as what waits has left.
    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// The last durable position that reached the socket whole.
    pub fn cursor(&self) -> i64 {
        self.inner().queue.cursor()
    }

    /// The highest durable position that the connection has or that waits for it.
    pub fn queued_to(&self) -> i64 {
        self.inner().queue.queued_to()
    }

    /// Whether this is a connection of that pump.
    pub fn belongs_to(&self, pump: &Pump) -> bool {
        Arc::ptr_eq(&self.shared, pump.shared())
    }

    /// How long ago the last frame was whole in the socket, or the connection was taken in.
    pub fn idle_for(&self) -> Duration {
        self.inner().last_write.elapsed()
    }

    /// Hands over one message. `deadline` is how long the socket may take no byte of it before the connection is given
    /// up. A message without a durable position that is too much ends the connection: it exists nowhere else.
    pub fn push(self: &Arc<Self>, item: Item, deadline: Duration) -> Handed {
        let mut inner = self.inner();
        if self.is_closed() {
            return Handed::Closed;
        }
        match inner.queue.push(item, deadline) {
            Ok(true) => {
                self.count_added(1);
                self.schedule(&mut inner);
                Handed::Taken
            }
            Ok(false) => Handed::Known,
            Err(overflowed) => {
                self.overflow(&mut inner, &overflowed);
                Handed::Closed
            }
        }
    }

    /// Hands over a job. A report tells when it is done.
    pub fn post(self: &Arc<Self>, job: Job) -> Handed {
        let mut inner = self.inner();
        if self.is_closed() {
            return Handed::Closed;
        }
        let before = inner.queue.frames();
        match inner.queue.post(job, self.shared.limit) {
            Posted::Waits { dropped } => {
                // A job may take the place of older ones, and so the sum may have become less.
                self.shared.stats.waiting.sub(before);
                self.shared.stats.waiting.add(inner.queue.frames());
                self.shared.stats.posted.add(inner.queue.frames().saturating_sub(before));
                self.schedule(&mut inner);
                drop(inner);
                if dropped > 0 {
                    self.shared.report_overflow(self, dropped);
                }
                Handed::Taken
            }
            Posted::Overflowed(overflowed) => {
                self.overflow(&mut inner, &overflowed);
                Handed::Closed
            }
        }
    }

    /// Hands over a frame if there is room for it. One of the archive can be read again later, and the watcher is notified
    /// when to; one without a position exists nowhere else, and has a limit of its own.
    pub fn offer(self: &Arc<Self>, frame: &Arc<Frame>, deadline: Duration) -> Offer {
        let mut inner = self.inner();
        if self.is_closed() {
            return Offer::Closed;
        }
        if frame.msg_id.is_some_and(|msg_id| inner.queue.has(msg_id)) {
            return Offer::Taken;
        }
        if inner.queue.is_full(frame) {
            inner.wants_room |= frame.msg_id.is_some();
            return Offer::Full;
        }
        if inner.queue.push(Item::Frame(Arc::clone(frame)), deadline) == Ok(true) {
            self.count_added(1);
            self.schedule(&mut inner);
        }
        Offer::Taken
    }

    /// Whom to notify of room and of the end. An end that came before is notified at once.
    pub fn watch(&self, watcher: Watcher) {
        let mut inner = self.inner();
        if inner.ended {
            watcher(Notice::Ended);
        } else {
            inner.watcher = Some(watcher);
        }
    }

    /// Takes nothing more, and closes when what waits has left, or when its deadline is over. Where no writer runs, what
    /// waits is discarded.
    pub fn close(self: &Arc<Self>) {
        let mut inner = self.inner();
        if self.closed.swap(true, SeqCst) {
            return;
        }
        if inner.queue.is_empty() || !self.shared.runs(self.writer()) {
            self.end_locked(&mut inner);
        } else {
            inner.queue.close();
        }
    }

    /// Discards what waits and shuts the socket down: the browser sees EOF at once. Nothing is reported. A connection
    /// that is being closed goes on with that.
    pub fn end(self: &Arc<Self>) {
        let mut inner = self.inner();
        if !self.closed.swap(true, SeqCst) {
            self.end_locked(&mut inner);
        }
    }

    /// Ends the connection and reports that it was found dead. Returns false, and does nothing, if it is closed already.
    pub fn fail(self: &Arc<Self>) -> bool {
        let mut inner = self.inner();
        let failed = !self.is_closed();
        if failed {
            self.fail_locked(&mut inner);
        }
        failed
    }

    /// Ruby's IO object of this socket is closed: the descriptor's number may be given back when the connection ended.
    pub fn release(&self) {
        let mut inner = self.inner();
        inner.released = true;
        if inner.ended {
            inner.socket = None;
        }
    }

    /// Which writer thread it belongs to.
    pub(super) fn writer(&self) -> usize {
        self.key as usize % self.shared.mailboxes.len()
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        lock_ignoring_poison(&self.inner)
    }

    /// Puts it on its writer's list, once.
    fn schedule(self: &Arc<Self>, inner: &mut Inner) {
        if inner.turn == Turn::Idle {
            self.shared.mailboxes[self.writer()].scheduled.fetch_add(1, SeqCst);
            self.take_turn(inner);
        }
    }

    /// Has its writer look at it.
    fn take_turn(self: &Arc<Self>, inner: &mut Inner) {
        inner.turn = Turn::Ready;
        self.shared.mailboxes[self.writer()].send(Arc::clone(self));
    }

    fn count_added(&self, frames: usize) {
        self.shared.stats.posted.add(frames);
        self.shared.stats.waiting.add(frames);
    }

    fn overflow(self: &Arc<Self>, inner: &mut Inner, overflowed: &Overflowed) {
        self.shared.report_disconnect(self, overflowed.jobs);
        self.fail_locked(inner);
    }

    /// Ends the connection, and reports its death unless Ruby has closed it.
    pub(super) fn fail_locked(self: &Arc<Self>, inner: &mut Inner) {
        if !self.closed.swap(true, SeqCst) {
            self.shared.stats.dead.add(1);
            self.shared.report(vec![Report::Dead { key: self.key }]);
        }
        self.end_locked(inner);
    }

    pub(super) fn end_locked(self: &Arc<Self>, inner: &mut Inner) {
        if std::mem::replace(&mut inner.ended, true) {
            return;
        }
        self.shared.stats.connections.sub(1);
        self.shared.stats.waiting.sub(inner.queue.discard().0);
        if let Some(socket) = &inner.socket {
            // Nobody's bytes can follow a torn frame, and the peer sees EOF whoever else has the descriptor.
            let _ = socket2::SockRef::from(&***socket).shutdown(Shutdown::Both);
        }
        if inner.released {
            inner.socket = None;
        }
        if let Some(watcher) = inner.watcher.take() {
            watcher(Notice::Ended);
        }
        if inner.turn == Turn::Blocked {
            self.take_turn(inner); // so that the writer forgets it
        }
    }
}

impl Inner {
    /// The socket, as long as the connection lives.
    pub(super) fn socket(&self) -> Option<Socket> {
        if self.ended {
            None
        } else {
            self.socket.clone()
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// After something has left: notifies who waits for room.
    pub(super) fn notify_room(&mut self) {
        if self.wants_room && self.queue.has_room() {
            self.wants_room = false;
            if let Some(watcher) = &self.watcher {
                watcher(Notice::Room);
            }
        }
    }
}

impl fmt::Debug for Outlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").field("id", &self.id).field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        let inner = self.inner();
        if !inner.ended {
            self.shared.stats.connections.sub(1);
            self.shared.stats.waiting.sub(inner.queue.frames());
        }
    }
}
