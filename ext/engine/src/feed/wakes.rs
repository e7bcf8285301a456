//! Where the feed's wakes come from: the hub, while there is one; then a LISTEN session of the feed's own.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc::{unbounded_channel, Sender};

use super::hub_client::HubClient;
use crate::listen::Log;
use crate::log::{Level, Line};
use crate::retry::until_connected;
use crate::session::recipe::Recipes;
use crate::session::ruby::{Happened, Order, Report, RubySession};
use crate::session::{News, Session, Wishes};

/// How much longer than a health check the hub may take for an ack: its own session has one second less.
const ACK_GRACE: Duration = Duration::from_secs(2);

/// How a feed hears its wakes.
#[derive(Debug)]
pub struct Source {
    /// The hub's socket. None: there is no hub.
    pub hub: Option<PathBuf>,
    /// For the LISTEN session that is opened without a hub, and when the hub has ended. The feed does not go back from
    /// it to a hub.
    pub recipes: Recipes,
    /// How long the session's connection may be idle before it is asked for a sign of life; an ack of the hub's may
    /// take two seconds longer.
    pub health_check: Duration,
}

/// Follows `wishes` and tells `news` until nobody takes them any more. [`News::Down`] is told when the hub has ended, and
/// [`News::Up`] when its place is taken.
pub async fn run(source: Source, wishes: &Wishes, news: &Sender<News>, log: Log<'_>) {
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
    let mut session = Session::new(source.recipes, no_ruby_session(), source.health_check);
    let first = until_connected("LISTEN session can't connect", log, async || session.connect(log).await).await;
    session.run(first, wishes, news, log).await;
}

/// Where only libpq can connect, there is no feed: a recipe that says so later is a failure like any other.
fn no_ruby_session() -> RubySession {
    let (report, reports) = unbounded_channel();
    let refuse = move |order| {
        if let Order::Connect { number, because } = order {
            let reason = format!("the feed's own can't honour {because}");
            let _ = report.send(Report { number, happened: Happened::Lost { reason } });
        }
    };
    RubySession::new(refuse, reports)
}
