//! The pump: writer threads over SSE sockets. Each connection has one [`Outlet`], and nothing else writes to its socket.
//!
//! | file | idea |
//! | --- | --- |
//! | `pump.rs` | [`Pump`]: the handle; takes connections in, starts and stops the threads |
//! | `outlet.rs` | [`Outlet`]: one connection; whatever is written to it is handed over here |
//! | `job.rs` | what is handed over for one connection |
//! | `queue.rs` | what waits for one connection, from handing over to acknowledgement |
//! | `mailbox.rs` | the way to one writer thread |
//! | `writer.rs` | a writer thread: one event loop over many sockets |
//! | `limits.rs` | how much may wait |
//! | `report.rs`, `stats.rs` | what is reported, and figures |
//! | `shared.rs` | what all threads of a pump share |

mod job;
mod limits;
mod mailbox;
mod outlet;
#[allow(clippy::module_inception)]
mod pump;
mod queue;
mod report;
mod shared;
mod stats;
mod writer;

pub use job::{Item, Job};
pub use limits::{Amount, Limit, Overflow, BOUND, FLEETING};
pub use outlet::{Handed, Notice, Offer, Outlet, Watcher};
pub use pump::Pump;
pub use report::Report;
pub use stats::{Counter, Stats};

#[cfg(test)]
mod tests;
