//! What a session makes of losses: a recipe for each connect, at once where nothing has failed. And of databases that
//! don't speak UTF-8.
#![allow(clippy::unwrap_used)]

#[path = "support/session.rs"]
mod session;
#[path = "support/mod.rs"]
mod support;

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pgbus_native_engine::listen::{self, Options};
use pgbus_native_engine::session::{News, Wishes};
use session::{on_one_thread, options, queue, wake, Session};
use support::{pairs, wait_until, Postgres};

const HEALTH_CHECK: Duration = Duration::from_millis(250);
const KILL: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND \
                    datname = current_database()";

fn to(postgres: &Postgres, more: &[(&str, &str)]) -> Options {
    options([postgres.keywords(), pairs(more)].concat())
}

/// Invariant 19: a password that rotates, an address that changes.
#[test]
fn each_connect_follows_a_recipe_of_its_own() {
    let postgres = Postgres::shared();
    let keywords = postgres.keywords();
    let asked = Rc::new(Cell::new(0));
    let count = asked.clone();
    let recipe = move || {
        count.set(count.get() + 1);
        let name = format!("session_{}", count.get());
        options([keywords.clone(), pairs(&[("application_name", &name)])].concat())
    };
    let named = |number| {
        let name = format!("session_{number}");
        postgres.sql(&format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'")) == "1"
    };
    on_one_thread(async {
        let mut session = Session::by(recipe, HEALTH_CHECK, Wishes::new()).await;
        session.until(&News::Up).await;
        session.listen("chat").await;
        wait_until("the probe's own connection is gone", || named(1));
        for number in 2..=3 {
            postgres.sql(KILL);
            session.until(&News::Up).await;
            assert!(named(number));
        }
    });
    assert_eq!(asked.get(), 3);
}

/// An ephemeral wake of the time without a session is lost.
#[test]
fn a_session_that_is_lost_soon_again_is_made_again_at_once() {
    let postgres = Postgres::shared();
    on_one_thread(async {
        let mut session = Session::start(to(&postgres, &[]), HEALTH_CHECK).await;
        session.until(&News::Up).await;
        session.listen("chat").await;
        let mut outages = Vec::new();
        for _ in 0..3 {
            postgres.sql(KILL);
            session.until_down().await;
            let begun = Instant::now();
            session.until(&News::Up).await;
            outages.push(begun.elapsed());
        }
        // Not one waits for half a second; the machine may be slow, but not at each of them.
        assert!(outages.iter().min().unwrap() < &Duration::from_millis(250), "{outages:?}");
        let total: Duration = outages.iter().sum();
        assert!(total < Duration::from_millis(1000), "{outages:?}");
    });
}

/// As after SIGSTOP and SIGCONT, docker pause, or a laptop's sleep.
#[test]
fn an_answer_that_came_while_the_process_stood_still_counts() {
    let postgres = Postgres::shared();
    on_one_thread(async {
        let mut session = Session::start(to(&postgres, &[]), HEALTH_CHECK).await;
        session.until(&News::Up).await;
        session.wishes.want(&queue("chat"));
        let listening =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN %chat%' AND pid <> pg_backend_pid()";
        // One turn of the session, in which it asks; then nothing moves here for longer than the server is given.
        tokio::task::yield_now().await;
        wait_until("the server has answered", || postgres.sql(listening) == "1");
        std::thread::sleep(HEALTH_CHECK + Duration::from_millis(4500));
        assert_eq!(session.next().await, News::Listening(queue("chat")));
        postgres.notify("chat", "x");
        assert_eq!(session.next().await, wake("chat", Some("x")));
    });
}

fn database(postgres: &Postgres, encoding: &str) -> Options {
    let name = format!("{}_{}", postgres.database, encoding.to_lowercase());
    postgres.sql(&format!("CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0"));
    to(postgres, &[("dbname", &name)])
}

#[test]
fn a_long_name_is_cut_where_the_database_cuts_it() {
    let postgres = Postgres::shared();
    for (encoding, longest) in [("LATIN1", 50), ("SQL_ASCII", 40), ("EUC_JP", 14)] {
        let options = database(&postgres, encoding);
        let database = format!("{}_{}", postgres.database, encoding.to_lowercase());
        let letter = if encoding == "EUC_JP" { "漢" } else { "é" };
        // Bytes as they are, or in letters that psql does not convert.
        let notify = |name: &str| {
            let escaped: String = name.chars().map(|letter| format!("\\{:04X}", u32::from(letter))).collect();
            let (mark, name) = if encoding == "SQL_ASCII" { ("", name) } else { ("U&", &*escaped) };
            postgres.sql_in(&database, &format!("NOTIFY {mark}\"pgmq.q_{name}.INSERT\", 'x'"));
        };
        on_one_thread(async {
            let mut session = Session::start(options, HEALTH_CHECK).await;
            session.until(&News::Up).await;
            for length in [1, 10, longest, 60] {
                let name = letter.repeat(length);
                session.wishes.want(&queue(&name));
                match session.next().await {
                    News::Listening(_) => {
                        notify(&name);
                        assert_eq!(session.next().await, wake(&name, Some("x")), "{encoding} {length}");
                    }
                    // Where we can't tell, we say so.
                    News::Refused { reason, .. } => assert!(encoding == "EUC_JP" && length > 12, "{reason}"),
                    other => panic!("{other:?}"),
                }
                session.wishes.unwant(&queue(&name));
            }
        });
    }
}

#[test]
fn a_notify_whose_bytes_are_no_utf8_ends_nothing() {
    let postgres = Postgres::shared();
    let options = database(&postgres, "SQL_ASCII");
    let database = format!("{}_sql_ascii", postgres.database);
    on_one_thread(async {
        let mut session = Session::start(options, HEALTH_CHECK).await;
        session.until(&News::Up).await;
        session.listen("chat").await;
        for n in 0..3 {
            postgres.sql_in(&database, "SELECT pg_notify('pgmq.q_chat.INSERT', E'caf\\xE9')");
            postgres.sql_in(&database, &format!("SELECT pg_notify('pgmq.q_chat.INSERT', '{n}')"));
            assert_eq!(session.next().await, wake("chat", Some("caf\u{FFFD}")));
            assert_eq!(session.next().await, wake("chat", Some(&n.to_string())));
        }
    });
}

/// Takes a client, says that it is welcome, and then tells settings for as long as anybody takes them.
fn talkative_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let _ = client.read(&mut [0; 1024]);
        client.write_all(b"R\0\0\0\x08\0\0\0\0").unwrap();
        for number in 0_u64.. {
            let setting = format!("setting_{number}\0{}\0", "x".repeat(1000));
            let message = [&b"S"[..], &(setting.len() as u32 + 4).to_be_bytes(), setting.as_bytes()].concat();
            if client.write_all(&message).is_err() {
                return;
            }
        }
    });
    port
}

/// Invariants 10 and 12.
#[cfg(target_os = "linux")]
#[test]
fn a_server_that_tells_settings_without_end_fills_no_memory_and_is_left_in_time() {
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let port = talkative_server().to_string();
    let options = options(pairs(&[("host", "127.0.0.1"), ("port", &port), ("user", "a"), ("sslmode", "disable")]));
    let before = resident();
    let connected = on_one_thread(listen::open(&options, Some(Duration::from_secs(2))));
    assert!(connected.unwrap_err().to_string().ends_with("timeout expired"));
    assert!(resident().saturating_sub(before) < 32 << 20);
}
