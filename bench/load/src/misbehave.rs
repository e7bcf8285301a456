//! Puma workers that are a trouble to their neighbours: each kind in its own way, until standard input ends.

use crate::hub::{frame, number, sub};
use serde_json::json;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

/// What a slow worker reads, and how long it waits before it reads again.
const SLOW_BYTES: usize = 32 * 1024;
const SLOW_PAUSE: Duration = Duration::from_millis(100);
/// How long a wedged worker stays.
const WEDGED: Duration = Duration::from_secs(5);
/// How long a worker that was severed waits before it comes back.
const RETURN_PAUSE: Duration = Duration::from_millis(200);

type Kind = fn(&str) -> io::Result<()>;

/// Name, what one worker does from its connecting to its end.
const KINDS: &[(&str, Kind)] =
    &[("slow", slow), ("wedged", wedged), ("talkative", talkative), ("wrong", wrong), ("brief", brief)];

/// `misbehave KIND SOCKET WORKERS`: a worker that is severed comes back. Prints a line of JSON when all have connected.
pub fn run(args: &[String]) -> Result<(), String> {
    let [kind, socket, workers] = args else {
        return Err("three arguments, please".into());
    };
    let Some((_, kind)) = KINDS.iter().find(|(name, _)| name == kind) else {
        let names: Vec<_> = KINDS.iter().map(|(name, _)| *name).collect();
        return Err(format!("KIND must be one of {}, got {kind:?}", names.join(", ")));
    };
    for _ in 0..number("WORKERS", workers)? {
        let (socket, kind) = (socket.clone(), *kind);
        thread::spawn(move || loop {
            let _ = kind(&socket);
            thread::sleep(RETURN_PAUSE);
        });
    }
    println!("{}", json!({ "started": true }));
    io::stdin().read_to_end(&mut Vec::new()).map(drop).map_err(|error| error.to_string())
}

fn connect(socket: &str) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(&sub("hot"))?;
    Ok(stream)
}

/// Reads, only slower than the stream `hot` brings.
fn slow(socket: &str) -> io::Result<()> {
    let mut stream = connect(socket)?;
    let mut chunk = vec![0; SLOW_BYTES];
    while stream.read(&mut chunk)? > 0 {
        thread::sleep(SLOW_PAUSE);
    }
    Ok(())
}

/// Reads nothing, and goes after a while.
fn wedged(socket: &str) -> io::Result<()> {
    let _stream = connect(socket)?;
    thread::sleep(WEDGED);
    Ok(())
}

/// Subscribes and unsubscribes without end, and reads the answers.
fn talkative(socket: &str) -> io::Result<()> {
    let mut stream = connect(socket)?;
    let mut answers = stream.try_clone()?;
    thread::spawn(move || io::copy(&mut answers, &mut io::sink()));
    let unsub = frame(&json!({ "t": "unsub", "q": "talk" }));
    let turn = [sub("talk"), sub("talk"), unsub].concat().repeat(64);
    loop {
        stream.write_all(&turn)?;
    }
}

/// Sends what is no frame.
fn wrong(socket: &str) -> io::Result<()> {
    let mut stream = connect(socket)?;
    stream.write_all(&[0xff; 64])?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}

/// Goes in the middle of a frame.
fn brief(socket: &str) -> io::Result<()> {
    let mut stream = connect(socket)?;
    let frame = sub("brief");
    stream.write_all(&frame)?;
    stream.write_all(&frame[..frame.len() / 2])
}
