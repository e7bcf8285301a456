//! The native LISTEN session: a connection to PostgreSQL that follows the hub's wishes and tells its news.
//!
//! | file | idea |
//! | --- | --- |
//! | `options.rs` | what libpq resolved, understood |
//! | `connect.rs` | hosts, addresses and encryption in libpq's order |
//! | `race.rs` | TCP to a host's addresses, of which one may not answer |
//! | `socket.rs` | the socket, kept from forked children |
//! | `tls.rs`, `binding.rs` | TLS, and what ties a password's proof to it |
//! | `messages.rs` | what of the server's talk reaches tokio-postgres |
//! | `connection.rs` | queries |
//! | `live.rs` | a connection in service: LISTENs, wakes, health |
//! | `channel.rs` | from a queue's name to its channel |
//! | `probe.rs` | whether NOTIFY arrives |
//!
//! Everything here runs on its user's thread, in a current-thread tokio runtime (with I/O and time enabled), and ends
//! when its future is dropped.

mod binding;
mod channel;
mod connect;
mod connection;
mod error;
mod live;
mod messages;
mod options;
mod probe;
mod race;
mod socket;
mod tls;

pub use connect::open;
pub(crate) use connection::words;
pub use connection::{Connection, Link};
pub use error::{ConnectError, OptionsError};
pub(crate) use live::Live;
pub use options::{Host, Options, Place};

use crate::log::Line;

/// Takes log lines; must not block.
pub type Log<'a> = &'a dyn Fn(Line);

/// Connects to a primary for the first time and probes whether NOTIFY arrives; where it doesn't, an error is logged and
/// the connection is good all the same. Takes as long as `connect_timeout` lets libpq take, and 2 s for the probe.
///
/// # Errors
/// See [`ConnectError`]. For [`ConnectError::Unsupported`] a session by libpq may do.
pub async fn connect(options: &Options, log: Log<'_>) -> Result<Connection, ConnectError> {
    let mut connection = connect::open_primary(options, None).await?;
    probe::probe(&mut connection, options, log).await;
    Ok(connection)
}

/// Connects to a primary once more. Takes 10 s at most for each address, unless `connect_timeout` says otherwise.
///
/// # Errors
/// See [`ConnectError`].
pub async fn reconnect(options: &Options) -> Result<Connection, ConnectError> {
    connect::open_primary(options, Some(connect::PATIENCE)).await
}
