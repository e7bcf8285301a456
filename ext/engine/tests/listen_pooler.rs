//! The session behind a real PgBouncer.
#![allow(clippy::unwrap_used)]

#[path = "support/pooler.rs"]
mod pooler;
#[path = "support/session.rs"]
mod session;
#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use pgbus_native_engine::session::News;
use pooler::pooler;
use session::{on_one_thread, options, wake, Session};
use support::{pairs, Postgres, USER};

fn errors_behind(mode: &str, wakes: bool) -> Option<Vec<String>> {
    let postgres = Postgres::shared();
    let folder = tempfile::tempdir().unwrap();
    let (_pooler, port) = pooler(&postgres, mode, folder.path())?;
    let keywords =
        pairs(&[("host", "127.0.0.1"), ("port", &port.to_string()), ("user", USER), ("dbname", &postgres.database)]);
    on_one_thread(async {
        let mut session = Session::start(options(keywords), Duration::from_millis(250)).await;
        session.until(&News::Up).await;
        session.listen("chat").await;
        if wakes {
            postgres.notify("chat", "through the pooler");
            assert_eq!(session.next().await, wake("chat", Some("through the pooler")));
        }
        Some(session.errors())
    })
}

#[test]
fn in_session_mode_all_is_well() {
    let Some(errors) = errors_behind("session", true) else { return };
    assert_eq!(errors, Vec::<String>::new());
}

#[test]
fn in_transaction_mode_an_error_says_what_to_set() {
    let Some(errors) = errors_behind("transaction", false) else { return };
    assert_eq!(errors.len(), 1, "{errors:?}");
    for setting in ["streams_database_url", "streams_host", "streams_port"] {
        assert!(errors[0].contains(setting), "{errors:?}");
    }
}
