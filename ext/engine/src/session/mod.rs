//! Between the hub and its LISTEN session: what the hub wishes, and what the session has to tell.
//!
//! | file | idea |
//! | --- | --- |
//! | `mod.rs` | wishes and news |
//! | `recipe.rs` | how the next connection is to be made, asked for before each |
//! | `run.rs` | a session's life: recipe, connection, loss, and again |
//! | `ruby.rs` | a connection that Ruby makes, for a recipe that the engine can't follow |
//!
//! Wishes and news live on the hub's thread. Wishes are a state, not a stream of orders, so a worker that subscribes and
//! unsubscribes a million times leaves nothing behind; news travel over a bounded channel, so a hub that can't keep up
//! slows the session's reading down and PostgreSQL keeps what comes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexSet;
use tokio::sync::Notify;

pub mod recipe;
pub mod ruby;
mod run;

pub use run::{Connected, Session};

/// News that may wait for the hub before the session stops reading from the database.
pub const NEWS_CAPACITY: usize = 256;

/// The name of a queue as a worker sends it: any text, also one that no queue has.
pub type Queue = Arc<str>;

/// What a session tells the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// The session's first connection, or one after a loss, is up: every queue wished for was LISTENed, and each got
    /// its [`News::Listening`] before this.
    Up,
    /// The connection is lost; the session reconnects by itself.
    Down {
        /// Why, in words, without secrets.
        reason: String,
    },
    /// LISTEN is confirmed for this queue by the database. As in [`News::Refused`], the queue is the very one, not only
    /// an equal one, that was given to [`Wishes::want`] last: so an answer that was overtaken by an unwant and another
    /// want can be told from the one to wait for.
    Listening(Queue),
    /// The database does not take this queue's LISTEN, now or ever; the others are not concerned.
    Refused {
        /// The queue.
        queue: Queue,
        /// The database's words.
        reason: String,
    },
    /// A NOTIFY arrived.
    Wake {
        /// The queue whose channel it came on.
        queue: Queue,
        /// None for a durable wake (an empty NOTIFY), the text of an ephemeral one.
        payload: Option<Arc<str>>,
    },
}

/// Why a connection's service ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The connection is lost: why, in words.
    Lost(String),
    NobodyListens,
}

/// The queues that the hub wants LISTENed, shared between the hub (which writes) and its session (which reads).
#[derive(Debug, Clone, Default)]
pub struct Wishes(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: RefCell<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    wanted: IndexSet<Queue>,
    /// Queues whose wish changed since the session looked, in the order of the changes. None while there is no
    /// connection to follow them: the next one begins with [`Wishes::all`].
    changed: Option<IndexSet<Queue>>,
}

impl State {
    fn note(&mut self, queue: &Queue) {
        if let Some(changed) = &mut self.changed {
            changed.insert(queue.clone());
        }
    }
}

impl Wishes {
    /// Nothing is wanted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for LISTEN. The session answers with [`News::Listening`] or [`News::Refused`], also when it listens
    /// already.
    pub fn want(&self, queue: &Queue) {
        let mut state = self.0.state.borrow_mut();
        state.wanted.replace(queue.clone());
        state.note(queue);
        self.0.changed.notify_one();
    }

    /// Asks for UNLISTEN. No answer.
    pub fn unwant(&self, queue: &Queue) {
        let mut state = self.0.state.borrow_mut();
        state.wanted.swap_remove(queue);
        state.note(queue);
        self.0.changed.notify_one();
    }

    /// This queue as it is wanted now, if it is.
    pub fn wanted(&self, queue: &str) -> Option<Queue> {
        self.0.state.borrow().wanted.get(queue).cloned()
    }

    /// All that is wanted now. The changes from now on are kept for [`Wishes::changes`].
    pub fn all(&self) -> Vec<Queue> {
        let mut state = self.0.state.borrow_mut();
        state.changed = Some(IndexSet::new());
        state.wanted.iter().cloned().collect()
    }

    /// Keeps no changes any more, until [`Wishes::all`] is asked again: an outage must not fill memory with them.
    pub fn rest(&self) {
        self.0.state.borrow_mut().changed = None;
    }

    /// Waits until a wish changed, then gives the queues concerned, each once; ask [`Wishes::wanted`] what each wish is
    /// now. Can be dropped while waiting without losing a change.
    pub async fn changes(&self) -> Vec<Queue> {
        loop {
            {
                let mut state = self.0.state.borrow_mut();
                if let Some(changed) = state.changed.as_mut().filter(|changed| !changed.is_empty()) {
                    return changed.drain(..).collect();
                }
            }
            self.0.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(wishes: &Wishes) -> Vec<Queue> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            tokio::select! {
                biased;
                changes = wishes.changes() => changes,
                () = std::future::ready(()) => Vec::new(),
            }
        })
    }

    #[test]
    fn a_wish_is_the_queue_that_was_wanted_last() {
        let wishes = Wishes::new();
        assert!(wishes.all().is_empty());
        let (before, after): (Queue, Queue) = ("chat".into(), "chat".into());
        wishes.want(&before);
        wishes.unwant(&before);
        wishes.want(&after);
        assert!(Arc::ptr_eq(&wishes.wanted("chat").unwrap(), &after));
        assert_eq!(changes(&wishes).len(), 1);
    }

    #[test]
    fn what_changes_while_nobody_follows_is_not_kept() {
        let wishes = Wishes::new();
        wishes.all();
        for round in 0..3 {
            wishes.rest();
            for i in 0..1000 {
                let queue = format!("{round} {i}").into();
                wishes.want(&queue);
                wishes.unwant(&queue);
            }
            let kept: Queue = format!("kept {round}").into();
            wishes.want(&kept);
            assert!(changes(&wishes).is_empty());
            assert_eq!(wishes.all().len(), round + 1);
            assert!(changes(&wishes).is_empty(), "all() has told them");
            wishes.want(&kept);
            assert_eq!(changes(&wishes), [kept]);
        }
    }
}
