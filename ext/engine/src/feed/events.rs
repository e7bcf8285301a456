//! What goes into a feed and what comes out of it.

use std::fmt;
use std::sync::Arc;

use crate::frame::Frame;
use crate::log::Line;
use crate::pump::Offer;
use crate::session::Queue;

/// A read that the feed has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadId(pub u64);

/// A question that the feed has asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuestionId(pub u64);

/// A row of a queue's live or archive table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its position.
    pub msg_id: i64,
    /// PostgreSQL's text of its `message` column.
    pub message: Box<str>,
}

/// A browser that wants a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connect {
    /// The name of its outlet, free again after [`Input::Disconnected`].
    pub key: u32,
    /// The connection's id, which an `exclude` names.
    pub id: Box<str>,
    /// The stream as the app calls it.
    pub stream: Arc<str>,
    /// The stream's queue.
    pub queue: Queue,
    /// The msg_id of the last row that it has seen.
    pub cursor: i64,
}

/// What a feed has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A browser wants its stream. [`Input::Disconnected`] follows, once, whatever happens in between.
    Connected(Connect),
    /// A browser has left, or was given up.
    Disconnected {
        /// Its outlet.
        key: u32,
    },
    /// LISTEN is active. The answer to an [`Output::Listen`].
    Listening {
        /// The very queue of that output, not only an equal one: an answer that was overtaken by an
        /// [`Output::Unlisten`] and another listen must not count for the later one.
        queue: Queue,
    },
    /// The database does not take this LISTEN, now or ever. The other answer to an [`Output::Listen`].
    ListenFailed {
        /// The very queue of that output.
        queue: Queue,
        /// Why, in words, without secrets.
        reason: String,
    },
    /// A NOTIFY arrived.
    Wake {
        /// The queue whose channel it came on.
        queue: Queue,
        /// None for a durable wake, the text of an ephemeral one.
        payload: Option<Arc<str>>,
    },
    /// Notifications may have been lost, of whatever stream.
    AllMayHaveChanged,
    /// The answer to an [`Output::Read`]; each has one.
    Rows {
        /// Which read.
        read: ReadId,
        /// Rows with a msg_id above the one asked for, in their order, as many as the limit if there are more. The
        /// error is why there are none, in words, without secrets: the read is asked for again.
        rows: Result<Vec<Row>, String>,
    },
    /// The answer to an [`Output::Ask`]; each has one.
    Answers {
        /// Which question.
        question: QuestionId,
        /// Whether it is visible, for each item and each of its keys in the order of the question. What is missing is
        /// hidden.
        verdicts: Vec<Vec<bool>>,
    },
    /// An outlet that was full has room again, or died.
    Room {
        /// The outlet.
        key: u32,
    },
    /// [`super::Feed::deadline`] has come.
    Tick,
}

/// What a feed wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// LISTEN for this queue and answer.
    Listen {
        /// The queue.
        queue: Queue,
    },
    /// Nobody wants this queue any more. No answer.
    Unlisten {
        /// The queue.
        queue: Queue,
    },
    /// Read rows and answer with [`Input::Rows`].
    Read {
        /// For the answer.
        id: ReadId,
        /// From which queue.
        queue: Queue,
        /// Only rows with a greater msg_id.
        after: i64,
        /// At most so many rows, those with the lowest msg_ids.
        limit: usize,
    },
    /// Ask the app's filters and answer with [`Input::Answers`].
    Ask(Question),
    /// A browser is given up: end its connection.
    Died {
        /// Its outlet.
        key: u32,
        /// Why.
        reason: Reason,
    },
    /// A broadcast was handed out, for counters and statistics.
    Sent {
        /// The stream's queue.
        queue: Queue,
        /// The stream as the app calls it.
        stream: Arc<str>,
        /// The browsers of the stream.
        fanout: usize,
        /// Whether it was an ephemeral one.
        ephemeral: bool,
    },
    /// For the logger.
    Log(Line),
}

/// Which of these connections may see which message?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// For the answer.
    pub id: QuestionId,
    /// The stream as the app calls it.
    pub stream: Arc<str>,
    /// One for each message.
    pub items: Vec<Asked>,
}

/// A message in a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Its label as JSON: a string is the name of a filter; any other value is no filter's name.
    pub label: Arc<str>,
    /// The outlets of the connections that it is asked for.
    pub keys: Vec<u32>,
}

/// Why a browser was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Its outlet does not take another ephemeral frame.
    OutletFull,
    /// More ephemeral frames than allowed wait until it has caught up.
    TooFarBehind,
    /// More ephemeral messages than allowed wait for rows or answers of its stream.
    StreamStalled,
    /// The database refuses to LISTEN for its stream.
    ListenRefused,
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::OutletFull => "it reads too slowly for its ephemeral messages",
            Self::TooFarBehind => "too many ephemeral messages wait until it has caught up",
            Self::StreamStalled => "too many ephemeral messages of its stream wait for the database or for a filter",
            Self::ListenRefused => "the database refuses to LISTEN for its stream",
        })
    }
}

/// Ephemeral frames that may wait inside a feed, for one browser that is behind and for one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Their number.
    pub frames: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// Where frames leave.
pub trait Outlets {
    /// Offers a frame to an outlet. After [`Offer::Full`] for a durable frame [`Input::Room`] will come; for an ephemeral
    /// one it means that the browser is too slow.
    fn offer(&mut self, key: u32, frame: &Arc<Frame>) -> Offer;
}
