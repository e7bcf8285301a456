//! A connection that Ruby makes over libpq, for a recipe that the engine can't follow. It follows the hub's wishes as a
//! native one does, and lives until it is lost: then the next recipe decides what takes its place.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use tokio::sync::mpsc::{Sender, UnboundedReceiver};
use tokio::time::timeout;

use super::{Ended, News, Queue, Wishes};

/// Orders that Ruby has not carried out yet, at most. More wait as wishes, of which there is one for each queue.
const IN_FLIGHT: usize = 1024;

/// What Ruby is to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Connect, close what was connected before, and report [`Happened::Connected`] or [`Happened::Lost`].
    Connect {
        /// That of the connection.
        number: u64,
        /// Why it isn't a native one.
        because: String,
    },
    /// LISTEN, and report [`Happened::Done`].
    Listen(Queue),
    /// UNLISTEN, and report [`Happened::Done`].
    Unlisten(Queue),
    /// Close the connection. No report.
    Close,
}

/// What became of a connection of Ruby's.
#[derive(Debug)]
pub struct Report {
    /// That of the connection.
    pub number: u64,
    /// What happened.
    pub happened: Happened,
}

/// See [`Report`].
#[derive(Debug)]
pub enum Happened {
    /// It is up, to a primary.
    Connected,
    /// The first order without an answer is carried out.
    Done {
        /// The database's words, where it refused.
        failure: Option<String>,
    },
    /// It could not be made, or is lost.
    Lost {
        /// Why, in words, without secrets.
        reason: String,
    },
}

/// The engine's end of Ruby's connections, one at a time.
pub struct RubySession {
    order: Box<dyn Fn(Order)>,
    reports: UnboundedReceiver<Report>,
    number: u64,
}

impl fmt::Debug for RubySession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RubySession").field("number", &self.number).finish_non_exhaustive()
    }
}

impl RubySession {
    /// `order` passes an order on and must not block; what becomes of it comes through `reports`.
    pub fn new(order: impl Fn(Order) + 'static, reports: UnboundedReceiver<Report>) -> Self {
        Self { order: Box::new(order), reports, number: 0 }
    }

    /// Has Ruby connect. Without a `limit` that may take as long as libpq lets it.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(super) async fn connect(&mut self, because: String, limit: Option<Duration>) -> Result<(), String> {
        self.number += 1;
        (self.order)(Order::Connect { number: self.number, because });
        let connected = async {
            loop {
                match self.report().await {
                    Happened::Connected => return Ok(()),
                    Happened::Lost { reason } => return Err(reason),
                    Happened::Done { .. } => {}
                }
            }
        };
        let Some(limit) = limit else { return connected.await };
        let connected = timeout(limit, connected).await;
        connected.unwrap_or_else(|_| {
            self.close();
            Err(format!("libpq did not connect within {} s", limit.as_secs()))
        })
    }

    pub(super) fn close(&self) {
        (self.order)(Order::Close);
    }

    async fn report(&mut self) -> Happened {
        loop {
            match self.reports.recv().await {
                Some(report) if report.number == self.number => return report.happened,
                Some(_) => {}
                None => return Happened::Lost { reason: "nobody reports any more".to_owned() },
            }
        }
    }

    /// Has Ruby LISTEN and UNLISTEN as `wishes` change, until the connection is lost. Wakes come another way.
    pub(super) async fn follow(&mut self, wishes: &Wishes, news: &Sender<News>) -> Ended {
        match self.work(wishes, news).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    async fn work(&mut self, wishes: &Wishes, news: &Sender<News>) -> Result<std::convert::Infallible, Ended> {
        let tell = |one| async { news.send(one).await.map_err(|_| Ended::NobodyListens) };
        let mut todo = VecDeque::from(wishes.all());
        // For each order on its way, the queue to LISTEN; None for an UNLISTEN.
        let mut in_flight: VecDeque<Option<Queue>> = VecDeque::new();
        let (mut sent, mut answered) = (0_u64, 0_u64);
        // How many orders make the connection what was wished for at the beginning; None when it is that.
        let mut setup = Some(u64::MAX);
        loop {
            while in_flight.len() < IN_FLIGHT {
                let Some(queue) = todo.pop_front() else { break };
                let wanted = wishes.wanted(&queue);
                (self.order)(wanted.clone().map_or(Order::Unlisten(queue), Order::Listen));
                in_flight.push_back(wanted);
                sent += 1;
            }
            if setup == Some(u64::MAX) && todo.is_empty() {
                setup = Some(sent);
            }
            if setup.is_some_and(|orders| orders <= answered) {
                setup = None;
                tell(News::Up).await?;
            }
            tokio::select! {
                biased;
                happened = self.report() => match happened {
                    Happened::Connected => {}
                    Happened::Done { failure } => {
                        answered += 1;
                        match (in_flight.pop_front().flatten(), failure) {
                            (Some(queue), None) => tell(News::Listening(queue)).await?,
                            (Some(queue), Some(reason)) => tell(News::Refused { queue, reason }).await?,
                            (None, _) => {}
                        }
                    }
                    Happened::Lost { reason } => return Err(Ended::Lost(reason)),
                },
                queues = wishes.changes(), if todo.is_empty() => todo.extend(queues),
            }
        }
    }
}
