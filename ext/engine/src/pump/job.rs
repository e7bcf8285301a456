//! What is handed over for one connection.

use std::sync::Arc;
use std::time::Duration;

use crate::frame::Frame;

/// Something to be written.
#[derive(Debug, Clone)]
pub enum Item {
    /// A frame.
    Frame(Arc<Frame>),
    /// A message whose bytes could not be made. The connection ends when its turn comes.
    Broken {
        /// The message's durable position, if it has one.
        msg_id: Option<i64>,
        /// Why, in words.
        reason: Arc<str>,
    },
}

impl Item {
    pub(super) fn msg_id(&self) -> Option<i64> {
        match self {
            Self::Frame(frame) => frame.msg_id,
            Self::Broken { msg_id, .. } => *msg_id,
        }
    }
}

/// Frames that are acknowledged together.
#[derive(Debug)]
pub struct Job {
    /// In the order in which they leave. Those that the connection has, or that wait for it, are passed over.
    pub items: Vec<Item>,
    /// The lowest position of the messages that belong to the job but are not among its items, since
    /// [`super::Outlet::queued_to`] says that the connection has them or that they wait.
    pub known_from: Option<i64>,
    /// What is acknowledged; None: the cursor that the job comes to.
    pub batch_max: Option<i64>,
    /// How long the socket may take no byte before the connection is given up.
    pub deadline: Duration,
}
