//! The feed of a worker: what its browsers get, from the database to their outlets.

pub mod hub_client;
pub mod message;
pub mod reader;
pub mod reports;
pub mod wakes;
