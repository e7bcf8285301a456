//! The feed of a worker: what its browsers get, from the database to their outlets.

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

pub use events::{Asked, Connect, Input, Limits, Offer, Outlets, Output, Question, QuestionId, ReadId, Reason, Row};
pub use router::Feed;
pub use stats::Stats;
pub use thread::{FeedThread, Settings};
