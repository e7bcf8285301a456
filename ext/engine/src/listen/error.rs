//! What can go wrong before a session is up.

use thiserror::Error;

/// Options that make no native session.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OptionsError {
    /// libpq may honour this option; the native session can't, exactly. Not a mistake of the user's.
    #[error("{option}: {why}")]
    Unsupported {
        /// libpq's keyword.
        option: String,
        /// What about it.
        why: String,
    },
    /// libpq refuses this too.
    #[error("invalid {option} value: {value:?} (allowed: {allowed})")]
    Invalid {
        /// libpq's keyword.
        option: String,
        /// What was given. Never that of a password.
        value: String,
        /// What may be given.
        allowed: String,
    },
}

/// Why there is no session.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// No server was reached, or the one that was refused us. The text is like libpq's, one line for each address that
    /// was tried, and never has a secret in it.
    #[error("{0}")]
    Failed(String),
    /// The server is a replica, and NOTIFY happens on primaries only.
    #[error(
        "the LISTEN session landed on a read-only replica (pg_is_in_recovery() is true), where no NOTIFY ever arrives; \
         point streams_database_url, streams_host or streams_port at the primary"
    )]
    Replica,
    /// The server wants something that libpq may be able to do and the native session can't.
    #[error("{option}: {why}")]
    Unsupported {
        /// libpq's keyword that it comes nearest to.
        option: String,
        /// What about it.
        why: String,
    },
}
