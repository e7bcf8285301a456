//! What waits for one connection, how much of it may wait, and what happens when it is more.

use std::collections::VecDeque;

/// Something that waits and counts as so many frames.
pub trait Weight {
    /// Frames it counts for; may be 0.
    fn frames(&self) -> usize;
}

/// What happens to a connection whose waiting frames exceed the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// Its oldest waiting jobs are dropped until the new one fits or none is left.
    DropOldest,
    /// Everything that waits is discarded and the connection ends.
    Disconnect,
}

/// How many frames may wait for one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// 0: no limit.
    pub frames: usize,
    /// What happens above it.
    pub overflow: Overflow,
}

/// What became of a pushed job, and of those before it.
#[derive(Debug, PartialEq, Eq)]
pub enum Pushed<T> {
    /// It waits; these older ones were dropped for it (mostly none).
    Waits(Vec<T>),
    /// It was one too many: it is given back, nothing else changed, and the connection is to end.
    Refused(T),
}

/// The jobs of one connection, in order. The first ones may be under way; those are neither counted nor dropped.
#[derive(Debug)]
pub struct Backlog<T> {
    jobs: VecDeque<T>,
    under_way: usize,
    waiting_frames: usize,
}

/// An idle connection keeps no more room than this.
const IDLE_CAPACITY: usize = 4;

impl<T: Weight> Default for Backlog<T> {
    fn default() -> Self {
        Self { jobs: VecDeque::new(), under_way: 0, waiting_frames: 0 }
    }
}

impl<T: Weight> Backlog<T> {
    /// Adds a job at the end, as far as `limit` allows.
    pub fn push(&mut self, job: T, limit: Limit) -> Pushed<T> {
        let mut dropped = Vec::new();
        if limit.frames > 0 {
            while self.waiting_frames + job.frames() > limit.frames {
                if limit.overflow == Overflow::Disconnect {
                    return Pushed::Refused(job);
                }
                let Some(oldest) = self.jobs.remove(self.under_way) else { break };
                self.waiting_frames -= oldest.frames();
                dropped.push(oldest);
            }
        }
        self.waiting_frames += job.frames();
        self.jobs.push_back(job);
        Pushed::Waits(dropped)
    }

    /// Declares the first `count` jobs to be under way, and all others to be waiting.
    pub fn set_under_way(&mut self, count: usize) {
        let count = count.min(self.jobs.len());
        let (low, high) = (count.min(self.under_way), count.max(self.under_way));
        let frames: usize = self.jobs.range(low..high).map(Weight::frames).sum();
        if count > self.under_way {
            self.waiting_frames -= frames;
        } else {
            self.waiting_frames += frames;
        }
        self.under_way = count;
    }

    /// Takes the first job.
    pub fn pop(&mut self) -> Option<T> {
        let job = self.jobs.pop_front()?;
        if self.under_way > 0 {
            self.under_way -= 1;
        } else {
            self.waiting_frames -= job.frames();
        }
        if self.jobs.is_empty() && self.jobs.capacity() > IDLE_CAPACITY {
            self.jobs = VecDeque::new();
        }
        Some(job)
    }

    /// Takes all jobs, also those under way.
    pub fn take_all(&mut self) -> VecDeque<T> {
        self.under_way = 0;
        self.waiting_frames = 0;
        std::mem::take(&mut self.jobs)
    }

    /// The job at this place.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.jobs.get(index)
    }

    /// The job at this place.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.jobs.get_mut(index)
    }

    /// How many jobs there are.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there is no job.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Frames of the jobs that are not under way.
    pub fn waiting_frames(&self) -> usize {
        self.waiting_frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Item(u32, usize);

    impl Weight for Item {
        fn frames(&self) -> usize {
            self.1
        }
    }

    const fn limit(frames: usize, overflow: Overflow) -> Limit {
        Limit { frames, overflow }
    }

    #[test]
    fn drops_the_oldest_jobs_until_the_new_one_fits() {
        let mut backlog = Backlog::default();
        let limit = limit(4, Overflow::DropOldest);
        assert_eq!(backlog.push(Item(1, 2), limit), Pushed::Waits(vec![]));
        assert_eq!(backlog.push(Item(2, 2), limit), Pushed::Waits(vec![]));
        assert_eq!(backlog.push(Item(3, 3), limit), Pushed::Waits(vec![Item(1, 2), Item(2, 2)]));
        assert_eq!(backlog.waiting_frames(), 3);
    }

    #[test]
    fn a_job_larger_than_the_limit_waits_alone() {
        let mut backlog = Backlog::default();
        let limit = limit(2, Overflow::DropOldest);
        backlog.push(Item(1, 1), limit);
        assert_eq!(backlog.push(Item(2, 9), limit), Pushed::Waits(vec![Item(1, 1)]));
        assert_eq!(backlog.pop(), Some(Item(2, 9)));
    }

    #[test]
    fn a_job_under_way_is_neither_counted_nor_dropped() {
        let mut backlog = Backlog::default();
        let limit = limit(2, Overflow::DropOldest);
        backlog.push(Item(1, 2), limit);
        backlog.set_under_way(1);
        backlog.push(Item(2, 2), limit);
        assert_eq!(backlog.push(Item(3, 2), limit), Pushed::Waits(vec![Item(2, 2)]));
        assert_eq!(backlog.pop(), Some(Item(1, 2)));
        assert_eq!(backlog.pop(), Some(Item(3, 2)));
    }

    #[test]
    fn refuses_what_is_too_much_when_told_to_disconnect() {
        let mut backlog = Backlog::default();
        let limit = limit(1, Overflow::Disconnect);
        assert_eq!(backlog.push(Item(1, 1), limit), Pushed::Waits(vec![]));
        assert_eq!(backlog.push(Item(2, 1), limit), Pushed::Refused(Item(2, 1)));
        assert_eq!(backlog.len(), 1);
    }

    #[test]
    fn an_idle_backlog_keeps_little_room() {
        let mut backlog = Backlog::default();
        for id in 0..100 {
            backlog.push(Item(id, 1), limit(0, Overflow::DropOldest));
        }
        while backlog.pop().is_some() {}
        assert!(backlog.jobs.capacity() <= IDLE_CAPACITY);
    }

    proptest! {
        #[test]
        fn keeps_the_order_the_count_and_the_limit(
            steps in prop::collection::vec((0..3u8, 0..4usize), 1..200),
            frames in 0..6usize,
        ) {
            let limit = limit(frames, Overflow::DropOldest);
            let mut backlog = Backlog::default();
            let (mut next, mut last_popped) = (0, None);
            for (action, size) in steps {
                match action {
                    0 => {
                        next += 1;
                        let Pushed::Waits(dropped) = backlog.push(Item(next, size), limit) else { unreachable!() };
                        prop_assert!(dropped.windows(2).all(|pair| pair[0].0 < pair[1].0));
                        prop_assert!(frames == 0 || backlog.waiting_frames() <= frames.max(size));
                    }
                    1 => {
                        if let Some(Item(id, _)) = backlog.pop() {
                            prop_assert!(last_popped < Some(id));
                            last_popped = Some(id);
                        }
                    }
                    _ => backlog.set_under_way(size),
                }
                let counted: usize = backlog.jobs.iter().skip(backlog.under_way).map(Weight::frames).sum();
                prop_assert_eq!(counted, backlog.waiting_frames());
            }
        }
    }
}
