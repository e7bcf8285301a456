//! The routing table: who subscribes to which stream, and which acks wait for the session.
//!
//! A stream is in the table from its first sub until its last subscriber left and no ack is pending for it. An answer of
//! the native session carries the very [`Queue`] of the question, and so it never counts for a stream that was forgotten
//! and came back meanwhile.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indexmap::{IndexMap, IndexSet};

use super::worker::{Worker, WorkerId};
use crate::session::Queue;

#[derive(Default)]
pub struct Streams {
    table: IndexMap<Queue, Stream>,
    /// Those that are [`Listening::Pending`].
    pending: IndexSet<Queue>,
}

struct Stream {
    subscribers: Vec<Rc<Worker>>,
    listening: Listening,
}

enum Listening {
    /// LISTEN is active as far as the hub knows, or will never be.
    Active,
    Pending {
        acks: VecDeque<PendingAck>,
        /// Somebody got an ack before LISTEN was active and may have missed a wake.
        acked_early: bool,
    },
}

impl Listening {
    const ASKED: Self = Self::Pending { acks: VecDeque::new(), acked_early: false };
}

struct PendingAck {
    worker: Rc<Worker>,
    since: Instant,
}

/// The session's answer for a stream.
pub struct Answer {
    /// Whose subs are to be acked.
    pub workers: Vec<Rc<Worker>>,
    /// Whether a wake may have been missed by a worker that was acked early.
    pub missed: bool,
}

/// Acks that the session has left pending for too long.
pub struct Overdue {
    pub acks: Vec<(Rc<Worker>, Queue)>,
    /// Whether others are pending still.
    pub more: bool,
}

impl Streams {
    pub fn queues(&self) -> Vec<Queue> {
        self.table.keys().cloned().collect()
    }

    /// The queue of this name, if anybody subscribes or an ack is pending.
    pub fn find(&self, name: &str) -> Option<Queue> {
        self.table.get_key_value(name).map(|(queue, _)| queue.clone())
    }

    pub fn subscribers(&self, queue: &Queue) -> &[Rc<Worker>] {
        self.table.get(queue).map_or(&[], |stream| &stream.subscribers)
    }

    /// Puts a stream into the table that nobody has subscribed to.
    pub fn insert(&mut self, name: &str) -> Queue {
        let queue: Queue = name.into();
        self.table.insert(queue.clone(), Stream { subscribers: Vec::new(), listening: Listening::ASKED });
        self.pending.insert(queue.clone());
        queue
    }

    pub fn subscribe(&mut self, worker: &Rc<Worker>, queue: &Queue) {
        if let Some(stream) = self.table.get_mut(queue) {
            stream.subscribers.push(worker.clone());
        }
    }

    pub fn unsubscribe(&mut self, id: WorkerId, queue: &Queue) {
        if let Some(stream) = self.table.get_mut(queue) {
            stream.subscribers.retain(|other| other.id != id);
        }
    }

    pub fn is_active(&self, queue: &Queue) -> bool {
        self.table.get(queue).is_some_and(|stream| matches!(stream.listening, Listening::Active))
    }

    /// Notes that this worker's sub has to wait for an answer.
    pub fn await_ack(&mut self, worker: &Rc<Worker>, queue: &Queue) {
        let Some(stream) = self.table.get_mut(queue) else { return };
        if let Listening::Active = stream.listening {
            stream.listening = Listening::ASKED;
            self.pending.insert(queue.clone());
        }
        if let Listening::Pending { acks, .. } = &mut stream.listening {
            acks.push_back(PendingAck { worker: worker.clone(), since: Instant::now() });
            worker.pending_acks.set(worker.pending_acks.get() + 1);
        }
    }

    /// The native session answered for a queue. Returns None if it answered a question that nobody waits for any more.
    pub fn answer(&mut self, queue: &Queue) -> Option<Answer> {
        let (_, asked, stream) = self.table.get_full_mut(queue)?;
        if !Arc::ptr_eq(asked, queue) {
            return None;
        }
        self.pending.swap_remove(queue);
        let (acks, missed) = match std::mem::replace(&mut stream.listening, Listening::Active) {
            Listening::Active => (VecDeque::new(), false),
            Listening::Pending { acks, acked_early } => (acks, acked_early),
        };
        Some(Answer { workers: acks.into_iter().map(PendingAck::finish).collect(), missed })
    }

    /// The Ruby session answered for one worker's sub. Returns the worker, if it still waits.
    pub fn answer_for(&mut self, id: WorkerId, queue: &Queue) -> Option<Rc<Worker>> {
        let stream = self.table.get_mut(queue)?;
        let Listening::Pending { acks, .. } = &mut stream.listening else { return None };
        let index = acks.iter().position(|ack| ack.worker.id == id)?;
        let ack = acks.remove(index)?;
        if acks.is_empty() {
            stream.listening = Listening::Active;
            self.pending.swap_remove(queue);
        }
        Some(ack.finish())
    }

    /// Takes the acks that have been pending for `deadline`, or since the session was lost so long ago.
    pub fn overdue(&mut self, down_since: Option<Instant>, deadline: Duration) -> Overdue {
        let now = Instant::now();
        let mut overdue = Overdue { acks: Vec::new(), more: false };
        for queue in &self.pending {
            let Some(Stream { listening: Listening::Pending { acks, acked_early }, .. }) = self.table.get_mut(queue)
            else {
                continue;
            };
            let is_overdue =
                |ack: &PendingAck| now >= down_since.map_or(ack.since, |down| down.min(ack.since)) + deadline;
            while acks.front().is_some_and(is_overdue) {
                *acked_early = true;
                overdue.acks.extend(acks.pop_front().map(|ack| (ack.finish(), queue.clone())));
            }
            overdue.more |= !acks.is_empty();
        }
        overdue
    }

    /// The native session is lost: it has to answer anew for every stream.
    pub fn ask_again(&mut self) {
        for (queue, stream) in &mut self.table {
            if let Listening::Active = stream.listening {
                stream.listening = Listening::ASKED;
                self.pending.insert(queue.clone());
            }
        }
    }

    /// Forgets a stream that nobody subscribes to, but not before every ack for it was sent, after the session's answer
    /// or early. So a long outage keeps no more streams than there are subscriptions. Returns whether it is forgotten.
    pub fn forget_if_unused(&mut self, queue: &Queue) -> bool {
        let is_unused = self.table.get(queue).is_some_and(|stream| {
            let has_acks = matches!(&stream.listening, Listening::Pending { acks, .. } if !acks.is_empty());
            stream.subscribers.is_empty() && !has_acks
        });
        if is_unused {
            self.table.swap_remove(queue);
            self.pending.swap_remove(queue);
        }
        is_unused
    }
}

impl PendingAck {
    fn finish(self) -> Rc<Worker> {
        self.worker.pending_acks.set(self.worker.pending_acks.get() - 1);
        self.worker
    }
}
