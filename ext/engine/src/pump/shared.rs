//! What all threads of a pump share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_channel::Sender;

use super::limits::{Limit, Overflow};
use super::mailbox::Mailbox;
use super::outlet::Outlet;
use super::report::Report;
use super::stats::Stats;
use crate::log::{Level, Line};

/// A panic while a mutex was held is reported elsewhere; what it guards here is consistent at every step.
pub(super) fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module's documentation. Locks are taken in this order: a connection's, then a mailbox's.
pub(super) struct Shared {
    pub limit: Limit,
    pub stats: Stats,
    pub mailboxes: Vec<Mailbox>,
    pub reports: Sender<Vec<Report>>,
}

impl Shared {
    pub fn runs(&self, writer: usize) -> bool {
        self.mailboxes[writer].runs()
    }

    pub fn report(&self, reports: Vec<Report>) {
        let _ = self.reports.send(reports);
    }

    /// A connection lost jobs, and lives on without them.
    pub fn report_overflow(&self, outlet: &Outlet, jobs: usize) {
        self.count_dropped(outlet, jobs, "its client does not get them back");
    }

    /// A connection ends because too much waited for it.
    pub fn report_disconnect(&self, outlet: &Outlet, jobs: usize) {
        let fate = match self.limit.overflow {
            Overflow::Disconnect if jobs > 0 => "it is disconnected and will replay them from the archive",
            _ => "it is disconnected: its client does not read what can't be read again",
        };
        self.count_dropped(outlet, jobs.max(1), fate);
    }

    /// Logs when the count reaches a power of two, so that a flood of them can't flood the log.
    fn count_dropped(&self, outlet: &Outlet, jobs: usize, fate: &str) {
        let after = self.stats.dropped.add(jobs);
        let mut reports = vec![Report::Overflow { key: outlet.key(), dropped: jobs }];
        let powers = (after - jobs as u64 + 1..=after).filter(|count| count.is_power_of_two());
        reports.extend(powers.map(|count| {
            let (limit, id) = (self.limit.frames, outlet.id());
            let text = format!("dropped {count} job(s) under buffer_limit={limit} (connection {id}): {fate}");
            Report::Log(Line::new(Level::Warn, text))
        }));
        self.report(reports);
    }
}
