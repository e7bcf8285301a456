//! The session behind a real PgBouncer.
#![allow(clippy::unwrap_used)]

#[path = "support/session.rs"]
mod session;
#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use pgbus_native_engine::session::News;
use session::{on_one_thread, options, wake, Session};
use support::{free_port, give_to_owner, pairs, wait_until, Postgres, Process, USER};

/// PgBouncer in front of a server, or None with a word about it where it isn't installed.
fn pooler(postgres: &Postgres, mode: &str, folder: &Path) -> Option<(Process, u16)> {
    let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/opt/homebrew/bin/pgbouncer"]
        .into_iter()
        .find(|program| Path::new(program).exists());
    let Some(program) = program else {
        eprintln!("SKIPPED: pgbouncer is not installed");
        return None;
    };
    let port = free_port();
    let config = folder.join("pgbouncer.ini");
    let text = format!(
        "[databases]\n{} = host=127.0.0.1 port={} user={USER}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n",
        postgres.database, postgres.port
    );
    fs::write(&config, text).unwrap();
    give_to_owner(folder);
    give_to_owner(&config);
    let process = Process::start(Path::new(program), &["-q", config.to_str().unwrap()], "KILL", folder);
    wait_until("pgbouncer listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    Some((process, port))
}

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
