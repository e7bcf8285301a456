//! What waits for one connection, in the order in which it leaves. Knows neither locks nor sockets.
//!
//! A frame's life: [`Queue::push`] or [`Queue::post`], [`Queue::next_batch`] (its bytes are given to a system call),
//! [`Queue::wrote`] (the call took so many of them; the cursor moves, acknowledgements fall due).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::job::{Item, Job};
use super::limits::{Limit, Overflow, BOUND, FLEETING};
use crate::frame::Frame;

/// Frames that leave in one system call at most.
pub(super) const BATCH_FRAMES: usize = 64;
/// Bytes after which a batch is closed: no socket takes more at once.
const BATCH_BYTES: usize = 1 << 20;
/// An idle connection keeps no more room than this.
const IDLE_CAPACITY: usize = 4;

#[derive(Debug)]
enum Entry {
    Item {
        item: Item,
        deadline: Duration,
        /// The number of the job it came with; None if nobody waits for an acknowledgement.
        job: Option<u64>,
    },
    /// The end of one job, or of several that had nothing new.
    Ack {
        job: u64,
        jobs: usize,
        accepted: Accepted,
    },
    Close,
}

/// What an acknowledgement says when its turn comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Accepted {
    /// The highest of the jobs that say so themselves.
    batch_max: i64,
    /// Whether there was a job that says the cursor.
    cursor: bool,
}

/// What is next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The batch, from this byte of its first frame on.
    Write { offset: usize },
    /// Nothing waits.
    Nothing,
    /// The next message has no bytes, for this reason.
    Broken(Arc<str>),
    /// Everything that was to be written is, and the connection is to be closed.
    Close,
}

/// More waits than may: the connection is to end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overflowed {
    /// Jobs that are lost by that, the one that was one too many included.
    pub jobs: usize,
}

/// What became of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Posted {
    /// It waits. So many older jobs were dropped for it, whose frames the connection does not get.
    Waits { dropped: usize },
    /// It was one too many.
    Overflowed(Overflowed),
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Queue {
    entries: VecDeque<Entry>,
    /// Bytes of the first frame that the socket has.
    sent: usize,
    /// The highest durable position that the socket has whole.
    cursor: i64,
    /// The highest durable position that the socket has or that waits.
    queued_to: i64,
    frames: usize,
    bytes: usize,
    /// Frames without a position, and their bytes.
    fleeting: usize,
    fleeting_bytes: usize,
    last_job: u64,
    /// Jobs up to this one have begun: nothing of them is dropped.
    begun_job: u64,
    /// The job of the last frame that was written whole.
    written_job: u64,
}

impl Queue {
    pub fn new(cursor: i64) -> Self {
        Self {
            entries: VecDeque::new(),
            sent: 0,
            cursor,
            queued_to: cursor,
            frames: 0,
            bytes: 0,
            fleeting: 0,
            fleeting_bytes: 0,
            last_job: 0,
            begun_job: 0,
            written_job: 0,
        }
    }

    pub fn cursor(&self) -> i64 {
        self.cursor
    }

    /// The highest durable position that the connection has or that waits.
    pub fn queued_to(&self) -> i64 {
        self.queued_to
    }

    /// Whether the connection has this durable message, or it waits.
    pub fn has(&self, msg_id: i64) -> bool {
        msg_id <= self.queued_to
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Frames that wait or are being written.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Whether there is no room for this frame. One of the archive can be read again later.
    pub fn is_full(&self, frame: &Frame) -> bool {
        match frame.msg_id {
            Some(_) => self.frames > 0 && (self.frames >= BOUND.frames || self.bytes + frame.bytes.len() > BOUND.bytes),
            None => self.is_full_of_fleeting(frame),
        }
    }

    /// Whether more waits that can't be read again than may, whatever else waits.
    fn is_full_of_fleeting(&self, frame: &Frame) -> bool {
        let full = self.fleeting >= FLEETING.frames || self.fleeting_bytes + frame.bytes.len() > FLEETING.bytes;
        self.fleeting > 0 && full
    }

    /// Whether so much has left that a page of the archive fits again.
    pub fn has_room(&self) -> bool {
        self.frames <= BOUND.frames / 2 && self.bytes <= BOUND.bytes / 2
    }

    /// How long the socket may take no byte of what is next.
    pub fn deadline(&self) -> Duration {
        self.entries
            .iter()
            .find_map(|entry| match entry {
                Entry::Item { deadline, .. } => Some(*deadline),
                _ => None,
            })
            .unwrap_or_default()
    }

    /// Adds a message that nobody acknowledges. False: the connection has it, or it waits.
    pub fn push(&mut self, item: Item, deadline: Duration) -> Result<bool, Overflowed> {
        match item.msg_id() {
            Some(msg_id) if self.has(msg_id) => return Ok(false),
            Some(_) => {}
            None => self.check_fleeting(&item)?,
        }
        self.add(item, deadline, None);
        Ok(true)
    }

    fn check_fleeting(&self, item: &Item) -> Result<(), Overflowed> {
        match item {
            Item::Frame(frame) if self.is_full_of_fleeting(frame) => Err(Overflowed { jobs: self.jobs() }),
            _ => Ok(()),
        }
    }

    /// Adds a job, as far as `limit` allows.
    pub fn post(&mut self, job: Job, limit: Limit) -> Posted {
        let waiting = if limit.frames > 0 { self.waiting() } else { 0 };
        let new = job.items.iter().filter(|item| item.msg_id().is_none_or(|msg_id| !self.has(msg_id))).count();
        let mut dropped = 0;
        // A batch for an empty queue always waits, whatever its size: it is one page of the archive at most.
        if waiting > 0 && new > 0 && waiting + new > limit.frames {
            match limit.overflow {
                Overflow::Disconnect => return Posted::Overflowed(Overflowed { jobs: self.jobs() + 1 }),
                Overflow::DropOldest => dropped = self.drop_oldest(job.known_from, waiting + new - limit.frames),
            }
        }
        self.last_job += 1;
        let number = self.last_job;
        let accepted = match job.batch_max {
            Some(batch_max) => Accepted { batch_max, cursor: false },
            None => Accepted { batch_max: i64::MIN, cursor: true },
        };
        for item in job.items {
            if item.msg_id().is_none_or(|msg_id| !self.has(msg_id)) {
                self.add(item, job.deadline, Some(number));
            }
        }
        self.acknowledge(number, accepted);
        Posted::Waits { dropped }
    }

    /// Closes the connection as soon as everything before this has left.
    pub fn close(&mut self) {
        self.entries.push_back(Entry::Close);
    }

    /// Fills `batch` with the frames that are next, and `acks` with what needs no writing.
    pub fn next_batch(&mut self, batch: &mut Vec<Arc<Frame>>, acks: &mut Vec<i64>) -> Next {
        batch.clear();
        self.settle(acks);
        let mut bytes = 0;
        for entry in &self.entries {
            match entry {
                Entry::Ack { .. } => {}
                Entry::Item { item: Item::Frame(frame), job, .. } => {
                    batch.push(Arc::clone(frame));
                    self.begun_job = self.begun_job.max(job.unwrap_or(0));
                    bytes += frame.bytes.len();
                    if batch.len() == BATCH_FRAMES || bytes >= BATCH_BYTES {
                        break;
                    }
                }
                Entry::Item { item: Item::Broken { reason, .. }, .. } if batch.is_empty() => {
                    return Next::Broken(Arc::clone(reason));
                }
                Entry::Close if batch.is_empty() => return Next::Close,
                Entry::Item { .. } | Entry::Close => break,
            }
        }
        if batch.is_empty() {
            Next::Nothing
        } else {
            Next::Write { offset: self.sent }
        }
    }

    /// Notes that the socket took `bytes` of the batch. Returns how many frames it has whole by that; `acks` gets what
    /// falls due.
    pub fn wrote(&mut self, bytes: usize, acks: &mut Vec<i64>) -> usize {
        self.sent += bytes;
        let before = self.frames;
        while let Some(Entry::Item { item: Item::Frame(frame), job, .. }) = self.entries.front() {
            let length = frame.bytes.len();
            if self.sent < length {
                break;
            }
            self.sent -= length;
            if let Some(msg_id) = frame.msg_id {
                self.cursor = self.cursor.max(msg_id);
            }
            self.written_job = self.written_job.max(job.unwrap_or(0));
            self.remove_front();
            self.settle(acks);
        }
        // What the system call did not take has not begun, but for a frame that is torn now.
        self.begun_job = match self.entries.front() {
            Some(Entry::Item { job: Some(job), .. }) if self.sent > 0 => *job,
            _ => self.written_job,
        };
        if self.entries.is_empty() && self.entries.capacity() > IDLE_CAPACITY {
            self.entries = VecDeque::new();
        }
        before - self.frames
    }

    /// Discards everything. Returns how many frames and jobs that were.
    pub fn discard(&mut self) -> (usize, usize) {
        let discarded = (self.frames, self.jobs());
        *self = Self { queued_to: self.cursor, ..Self::new(self.cursor) };
        discarded
    }

    fn jobs(&self) -> usize {
        self.entries.iter().map(|entry| if let Entry::Ack { jobs, .. } = entry { *jobs } else { 0 }).sum()
    }

    /// Frames of the jobs that have not begun.
    fn waiting(&self) -> usize {
        self.entries.iter().filter(|entry| self.is_droppable(entry)).count()
    }

    fn is_droppable(&self, entry: &Entry) -> bool {
        matches!(entry, Entry::Item { job: Some(job), .. } if *job > self.begun_job)
    }

    /// Drops the oldest jobs that have not begun, until `excess` frames are gone. A job with messages from `known_from`
    /// on stays: whoever posts them again would not post them a third time. Returns how many jobs are dropped.
    fn drop_oldest(&mut self, known_from: Option<i64>, mut excess: usize) -> usize {
        let (mut drop_to, mut jobs) = (self.begun_job, 0);
        let first_known = known_from.and_then(|from| {
            self.entries.iter().find(|entry| position(entry).is_some_and(|msg_id| msg_id >= from)).and_then(number)
        });
        for entry in self.entries.iter().filter(|entry| self.is_droppable(entry)) {
            let Some(job) = number(entry) else { continue };
            if job != drop_to {
                if excess == 0 || first_known.is_some_and(|known| known <= job) {
                    break;
                }
                drop_to = job;
                jobs += 1;
            }
            excess = excess.saturating_sub(1);
        }
        let begun_job = self.begun_job;
        for entry in std::mem::take(&mut self.entries) {
            match &entry {
                Entry::Item { item, job: Some(job), .. } if *job > begun_job && *job <= drop_to => self.subtract(item),
                Entry::Ack { job, .. } if *job > begun_job && *job <= drop_to => {}
                _ => self.entries.push_back(entry),
            }
        }
        self.queued_to = self.entries.iter().filter_map(position).max().unwrap_or(self.cursor).max(self.cursor);
        jobs
    }

    fn add(&mut self, item: Item, deadline: Duration, job: Option<u64>) {
        self.frames += 1;
        if let Some(msg_id) = item.msg_id() {
            self.queued_to = msg_id;
        }
        if let Item::Frame(frame) = &item {
            self.bytes += frame.bytes.len();
            if frame.msg_id.is_none() {
                self.fleeting += 1;
                self.fleeting_bytes += frame.bytes.len();
            }
        }
        self.entries.push_back(Entry::Item { item, deadline, job });
    }

    fn subtract(&mut self, item: &Item) {
        self.frames -= 1;
        if let Item::Frame(frame) = item {
            self.bytes -= frame.bytes.len();
            if frame.msg_id.is_none() {
                self.fleeting -= 1;
                self.fleeting_bytes -= frame.bytes.len();
            }
        }
    }

    fn remove_front(&mut self) {
        if let Some(Entry::Item { item, .. }) = self.entries.pop_front() {
            self.subtract(&item);
        }
    }

    /// One entry for jobs that follow each other with nothing between them: a stalled connection must not gather them.
    fn acknowledge(&mut self, number: u64, accepted: Accepted) {
        match self.entries.back_mut() {
            Some(Entry::Ack { job, jobs, accepted: earlier }) => {
                *job = number;
                *jobs += 1;
                earlier.batch_max = earlier.batch_max.max(accepted.batch_max);
                earlier.cursor |= accepted.cursor;
            }
            _ => self.entries.push_back(Entry::Ack { job: number, jobs: 1, accepted }),
        }
    }

    /// Acknowledges the jobs that have nothing left to write.
    fn settle(&mut self, acks: &mut Vec<i64>) {
        while let Some(Entry::Ack { jobs, accepted, .. }) = self.entries.front() {
            let accepted_max = if accepted.cursor { accepted.batch_max.max(self.cursor) } else { accepted.batch_max };
            acks.extend(std::iter::repeat_n(accepted_max, *jobs));
            self.entries.pop_front();
        }
    }
}

fn number(entry: &Entry) -> Option<u64> {
    match entry {
        Entry::Item { job, .. } => *job,
        _ => None,
    }
}

fn position(entry: &Entry) -> Option<i64> {
    match entry {
        Entry::Item { item, .. } => item.msg_id(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
