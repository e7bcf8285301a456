//! Puma workers, as a hub sees them: they subscribe, and read wakes as fast as they come.
//!
//! A wake that is timed has a payload that begins with the nanoseconds since 1970 at which it was sent, and a blank.

use crate::stats::Latencies;
use mio::net::UnixStream;
use mio::{Events, Interest, Poll, Token};
use serde_json::{json, Value};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream as Blocking;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// `hub SOCKET WORKERS STREAMS WAKES SECONDS`: each worker subscribes to the queue `bench` and to so many streams of its
/// own, then waits for so many wakes, or until so many seconds have passed. Prints a line of JSON when all subs are acked
/// and one at the end.
pub fn run(args: &[String]) -> Result<(), String> {
    let [socket, workers, streams, wakes, seconds] = args else {
        return Err("five arguments, please".into());
    };
    let workers = number("WORKERS", workers)?;
    let streams = number("STREAMS", streams)?;
    let wakes = number("WAKES", wakes)?;
    let seconds = number("SECONDS", seconds)?;
    listen(socket, workers, streams, wakes, Duration::from_secs(seconds as u64)).map_err(|error| error.to_string())
}

/// `storm SOCKET SUBS`: one worker subscribes to so many streams, each when the one before is acked, as a worker's
/// dispatcher does when its browsers reconnect. Every second stream is one that another worker knows already.
pub fn storm(args: &[String]) -> Result<(), String> {
    let [socket, subs] = args else {
        return Err("two arguments, please".into());
    };
    let subs = number("SUBS", subs)?;
    subscribe_one_by_one(socket, subs).map_err(|error| error.to_string())
}

/// A number among the arguments.
pub fn number(name: &str, text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{name} must be a number, got {text:?}"))
}

/// The frame that subscribes to a queue.
pub fn sub(queue: &str) -> Vec<u8> {
    frame(&json!({ "t": "sub", "q": queue }))
}

/// A frame of this content.
pub fn frame(content: &Value) -> Vec<u8> {
    let text = content.to_string();
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

struct Worker {
    stream: UnixStream,
    received: Vec<u8>,
    acks: usize,
    wakes: usize,
    is_open: bool,
}

fn listen(socket: &str, count: usize, streams: usize, wakes: usize, patience: Duration) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let begun = Instant::now();
    let mut workers = (0..count)
        .map(|index| {
            let mut stream = Blocking::connect(socket)?;
            stream.write_all(&sub("bench"))?;
            stream.set_nonblocking(true)?;
            let mut stream = UnixStream::from_std(stream);
            poll.registry().register(&mut stream, Token(index), Interest::READABLE)?;
            Ok(Worker { stream, received: Vec::new(), acks: 0, wakes: 0, is_open: true })
        })
        .collect::<io::Result<Vec<_>>>()?;
    let (mut latencies, mut seen, mut acked) = (Latencies::default(), 0, false);
    let (mut first, mut last) = (None, Instant::now());
    let mut events = Events::with_capacity(1024);
    while seen < count * wakes && workers.iter().any(|worker| worker.is_open) && begun.elapsed() < patience {
        poll.poll(&mut events, Some(Duration::from_millis(100)))?;
        for event in &events {
            let Token(index) = event.token();
            let worker = &mut workers[index];
            let before = worker.wakes;
            worker.receive(index, streams, &mut latencies)?;
            if worker.wakes > before {
                seen += worker.wakes - before;
                last = Instant::now();
                first.get_or_insert(last);
            }
        }
        if !acked && workers.iter().all(|worker| worker.acks == streams + 1) {
            acked = true;
            println!("{}", json!({ "acked_ms": begun.elapsed().as_secs_f64() * 1e3 }));
        }
    }
    let span = first.map_or(0.0, |first| (last - first).as_secs_f64());
    let report = json!({
        "wakes": seen, "expected": count * wakes, "evicted": workers.iter().filter(|worker| !worker.is_open).count(),
        "seconds": span, "p50": latencies.percentile_ms(0.50), "p99": latencies.percentile_ms(0.99),
    });
    println!("{report}");
    Ok(())
}

impl Worker {
    fn receive(&mut self, index: usize, streams: usize, latencies: &mut Latencies) -> io::Result<()> {
        let mut chunk = [0; 65_536];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    self.is_open = false;
                    return Ok(());
                }
                Ok(count) => {
                    self.received.extend_from_slice(&chunk[..count]);
                    self.take_frames(index, streams, latencies)?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(_) => {
                    self.is_open = false;
                    return Ok(());
                }
            }
        }
    }

    fn take_frames(&mut self, index: usize, streams: usize, latencies: &mut Latencies) -> io::Result<()> {
        let (now, mut start) = (now(), 0);
        while let Some(length) = length_of(&self.received[start..]) {
            let frame = &self.received[start + 4..start + 4 + length];
            start += 4 + length;
            if memchr::memmem::find(frame, br#""t":"wake""#).is_some() {
                self.wakes += 1;
                if let Some(sent) = sent_at(frame) {
                    latencies.push(now.saturating_sub(sent));
                }
            } else if memchr::memmem::find(frame, br#""t":"ack""#).is_some() {
                self.acks += 1;
                if self.acks <= streams {
                    self.stream.write_all(&sub(&format!("worker{index}-{}", self.acks)))?;
                }
            }
        }
        self.received.drain(..start);
        Ok(())
    }
}

/// The length of the frame that is there as a whole.
fn length_of(bytes: &[u8]) -> Option<usize> {
    let length = u32::from_be_bytes(*bytes.first_chunk()?) as usize;
    (bytes.len() >= 4 + length).then_some(length)
}

fn sent_at(frame: &[u8]) -> Option<u64> {
    let payload = memchr::memmem::find(frame, br#""p":""#)? + 5;
    let digits = frame[payload..].split(|byte| *byte == b' ').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn subscribe_one_by_one(socket: &str, subs: usize) -> io::Result<()> {
    let mut other = Blocking::connect(socket)?;
    for number in (1..subs).step_by(2) {
        other.write_all(&sub(&format!("stream{number}")))?;
    }
    for _ in (1..subs).step_by(2) {
        wait_for_ack(&mut other)?;
    }
    let mut worker = Blocking::connect(socket)?;
    let mut latencies = Latencies::default();
    let begun = Instant::now();
    for number in 0..subs {
        let asked = Instant::now();
        worker.write_all(&sub(&format!("stream{number}")))?;
        wait_for_ack(&mut worker)?;
        latencies.push(asked.elapsed().as_nanos() as u64);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let report =
        json!({ "seconds": seconds, "p50": latencies.percentile_ms(0.50), "p99": latencies.percentile_ms(0.99) });
    println!("{report}");
    Ok(())
}

fn wait_for_ack(stream: &mut Blocking) -> io::Result<()> {
    loop {
        let mut header = [0; 4];
        stream.read_exact(&mut header)?;
        let mut frame = vec![0; u32::from_be_bytes(header) as usize];
        stream.read_exact(&mut frame)?;
        let frame: Value = serde_json::from_slice(&frame)?;
        if frame["t"] == "ack" {
            return Ok(());
        }
    }
}
