//! Which server a session ends up on: several hosts, a real streaming replica, names, Unix sockets.
#![allow(clippy::unwrap_used)]

#[path = "support/session.rs"]
mod session;
#[path = "support/mod.rs"]
mod support;

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use pgbus_native_engine::listen::{self, ConnectError, Host, Options, Place};
use pgbus_native_engine::session::News;
use session::{on_one_thread, options, try_connect, wake, Session};
use support::{free_port, pairs, Postgres, DATABASE, USER};

fn to(more: &[(&str, &str)]) -> Options {
    options([pairs(&[("user", USER), ("dbname", DATABASE)]), pairs(more)].concat())
}

fn failure(options: &Options) -> String {
    match try_connect(options) {
        Err(ConnectError::Failed(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn target_session_attrs_choose_between_a_primary_and_its_replica() {
    let mut primary = Postgres::start();
    let replica = Postgres::replica_of(&primary);
    let both = |ports: [&Postgres; 2], target: &str| {
        let ports = format!("{},{}", ports[0].port, ports[1].port);
        to(&[("host", "127.0.0.1,127.0.0.1"), ("port", &ports), ("target_session_attrs", target)])
    };
    for order in [[&primary, &replica], [&replica, &primary]] {
        for target in ["read-write", "primary"] {
            assert_eq!(try_connect(&both(order, target)), Ok(()), "{target}");
        }
        // They find the replica, which a LISTEN session can't use.
        for target in ["read-only", "standby", "prefer-standby"] {
            assert_eq!(try_connect(&both(order, target)), Err(ConnectError::Replica), "{target}");
        }
    }
    assert_eq!(try_connect(&both([&primary, &replica], "any")), Ok(()));
    assert_eq!(try_connect(&both([&replica, &primary], "any")), Err(ConnectError::Replica));
    assert_eq!(try_connect(&both([&primary, &primary], "prefer-standby")), Ok(()));
    assert!(failure(&both([&primary, &primary], "standby")).contains("server is not in hot standby mode"));
    assert!(failure(&both([&primary, &primary], "read-only")).contains("session is not read-only"));
    assert!(failure(&both([&replica, &replica], "read-write")).contains("session is read-only"));
    assert!(failure(&both([&replica, &replica], "primary")).contains("server is in hot standby mode"));

    // A failover: the session finds the new primary.
    let session_options = both([&primary, &replica], "primary");
    on_one_thread(async {
        let mut session = Session::start(session_options, Duration::from_millis(250)).await;
        session.listen("chat").await;
        primary.crash();
        session.until_down().await;
        replica.sql("SELECT pg_promote()");
        session.until(&News::Up).await;
        replica.notify("chat", "from the new one");
        assert_eq!(session.next().await, wake("chat", Some("from the new one")));
    });
}

#[test]
fn hosts_are_tried_in_order() {
    let postgres = Postgres::shared();
    let (closed, open) = (free_port(), postgres.port);
    let ports = format!("{closed},{open}");
    assert_eq!(try_connect(&to(&[("host", "127.0.0.1,127.0.0.1"), ("port", &ports)])), Ok(()));
    let names = ("host", "no-such-host.invalid,localhost");
    assert_eq!(try_connect(&to(&[names, ("port", &open.to_string())])), Ok(()));
    let reasons = failure(&to(&[("host", "127.0.0.1,localhost"), ("port", &closed.to_string())]));
    assert!(reasons.contains(&format!("at \"127.0.0.1\", port {closed} failed: Connection refused")), "{reasons}");
    assert!(reasons.contains(&format!("at \"localhost\" (127.0.0.1), port {closed} failed")), "{reasons}");

    // A server that was reached and refuses us is the last, as in libpq.
    let reason = failure(&to(&[("host", "127.0.0.1,127.0.0.1"), ("port", &open.to_string()), ("dbname", "nowhere")]));
    assert_eq!(reason.matches("\"nowhere\" does not exist").count(), 1, "{reason}");
}

#[test]
fn connect_timeout_is_for_each_host() {
    let postgres = Postgres::shared();
    // Takes connections and never says a word.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = format!("{},{}", mute.local_addr().unwrap().port(), postgres.port);
    let options = to(&[("host", "127.0.0.1,127.0.0.1"), ("port", &ports), ("connect_timeout", "1")]);
    assert_eq!(try_connect(&options), Ok(()));
    let port = mute.local_addr().unwrap().port().to_string();
    let reason = failure(&to(&[("host", "127.0.0.1"), ("port", &port), ("connect_timeout", "1")]));
    assert!(reason.ends_with("timeout expired"), "{reason}");
}

#[test]
fn unix_sockets() {
    let postgres = Postgres::shared();
    let port = postgres.port.to_string();
    assert_eq!(try_connect(&to(&[("host", postgres.host()), ("port", &port)])), Ok(()));
    // TLS means nothing there.
    assert_eq!(try_connect(&to(&[("host", postgres.host()), ("port", &port), ("sslmode", "require")])), Ok(()));
    let reason = failure(&to(&[("host", "/nowhere"), ("port", &port)]));
    assert_eq!(
        reason,
        format!("connection to server on socket \"/nowhere/.s.PGSQL.{port}\" failed: No such file or directory")
    );
}

#[test]
fn a_name_without_an_address_fails_in_libpqs_words() {
    let reason = failure(&to(&[("host", "no-such-host.invalid")]));
    assert_eq!(reason, "could not translate host name \"no-such-host.invalid\" to address");
}

/// A server at `addresses`, all with this port.
fn at(addresses: &[&str], port: u16) -> Options {
    let place = Place::addresses(addresses.iter().copied()).unwrap();
    let host = Host::new(Some("db.test".to_owned()), place, &port.to_string(), Vec::new()).unwrap();
    Options::parse(vec![host], pairs(&[("user", USER), ("dbname", DATABASE)]), Vec::new()).unwrap()
}

/// An address that takes no connections and refuses none: its backlog is full.
struct Mute(#[allow(dead_code)] Vec<socket2::Socket>);

impl Mute {
    fn at(address: SocketAddr) -> Self {
        let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let listener = socket();
        listener.bind(&address.into()).unwrap();
        listener.listen(0).unwrap();
        let mut sockets = vec![listener];
        // Until one more waits in vain.
        loop {
            let client = socket();
            let connected = client.connect_timeout(&address.into(), Duration::from_millis(100));
            sockets.push(client);
            if connected.is_err() {
                return Self(sockets);
            }
        }
    }
}

#[test]
fn an_address_that_never_answers_does_not_keep_us_from_the_next() {
    let postgres = Postgres::shared();
    let _mute = Mute::at(SocketAddr::from(([127, 0, 0, 2], postgres.port)));
    let begun = Instant::now();
    assert_eq!(try_connect(&at(&["127.0.0.2", "127.0.0.1"], postgres.port)), Ok(()));
    // The system itself gives such an address up after two minutes, and we after 10 s.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn an_address_that_says_nothing_does_not_keep_us_from_the_next() {
    let postgres = Postgres::shared();
    // Takes connections and never says a word.
    let _mute = TcpListener::bind(("127.0.0.3", postgres.port)).unwrap();
    let options = at(&["127.0.0.3", "127.0.0.1"], postgres.port);
    assert!(on_one_thread(listen::open(&options, Some(Duration::from_secs(1)))).is_ok());
}
