//! The live browsers of a stream, and how far its rows were read for them.

use std::sync::Arc;

use super::browser::{Browsers, Members, PAGE};
use super::cohort::{Cohort, Progress, Read};
use super::ephemeral::{Ephemerals, Next};
use super::requests::{Reader, Turn};

#[derive(Debug)]
pub(super) struct Tail {
    pub live: Cohort,
    /// Durable wakes whose rows were all handed out.
    pub covered: u64,
}

impl Tail {
    /// A tail at the end of a page after which there was nothing when the stream had had so many wakes.
    pub fn new(position: i64, covered: u64) -> Self {
        Self { live: Cohort::idle(Members::new(), position), covered }
    }

    /// Moves back to a position behind which there was nothing when the stream had had so many wakes. That is so if
    /// rows were deleted, and if a browser brought a cursor that no row ever had. Live browsers have cursors of their
    /// own, so none gets a row twice.
    pub fn lower(&mut self, position: i64, covered: u64) {
        self.live.interrupt();
        self.live.position = position;
        self.covered = covered;
    }

    /// Hands out rows until one waits for an answer or the page is through. Returns false if one waits.
    pub fn deliver(&mut self, stream: &Arc<str>, browsers: &mut Browsers, turn: &mut Turn) -> bool {
        match self.live.deliver(stream, browsers, turn) {
            Progress::AwaitsAnswer => return false,
            Progress::Finished { read, full: false } => self.covered = read.wakes,
            Progress::Finished { full: true, .. } | Progress::NoPage => {}
        }
        true
    }

    /// The next ephemeral message whose place is here.
    pub fn next_ephemeral(
        &self,
        ephemerals: &mut Ephemerals,
        stream: &Arc<str>,
        browsers: &Browsers,
        turn: &mut Turn,
    ) -> Next {
        if self.live.has_page() {
            return Next::None;
        }
        ephemerals.next(self.covered, stream, browsers, turn)
    }

    /// Asks for the next page if there may be one.
    pub fn read_on(&mut self, wakes: u64, turn: &mut Turn) {
        if !self.live.is_idle() || self.covered >= wakes {
            return;
        }
        let id = turn.requests.read(turn.queue, Reader::Tail, self.live.position, PAGE);
        self.live.start(Read { id, limit: PAGE, wakes, tail: Some(self.live.position) });
    }
}
