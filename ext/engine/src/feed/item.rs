//! A frame with its audience, and the questions that Ruby has to answer before it leaves.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::browser::{Browser, Serial};
use super::events::{Asked, QuestionId, Row};
use super::message::{Malformed, Message};
use super::requests::Turn;
use crate::frame::Frame;

/// Pairs of a message and a connection in one question: about as many filters as Ruby runs in a few milliseconds.
pub(super) const MAX_PAIRS: usize = 1024;

/// A message of a stream, ready to leave as soon as it is known who may see it.
#[derive(Debug)]
pub(super) struct Item {
    id: u64,
    pub frame: Arc<Frame>,
    pub origin: Origin,
    /// As JSON; None: everybody may see it.
    label: Option<Arc<str>>,
    /// The id of the connection that does not get it.
    exclude: Option<Box<str>>,
    /// What Ruby said.
    verdicts: HashMap<Serial, bool>,
}

/// Where a message comes from, and so whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A row is due to those whose cursor is before it.
    Row(i64),
    /// An ephemeral message is due to those who were there when it came.
    Wake {
        /// A number between theirs and those of all who come later.
        before: Serial,
        /// Durable wakes of the stream that came before it.
        wakes: u64,
    },
}

impl Item {
    pub fn of_row(id: u64, row: &Row) -> Self {
        let message = Message::of_row(&row.message);
        let frame = Frame::durable(row.msg_id, &message.event, &message.payload);
        Self::new(id, frame, Origin::Row(row.msg_id), &message)
    }

    /// None: the message means nothing.
    pub fn of_wake(id: u64, text: &str, origin: Origin) -> Result<Option<Self>, Malformed> {
        let Some(message) = Message::of_wake(text)? else { return Ok(None) };
        let frame = Frame::ephemeral(&message.event, &message.payload);
        Ok(Some(Self::new(id, frame, origin, &message)))
    }

    fn new(id: u64, frame: Frame, origin: Origin, message: &Message) -> Self {
        Self {
            id,
            frame: Arc::new(frame),
            origin,
            label: message.label.map(Arc::from),
            exclude: message.exclude.as_deref().map(Box::from),
            verdicts: HashMap::new(),
        }
    }

    /// Whether this browser is one of those that the message is for, if it may see it.
    pub fn is_due(&self, serial: Serial, browser: &Browser) -> bool {
        match self.origin {
            Origin::Row(msg_id) => browser.cursor < msg_id,
            Origin::Wake { before, .. } => serial < before,
        }
    }

    pub fn is_visible(&self, serial: Serial, browser: &Browser) -> bool {
        !self.excludes(browser) && (self.label.is_none() || self.verdicts.get(&serial) == Some(&true))
    }

    fn lacks_verdict(&self, serial: Serial, browser: &Browser) -> bool {
        self.label.is_some()
            && self.is_due(serial, browser)
            && !self.excludes(browser)
            && !self.verdicts.contains_key(&serial)
    }

    fn excludes(&self, browser: &Browser) -> bool {
        self.exclude.as_deref() == Some(&*browser.id)
    }
}

/// Messages that leave in their order, each when Ruby has said who may see it.
#[derive(Debug, Default)]
pub(super) struct Line {
    items: VecDeque<Item>,
    asking: Option<Asking>,
}

/// A question under way: for each item the browsers that it is asked for.
#[derive(Debug)]
struct Asking {
    question: QuestionId,
    items: Vec<(u64, Vec<Serial>)>,
}

impl Line {
    pub fn new(items: impl IntoIterator<Item = Item>) -> Self {
        Self { items: items.into_iter().collect(), asking: None }
    }

    pub fn push(&mut self, item: Item) {
        self.items.push_back(item);
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn front(&self) -> Option<&Item> {
        self.items.front()
    }

    pub fn pop(&mut self) -> Option<Item> {
        self.items.pop_front()
    }

    /// Whether the first message waits for an answer about somebody of this audience. Asks, for as many messages as one
    /// question holds, unless a question is under way.
    pub fn awaits_answer<'a>(
        &mut self,
        audience: impl Iterator<Item = (Serial, &'a Browser)> + Clone,
        stream: &Arc<str>,
        turn: &mut Turn,
    ) -> bool {
        let Some(front) = self.items.front().filter(|item| item.label.is_some()) else { return false };
        let waits = audience.clone().any(|(serial, browser)| front.lacks_verdict(serial, browser));
        if waits && self.asking.is_none() {
            self.ask(audience, stream, turn);
        }
        waits
    }

    fn ask<'a>(
        &mut self,
        audience: impl Iterator<Item = (Serial, &'a Browser)> + Clone,
        stream: &Arc<str>,
        turn: &mut Turn,
    ) {
        let (mut asking, mut asked, mut left) = (Vec::new(), Vec::new(), MAX_PAIRS);
        for item in &self.items {
            let Some(label) = &item.label else { continue };
            let pairs = audience.clone().filter(|(serial, browser)| item.lacks_verdict(*serial, browser)).take(left);
            let (serials, keys): (Vec<_>, Vec<_>) = pairs.map(|(serial, browser)| (serial, browser.key)).unzip();
            if serials.is_empty() {
                continue;
            }
            left -= serials.len();
            asking.push((item.id, serials));
            asked.push(Asked { label: Arc::clone(label), keys });
            if left == 0 {
                break;
            }
        }
        let question = turn.requests.ask(Arc::clone(stream), asked, turn.queue);
        self.asking = Some(Asking { question, items: asking });
    }

    /// Notes an answer. Returns false if the question is not one of this line's.
    pub fn answer(&mut self, question: QuestionId, verdicts: &[Vec<bool>]) -> bool {
        let Some(asking) = self.asking.take_if(|asking| asking.question == question) else { return false };
        for (index, (id, serials)) in asking.items.iter().enumerate() {
            let Ok(at) = self.items.binary_search_by_key(id, |item| item.id) else { continue };
            let item = &mut self.items[at];
            let verdict =
                |at: usize| verdicts.get(index).and_then(|verdicts| verdicts.get(at)).copied().unwrap_or(false);
            item.verdicts.extend(serials.iter().enumerate().map(|(at, serial)| (*serial, verdict(at))));
        }
        true
    }
}
