//! A worker's end of the hub's Unix socket: follows the feed's wishes as a LISTEN session does, and tells the same news.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, sleep_until, Instant};

use crate::inherit::{self, Kept};
use crate::session::{News, Queue, Wishes};
use crate::wire::{self, Decoder, Reply};

/// Between two attempts at a hub that has more connections to accept than its socket can hold.
const RETRY: Duration = Duration::from_millis(10);
/// Bytes that are read at once.
const READ_BYTES: usize = 64 * 1024;

/// A connection to the hub, over which nothing was said yet.
pub struct HubClient {
    stream: Kept<UnixStream>,
    ack_timeout: Duration,
}

impl HubClient {
    /// Connects. A sub whose ack takes longer than `ack_timeout` ends the connection: a hub that is so late can't be
    /// trusted with wakes either.
    ///
    /// # Errors
    /// Nobody accepts connections at this path within `ack_timeout`.
    pub async fn connect(path: &Path, ack_timeout: Duration) -> io::Result<Self> {
        let address = SockAddr::unix(path)?;
        let deadline = Instant::now() + ack_timeout;
        loop {
            let stream = inherit::open(|| {
                let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
                socket.set_nonblocking(true)?;
                socket.connect(&address)?;
                UnixStream::from_std(socket.into())
            });
            match stream {
                Ok(stream) => return Ok(Self { stream, ack_timeout }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    sleep(RETRY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Follows `wishes` and tells `news` until the hub is gone; gives the reason. None: nobody takes the news any more.
    pub async fn follow(self, wishes: &Wishes, news: &Sender<News>) -> Option<String> {
        let mut service = Service {
            todo: wishes.all().into(),
            client: self,
            wishes,
            news,
            subs: HashMap::new(),
            outgoing: BytesMut::new(),
            decoder: Decoder::default(),
            healthy: true,
        };
        let ended = service.serve().await;
        wishes.rest();
        match ended {
            Err(Ended::Gone(reason)) => Some(reason),
            Err(Ended::NobodyListens) | Ok(()) => None,
        }
    }
}

enum Ended {
    Gone(String),
    NobodyListens,
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Gone(error.to_string())
    }
}

impl From<wire::ProtocolError> for Ended {
    fn from(error: wire::ProtocolError) -> Self {
        Self::Gone(error.to_string())
    }
}

/// A queue's sub. It stays until it was acked, whatever is wished meanwhile: so each ack belongs to the one sub of its
/// queue that is on its way.
enum Sub {
    /// Since when.
    Asked(Instant),
    Active,
}

struct Service<'a> {
    client: HubClient,
    wishes: &'a Wishes,
    news: &'a Sender<News>,
    /// Wishes not looked at yet.
    todo: VecDeque<Queue>,
    subs: HashMap<Queue, Sub>,
    /// What the socket did not take yet.
    outgoing: BytesMut,
    decoder: Decoder,
    healthy: bool,
}

impl Service<'_> {
    async fn serve(&mut self) -> Result<(), Ended> {
        self.tell(News::Up).await?;
        let mut buffer = vec![0; READ_BYTES];
        let mut look = Instant::now() + self.client.ack_timeout;
        loop {
            while self.outgoing.is_empty() {
                let Some(queue) = self.todo.pop_front() else { break };
                self.fulfil(queue).await?;
                self.write()?;
            }
            let interest = match self.outgoing.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            // Time last: while this process was stopped, acks may have come in time that were not read yet.
            tokio::select! {
                biased;
                queues = self.wishes.changes(), if self.todo.is_empty() => self.todo.extend(queues),
                ready = self.client.stream.ready(interest) => {
                    let ready = ready?;
                    if ready.is_writable() {
                        self.write()?;
                    }
                    if ready.is_readable() {
                        self.read(&mut buffer).await?;
                    }
                }
                () = sleep_until(look) => look = self.check_acks()?,
            }
        }
    }

    async fn read(&mut self, buffer: &mut [u8]) -> Result<(), Ended> {
        match self.client.stream.try_read(buffer) {
            Ok(0) => return Err(Ended::Gone("the hub closed the connection".to_owned())),
            Ok(length) => self.decoder.push(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        while let Some(reply) = self.decoder.next_reply()? {
            match reply {
                Reply::Ack { q } => self.acked(q.into()).await?,
                Reply::Wake { q, p } => self.tell(News::Wake { queue: q.into(), payload: p.map(Into::into) }).await?,
                Reply::Status { healthy } => self.status(healthy).await?,
                Reply::Unknown => {}
            }
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), Ended> {
        while !self.outgoing.is_empty() {
            match self.client.stream.try_write(&self.outgoing) {
                Ok(length) => self.outgoing.advance(length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Subscribes or unsubscribes as this queue's wish is now.
    async fn fulfil(&mut self, queue: Queue) -> Result<(), Ended> {
        match (self.wishes.wanted(&queue), self.subs.get(&queue)) {
            (Some(queue), Some(Sub::Active)) => self.tell(News::Listening(queue)).await?,
            (Some(queue), None) => match wire::sub(&queue) {
                Ok(frame) => {
                    self.outgoing.extend_from_slice(&frame);
                    self.subs.insert(queue, Sub::Asked(Instant::now()));
                }
                Err(error) => self.tell(News::Refused { queue, reason: error.to_string() }).await?,
            },
            (None, Some(Sub::Active)) => {
                self.subs.remove(&queue);
                self.outgoing.extend_from_slice(&wire::unsub(&queue)?);
            }
            (_, Some(Sub::Asked(_))) | (None, None) => {}
        }
        Ok(())
    }

    async fn acked(&mut self, queue: Queue) -> Result<(), Ended> {
        let Some(sub) = self.subs.get_mut(&queue) else { return Ok(()) };
        *sub = Sub::Active;
        match self.wishes.wanted(&queue) {
            Some(queue) => self.tell(News::Listening(queue)).await?,
            None => self.todo.push_back(queue),
        }
        Ok(())
    }

    /// A hub without a session hears nothing: what changed meanwhile is unknown.
    async fn status(&mut self, healthy: bool) -> Result<(), Ended> {
        match (std::mem::replace(&mut self.healthy, healthy), healthy) {
            (true, false) => self.tell(News::Down { reason: "the hub has no LISTEN session".to_owned() }).await,
            (false, true) => self.tell(News::Up).await,
            _ => Ok(()),
        }
    }

    /// Gives when to look again.
    fn check_acks(&self) -> Result<Instant, Ended> {
        let now = Instant::now();
        let oldest = self.subs.values().filter_map(|sub| match sub {
            Sub::Asked(since) => Some(*since),
            Sub::Active => None,
        });
        let due = oldest.min().unwrap_or(now) + self.client.ack_timeout;
        if due <= now {
            return Err(Ended::Gone(format!("no ack within {} ms", self.client.ack_timeout.as_millis())));
        }
        Ok(due)
    }

    async fn tell(&mut self, news: News) -> Result<(), Ended> {
        self.news.send(news).await.map_err(|_| Ended::NobodyListens)
    }
}
