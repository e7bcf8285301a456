//! Browsers on SSE sockets, as a pump sees them: they read as fast as they can, or not at all.
//!
//! A frame that is timed has a `t=` in it, and after it the nanoseconds since 1970 at which it was posted.

use crate::stats::Latencies;
use memchr::memmem;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use serde_json::json;
use socket2::{Domain, Socket, Type};
use std::io::{self, ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// `drain CONNECTIONS STALLED RECEIVE_BUFFER FRAMES SECONDS`: listens and prints a line of JSON with the port; accepts so
/// many connections and prints another; then reads all but the first STALLED of them until so many frames or seconds
/// have passed, and prints the third. RECEIVE_BUFFER is in bytes, 0 for the system's own.
pub fn run(args: &[String]) -> Result<(), String> {
    let numbers: Vec<usize> = args
        .iter()
        .map(|text| text.parse().map_err(|_| format!("arguments must be numbers, got {text:?}")))
        .collect::<Result<_, _>>()?;
    let [connections, stalled, receive_buffer, frames, seconds] = numbers[..] else {
        return Err("five arguments, please".into());
    };
    drain(connections, stalled, receive_buffer, frames, Duration::from_secs(seconds as u64))
        .map_err(|error| error.to_string())
}

struct Browser {
    stream: TcpStream,
    received: Vec<u8>,
    last_id: i64,
}

#[derive(Default)]
struct Seen {
    frames: usize,
    bytes: usize,
    /// Frames out of order or twice.
    wrong: usize,
    latencies: Latencies,
}

fn listen(receive_buffer: usize) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if receive_buffer > 0 {
        socket.set_recv_buffer_size(receive_buffer)?;
    }
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

fn drain(count: usize, stalled: usize, receive_buffer: usize, frames: usize, patience: Duration) -> io::Result<()> {
    let listener = listen(receive_buffer)?;
    println!("{}", json!({ "port": listener.local_addr()?.port() }));
    let mut poll = Poll::new()?;
    let mut browsers = Vec::with_capacity(count);
    for index in 0..count {
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        if index >= stalled {
            poll.registry().register(&mut stream, Token(index), Interest::READABLE)?;
        }
        browsers.push(Browser { stream, received: Vec::new(), last_id: -1 });
    }
    println!("{}", json!({ "accepted": count }));

    let mut events = Events::with_capacity(1024);
    let mut seen = Seen::default();
    let mut chunk = vec![0; 1 << 20];
    let give_up = Instant::now() + patience;
    let (mut first, mut last) = (None, Instant::now());
    while seen.frames < frames && Instant::now() < give_up {
        poll.poll(&mut events, Some(Duration::from_millis(100)))?;
        for event in &events {
            read_all(&mut browsers[event.token().0], &mut chunk, &mut seen)?;
            last = Instant::now();
            first.get_or_insert(last);
        }
    }
    let seconds = first.map_or(0.0, |first| (last - first).as_secs_f64());
    let (p50, p99) = (seen.latencies.percentile_ms(0.5), seen.latencies.percentile_ms(0.99));
    println!(
        "{}",
        json!({ "frames": seen.frames, "bytes": seen.bytes, "wrong": seen.wrong, "seconds": seconds, "p50": p50, "p99": p99 })
    );
    Ok(())
}

fn read_all(browser: &mut Browser, chunk: &mut [u8], seen: &mut Seen) -> io::Result<()> {
    loop {
        match browser.stream.read(chunk) {
            Ok(0) => return Ok(()),
            Ok(bytes) => {
                seen.bytes += bytes;
                browser.received.extend_from_slice(&chunk[..bytes]);
                take_frames(browser, seen);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionReset) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn take_frames(browser: &mut Browser, seen: &mut Seen) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let mut begin = 0;
    while let Some(length) = memmem::find(&browser.received[begin..], b"\n\n") {
        let frame = &browser.received[begin..begin + length];
        if let Some(id) = number_after(frame, b"id: ") {
            seen.frames += 1;
            seen.wrong += usize::from(id as i64 <= browser.last_id);
            browser.last_id = id as i64;
            if let Some(posted) = number_after(frame, b"t=") {
                seen.latencies.push(now.saturating_sub(posted));
            }
        }
        begin += length + 2;
    }
    browser.received.drain(..begin);
}

fn number_after(frame: &[u8], mark: &[u8]) -> Option<u64> {
    let digits = &frame[memmem::find(frame, mark)? + mark.len()..];
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}
