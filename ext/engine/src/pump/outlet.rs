//! One connection, as a writer thread sees it: its socket, what waits for it, how far it got, and whether it lives.

use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::backlog::{Backlog, Weight};
use super::lock::Lock;
use super::{locked, Report, Shared, Work};

/// The last msg_id that reached a socket whole. Read and written by any thread.
#[derive(Debug, Default)]
pub struct Cursor(AtomicI64);

impl Cursor {
    /// Starts at `msg_id`.
    pub fn new(msg_id: i64) -> Self {
        Self(AtomicI64::new(msg_id))
    }

    /// The msg_id.
    pub fn get(&self) -> i64 {
        self.0.load(SeqCst)
    }

    /// Replaces the msg_id.
    pub fn set(&self, msg_id: i64) {
        self.0.store(msg_id, SeqCst);
    }
}

/// The bytes of one envelope, made once and shared by all connections it goes to.
#[derive(Debug)]
pub struct Frame {
    /// Not negative.
    pub msg_id: i64,
    /// The bytes, or why they could not be made: then the connection ends with this as its reason when the frame's
    /// turn comes.
    pub body: Result<Box<[u8]>, String>,
}

/// Frames for one connection, acknowledged together.
#[derive(Debug)]
pub struct Job {
    frames: Vec<Arc<Frame>>,
    next: usize,
    written_max: Option<i64>,
    batch_max: i64,
    deadline: Duration,
}

impl Job {
    /// `batch_max` is what is acknowledged when there is no frame at all; `deadline` is how long the write of one
    /// frame may take.
    pub fn new(frames: Vec<Arc<Frame>>, batch_max: i64, deadline: Duration) -> Self {
        Self { frames, next: 0, written_max: None, batch_max, deadline }
    }

    /// Frames neither written nor skipped yet.
    fn left(&self) -> usize {
        self.frames.len() - self.next
    }
}

impl Weight for Job {
    fn frames(&self) -> usize {
        self.frames.len()
    }
}

/// See the module's documentation. Any thread may call its methods; none of them blocks.
pub struct Outlet {
    id: String,
    hash: u64,
    order: Arc<Lock>,
    lock: Arc<Lock>,
    cursor: Arc<Cursor>,
    dead: AtomicBool,
    inner: Mutex<Inner>,
}

/// What the outlet's mutex guards. It is held for a few instructions, and for `shutdown(2)` when the outlet ends.
pub(super) struct Inner {
    /// Our own duplicate of the descriptor: what Ruby does with its own can't turn it into somebody else's socket.
    pub socket: Option<Arc<OwnedFd>>,
    pub backlog: Backlog<Job>,
    /// Bytes of the first unwritten frame that are in the socket already.
    pub offset: usize,
    /// When the write of that frame began, if it did not end at once.
    pub head_since: Option<Instant>,
    pub last_write: Option<Instant>,
    /// The pump that has work for this outlet, or had it last.
    pub home: Option<Arc<Shared>>,
    /// What the pump's user calls this connection.
    pub owner: u32,
    /// Whether a writer thread has this outlet on its list.
    pub scheduled: bool,
    /// Whether its next turn at that thread comes without further doing.
    pub ready: bool,
    pub stage: Stage,
    pub stall: Option<Stall>,
}

/// How far a writer thread got in taking the outlet's two locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Outside,
    AwaitsOrder,
    HasOrder,
    AwaitsLock,
    HasBoth,
}

/// The socket took no more; the event loop says when it does, and the frame has until then.
pub(super) struct Stall {
    pub token: usize,
    pub until: Instant,
    /// Keeps the descriptor open for as long as it is registered with the event loop.
    pub socket: Arc<OwnedFd>,
}

/// One frame of a batch: its job's place in the backlog, its place in the job, itself.
pub(super) type Gathered = (usize, usize, Arc<Frame>);

/// What is next for an outlet.
pub(super) enum Next {
    Write(Arc<OwnedFd>),
    Nothing,
    /// The next frame has no bytes, for this reason.
    Poisoned(String),
}

/// Frames that leave in one system call at most.
pub(super) const BATCH_FRAMES: usize = 64;
/// Bytes after which a batch is closed: no socket takes more at once.
const BATCH_BYTES: usize = 1 << 20;

impl Outlet {
    /// `id` is the connection's name in log lines. `order` is held by whoever writes durable frames (from looking at
    /// the cursor to advancing it), `lock` by whoever writes any bytes to the socket.
    pub fn new(id: String, order: Arc<Lock>, lock: Arc<Lock>, cursor: Arc<Cursor>) -> Self {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&id);
        let inner = Inner {
            socket: None,
            backlog: Backlog::default(),
            offset: 0,
            head_since: None,
            last_write: None,
            home: None,
            owner: 0,
            scheduled: false,
            ready: false,
            stage: Stage::Outside,
            stall: None,
        };
        Self { id, hash, order, lock, cursor, dead: AtomicBool::new(false), inner: Mutex::new(inner) }
    }

    /// Gives the outlet its own duplicate of the connection's socket. Does nothing if it has one or is dead.
    ///
    /// # Errors
    /// Those of `fcntl(2)`: EMFILE, mostly.
    pub fn attach(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut inner = self.inner();
        if inner.socket.is_none() && !self.is_dead() {
            let socket = socket.try_clone_to_owned()?;
            #[cfg(target_vendor = "apple")]
            socket2::SockRef::from(&socket).set_nosigpipe(true)?;
            inner.socket = Some(Arc::new(socket));
        }
        Ok(())
    }

    /// The connection's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Which of `count` writer threads it belongs to.
    pub(super) fn writer_of(&self, count: usize) -> usize {
        (self.hash % count as u64) as usize
    }

    /// Whether it was ended. Nothing is written any more.
    pub fn is_dead(&self) -> bool {
        self.dead.load(SeqCst)
    }

    /// How long ago the last frame was whole in the socket.
    pub fn idle_for(&self) -> Option<Duration> {
        self.inner().last_write.map(|at| at.elapsed())
    }

    /// Ends it: shuts the socket down for everyone, so that the peer sees EOF at once and nobody's bytes can follow a
    /// torn frame, and discards what waits, with a [`Report::Gone`] of the pump that had it. False, and nothing happens,
    /// if it is dead already.
    pub fn end(self: &Arc<Self>) -> bool {
        let mut inner = self.inner();
        let (home, owner) = (inner.home.clone(), inner.owner);
        let jobs = self.end_locked(&mut inner);
        if let (Some(home), Some(jobs @ 1..)) = (home, jobs) {
            let _ = home.reports.send(vec![Report::Gone { owner, jobs }]);
        }
        jobs.is_some()
    }

    pub(super) fn end_locked(self: &Arc<Self>, inner: &mut Inner) -> Option<usize> {
        if self.dead.swap(true, SeqCst) {
            return None;
        }
        if let Some(socket) = inner.socket.take() {
            let _ = socket2::SockRef::from(&*socket).shutdown(Shutdown::Both);
        }
        let jobs = inner.backlog.take_all();
        if let Some(home) = inner.home.take() {
            home.stats.connections.sub(1);
            home.stats.waiting.sub(jobs.iter().map(Job::left).sum());
            if inner.scheduled {
                // So that the writer thread forgets it.
                home.mailboxes[self.writer_of(home.mailboxes.len())].send(Work::Look(Arc::clone(self)));
            }
        }
        Some(jobs.len())
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        locked(&self.inner)
    }

    /// Takes the two locks, as far as they are free; true if both are ours. If not, `mailbox_of` is sent a
    /// [`Work::Granted`] when to go on.
    pub(super) fn acquire(self: &Arc<Self>, inner: &mut Inner, shared: &Arc<Shared>, writer: usize) -> bool {
        let take = |lock: &Lock| {
            lock.try_acquire() || {
                let (outlet, shared) = (Arc::clone(self), Arc::clone(shared));
                lock.acquire_or_tell(move || shared.mailboxes[writer].send(Work::Granted(outlet)))
            }
        };
        loop {
            inner.stage = match inner.stage {
                Stage::Outside if take(&self.order) => Stage::HasOrder,
                Stage::Outside => Stage::AwaitsOrder,
                Stage::HasOrder if take(&self.lock) => Stage::HasBoth,
                Stage::HasOrder => Stage::AwaitsLock,
                Stage::AwaitsOrder | Stage::AwaitsLock => return false,
                Stage::HasBoth => return true,
            }
        }
    }

    /// Gives back what [`Outlet::acquire`] took; false if it still waits in a queue and has to be told first.
    pub(super) fn release(&self, inner: &mut Inner) -> bool {
        match inner.stage {
            Stage::AwaitsOrder | Stage::AwaitsLock => return false,
            Stage::Outside => {}
            Stage::HasOrder => self.order.release(),
            Stage::HasBoth => {
                self.lock.release();
                self.order.release();
            }
        }
        inner.stage = Stage::Outside;
        true
    }

    /// Ends the jobs that have nothing left to write, with an ack each.
    pub(super) fn settle(&self, inner: &mut Inner, shared: &Shared, reports: &mut Vec<Report>) {
        let cursor = self.cursor.get();
        while let Some(job) = inner.backlog.get_mut(0) {
            // A frame that is partly in the socket is not skipped, whatever the cursor says.
            if inner.offset == 0 {
                let next = job.next;
                while job.frames.get(job.next).is_some_and(|frame| frame.msg_id <= cursor) {
                    job.next += 1;
                }
                if job.next > next {
                    shared.stats.waiting.sub(job.next - next);
                    inner.head_since = None;
                }
            }
            if job.left() > 0 {
                break;
            }
            let accepted_max = if job.frames.is_empty() {
                job.batch_max
            } else {
                job.written_max.unwrap_or_else(|| self.cursor.get())
            };
            shared.stats.acks.add(1);
            reports.push(Report::Ack { owner: inner.owner, accepted_max });
            inner.backlog.pop();
        }
    }

    /// Fills `batch` with the frames that are next, in order, and declares their jobs to be under way.
    pub(super) fn gather(&self, inner: &mut Inner, batch: &mut Vec<Gathered>) -> Next {
        batch.clear();
        let mut cursor = if inner.offset > 0 { i64::MIN } else { self.cursor.get() };
        let mut bytes = 0;
        'jobs: for place in 0..inner.backlog.len() {
            let Some(job) = inner.backlog.get(place) else { break };
            for (index, frame) in job.frames.iter().enumerate().skip(job.next) {
                if frame.msg_id <= cursor {
                    continue;
                }
                match &frame.body {
                    Ok(body) => bytes += body.len(),
                    Err(reason) if batch.is_empty() => return Next::Poisoned(reason.clone()),
                    Err(_) => break 'jobs,
                }
                batch.push((place, index, Arc::clone(frame)));
                cursor = frame.msg_id.max(self.cursor.get());
                if batch.len() == BATCH_FRAMES || bytes >= BATCH_BYTES {
                    break 'jobs;
                }
            }
        }
        match (&inner.socket, batch.last()) {
            (Some(socket), Some((last_job, ..))) => {
                let socket = Arc::clone(socket);
                inner.backlog.set_under_way(last_job + 1);
                Next::Write(socket)
            }
            (None, Some(_)) => Next::Poisoned("it has no socket".to_owned()),
            (_, None) => Next::Nothing,
        }
    }

    /// Notes that `bytes` of the batch went into the socket: advances the cursor frame by frame.
    pub(super) fn advance(&self, inner: &mut Inner, shared: &Shared, batch: &[Gathered], bytes: usize) {
        let mut rest = inner.offset + bytes;
        let mut whole = 0;
        for (job_index, frame_index, frame) in batch {
            let length = frame.body.as_ref().map_or(0, |body| body.len());
            let Some(job) = inner.backlog.get_mut(*job_index) else { break };
            if rest < length {
                break;
            }
            rest -= length;
            self.cursor.set(frame.msg_id);
            shared.stats.waiting.sub(frame_index + 1 - job.next);
            job.next = frame_index + 1;
            job.written_max = job.written_max.max(Some(frame.msg_id));
            whole += 1;
        }
        inner.offset = rest;
        // A frame that is partly in the socket is the first one of the first job: what comes before it is to be
        // skipped anyway.
        if let (true, Some((job_index, frame_index, _))) = (rest > 0, batch.get(whole)) {
            for index in 0..=*job_index {
                let Some(job) = inner.backlog.get_mut(index) else { break };
                let next = if index == *job_index { *frame_index } else { job.frames.len() };
                shared.stats.waiting.sub(next - job.next);
                job.next = next;
            }
        }
        if whole > 0 {
            inner.head_since = None;
            inner.last_write = Some(Instant::now());
        }
        shared.stats.written.add(whole);
        shared.stats.bytes.add(bytes);
    }

    /// After [`Outlet::settle`]: which jobs are still under way. Returns whether anything is left.
    pub(super) fn rest(&self, inner: &mut Inner) -> bool {
        let begun = inner.backlog.get(0).is_some_and(|job| job.next > 0 || inner.offset > 0);
        inner.backlog.set_under_way(usize::from(begun));
        !inner.backlog.is_empty()
    }

    /// When the first frame's time is over, counted from `now` if it begins now. Never: too far away to be told.
    pub(super) fn time_limit(&self, inner: &mut Inner, now: Instant) -> Option<Instant> {
        let deadline = inner.backlog.get(0)?.deadline;
        let since = *inner.head_since.get_or_insert(now);
        since.checked_add(deadline)
    }
}

impl fmt::Debug for Outlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").field("id", &self.id).field("dead", &self.is_dead()).finish_non_exhaustive()
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        if let Some(home) = self.inner().home.take() {
            home.stats.connections.sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;
    use crate::pump::{Limit, Overflow, Pump};

    proptest! {
        /// What a system call writes may not be dropped before it is known how much of it went out, whatever is posted
        /// meanwhile.
        #[test]
        fn the_jobs_of_a_batch_stay_where_they_are(
            jobs in prop::collection::vec(prop::collection::vec((1..9i64, prop::bool::weighted(0.8)), 0..4), 1..6),
            cursor in 0..4i64,
        ) {
            let (socket, _browser) = UnixStream::pair().unwrap();
            let lock = || Arc::new(Lock::new(false));
            let outlet = Arc::new(Outlet::new("a".to_owned(), lock(), lock(), Arc::new(Cursor::new(cursor))));
            outlet.attach(socket.as_fd()).unwrap();
            let job = |frames: &[(i64, bool)]| {
                let frame = |&(msg_id, good): &(i64, bool)| {
                    let body = if good { Ok(b"x".as_slice().into()) } else { Err("bad".to_owned()) };
                    Arc::new(Frame { msg_id, body })
                };
                Job::new(frames.iter().map(frame).collect(), 0, Duration::ZERO)
            };
            let frames = jobs.iter().map(Vec::len).sum::<usize>() + 1;
            let pump = Pump::new(1, Limit { frames, overflow: Overflow::DropOldest });
            for frames in &jobs {
                pump.post(&outlet, 0, job(frames));
            }
            let mut batch = Vec::new();
            outlet.gather(&mut outlet.inner(), &mut batch);
            pump.post(&outlet, 0, job(&vec![(10, true); frames]));
            let inner = outlet.inner();
            for (place, index, frame) in &batch {
                let same = inner.backlog.get(*place).and_then(|job| job.frames.get(*index));
                prop_assert!(same.is_some_and(|same| Arc::ptr_eq(same, frame)), "{place} {index} {frame:?}");
            }
        }
    }
}
