//! What waits for Ruby: taken all at once, so that many reports cost one hold of the GVL.
//!
//! What Ruby has to act on rings at once. What was sent is only counted, and rings at most once a second: a message
//! that nobody has to be asked about takes no GVL.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{after, bounded, never, select, Receiver, Sender};

use super::events::Question;
use crate::log::{Level, Line};
use crate::session::Queue;

/// How long what was sent may wait.
const SENT_DELAY: Duration = Duration::from_secs(1);
/// Broadcasts that are kept one by one; those beyond are added to an earlier one of their stream.
const SENT_KEPT: usize = 4096;
/// Log lines that are kept.
const LINES_KEPT: usize = 1024;

/// A broadcast that was handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The stream.
    pub stream: Arc<str>,
    /// Browsers that were on the stream.
    pub fanout: usize,
    /// Whether it was an ephemeral one.
    pub ephemeral: bool,
    /// From the wake to the last browser's outlet.
    pub took: Duration,
    /// How many broadcasts this stands for.
    pub times: u64,
}

/// A wake for connections that Ruby serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RubyWake {
    /// The queue.
    pub queue: Queue,
    /// None for a durable wake, the text of an ephemeral one.
    pub payload: Option<Box<str>>,
}

/// All that waits for Ruby.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Streams wait for the answers.
    pub questions: Vec<Question>,
    /// Numbers of the recipes that a session waits for, and whether it is the one for reads.
    pub recipes: Vec<(Session, u64)>,
    /// Queues that Ruby asked to be woken for, and now is.
    pub listening: Vec<Queue>,
    /// In the order in which they came; of durable ones that wait, one for each queue.
    pub wakes: Vec<RubyWake>,
    /// For the log.
    pub lines: Vec<Line>,
    /// For counters and statistics.
    pub sent: Vec<Sent>,
}

/// One of a feed's sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Session {
    /// The one that rows are read on.
    Reads,
    /// The one that LISTENs.
    Wakes,
}

/// See the module's documentation. Filled by the feed's thread, emptied by Ruby's.
#[derive(Debug)]
pub struct Reports {
    waiting: Mutex<Waiting>,
    ring: Sender<()>,
    bell: Receiver<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    batch: Batch,
    /// When what was sent is due.
    due: Option<Instant>,
    urgent: bool,
    lines_left_out: u64,
    ended: bool,
}

/// What a wait for reports ended with.
#[derive(Debug, PartialEq, Eq)]
pub enum Wait {
    /// Something to do.
    Reports(Box<Batch>),
    /// There will be no reports any more.
    Ended,
    /// The waiting thread was asked to come back.
    Interrupted,
}

impl Reports {
    pub(super) fn new() -> Self {
        let (ring, bell) = bounded(1);
        Self { waiting: Mutex::default(), ring, bell }
    }

    /// Adds something that Ruby has to act on.
    pub(super) fn urgent(&self, add: impl FnOnce(&mut Batch)) {
        let mut waiting = self.waiting();
        add(&mut waiting.batch);
        waiting.urgent = true;
        let _ = self.ring.try_send(());
    }

    pub(super) fn wake(&self, queue: &Queue, payload: Option<&str>) {
        self.urgent(|batch| {
            let waits = |wake: &RubyWake| wake.payload.is_none() && wake.queue == *queue;
            if payload.is_some() || !batch.wakes.iter().any(waits) {
                batch.wakes.push(RubyWake { queue: queue.clone(), payload: payload.map(Into::into) });
            }
        });
    }

    pub(super) fn log(&self, line: Line) {
        let mut waiting = self.waiting();
        if waiting.batch.lines.len() < LINES_KEPT {
            waiting.batch.lines.push(line);
        } else {
            waiting.lines_left_out += 1;
        }
        waiting.urgent = true;
        let _ = self.ring.try_send(());
    }

    pub(super) fn sent(&self, sent: Sent) {
        let mut waiting = self.waiting();
        let kept = &mut waiting.batch.sent;
        let full = kept.len() >= SENT_KEPT;
        match kept.iter_mut().find(|earlier| full && earlier.stream == sent.stream) {
            Some(earlier) => earlier.times += sent.times,
            None => kept.push(sent),
        }
        if waiting.due.is_none() {
            waiting.due = Some(Instant::now() + SENT_DELAY);
            let _ = self.ring.try_send(()); // the waiting thread sets its clock, and needs no GVL for it
        }
    }

    /// Nothing comes after this but what waits.
    pub(super) fn end(&self) {
        self.waiting().ended = true;
        let _ = self.ring.try_send(());
    }

    /// Waits until something is there, and takes all of it. One thread at a time.
    pub fn next(&self, interrupt: &Receiver<()>) -> Wait {
        loop {
            let due = {
                let mut waiting = self.waiting();
                if waiting.urgent || waiting.ended || waiting.due.is_some_and(|due| due <= Instant::now()) {
                    return waiting.take();
                }
                waiting.due
            };
            let clock = due.map_or_else(never, |due| after(due.saturating_duration_since(Instant::now())));
            select! {
                recv(self.bell) -> _ => {}
                recv(clock) -> _ => {}
                recv(interrupt) -> _ => return Wait::Interrupted,
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn take(&mut self) -> Wait {
        (self.urgent, self.due) = (false, None);
        if self.lines_left_out > 0 {
            let text = format!("{} log lines were left out", std::mem::take(&mut self.lines_left_out));
            self.batch.lines.push(Line::new(Level::Warn, text));
        }
        let batch = std::mem::take(&mut self.batch);
        match batch == Batch::default() {
            true if self.ended => Wait::Ended,
            _ => Wait::Reports(Box::new(batch)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(stream: &str) -> Sent {
        Sent { stream: stream.into(), fanout: 1, ephemeral: false, took: Duration::ZERO, times: 1 }
    }

    fn take(reports: &Reports) -> Batch {
        match reports.next(&never()) {
            Wait::Reports(batch) => *batch,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_sent_waits_for_its_time_and_goes_along_with_what_does_not() {
        let reports = Reports::new();
        let since = Instant::now();
        reports.sent(sent("a"));
        reports.sent(sent("b"));
        assert_eq!(take(&reports).sent.len(), 2);
        assert!(since.elapsed() >= SENT_DELAY);
        reports.sent(sent("a"));
        reports.wake(&"chat".into(), None);
        let batch = take(&reports);
        assert_eq!((batch.sent.len(), batch.wakes.len()), (1, 1));
    }

    #[test]
    fn durable_wakes_of_a_queue_coalesce_and_ephemeral_ones_do_not() {
        let reports = Reports::new();
        for payload in [None, Some("x"), None, Some("x")] {
            reports.wake(&"chat".into(), payload);
        }
        let payloads: Vec<_> = take(&reports).wakes.into_iter().map(|wake| wake.payload).collect();
        assert_eq!(payloads, [None, Some("x".into()), Some("x".into())]);
    }

    /// Invariant 12.
    #[test]
    fn a_ruby_that_takes_nothing_costs_a_bounded_memory_and_no_count() {
        let reports = Reports::new();
        for i in 0..100_000 {
            reports.sent(sent(&format!("stream {}", i % 10)));
            reports.log(Line::new(Level::Warn, "again"));
        }
        let batch = take(&reports);
        assert_eq!(batch.sent.len(), SENT_KEPT);
        assert_eq!(batch.sent.iter().map(|sent| sent.times).sum::<u64>(), 100_000);
        assert_eq!(batch.lines.len(), LINES_KEPT + 1);
        assert_eq!(batch.lines[LINES_KEPT].text, format!("{} log lines were left out", 100_000 - LINES_KEPT));
    }

    #[test]
    fn the_end_comes_after_what_waits_and_an_interrupt_at_any_time() {
        let reports = Reports::new();
        let (interrupt, interrupted) = bounded(1);
        interrupt.send(()).unwrap();
        assert_eq!(reports.next(&interrupted), Wait::Interrupted);
        reports.urgent(|batch| batch.listening.push("chat".into()));
        reports.end();
        assert_eq!(take(&reports).listening, ["chat".into()]);
        assert_eq!(reports.next(&never()), Wait::Ended);
        assert_eq!(reports.next(&never()), Wait::Ended);
    }
}
