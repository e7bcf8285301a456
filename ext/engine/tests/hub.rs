//! The hub over real Unix sockets, with a session that the test itself is.

#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossbeam_channel::{never, Receiver};
use pgbus_native_engine::hub::{Event, Hub, Limits, Options, Session, WorkerId, MAX_SUBSCRIPTIONS};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);

struct Fixture {
    hub: Hub,
    path: PathBuf,
    interrupt: Receiver<()>,
    _folder: TempDir,
}

impl Fixture {
    fn new(limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.sock");
        let options = Options {
            socket_path: path.clone(),
            status_interval: Duration::from_secs(60),
            limits,
            health_check: Duration::from_millis(250),
            session: Session::Ruby,
        };
        let (hub, interrupt) = (Hub::spawn(options).unwrap(), never());
        hub.started(&interrupt).unwrap().unwrap();
        Self { hub, path, interrupt, _folder: folder }
    }

    fn worker(&self) -> Worker {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Worker(stream)
    }

    /// A worker whose subs are acked.
    fn subscriber(&self, queues: &[&str]) -> Worker {
        let mut worker = self.worker();
        for queue in queues {
            worker.sub(queue);
            let (id, asked) = self.asked();
            assert_eq!(&*asked, *queue);
            self.hub.answer(id, asked.as_str().into(), None);
            assert_eq!(worker.hear(), format!(r#"{{"t":"ack","q":"{queue}"}}"#));
        }
        worker
    }

    /// The next sub that the session is asked for.
    fn asked(&self) -> (WorkerId, String) {
        match self.event() {
            Event::EnsureListening { worker, queue } => (worker, queue.to_string()),
            other => panic!("expected a sub, got {other:?}"),
        }
    }

    fn event(&self) -> Event {
        self.hub.next_event(&self.interrupt).unwrap().unwrap()
    }

    fn wake(&self, queue: &str, payload: Option<&str>) {
        self.hub.wake(queue.into(), payload.map(Into::into), &self.interrupt).unwrap();
    }
}

struct Worker(UnixStream);

impl Worker {
    fn say(&mut self, json: &str) {
        self.0.write_all(&(json.len() as u32).to_be_bytes()).unwrap();
        self.0.write_all(json.as_bytes()).unwrap();
    }

    fn sub(&mut self, queue: &str) {
        self.say(&format!(r#"{{"t":"sub","q":"{queue}"}}"#));
    }

    fn hear(&mut self) -> String {
        let mut header = [0; 4];
        self.0.read_exact(&mut header).unwrap();
        let mut json = vec![0; u32::from_be_bytes(header) as usize];
        self.0.read_exact(&mut json).unwrap();
        String::from_utf8(json).unwrap()
    }

    fn sees_eof(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

const LIMITS: Limits = Limits { durable: 4, hard: 16 };

fn eventually(mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Ephemeral wakes of a queue that nobody else subscribes to, until its subscriber's socket is full.
fn stall(fixture: &Fixture) -> u64 {
    let stats = fixture.hub.stats();
    let before = stats.wakes_in.get();
    for count in 1.. {
        fixture.wake("filler", Some(&"x".repeat(50_000)));
        eventually(|| stats.wakes_in.get() == before + count);
        if stats.queued_frames.get() > 2 {
            return count;
        }
    }
    unreachable!()
}

#[test]
fn a_wake_reaches_its_subscribers_alone() {
    let fixture = Fixture::new(LIMITS);
    let (mut chat, mut news) = (fixture.subscriber(&["chat"]), fixture.subscriber(&["news"]));
    fixture.wake("chat", None);
    fixture.wake("nobody", None);
    fixture.wake("news", Some("<b>"));
    assert_eq!(chat.hear(), r#"{"t":"wake","q":"chat","p":null}"#);
    assert_eq!(news.hear(), r#"{"t":"wake","q":"news","p":"<b>"}"#);
}

/// Invariant 7: in the table before LISTEN, acked after it.
#[test]
fn a_wake_before_the_ack_is_delivered() {
    let fixture = Fixture::new(LIMITS);
    let mut chat = fixture.worker();
    chat.sub("chat");
    let (id, queue) = fixture.asked();
    fixture.wake("chat", None);
    assert_eq!(chat.hear(), r#"{"t":"wake","q":"chat","p":null}"#);
    fixture.hub.answer(id, queue.as_str().into(), None);
    assert_eq!(chat.hear(), r#"{"t":"ack","q":"chat"}"#);
}

#[test]
fn the_last_subscriber_that_leaves_ends_the_listening_once() {
    let fixture = Fixture::new(LIMITS);
    let (mut one, two) = (fixture.subscriber(&["chat"]), fixture.subscriber(&["chat"]));
    one.say(r#"{"t":"unsub","q":"chat"}"#);
    one.say(r#"{"t":"unsub","q":"chat"}"#);
    one.sub("news");
    assert_eq!(fixture.asked().1, "news");
    drop(two);
    assert_eq!(fixture.event(), Event::RemoveListening { queue: "chat".into() });
}

/// Invariant 9: all of 40 streams with a limit of 4.
#[test]
fn a_stalled_worker_learns_of_every_stream_that_changed() {
    let fixture = Fixture::new(LIMITS);
    let streams: Vec<String> = (0..40).map(|i| format!("stream{i}")).collect();
    let names: Vec<&str> = streams.iter().map(String::as_str).chain(["filler"]).collect();
    let mut slow = fixture.subscriber(&names);
    let filled = stall(&fixture);
    for stream in streams.iter().chain(&streams) {
        fixture.wake(stream, None);
    }
    let stats = fixture.hub.stats();
    eventually(|| stats.wakes_in.get() == filled + 80);
    assert!(stats.dropped_durable_wakes.get() > 0);
    assert_eq!(stats.evicted_workers.get(), 0);
    let heard: Vec<String> = (0..filled + 80 - stats.dropped_durable_wakes.get()).map(|_| slow.hear()).collect();
    for stream in &streams {
        assert!(heard.contains(&format!(r#"{{"t":"wake","q":"{stream}","p":null}}"#)), "{stream}");
    }
}

/// Invariants 8 and 10.
#[test]
fn a_worker_that_does_not_read_is_evicted_and_the_others_are_served() {
    let fixture = Fixture::new(LIMITS);
    let (mut chat, mut wedged) = (fixture.subscriber(&["chat"]), fixture.subscriber(&["chat", "filler"]));
    stall(&fixture);
    for i in 0..40 {
        fixture.wake("chat", Some(&i.to_string()));
        assert_eq!(chat.hear(), format!(r#"{{"t":"wake","q":"chat","p":"{i}"}}"#));
    }
    let stats = fixture.hub.stats();
    eventually(|| stats.evicted_workers.get() == 1);
    assert!(wedged.sees_eof());
    // The counters follow the eviction, which the worker may see first.
    eventually(|| (stats.workers.get(), stats.subscriptions.get(), stats.queued_frames.get()) == (1, 1, 0));
}

/// Invariant 10: what is sent while a worker is over its limit, and not given up yet, arrives as ever.
#[test]
fn nobody_waits_for_a_worker_that_is_over_its_limit() {
    let fixture = Fixture::new(Limits { durable: 4, hard: 1024 });
    let (mut chat, _wedged) = (fixture.subscriber(&["chat"]), fixture.subscriber(&["filler"]));
    stall(&fixture);
    for i in 0..1100 {
        fixture.wake("filler", Some(&i.to_string()));
    }
    fixture.wake("chat", Some("now"));
    assert_eq!(chat.hear(), r#"{"t":"wake","q":"chat","p":"now"}"#);
    let stats = fixture.hub.stats();
    assert_eq!((stats.evicted_workers.get(), stats.workers.get()), (0, 2));
}

/// Invariant 12: a worker that reads on, too slowly for what comes, is given up when too much memory is taken by it.
#[test]
fn a_worker_that_reads_too_slowly_is_evicted_at_its_limit_in_bytes() {
    let fixture = Fixture::new(LIMITS);
    let mut slow = fixture.subscriber(&["filler"]);
    let stats = fixture.hub.stats();
    let mut sent = 0;
    while stats.evicted_workers.get() == 0 {
        for _ in 0..10 {
            fixture.wake("filler", Some(&"x".repeat(50_000)));
            sent += 1;
        }
        // It is never without progress, whatever the time that this takes.
        let _ = slow.0.read(&mut [0; 60_000]);
        assert!(stats.queued_frames.get() < 128);
    }
    assert!(sent > LIMITS.hard);
}

/// Invariant 10: a worker that talks without end neither keeps the others' wakes from them nor the hub from its end.
#[test]
fn a_worker_that_talks_without_end_has_its_turns_and_no_more() {
    let fixture = Fixture::new(LIMITS);
    let mut chat = fixture.subscriber(&["chat"]);
    let talkers: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = UnixStream::connect(&fixture.path).unwrap();
            let json = br#"{"t":"unsub","q":"talk"}"#;
            let words = [&(json.len() as u32).to_be_bytes()[..], json].concat().repeat(10_000);
            std::thread::spawn(move || while stream.write_all(&words).is_ok() {})
        })
        .collect();
    eventually(|| fixture.hub.stats().workers.get() == 3);
    let begun = Instant::now();
    for i in 0..200 {
        fixture.wake("chat", Some(&i.to_string()));
        assert_eq!(chat.hear(), format!(r#"{{"t":"wake","q":"chat","p":"{i}"}}"#));
    }
    assert!(begun.elapsed() < PATIENCE, "the wakes waited for the talkers");
    assert!(talkers.iter().all(|talker| !talker.is_finished()));
    fixture.hub.stop();
    assert!(fixture.hub.ended(PATIENCE, &fixture.interrupt));
    talkers.into_iter().for_each(|talker| talker.join().unwrap());
}

/// Invariant 12.
#[test]
fn a_worker_that_subscribes_without_end_is_severed() {
    let fixture = Fixture::new(Limits { durable: 4, hard: usize::MAX });
    let mut greedy = fixture.worker();
    for i in 0..MAX_SUBSCRIPTIONS {
        greedy.sub(&i.to_string());
    }
    eventually(|| fixture.hub.stats().subscriptions.get() == MAX_SUBSCRIPTIONS as u64);
    greedy.sub("one more");
    assert!(greedy.sees_eof());
    eventually(|| fixture.hub.stats().subscriptions.get() == 0);
}

/// Invariant 9.
#[test]
fn every_stream_is_woken_when_the_session_is_back() {
    let fixture = Fixture::new(LIMITS);
    let mut worker = fixture.subscriber(&["chat", "news"]);
    fixture.hub.session_is(false);
    assert_eq!(worker.hear(), r#"{"t":"status","healthy":false}"#);
    fixture.hub.session_is(true);
    let mut heard = [worker.hear(), worker.hear(), worker.hear()];
    heard.sort();
    assert_eq!(
        heard,
        [
            r#"{"t":"status","healthy":true}"#,
            r#"{"t":"wake","q":"chat","p":null}"#,
            r#"{"t":"wake","q":"news","p":null}"#
        ]
    );
    assert_eq!(fixture.hub.stats().reconnects.get(), 1);
}

#[test]
fn the_status_is_told_at_once_when_it_is_new_and_at_every_fifth_tick() {
    let fixture = Fixture::new(LIMITS);
    let mut worker = fixture.subscriber(&["chat"]);
    for _ in 0..11 {
        fixture.hub.session_is(true);
    }
    fixture.hub.session_is(false);
    let heard: Vec<bool> = (0..4).map(|_| worker.hear().contains("true")).collect();
    assert_eq!(heard, [true, true, true, false]);
}

/// Invariant 10.
#[test]
fn it_stops_whatever_the_workers_do() {
    let fixture = Fixture::new(LIMITS);
    let mut wedged = fixture.subscriber(&["filler"]);
    stall(&fixture);
    fixture.hub.stop();
    assert!(fixture.hub.ended(PATIENCE, &fixture.interrupt));
    assert!(wedged.sees_eof());
    assert!(!fixture.path.exists());
    assert_eq!(fixture.event(), Event::RemoveListening { queue: "filler".into() });
    assert_eq!(fixture.hub.next_event(&fixture.interrupt), Ok(None));
}

#[test]
fn a_session_that_stays_up_is_connected_since_it_came() {
    let fixture = Fixture::new(LIMITS);
    let stats = fixture.hub.stats();
    let since = stats.connected_since_ms().unwrap();
    let mut worker = fixture.worker();
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(2));
        fixture.hub.session_is(true);
    }
    // Told at the first tick and at the sixth: by then all six were looked at.
    assert_eq!([worker.hear(), worker.hear()], [r#"{"t":"status","healthy":true}"#; 2]);
    assert_eq!(stats.connected_since_ms(), Some(since));
    fixture.hub.session_is(false);
    assert_eq!(worker.hear(), r#"{"t":"status","healthy":false}"#);
    assert_eq!(stats.connected_since_ms(), None);
    fixture.hub.session_is(true);
    assert_eq!(worker.hear(), r#"{"t":"status","healthy":true}"#);
    assert!(stats.connected_since_ms().unwrap() > since);
}
