//! The feed's reads on a real PostgreSQL.
#![allow(clippy::unwrap_used)]

#[path = "support/pooler.rs"]
mod pooler;
#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/queues.rs"]
mod queues;
#[path = "support/recipes.rs"]
mod recipes;
#[path = "support/session.rs"]
mod session;
#[path = "support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::rc::Rc;

use pgbus_native_engine::feed::reader::{self, Page, Read};
use pgbus_native_engine::feed::ReadId;
use pgbus_native_engine::listen::Options;
use pgbus_native_engine::log::Line;
use pooler::pooler;
use proxy::Proxy;
use queues::{create, insert};
use recipes::{options_at, recipes};
use session::{on_one_thread, queue, PATIENCE};
use support::Postgres;
use tokio::sync::mpsc::{channel, unbounded_channel, Receiver, UnboundedSender};
use tokio::time::timeout;

struct Reader {
    reads: UnboundedSender<Read>,
    pages: Receiver<Page>,
    lines: Rc<RefCell<Vec<Line>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Reader {
    fn start(options: Options) -> Self {
        let (reads, asked) = unbounded_channel();
        let (send, pages) = channel(1);
        let lines = Rc::new(RefCell::new(Vec::new()));
        let log = lines.clone();
        let task = tokio::task::spawn_local(async move {
            reader::run(recipes(options), asked, &send, &|line| log.borrow_mut().push(line)).await;
        });
        Self { reads, pages, lines, task }
    }

    fn ask(&self, id: u64, name: &str, after: i64) {
        self.reads.send(Read { id: ReadId(id), queue: queue(name), after, limit: 500 }).unwrap();
    }

    async fn next(&mut self) -> Page {
        timeout(PATIENCE, self.pages.recv()).await.expect("a page in time").expect("a reader")
    }

    /// The msg_ids of the next page.
    async fn msg_ids(&mut self) -> Vec<i64> {
        self.next().await.rows.unwrap().iter().map(|row| row.msg_id).collect()
    }

    fn log(&self) -> String {
        self.lines.borrow().iter().map(|line| format!("{}\n", line.text)).collect()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[test]
fn a_page_has_the_rows_of_both_tables_after_a_msg_id_in_order_and_no_more_than_asked_for() {
    let postgres = Postgres::shared();
    create(&postgres, &["chat"]);
    insert(&postgres, "a_chat", 1..=700);
    insert(&postgres, "q_chat", 701..=900);
    on_one_thread(async {
        let mut reader = Reader::start(options_at(postgres.port, &postgres));
        for (after, expected) in [(0, 1..=500), (500, 501..=900), (899, 900..=900)] {
            reader.ask(1, "chat", after);
            assert_eq!(reader.msg_ids().await, expected.collect::<Vec<i64>>());
        }
        reader.ask(2, "chat", 900);
        assert_eq!(reader.next().await, Page { id: ReadId(2), rows: Ok(Vec::new()) });
        reader.ask(3, "chat", 899);
        assert_eq!(&*reader.next().await.rows.unwrap()[0].message, r#"{"html": "row 900"}"#);
        postgres.sql("INSERT INTO pgmq.q_chat VALUES (901)");
        reader.ask(4, "chat", 900);
        assert_eq!(&*reader.next().await.rows.unwrap()[0].message, "");
    });
}

#[test]
fn a_queue_without_one_of_its_tables_is_empty_and_one_that_is_refused_harms_no_other() {
    let postgres = Postgres::shared();
    create(&postgres, &["live_only", "broken", "mixed_case"]);
    for queue in ["live_only", "mixed_case"] {
        insert(&postgres, &format!("q_{queue}"), 1..=2);
    }
    postgres.sql("DROP TABLE pgmq.a_live_only; ALTER TABLE pgmq.q_broken DROP COLUMN message");
    on_one_thread(async {
        let mut reader = Reader::start(options_at(postgres.port, &postgres));
        let names = ["none", "live_only", "broken", "a\"; DROP TABLE pgmq.q_mixed_case; --", "Mixed_Case"];
        for (id, name) in names.into_iter().enumerate() {
            reader.ask(id as u64, name, 0);
        }
        assert!(reader.msg_ids().await.is_empty());
        assert!(reader.msg_ids().await.is_empty());
        let refused = reader.next().await.rows.unwrap_err();
        assert!(refused.contains("column \"message\" does not exist"), "{refused}");
        assert!(reader.msg_ids().await.is_empty());
        assert_eq!(reader.msg_ids().await, [1, 2]);
        assert_eq!(reader.log(), "");
    });
}

/// More reads are on their way than were answered, and no more than the bound.
#[test]
fn reads_do_not_wait_for_each_other() {
    let postgres = Postgres::shared();
    create(&postgres, &["chat"]);
    insert(&postgres, "q_chat", 1..=1);
    on_one_thread(async {
        let proxy = Proxy::before(postgres.port).await;
        let mut reader = Reader::start(options_at(proxy.port, &postgres));
        reader.ask(0, "chat", 0);
        reader.next().await;
        proxy.hold_answers(true);
        proxy.requests();
        for id in 1..=100 {
            reader.ask(id, "chat", 0);
        }
        let mut sent = Vec::new();
        while count(&sent, "UNION ALL") < 16 {
            tokio::task::yield_now().await;
            sent.extend(proxy.requests());
        }
        assert_eq!(count(&sent, "UNION ALL"), 16);
        proxy.hold_answers(false);
        for id in 1..=100 {
            assert_eq!(reader.next().await.id, ReadId(id));
        }
    });
}

fn count(requests: &[u8], text: &str) -> usize {
    requests.windows(text.len()).filter(|window| *window == text.as_bytes()).count()
}

#[test]
fn reads_that_a_crash_left_unanswered_are_answered_when_the_server_is_back() {
    let mut postgres = Postgres::start();
    create(&postgres, &["chat"]);
    insert(&postgres, "q_chat", 1..=3);
    on_one_thread(async {
        let proxy = Proxy::before(postgres.port).await;
        let mut reader = Reader::start(options_at(proxy.port, &postgres));
        reader.ask(0, "chat", 0);
        reader.next().await;
        proxy.hold_answers(true);
        for id in 1..=40 {
            reader.ask(id, "chat", 2);
        }
        while !proxy.requests().ends_with(b"S\0\0\0\x04") {
            tokio::task::yield_now().await;
        }
        postgres.crash();
        proxy.hold_answers(false);
        postgres.launch();
        for id in 1..=40 {
            assert_eq!(reader.next().await.id, ReadId(id));
        }
        assert!(reader.log().contains("reconnecting"), "{}", reader.log());
    });
}

#[test]
fn a_connection_that_went_silent_is_replaced_and_its_reads_are_answered() {
    let postgres = Postgres::shared();
    create(&postgres, &["chat"]);
    insert(&postgres, "q_chat", 1..=3);
    on_one_thread(async {
        let proxy = Proxy::before(postgres.port).await;
        let mut reader = Reader::start(options_at(proxy.port, &postgres));
        reader.ask(0, "chat", 0);
        reader.next().await;
        proxy.fall_silent();
        reader.ask(1, "chat", 1);
        assert_eq!(reader.msg_ids().await, [2, 3]);
        assert!(reader.log().contains("no answer for"), "{}", reader.log());
    });
}

#[test]
fn a_session_that_the_server_ended_is_opened_again() {
    let postgres = Postgres::shared();
    create(&postgres, &["chat"]);
    insert(&postgres, "q_chat", 1..=1);
    on_one_thread(async {
        let mut reader = Reader::start(options_at(postgres.port, &postgres));
        reader.ask(0, "chat", 0);
        assert_eq!(reader.msg_ids().await, [1]);
        let ended = postgres
            .sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pgbus-feed' AND datname = current_database()");
        assert_eq!(ended, "1");
        reader.ask(1, "chat", 0);
        assert_eq!(reader.msg_ids().await, [1]);
    });
}

/// The server's connections change from read to read, so nothing may be kept on one of them.
#[test]
fn reads_go_through_a_pooler_in_transaction_mode() {
    let postgres = Postgres::shared();
    create(&postgres, &["chat"]);
    insert(&postgres, "q_chat", 1..=3);
    let folder = tempfile::tempdir().unwrap();
    let Some((_pooler, port)) = pooler(&postgres, "transaction", folder.path()) else { return };
    on_one_thread(async {
        let mut readers = [Reader::start(options_at(port, &postgres)), Reader::start(options_at(port, &postgres))];
        for id in 0..50 {
            for reader in &readers {
                reader.ask(id, "chat", 1);
            }
        }
        for reader in &mut readers {
            for _ in 0..50 {
                assert_eq!(reader.msg_ids().await, [2, 3]);
            }
            assert_eq!(reader.log(), "");
        }
    });
}
