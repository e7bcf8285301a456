//! A session's life: recipe, connection, service, loss, and again.

use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, Instant};

use super::recipe::{Recipe, Recipes};
use super::ruby::RubySession;
use super::{Ended, News, Wishes};
use crate::listen::{self, ConnectError, Connection, Live, Log};
use crate::log::{Level, Line};
use crate::retry::{until_connected, BACKOFF};

/// Connections in a row that were lost within [`BACKOFF`] before the next attempt waits, too. The first ones must not:
/// ephemeral wakes of that time are lost. More than these come from a server that takes us and drops us at once, which
/// is not asked more often than one that does not take us.
const QUICK_LOSSES: u32 = 3;
/// How long a Ruby session may take to connect anew.
const RUBY_CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// What makes a LISTEN session, again and again.
#[derive(Debug)]
pub struct Session {
    recipes: Recipes,
    ruby: RubySession,
    health_check: Duration,
    /// Why the last connection was Ruby's, where it was.
    because: Option<String>,
}

/// A session that is connected and LISTENs to nothing yet.
#[derive(Debug)]
pub struct Connected(Kind);

#[derive(Debug)]
enum Kind {
    Native(Box<Connection>),
    Ruby,
}

impl Session {
    /// A native connection that is idle for `health_check` is asked for a sign of life.
    pub fn new(recipes: Recipes, ruby: RubySession, health_check: Duration) -> Self {
        Self { recipes, ruby, health_check, because: None }
    }

    /// Connects for the first time and, natively, probes whether NOTIFY arrives; see [`listen::connect`].
    ///
    /// # Errors
    /// See [`ConnectError`]; what the native session does not support was tried as a Ruby session.
    pub async fn connect(&mut self, log: Log<'_>) -> Result<Connected, ConnectError> {
        let because = match self.recipe().await? {
            Recipe::Native(options) => match listen::connect(&options, log).await {
                Err(ConnectError::Unsupported { option, why }) => format!("{option}: {why}"),
                connection => return connection.map(|connection| self.native(connection)),
            },
            Recipe::Ruby { because } => because,
        };
        self.connect_by_ruby(because, None, log).await
    }

    async fn reconnect(&mut self, log: Log<'_>) -> Result<Connected, ConnectError> {
        let because = match self.recipe().await? {
            Recipe::Native(options) => match listen::reconnect(&options).await {
                Err(ConnectError::Unsupported { option, why }) => format!("{option}: {why}"),
                connection => return connection.map(|connection| self.native(connection)),
            },
            Recipe::Ruby { because } => because,
        };
        self.connect_by_ruby(because, Some(RUBY_CONNECT_TIMEOUT), log).await
    }

    async fn recipe(&mut self) -> Result<Recipe, ConnectError> {
        self.recipes.next().await.map_err(ConnectError::Failed)
    }

    fn native(&mut self, connection: Connection) -> Connected {
        self.because = None;
        Connected(Kind::Native(Box::new(connection)))
    }

    async fn connect_by_ruby(
        &mut self,
        because: String,
        limit: Option<Duration>,
        log: Log<'_>,
    ) -> Result<Connected, ConnectError> {
        if self.because.as_ref() != Some(&because) {
            let text = format!("the LISTEN session is a Ruby session, since the native one can't honour {because}");
            log(Line::new(Level::Info, text));
            self.because = Some(because.clone());
        }
        self.ruby.connect(because, limit).await.map_err(ConnectError::Failed)?;
        Ok(Connected(Kind::Ruby))
    }

    /// Runs the session until its future is dropped, or until nobody takes its news any more: LISTENs and UNLISTENs as
    /// `wishes` change, tells `news`, and connects anew, by a new recipe, when the connection is lost.
    ///
    /// Time that the session waits for room in `news` does not count as silence of the server's.
    pub async fn run(mut self, first: Connected, wishes: &Wishes, news: &Sender<News>, log: Log<'_>) {
        let mut connected = first;
        let mut quick_losses = 0;
        loop {
            let since = Instant::now();
            let ended = match connected.0 {
                Kind::Native(connection) => Live::new(*connection, self.health_check, wishes, news).serve().await,
                Kind::Ruby => {
                    let ended = self.ruby.follow(wishes, news).await;
                    self.ruby.close();
                    ended
                }
            };
            let Ended::Lost(reason) = ended else { return };
            wishes.rest();
            log(Line::new(Level::Warn, format!("LISTEN session lost ({reason}), reconnecting")));
            if news.send(News::Down { reason }).await.is_err() {
                return;
            }
            quick_losses = if since.elapsed() < BACKOFF { quick_losses + 1 } else { 0 };
            if quick_losses > QUICK_LOSSES {
                sleep(BACKOFF).await;
            }
            let failure = "LISTEN session can't reconnect";
            connected = until_connected(failure, log, async || self.reconnect(log).await).await;
            log(Line::new(Level::Info, "LISTEN session is connected again"));
        }
    }
}
