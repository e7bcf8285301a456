//! Browsers: many SSE clients in one event loop, which reconnect as `EventSource` does, and check that every durable
//! message reaches each of them exactly once and in order.
//!
//! A message's data is JSON with `n`, its number among the messages of its kind (from 1), and `t`, the nanoseconds since
//! 1970 at which it was sent. A durable one has a positive `id:`, an ephemeral one none, or a negative.
//!
//! Prints what it has seen as a line of JSON, twice a second. Reads from standard input: a line `end DURABLE EPHEMERAL` says
//! how many messages were sent; once all are here, or nothing has come for a while, a last report follows and the program
//! ends. The end of standard input ends it at once.

use crate::stats::Latencies;
use memchr::memmem;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use serde_json::{json, Value};
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// How long the last messages may take, counted from the last frame that came.
const DURABLE_PATIENCE: Duration = Duration::from_secs(15);
const EPHEMERAL_PATIENCE: Duration = Duration::from_secs(2);
const WAKER: Token = Token(usize::MAX);

/// `sse ADDRESS CLIENTS PATH SINCE`
pub fn run(args: &[String]) -> Result<(), String> {
    let [address, clients, path, since] = args else {
        return Err("four arguments, please".into());
    };
    let address = address.parse().map_err(|_| format!("ADDRESS must be like 127.0.0.1:80, got {address:?}"))?;
    let clients: usize = clients.parse().map_err(|_| format!("CLIENTS must be a number, got {clients:?}"))?;
    let since: i64 = since.parse().map_err(|_| format!("SINCE must be a msg_id, got {since:?}"))?;
    Browsers::new(address, path.clone(), since, clients)
        .and_then(|mut browsers| browsers.run())
        .map_err(|error| error.to_string())
}

/// How many messages were sent.
#[derive(Clone, Copy)]
struct Sent {
    durable: u64,
    ephemeral: u64,
}

/// What all browsers have seen so far.
#[derive(Default)]
struct Seen {
    durable: u64,
    ephemeral: u64,
    duplicates: u64,
    gaps: u64,
    connects: u64,
    lost_connections: u64,
    refusal: Option<String>,
    latencies: Latencies,
    all_open_s: Option<f64>,
    all_started_s: Option<f64>,
}

struct Browser {
    stream: Option<TcpStream>,
    request: Vec<u8>,
    received: Vec<u8>,
    is_open: bool,
    last_id: i64,
    last_n: u64,
    retry: Duration,
    connect_at: Option<Instant>,
}

struct Browsers {
    address: SocketAddr,
    path: String,
    list: Vec<Browser>,
    seen: Seen,
    poll: Poll,
    ends: Receiver<Sent>,
    begun_at: Instant,
    last_frame_at: Instant,
}

impl Browsers {
    fn new(address: SocketAddr, path: String, since: i64, count: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let (sender, ends) = mpsc::channel();
        std::thread::spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                let mut words = line.split(' ').skip(1).map(|word| word.parse().unwrap_or(0));
                let (durable, ephemeral) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
                let _ = sender.send(Sent { durable, ephemeral });
                let _ = waker.wake();
            }
            drop(sender);
            let _ = waker.wake();
        });
        let now = Instant::now();
        let list = (0..count)
            .map(|_| Browser {
                stream: None,
                request: Vec::new(),
                received: Vec::new(),
                is_open: false,
                last_id: since,
                last_n: 0,
                retry: Duration::from_secs(1),
                connect_at: Some(now),
            })
            .collect();
        Ok(Self { address, path, list, seen: Seen::default(), poll, ends, begun_at: now, last_frame_at: now })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut report_at = Instant::now() + REPORT_INTERVAL;
        let mut sent = None;
        loop {
            self.connect_those_due();
            self.poll.poll(&mut events, Some(Duration::from_millis(50)))?;
            for event in events.iter().filter(|event| event.token() != WAKER) {
                let Token(index) = event.token();
                if event.is_writable() {
                    self.send_request(index);
                }
                if event.is_readable() || event.is_error() {
                    self.receive(index);
                }
            }
            self.note_milestones();
            match self.ends.try_recv() {
                Ok(end) => {
                    sent = Some(end);
                    self.last_frame_at = Instant::now();
                }
                Err(TryRecvError::Empty) => (),
                Err(TryRecvError::Disconnected) if sent.is_none() => return Ok(()),
                Err(TryRecvError::Disconnected) => (),
            }
            let done = sent.is_some_and(|sent| self.is_done(sent));
            if done || Instant::now() >= report_at {
                self.report(sent, done)?;
                report_at += REPORT_INTERVAL;
            }
            if done {
                return Ok(());
            }
        }
    }

    fn connect_those_due(&mut self) {
        let now = Instant::now();
        for index in 0..self.list.len() {
            if self.list[index].connect_at.is_none_or(|at| at > now) {
                continue;
            }
            let browser = &mut self.list[index];
            browser.connect_at = None;
            browser.received.clear();
            browser.is_open = false;
            browser.request = format!(
                "GET {}?since={} HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\nLast-Event-ID: {}\r\n\r\n",
                self.path, browser.last_id, self.address, browser.last_id
            )
            .into_bytes();
            let opened = TcpStream::connect(self.address).and_then(|mut stream| {
                let interest = Interest::READABLE | Interest::WRITABLE;
                self.poll.registry().register(&mut stream, Token(index), interest)?;
                Ok(stream)
            });
            match opened {
                Ok(stream) => browser.stream = Some(stream),
                Err(_) => self.lose(index),
            }
        }
    }

    fn send_request(&mut self, index: usize) {
        let browser = &mut self.list[index];
        let Some(stream) = browser.stream.as_mut() else { return };
        while !browser.request.is_empty() {
            match stream.write(&browser.request) {
                Ok(written) => drop(browser.request.drain(..written)),
                Err(error) if is_not_yet(&error) => return,
                Err(_) => return self.lose(index),
            }
        }
    }

    fn receive(&mut self, index: usize) {
        let mut chunk = [0; 65_536];
        loop {
            let Some(stream) = self.list[index].stream.as_mut() else { return };
            match stream.read(&mut chunk) {
                Ok(0) => return self.lose(index),
                Ok(count) => {
                    self.list[index].received.extend_from_slice(&chunk[..count]);
                    self.take_frames(index);
                }
                Err(error) if is_not_yet(&error) => return,
                Err(_) => return self.lose(index),
            }
        }
    }

    fn take_frames(&mut self, index: usize) {
        let browser = &mut self.list[index];
        let mut start = 0;
        if !browser.is_open {
            let Some(end) = memmem::find(&browser.received, b"\r\n\r\n") else { return };
            if !browser.received.starts_with(b"HTTP/1.1 200") {
                let line = browser.received.split(|byte| *byte == b'\r').next().unwrap_or_default();
                self.seen.refusal = Some(String::from_utf8_lossy(line).into_owned());
                return self.lose(index);
            }
            browser.is_open = true;
            self.seen.connects += 1;
            start = end + 4;
        }
        let mut received = std::mem::take(&mut browser.received);
        while let Some(length) = memmem::find(&received[start..], b"\n\n") {
            browser.take(&received[start..start + length], &mut self.seen);
            start += length + 2;
            self.last_frame_at = Instant::now();
        }
        received.drain(..start);
        browser.received = received;
    }

    /// What `EventSource` does when its connection ends: waits, then asks for what came after the last message it has.
    fn lose(&mut self, index: usize) {
        let browser = &mut self.list[index];
        if browser.stream.take().is_some() && browser.is_open {
            self.seen.lost_connections += 1;
        }
        browser.is_open = false;
        browser.connect_at = Some(Instant::now() + browser.retry);
    }

    /// The seconds from the start until every browser had its response's header, and its first message.
    fn note_milestones(&mut self) {
        let elapsed = self.begun_at.elapsed().as_secs_f64();
        if self.seen.all_open_s.is_none() && self.list.iter().all(|browser| browser.is_open) {
            self.seen.all_open_s = Some(elapsed);
        }
        if self.seen.all_started_s.is_none() && self.list.iter().all(|browser| browser.last_n > 0) {
            self.seen.all_started_s = Some(elapsed);
        }
    }

    fn is_done(&self, sent: Sent) -> bool {
        let quiet = self.last_frame_at.elapsed();
        if self.list.iter().any(|browser| browser.last_n < sent.durable) {
            return quiet > DURABLE_PATIENCE;
        }
        self.seen.ephemeral >= sent.ephemeral * self.list.len() as u64 || quiet > EPHEMERAL_PATIENCE
    }

    fn report(&mut self, sent: Option<Sent>, done: bool) -> io::Result<()> {
        let behind = sent.map(|sent| self.list.iter().map(|b| sent.durable.saturating_sub(b.last_n)).sum::<u64>());
        let started = self.list.iter().filter(|browser| browser.last_n > 0).count();
        let open = self.list.iter().filter(|browser| browser.is_open).count();
        let seen = &mut self.seen;
        let report = json!({
            "open": open, "started": started, "durable": seen.durable, "ephemeral": seen.ephemeral,
            "duplicates": seen.duplicates, "missing": seen.gaps + behind.unwrap_or(0),
            "all_open_s": seen.all_open_s, "all_started_s": seen.all_started_s,
            "lost_connections": seen.lost_connections, "connects": seen.connects, "refusal": seen.refusal,
            "p50": seen.latencies.percentile_ms(0.50), "p95": seen.latencies.percentile_ms(0.95),
            "p99": seen.latencies.percentile_ms(0.99), "done": done,
        });
        let mut out = io::stdout().lock();
        writeln!(out, "{report}")?;
        out.flush()
    }
}

impl Browser {
    /// Takes note of a frame: lines of `field: value`.
    fn take(&mut self, frame: &[u8], seen: &mut Seen) {
        let (mut id, mut data) = (None, None);
        for line in frame.split(|byte| *byte == b'\n') {
            if let Some(value) = line.strip_prefix(b"id: ") {
                id = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
            } else if let Some(value) = line.strip_prefix(b"data: ") {
                data = Some(value);
            } else if let Some(value) = line.strip_prefix(b"retry: ") {
                let text = std::str::from_utf8(value).unwrap_or_default();
                self.retry = text.parse().map_or(self.retry, Duration::from_millis);
            }
        }
        let Some(data) = data else { return };
        let message: Value = serde_json::from_slice(data).unwrap_or_default();
        let (Some(n), Some(sent_at)) = (message["n"].as_u64(), message["t"].as_u64()) else { return };
        // The first message was there before this browser came.
        if self.last_n > 0 {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
            seen.latencies.push(now.saturating_sub(sent_at));
        }
        // pgbus's own connections number ephemeral messages downwards.
        let Some(id) = id.filter(|id| *id > 0) else {
            seen.ephemeral += 1;
            return;
        };
        if n <= self.last_n {
            seen.duplicates += 1;
        } else {
            seen.durable += 1;
            seen.gaps += n - self.last_n - 1;
            self.last_n = n;
            self.last_id = id;
        }
    }
}

fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected)
}
