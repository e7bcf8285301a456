//! All streams and browsers; which input concerns which stream; turns of reads.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::browser::{Browser, Serial};
use super::events::{Connect, Input, Limits, Outlets, Output, QuestionId, ReadId, Row};
use super::requests::{Requests, Turn};
use super::stream::Stream;
use crate::log::{Level, Line};
use crate::session::Queue;

/// Reads for browsers that are behind, under way at a time in all streams. Reads for live ones don't count.
const MAX_BEHIND_READS: usize = 16;

/// The feed of one process. Everything happens in [`Feed::handle`].
///
/// Memory is bounded by browsers, streams and [`Limits`]: a stream holds one page of rows for its live browsers and at
/// most four for those that are behind, and ephemeral messages up to the limits; if these wait longer than the limits
/// allow, for the database or for a filter, the browsers of that stream are given up. A browser that is behind has
/// ephemeral frames up to the limits too.
#[derive(Debug)]
pub struct Feed {
    limits: Limits,
    streams: HashMap<Queue, Stream>,
    browsers: HashMap<u32, (Queue, Serial)>,
    /// Streams that have browsers to read for, in the order of their turns.
    turns: VecDeque<Queue>,
    requests: Requests,
}

impl Feed {
    /// A feed without browsers.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            streams: HashMap::new(),
            browsers: HashMap::new(),
            turns: VecDeque::new(),
            requests: Requests::default(),
        }
    }

    /// When [`Input::Tick`] is due, if nothing else comes before.
    pub fn deadline(&self) -> Option<Instant> {
        self.requests.next_timer()
    }

    /// Does all that can be done after this input, at this time. Frames go to the outlets at once, the rest comes back
    /// in the order in which it is to be done.
    pub fn handle(&mut self, now: Instant, input: Input, outlets: &mut impl Outlets) -> Vec<Output> {
        match input {
            Input::Connected(connect) => self.connect(now, connect, outlets),
            Input::Disconnected { key } => self.disconnect(now, key, outlets),
            Input::Listening { queue } => self.listening(now, &queue, outlets),
            Input::ListenFailed { queue, reason } => self.listen_failed(now, &queue, &reason, outlets),
            Input::Wake { queue, payload } => self.with_stream(now, &queue, outlets, |stream, turn| match &payload {
                None => stream.durable_wake(turn),
                Some(text) => stream.ephemeral_wake(text, turn),
            }),
            Input::AllMayHaveChanged => {
                for queue in self.streams.keys().cloned().collect::<Vec<_>>() {
                    self.with_stream(now, &queue, outlets, Stream::durable_wake);
                }
            }
            Input::Rows { read, rows } => self.rows(now, read, rows, outlets),
            Input::Answers { question, verdicts } => self.answers(now, question, &verdicts, outlets),
            Input::Room { key } => self.room(now, key, outlets),
            Input::Tick => {}
        }
        while let Some(queue) = self.requests.due_timer(now) {
            self.with_stream(now, &queue, outlets, Stream::advance);
        }
        self.start_reads(now, outlets);
        self.requests.take_outputs()
    }

    fn connect(&mut self, now: Instant, connect: Connect, outlets: &mut impl Outlets) {
        let Connect { key, id, stream, queue, cursor } = connect;
        self.disconnect(now, key, outlets);
        let serial = self.requests.next_id();
        if !self.streams.contains_key(&queue) {
            self.streams.insert(Arc::clone(&queue), Stream::new(stream, Arc::clone(&queue)));
            self.requests.output(Output::Listen { queue: Arc::clone(&queue) });
        }
        self.with_stream(now, &queue, outlets, |stream, _| stream.connect(serial, Browser::new(key, id, cursor)));
        self.browsers.insert(key, (queue, serial));
    }

    fn disconnect(&mut self, now: Instant, key: u32, outlets: &mut impl Outlets) {
        if let Some((queue, serial)) = self.browsers.remove(&key) {
            self.with_stream(now, &queue, outlets, |stream, turn| stream.disconnect(serial, turn));
        }
    }

    fn listening(&mut self, now: Instant, queue: &Queue, outlets: &mut impl Outlets) {
        self.with_stream(now, queue, outlets, |stream, _| {
            if Arc::ptr_eq(&stream.queue, queue) {
                stream.listening();
            }
        });
    }

    fn listen_failed(&mut self, now: Instant, queue: &Queue, reason: &str, outlets: &mut impl Outlets) {
        self.with_stream(now, queue, outlets, |stream, turn| {
            if Arc::ptr_eq(&stream.queue, queue) {
                let text = format!("the database refuses to LISTEN for {queue:?}: {reason}");
                turn.requests.output(Output::Log(Line::new(Level::Error, text)));
                stream.listen_refused(turn);
            }
        });
    }

    fn rows(&mut self, now: Instant, read: ReadId, rows: Result<Vec<Row>, String>, outlets: &mut impl Outlets) {
        if let Some(queue) = self.requests.read_answered(read) {
            self.with_stream(now, &queue, outlets, |stream, turn| stream.rows(read, rows, turn));
        }
    }

    fn answers(&mut self, now: Instant, question: QuestionId, verdicts: &[Vec<bool>], outlets: &mut impl Outlets) {
        if let Some(queue) = self.requests.question_answered(question) {
            self.with_stream(now, &queue, outlets, |stream, turn| stream.answers(question, verdicts, turn));
        }
    }

    fn room(&mut self, now: Instant, key: u32, outlets: &mut impl Outlets) {
        if let Some((queue, serial)) = self.browsers.get(&key).cloned() {
            self.with_stream(now, &queue, outlets, |stream, _| stream.room(serial));
        }
    }

    /// Lets a stream handle something. One without browsers ends; one that wants to read gets in line.
    fn with_stream(
        &mut self,
        now: Instant,
        queue: &Queue,
        outlets: &mut impl Outlets,
        handle: impl FnOnce(&mut Stream, &mut Turn),
    ) {
        let Some(stream) = self.streams.get_mut(queue) else { return };
        let queue = Arc::clone(&stream.queue);
        handle(stream, &mut Turn { now, queue: &queue, limits: self.limits, outlets, requests: &mut self.requests });
        if stream.is_empty() {
            self.streams.remove(&queue);
            self.requests.output(Output::Unlisten { queue });
        } else if stream.wants_read(now) && !stream.scheduled {
            stream.scheduled = true;
            self.turns.push_back(queue);
        }
    }

    fn start_reads(&mut self, now: Instant, outlets: &mut impl Outlets) {
        while self.requests.behind_reads() < MAX_BEHIND_READS {
            let Some(queue) = self.turns.pop_front() else { break };
            self.with_stream(now, &queue, outlets, |stream, turn| {
                stream.scheduled = false;
                if stream.wants_read(turn.now) {
                    stream.start_read(turn);
                }
            });
        }
    }
}
