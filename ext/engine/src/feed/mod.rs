//! The feed's rules, as state machines without I/O, threads or clocks: inputs go in, frames go to outlets, outputs come
//! out. Whoever runs a feed reads the database, hears wakes and asks Ruby.
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

mod behind;
mod browser;
mod cohort;
mod ephemeral;
mod events;
mod item;
pub mod message;
mod requests;
mod router;
mod stream;
mod tail;

#[cfg(test)]
mod tests;

pub use events::{Asked, Connect, Input, Limits, Offer, Outlets, Output, Question, QuestionId, ReadId, Reason, Row};
pub use router::Feed;
