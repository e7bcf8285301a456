//! The browsers of a stream that wait for a read of their own.

use std::collections::{HashMap, VecDeque};

use super::browser::{Members, Serial};

/// Those with one cursor wait together, since one read serves them; cursors take turns in the order in which their first
/// browser came.
#[derive(Debug, Default)]
pub(super) struct Wanting {
    members: HashMap<i64, Members>,
    /// Every cursor of `members`, and some that nobody has any more.
    order: VecDeque<i64>,
}

impl Wanting {
    pub fn insert(&mut self, cursor: i64, serial: Serial) {
        let members = self.members.entry(cursor).or_insert_with(|| {
            self.order.push_back(cursor);
            Members::new()
        });
        members.insert(serial);
    }

    pub fn remove(&mut self, cursor: i64, serial: Serial) {
        let Some(members) = self.members.get_mut(&cursor) else { return };
        members.swap_remove(&serial);
        if members.is_empty() {
            self.members.remove(&cursor);
            if self.order.len() > 2 * self.members.len() + 16 {
                self.order.retain(|cursor| self.members.contains_key(cursor));
            }
        }
    }

    /// Whose turn it is.
    pub fn pop(&mut self) -> Option<(i64, Members)> {
        while let Some(cursor) = self.order.pop_front() {
            if let Some(members) = self.members.remove(&cursor) {
                return Some((cursor, members));
            }
        }
        None
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}
