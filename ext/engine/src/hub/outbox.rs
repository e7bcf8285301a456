//! What waits for one worker, and what is left out when it reads slowly.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;

use bytes::Bytes;

use crate::session::Queue;

/// Bytes that may wait for a worker that reads, for each frame of its hard limit. The longest NOTIFY has 8,000 bytes and
/// 48,000 as JSON: never less room than the frames of the hard limit take.
const BYTES_PER_FRAME: usize = 64 * 1024;
/// Memory that a waiting frame takes beside its bytes: the queue's entry, the allocation's head and its spare room.
const FRAME_OVERHEAD: usize = 192;

/// When an outbox leaves wakes out, and when it is too much.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Durable wakes that may wait although an earlier one of the same stream waits too.
    pub durable: usize,
    /// Frames that are never dropped (acks, status, ephemeral wakes) that may wait for a worker that reads nothing. A
    /// worker that reads, only slower than PostgreSQL sends in a burst, may have more: 64 KiB of memory for each.
    pub hard: usize,
}

impl Limits {
    /// Memory that the frames of one worker may take when they are more than [`Self::hard`].
    fn bytes(self) -> usize {
        self.hard.saturating_mul(BYTES_PER_FRAME)
    }
}

/// One FIFO of frames. Bounded by [`Limits`] and by the number of streams: beyond the durable limit, a stream that has
/// a durable wake waiting gets no second one, since the one makes the worker read all there is; a stream that has none
/// always gets one. So a worker that reads again learns of every stream that changed.
#[derive(Debug)]
pub struct Outbox {
    limits: Limits,
    frames: VecDeque<(Bytes, Option<Queue>)>,
    /// Bytes of the first frame that the socket has taken.
    taken: usize,
    durable: HashMap<Queue, usize>,
    durable_frames: usize,
    /// Memory of all frames, with [`FRAME_OVERHEAD`].
    bytes: usize,
}

impl Outbox {
    pub fn new(limits: Limits) -> Self {
        Self { limits, frames: VecDeque::new(), taken: 0, durable: HashMap::new(), durable_frames: 0, bytes: 0 }
    }

    /// Adds a frame that is never dropped; the caller looks at [`Self::is_overfull`] and [`Self::is_too_large`].
    pub fn push(&mut self, frame: Bytes) {
        self.append(frame, None);
    }

    /// Adds a durable wake of `queue`. Returns false if it is redundant and was left out.
    pub fn push_durable(&mut self, queue: &Queue, frame: Bytes) -> bool {
        let over = self.durable_frames >= self.limits.durable;
        if over && self.durable.contains_key(queue) {
            return false;
        }
        *self.durable.entry(queue.clone()).or_default() += 1;
        self.durable_frames += 1;
        self.append(frame, Some(queue.clone()));
        true
    }

    fn append(&mut self, frame: Bytes, durable: Option<Queue>) {
        self.bytes += frame.len() + FRAME_OVERHEAD;
        self.frames.push_back((frame, durable));
    }

    /// Frames that wait, the one that the socket has a part of included.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Frames that are never dropped.
    pub fn kept(&self) -> usize {
        self.frames.len() - self.durable_frames
    }

    /// Whether more frames wait than a worker may have that reads nothing.
    pub fn is_overfull(&self) -> bool {
        self.kept() > self.limits.hard
    }

    /// Whether they also take more memory than a worker may have that reads.
    pub fn is_too_large(&self) -> bool {
        self.is_overfull() && self.bytes > self.limits.bytes()
    }

    /// Fills `slices` with the bytes to write next, and returns the number of pieces.
    pub fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.taken;
        let mut count = 0;
        for (slice, (frame, _)) in slices.iter_mut().zip(&self.frames) {
            *slice = IoSlice::new(&frame[skip..]);
            skip = 0;
            count += 1;
        }
        count
    }

    /// Forgets `bytes` that the socket took. Returns the number of frames that it has taken whole.
    pub fn took(&mut self, bytes: usize) -> usize {
        let mut left = self.taken + bytes;
        let mut through = 0;
        while let Some((frame, _)) = self.frames.front() {
            if left < frame.len() {
                break;
            }
            left -= frame.len();
            self.bytes -= frame.len() + FRAME_OVERHEAD;
            through += 1;
            if let Some((_, Some(queue))) = self.frames.pop_front() {
                self.forget(&queue);
            }
        }
        self.taken = left;
        through
    }

    fn forget(&mut self, queue: &Queue) {
        self.durable_frames -= 1;
        if let Some(waiting) = self.durable.get_mut(queue) {
            *waiting -= 1;
            if *waiting == 0 {
                self.durable.remove(queue);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outbox(durable: usize, hard: usize) -> Outbox {
        Outbox::new(Limits { durable, hard })
    }

    fn frame(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    /// All that waits, as one text.
    fn waiting(outbox: &Outbox) -> String {
        let mut slices = [IoSlice::new(&[]); 64];
        let count = outbox.fill(&mut slices);
        slices[..count].iter().map(|slice| std::str::from_utf8(slice).unwrap()).collect()
    }

    #[test]
    fn below_the_limit_every_durable_wake_waits_and_above_it_one_a_stream() {
        let mut outbox = outbox(3, 8);
        let (chat, news): (Queue, Queue) = ("chat".into(), "news".into());
        let queued: Vec<bool> = (0..5).map(|_| outbox.push_durable(&chat, frame("c"))).collect();
        assert_eq!(queued, [true, true, true, false, false]);
        assert!(outbox.push_durable(&news, frame("n")));
        assert!(!outbox.push_durable(&news, frame("n")));
        assert_eq!(waiting(&outbox), "cccn");
    }

    #[test]
    fn a_stream_whose_wakes_are_through_gets_another() {
        let mut outbox = outbox(1, 8);
        let chat: Queue = "chat".into();
        assert!(outbox.push_durable(&chat, frame("abc")));
        assert_eq!(outbox.took(2), 0);
        assert!(!outbox.push_durable(&chat, frame("def")), "the worker has not read the one before");
        assert_eq!(outbox.took(1), 1);
        assert!(outbox.push_durable(&chat, frame("ghi")));
        assert_eq!(waiting(&outbox), "ghi");
    }

    #[test]
    fn of_forty_streams_with_a_limit_of_four_forty_are_woken() {
        let mut outbox = outbox(4, 8);
        let queues: Vec<Queue> = (0..40).map(|i| format!("s{i}").into()).collect();
        for queue in queues.iter().chain(&queues).chain(&queues) {
            outbox.push_durable(queue, Bytes::from(format!("{queue} ")));
        }
        for queue in &queues {
            assert!(waiting(&outbox).split(' ').any(|seen| seen == &**queue), "{queue}");
        }
        assert!(outbox.len() <= 44);
    }

    #[test]
    fn only_frames_that_are_never_dropped_make_it_overfull() {
        let mut outbox = outbox(100, 2);
        for i in 0..50 {
            outbox.push_durable(&format!("s{i}").into(), frame("d"));
        }
        outbox.push(frame("a"));
        outbox.push(frame("b"));
        assert!(!outbox.is_overfull());
        outbox.push(frame("c"));
        assert!(outbox.is_overfull());
        outbox.took(51);
        assert!(!outbox.is_overfull());
        assert_eq!(waiting(&outbox), "bc");
    }

    /// Invariant 12, for a worker that reads more slowly than PostgreSQL sends.
    #[test]
    fn memory_is_limited_whatever_the_size_of_the_frames() {
        for size in [1, 500, 48_000] {
            let mut outbox = outbox(4, 8);
            let frame = Bytes::from(vec![b'x'; size]);
            while !outbox.is_too_large() {
                outbox.push(frame.clone());
            }
            assert!(outbox.bytes <= 8 * BYTES_PER_FRAME + size + FRAME_OVERHEAD, "{size}");
        }
    }

    /// As a listener of Ruby's may send them.
    #[test]
    fn frames_of_any_size_may_wait_up_to_the_limit_in_frames() {
        let mut outbox = outbox(4, 8);
        let frame = Bytes::from(vec![b'x'; 300_000]);
        (0..8).for_each(|_| outbox.push(frame.clone()));
        assert!(!outbox.is_overfull() && !outbox.is_too_large());
        outbox.push(frame);
        assert!(outbox.is_too_large());
    }

    proptest! {
        #[test]
        fn bytes_leave_in_order_however_the_socket_takes_them(
            frames in prop::collection::vec((prop::option::of(0usize..4), "[a-z]{1,9}"), 0..60),
            takes in prop::collection::vec(1usize..30, 1..20),
        ) {
            let mut outbox = outbox(4, usize::MAX);
            let (mut expected, mut through) = (String::new(), 0);
            for (stream, text) in &frames {
                let bytes = Bytes::from(text.clone());
                let queued = match stream {
                    Some(stream) => outbox.push_durable(&format!("s{stream}").into(), bytes),
                    None => { outbox.push(bytes); true }
                };
                if queued { expected += text }
            }
            let count = outbox.len();
            let mut seen = String::new();
            for take in takes.iter().cycle() {
                let text = waiting(&outbox);
                if text.is_empty() { break }
                let taken = (*take).min(text.len());
                seen += &text[..taken];
                through += outbox.took(taken);
            }
            prop_assert_eq!(seen, expected);
            prop_assert_eq!(through, count);
            prop_assert!(outbox.durable.is_empty() && outbox.durable_frames == 0 && outbox.bytes == 0);
        }
    }
}
