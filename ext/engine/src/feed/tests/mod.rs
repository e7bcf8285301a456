//! The feed against a world of which everything is known.

mod histories;
mod rules;
mod world;
