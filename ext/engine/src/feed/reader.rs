//! Reads pages of streams from the database, on a session of the feed's own.
//!
//! A page is one unnamed statement and one round trip, so the session may go through a pooler in transaction mode.
//! Reads of many streams are on their way at once. A read is asked again on the next connection when the one it was
//! sent on is lost: only the server's own refusal of a read is an error of that read.

use std::collections::VecDeque;
use std::error::Error as _;
use std::future::{pending, poll_fn, ready, Future};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc::{Sender, UnboundedReceiver};
use tokio::time::{interval_at, sleep, Instant, Interval, MissedTickBehavior};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::Client;

use super::events::{ReadId, Row};
use crate::listen::{self, words, Connection, Link, Log};
use crate::log::{Level, Line};
use crate::retry::{until_connected, BACKOFF};
use crate::session::recipe::{Recipe, Recipes};
use crate::session::Queue;

/// Reads on their way at once: enough to hide the round trip, few enough that their pages fit into memory.
const IN_FLIGHT: usize = 16;
/// Silence is counted in ticks, not by the clock: while this process is stopped, the server's answers lie in our socket
/// and no tick passes.
const TICK: Duration = Duration::from_secs(1);
/// Ticks without a read after which the server is asked for a sign of life.
const IDLE_TICKS: u32 = 15;
/// Ticks that the server may take to answer; twice as many after each loss by silence, up to [`MOST_TICKS`], so that
/// a server that is only slow is not asked the same thing for ever.
const ANSWER_TICKS: u32 = 5;
const MOST_TICKS: u32 = 80;

/// A page to read: the rows of `queue` whose msg_id is above `after`, `limit` of them at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// Comes back with the page.
    pub id: ReadId,
    /// The queue, by its whole name.
    pub queue: Queue,
    /// The msg_id before the page.
    pub after: i64,
    /// The most rows that the page may have.
    pub limit: usize,
}

/// What became of a read: its rows in the order of their msg_id, or the server's words. A queue whose tables do not
/// exist has no rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The read's.
    pub id: ReadId,
    /// The rows.
    pub rows: Result<Vec<Row>, String>,
}

/// Reads until nobody asks any more, or nobody takes the pages. Connects at once and anew after every loss.
pub async fn run(mut recipes: Recipes, mut reads: UnboundedReceiver<Read>, pages: &Sender<Page>, log: Log<'_>) {
    let mut unanswered = VecDeque::new();
    let mut answer_ticks = ANSWER_TICKS;
    loop {
        let failure = "the session for reads can't connect";
        let connection = until_connected(failure, log, async || connect(&mut recipes).await).await;
        let mut session = Session::new(connection, answer_ticks);
        let ended = session.serve(&mut unanswered, &mut reads, pages).await;
        unanswered = session.unanswered(unanswered);
        let reason = match ended {
            Ended::NobodyAsks => return,
            Ended::Silent => {
                answer_ticks = (answer_ticks * 2).min(MOST_TICKS);
                format!("no answer for {} s", session.silent_ticks)
            }
            Ended::Lost(reason) => {
                answer_ticks = ANSWER_TICKS;
                reason
            }
        };
        log(Line::new(Level::Warn, format!("the session for reads is lost ({reason}), reconnecting")));
        if session.answered_nothing {
            sleep(BACKOFF).await;
        }
    }
}

async fn connect(recipes: &mut Recipes) -> Result<Connection, String> {
    match recipes.next().await? {
        Recipe::Native(options) => listen::reconnect(&options).await.map_err(|error| error.to_string()),
        Recipe::Ruby { because } => Err(format!("it can't honour {because}")),
    }
}

/// Why a session's service ended.
enum Ended {
    NobodyAsks,
    Silent,
    Lost(String),
}

type Answer = Pin<Box<dyn Future<Output = Result<Vec<Row>, tokio_postgres::Error>>>>;

/// A statement that the server has not answered yet.
struct Statement {
    /// None: a question for a sign of life.
    read: Option<Read>,
    answer: Answer,
}

/// One connection in service.
struct Session {
    client: Rc<Client>,
    link: Link,
    /// In the order in which they were sent, which is that of the answers.
    in_flight: VecDeque<Statement>,
    ticks: Interval,
    silent_ticks: u32,
    answer_ticks: u32,
    answered_nothing: bool,
}

enum Event {
    Answer(Result<Vec<Row>, tokio_postgres::Error>),
    Read(Option<Read>),
    Lost(String),
    Tick,
}

impl Session {
    fn new(connection: Connection, answer_ticks: u32) -> Self {
        let mut ticks = interval_at(Instant::now() + TICK, TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            client: Rc::new(connection.client),
            link: connection.link,
            in_flight: VecDeque::new(),
            ticks,
            silent_ticks: 0,
            answer_ticks,
            answered_nothing: true,
        }
    }

    /// What has to be read on the next connection, in the order in which it was asked for.
    fn unanswered(&mut self, waiting: VecDeque<Read>) -> VecDeque<Read> {
        self.in_flight.drain(..).filter_map(|statement| statement.read).chain(waiting).collect()
    }

    async fn serve(
        &mut self,
        waiting: &mut VecDeque<Read>,
        reads: &mut UnboundedReceiver<Read>,
        pages: &Sender<Page>,
    ) -> Ended {
        loop {
            while self.in_flight.len() < IN_FLIGHT {
                let Some(read) = waiting.pop_front() else { break };
                self.send(Some(read)).await;
            }
            match self.next(reads).await {
                Event::Answer(result) => match self.take(result) {
                    Ok(Some(page)) => {
                        if pages.send(page).await.is_err() {
                            return Ended::NobodyAsks;
                        }
                    }
                    Ok(None) => {}
                    Err(reason) => return Ended::Lost(reason),
                },
                Event::Read(Some(read)) => self.send(Some(read)).await,
                Event::Read(None) => return Ended::NobodyAsks,
                Event::Lost(reason) => return Ended::Lost(reason),
                Event::Tick => {
                    self.silent_ticks += 1;
                    let asked = !self.in_flight.is_empty();
                    if asked && self.silent_ticks > self.answer_ticks {
                        return Ended::Silent;
                    }
                    if !asked && self.silent_ticks >= IDLE_TICKS {
                        self.send(None).await;
                    }
                }
            }
        }
    }

    async fn next(&mut self, reads: &mut UnboundedReceiver<Read>) -> Event {
        let Self { link, in_flight, ticks, .. } = self;
        let may_read = in_flight.len() < IN_FLIGHT;
        let answer = async {
            match in_flight.front_mut() {
                Some(statement) => statement.answer.as_mut().await,
                None => pending().await,
            }
        };
        let lost = poll_fn(|cx| loop {
            match link.poll_message(cx) {
                Poll::Ready(Some(Ok(_))) => {} // a notice, or a NOTIFY by way of a pooler
                Poll::Ready(Some(Err(error))) => return Poll::Ready(words(&error)),
                Poll::Ready(None) => return Poll::Ready("the connection was closed".to_owned()),
                Poll::Pending => return Poll::Pending,
            }
        });
        tokio::select! {
            biased;
            result = answer => Event::Answer(result),
            read = reads.recv(), if may_read => Event::Read(read),
            reason = lost => Event::Lost(reason),
            _ = ticks.tick() => Event::Tick,
        }
    }

    /// Puts a read, or a question for a sign of life, on its way; the link sends it when it is polled next.
    async fn send(&mut self, read: Option<Read>) {
        if self.in_flight.is_empty() {
            self.silent_ticks = 0;
        }
        let client = self.client.clone();
        let mut answer: Answer = match read.clone() {
            Some(read) => Box::pin(async move { page(&client, &read).await }),
            None => Box::pin(async move { client.batch_execute("SELECT 1").await.map(|()| Vec::new()) }),
        };
        // The first poll hands the statement to the link. It can't be answered yet; if the link is gone, the link says so.
        let early = poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await;
        if let Poll::Ready(result) = early {
            answer = Box::pin(ready(result));
        }
        self.in_flight.push_back(Statement { read, answer });
    }

    /// Takes the answer to the statement in front. None: it was a sign of life.
    ///
    /// # Errors
    /// The connection is lost, and the statement was not answered.
    fn take(&mut self, result: Result<Vec<Row>, tokio_postgres::Error>) -> Result<Option<Page>, String> {
        let rows = match result {
            Ok(rows) => Ok(rows),
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(Vec::new()),
            Err(error) if ends_the_session(&error) => return Err(words(&error)),
            Err(error) => Err(words(&error)),
        };
        self.silent_ticks = 0;
        self.answered_nothing = false;
        let statement = self.in_flight.pop_front();
        Ok(statement.and_then(|statement| statement.read).map(|read| Page { id: read.id, rows }))
    }
}

/// One page, in one round trip and without a named statement.
async fn page(client: &Client, read: &Read) -> Result<Vec<Row>, tokio_postgres::Error> {
    let limit = i64::try_from(read.limit).unwrap_or(i64::MAX);
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&read.after, Type::INT8), (&limit, Type::INT8)];
    let rows = client.query_typed(&page_sql(&read.queue), &parameters).await?;
    let row = |row: &tokio_postgres::Row| {
        let message = row.try_get::<_, Option<Text>>(1)?.map_or_else(Box::default, |text| text.0);
        Ok(Row { msg_id: row.try_get(0)?, message })
    };
    rows.iter().map(row).collect()
}

/// Each table gives its first rows by itself, so that each uses its index. A table's name is folded to lower case, as
/// PGMQ creates it and as PostgreSQL folds a name that is not quoted.
fn page_sql(queue: &str) -> String {
    let table = |kind: char| {
        let name = format!("{kind}_{}", queue.to_ascii_lowercase()).replace('"', "\"\"");
        format!("SELECT msg_id, message::text FROM pgmq.\"{name}\" WHERE msg_id > $1 ORDER BY msg_id LIMIT $2")
    };
    format!("({}) UNION ALL ({}) ORDER BY msg_id LIMIT $2", table('q'), table('a'))
}

/// Whether the error says that the connection is of no use any more: what the server says when it or a pooler closes
/// it, or nothing at all.
fn ends_the_session(error: &tokio_postgres::Error) -> bool {
    match error.code() {
        Some(code) => code.code().starts_with("57P") || code.code().starts_with("08"),
        None => error.is_closed() || error.source().is_some_and(|cause| cause.is::<std::io::Error>()),
    }
}

/// A text in whatever encoding: a database without one (SQL_ASCII) may hold bytes that are no UTF-8.
struct Text(Box<str>);

impl FromSql<'_> for Text {
    fn from_sql(_: &Type, bytes: &[u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(String::from_utf8_lossy(bytes).into()))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TEXT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_read_from_the_tables_that_pgmq_made_for_it() {
        let sql = page_sql("pgbus_Chat");
        assert!(sql.contains("FROM pgmq.\"q_pgbus_chat\" WHERE") && sql.contains("FROM pgmq.\"a_pgbus_chat\" WHERE"));
        assert!(page_sql("a\"b").contains("pgmq.\"q_a\"\"b\""));
    }
}
