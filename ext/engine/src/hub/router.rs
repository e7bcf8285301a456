//! Who gets which wake: the rules of sub, unsub, ack, status and eviction.
//!
//! All of it happens in [`Router::handle`], on the hub's thread: an input changes the routing table and puts frames into
//! outboxes, and at the end every outbox that got something is written as far as its socket takes it. Nothing here waits
//! for a worker. What a socket does not take is its worker's affair, see [`serve`](super::serve).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use tokio::net::UnixStream;
use tokio::sync::Notify;

use super::health::Health;
use super::outbox::Limits;
use super::reporter::Reporter;
use super::stats::Stats;
use super::streams::Streams;
use super::worker::{Worker, WorkerId};
use super::{Event, Notice, Told};
use crate::inherit::Kept;
use crate::session::{News, Queue, Wishes};
use crate::wire::{self, ProtocolError, Request};

/// The router, as the hub's tasks share it. Nobody holds it over a wait.
pub type SharedRouter = Rc<RefCell<Router>>;

/// Who is asked to LISTEN.
pub enum SessionKind {
    /// The native session: it answers for a queue, once, and knows what it listens to already.
    Native(Wishes),
    /// The Ruby session: it is asked for every sub, and answers for each.
    Ruby,
}

/// What the router is there to react to.
pub enum Input {
    /// From the session.
    News(News),
    /// From the Ruby session, beside wakes.
    Told(Told),
    /// The time of [`Options::status_interval`](super::Options::status_interval) has passed.
    Tick,
    /// A worker's frame, or its bytes that are none.
    Request(Rc<Worker>, Result<Request, ProtocolError>),
    /// A worker's socket has room.
    Writable(Rc<Worker>),
    /// A worker that is over its limit has had time to read.
    Probe(Rc<Worker>),
    /// A worker's connection ended.
    Gone(Rc<Worker>),
}

pub struct Router {
    stats: Arc<Stats>,
    reporter: Rc<Reporter>,
    session: SessionKind,
    limits: Limits,
    ack_deadline: Duration,
    streams: Streams,
    workers: IndexMap<WorkerId, Rc<Worker>>,
    /// Workers whose outboxes got something since the last flush.
    dirty: Vec<Rc<Worker>>,
    health: Health,
    /// Wakes the task that looks for overdue acks when an ack has to wait.
    ack_pending: Rc<Notify>,
    last_id: WorkerId,
}

impl Router {
    pub fn new(
        session: SessionKind,
        limits: Limits,
        ack_deadline: Duration,
        stats: Arc<Stats>,
        reporter: Rc<Reporter>,
    ) -> Self {
        Self {
            stats,
            reporter,
            session,
            limits,
            ack_deadline,
            streams: Streams::default(),
            workers: IndexMap::new(),
            dirty: Vec::new(),
            health: Health::default(),
            ack_pending: Rc::default(),
            last_id: 0,
        }
    }

    /// Rings when an ack has to wait for the native session, so that [`Self::ack_overdue`] is to be called.
    pub fn ack_pending(&self) -> Rc<Notify> {
        self.ack_pending.clone()
    }

    /// A worker connected.
    pub fn connect(&mut self, stream: Kept<UnixStream>) -> Rc<Worker> {
        self.last_id += 1;
        let worker = Rc::new(Worker::new(self.last_id, stream, self.limits));
        self.workers.insert(worker.id, worker.clone());
        self.stats.workers.add(1);
        worker
    }

    /// Reacts to all inputs, then writes what they left in the outboxes: one system call a worker, however many frames.
    pub fn handle(&mut self, inputs: impl IntoIterator<Item = Input>) {
        for input in inputs {
            match input {
                Input::News(news) => self.news(news),
                Input::Told(Told::Answer { worker, queue, failure }) => {
                    self.answered_for(worker, &queue, failure.as_deref());
                }
                Input::Told(Told::Health(up)) => {
                    if up {
                        self.up();
                    } else {
                        self.down("its listener is not connected".to_owned());
                    }
                    self.tick();
                }
                Input::Tick => self.tick(),
                Input::Request(worker, Ok(request)) => self.request(&worker, request),
                Input::Request(worker, Err(error)) => self.protocol_error(&worker, &error),
                Input::Writable(worker) => self.mark_dirty(&worker),
                Input::Probe(worker) => self.probe(&worker),
                Input::Gone(worker) => self.disconnect(&worker),
            }
        }
        self.flush();
    }

    /// Ends all connections.
    pub fn disconnect_all(&mut self) {
        let workers: Vec<_> = self.workers.values().cloned().collect();
        for worker in &workers {
            self.disconnect(worker);
        }
    }

    /// Ends a worker's connection and forgets its subscriptions. Can be repeated.
    fn disconnect(&mut self, worker: &Rc<Worker>) {
        if !worker.close(&self.stats) {
            return;
        }
        self.workers.swap_remove(&worker.id);
        self.stats.workers.sub(1);
        for queue in worker.subscriptions.take() {
            self.release(worker, &queue);
        }
    }

    fn protocol_error(&mut self, worker: &Rc<Worker>, error: &ProtocolError) {
        self.reporter.warn(format!("worker {} is severed, protocol error: {error}", worker.id));
        self.disconnect(worker);
    }

    fn request(&mut self, worker: &Rc<Worker>, request: Request) {
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
    fn subscribe(&mut self, worker: &Rc<Worker>, name: &str) {
        if let Some(excess) = worker.excess(name) {
            self.reporter.warn(format!("worker {} is severed: {excess}", worker.id));
            return self.disconnect(worker);
        }
        let known = self.streams.find(name);
        let is_new = known.is_none();
        let queue = known.unwrap_or_else(|| self.streams.insert(name));
        if worker.subscriptions.borrow_mut().insert(queue.clone()) {
            self.streams.subscribe(worker, &queue);
            self.stats.subscriptions.add(1);
        }
        match &self.session {
            SessionKind::Native(_) if self.streams.is_active(&queue) => return self.ack(worker, &queue),
            SessionKind::Native(wishes) => {
                if is_new {
                    wishes.want(&queue);
                }
                self.ack_pending.notify_one();
            }
            SessionKind::Ruby => {
                self.reporter.order(Event::EnsureListening { worker: worker.id, queue: queue.clone() });
            }
        }
        self.streams.await_ack(worker, &queue);
    }

    fn unsubscribe(&mut self, worker: &Rc<Worker>, name: &str) {
        let queue = worker.subscriptions.borrow_mut().swap_take(name);
        if let Some(queue) = queue {
            self.release(worker, &queue);
        }
    }

    fn release(&mut self, worker: &Rc<Worker>, queue: &Queue) {
        self.stats.subscriptions.sub(1);
        self.streams.unsubscribe(worker.id, queue);
        self.forget_if_unused(queue);
    }

    fn forget_if_unused(&mut self, queue: &Queue) {
        if self.streams.forget_if_unused(queue) {
            match &self.session {
                SessionKind::Native(wishes) => wishes.unwant(queue),
                SessionKind::Ruby => self.reporter.order(Event::RemoveListening { queue: queue.clone() }),
            }
        }
    }

    fn news(&mut self, news: News) {
        match news {
            News::Wake { queue, payload } => {
                self.stats.wakes_in.add(1);
                self.wake(&queue, payload.as_deref());
            }
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

    /// Queues a wake for all subscribers.
    fn wake(&mut self, queue: &Queue, payload: Option<&str>) {
        let subscribers = self.streams.subscribers(queue);
        if subscribers.is_empty() {
            return;
        }
        let frame = match wire::wake(queue, payload) {
            Ok(frame) => frame,
            Err(error) => return self.reporter.error(format!("a wake of {queue:?} can't be passed on: {error}")),
        };
        for worker in subscribers {
            match payload {
                None => worker.push_durable(queue, frame.clone(), &self.stats),
                Some(_) => worker.push(frame.clone(), &self.stats),
            }
            mark_dirty(&mut self.dirty, worker);
        }
    }

    fn ack(&mut self, worker: &Rc<Worker>, queue: &Queue) {
        match wire::ack(queue) {
            Ok(frame) => self.send(worker, frame),
            Err(error) => self.protocol_error(worker, &error),
        }
    }

    fn send(&mut self, worker: &Rc<Worker>, frame: bytes::Bytes) {
        worker.push(frame, &self.stats);
        self.mark_dirty(worker);
    }

    fn mark_dirty(&mut self, worker: &Rc<Worker>) {
        mark_dirty(&mut self.dirty, worker);
    }

    /// The native session answered for a queue.
    fn answered(&mut self, queue: &Queue) {
        let Some(answer) = self.streams.answer(queue) else { return };
        for worker in &answer.workers {
            self.ack(worker, queue);
        }
        // While the session is being built anew, its streams are woken when it is up.
        if answer.missed && self.health.is_up() {
            self.wake(queue, None);
        }
        self.forget_if_unused(queue);
    }

    /// The Ruby session answered for one worker's sub; with a reason if it failed.
    fn answered_for(&mut self, id: WorkerId, queue: &Queue, failure: Option<&str>) {
        let Some(worker) = self.streams.answer_for(id, queue) else { return };
        match failure {
            None => self.ack(&worker, queue),
            Some(reason) => {
                self.reporter.warn(format!("worker {id} is severed: LISTEN for {queue:?} failed: {reason}"));
                self.disconnect(&worker);
            }
        }
        self.forget_if_unused(queue);
    }

    /// Acks what the native session has left unanswered for too long, since a worker takes a missing ack for the hub's
    /// death. While the session is known to be down for so long, nobody is kept waiting. A wake that is missed so is made
    /// good when LISTEN is active. Returns whether other acks are pending.
    pub fn ack_overdue(&mut self) -> bool {
        let overdue = self.streams.overdue(self.health.down_since(), self.ack_deadline);
        for (worker, queue) in overdue.acks {
            self.ack(&worker, &queue);
            self.forget_if_unused(&queue);
        }
        self.flush();
        overdue.more
    }

    /// The session is lost. It logs that itself.
    fn down(&mut self, reason: String) {
        if self.health.go_down() {
            self.stats.session_is_down();
            self.reporter.notice(Notice::SessionLost { reason });
        }
        // Also when it was not up in between: it may have answered for some streams before it was lost again.
        if let SessionKind::Native(_) = self.session {
            self.streams.ask_again();
        }
    }

    /// The session is up, for the first time or again.
    pub fn up(&mut self) {
        self.stats.session_is_up();
        if !self.health.come_up() {
            return;
        }
        self.stats.reconnects.add(1);
        self.reporter.notice(Notice::SessionRestored);
        // What was broadcast meanwhile woke nobody (invariant 9).
        for queue in self.streams.queues() {
            self.wake(&queue, None);
        }
    }

    fn tick(&mut self) {
        let Some(is_up) = self.health.tick() else { return };
        let Ok(frame) = wire::status(is_up) else { return };
        for worker in self.workers.values() {
            worker.push(frame.clone(), &self.stats);
            mark_dirty(&mut self.dirty, worker);
        }
    }

    fn probe(&mut self, worker: &Rc<Worker>) {
        match worker.probe(&self.stats) {
            Ok(()) => self.mark_dirty(worker),
            Err(_) => self.disconnect(worker),
        }
    }

    fn flush(&mut self) {
        while let Some(worker) = self.dirty.pop() {
            worker.is_dirty.set(false);
            if worker.flush(&self.stats).is_err() {
                self.disconnect(&worker);
            } else if worker.is_given_up() {
                self.evict(&worker);
            }
            if worker.watch() != worker.watched.get() {
                worker.wakeup.notify_one();
            }
        }
    }

    fn evict(&mut self, worker: &Rc<Worker>) {
        let waiting = worker.waiting_frames();
        self.stats.evicted_workers.add(1);
        self.reporter.warn(format!(
            "worker {} is evicted: {waiting} frames wait and it does not read them, or too slowly (hard_queue_limit is {}); \
             it falls back to a listener of its own",
            worker.id, self.limits.hard
        ));
        self.reporter.notice(Notice::Evicted { worker: worker.id, waiting });
        self.disconnect(worker);
    }
}

fn mark_dirty(dirty: &mut Vec<Rc<Worker>>, worker: &Rc<Worker>) {
    if !worker.is_dirty.replace(true) {
        dirty.push(worker.clone());
    }
}

#[cfg(test)]
mod tests;
