//! Browsers that have reached one position and are given the next page together.

use std::sync::Arc;

use super::browser::{Browsers, Members};
use super::events::{QuestionId, ReadId, Row};
use super::item::{Item, Line, Origin};
use super::requests::Turn;

#[derive(Debug)]
pub(super) struct Cohort {
    pub members: Members,
    /// The msg_id up to which rows were handed to all of them.
    pub position: i64,
    work: Work,
}

#[derive(Debug)]
enum Work {
    Idle,
    Reading(Read),
    Delivering { read: Read, full: bool, rows: Line },
}

/// A read, and what was known when it was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    pub id: ReadId,
    pub limit: usize,
    /// Durable wakes of the stream until then: what they speak of is among the rows.
    pub wakes: u64,
    /// The position of the tail until then: the rows up to it were there to be read.
    pub tail: Option<i64>,
}

/// How far a cohort came with its page.
#[derive(Debug)]
pub(super) enum Progress {
    /// It has none.
    NoPage,
    /// Its next row waits for an answer.
    AwaitsAnswer,
    /// It is through with the page of this read.
    Finished { read: Read, full: bool },
}

impl Cohort {
    pub fn idle(members: Members, position: i64) -> Self {
        Self { members, position, work: Work::Idle }
    }

    pub fn is_idle(&self) -> bool {
        matches!(self.work, Work::Idle)
    }

    pub fn is_reading(&self) -> bool {
        matches!(self.work, Work::Reading(_))
    }

    pub fn has_page(&self) -> bool {
        matches!(self.work, Work::Delivering { .. })
    }

    pub fn reads(&self, id: ReadId) -> bool {
        matches!(self.work, Work::Reading(read) if read.id == id)
    }

    pub fn start(&mut self, read: Read) {
        self.work = Work::Reading(read);
    }

    /// Forgets the read or the page that is under way.
    pub fn interrupt(&mut self) {
        self.work = Work::Idle;
    }

    /// The page of the read that is under way.
    pub fn take_page(&mut self, rows: &[Row], turn: &mut Turn) {
        if let Work::Reading(read) = self.work {
            let full = rows.len() >= read.limit;
            let rows = Line::new(rows.iter().map(|row| Item::of_row(turn.requests.next_id(), row)));
            self.work = Work::Delivering { read, full, rows };
        }
    }

    /// Notes an answer. Returns false if the question is not one of this cohort's.
    pub fn answer(&mut self, question: QuestionId, verdicts: &[Vec<bool>]) -> bool {
        match &mut self.work {
            Work::Delivering { rows, .. } => rows.answer(question, verdicts),
            Work::Idle | Work::Reading(_) => false,
        }
    }

    /// Hands out the rows of the page up to the first that waits for an answer. Who has no room or is gone is no member
    /// any more.
    pub fn deliver(&mut self, stream: &Arc<str>, browsers: &mut Browsers, turn: &mut Turn) -> Progress {
        let Work::Delivering { read, full, rows } = &mut self.work else { return Progress::NoPage };
        loop {
            if rows.awaits_answer(browsers.these(&self.members), stream, turn) {
                return Progress::AwaitsAnswer;
            }
            let Some(row) = rows.pop() else { break };
            let Origin::Row(msg_id) = row.origin else { continue };
            self.members.retain(|serial| browsers.offer_row(*serial, &row, msg_id, turn));
            self.position = self.position.max(msg_id);
        }
        let (read, full) = (*read, *full);
        self.work = Work::Idle;
        Progress::Finished { read, full }
    }
}
