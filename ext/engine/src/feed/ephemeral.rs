//! Ephemeral messages that wait for the rows before them.

use std::sync::Arc;

use super::browser::{Browser, Browsers, Serial};
use super::events::{Limits, QuestionId};
use super::item::{Item, Line, Origin};
use super::requests::Turn;

/// The ephemeral messages of a stream, in the order of their wakes.
#[derive(Debug, Default)]
pub(super) struct Ephemerals {
    line: Line,
    bytes: usize,
}

/// What can be done with the first message.
#[derive(Debug)]
pub(super) enum Next {
    /// It can leave.
    Ready(Item),
    /// It waits for an answer.
    AwaitsAnswer,
    /// There is none, or rows come first.
    None,
}

impl Ephemerals {
    pub fn push(&mut self, item: Item) {
        self.bytes += item.frame.bytes.len();
        self.line.push(item);
    }

    pub fn exceed(&self, limits: Limits) -> bool {
        self.line.len() > limits.frames || self.bytes > limits.bytes
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The first message, if the rows of its first `wakes` wakes are through.
    pub fn next(&mut self, wakes_covered: u64, stream: &Arc<str>, browsers: &Browsers, turn: &mut Turn) -> Next {
        match self.line.front().map(|item| item.origin) {
            Some(Origin::Wake { wakes, .. }) if wakes <= wakes_covered => {}
            _ => return Next::None,
        }
        if self.line.awaits_answer(browsers.all(), stream, turn) {
            return Next::AwaitsAnswer;
        }
        match self.line.pop() {
            Some(item) => {
                self.bytes -= item.frame.bytes.len();
                Next::Ready(item)
            }
            None => Next::None,
        }
    }

    /// Notes an answer. Returns false if the question is not one of these messages'.
    pub fn answer(&mut self, question: QuestionId, verdicts: &[Vec<bool>]) -> bool {
        self.line.answer(question, verdicts)
    }

    /// Browsers that get a message.
    pub fn recipients(item: &Item, browsers: &Browsers) -> Vec<Serial> {
        let gets =
            |(serial, browser): &(Serial, &Browser)| item.is_due(*serial, browser) && item.is_visible(*serial, browser);
        browsers.all().filter(gets).map(|(serial, _)| serial).collect()
    }
}
