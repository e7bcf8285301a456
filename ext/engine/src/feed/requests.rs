//! What the feed has asked others for, and log lines at a bearable rate.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::events::{Asked, Limits, Outlets, Output, Question, QuestionId, ReadId};
use crate::log::{Level, Line};
use crate::session::Queue;

/// One line of a kind in this time; an outage must not fill a log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// What a stream needs to handle one input.
pub(super) struct Turn<'a> {
    pub now: Instant,
    /// The stream's queue.
    pub queue: &'a Queue,
    pub limits: Limits,
    pub outlets: &'a mut dyn Outlets,
    pub requests: &'a mut Requests,
}

/// For whom a read is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// For the live browsers of a stream.
    Tail,
    /// For some that are behind.
    Behind,
}

/// All that was asked for and not answered yet.
#[derive(Debug, Default)]
pub(super) struct Requests {
    outputs: Vec<Output>,
    last_id: u64,
    reads: HashMap<ReadId, (Queue, Reader)>,
    behind_reads: usize,
    questions: HashMap<QuestionId, Queue>,
    /// When streams whose read failed may read again.
    timers: BTreeSet<(Instant, Queue)>,
    failed_reads: Throttle,
    malformed: Throttle,
}

impl Requests {
    /// A number that was never given before, greater than all that were.
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub fn output(&mut self, output: Output) {
        self.outputs.push(output);
    }

    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    pub fn read(&mut self, queue: &Queue, reader: Reader, after: i64, limit: usize) -> ReadId {
        let id = ReadId(self.next_id());
        self.behind_reads += usize::from(reader == Reader::Behind);
        self.reads.insert(id, (Arc::clone(queue), reader));
        self.output(Output::Read { id, queue: Arc::clone(queue), after, limit });
        id
    }

    /// The queue of a read that was answered.
    pub fn read_answered(&mut self, id: ReadId) -> Option<Queue> {
        let (queue, reader) = self.reads.remove(&id)?;
        self.behind_reads -= usize::from(reader == Reader::Behind);
        Some(queue)
    }

    /// Reads under way for browsers that are behind.
    pub fn behind_reads(&self) -> usize {
        self.behind_reads
    }

    pub fn ask(&mut self, stream: Arc<str>, items: Vec<Asked>, queue: &Queue) -> QuestionId {
        let id = QuestionId(self.next_id());
        self.questions.insert(id, Arc::clone(queue));
        self.output(Output::Ask(Question { id, stream, items }));
        id
    }

    /// The queue of a question that was answered.
    pub fn question_answered(&mut self, id: QuestionId) -> Option<Queue> {
        self.questions.remove(&id)
    }

    pub fn set_timer(&mut self, at: Instant, queue: &Queue) {
        self.timers.insert((at, Arc::clone(queue)));
    }

    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// A queue whose timer has come.
    pub fn due_timer(&mut self, now: Instant) -> Option<Queue> {
        match self.timers.first() {
            Some((at, _)) if *at <= now => self.timers.pop_first().map(|(_, queue)| queue),
            _ => None,
        }
    }

    pub fn log_failed_read(&mut self, now: Instant, queue: &str, reason: &str) {
        if let Some(others) = self.failed_reads.pass(now) {
            let text = format!("reading {queue:?} failed, {others} others since the last such line: {reason}");
            self.output(Output::Log(Line::new(Level::Error, text)));
        }
    }

    pub fn log_malformed(&mut self, now: Instant, stream: &str, reason: &str) {
        if let Some(others) = self.malformed.pass(now) {
            let text = format!(
                "an ephemeral message of {stream:?} is no JSON, {others} others since the last such line: {reason}"
            );
            self.output(Output::Log(Line::new(Level::Error, text)));
        }
    }
}

/// Lets one through in [`LOG_INTERVAL`].
#[derive(Debug, Default)]
struct Throttle {
    last: Option<Instant>,
    withheld: u64,
}

impl Throttle {
    /// None: not now. Otherwise how many were withheld.
    fn pass(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < LOG_INTERVAL) {
            self.withheld += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.withheld))
    }
}
