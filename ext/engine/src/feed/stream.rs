//! One stream: wakes, who is live, who is behind, and how one becomes the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::behind::Wanting;
use super::browser::{Browser, Browsers, Members, Place, Serial, State};
use super::cohort::{Cohort, Progress, Read};
use super::ephemeral::{Ephemerals, Next};
use super::events::{Output, QuestionId, ReadId, Reason, Row};
use super::item::{Item, Origin};
use super::requests::{Reader, Turn};
use super::tail::Tail;
use crate::session::Queue;

/// Cohorts of one stream that read or wait for answers at a time, beside the live browsers. Each holds one page.
const MAX_COHORTS: usize = 4;
/// How long a stream doesn't read after a read that failed; the time doubles from the first to the last.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

#[derive(Debug)]
pub(super) struct Stream {
    /// As the app calls it.
    name: Arc<str>,
    /// The very queue whose LISTEN was asked for.
    pub queue: Queue,
    listening: bool,
    /// Durable wakes so far.
    wakes: u64,
    browsers: Browsers,
    /// There is one as long as there are live browsers.
    tail: Option<Tail>,
    /// Browsers that are behind and have room.
    wanting: Wanting,
    /// Browsers that are behind and whose read or page is under way.
    cohorts: Vec<Cohort>,
    ephemerals: Ephemerals,
    retry: Option<Retry>,
    /// The highest msg_id that was counted as sent. None until there was a tail: what the first browsers read is history.
    counted: Option<i64>,
    /// Whether it is in the line of those that want to read.
    pub scheduled: bool,
}

#[derive(Debug, Clone, Copy)]
struct Retry {
    at: Instant,
    delay: Duration,
}

impl Stream {
    pub fn new(name: Arc<str>, queue: Queue) -> Self {
        Self {
            name,
            queue,
            listening: false,
            wakes: 0,
            browsers: Browsers::default(),
            tail: None,
            wanting: Wanting::default(),
            cohorts: Vec::new(),
            ephemerals: Ephemerals::default(),
            retry: None,
            counted: None,
            scheduled: false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.browsers.len() == 0
    }

    pub fn connect(&mut self, serial: Serial, browser: Browser) {
        let cursor = browser.cursor;
        self.browsers.insert(serial, browser);
        match self.cohorts.iter_mut().find(|cohort| cohort.is_reading() && cohort.position == cursor) {
            Some(cohort) => {
                cohort.members.insert(serial);
            }
            None => self.wanting.insert(cursor, serial),
        }
    }

    pub fn disconnect(&mut self, serial: Serial, turn: &mut Turn) {
        if let Some(browser) = self.browsers.remove(serial) {
            self.forget(serial, browser.cursor);
            self.advance(turn);
        }
    }

    /// LISTEN is active, so nothing that is committed from now on is missed.
    pub fn listening(&mut self) {
        self.listening = true;
    }

    pub fn listen_refused(&mut self, turn: &mut Turn) {
        self.fail_all(Reason::ListenRefused, turn);
    }

    pub fn durable_wake(&mut self, turn: &mut Turn) {
        self.wakes += 1;
        self.advance(turn);
    }

    pub fn ephemeral_wake(&mut self, text: &str, turn: &mut Turn) {
        let id = turn.requests.next_id();
        match Item::of_wake(id, text, Origin::Wake { before: id, wakes: self.wakes }) {
            Ok(Some(item)) => self.ephemerals.push(item),
            Ok(None) => return,
            Err(error) => turn.requests.log_malformed(turn.now, &self.name, &error.to_string()),
        }
        self.advance(turn);
        if self.ephemerals.exceed(turn.limits) {
            self.fail_all(Reason::StreamStalled, turn);
        }
    }

    pub fn room(&mut self, serial: Serial) {
        if let Some(browser) = self.browsers.get_mut(serial).filter(|browser| browser.state == State::Full) {
            browser.state = State::Behind;
            self.wanting.insert(browser.cursor, serial);
        }
    }

    pub fn rows(&mut self, read: ReadId, rows: Result<Vec<Row>, String>, turn: &mut Turn) {
        let behind = self.cohorts.iter().position(|cohort| cohort.reads(read));
        if behind.is_none() && !self.tail.as_ref().is_some_and(|tail| tail.live.reads(read)) {
            return;
        }
        match rows {
            Ok(rows) => {
                self.retry = None;
                self.count(&rows, behind.is_none(), turn);
                if let Some(cohort) = self.reader(behind) {
                    cohort.take_page(&rows, turn);
                }
            }
            Err(reason) => {
                self.read_failed(&reason, turn);
                match behind {
                    Some(index) => {
                        let cohort = self.cohorts.swap_remove(index);
                        self.read_again(cohort);
                    }
                    None => self.reader(None).into_iter().for_each(Cohort::interrupt),
                }
            }
        }
        self.advance(turn);
    }

    pub fn answers(&mut self, question: QuestionId, verdicts: &[Vec<bool>], turn: &mut Turn) {
        let cohorts = self.cohorts.iter_mut().chain(self.tail.as_mut().map(|tail| &mut tail.live));
        if cohorts.into_iter().any(|cohort| cohort.answer(question, verdicts))
            || self.ephemerals.answer(question, verdicts)
        {
            self.advance(turn);
        }
    }

    /// Does all that can be done now.
    pub fn advance(&mut self, turn: &mut Turn) {
        self.advance_cohorts(turn);
        self.advance_tail(turn);
    }

    /// Whether a cohort could start to read.
    pub fn wants_read(&self, now: Instant) -> bool {
        !self.wanting.is_empty() && self.cohorts.len() < MAX_COHORTS && self.may_read(now)
    }

    /// Starts the cohort whose turn it is.
    pub fn start_read(&mut self, turn: &mut Turn) {
        let Some((position, members)) = self.wanting.pop() else { return };
        let limit = self.browsers.these(&members).map(|(_, browser)| browser.page).max().unwrap_or(1);
        let id = turn.requests.read(turn.queue, Reader::Behind, position, limit);
        let tail = self.tail.as_ref().map(|tail| tail.live.position);
        let mut cohort = Cohort::idle(members, position);
        cohort.start(Read { id, limit, wakes: self.wakes, tail });
        self.cohorts.push(cohort);
    }

    fn may_read(&self, now: Instant) -> bool {
        self.listening && self.retry.is_none_or(|retry| retry.at <= now)
    }

    fn reader(&mut self, behind: Option<usize>) -> Option<&mut Cohort> {
        match behind {
            Some(index) => self.cohorts.get_mut(index),
            None => self.tail.as_mut().map(|tail| &mut tail.live),
        }
    }

    fn advance_cohorts(&mut self, turn: &mut Turn) {
        for index in (0..self.cohorts.len()).rev() {
            match self.cohorts[index].deliver(&self.name, &mut self.browsers, turn) {
                Progress::NoPage | Progress::AwaitsAnswer => {}
                Progress::Finished { read, full } => {
                    let cohort = self.cohorts.swap_remove(index);
                    self.page_finished(cohort, read, full, turn);
                }
            }
        }
        self.cohorts.retain(|cohort| !cohort.members.is_empty());
    }

    fn page_finished(&mut self, mut cohort: Cohort, read: Read, full: bool, turn: &mut Turn) {
        let (browsers, position, wakes) = (&mut self.browsers, cohort.position, (!full).then_some(read.wakes));
        cohort.members.retain(|serial| browsers.offer_waiting(*serial, position, wakes, turn));
        if !full && self.meets_tail(position, read) {
            self.join(&mut cohort, read);
        }
        for serial in &cohort.members {
            if let Some(browser) = self.browsers.get_mut(*serial) {
                browser.continue_behind();
            }
        }
        self.read_again(cohort);
    }

    /// Whether browsers that have seen all rows of this read, and there was none after `position`, have seen all that the
    /// live ones have.
    fn meets_tail(&self, position: i64, read: Read) -> bool {
        match &self.tail {
            None => true,
            Some(Tail { live, .. }) => position >= live.position || read.tail.is_some_and(|tail| live.position <= tail),
        }
    }

    /// Makes the members live, but for those that must read on because ephemeral frames still wait.
    fn join(&mut self, cohort: &mut Cohort, read: Read) {
        let browsers = &mut self.browsers;
        let mut live = Members::new();
        cohort.members.retain(|serial| match browsers.get_mut(*serial).filter(|browser| !browser.has_waiting()) {
            Some(browser) => {
                browser.state = State::Live;
                live.insert(*serial);
                false
            }
            None => true,
        });
        if live.is_empty() {
            return;
        }
        let tail = self.tail.get_or_insert_with(|| Tail::new(cohort.position, read.wakes));
        if cohort.position < tail.live.position {
            tail.lower(cohort.position, read.wakes);
        }
        tail.live.members.extend(live);
        self.counted = self.counted.max(Some(cohort.position));
    }

    fn advance_tail(&mut self, turn: &mut Turn) {
        let may_read = self.may_read(turn.now);
        let Some(tail) = &mut self.tail else { return };
        let rows_done = tail.deliver(&self.name, &mut self.browsers, turn);
        if rows_done && self.hand_out_ephemerals(turn) && may_read {
            if let Some(tail) = self.tail.as_mut().filter(|tail| !tail.live.members.is_empty()) {
                tail.read_on(self.wakes, turn);
            }
        }
        self.drop_empty_tail();
    }

    /// Returns false if one waits for an answer.
    fn hand_out_ephemerals(&mut self, turn: &mut Turn) -> bool {
        while let Some(tail) = &self.tail {
            let place = Place { position: tail.live.position, wakes: tail.covered };
            match tail.next_ephemeral(&mut self.ephemerals, &self.name, &self.browsers, turn) {
                Next::None => break,
                Next::AwaitsAnswer => return false,
                Next::Ready(item) => self.hand_out(&item, place, turn),
            }
        }
        true
    }

    fn hand_out(&mut self, item: &Item, place: Place, turn: &mut Turn) {
        let stream = Arc::clone(&self.name);
        turn.requests.output(Output::Sent {
            queue: turn.queue.clone(),
            stream,
            fanout: self.browsers.len(),
            ephemeral: true,
        });
        for serial in Ephemerals::recipients(item, &self.browsers) {
            let Some(cursor) = self.browsers.get(serial).map(|browser| browser.cursor) else { continue };
            if !self.browsers.offer_ephemeral(serial, &item.frame, place, turn) {
                self.forget(serial, cursor);
            }
        }
    }

    fn read_again(&mut self, cohort: Cohort) {
        for serial in cohort.members {
            self.wanting.insert(cohort.position, serial);
        }
    }

    fn read_failed(&mut self, reason: &str, turn: &mut Turn) {
        turn.requests.log_failed_read(turn.now, turn.queue, reason);
        if self.may_read(turn.now) {
            let delay = self.retry.map_or(RETRY.0, |retry| (2 * retry.delay).min(RETRY.1));
            let at = turn.now + delay;
            self.retry = Some(Retry { at, delay });
            turn.requests.set_timer(at, turn.queue);
        }
    }

    /// A broadcast counts when its rows are read for the live browsers; if there is none, when somebody reads them
    /// first.
    fn count(&mut self, rows: &[Row], for_tail: bool, turn: &mut Turn) {
        let Some(last) = rows.last().map(|row| row.msg_id) else { return };
        let is_new = self.tail.is_none() && self.counted.is_some_and(|counted| counted < last);
        if for_tail || is_new {
            self.counted = self.counted.max(Some(last));
            let stream = Arc::clone(&self.name);
            turn.requests.output(Output::Sent {
                queue: turn.queue.clone(),
                stream,
                fanout: self.browsers.len(),
                ephemeral: false,
            });
        }
    }

    /// Gives all browsers up.
    fn fail_all(&mut self, reason: Reason, turn: &mut Turn) {
        for serial in self.browsers.all().map(|(serial, _)| serial).collect::<Vec<_>>() {
            self.browsers.fail(serial, reason, turn);
        }
        self.tail = None;
        self.wanting = Wanting::default();
        self.cohorts.clear();
        self.ephemerals.clear();
    }

    /// Takes a browser that is gone out of wherever it waits.
    fn forget(&mut self, serial: Serial, cursor: i64) {
        self.wanting.remove(cursor, serial);
        for cohort in self.cohorts.iter_mut().chain(self.tail.as_mut().map(|tail| &mut tail.live)) {
            cohort.members.swap_remove(&serial);
        }
    }

    fn drop_empty_tail(&mut self) {
        if self.tail.as_ref().is_some_and(|tail| tail.live.members.is_empty()) {
            self.tail = None;
        }
    }
}
