//! One connection in service: wishes in, news out, health, until it is lost.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::{pending, poll_fn, ready, Future};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::{sleep_until, Instant};
use tokio_postgres::{AsyncMessage, Client, Notification};

use super::channel::{self, Encoding};
use super::connection::{words, Connection, Link};
use crate::session::{Ended, News, Queue, Wishes};

/// How much longer than a health-check interval the server may take to answer. With the interval of idleness before it,
/// a silent server is noticed within two intervals and 5 s.
const GRACE: Duration = Duration::from_secs(4);
/// Statements on their way at once.
const IN_FLIGHT: usize = 1024;

/// What a statement on its way is for.
enum Purpose {
    Listen(Arc<str>),
    /// UNLISTEN or a health check.
    Nothing,
}

type Answer = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>>>>;

/// A statement that the server has not answered yet.
struct Statement {
    number: u64,
    purpose: Purpose,
    sent: Instant,
    answer: Answer,
}

/// A channel that somebody wants.
#[derive(Default)]
struct Channel {
    /// More than one only where PostgreSQL cuts long names to the same channel.
    queues: Vec<Queue>,
    /// The number of its last LISTEN. An earlier one's answer means nothing: an UNLISTEN went out in between.
    listen: u64,
    confirmed: bool,
}

/// One connection in service.
pub(crate) struct Live<'a> {
    encoding: Encoding,
    client: Rc<Client>,
    link: Link,
    early: VecDeque<Notification>,
    health_check: Duration,
    wishes: &'a Wishes,
    news: &'a Sender<News>,
    channels: HashMap<Arc<str>, Channel>,
    /// Wishes not looked at yet.
    todo: VecDeque<Queue>,
    /// In the order in which they were sent, which is that of the answers.
    in_flight: VecDeque<Statement>,
    sent: u64,
    answered: u64,
    /// Until all that was wished for at the beginning is LISTENed.
    building: Building,
    /// When the server last gave a sign of life that we took notice of.
    heard: Instant,
    /// The server seems to be silent, and its socket is looked at once more.
    last_look: bool,
}

/// How far a new connection is.
enum Building {
    /// Sending.
    Asking,
    /// Up when the statement of this number is answered.
    Until(u64),
    Done,
}

enum Event {
    Answer(Result<(), tokio_postgres::Error>),
    Changes(Vec<Queue>),
    Notified(Notification),
    Lost(String),
    Silence,
}

impl<'a> Live<'a> {
    pub fn new(connection: Connection, health_check: Duration, wishes: &'a Wishes, news: &'a Sender<News>) -> Self {
        Self {
            encoding: Encoding::named(connection.link.parameter("server_encoding")),
            client: Rc::new(connection.client),
            link: connection.link,
            early: connection.notified,
            health_check,
            wishes,
            news,
            channels: HashMap::new(),
            todo: wishes.all().into(),
            in_flight: VecDeque::new(),
            sent: 0,
            answered: 0,
            building: Building::Asking,
            heard: Instant::now(),
            last_look: false,
        }
    }

    /// LISTENs and UNLISTENs as the wishes change, and tells the news, until the connection is lost.
    pub async fn serve(mut self) -> Ended {
        match self.work().await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    async fn work(&mut self) -> Result<std::convert::Infallible, Ended> {
        while let Some(notification) = self.early.pop_front() {
            self.wake(&notification).await?;
        }
        loop {
            while self.in_flight.len() < IN_FLIGHT {
                let Some(queue) = self.todo.pop_front() else { break };
                self.fulfil(queue).await?;
            }
            self.see_whether_up().await?;
            match self.next().await {
                Event::Answer(result) => self.take_answer(result).await?,
                Event::Changes(queues) => self.todo.extend(queues),
                Event::Notified(notification) => self.wake(&notification).await?,
                Event::Lost(reason) => return Err(Ended::Lost(reason)),
                Event::Silence => self.break_silence().await?,
            }
        }
    }

    async fn next(&mut self) -> Event {
        let Self { link, in_flight, wishes, todo, last_look, .. } = self;
        let front = in_flight.front_mut();
        let deadline = match &front {
            None => self.heard + self.health_check,
            Some(statement) => statement.sent.max(self.heard) + self.health_check + GRACE,
        };
        let answer = async {
            match front {
                Some(statement) => statement.answer.as_mut().await,
                None => pending().await,
            }
        };
        let silence = async {
            if *last_look {
                // The reactor looks at the socket in between, and then the link takes what it found.
                for _ in 0..2 {
                    tokio::task::yield_now().await;
                }
            } else {
                sleep_until(deadline).await;
            }
        };
        // Answers and wishes first: there is a limited number of them, while notifications may never cease.
        tokio::select! {
            biased;
            result = answer => Event::Answer(result),
            queues = wishes.changes(), if todo.is_empty() => Event::Changes(queues),
            event = poll_fn(|cx| poll_link(link, cx)) => event,
            () = silence => Event::Silence,
        }
    }

    fn hear(&mut self) {
        self.heard = Instant::now();
        self.last_look = false;
    }

    /// LISTENs or UNLISTENs as this queue's wish is now.
    async fn fulfil(&mut self, queue: Queue) -> Result<(), Ended> {
        let wanted = self.wishes.wanted(&queue);
        let name = match (channel::of(&queue, self.encoding), &wanted) {
            (Ok(name), _) => name,
            (Err(reason), Some(queue)) => {
                return self.tell(News::Refused { queue: queue.clone(), reason: reason.to_owned() }).await
            }
            (Err(_), None) => return Ok(()),
        };
        let Some(queue) = wanted else {
            if let Entry::Occupied(mut entry) = self.channels.entry(name.clone()) {
                entry.get_mut().queues.retain(|other| *other != queue);
                if entry.get().queues.is_empty() {
                    entry.remove();
                    self.send(format!("UNLISTEN {}", channel::quoted(&name)), Purpose::Nothing).await;
                }
            }
            return Ok(());
        };
        let channel = self.channels.entry(name.clone()).or_default();
        if !channel.queues.contains(&queue) {
            channel.queues.push(queue.clone());
        }
        if channel.confirmed {
            return self.tell(News::Listening(queue)).await;
        }
        if channel.listen == 0 {
            channel.listen = self.sent + 1;
            self.send(format!("LISTEN {}", channel::quoted(&name)), Purpose::Listen(name)).await;
        }
        Ok(())
    }

    /// Puts a statement on its way; the link sends it when it is polled next.
    async fn send(&mut self, sql: String, purpose: Purpose) {
        self.sent += 1;
        let client = self.client.clone();
        let mut answer: Answer = Box::pin(async move { client.batch_execute(&sql).await });
        // The first poll hands the statement to the link. It can't be answered yet; if the link is gone, the link says so.
        let early = poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await;
        if let Poll::Ready(result) = early {
            answer = Box::pin(ready(result));
        }
        self.in_flight.push_back(Statement { number: self.sent, purpose, sent: Instant::now(), answer });
    }

    async fn take_answer(&mut self, result: Result<(), tokio_postgres::Error>) -> Result<(), Ended> {
        self.hear();
        let Some(Statement { number, purpose, .. }) = self.in_flight.pop_front() else { return Ok(()) };
        self.answered = number;
        let refused = match result {
            Ok(()) => None,
            Err(error) if error.as_db_error().is_some_and(|error| is_about_the_name(error.code().code())) => {
                Some(words(&error))
            }
            Err(error) => return Err(Ended::Lost(words(&error))),
        };
        let Purpose::Listen(name) = purpose else { return Ok(()) };
        let Entry::Occupied(mut entry) = self.channels.entry(name) else { return Ok(()) };
        if entry.get().listen != number {
            return Ok(());
        }
        let queues = match &refused {
            None => {
                entry.get_mut().confirmed = true;
                entry.get().queues.clone()
            }
            Some(_) => entry.remove().queues,
        };
        for queue in queues {
            // One that is not wanted any more asks no question; its UNLISTEN is still to come.
            let Some(queue) = self.wishes.wanted(&queue) else { continue };
            self.tell(match &refused {
                None => News::Listening(queue),
                Some(reason) => News::Refused { queue, reason: reason.clone() },
            })
            .await?;
        }
        Ok(())
    }

    async fn see_whether_up(&mut self) -> Result<(), Ended> {
        if matches!(self.building, Building::Asking) && self.todo.is_empty() {
            self.building = Building::Until(self.sent);
        }
        if matches!(self.building, Building::Until(number) if number <= self.answered) {
            self.building = Building::Done;
            self.tell(News::Up).await?;
        }
        Ok(())
    }

    async fn wake(&mut self, notification: &Notification) -> Result<(), Ended> {
        self.hear();
        let Some(channel) = self.channels.get(notification.channel()) else { return Ok(()) };
        let payload = Some(notification.payload()).filter(|text| !text.is_empty()).map(Arc::<str>::from);
        for queue in channel.queues.clone() {
            self.tell(News::Wake { queue, payload: payload.clone() }).await?;
        }
        Ok(())
    }

    async fn tell(&mut self, news: News) -> Result<(), Ended> {
        self.news.send(news).await.map_err(|_| Ended::NobodyListens)?;
        self.hear();
        Ok(())
    }

    /// The server was silent for too long: asks it something, and if it owes an answer already, gives it up. But this
    /// process may have stood still, and the answer may lie in the socket: then that is looked at once more.
    async fn break_silence(&mut self) -> Result<(), Ended> {
        if !self.in_flight.is_empty() {
            if !self.last_look {
                self.last_look = true;
                return Ok(());
            }
            let silence = self.health_check + GRACE;
            return Err(Ended::Lost(format!("no answer for {} ms", silence.as_millis())));
        }
        self.send("SELECT 1".to_owned(), Purpose::Nothing).await;
        Ok(())
    }
}

fn poll_link(link: &mut Link, cx: &mut std::task::Context<'_>) -> Poll<Event> {
    loop {
        return Poll::Ready(match std::task::ready!(link.poll_message(cx)) {
            Some(Ok(AsyncMessage::Notification(notification))) => Event::Notified(notification),
            // Notices don't come so far.
            Some(Ok(_)) => continue,
            Some(Err(error)) => Event::Lost(words(&error)),
            None => Event::Lost("the connection was closed".to_owned()),
        });
    }
}

/// Whether the server objects to the statement itself. Any other error, such as a cancel or a lack of memory, says
/// nothing about the name; then the session is built anew, which tries the name again.
fn is_about_the_name(sqlstate: &str) -> bool {
    ["22", "42", "54", "0A"].iter().any(|class| sqlstate.starts_with(class))
}
