//! Queues that somebody wants to be woken for: the feed itself, and Ruby for the connections that it serves.

use std::collections::HashMap;
use std::sync::Arc;

use crate::session::{Queue, Wishes};

/// Keeps [`Wishes`] what both want together.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    wishes: Wishes,
    queues: HashMap<Queue, Wanters>,
}

#[derive(Debug, Default)]
struct Wanters {
    feed: Option<Wanter>,
    ruby: Option<Wanter>,
}

#[derive(Debug)]
struct Wanter {
    /// The very queue that it wants.
    queue: Queue,
    /// It waits for the LISTEN.
    waits: bool,
}

impl Wanter {
    fn new(queue: &Queue) -> Option<Self> {
        Some(Self { queue: queue.clone(), waits: true })
    }
}

/// Who waited for a LISTEN.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Waited {
    pub feed: Option<Queue>,
    pub ruby: Option<Queue>,
}

impl Wanted {
    /// What a source of wakes follows.
    pub fn wishes(&self) -> Wishes {
        self.wishes.clone()
    }

    pub fn want_for_feed(&mut self, queue: &Queue) {
        self.queues.entry(queue.clone()).or_default().feed = Wanter::new(queue);
        self.wishes.want(queue);
    }

    pub fn want_for_ruby(&mut self, queue: &Queue) {
        self.queues.entry(queue.clone()).or_default().ruby = Wanter::new(queue);
        self.wishes.want(queue);
    }

    pub fn unwant_for_feed(&mut self, queue: &Queue) {
        self.unwant(queue, |wanters| wanters.feed = None);
    }

    pub fn unwant_for_ruby(&mut self, queue: &Queue) {
        self.unwant(queue, |wanters| wanters.ruby = None);
    }

    /// The feed begins anew and wants nothing yet. Returns how many queues it wanted.
    pub fn forget_feed(&mut self) -> usize {
        let queues = self.queues.keys().filter(|queue| self.is_feeds(queue)).cloned().collect::<Vec<_>>();
        queues.iter().for_each(|queue| self.unwant_for_feed(queue));
        queues.len()
    }

    fn unwant(&mut self, queue: &Queue, remove: impl FnOnce(&mut Wanters)) {
        let Some(wanters) = self.queues.get_mut(queue) else { return };
        remove(wanters);
        if wanters.feed.is_none() && wanters.ruby.is_none() {
            self.queues.remove(queue);
            self.wishes.unwant(queue);
        }
    }

    /// Whether the feed wants wakes of this queue.
    pub fn is_feeds(&self, queue: &Queue) -> bool {
        self.queues.get(queue).is_some_and(|wanters| wanters.feed.is_some())
    }

    /// Whether Ruby wants wakes of this queue.
    pub fn is_rubys(&self, queue: &Queue) -> bool {
        self.queues.get(queue).is_some_and(|wanters| wanters.ruby.is_some())
    }

    /// All that Ruby wants wakes of.
    pub fn rubys(&self) -> impl Iterator<Item = &Queue> {
        self.queues.iter().filter(|(_, wanters)| wanters.ruby.is_some()).map(|(queue, _)| queue)
    }

    /// LISTEN was answered for this queue: for those who still wait, unless the answer is that to a wish which was
    /// overtaken by another one.
    pub fn answered(&mut self, queue: &Queue) -> Waited {
        if !self.wishes.wanted(queue).is_some_and(|wish| Arc::ptr_eq(&wish, queue)) {
            return Waited::default();
        }
        let Some(wanters) = self.queues.get_mut(queue) else { return Waited::default() };
        let take = |wanter: &mut Option<Wanter>| {
            let wanter = wanter.as_mut().filter(|wanter| wanter.waits)?;
            wanter.waits = false;
            Some(wanter.queue.clone())
        };
        Waited { feed: take(&mut wanters.feed), ruby: take(&mut wanters.ruby) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue {
        "chat".into()
    }

    /// Invariant 7.
    #[test]
    fn each_hears_once_of_the_listen_that_is_active_now() {
        let mut wanted = Wanted::default();
        let (feeds, rubys, again) = (queue(), queue(), queue());
        wanted.want_for_feed(&feeds);
        wanted.want_for_ruby(&rubys);
        assert_eq!(wanted.answered(&feeds), Waited::default(), "the wish was overtaken");
        let waited = wanted.answered(&rubys);
        assert!(Arc::ptr_eq(&waited.feed.unwrap(), &feeds) && Arc::ptr_eq(&waited.ruby.unwrap(), &rubys));
        assert_eq!(wanted.answered(&rubys), Waited::default());
        wanted.unwant_for_feed(&feeds);
        wanted.want_for_feed(&again);
        let waited = wanted.answered(&again);
        assert!(Arc::ptr_eq(&waited.feed.unwrap(), &again) && waited.ruby.is_none());
    }

    #[test]
    fn a_queue_is_wished_for_as_long_as_somebody_wants_it() {
        let mut wanted = Wanted::default();
        let wishes = wanted.wishes();
        wanted.want_for_feed(&queue());
        wanted.want_for_ruby(&queue());
        assert!(wanted.is_rubys(&queue()));
        wanted.unwant_for_feed(&queue());
        assert!(wishes.wanted("chat").is_some());
        wanted.want_for_feed(&queue());
        assert_eq!((wanted.forget_feed(), wanted.forget_feed()), (1, 0));
        assert!(wishes.wanted("chat").is_some() && wanted.is_rubys(&queue()));
        wanted.unwant_for_ruby(&queue());
        assert!(wishes.wanted("chat").is_none() && wanted.rubys().next().is_none());
    }
}
