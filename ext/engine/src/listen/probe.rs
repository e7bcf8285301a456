//! Whether NOTIFY arrives at all.
//!
//! Behind a pooler that hands out server connections by the transaction, LISTEN works and nothing ever arrives. A
//! session that notifies itself may not see that, since the pooler may give it the same server connection for both; so
//! a second connection sends the NOTIFY, where one is to be had in time.

use std::future::poll_fn;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{timeout, timeout_at, Instant};
use tokio_postgres::AsyncMessage;

use super::connect;
use super::connection::{words, Connection};
use super::options::Options;
use super::Log;
use crate::log::{Level, Line};

const LIMIT: Duration = Duration::from_secs(2);
const SECOND_CONNECTION: Duration = Duration::from_secs(1);

/// Tries it, and logs at error if nothing arrives. Takes 2 s at most and breaks nothing.
pub(super) async fn probe(connection: &mut Connection, options: &Options, log: Log<'_>) {
    // Of this process and this moment alone: others may probe in the same database.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = format!("pgbus_native_probe_{}_{}", std::process::id(), now.as_nanos());
    let deadline = Instant::now() + LIMIT;
    let outcome = timeout_at(deadline, delivered(connection, options, &name)).await;
    let failed = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(reason)) => Some(reason),
        Err(_) => Some(format!("nothing arrived within {} s", LIMIT.as_secs())),
    };
    // Through a pooler this may reach another server connection than LISTEN did, which then has a channel more that
    // nobody ever notifies. It is on its way even when no time is left for the answer.
    let _ = timeout_at(deadline, connection.query(&format!("UNLISTEN {name}"))).await;
    if let Some(reason) = failed {
        log(Line::new(
            Level::Error,
            format!(
                "a NOTIFY to the LISTEN session was not delivered ({reason}): it will get no wakes. It probably goes \
                 through a pooler in transaction mode; set streams_database_url, or streams_host and streams_port, to \
                 a direct connection"
            ),
        ));
    }
}

async fn delivered(connection: &mut Connection, options: &Options, name: &str) -> Result<(), String> {
    connection.query(&format!("LISTEN {name}")).await?;
    let notify = format!("NOTIFY {name}");
    let other = timeout(SECOND_CONNECTION, async {
        let mut other = connect::open(options, None).await.ok()?;
        other.query(&notify).await.ok()
    });
    if !matches!(other.await, Ok(Some(_))) {
        connection.query(&notify).await?;
    }
    if connection.notified.iter().any(|notification| notification.channel() == name) {
        return Ok(());
    }
    loop {
        match poll_fn(|cx| connection.link.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notification(notification))) if notification.channel() == name => return Ok(()),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(words(&error)),
            None => return Err("the session ended".to_owned()),
        }
    }
}
