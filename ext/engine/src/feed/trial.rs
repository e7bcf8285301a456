//! Whether a server is one for a native session, tried before a feed is relied on.

use std::io;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::listen::{self, ConnectError, Options};

/// One attempt to connect, on the calling thread.
#[derive(Debug, Default)]
pub struct Trial {
    interrupted: Notify,
}

impl Trial {
    /// Connects, and gives what of it only libpq can honour. None: nothing is known to be against a native session; the
    /// server may not be reachable, or not within `limit`, or the trial was interrupted.
    ///
    /// # Errors
    /// The system gives no event loop.
    pub fn unsupported(&self, options: &Options, limit: Duration) -> io::Result<Option<String>> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let tried = async {
            tokio::select! {
                connection = listen::reconnect(options) => connection.err(),
                () = sleep(limit) => None,
                () = self.interrupted.notified() => None,
            }
        };
        Ok(match runtime.block_on(tried) {
            Some(ConnectError::Unsupported { option, why }) => Some(format!("{option}: {why}")),
            _ => None,
        })
    }

    /// Ends it. Any thread may call this.
    pub fn interrupt(&self) {
        self.interrupted.notify_one();
    }
}
