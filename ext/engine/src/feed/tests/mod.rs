//! The feed against a world of which everything is known.

use super::{Limits, Reason};
use world::{Got, Post, World};

mod account;
mod audience;
mod ephemeral;
mod histories;
mod rows;
mod world;

pub const NO_LIMITS: Limits = Limits { frames: usize::MAX, bytes: usize::MAX };
pub const NO_BOUND: (usize, usize) = (usize::MAX, usize::MAX);
pub const PUBLIC: Post = Post { label: None, exclude: None };
pub const FOR_ODD: Post = Post { label: Some("odd"), exclude: None };

/// A world whose first stream has so many rows.
pub fn world(rows: usize) -> World {
    let mut world = World::new(2, NO_LIMITS);
    (0..rows).for_each(|_| world.commit(0, PUBLIC));
    world
}

impl World {
    /// A browser that is live: all that is in the table was read to it.
    pub fn live(&mut self, stream: usize) -> u32 {
        let key = self.connect(stream, self.tables[stream].last, NO_BOUND);
        self.settle();
        self.sent.clear();
        key
    }

    pub fn got(&self, key: u32) -> &[Got] {
        &self.outside.browsers[&key].got
    }

    pub fn notices(&mut self) {
        while self.notice() {}
    }

    pub fn given_up(&self, key: u32) -> Option<Reason> {
        self.outside.browsers[&key].given_up
    }
}
