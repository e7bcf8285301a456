//! The LISTEN session on a real PostgreSQL: wishes, wakes, odd names, loss and return.
#![allow(clippy::unwrap_used)]

#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/session.rs"]
mod session;
#[path = "support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use pgbus_native_engine::listen::{self, ConnectError, Options, OptionsError};
use pgbus_native_engine::session::{News, Wishes};
use proxy::Proxy;
use session::{on_one_thread, options, parse, queue, wake, Session};
use support::{pairs, wait_until, Postgres};

const HEALTH_CHECK: Duration = Duration::from_millis(250);
/// No health check falls into the test.
const NEVER: Duration = Duration::from_secs(600);

const OTHERS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = current_database() AND pid <> pg_backend_pid()";

/// The database of `postgres`, by way of a proxy.
fn through(proxy: &Proxy, postgres: &Postgres) -> Options {
    let mut keywords = postgres.keywords();
    keywords.retain(|(keyword, _)| keyword != "port");
    keywords.extend(pairs(&[("port", &proxy.port.to_string())]));
    options(keywords)
}

/// Statements of this kind that the client sent.
fn count(requests: &[u8], statement: &str) -> usize {
    requests.windows(statement.len()).filter(|window| *window == statement.as_bytes()).count()
}

#[test]
fn wakes_arrive_in_order_with_their_payload() {
    let postgres = Postgres::shared();
    on_one_thread(async {
        let mut session = Session::start(options(postgres.keywords()), HEALTH_CHECK).await;
        assert_eq!(session.next().await, News::Up);
        session.listen("chat").await;
        postgres.notify("chat", "");
        postgres.notify("chat", "<b>ü</b>");
        postgres.notify("other", "");
        postgres.notify("chat", "last");
        assert_eq!(session.next().await, wake("chat", None));
        assert_eq!(session.next().await, wake("chat", Some("<b>ü</b>")));
        assert_eq!(session.next().await, wake("chat", Some("last")));
        session.wishes.unwant(&queue("chat"));
        session.listen("other").await;
        postgres.notify("chat", "");
        postgres.notify("other", "");
        assert_eq!(session.next().await, wake("other", None));
        assert_eq!(session.errors(), Vec::<String>::new());
    });
}

#[test]
fn a_crash_of_the_server_is_survived() {
    let mut postgres = Postgres::start();
    on_one_thread(async {
        let mut session = Session::start(options(postgres.keywords()), HEALTH_CHECK).await;
        session.listen("a").await;
        session.listen("b").await;
        postgres.crash();
        session.until_down().await;
        // A wish of the meantime is fulfilled with the others.
        session.wishes.want(&queue("c"));
        session.wishes.unwant(&queue("b"));
        postgres.launch();
        assert_eq!(session.next().await, News::Listening(queue("a")));
        assert_eq!(session.next().await, News::Listening(queue("c")));
        assert_eq!(session.next().await, News::Up);
        postgres.notify("c", "back");
        assert_eq!(session.next().await, wake("c", Some("back")));
    });
}

#[test]
fn a_connection_that_went_silent_is_noticed_and_replaced() {
    let postgres = Postgres::shared();
    on_one_thread(async {
        let proxy = Proxy::before(postgres.port).await;
        let mut session = Session::start(through(&proxy, &postgres), HEALTH_CHECK).await;
        session.listen("chat").await;
        // Once while it is idle, once while a LISTEN is on its way.
        for new in [None, Some("new")] {
            proxy.fall_silent();
            if let Some(name) = new {
                session.wishes.want(&queue(name));
            }
            let since = Instant::now();
            let reason = session.until_down().await;
            assert!(reason.contains("no answer"), "{reason}");
            assert!(since.elapsed() < 2 * HEALTH_CHECK + Duration::from_secs(5), "{:?}", since.elapsed());
            session.until(&News::Up).await;
            postgres.notify("chat", "again");
            assert_eq!(session.next().await, wake("chat", Some("again")));
        }
        postgres.notify("new", "");
        assert_eq!(session.next().await, wake("new", None));
    });
}

#[test]
fn a_hub_that_reads_slowly_is_no_silence() {
    let postgres = Postgres::shared();
    on_one_thread(async {
        let mut session = Session::start(options(postgres.keywords()), HEALTH_CHECK).await;
        session.until(&News::Up).await;
        session.listen("chat").await;
        postgres.sql("SELECT pg_notify('pgmq.q_chat.INSERT', n::text) FROM generate_series(1, 3000) n");
        session.wishes.want(&queue("new"));
        // Longer than a silent server is given.
        tokio::time::sleep(HEALTH_CHECK + Duration::from_millis(4500)).await;
        let mut listening = false;
        let mut wakes = 0;
        while wakes < 3000 || !listening {
            match session.next().await {
                News::Wake { payload, .. } => {
                    wakes += 1;
                    assert_eq!(payload.unwrap().parse::<i32>().unwrap(), wakes);
                }
                News::Listening(name) => listening = *name == *"new",
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_new_queue_takes_one_round_trip_and_a_known_one_none() {
    let postgres = Postgres::shared();
    on_one_thread(async {
        let proxy = Proxy::before(postgres.port).await;
        let mut session = Session::start(through(&proxy, &postgres), NEVER).await;
        session.until(&News::Up).await;
        proxy.pieces();
        session.listen("chat").await;
        assert_eq!(proxy.pieces(), (1, 1));
        session.listen("chat").await;
        assert_eq!(proxy.pieces(), (0, 0));
    });
}

#[test]
fn many_queues_are_asked_for_at_once() {
    let postgres = Postgres::shared();
    on_one_thread(async {
        let proxy = Proxy::before(postgres.port).await;
        let mut session = Session::start(through(&proxy, &postgres), NEVER).await;
        session.until(&News::Up).await;
        proxy.requests();
        proxy.hold_answers(true);
        let names: Vec<_> = (0..500).map(|n| format!("stream_{n}")).collect();
        // One after the other, as the dispatcher of a worker sends them.
        let mut asked = 0;
        for (before, name) in names.iter().enumerate() {
            session.wishes.want(&queue(name));
            while asked == before {
                tokio::task::yield_now().await;
                asked += count(&proxy.requests(), "LISTEN \"pgmq.q_stream_");
            }
        }
        assert_eq!(asked, 500, "LISTENs on their way without an answer");
        proxy.hold_answers(false);
        for name in &names {
            assert_eq!(session.next().await, News::Listening(queue(name)));
        }
        // And all of them again on a new connection, before it counts as up.
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()");
        session.until_down().await;
        for name in &names {
            assert_eq!(session.next().await, News::Listening(queue(name)));
        }
        assert_eq!(session.next().await, News::Up);
    });
}

#[test]
fn a_wish_that_changes_its_mind_ends_as_it_ends() {
    let postgres = Postgres::shared();
    on_one_thread(async {
        let proxy = Proxy::before(postgres.port).await;
        let mut session = Session::start(through(&proxy, &postgres), NEVER).await;
        session.until(&News::Up).await;
        proxy.requests();
        proxy.hold_answers(true);
        for wanted in [true, false, true, false, true] {
            let statement = if wanted {
                session.wishes.want(&queue("chat"));
                "LISTEN \"pgmq"
            } else {
                session.wishes.unwant(&queue("chat"));
                "UNLISTEN \"pgmq"
            };
            while count(&proxy.requests(), statement) == 0 {
                tokio::task::yield_now().await;
            }
        }
        proxy.hold_answers(false);
        // One confirmation: that of the last LISTEN, after which no UNLISTEN comes.
        assert_eq!(session.next().await, News::Listening(queue("chat")));
        postgres.notify("chat", "x");
        assert_eq!(session.next().await, wake("chat", Some("x")));
    });
}

#[test]
fn any_name_works_and_a_bad_one_harms_no_other() {
    let postgres = Postgres::shared();
    let long = "l".repeat(70);
    let longer = format!("{long} and more");
    let wide = format!("w{}", "ü".repeat(40));
    let names = ["a b", "a\"b", "\"", "'; DROP TABLE x; --", "a\\b", "ünïcödé 漢字", "", "UPPER", "a\nb", &long, &wide];
    on_one_thread(async {
        let mut session = Session::start(options(postgres.keywords()), HEALTH_CHECK).await;
        session.until(&News::Up).await;
        session.wishes.want(&queue("nul\0"));
        for name in names {
            session.wishes.want(&queue(name));
        }
        let News::Refused { queue: refused, reason } = session.next().await else { panic!("NUL was taken") };
        assert_eq!((&*refused, reason.contains("NUL")), ("nul\0", true));
        for name in names {
            assert_eq!(session.next().await, News::Listening(queue(name)));
        }
        for name in names {
            // NOTIFY cuts a long identifier as LISTEN does; pg_notify(), PGMQ's way, would refuse it.
            postgres.sql(&format!("NOTIFY \"pgmq.q_{}.INSERT\"", name.replace('"', "\"\"")));
            assert_eq!(session.next().await, wake(name, None));
        }
        // Two names that PostgreSQL can't tell apart share their wakes, and each ends alone.
        session.listen(&longer).await;
        postgres.sql(&format!("NOTIFY \"pgmq.q_{longer}.INSERT\""));
        assert_eq!(session.next().await, wake(&long, None));
        assert_eq!(session.next().await, wake(&longer, None));
        session.wishes.unwant(&queue(&long));
        session.listen("after").await;
        postgres.sql(&format!("NOTIFY \"pgmq.q_{longer}.INSERT\""));
        assert_eq!(session.next().await, wake(&longer, None));
    });
}

#[test]
fn a_name_that_the_database_refuses_harms_no_other() {
    let postgres = Postgres::shared();
    postgres.sql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0");
    on_one_thread(async {
        let mut keywords = postgres.keywords();
        keywords.retain(|(keyword, _)| keyword != "dbname");
        keywords.extend(pairs(&[("dbname", "latin")]));
        let mut session = Session::start(options(keywords), HEALTH_CHECK).await;
        session.until(&News::Up).await;
        for name in ["one", "漢字", "two"] {
            session.wishes.want(&queue(name));
        }
        assert_eq!(session.next().await, News::Listening(queue("one")));
        assert!(matches!(session.next().await, News::Refused { queue, .. } if *queue == *"漢字"));
        assert_eq!(session.next().await, News::Listening(queue("two")));
    });
}

#[test]
fn variables_are_set_in_order_and_a_bad_one_fails_the_connect() {
    let postgres = Postgres::shared();
    let with = |variables: &[(&str, &str)]| parse(postgres.keywords(), pairs(variables));
    on_one_thread(async {
        let variables = [("application_name", "first"), ("Application_Name", "it's \\ quoted")];
        let _session = Session::start(with(&variables).unwrap(), HEALTH_CHECK).await;
        assert_eq!(
            postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'it''s \\ quoted'"),
            "1"
        );
        let bad = with(&[("no_such_setting", "1")]).unwrap();
        match listen::connect(&bad, &|_| ()).await {
            Err(ConnectError::Failed(reason)) => assert!(reason.contains("no_such_setting"), "{reason}"),
            other => panic!("{:?}", other.map(|_| ())),
        }
    });
    wait_until("no connection is left behind", || postgres.sql(OTHERS) == "0");
    assert!(
        matches!(with(&[("x = 1; SET y", "1")]), Err(OptionsError::Invalid { option, .. }) if option == "variables")
    );
}

#[test]
fn a_server_that_goes_away_in_the_middle_of_it_fails_the_connect() {
    let postgres = Postgres::shared();
    on_one_thread(async {
        let proxy = Proxy::before(postgres.port).await;
        proxy.cut_at("pg_is_in_recovery");
        let through = through(&proxy, &postgres);
        let first = tokio::time::timeout(session::PATIENCE, listen::connect(&through, &|_| ())).await.unwrap();
        match first {
            Err(ConnectError::Failed(reason)) => assert!(reason.contains("closed"), "{reason}"),
            other => panic!("{:?}", other.map(|_| ())),
        }
        // A session that is being rebuilt tries again.
        let mut session = Session::start(through.clone(), HEALTH_CHECK).await;
        session.listen("chat").await;
        proxy.cut_at("pg_is_in_recovery");
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()");
        session.until_down().await;
        session.until(&News::Up).await;
    });
}

#[test]
fn the_session_says_who_it_is() {
    let postgres = Postgres::shared();
    let count = |name: &str| {
        postgres.sql(&format!("SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = '{name}'")) == "t"
    };
    for (more, shown) in [
        (vec![("fallback_application_name", "pgbus-listen")], "pgbus-listen"),
        (vec![("fallback_application_name", "pgbus-listen"), ("application_name", "mine")], "mine"),
        (vec![("options", "-c application_name=by\\ options")], "by options"),
    ] {
        let keywords = [postgres.keywords(), pairs(&more)].concat();
        on_one_thread(async {
            let _session = Session::start(options(keywords), HEALTH_CHECK).await;
            assert!(count(shown), "{shown}");
        });
    }
}

#[test]
fn dropping_it_ends_it_at_once_whatever_it_does() {
    let mut postgres = Postgres::start();
    on_one_thread(async {
        let wishes = Wishes::new();
        wishes.want(&queue("chat"));
        let mut session = Session::with_wishes(options(postgres.keywords()), HEALTH_CHECK, wishes).await;
        session.until(&News::Up).await;
        postgres.crash();
        session.until_down().await;
        drop(session);
        postgres.launch();
        let mut session = Session::start(options(postgres.keywords()), HEALTH_CHECK).await;
        session.listen("chat").await;
    });
    wait_until("the session is gone", || postgres.sql(OTHERS) == "0");
}
