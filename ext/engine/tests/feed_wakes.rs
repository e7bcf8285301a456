//! The feed's wakes: from the hub, and from a LISTEN session when there is none or it has ended.
#![allow(clippy::unwrap_used)]

#[path = "support/recipes.rs"]
mod recipes;
#[path = "support/session.rs"]
mod session;
#[path = "support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use pgbus_native_engine::feed::wakes::{self, Source};
use pgbus_native_engine::hub::{self, Hub, Limits};
use pgbus_native_engine::log::Line;
use pgbus_native_engine::session::{News, Wishes, NEWS_CAPACITY};
use recipes::{options_at, recipe, recipes};
use session::{on_one_thread, queue, wake, PATIENCE};
use support::Postgres;
use tokio::sync::mpsc::{channel, Receiver};
use tokio::time::timeout;

const HEALTH_CHECK: Duration = Duration::from_millis(250);

struct Wakes {
    wishes: Wishes,
    news: Receiver<News>,
    lines: Rc<RefCell<Vec<Line>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Wakes {
    fn start(postgres: &Postgres, hub: Option<&Path>) -> Self {
        let recipes = recipes(options_at(postgres.port, postgres));
        let source = Source { hub: hub.map(Into::into), recipes, health_check: HEALTH_CHECK };
        let (send, news) = channel(NEWS_CAPACITY);
        let (wishes, lines) = (Wishes::new(), Rc::new(RefCell::new(Vec::new())));
        let (wanted, log) = (wishes.clone(), lines.clone());
        let task = tokio::task::spawn_local(async move {
            wakes::run(source, &wanted, &send, &|line| log.borrow_mut().push(line)).await;
        });
        Self { wishes, news, lines, task }
    }

    async fn next(&mut self) -> News {
        timeout(PATIENCE, self.news.recv()).await.expect("some news in time").expect("a source of wakes")
    }

    async fn until(&mut self, wanted: &News) {
        while self.next().await != *wanted {}
    }

    async fn until_down(&mut self) -> String {
        loop {
            if let News::Down { reason } = self.next().await {
                return reason;
            }
        }
    }

    fn want(&self, name: &str) {
        self.wishes.want(&queue(name));
    }

    async fn listen(&mut self, name: &str) {
        self.want(name);
        self.until(&News::Listening(queue(name))).await;
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn start_hub(postgres: &Postgres, path: &Path) -> Hub {
    let hub = Hub::spawn(hub::Options {
        socket_path: path.to_owned(),
        status_interval: Duration::from_secs(60),
        limits: Limits { durable: 256, hard: 1024 },
        health_check: HEALTH_CHECK,
        session: hub::Session::Recipes,
    });
    let hub = hub.unwrap();
    loop {
        if let Ok(Some(hub::Event::RecipeNeeded { number })) = hub.next_event(&crossbeam_channel::never()) {
            hub.recipe(number, recipe(&options_at(postgres.port, postgres)));
            break;
        }
    }
    hub.started(&crossbeam_channel::never()).unwrap().unwrap();
    hub
}

fn end(hub: &Hub) {
    hub.stop();
    assert!(hub.ended(PATIENCE, &crossbeam_channel::never()));
}

/// Frames of a hub that the test plays.
fn say(stream: &mut UnixStream, json: &str) {
    stream.write_all(&(json.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(json.as_bytes()).unwrap();
}

fn hear(stream: &mut UnixStream) -> String {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut json = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut json).unwrap();
    String::from_utf8(json).unwrap()
}

/// Runs `play`, which is the hub, beside `test`, which is the worker.
fn with_played_hub<F: std::future::Future<Output = ()>>(
    play: impl FnOnce(UnixStream) + Send + 'static,
    test: impl FnOnce(Wakes) -> F,
) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let postgres = Postgres::shared();
    let hub = std::thread::spawn(move || play(listener.accept().unwrap().0));
    on_one_thread(async { test(Wakes::start(&postgres, Some(&path))).await });
    hub.join().unwrap();
}

#[test]
fn wakes_come_from_the_hub_as_from_a_session_of_ones_own() {
    let postgres = Postgres::shared();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.sock");
    let hub = start_hub(&postgres, &path);
    on_one_thread(async {
        for source in [Some(path.as_path()), None] {
            let mut wakes = Wakes::start(&postgres, source);
            assert_eq!(wakes.next().await, News::Up);
            wakes.listen("chat").await;
            wakes.listen("other").await;
            postgres.notify("chat", "");
            postgres.notify("chat", "<b>ü</b>");
            assert_eq!(wakes.next().await, wake("chat", None));
            assert_eq!(wakes.next().await, wake("chat", Some("<b>ü</b>")));
            wakes.wishes.unwant(&queue("chat"));
            wakes.listen("third").await;
            postgres.notify("chat", "");
            postgres.notify("other", "last");
            assert_eq!(wakes.next().await, wake("other", Some("last")));
            assert!(wakes.lines.borrow().is_empty());
        }
    });
    end(&hub);
}

/// One LISTEN session, for all that was wished for before and meanwhile.
#[test]
fn a_session_takes_over_when_the_hub_has_ended() {
    let postgres = Postgres::shared();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.sock");
    let hub = start_hub(&postgres, &path);
    on_one_thread(async {
        let mut wakes = Wakes::start(&postgres, Some(&path));
        wakes.listen("a").await;
        wakes.listen("b").await;
        end(&hub);
        wakes.until_down().await;
        wakes.wishes.unwant(&queue("b"));
        wakes.want("c");
        wakes.until(&News::Listening(queue("a"))).await;
        wakes.until(&News::Listening(queue("c"))).await;
        wakes.until(&News::Up).await;
        postgres.notify("b", "");
        postgres.notify("c", "here");
        assert_eq!(wakes.next().await, wake("c", Some("here")));
        assert_eq!(wakes.lines.borrow().len(), 1);
    });
}

#[test]
fn a_session_takes_over_where_no_hub_answers() {
    let postgres = Postgres::shared();
    on_one_thread(async {
        let mut wakes = Wakes::start(&postgres, Some(Path::new("/nonexistent/hub.sock")));
        wakes.want("chat");
        assert!(wakes.until_down().await.contains("No such file"));
        wakes.until(&News::Up).await;
        postgres.notify("chat", "");
        wakes.until(&wake("chat", None)).await;
    });
}

#[test]
fn a_hub_that_owes_an_ack_for_too_long_or_says_nonsense_is_left() {
    let late = |mut stream: UnixStream| {
        hear(&mut stream);
        say(&mut stream, r#"{"t":"wake","q":"chat","p":null}"#);
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    };
    with_played_hub(late, |mut wakes| async move {
        wakes.want("chat");
        assert_eq!(wakes.next().await, News::Up);
        assert_eq!(wakes.next().await, wake("chat", None));
        assert_eq!(wakes.until_down().await, "no ack within 2250 ms");
        wakes.until(&News::Up).await;
    });
    let malformed = |mut stream: UnixStream| {
        say(&mut stream, "[]");
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    };
    with_played_hub(malformed, |mut wakes| async move {
        let reason = wakes.until_down().await;
        assert!(reason.starts_with("malformed frame"), "{reason}");
        wakes.until(&News::Up).await;
    });
}

/// What changed while the hub heard nothing is unknown, and pgbus's own hub does not make up for it (invariant 9).
#[test]
fn an_outage_of_the_hubs_session_is_an_outage_of_the_feeds() {
    let play = |mut stream: UnixStream| {
        for healthy in [true, false, false, true, true] {
            say(&mut stream, &format!(r#"{{"t":"status","healthy":{healthy}}}"#));
        }
        say(&mut stream, r#"{"t":"wake","q":"chat","p":"end"}"#);
        let _ = stream.read(&mut [0; 1]);
    };
    with_played_hub(play, |mut wakes| async move {
        assert_eq!(wakes.next().await, News::Up);
        assert!(matches!(wakes.next().await, News::Down { .. }));
        assert_eq!(wakes.next().await, News::Up);
        assert_eq!(wakes.next().await, wake("chat", Some("end")));
    });
}

/// An ack that was overtaken by an end of the wish and another wish is that of the sub that is active (invariant 7).
#[test]
fn a_queue_has_one_sub_at_a_time_whatever_is_wished_meanwhile() {
    let play = |mut stream: UnixStream| {
        assert_eq!(hear(&mut stream), r#"{"t":"sub","q":"chat"}"#);
        assert_eq!(hear(&mut stream), r#"{"t":"sub","q":"next"}"#);
        say(&mut stream, r#"{"t":"ack","q":"next"}"#);
        say(&mut stream, r#"{"t":"ack","q":"chat"}"#);
        assert_eq!(hear(&mut stream), r#"{"t":"unsub","q":"chat"}"#);
        let _ = stream.read(&mut [0; 1]);
    };
    with_played_hub(play, |mut wakes| async move {
        wakes.want("chat");
        assert_eq!(wakes.next().await, News::Up);
        wakes.wishes.unwant(&queue("chat"));
        wakes.want("chat");
        tokio::task::yield_now().await;
        wakes.want("next");
        wakes.until(&News::Listening(queue("next"))).await;
        wakes.until(&News::Listening(queue("chat"))).await;
        wakes.listen("chat").await;
        wakes.wishes.unwant(&queue("chat"));
        tokio::time::sleep(Duration::from_millis(50)).await;
    });
}

#[test]
fn ten_thousand_queues_are_listened_to_by_way_of_the_hub() {
    let postgres = Postgres::shared();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.sock");
    let hub = start_hub(&postgres, &path);
    on_one_thread(async {
        let mut wakes = Wakes::start(&postgres, Some(&path));
        for i in 0..10_000 {
            wakes.want(&format!("queue_{i}"));
        }
        let mut listening = 0;
        while listening < 10_000 {
            match wakes.next().await {
                News::Listening(_) => listening += 1,
                News::Up => {}
                other => panic!("{other:?}"),
            }
        }
        postgres.notify("queue_9999", "");
        wakes.until(&wake("queue_9999", None)).await;
    });
    end(&hub);
}
