//! The native LISTEN session: one connection to PostgreSQL that follows the hub's wishes, tells its news, and is built
//! anew whenever it is lost.
//!
//! Everything here runs on the hub's thread, in its current-thread tokio runtime (with I/O and time enabled), and ends
//! when its future is dropped.

mod certificate;
mod channel;
pub(crate) mod connection;
mod error;
mod options;
mod passfile;
mod probe;
mod resolve;
mod run;
mod socket;
mod tls;

pub use error::{ConnectError, OptionsError};
pub use options::Options;
pub use run::run;

use crate::log::Line;

/// Takes log lines; must not block.
pub type Log<'a> = &'a dyn Fn(Line);

/// A session that is connected and LISTENs to nothing yet.
pub struct FirstSession(connection::Connection);

/// Connects for the first time and probes whether NOTIFY arrives; where it doesn't, an error is logged and the session
/// is good all the same. Takes as long as `connect_timeout` lets libpq take, and 2 s for the probe.
///
/// # Errors
/// See [`ConnectError`]. For [`ConnectError::Unsupported`] a session by libpq may do.
pub async fn connect(options: &Options, log: Log<'_>) -> Result<FirstSession, ConnectError> {
    let mut connection = connection::open(options, None).await?;
    probe::probe(&mut connection, options, log).await;
    Ok(FirstSession(connection))
}
