//! Where the feed's wakes come from: the hub, while there is one; then a LISTEN session of the feed's own.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::sleep;

use super::hub_client::HubClient;
use crate::listen::{self, FirstSession, Log, Options};
use crate::log::{Level, Line};
use crate::session::{News, Wishes};

/// How much longer than a health check the hub may take for an ack: its own session has one second less.
const ACK_GRACE: Duration = Duration::from_secs(2);
/// Between two attempts to connect.
const BACKOFF: Duration = Duration::from_millis(500);

/// How a feed hears its wakes.
#[derive(Debug, Clone)]
pub struct Source {
    /// The hub's socket. None: there is no hub.
    pub hub: Option<PathBuf>,
    /// The LISTEN session that is opened without a hub, and when the hub has ended. The feed does not go back from it
    /// to a hub.
    pub session: Options,
    /// How long the session's connection may be idle before it is asked for a sign of life; an ack of the hub's may
    /// take two seconds longer.
    pub health_check: Duration,
}

/// Follows `wishes` and tells `news` until nobody takes them any more. [`News::Down`] is told when the hub has ended, and
/// [`News::Up`] when its place is taken.
pub async fn run(source: &Source, wishes: &Wishes, news: &Sender<News>, log: Log<'_>) {
    if let Some(path) = &source.hub {
        let timeout = source.health_check + ACK_GRACE;
        let reason = match HubClient::connect(path, timeout).await {
            Err(error) => error.to_string(),
            Ok(client) => match client.follow(wishes, news).await {
                None => return,
                Some(reason) => reason,
            },
        };
        log(Line::new(Level::Warn, format!("no hub ({reason}), the wakes come from a LISTEN session of this worker")));
        if news.send(News::Down { reason }).await.is_err() {
            return;
        }
    }
    let first = first_session(&source.session, log).await;
    listen::run(first, &source.session, source.health_check, wishes, news, log).await;
}

/// Tries until it works. Logs the first failure, and then ever more rarely.
async fn first_session(options: &Options, log: Log<'_>) -> FirstSession {
    let mut attempts = 0_u64;
    loop {
        let error = match listen::connect(options, log).await {
            Ok(session) => return session,
            Err(error) => error,
        };
        attempts += 1;
        if attempts.is_power_of_two() {
            let error = error.to_string().replace('\n', "; ");
            log(Line::new(Level::Warn, format!("LISTEN session can't connect (attempt {attempts}): {error}")));
        }
        sleep(BACKOFF).await;
    }
}
