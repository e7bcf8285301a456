//! TCP to one of a server's addresses. One that does not answer keeps nobody from the next: each address has a head
//! start, then the next is tried beside it.

use std::collections::VecDeque;
use std::future::{poll_fn, Future};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{sleep_until, timeout_at, Instant};

use super::options::Options;
use super::socket::Socket;

/// RFC 8305's connection attempt delay.
const HEAD_START: Duration = Duration::from_millis(250);

/// The addresses of one server, in the order in which they are to be tried.
pub(super) struct Race<'a> {
    options: &'a Options,
    limit: Option<Duration>,
    waiting: VecDeque<SocketAddr>,
    running: Vec<Runner<'a>>,
    next_start: Instant,
}

struct Runner<'a> {
    address: SocketAddr,
    deadline: Option<Instant>,
    connecting: Pin<Box<dyn Future<Output = io::Result<Socket>> + 'a>>,
}

/// An address that answered, refused, or took too long.
pub(super) struct Finish {
    pub address: SocketAddr,
    /// Until when this address may take to become a session.
    pub deadline: Option<Instant>,
    pub connected: io::Result<Socket>,
}

impl<'a> Race<'a> {
    /// `limit` is that of each address.
    pub fn new(addresses: impl Iterator<Item = SocketAddr>, options: &'a Options, limit: Option<Duration>) -> Self {
        Self { options, limit, waiting: addresses.collect(), running: Vec::new(), next_start: Instant::now() }
    }

    /// The next to finish. None: all have.
    pub async fn next(&mut self) -> Option<Finish> {
        loop {
            if self.running.is_empty() || Instant::now() >= self.next_start {
                match self.waiting.pop_front() {
                    Some(address) => self.start(address),
                    None if self.running.is_empty() => return None,
                    None => {}
                }
            }
            let (next_start, more) = (self.next_start, !self.waiting.is_empty());
            tokio::select! {
                biased;
                finish = self.finish() => return Some(finish),
                () = sleep_until(next_start), if more => {}
            }
        }
    }

    fn start(&mut self, address: SocketAddr) {
        self.next_start = Instant::now() + HEAD_START;
        let deadline = self.limit.map(|limit| Instant::now() + limit);
        let connecting = Socket::tcp(address, self.options);
        let connecting = async move {
            match deadline {
                Some(deadline) => timeout_at(deadline, connecting).await.unwrap_or_else(|_| Err(expired())),
                None => connecting.await,
            }
        };
        self.running.push(Runner { address, deadline, connecting: Box::pin(connecting) });
    }

    async fn finish(&mut self) -> Finish {
        poll_fn(|cx| {
            for at in 0..self.running.len() {
                if let Poll::Ready(connected) = self.running[at].connecting.as_mut().poll(cx) {
                    let Runner { address, deadline, .. } = self.running.remove(at);
                    return Poll::Ready(Finish { address, deadline, connected });
                }
            }
            Poll::Pending
        })
        .await
    }
}

fn expired() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "timeout expired")
}
