//! One browser: its cursor, and the ephemeral frames that wait for it.

use std::collections::VecDeque;
use std::sync::Arc;

use indexmap::{IndexMap, IndexSet};

use super::events::{Output, Reason};
use super::item::Item;
use super::requests::Turn;
use crate::frame::Frame;
use crate::pump::Offer;

/// Rows of a page.
pub(super) const PAGE: usize = 500;
/// Rows of the first page for a browser whose outlet was full, and of the smallest one. What does not fit is read
/// again, so a page should not be much larger than the room.
const SMALL_PAGE: usize = 32;

/// A browser's number in the order of their connects, never used twice: unlike a key it cannot mean another one later.
pub(super) type Serial = u64;

/// Browsers that are treated alike.
pub(super) type Members = IndexSet<Serial>;

/// Where a browser gets its frames from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// From the tail.
    Live,
    /// From reads of its own, until it meets the tail.
    Behind,
    /// From nowhere until its outlet has room.
    Full,
}

/// A place among the rows of a stream. Either of the two says that the rows before it are through: rows can be deleted, so
/// that nobody ever sees their positions, and pages can go on and on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// After the rows up to this msg_id.
    pub position: i64,
    /// After the rows that this number of durable wakes speaks of.
    pub wakes: u64,
}

#[derive(Debug)]
pub(super) struct Browser {
    pub key: u32,
    pub id: Box<str>,
    pub state: State,
    /// The msg_id up to which every row was offered to it or kept from it.
    pub cursor: i64,
    /// Rows that its next page may have.
    pub page: usize,
    /// Rows that its outlet took since the last page began.
    taken: usize,
    /// Ephemeral frames, each with the rows that come first. Only a browser that is behind has some.
    waiting: VecDeque<(Place, Arc<Frame>)>,
    waiting_bytes: usize,
}

/// What became of a browser when something was offered to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It goes on.
    Served,
    /// Its outlet has no room for the row.
    Full,
    /// It must be given up.
    Failed(Reason),
    /// Its connection has ended.
    Dead,
}

impl Browser {
    pub fn new(key: u32, id: Box<str>, cursor: i64) -> Self {
        let state = State::Behind;
        Self { key, id, state, cursor, page: PAGE, taken: 0, waiting: VecDeque::new(), waiting_bytes: 0 }
    }

    /// Offers a row, after the ephemeral frames that come before it.
    fn offer_row(&mut self, serial: Serial, row: &Item, msg_id: i64, turn: &mut Turn) -> Outcome {
        if !row.is_due(serial, self) {
            return Outcome::Served;
        }
        let before = self.offer_waiting(msg_id - 1, None, turn);
        if before != Outcome::Served {
            return before;
        }
        if row.is_visible(serial, self) {
            match turn.outlets.offer(self.key, &row.frame) {
                Offer::Taken => self.taken += 1,
                Offer::Full => return Outcome::Full,
                Offer::Closed => return Outcome::Dead,
            }
        }
        self.cursor = msg_id;
        Outcome::Served
    }

    /// Offers the waiting ephemeral frames whose place is reached: the rows up to a position were offered, or all that
    /// so many wakes speak of.
    fn offer_waiting(&mut self, position: i64, wakes: Option<u64>, turn: &mut Turn) -> Outcome {
        let reached = |place: &Place| place.position <= position || wakes.is_some_and(|wakes| place.wakes <= wakes);
        while self.waiting.front().is_some_and(|(place, _)| reached(place)) {
            let Some((_, frame)) = self.waiting.pop_front() else { break };
            self.waiting_bytes -= frame.bytes.len();
            let outcome = offer_ephemeral(self.key, &frame, turn);
            if outcome != Outcome::Served {
                return outcome;
            }
        }
        Outcome::Served
    }

    /// Offers an ephemeral frame as soon as its place is reached.
    fn offer_ephemeral(&mut self, frame: &Arc<Frame>, place: Place, turn: &mut Turn) -> Outcome {
        if self.state == State::Live || (self.waiting.is_empty() && self.cursor >= place.position) {
            return offer_ephemeral(self.key, frame, turn);
        }
        self.waiting.push_back((place, Arc::clone(frame)));
        self.waiting_bytes += frame.bytes.len();
        if self.waiting.len() > turn.limits.frames || self.waiting_bytes > turn.limits.bytes {
            return Outcome::Failed(Reason::TooFarBehind);
        }
        Outcome::Served
    }

    /// Its outlet is full. The next page is about as large as the room that there was this time.
    fn stop(&mut self) {
        let room = if self.state == State::Live { 0 } else { self.taken };
        self.page = (2 * room).clamp(SMALL_PAGE, PAGE);
        self.taken = 0;
        self.state = State::Full;
    }

    /// Whether ephemeral frames wait for rows that it has not got.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// It took all of a page and gets another one.
    pub fn continue_behind(&mut self) {
        self.page = (4 * self.page).min(PAGE);
        self.taken = 0;
    }
}

fn offer_ephemeral(key: u32, frame: &Arc<Frame>, turn: &mut Turn) -> Outcome {
    match turn.outlets.offer(key, frame) {
        Offer::Taken => Outcome::Served,
        Offer::Full => Outcome::Failed(Reason::OutletFull),
        Offer::Closed => Outcome::Dead,
    }
}

/// The browsers of a stream.
#[derive(Debug, Default)]
pub(super) struct Browsers(IndexMap<Serial, Browser>);

impl Browsers {
    pub fn insert(&mut self, serial: Serial, browser: Browser) {
        self.0.insert(serial, browser);
    }

    pub fn remove(&mut self, serial: Serial) -> Option<Browser> {
        self.0.swap_remove(&serial)
    }

    pub fn get(&self, serial: Serial) -> Option<&Browser> {
        self.0.get(&serial)
    }

    pub fn get_mut(&mut self, serial: Serial) -> Option<&mut Browser> {
        self.0.get_mut(&serial)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn all(&self) -> impl Iterator<Item = (Serial, &Browser)> + Clone {
        self.0.iter().map(|(serial, browser)| (*serial, browser))
    }

    pub fn these<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Serial, &'a Browser)> + Clone {
        members.iter().filter_map(|serial| Some((*serial, self.0.get(serial)?)))
    }

    /// Offers a row. Returns false if the browser has no part in what follows: its outlet is full, or it is gone.
    pub fn offer_row(&mut self, serial: Serial, row: &Item, msg_id: i64, turn: &mut Turn) -> bool {
        let outcome = self.0.get_mut(&serial).map(|browser| browser.offer_row(serial, row, msg_id, turn));
        self.settle(serial, outcome, turn)
    }

    /// Offers the ephemeral frames whose place is reached: see [`Browser::offer_waiting`]. Returns false if the browser is
    /// gone.
    pub fn offer_waiting(&mut self, serial: Serial, position: i64, wakes: Option<u64>, turn: &mut Turn) -> bool {
        let outcome = self.0.get_mut(&serial).map(|browser| browser.offer_waiting(position, wakes, turn));
        self.settle(serial, outcome, turn)
    }

    /// Offers an ephemeral frame, at once or when its place is reached. Returns false if the browser is gone.
    pub fn offer_ephemeral(&mut self, serial: Serial, frame: &Arc<Frame>, place: Place, turn: &mut Turn) -> bool {
        let outcome = self.0.get_mut(&serial).map(|browser| browser.offer_ephemeral(frame, place, turn));
        self.settle(serial, outcome, turn)
    }

    /// Gives a browser up.
    pub fn fail(&mut self, serial: Serial, reason: Reason, turn: &mut Turn) {
        if let Some(browser) = self.remove(serial) {
            turn.requests.output(Output::Died { key: browser.key, reason });
        }
    }

    fn settle(&mut self, serial: Serial, outcome: Option<Outcome>, turn: &mut Turn) -> bool {
        match outcome {
            Some(Outcome::Served) => return true,
            Some(Outcome::Full) => {
                if let Some(browser) = self.0.get_mut(&serial) {
                    browser.stop();
                }
            }
            Some(Outcome::Failed(reason)) => self.fail(serial, reason, turn),
            Some(Outcome::Dead) => {
                self.remove(serial);
            }
            None => {}
        }
        false
    }
}
