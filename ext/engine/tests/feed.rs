//! A whole feed: a real PostgreSQL on one side, real sockets on the other.
#![allow(clippy::unwrap_used)]

#[path = "support/queues.rs"]
mod queues;
#[path = "support/recipes.rs"]
mod recipes;
#[path = "support/mod.rs"]
mod support;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::never;
use pgbus_native_engine::feed::reports::{Batch, Wait};
use pgbus_native_engine::feed::{Connect, FeedThread, Settings};
use pgbus_native_engine::hub::{self, Hub, Limits};
use pgbus_native_engine::listen::Options;
use pgbus_native_engine::pump::{Limit, Outlet, Overflow, Pump};
use pgbus_native_engine::session::recipe::Answer;
use queues::{create, insert};
use recipes::{options_at, recipe};
use support::{wait_until, Postgres};

const PATIENCE: Duration = Duration::from_secs(20);

/// A feed with its writers, for which the test answers as Ruby does.
struct Worker {
    feed: Arc<FeedThread>,
    pump: Pump,
    ruby: std::thread::JoinHandle<Vec<Batch>>,
}

impl Worker {
    /// Without a hub.
    fn start(postgres: &Postgres) -> Self {
        Self::with(postgres, None, |_| true)
    }

    fn with(postgres: &Postgres, hub: Option<&std::path::Path>, may_see: fn(u32) -> bool) -> Self {
        let (health_check, deadline) = (Duration::from_millis(250), Duration::from_secs(5));
        let settings = Settings { hub: hub.map(Into::into), health_check, deadline };
        let feed = Arc::new(FeedThread::spawn(settings).unwrap());
        let pump = Pump::new(1, Limit { frames: 0, overflow: Overflow::DropOldest });
        pump.start().unwrap();
        let ruby = std::thread::spawn({
            let (feed, options) = (feed.clone(), options_at(postgres.port, postgres));
            move || answer(&feed, &options, may_see)
        });
        Self { feed, pump, ruby }
    }

    /// A browser of `chat` that has seen all up to `cursor`.
    fn browser(&self, key: u32, cursor: i64) -> Browser {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_read_timeout(Some(PATIENCE)).unwrap();
        let outlet = self.pump.adopt(format!("browser {key}"), cursor, ours.into()).unwrap();
        let connect =
            Connect { key, id: format!("id{key}").into(), stream: "chat".into(), queue: "chat".into(), cursor };
        self.feed.connect(connect, outlet.clone());
        Browser { socket: theirs, heard: String::new(), outlet }
    }

    /// Ends it, gives what was reported to Ruby.
    fn stop(self) -> Vec<Batch> {
        self.feed.stop();
        assert!(self.feed.ended(PATIENCE, &never()));
        self.ruby.join().unwrap()
    }
}

fn answer(feed: &FeedThread, options: &Options, may_see: fn(u32) -> bool) -> Vec<Batch> {
    let mut batches = Vec::new();
    loop {
        match feed.reports().next(&never()) {
            Wait::Reports(batch) => {
                for (session, number) in &batch.recipes {
                    feed.recipe(*session, Answer { number: *number, recipe: recipe(options) });
                }
                for question in &batch.questions {
                    let see =
                        |asked: &pgbus_native_engine::feed::Asked| asked.keys.iter().map(|key| may_see(*key)).collect();
                    feed.answer(question.id, question.items.iter().map(see).collect());
                }
                batches.push(*batch);
            }
            Wait::Ended => return batches,
            Wait::Interrupted => unreachable!(),
        }
    }
}

struct Browser {
    socket: UnixStream,
    heard: String,
    outlet: Arc<Outlet>,
}

impl Browser {
    /// Reads until it has heard this.
    fn hear(&mut self, text: &str) {
        let since = Instant::now();
        while !self.heard.contains(text) {
            let mut bytes = [0; 65536];
            let length = self.socket.read(&mut bytes).unwrap_or_else(|error| panic!("{text}: {error}: {}", self.heard));
            assert!(length > 0 && since.elapsed() < PATIENCE, "{text} was not heard in {}", self.heard);
            self.heard.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
        }
    }

    /// The ids of the durable messages heard, in their order.
    fn ids(&self) -> Vec<i64> {
        self.heard.lines().filter_map(|line| line.strip_prefix("id: ")).map(|id| id.parse().unwrap()).collect()
    }
}

/// As PGMQ does: rows, and then a wake.
fn broadcast(postgres: &Postgres, msg_ids: std::ops::RangeInclusive<i64>) {
    insert(postgres, "q_chat", msg_ids);
    postgres.notify("chat", "");
}

fn range(ids: std::ops::RangeInclusive<i64>) -> Vec<i64> {
    ids.collect()
}

fn start_hub(postgres: &Postgres, path: &std::path::Path) -> Hub {
    let hub = Hub::spawn(hub::Options {
        socket_path: path.to_owned(),
        status_interval: Duration::from_secs(60),
        limits: Limits { durable: 256, hard: 1024 },
        health_check: Duration::from_millis(250),
        session: hub::Session::Recipes,
    });
    let hub = hub.unwrap();
    loop {
        if let Ok(Some(hub::Event::RecipeNeeded { number })) = hub.next_event(&never()) {
            hub.recipe(number, recipe(&options_at(postgres.port, postgres)));
            break;
        }
    }
    hub.started(&never()).unwrap().unwrap();
    hub
}

/// What was there before it came, what comes afterwards, and an ephemeral message behind it (invariants 13, 18).
#[test]
fn a_browser_gets_what_it_lacks_and_then_whatever_comes() {
    let postgres = Postgres::shared();
    create(&postgres, &["chat"]);
    insert(&postgres, "a_chat", 1..=800);
    insert(&postgres, "q_chat", 801..=900);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.sock");
    let _hub = start_hub(&postgres, &path);
    for hub in [None, Some(path.as_path())] {
        let last: i64 = postgres.sql("SELECT max(msg_id) FROM pgmq.q_chat").parse().unwrap();
        let worker = Worker::with(&postgres, hub, |_| true);
        let (mut new, mut old) = (worker.browser(1, last), worker.browser(2, 3));
        wait_until("both are served", || worker.feed.stats().browsers.get() == 2);
        old.hear(&format!("id: {last}\n"));
        broadcast(&postgres, last + 1..=last + 1);
        postgres.notify("chat", r#"{"html": "fleeting"}"#);
        for browser in [&mut new, &mut old] {
            browser.hear("event: turbo-stream\ndata: fleeting\n\n");
        }
        assert_eq!(old.ids(), range(4..=last + 1));
        assert_eq!(new.ids(), [last + 1]);
        assert!(new.heard.ends_with(&format!("data: row {}\n\nevent: turbo-stream\ndata: fleeting\n\n", last + 1)));
        worker.stop();
    }
}

#[test]
fn what_was_broadcast_while_the_database_was_down_for_us_comes_when_it_is_back() {
    let postgres = Postgres::start();
    create(&postgres, &["chat"]);
    let worker = Worker::start(&postgres);
    let mut browser = worker.browser(1, 0);
    broadcast(&postgres, 1..=1);
    browser.hear("id: 1\n");
    for round in 0..3 {
        let first = 2 + round * 10;
        postgres.sql(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = \
             'client backend'; INSERT INTO pgmq.q_chat SELECT i FROM generate_series({first}, {}) i; \
             SELECT pg_notify('pgmq.q_chat.INSERT', '')",
            first + 9
        ));
        browser.hear(&format!("id: {}\n", first + 9));
    }
    assert_eq!(browser.ids(), range(1..=31));
    worker.stop();
}

/// Invariants 14, 15 and 17.
#[test]
fn a_browser_that_does_not_read_delays_nobody_and_loses_nothing() {
    let postgres = Postgres::shared();
    create(&postgres, &["chat"]);
    let worker = Worker::start(&postgres);
    let (mut stalled, mut quick) = (worker.browser(1, 0), worker.browser(2, 0));
    for round in 0..5 {
        let first = 1 + round * 1000;
        broadcast(&postgres, first..=first + 999);
        quick.hear(&format!("id: {}\n", first + 999));
    }
    assert_eq!(quick.ids(), range(1..=5000));
    stalled.hear("id: 5000\n");
    assert_eq!(stalled.ids(), range(1..=5000));
    worker.stop();
}

#[test]
fn messages_for_some_go_to_those_alone_in_their_order() {
    let postgres = Postgres::shared();
    create(&postgres, &["chat"]);
    let worker = Worker::with(&postgres, None, |key| key == 1);
    let (mut may, mut may_not) = (worker.browser(1, 0), worker.browser(2, 0));
    broadcast(&postgres, 1..=1);
    may.hear("id: 1\n");
    may_not.hear("id: 1\n");
    let messages =
        r#"('{"html": "one"}'), ('{"html": "two", "visible_to": "admins"}'), ('{"html": "three", "exclude": "id1"}')"#;
    postgres.sql(&format!(
        "INSERT INTO pgmq.q_chat SELECT 1 + row_number() OVER (), now(), m::jsonb FROM (VALUES {messages}) v(m); \
         SELECT pg_notify('pgmq.q_chat.INSERT', ''), pg_notify('pgmq.q_chat.INSERT', '{{\"html\": \"end\"}}')"
    ));
    may.hear("data: end\n");
    may_not.hear("data: end\n");
    assert_eq!((may.ids(), may_not.ids()), (vec![1, 2, 3], vec![1, 2, 4]));
    let reports = worker.stop();
    assert_eq!(reports.iter().map(|batch| batch.questions.len()).sum::<usize>(), 1);
}

/// Nothing is reported at once, and everything is (invariant 13).
#[test]
fn what_was_sent_is_reported_afterwards() {
    let postgres = Postgres::shared();
    create(&postgres, &["chat"]);
    let worker = Worker::start(&postgres);
    let mut browser = worker.browser(1, 0);
    broadcast(&postgres, 1..=1);
    browser.hear("id: 1\n");
    for i in 2..=21 {
        broadcast(&postgres, i..=i);
        browser.hear(&format!("id: {i}\n"));
    }
    postgres.notify("chat", r#"{"html": "end"}"#);
    browser.hear("data: end");
    let reports = worker.stop();
    let sent: Vec<_> = reports.iter().flat_map(|batch| &batch.sent).collect();
    assert!(sent.iter().filter(|sent| !sent.ephemeral).count() >= 20);
    assert_eq!(sent.iter().filter(|sent| sent.ephemeral && sent.fanout == 1).count(), 1);
    assert!(reports.iter().filter(|batch| !batch.sent.is_empty()).count() < 10);
}

#[test]
fn a_browser_that_left_is_forgotten() {
    let postgres = Postgres::shared();
    create(&postgres, &["chat"]);
    let worker = Worker::start(&postgres);
    let browsers: Vec<_> = (1..=50).map(|key| worker.browser(key, 0)).collect();
    wait_until("all are served", || worker.feed.stats().browsers.get() == 50);
    assert_eq!(worker.feed.stats().streams.get(), 1);
    for (key, browser) in (1..).zip(browsers) {
        browser.outlet.end();
        worker.feed.disconnect(key);
    }
    wait_until("none is", || worker.feed.stats().browsers.get() == 0 && worker.feed.stats().streams.get() == 0);
    let mut again = worker.browser(1, 0);
    broadcast(&postgres, 1..=1);
    again.hear("id: 1\n");
    worker.stop();
}
