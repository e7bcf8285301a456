//! Who gets which wake: the routing table, and the rules of sub, unsub, ack, status and eviction.
//!
//! All of it lives on the hub's thread. A stream is in the table from its first sub until its last subscriber left and
//! no ack is owed for it. An answer of the native session carries the very [`Queue`] of the question, and so it never
//! counts for a stream that was forgotten and came back meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indexmap::{IndexMap, IndexSet};
use tokio::net::UnixStream;
use tokio::sync::Notify;

use super::outbox::Limits;
use super::reporter::Reporter;
use super::stats::Stats;
use super::worker::{Worker, WorkerId};
use super::{Event, Notice, MAX_QUEUE_BYTES, MAX_SUBSCRIPTIONS, REBROADCAST_TICKS};
use crate::inherit::Kept;
use crate::session::{News, Queue, Wishes};
use crate::wire::{self, ProtocolError, Request};

/// Who is asked to LISTEN.
pub enum Asked {
    /// The native session: it answers for a queue, once, and knows what it listens to already.
    Native(Wishes),
    /// The Ruby session: it is asked for every sub, and answers for each.
    Ruby,
}

pub struct Router {
    pub stats: Arc<Stats>,
    pub reporter: Reporter,
    limits: Limits,
    ack_deadline: Duration,
    asked: Asked,
    streams: RefCell<IndexMap<Queue, Stream>>,
    workers: RefCell<IndexMap<WorkerId, Rc<Worker>>>,
    /// Workers whose outboxes got something since the last flush.
    fresh: RefCell<Vec<Rc<Worker>>>,
    /// Streams with acks that wait for an answer of the native session.
    unanswered: RefCell<IndexSet<Queue>>,
    /// Rings when an ack has to wait.
    pub awaiting: Notify,
    down_since: Cell<Option<Instant>>,
    /// The status that workers were told last, and the ticks since.
    told: Cell<Option<bool>>,
    untold_ticks: Cell<u32>,
    last_id: Cell<WorkerId>,
}

#[derive(Default)]
struct Stream {
    subscribers: Vec<Rc<Worker>>,
    /// LISTEN is active as far as the hub knows, or will never be.
    answered: bool,
    /// Subs to ack when it is.
    waiting: VecDeque<Waiting>,
    /// Somebody got an ack before LISTEN was active and may have missed a wake.
    acked_early: bool,
}

struct Waiting {
    worker: Rc<Worker>,
    since: Instant,
}

impl Router {
    pub fn new(asked: Asked, limits: Limits, ack_deadline: Duration, stats: Arc<Stats>, reporter: Reporter) -> Self {
        Self {
            stats,
            reporter,
            limits,
            ack_deadline,
            asked,
            streams: RefCell::default(),
            workers: RefCell::default(),
            fresh: RefCell::default(),
            unanswered: RefCell::default(),
            awaiting: Notify::new(),
            down_since: Cell::new(None),
            told: Cell::new(None),
            untold_ticks: Cell::new(0),
            last_id: Cell::new(0),
        }
    }

    /// A worker connected.
    pub fn welcome(&self, stream: Kept<UnixStream>) -> Rc<Worker> {
        let id = self.last_id.get() + 1;
        self.last_id.set(id);
        let worker = Rc::new(Worker::new(id, stream, self.limits));
        self.workers.borrow_mut().insert(id, worker.clone());
        self.stats.workers.add(1);
        worker
    }

    /// Ends a worker's connection and forgets its subscriptions. Can be repeated.
    pub fn sever(&self, worker: &Rc<Worker>) {
        if !worker.close(&self.stats) {
            return;
        }
        self.workers.borrow_mut().swap_remove(&worker.id);
        self.stats.workers.sub(1);
        for queue in worker.subscriptions.take() {
            self.release(worker, &queue);
        }
    }

    pub fn sever_all(&self) {
        let workers: Vec<_> = self.workers.borrow().values().cloned().collect();
        for worker in &workers {
            self.sever(worker);
        }
    }

    /// A worker's bytes made no sense.
    pub fn protocol_error(&self, worker: &Rc<Worker>, error: &ProtocolError) {
        self.reporter.warn(format!("worker {} is severed, protocol error: {error}", worker.id));
        self.sever(worker);
    }

    /// A worker said something.
    pub fn request(&self, worker: &Rc<Worker>, request: Request) {
        match request {
            Request::Sub(queue) => self.subscribe(worker, &queue),
            Request::Unsub(queue) => self.unsubscribe(worker, &queue),
            Request::Unknown(what) => {
                let count = worker.unknown.get() + 1;
                worker.unknown.set(count);
                if count.is_power_of_two() {
                    self.reporter
                        .warn(format!("worker {} sent a frame that is ignored ({count} so far): {what}", worker.id));
                }
            }
        }
    }

    /// Registers first, has LISTEN run second, acks last (invariant 7).
    fn subscribe(&self, worker: &Rc<Worker>, name: &str) {
        if let Some(excess) = self.excess(worker, name) {
            self.reporter.warn(format!("worker {} is severed: {excess}", worker.id));
            return self.sever(worker);
        }
        let mut streams = self.streams.borrow_mut();
        let queue = streams.get_key_value(name).map_or_else(|| name.into(), |(queue, _)| queue.clone());
        let stream = streams.entry(queue.clone()).or_default();
        if worker.subscriptions.borrow_mut().insert(queue.clone()) {
            stream.subscribers.push(worker.clone());
            self.stats.subscriptions.add(1);
        }
        match &self.asked {
            Asked::Native(_) if stream.answered => {
                drop(streams);
                return self.ack(worker, &queue);
            }
            Asked::Native(wishes) => {
                if self.unanswered.borrow_mut().insert(queue.clone()) {
                    wishes.want(&queue);
                }
                self.awaiting.notify_one();
            }
            Asked::Ruby => {
                stream.answered = false;
                self.reporter.order(Event::EnsureListening { worker: worker.id, queue: queue.clone() });
            }
        }
        stream.waiting.push_back(Waiting { worker: worker.clone(), since: Instant::now() });
        worker.owed.set(worker.owed.get() + 1);
    }

    fn excess(&self, worker: &Worker, name: &str) -> Option<String> {
        let subscriptions = worker.subscriptions.borrow();
        if name.len() > MAX_QUEUE_BYTES {
            Some(format!("queue name of {} bytes (at most {MAX_QUEUE_BYTES})", name.len()))
        } else if subscriptions.len() >= MAX_SUBSCRIPTIONS && !subscriptions.contains(name) {
            Some(format!("more than {MAX_SUBSCRIPTIONS} subscriptions"))
        } else {
            None
        }
    }

    fn unsubscribe(&self, worker: &Rc<Worker>, name: &str) {
        let queue = worker.subscriptions.borrow_mut().swap_take(name);
        if let Some(queue) = queue {
            self.release(worker, &queue);
        }
    }

    fn release(&self, worker: &Rc<Worker>, queue: &Queue) {
        self.stats.subscriptions.sub(1);
        if let Some(stream) = self.streams.borrow_mut().get_mut(queue) {
            stream.subscribers.retain(|other| other.id != worker.id);
        }
        self.forget_if_unused(queue);
    }

    /// UNLISTENs a stream that nobody subscribes to, but not before every ack for it is out: from the session's answer,
    /// or early. So a long outage keeps no more streams than there are subscriptions.
    fn forget_if_unused(&self, queue: &Queue) {
        let mut streams = self.streams.borrow_mut();
        if streams.get(queue).is_some_and(|stream| stream.subscribers.is_empty() && stream.waiting.is_empty()) {
            streams.swap_remove(queue);
            self.unanswered.borrow_mut().swap_remove(queue);
            match &self.asked {
                Asked::Native(wishes) => wishes.unwant(queue),
                Asked::Ruby => self.reporter.order(Event::RemoveListening { queue: queue.clone() }),
            }
        }
    }

    fn ack(&self, worker: &Rc<Worker>, queue: &Queue) {
        match wire::ack(queue) {
            Ok(frame) => self.send(worker, frame),
            Err(error) => self.protocol_error(worker, &error),
        }
    }

    /// Queues an ack or a status. Whether a worker reads shows in wakes; these evict only one that is stuck for good.
    fn send(&self, worker: &Rc<Worker>, frame: bytes::Bytes) {
        if worker.push(frame, &self.stats) {
            self.flush_worker(worker);
            if worker.overfull() && worker.is_stuck() {
                return self.evict(worker);
            }
        }
        self.list(worker);
    }

    fn list(&self, worker: &Rc<Worker>) {
        if !worker.listed.replace(true) {
            self.fresh.borrow_mut().push(worker.clone());
        }
    }

    /// Writes what waits, as far as the sockets take it at once: one system call a worker, however many frames.
    pub fn flush(&self) {
        while let Some(worker) = self.next_fresh() {
            self.flush_worker(&worker);
            if worker.is_waiting() {
                worker.look.notify_one();
            }
        }
    }

    fn next_fresh(&self) -> Option<Rc<Worker>> {
        let worker = self.fresh.borrow_mut().pop()?;
        worker.listed.set(false);
        Some(worker)
    }

    pub fn flush_worker(&self, worker: &Rc<Worker>) {
        if worker.flush(&self.stats).is_err() {
            self.sever(worker);
        }
    }

    fn evict(&self, worker: &Rc<Worker>) {
        if !worker.is_open() {
            return;
        }
        self.stats.evicted_workers.add(1);
        self.reporter.warn(format!(
            "worker {} is evicted: more than {} frames wait and it does not read them; it falls back to a listener of its own",
            worker.id, self.limits.hard
        ));
        self.reporter.notice(Notice::Evicted { worker: worker.id, waiting: worker.waiting_frames() });
        self.sever(worker);
    }

    /// Passes on what the session tells. May wait for a slow worker, see [`Worker::make_room`]; then nothing more is
    /// taken from the session meanwhile.
    pub async fn news(&self, news: News) {
        match news {
            News::Wake { queue, payload } => self.wake(&queue, payload.as_deref()).await,
            News::Listening(queue) => self.answered(&queue),
            News::Refused { queue, reason } => {
                self.reporter.error(format!(
                    "LISTEN for {queue:?} is refused, its subscribers get no wakes from here: {reason}"
                ));
                self.answered(&queue);
            }
            News::Up => self.up(),
            News::Down { reason } => self.down(reason),
        }
    }

    async fn wake(&self, queue: &Queue, payload: Option<&str>) {
        self.stats.wakes_in.add(1);
        let full = self.push_wake(queue, payload);
        for worker in full {
            self.flush_worker(&worker);
            if worker.overfull() {
                self.flush();
                worker.look.notify_one();
                if !worker.make_room(&self.stats).await {
                    self.evict(&worker);
                }
            }
        }
    }

    /// Queues a wake for all subscribers. Gives those who have too much now.
    fn push_wake(&self, queue: &Queue, payload: Option<&str>) -> Vec<Rc<Worker>> {
        let streams = self.streams.borrow();
        let Some((queue, stream)) = streams.get_key_value(queue) else { return Vec::new() };
        if stream.subscribers.is_empty() {
            return Vec::new();
        }
        let frame = match wire::wake(queue, payload) {
            Ok(frame) => frame,
            Err(error) => {
                self.reporter.error(format!("a wake of {queue:?} can't be passed on: {error}"));
                return Vec::new();
            }
        };
        let mut full = Vec::new();
        for worker in &stream.subscribers {
            if payload.is_none() {
                worker.push_durable(queue, frame.clone(), &self.stats);
            } else if worker.push(frame.clone(), &self.stats) {
                full.push(worker.clone());
            }
            self.list(worker);
        }
        full
    }

    /// The native session answered for a queue.
    fn answered(&self, queue: &Queue) {
        let (waiting, missed) = {
            let mut streams = self.streams.borrow_mut();
            let Some((_, asked, stream)) = streams.get_full_mut(queue) else { return };
            if !Arc::ptr_eq(asked, queue) {
                return;
            }
            self.unanswered.borrow_mut().swap_remove(queue);
            stream.answered = true;
            (std::mem::take(&mut stream.waiting), std::mem::take(&mut stream.acked_early))
        };
        for Waiting { worker, .. } in waiting {
            self.settle(&worker, queue);
        }
        // While the session is being built anew, its streams are woken when it is up.
        if missed && self.down_since.get().is_none() {
            self.push_wake(queue, None);
        }
        self.forget_if_unused(queue);
    }

    /// The Ruby session answered for one worker's sub; with a reason if it failed.
    pub fn answered_for(&self, id: WorkerId, queue: &Queue, failure: Option<&str>) {
        let worker = {
            let mut streams = self.streams.borrow_mut();
            let Some(stream) = streams.get_mut(queue) else { return };
            let Some(place) = stream.waiting.iter().position(|waiting| waiting.worker.id == id) else { return };
            let Some(waiting) = stream.waiting.remove(place) else { return };
            stream.answered = stream.waiting.is_empty();
            waiting.worker
        };
        match failure {
            None => self.settle(&worker, queue),
            Some(reason) => {
                self.reporter.warn(format!("worker {} is severed: LISTEN for {queue:?} failed: {reason}", worker.id));
                self.sever(&worker);
            }
        }
        self.forget_if_unused(queue);
    }

    fn settle(&self, worker: &Rc<Worker>, queue: &Queue) {
        worker.owed.set(worker.owed.get() - 1);
        worker.look.notify_one();
        self.ack(worker, queue);
    }

    /// Acks what the native session has left unanswered for too long; a worker takes a missing ack for the hub's
    /// death. Once the session is known to be down for so long, nobody is kept waiting. What may be missed so is made
    /// good by a wake when LISTEN is active. False: no ack is owed.
    pub fn ack_overdue(&self) -> bool {
        let now = Instant::now();
        let mut overdue = Vec::new();
        let mut owed = false;
        {
            let mut streams = self.streams.borrow_mut();
            for queue in &*self.unanswered.borrow() {
                let Some(stream) = streams.get_mut(queue) else { continue };
                while let Some(first) = stream.waiting.front() {
                    let since = self.down_since.get().map_or(first.since, |down| down.min(first.since));
                    if now < since + self.ack_deadline {
                        owed = true;
                        break;
                    }
                    stream.acked_early = true;
                    overdue.extend(stream.waiting.pop_front().map(|waiting| (waiting.worker, queue.clone())));
                }
            }
        }
        for (worker, queue) in overdue {
            self.settle(&worker, &queue);
            self.forget_if_unused(&queue);
        }
        owed
    }

    /// The session is lost. What it says of it in the log is its own affair.
    pub fn down(&self, reason: String) {
        if self.down_since.get().is_none() {
            self.down_since.set(Some(Instant::now()));
            self.stats.session_is_down();
            self.reporter.notice(Notice::SessionLost { reason });
        }
        // Also when it was not up in between: it may have answered for some streams before it was lost again.
        if let Asked::Native(_) = self.asked {
            let mut unanswered = self.unanswered.borrow_mut();
            for (queue, stream) in &mut *self.streams.borrow_mut() {
                stream.answered = false;
                unanswered.insert(queue.clone());
            }
        }
    }

    /// The session is up, for the first time or again.
    pub fn up(&self) {
        self.stats.session_is_up();
        if self.down_since.take().is_none() {
            return;
        }
        self.stats.reconnects.add(1);
        self.reporter.notice(Notice::SessionRestored);
        // Whatever was broadcast meanwhile woke nobody (invariant 9).
        let queues: Vec<Queue> = self.streams.borrow().keys().cloned().collect();
        for queue in &queues {
            self.push_wake(queue, None);
        }
    }

    /// Tells every worker whether the session is up, if that is news or was not told for some ticks.
    pub fn tick(&self) {
        let healthy = self.down_since.get().is_none();
        self.untold_ticks.set(self.untold_ticks.get() + 1);
        if self.told.get() == Some(healthy) && self.untold_ticks.get() < REBROADCAST_TICKS {
            return;
        }
        self.told.set(Some(healthy));
        self.untold_ticks.set(0);
        let Ok(frame) = wire::status(healthy) else { return };
        let workers: Vec<_> = self.workers.borrow().values().cloned().collect();
        for worker in &workers {
            self.send(worker, frame.clone());
        }
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hub::Event;
    use crate::inherit;

    const DEADLINE: Duration = Duration::from_millis(20);

    struct Fixture {
        router: Router,
        wishes: Wishes,
        _events: crossbeam_channel::Receiver<Event>,
    }

    impl Fixture {
        fn new() -> Self {
            let (report, events) = crossbeam_channel::unbounded();
            let wishes = Wishes::new();
            let asked = Asked::Native(wishes.clone());
            let limits = Limits { durable: 4, hard: 64 };
            let router = Router::new(asked, limits, DEADLINE, Arc::default(), Reporter::new(report));
            router.up();
            Self { router, wishes, _events: events }
        }

        /// A worker and its own end of the connection, which must be kept.
        fn worker(&self) -> (Rc<Worker>, UnixStream) {
            let (ours, theirs) = UnixStream::pair().unwrap();
            (self.router.welcome(inherit::open(|| Ok(ours)).unwrap()), theirs)
        }

        fn sub(&self, worker: &Rc<Worker>, queue: &str) {
            self.router.request(worker, Request::Sub(queue.to_owned()));
        }

        fn unsub(&self, worker: &Rc<Worker>, queue: &str) {
            self.router.request(worker, Request::Unsub(queue.to_owned()));
        }

        fn wish(&self, queue: &str) -> Queue {
            self.wishes.wanted(queue).unwrap()
        }

        /// Waits until no ack is owed any more.
        async fn ack_overdue(&self) {
            while self.router.ack_overdue() {
                tokio::time::sleep(DEADLINE).await;
            }
        }

        fn streams(&self) -> (usize, usize, usize) {
            let unanswered = self.router.unanswered.borrow().len();
            (self.router.streams.borrow().len(), unanswered, self.wishes.all().len())
        }
    }

    fn on_one_thread(test: impl std::future::Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    /// Invariant 12: an outage may be as long as it likes.
    #[test]
    fn an_outage_keeps_no_stream_that_nobody_subscribes_to() {
        on_one_thread(async {
            let fixture = Fixture::new();
            let (worker, _end) = fixture.worker();
            fixture.sub(&worker, "known");
            fixture.router.answered(&fixture.wish("known"));
            fixture.router.down("gone".to_owned());
            tokio::time::sleep(DEADLINE).await;
            for i in 0..100 {
                let (other, _end) = fixture.worker();
                fixture.sub(&worker, &format!("left {i}"));
                fixture.sub(&other, &format!("gone {i}"));
                fixture.unsub(&worker, &format!("left {i}"));
                fixture.router.sever(&other);
                fixture.ack_overdue().await;
            }
            assert_eq!(fixture.streams(), (1, 1, 1));
            fixture.unsub(&worker, "known");
            assert_eq!(fixture.streams(), (0, 0, 0));
        });
    }

    /// Invariant 7: the session may have UNLISTENed in between.
    #[test]
    fn an_answer_counts_for_the_sub_that_asked_and_for_no_later_one() {
        on_one_thread(async {
            let fixture = Fixture::new();
            let (worker, _end) = fixture.worker();
            fixture.router.down("gone".to_owned());
            fixture.sub(&worker, "chat");
            let first = fixture.wish("chat");
            fixture.ack_overdue().await;
            fixture.unsub(&worker, "chat");
            fixture.sub(&worker, "chat");
            fixture.router.answered(&first);
            assert_eq!(worker.owed.get(), 1);
            fixture.router.answered(&fixture.wish("chat"));
            assert_eq!(worker.owed.get(), 0);
        });
    }

    /// Invariant 7, when a session is lost again while it is being built anew.
    #[test]
    fn an_answer_of_a_session_that_was_lost_again_before_it_was_up_does_not_last() {
        on_one_thread(async {
            let fixture = Fixture::new();
            let (worker, _end) = fixture.worker();
            fixture.sub(&worker, "chat");
            fixture.router.answered(&fixture.wish("chat"));
            fixture.router.down("gone".to_owned());
            fixture.router.answered(&fixture.wish("chat"));
            fixture.router.down("gone again".to_owned());
            let (late, _end) = fixture.worker();
            fixture.sub(&late, "chat");
            assert_eq!(late.owed.get(), 1, "acked while nobody listens");
            fixture.router.answered(&fixture.wish("chat"));
            assert_eq!(late.owed.get(), 0);
        });
    }
}
