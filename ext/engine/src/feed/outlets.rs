//! The connections that a feed serves, by their keys.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::events::Outlets;
use crate::frame::Frame;
use crate::pump::{Offer, Outlet};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Served {
    outlets: HashMap<u32, Arc<Outlet>>,
    deadline: Duration,
}

impl Served {
    /// A socket may take no byte of a frame for as long as `deadline`.
    pub fn new(deadline: Duration) -> Self {
        Self { outlets: HashMap::new(), deadline }
    }

    pub fn insert(&mut self, key: u32, outlet: Arc<Outlet>) {
        self.outlets.insert(key, outlet);
    }

    /// None: it is not served.
    pub fn remove(&mut self, key: u32) -> Option<Arc<Outlet>> {
        self.outlets.remove(&key)
    }

    pub fn get(&self, key: u32) -> Option<&Arc<Outlet>> {
        self.outlets.get(&key)
    }

    /// Ends all connections, so that their browsers come back. Returns how many they were.
    pub fn fail_all(&mut self) -> usize {
        self.outlets.drain().map(|(_, outlet)| _ = outlet.fail()).count()
    }
}

impl Outlets for Served {
    fn offer(&mut self, key: u32, frame: &Arc<Frame>) -> Offer {
        self.outlets.get(&key).map_or(Offer::Closed, |outlet| outlet.offer(frame, self.deadline))
    }
}
