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
use session::{on_one_thread, try_connect, Session};
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
        Options::parse(keywords, Vec::new()).unwrap()
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
        server.refuses(&[("sslmode", mode), ("sslrootcert", other)], "not signed by an authority");
    }
    server.refuses(
        &[("sslmode", "verify-ca"), ("sslrootcert", "/nowhere/root.crt")],
        "\"/nowhere/root.crt\" does not exist",
    );
    server.refuses(&[("sslrootcert", "system")], "not signed by an authority");

    // Names.
    server.refuses(
        &[("sslmode", "verify-full"), ("sslrootcert", root), ("host", "other.test")],
        "does not match the host name",
    );
    server.takes(&[("sslmode", "verify-ca"), ("sslrootcert", root), ("host", "other.test")]);
    server.takes(&[("sslmode", "verify-full"), ("sslrootcert", root), ("host", "a.wild.test")]);
    server.refuses(
        &[("sslmode", "verify-full"), ("sslrootcert", root), ("host", "a.b.wild.test")],
        "does not match the host name",
    );
    server.takes(&[("sslmode", "verify-full"), ("sslrootcert", root), ("host", "127.0.0.1")]);
    server.refuses(&[("sslmode", "verify-full"), ("sslrootcert", root), ("host", "")], "host name must be specified");

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
    let refused = |mode, words: &str| {
        wait_until(words, || match try_connect(&server.options(&verify(mode))) {
            Err(ConnectError::Failed(reason)) => reason.contains(words),
            _ => false,
        });
    };
    let taken = |mode| wait_until("it is taken", || try_connect(&server.options(&verify(mode))).is_ok());

    renew(&server.authority.issue("expired", "db.test", "DNS:db.test", Validity::Over));
    refused("verify-ca", "has expired");
    refused("require", "has expired");
    server.takes(&[("sslmode", "require"), ("sslrootcert", "/nowhere/root.crt")]);

    // The common name counts only where there is no name of the host's kind.
    renew(&server.authority.issue("common", "db.test", "", Validity::Now));
    taken("verify-full");
    renew(&server.authority.issue("both", "db.test", "DNS:else.test", Validity::Now));
    refused("verify-full", "does not match the host name");
    renew(&server.authority.issue("address", "db.test", "IP:10.0.0.1", Validity::Now));
    taken("verify-full");

    // A self-signed certificate that is itself what is trusted.
    let alone = Authority::new(server.work.path(), "alone");
    let key = alone.root().with_file_name("root.key");
    renew(&(alone.root(), key));
    refused("verify-ca", "");
    wait_until("the self-signed certificate is taken", || {
        let own = alone.root();
        try_connect(&server.options(&[("sslmode", "verify-ca"), ("sslrootcert", text(&own))])).is_ok()
    });
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
    server.refuses(&borrowed(&with(&stranger.0, &stranger.1)), "");
    server.refuses(&borrowed(&with(&cert, Path::new("/nowhere/key"))), "not private key file \"/nowhere/key\"");
    server.refuses(
        &borrowed(&[&with(&cert, &key)[..], &[("sslcertmode".to_owned(), "disable".to_owned())]].concat()),
        "certificate",
    );
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    server.refuses(&borrowed(&with(&cert, &key)), "has group or world access");
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
fn a_password_file() {
    let server = server();
    let file = server.work.path().join("pgpass");
    let port = server.postgres.port;
    let with = |user| [("user", user), ("passfile", text(&file)), ("sslmode", "disable")];
    fs::write(&file, format!("db.test:{port}:pgbus:scram:topsecret\n*:*:*:plain:wrong\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    server.takes(&with("scram"));
    server.refuses(&with("plain"), "password authentication failed");
    server.refuses(&with("md5"), "no password supplied");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    server.refuses(&with("scram"), "has group or world access");
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
        match Options::parse(pairs(&[("user", "a"), (keyword, value)]), Vec::new()) {
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
    let options = Options::parse(pairs(&[("user", "a"), ("password", "topsecret")]), Vec::new()).unwrap();
    assert!(!format!("{options:?}").contains("topsecret"));
    for (keyword, value) in [("sslmode", "always"), ("port", "0"), ("port", "1,2"), ("target_session_attrs", "x")] {
        let parsed = Options::parse(pairs(&[("user", "a"), ("password", "topsecret"), (keyword, value)]), Vec::new());
        let Err(error @ OptionsError::Invalid { .. }) = parsed else { panic!("{keyword} is taken") };
        assert!(error.to_string().contains(keyword) && !error.to_string().contains("topsecret"), "{error}");
    }
}
