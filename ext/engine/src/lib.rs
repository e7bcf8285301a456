//! The engine of pgbus_native: sockets, frames, queues, LISTEN sessions, deadlines and limits. It knows nothing of
//! Ruby; `cargo test` proves its rules alone.

#![forbid(unsafe_code)]

pub mod feed;
pub mod frame;
pub mod hub;
pub mod inherit;
pub mod listen;
pub mod log;
pub mod pump;
mod retry;
pub mod session;
pub mod wire;
