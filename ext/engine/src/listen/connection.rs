//! A connection to PostgreSQL, and queries on it.

use std::collections::VecDeque;
use std::error::Error as _;
use std::fmt;
use std::future::{poll_fn, Future};
use std::pin::pin;
use std::task::{ready, Poll};

use tokio_postgres::{AsyncMessage, Client, Notification, SimpleQueryMessage};

use super::messages::Messages;
use super::options::Target;
use super::socket::Socket;
use super::tls;

/// The half of a connection that reads and writes; somebody must poll it.
pub type Link = tokio_postgres::Connection<Messages<Socket>, tls::Stream>;

/// A connection, of one thread.
///
/// A forked child doesn't inherit its socket.
pub struct Connection {
    /// The half that takes queries.
    pub client: Client,
    /// The half that carries them, and the answers.
    pub link: Link,
    /// What was notified while [`Connection::query`] waited for answers.
    pub notified: VecDeque<Notification>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Connection {
    /// Runs a query with nothing else in flight and gives the first column of its first row.
    ///
    /// # Errors
    /// The server's words, or what became of the connection.
    pub async fn query(&mut self, sql: &str) -> Result<Option<String>, String> {
        let mut query = pin!(self.client.simple_query(sql));
        let link = &mut self.link;
        let notified = &mut self.notified;
        let messages = poll_fn(|cx| loop {
            if let Poll::Ready(result) = query.as_mut().poll(cx) {
                return Poll::Ready(result.map_err(|error| words(&error)));
            }
            // A link that ended keeps its queries waiting, so it is asked too.
            match ready!(link.poll_message(cx)) {
                Some(Ok(AsyncMessage::Notification(notification))) => notified.push_back(notification),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(words(&error))),
                None => return Poll::Ready(Err("the connection was closed".to_owned())),
            }
        });
        let messages = messages.await?;
        Ok(messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.try_get(0).ok().flatten().map(str::to_owned),
            _ => None,
        }))
    }

    /// Whether the query's answer is this value.
    pub(super) async fn is(&mut self, sql: &str, value: &str) -> Result<bool, String> {
        Ok(self.query(sql).await?.as_deref() == Some(value))
    }

    /// Whether the session is of the kind that `target_session_attrs` asks for, else libpq's words for it.
    pub(super) async fn suits(&mut self, target: Target) -> Result<Result<(), &'static str>, String> {
        const READ_ONLY: &str = "SHOW transaction_read_only";
        const REPLICA: &str = "SELECT pg_catalog.pg_is_in_recovery()";
        let (sql, wanted, else_it_is) = match target {
            Target::Any | Target::PreferStandby => return Ok(Ok(())),
            Target::ReadWrite => (READ_ONLY, "off", "session is read-only"),
            Target::ReadOnly => (READ_ONLY, "on", "session is not read-only"),
            Target::Primary => (REPLICA, "f", "server is in hot standby mode"),
            Target::Standby => (REPLICA, "t", "server is not in hot standby mode"),
        };
        Ok(if self.is(sql, wanted).await? { Ok(()) } else { Err(else_it_is) })
    }
}

/// The server's words, or ours, on one line.
pub(crate) fn words(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        let mut text = format!("{}:  {}", error.severity(), error.message());
        for (label, more) in [("DETAIL", error.detail()), ("HINT", error.hint())] {
            if let Some(more) = more {
                text.push_str(&format!(" {label}:  {more}"));
            }
        }
        return text.replace('\n', " ");
    }
    if error.is_closed() {
        return "server closed the connection unexpectedly".to_owned();
    }
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
