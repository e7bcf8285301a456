//! The handle of a pump.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crossbeam_channel::Receiver;

use super::limits::Limit;
use super::mailbox::Mailbox;
use super::outlet::Outlet;
use super::report::Report;
use super::shared::Shared;
use super::stats::Stats;
use super::writer::Writer;
use crate::inherit;

/// Writer threads, and the connections that they write to. Any thread may call its methods; only [`Pump::join`] waits.
pub struct Pump {
    shared: Arc<Shared>,
    reports: Receiver<Vec<Report>>,
    last_key: AtomicU32,
}

impl Pump {
    /// A pump of so many writer threads, not started.
    pub fn new(writers: usize, limit: Limit) -> Self {
        let (sender, reports) = crossbeam_channel::unbounded();
        let mailboxes = (0..writers).map(|_| Mailbox::new()).collect();
        let shared = Shared { limit, stats: Stats::default(), mailboxes, reports: sender };
        Self { shared: Arc::new(shared), reports, last_key: AtomicU32::new(0) }
    }

    /// Takes a connection in: from here on its socket is the outlet's alone, and a forked child does not have it.
    ///
    /// `id` is its name in log lines; `cursor` is the last durable position that the browser has.
    ///
    /// # Errors
    /// The socket comes back if its number is too high for [`inherit::keep`], or if it can't be told to raise no SIGPIPE
    /// where the system has to be told so.
    pub fn adopt(&self, id: String, cursor: i64, socket: OwnedFd) -> Result<Arc<Outlet>, OwnedFd> {
        #[cfg(target_vendor = "apple")]
        if socket2::SockRef::from(&socket).set_nosigpipe(true).is_err() {
            return Err(socket);
        }
        let socket = inherit::keep(socket)?;
        let key = self.last_key.fetch_add(1, Relaxed);
        Ok(Arc::new(Outlet::new(Arc::clone(&self.shared), key, id, cursor, socket)))
    }

    /// Starts the writer threads that don't run. What was handed over before is written now.
    ///
    /// # Errors
    /// When the system gives no thread or no event loop; then those that run are told to stop.
    pub fn start(&self) -> io::Result<()> {
        for (index, mailbox) in self.shared.mailboxes.iter().enumerate() {
            let started = mailbox.start(|| {
                let (writer, waker) = Writer::new(Arc::clone(&self.shared), index)?;
                thread::Builder::new().name(format!("pgbus-writer-{index}")).spawn(move || writer.run())?;
                Ok(waker)
            });
            if let Err(error) = started {
                self.stop();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Tells the writer threads to end as soon as nothing waits any more.
    pub fn stop(&self) {
        self.shared.mailboxes.iter().for_each(Mailbox::stop);
    }

    /// How many writer threads there are.
    pub fn writers(&self) -> usize {
        self.shared.mailboxes.len()
    }

    /// Whether this writer thread runs.
    pub fn runs(&self, writer: usize) -> bool {
        self.shared.runs(writer)
    }

    /// Waits until this writer thread ended (true), until `deadline`, or until `interrupted`, which
    /// [`Pump::disturb_joins`] makes it look at.
    pub fn join(&self, writer: usize, deadline: Instant, interrupted: &AtomicBool) -> bool {
        self.shared.mailboxes[writer].join(deadline, interrupted)
    }

    /// See [`Pump::join`].
    pub fn disturb_joins(&self) {
        self.shared.mailboxes.iter().for_each(Mailbox::notify_joins);
    }

    /// Where the reports come out, in the order in which things happened to each connection. An empty list is sent by
    /// [`Pump::disturb_reports`] and when a writer thread ends.
    pub fn reports(&self) -> &Receiver<Vec<Report>> {
        &self.reports
    }

    /// Makes a receiver of [`Pump::reports`] look around.
    pub fn disturb_reports(&self) {
        self.shared.report(Vec::new());
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Counters and gauges.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }
}

/// The threads end when nothing waits any more; nobody waits for that.
impl Drop for Pump {
    fn drop(&mut self) {
        self.stop();
        for mailbox in &self.shared.mailboxes {
            // Without a thread, connections and pump would keep each other alive.
            if !mailbox.runs() {
                while mailbox.receive().is_some() {}
            }
        }
    }
}
