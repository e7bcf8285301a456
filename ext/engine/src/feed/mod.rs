//! The feed of a worker: what its browsers get, from the database to their outlets.
//!
//! Its rules are state machines without I/O, threads or clocks: inputs go in, frames go to outlets, outputs come out.
//!
//! | file | idea |
//! | --- | --- |
//! | `events.rs` | what goes in and what comes out: [`Input`], [`Output`], [`Outlets`] |
//! | `router.rs` | [`Feed`]: all streams and browsers; which input concerns which stream; turns of reads |
//! | `stream.rs` | one stream: wakes, who is live, who is behind, and how one becomes the other |
//! | `tail.rs` | the live browsers of a stream, and how far its rows were read for them |
//! | `behind.rs` | the browsers of a stream that wait for a read of their own |
//! | `cohort.rs` | browsers that have reached one position and are given the next page together |
//! | `ephemeral.rs` | ephemeral messages that wait for the rows before them |
//! | `browser.rs` | one browser: its cursor, and the ephemeral frames that wait for it |
//! | `item.rs` | a frame with its audience, and the questions that Ruby has to answer before it leaves |
//! | `message.rs` | what the text of a message says |
//! | `requests.rs` | what the feed has asked others for, and log lines at a bearable rate |
//!
//! Around them runs one thread for each worker:
//!
//! | file | idea |
//! | --- | --- |
//! | `thread.rs` | [`FeedThread`]: the handle that other threads hold |
//! | `run.rs` | the thread: commands, wakes, rows and time go in, and what the feed wants done is done |
//! | `reader.rs` | rows, on a session of their own |
//! | `wakes.rs`, `hub_client.rs` | wakes, from the hub or from a LISTEN session |
//! | `wanted.rs` | queues that the feed, or Ruby for its connections, wants to be woken for |
//! | `outlets.rs` | the connections that are served |
//! | `reports.rs`, `stats.rs` | what waits for Ruby, and figures |
//! | `trial.rs` | whether a server is one for a native session |

mod behind;
mod browser;
mod cohort;
mod ephemeral;
mod events;
pub mod hub_client;
mod item;
pub mod message;
mod outlets;
pub mod reader;
pub mod reports;
mod requests;
mod router;
mod run;
mod stats;
mod stream;
mod tail;
mod thread;
pub mod trial;
pub mod wakes;
mod wanted;

#[cfg(test)]
mod tests;

pub use events::{Asked, Connect, Input, Limits, Outlets, Output, Question, QuestionId, ReadId, Reason, Row};
pub use router::Feed;
pub use stats::Stats;
pub use thread::{FeedThread, Settings};
