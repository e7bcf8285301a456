//! The pump: writer threads over SSE sockets.
//!
//! A post puts a [`Job`] into its [`Outlet`]'s backlog and the outlet on the list of one writer thread (module `writer`).
//! What became of it is told through [`Pump::reports`].

mod backlog;
mod lock;
mod outlet;
mod stats;
mod writer;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use mio::Waker;

use crate::log::{Level, Line};
pub use backlog::{Backlog, Limit, Overflow, Pushed, Weight};
pub use lock::{Lock, Ticket};
pub use outlet::{Cursor, Frame, Job, Outlet};
pub use stats::{Counter, Stats};
use writer::Writer;

/// A panic while a mutex was held is told elsewhere; what it guards here is consistent at every step.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What became of a job or of a connection. `owner` is what the caller of [`Pump::post`] named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// One job is done: everything up to `accepted_max` is in the socket.
    Ack {
        /// Whose job.
        owner: u32,
        /// The highest msg_id written; the job's `batch_max` when it had no frames; the cursor when all were skipped.
        accepted_max: i64,
    },
    /// The pump found a connection dead, and ended it. Told once for each; `jobs` of its jobs are discarded.
    Dead {
        /// Whose.
        owner: u32,
        /// How many.
        jobs: usize,
    },
    /// So many jobs are discarded, for somebody else ended their connection.
    Gone {
        /// Whose.
        owner: u32,
        /// How many.
        jobs: usize,
    },
    /// More frames waited for a connection than may; so many jobs were dropped for that. What becomes of them is told
    /// by a [`Report::Gone`] or a [`Report::Dead`].
    Overflow {
        /// Whose.
        owner: u32,
        /// How many.
        dropped: usize,
    },
    /// Something for the log.
    Log(Line),
}

/// What [`Pump::post`] did with a job.
#[derive(Debug, PartialEq, Eq)]
pub enum Posted {
    /// A report will say what became of it.
    Taken,
    /// The connection is dead; the job is discarded.
    Dead,
    /// Another pump has work for this outlet; the job is discarded.
    Elsewhere,
}

/// What all threads of a pump share.
pub(crate) struct Shared {
    limit: Limit,
    stats: Stats,
    mailboxes: Vec<Mailbox>,
    reports: Sender<Vec<Report>>,
}

/// What a writer thread is to look at.
enum Work {
    /// An outlet that has a job or that ended.
    Look(Arc<Outlet>),
    /// An outlet whose lock the writer waited for and now has.
    Granted(Arc<Outlet>),
}

/// The way to one writer thread, which may come and go.
struct Mailbox {
    sender: Sender<Work>,
    receiver: Receiver<Work>,
    /// Outlets on the thread's list.
    busy: AtomicUsize,
    /// The thread sleeps in its event loop, or is about to.
    parked: AtomicBool,
    phase: Mutex<Phase>,
    ended: Condvar,
}

#[derive(Default)]
struct Phase {
    running: bool,
    stopping: bool,
    waker: Option<Arc<Waker>>,
}

impl Mailbox {
    fn new() -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self {
            sender,
            receiver,
            busy: AtomicUsize::new(0),
            parked: AtomicBool::new(false),
            phase: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// Never blocks; a system call only when the thread sleeps.
    fn send(&self, work: Work) {
        let _ = self.sender.send(work);
        if self.parked.swap(false, SeqCst) {
            self.wake(&locked(&self.phase));
        }
    }

    fn wake(&self, phase: &Phase) {
        if let Some(waker) = &phase.waker {
            let _ = waker.wake();
        }
    }
}

impl Shared {
    /// Puts an outlet on its writer's list, once. The caller holds the outlet's mutex.
    fn schedule(&self, outlet: &Arc<Outlet>, inner: &mut outlet::Inner) {
        if !std::mem::replace(&mut inner.scheduled, true) {
            let mailbox = &self.mailboxes[outlet.writer_of(self.mailboxes.len())];
            mailbox.busy.fetch_add(1, SeqCst);
            mailbox.send(Work::Look(Arc::clone(outlet)));
        }
    }

    fn log(&self, level: Level, text: String) {
        let _ = self.reports.send(vec![Report::Log(Line::new(level, text))]);
    }

    /// Counts dropped jobs, and logs it when the count reaches a power of two, so that a flood of them can't flood the
    /// log.
    fn report_overflow(&self, outlet: &Outlet, owner: u32, jobs: usize) {
        let _ = self.reports.send(vec![Report::Overflow { owner, dropped: jobs }]);
        let id = outlet.id();
        let after = self.stats.dropped.add(jobs);
        let powers = (after - jobs as u64 + 1..=after).filter(|count| count.is_power_of_two());
        for count in powers {
            let fate = match self.limit.overflow {
                Overflow::DropOldest => "its client does not get them back",
                Overflow::Disconnect => "it is disconnected and will replay them from the archive",
            };
            self.log(
                Level::Warn,
                format!("dropped {count} job(s) under buffer_limit={} (connection {id}): {fate}", self.limit.frames),
            );
        }
    }
}

/// See the module's documentation. Any thread may call its methods; only [`Pump::join`] waits.
pub struct Pump {
    shared: Arc<Shared>,
    received: Receiver<Vec<Report>>,
}

impl Pump {
    /// A pump of so many writer threads, not started.
    pub fn new(writers: usize, limit: Limit) -> Self {
        let (reports, received) = crossbeam_channel::unbounded();
        let mailboxes = (0..writers).map(|_| Mailbox::new()).collect();
        Self { shared: Arc::new(Shared { limit, stats: Stats::default(), mailboxes, reports }), received }
    }

    /// Starts the writer threads that don't run. What was posted before is written now.
    ///
    /// # Errors
    /// When the system gives no thread or no event loop; then those that run are told to stop.
    pub fn start(&self) -> io::Result<()> {
        for index in 0..self.shared.mailboxes.len() {
            if let Err(error) = self.start_writer(index) {
                self.stop();
                return Err(error);
            }
        }
        Ok(())
    }

    fn start_writer(&self, index: usize) -> io::Result<()> {
        let mailbox = &self.shared.mailboxes[index];
        let mut phase = locked(&mailbox.phase);
        phase.stopping = false;
        if phase.running {
            return Ok(());
        }
        let (writer, waker) = Writer::new(Arc::clone(&self.shared), index)?;
        thread::Builder::new().name(format!("pgbus-writer-{index}")).spawn(move || writer.run())?;
        phase.waker = Some(Arc::new(waker));
        phase.running = true;
        Ok(())
    }

    /// Tells the writer threads to end as soon as nothing waits any more.
    pub fn stop(&self) {
        for mailbox in &self.shared.mailboxes {
            let mut phase = locked(&mailbox.phase);
            phase.stopping = true;
            mailbox.wake(&phase);
        }
    }

    /// How many writer threads there are.
    pub fn writers(&self) -> usize {
        self.shared.mailboxes.len()
    }

    /// Whether this writer thread runs.
    pub fn runs(&self, writer: usize) -> bool {
        locked(&self.shared.mailboxes[writer].phase).running
    }

    /// Waits until this writer thread ended (true), until `deadline`, or until `interrupted`, which
    /// [`Pump::disturb_joins`] makes it look at.
    pub fn join(&self, writer: usize, deadline: Instant, interrupted: &AtomicBool) -> bool {
        let mailbox = &self.shared.mailboxes[writer];
        let mut phase = locked(&mailbox.phase);
        while phase.running && !interrupted.load(SeqCst) {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            phase = mailbox.ended.wait_timeout(phase, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        !phase.running
    }

    /// See [`Pump::join`].
    pub fn disturb_joins(&self) {
        for mailbox in &self.shared.mailboxes {
            let _phase = locked(&mailbox.phase);
            mailbox.ended.notify_all();
        }
    }

    /// Hands over one job. `owner` comes back in the reports about it.
    pub fn post(&self, outlet: &Arc<Outlet>, owner: u32, job: Job) -> Posted {
        let shared = &self.shared;
        let mut inner = outlet.inner();
        if outlet.is_dead() {
            return Posted::Dead;
        }
        if !inner.home.as_ref().is_some_and(|home| Arc::ptr_eq(home, shared)) {
            if inner.scheduled {
                return Posted::Elsewhere;
            }
            if let Some(former) = inner.home.replace(Arc::clone(shared)) {
                former.stats.connections.sub(1);
            }
            shared.stats.connections.add(1);
        }
        inner.owner = owner;
        let frames = job.frames();
        shared.stats.posted.add(frames);
        shared.stats.waiting.add(frames);
        match inner.backlog.push(job, shared.limit) {
            Pushed::Waits(dropped) => {
                shared.schedule(outlet, &mut inner);
                drop(inner);
                if !dropped.is_empty() {
                    shared.stats.waiting.sub(dropped.iter().map(Weight::frames).sum());
                    shared.report_overflow(outlet, owner, dropped.len());
                    let _ = shared.reports.send(vec![Report::Gone { owner, jobs: dropped.len() }]);
                }
            }
            Pushed::Refused(job) => {
                shared.stats.waiting.sub(job.frames());
                let jobs = outlet.end_locked(&mut inner).unwrap_or(0) + 1;
                drop(inner);
                shared.report_overflow(outlet, owner, jobs);
                self.report_dead(owner, jobs);
            }
        }
        Posted::Taken
    }

    /// Ends a connection that the caller found dead when it had so many `jobs` for it, with a [`Report::Dead`] that
    /// counts them; those that wait, maybe in another pump, get a [`Report::Gone`]. Returns false, and reports nothing,
    /// if it was dead already.
    pub fn kill(&self, outlet: &Arc<Outlet>, owner: u32, jobs: usize) -> bool {
        let ended = outlet.end();
        if ended {
            self.report_dead(owner, jobs);
        }
        ended
    }

    fn report_dead(&self, owner: u32, jobs: usize) {
        self.shared.stats.dead.add(1);
        let _ = self.shared.reports.send(vec![Report::Dead { owner, jobs }]);
    }

    /// Where the reports come out, in the order in which things happened to each connection. An empty list is sent by
    /// [`Pump::disturb_reports`] and when a writer thread ends.
    pub fn reports(&self) -> &Receiver<Vec<Report>> {
        &self.received
    }

    /// Makes a receiver of [`Pump::reports`] look around.
    pub fn disturb_reports(&self) {
        let _ = self.shared.reports.send(Vec::new());
    }

    /// Counters and gauges.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }
}

/// The threads are told to end when nothing waits any more; nobody waits for that.
impl Drop for Pump {
    fn drop(&mut self) {
        self.stop();
        for mailbox in &self.shared.mailboxes {
            // Without a thread, outlets and pump would keep each other alive.
            if !locked(&mailbox.phase).running {
                while mailbox.receiver.try_recv().is_ok() {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
