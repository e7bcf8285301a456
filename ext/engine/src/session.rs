//! Between the hub and its LISTEN session: what the hub wishes, and what the session has to tell.
//!
//! Both live on the hub's thread. Wishes are a state, not a stream of orders, so a worker that subscribes and
//! unsubscribes a million times leaves nothing behind; news travel over a bounded channel, so a hub that can't keep up
//! slows the session's reading down and PostgreSQL keeps what comes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexSet;
use tokio::sync::Notify;

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
    /// LISTEN is confirmed for this queue by the database.
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
    /// Queues whose wish changed since the session looked, in the order of the changes.
    changed: IndexSet<Queue>,
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
        state.wanted.insert(queue.clone());
        state.changed.insert(queue.clone());
        self.0.changed.notify_one();
    }

    /// Asks for UNLISTEN. No answer.
    pub fn unwant(&self, queue: &Queue) {
        let mut state = self.0.state.borrow_mut();
        state.wanted.swap_remove(queue);
        state.changed.insert(queue.clone());
        self.0.changed.notify_one();
    }

    /// Whether this queue is wanted now.
    pub fn wants(&self, queue: &str) -> bool {
        self.0.state.borrow().wanted.contains(queue)
    }

    /// All that is wanted now. The changes up to now count as seen.
    pub fn all(&self) -> Vec<Queue> {
        let mut state = self.0.state.borrow_mut();
        state.changed.clear();
        state.wanted.iter().cloned().collect()
    }

    /// Waits until a wish changed, then gives the queues concerned, each once; ask [`Wishes::wants`] what each wish is
    /// now. Can be dropped while waiting without losing a change.
    pub async fn changes(&self) -> Vec<Queue> {
        loop {
            {
                let mut state = self.0.state.borrow_mut();
                if !state.changed.is_empty() {
                    return state.changed.drain(..).collect();
                }
            }
            self.0.changed.notified().await;
        }
    }
}
