//! TLS and authentication against a real PostgreSQL: what libpq takes and refuses, we take and refuse.
#![allow(clippy::unwrap_used)]

#[path = "support/authority.rs"]
mod authority;
#[path = "support/session.rs"]
mod session;
#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use authority::{Authority, Validity};
use pgbus_native_engine::listen::{ConnectError, Options, OptionsError};
use session::{on_one_thread, parse, try_connect, Session};
use support::{give_to_owner, pairs, wait_until, Postgres};

/// A server with TLS and all ways of authentication, and the authority that made its certificate.
struct Server {
    postgres: Postgres,
    authority: Authority,
    work: tempfile::TempDir,
}

/// For the tests that don't change its certificate.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(Server::start)
}

const HBA: [&str; 9] = [
    "hostssl all scram 127.0.0.1/32 scram-sha-256",
    "hostnossl all scram 127.0.0.1/32 scram-sha-256",
    "host all md5 127.0.0.1/32 md5",
    "host all plain 127.0.0.1/32 password",
    "hostssl all cert 127.0.0.1/32 cert",
    "hostssl all tls 127.0.0.1/32 trust",
    "hostnossl all tls 127.0.0.1/32 reject",
    "hostssl all clear 127.0.0.1/32 reject",
    "hostnossl all clear 127.0.0.1/32 trust",
];

impl Server {
    fn start() -> Self {
        let mut postgres = Postgres::with(&[], &HBA);
        // Goes with the server, also where nobody drops it.
        let work = tempfile::tempdir_in(postgres.host()).unwrap();
        let authority = Authority::new(work.path(), "ca");
        postgres.crash();
        let root = postgres.data().join("root.crt");
        fs::copy(authority.root(), &root).unwrap();
        give_to_owner(&root);
        let server = authority.issue("server", "db.test", "DNS:db.test,DNS:*.wild.test,IP:127.0.0.1", Validity::Now);
        install(&postgres, &server);
        let settings = "ssl = on\nssl_ca_file = 'root.crt'\n";
        let file = postgres.data().join("postgresql.conf");
        fs::write(&file, fs::read_to_string(&file).unwrap() + settings).unwrap();
        postgres.launch();
        postgres.sql(
            "CREATE ROLE scram LOGIN PASSWORD 'topsecret'; CREATE ROLE plain LOGIN PASSWORD 'topsecret'; \
             SET password_encryption = 'md5'; CREATE ROLE md5 LOGIN PASSWORD 'topsecret'; \
             CREATE ROLE cert LOGIN; CREATE ROLE tls LOGIN; CREATE ROLE clear LOGIN",
        );
        Self { postgres, authority, work }
    }

    /// Options for the host "db.test", which is really at the loopback address.
    fn options(&self, more: &[(&str, &str)]) -> Options {
        let port = self.postgres.port.to_string();
        let mut keywords = pairs(&[
            ("host", "db.test"),
            ("hostaddr", "127.0.0.1"),
            ("port", &port),
            ("user", "pgbus"),
            ("dbname", "pgbus"),
        ]);
        for (keyword, value) in more {
            keywords.retain(|(other, _)| other != keyword);
            keywords.push(((*keyword).to_owned(), (*value).to_owned()));
        }
        session::options(keywords)
    }

    fn takes(&self, more: &[(&str, &str)]) {
        let result = try_connect(&self.options(more));
        assert_eq!(result, Ok(()), "{more:?}");
    }

    /// Not taken, for a reason that has these words in it and no secret.
    fn refuses(&self, more: &[(&str, &str)], words: &str) {
        match try_connect(&self.options(more)) {
            Err(ConnectError::Failed(reason)) if reason.contains(words) => {
                assert!(!reason.contains("topsecret"), "{reason}");
            }
            other => panic!("{more:?}: expected {words:?}, got {other:?}"),
        }
    }

    /// Left to libpq, which is to say what is wrong, or that nothing is.
    fn leaves(&self, more: &[(&str, &str)], option: &str) {
        match try_connect(&self.options(more)) {
            Err(ConnectError::Unsupported { option: named, why }) => {
                assert_eq!(named, option, "{more:?}: {why}");
                assert!(!why.contains("topsecret"), "{why}");
            }
            other => panic!("{more:?}: expected {option:?}, got {other:?}"),
        }
    }

    /// Whether the session is encrypted, by the server's own account.
    fn is_encrypted(&self, name: &str, more: &[(&str, &str)]) -> bool {
        on_one_thread(async {
            let more = [more, &[("application_name", name)]].concat();
            let _session = Session::start(self.options(&more), Duration::from_secs(9)).await;
            let sql = format!(
                "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = '{name}' \
                 ORDER BY backend_start LIMIT 1"
            );
            self.postgres.sql(&sql) == "t"
        })
    }
}

fn install(postgres: &Postgres, (cert, key): &(std::path::PathBuf, std::path::PathBuf)) {
    for (file, name) in [(cert, "server.crt"), (key, "server.key")] {
        let target = postgres.data().join(name);
        fs::copy(file, &target).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
        give_to_owner(&target);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn sslmode_means_what_it_means_to_libpq() {
    let server = server();
    let root = server.authority.root();
    let root = text(&root);
    let other = Authority::new(server.work.path(), "other").root();
    let other = text(&other);

    assert!(!server.is_encrypted("disable", &[("sslmode", "disable")]));
    assert!(!server.is_encrypted("allow", &[("sslmode", "allow")]));
    assert!(server.is_encrypted("prefer", &[("sslmode", "prefer")]));
    assert!(server.is_encrypted("require", &[("sslmode", "require")]));
    assert!(server.is_encrypted("default", &[]));
    // The other way, where the server refuses the first.
    assert!(server.is_encrypted("allow tls", &[("sslmode", "allow"), ("user", "tls")]));
    assert!(!server.is_encrypted("prefer clear", &[("sslmode", "prefer"), ("user", "clear")]));
    server.refuses(&[("sslmode", "require"), ("user", "clear")], "pg_hba.conf rejects");
    server.refuses(&[("sslmode", "disable"), ("user", "tls")], "pg_hba.conf rejects");

    // A right authority; and a wrong one, also where require alone would not have checked.
    server.takes(&[("sslmode", "verify-ca"), ("sslrootcert", root)]);
    server.takes(&[("sslmode", "verify-full"), ("sslrootcert", root)]);
    server.takes(&[("sslmode", "require"), ("sslrootcert", root)]);
    server.takes(&[("sslmode", "require"), ("sslrootcert", "/nowhere/root.crt")]);
    for mode in ["require", "verify-ca", "verify-full"] {
        server.leaves(&[("sslmode", mode), ("sslrootcert", other)], "sslmode");
    }
    server.leaves(&[("sslmode", "verify-ca"), ("sslrootcert", "/nowhere/root.crt")], "sslrootcert");
    match try_connect(&server.options(&[("sslrootcert", "system")])) {
        // Where the system has none, it says so.
        Err(ConnectError::Unsupported { option, .. }) => assert!(["sslmode", "sslrootcert"].contains(&&*option)),
        other => panic!("{other:?}"),
    }

    // Names.
    server.leaves(&[("sslmode", "verify-full"), ("sslrootcert", root), ("host", "other.test")], "sslmode");
    server.takes(&[("sslmode", "verify-ca"), ("sslrootcert", root), ("host", "other.test")]);
    server.takes(&[("sslmode", "verify-full"), ("sslrootcert", root), ("host", "a.wild.test")]);
    server.leaves(&[("sslmode", "verify-full"), ("sslrootcert", root), ("host", "a.b.wild.test")], "sslmode");
    server.takes(&[("sslmode", "verify-full"), ("sslrootcert", root), ("host", "127.0.0.1")]);
    server.leaves(&[("sslmode", "verify-full"), ("sslrootcert", root), ("host", "")], "sslmode");

    // TLS versions, and no name sent.
    for version in ["TLSv1.2", "TLSv1.3"] {
        let versions = [("ssl_min_protocol_version", version), ("ssl_max_protocol_version", version)];
        server.takes(&[&versions[..], &[("sslmode", "verify-full"), ("sslrootcert", root)]].concat());
    }
    server.takes(&[("sslmode", "require"), ("sslsni", "0")]);
}

#[test]
fn certificates_of_all_kinds() {
    let server = Server::start();
    let root = server.authority.root();
    let verify = |mode| [("sslmode", mode), ("sslrootcert", text(&root))];
    let renew = |certificate: &(std::path::PathBuf, std::path::PathBuf)| {
        install(&server.postgres, certificate);
        server.postgres.sql("SELECT pg_reload_conf()");
    };
    // The postmaster reloads when it gets to it.
    let left = |mode, words: &str| {
        wait_until(words, || match try_connect(&server.options(&verify(mode))) {
            Err(ConnectError::Unsupported { why, .. }) => why.contains(words),
            _ => false,
        });
    };
    let taken = |mode| wait_until("it is taken", || try_connect(&server.options(&verify(mode))).is_ok());

    renew(&server.authority.issue("expired", "db.test", "DNS:db.test", Validity::Over));
    left("verify-ca", "expired");
    left("require", "expired");
    server.takes(&[("sslmode", "require"), ("sslrootcert", "/nowhere/root.crt")]);

    renew(&server.authority.issue("right", "db.test", "DNS:db.test", Validity::Now));
    taken("verify-full");
    renew(&server.authority.issue("wrong", "db.test", "DNS:else.test", Validity::Now));
    left("verify-full", "not valid for name");
    taken("verify-ca");
    // The common name, which libpq may take.
    renew(&server.authority.issue("common", "db.test", "", Validity::Now));
    left("verify-full", "not valid for name");

    // A self-signed certificate that is itself what is trusted, which OpenSSL takes.
    let alone = Authority::new(server.work.path(), "alone");
    let key = alone.root().with_file_name("root.key");
    renew(&(alone.root(), key));
    left("verify-ca", "");
    server.leaves(&[("sslmode", "verify-ca"), ("sslrootcert", text(&alone.root()))], "sslmode");
}

/// A password's proof is bound to the certificate, or libpq is asked to (invariant 19).
#[test]
fn a_certificate_whose_signature_names_no_digest() {
    let server = Server::start();
    let pss = server.authority.issue_by_pss("pss", "db.test");
    install(&server.postgres, &pss);
    server.postgres.sql("SELECT pg_reload_conf()");
    let scram =
        |binding| [("user", "scram"), ("password", "topsecret"), ("sslmode", "require"), ("channel_binding", binding)];
    wait_until("the certificate counts", || try_connect(&server.options(&scram("require"))).is_err());
    server.leaves(&scram("require"), "channel_binding");
    server.leaves(&scram("prefer"), "channel_binding");
    server.takes(&scram("disable"));
    // Who has no password to prove needs no binding.
    server.takes(&[("user", "tls"), ("sslmode", "require")]);
}

#[test]
fn client_certificates() {
    let server = server();
    let (cert, key) = server.authority.issue("cert", "cert", "", Validity::Now);
    let stranger = Authority::new(server.work.path(), "stranger").issue("cert", "cert", "", Validity::Now);
    let user = [("user", "cert"), ("sslmode", "require")];
    let with = |cert: &Path, key: &Path| {
        [&user[..], &[("sslcert", text(cert)), ("sslkey", text(key))]]
            .concat()
            .into_iter()
            .map(|(keyword, value)| (keyword.to_owned(), value.to_owned()))
            .collect::<Vec<_>>()
    };
    let borrowed = |pairs: &[(String, String)]| -> Vec<(&'static str, &'static str)> {
        pairs.iter().map(|(k, v)| (&*k.clone().leak(), &*v.clone().leak())).collect()
    };
    server.takes(&borrowed(&with(&cert, &key)));
    server.refuses(&user, "certificate");
    server.leaves(&borrowed(&with(&stranger.0, &stranger.1)), "sslmode");
    server.leaves(&borrowed(&with(&cert, Path::new("/nowhere/key"))), "sslkey");
    server.refuses(
        &borrowed(&[&with(&cert, &key)[..], &[("sslcertmode".to_owned(), "disable".to_owned())]].concat()),
        "certificate",
    );
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    server.leaves(&borrowed(&with(&cert, &key)), "sslkey");
}

#[test]
fn passwords() {
    let server = server();
    let password = ("password", "topsecret");
    for user in ["scram", "md5", "plain"] {
        server.takes(&[("user", user), password]);
        server.takes(&[("user", user), password, ("sslmode", "disable")]);
        server.refuses(&[("user", user), ("password", "wrong topsecret")], "password authentication failed");
        server.refuses(&[("user", user)], "no password supplied");
    }
    for binding in ["disable", "prefer", "require"] {
        server.takes(&[("user", "scram"), password, ("channel_binding", binding), ("sslmode", "require")]);
    }
    // Nothing but SCRAM over TLS binds the channel.
    let required = ("channel_binding", "require");
    server.refuses(&[("user", "scram"), password, required, ("sslmode", "disable")], "channel binding required");
    server.refuses(&[("user", "md5"), password, required], "channel binding required");
    server.refuses(&[("user", "plain"), password, required], "channel binding required");
    server.refuses(&[("user", "tls"), required], "channel binding required");
    assert_eq!(server.postgres.log().matches("wrong topsecret").count(), 0);
}

#[test]
fn what_only_libpq_can_do_is_named() {
    let server = server();
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let key = server.work.path().join("encrypted.key");
    fs::write(&key, encrypted).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let (cert, _) = server.authority.issue("cert", "cert", "", Validity::Now);
    let result = try_connect(&server.options(&[("sslcert", text(&cert)), ("sslkey", text(&key))]));
    assert!(matches!(result, Err(ConnectError::Unsupported { option, .. }) if option == "sslkey"));

    for (keyword, value) in [
        ("sslcrl", "/a"),
        ("sslpassword", "topsecret"),
        ("requirepeer", "postgres"),
        ("require_auth", "scram-sha-256"),
        ("gssencmode", "require"),
        ("client_encoding", "LATIN1"),
        ("replication", "database"),
        ("load_balance_hosts", "random"),
        ("sslnegotiation", "direct"),
        ("ssl_max_protocol_version", "TLSv1.1"),
        ("an_option_of_tomorrow", "1"),
    ] {
        match parse(pairs(&[("user", "a"), (keyword, value)]), Vec::new()) {
            Err(OptionsError::Unsupported { option, why }) => {
                assert_eq!(option, keyword);
                assert!(!why.contains("topsecret"));
            }
            other => panic!("{keyword}: {other:?}"),
        }
    }
}

#[test]
fn options_never_show_a_password() {
    let options = parse(pairs(&[("user", "a"), ("password", "topsecret")]), Vec::new()).unwrap();
    assert!(!format!("{options:?}").contains("topsecret"));
    for (keyword, value) in [("sslmode", "always"), ("port", "0"), ("target_session_attrs", "x")] {
        let parsed = parse(pairs(&[("user", "a"), ("password", "topsecret"), (keyword, value)]), Vec::new());
        let Err(error @ OptionsError::Invalid { .. }) = parsed else { panic!("{keyword} is taken") };
        assert!(error.to_string().contains(keyword) && !error.to_string().contains("topsecret"), "{error}");
    }
}
