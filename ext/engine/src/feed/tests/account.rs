//! What must be true of a world, whatever has happened in it.

use super::super::*;
use super::world::{visible, Browser, Got, Post, World};

impl World {
    /// What must be true at any time.
    pub fn check_bounds(&self, limits: Limits) {
        assert!(self.reads.len() <= 16 + self.tables.len(), "{} reads at a time", self.reads.len());
        for browser in self.outside.browsers.values().filter(|browser| !browser.dead && browser.given_up.is_none()) {
            let waiting = browser.ephemerals_due.len() - browser.ephemerals_got;
            assert!(waiting <= 2 * limits.frames, "{waiting} ephemeral frames wait for {browser:?}");
        }
    }

    /// What must be true of what every browser has got, and at the end of what those have got that are still there.
    pub fn check(&self) {
        for browser in &self.gone {
            self.check_browser(browser, false);
        }
        for browser in self.outside.browsers.values() {
            self.check_browser(browser, !browser.dead && browser.given_up.is_none());
        }
    }

    fn check_browser(&self, browser: &Browser, complete: bool) {
        let table = &self.tables[browser.stream];
        let rows: Vec<i64> = browser.got.iter().filter_map(Got::row).collect();
        assert!(rows.windows(2).all(|pair| pair[0] < pair[1]), "in order and none twice: {browser:?}");
        assert!(rows.iter().all(|msg_id| *msg_id > browser.cursor), "none before its cursor: {browser:?}");
        let kept: Vec<i64> = rows.iter().copied().filter(|msg_id| *msg_id > table.purged).collect();
        let due = table.rows.range(browser.cursor.saturating_add(1)..);
        let due: Vec<i64> = due.filter(|(_, post)| browser.may_see(post)).map(|(msg_id, _)| *msg_id).collect();
        let ephemerals: Vec<Got> = browser.got.iter().filter(|got| got.row().is_none()).copied().collect();
        let ephemerals_due: Vec<Got> = browser.ephemerals_due.iter().map(|due| due.got).collect();
        if complete {
            assert_eq!(kept, due, "every row that it may see: {browser:?}");
            assert_eq!(ephemerals, ephemerals_due, "every ephemeral message that it may see, in order: {browser:?}");
        } else {
            assert!(due.starts_with(&kept), "no gap among {due:?}: {browser:?}");
            assert!(ephemerals_due.starts_with(&ephemerals), "no gap among ephemeral messages: {browser:?}");
        }
        for ephemeral in &browser.ephemerals_due {
            let Some(at) = browser.got.iter().position(|got| *got == ephemeral.got) else { continue };
            let early = due.iter().take_while(|msg_id| **msg_id <= ephemeral.not_before);
            for msg_id in early {
                assert!(
                    browser.got[..at].contains(&Got::Row(*msg_id)),
                    "{ephemeral:?} comes after row {msg_id}: {browser:?}"
                );
            }
        }
    }
}

impl Got {
    pub fn row(&self) -> Option<i64> {
        match self {
            Self::Row(msg_id) => Some(*msg_id),
            Self::Ephemeral(_) => None,
        }
    }
}

impl Browser {
    pub fn may_see(&self, post: &Post) -> bool {
        post.exclude != Some(self.number) && visible(post.label, self.number)
    }
}
