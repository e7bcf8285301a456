//! What a pump has to report.

use crate::log::Line;

/// What became of a job or of a connection. `key` is the connection's [`super::Outlet::key`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// One job is done: everything up to `accepted_max` is in the socket.
    Ack {
        /// Whose job.
        key: u32,
        /// The highest msg_id written; the job's `batch_max` when it had no items; the cursor when all were known.
        accepted_max: i64,
    },
    /// The pump found a connection dead, and ended it. Reported once for each.
    Dead {
        /// Whose.
        key: u32,
    },
    /// More waited for a connection than may; so many jobs were lost by that.
    Overflow {
        /// Whose.
        key: u32,
        /// How many jobs.
        dropped: usize,
    },
    /// Something for the log.
    Log(Line),
}
