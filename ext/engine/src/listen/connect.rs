//! From options to a connection: libpq's order of hosts and addresses, of attempts with and without TLS, and its rules
//! for when to go on to the next.

use std::collections::VecDeque;
use std::error::Error as _;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{timeout, timeout_at, Instant};
use tokio_postgres::config::{self, Config};
use tokio_postgres::error::SqlState;

use super::connection::{words, Connection};
use super::error::ConnectError;
use super::messages::Messages;
use super::options::{ChannelBinding, Host, Options, Place, SslMode, Target};
use super::race::{Finish, Race};
use super::socket::Socket;
use super::tls;

/// How long the first queries of a new connection may take, and an attempt to connect anew when `connect_timeout` sets
/// no limit: a session must not wait for ever for a server that went silent.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to the first server that libpq would choose, and SETs the variables. Runs in a current-thread tokio runtime
/// with I/O and time enabled.
///
/// `limit` bounds an attempt at one address; `connect_timeout`, where given, counts instead.
///
/// # Errors
/// See [`ConnectError`]. For [`ConnectError::Unsupported`] a session by libpq may do.
pub async fn open(options: &Options, limit: Option<Duration>) -> Result<Connection, ConnectError> {
    let mut connection = choose(options, options.connect_timeout.or(limit)).await?;
    let set = async {
        // Such a database has bytes of any kind, and ends a session that wants to be sent UTF-8 when it has others.
        if connection.link.parameter("server_encoding") == Some("SQL_ASCII") {
            connection.query("SET client_encoding = SQL_ASCII").await?;
        }
        for (name, value) in &options.variables {
            let value = value.replace('\'', "''");
            connection.query(&format!("SET {name} = '{value}'")).await?;
        }
        Ok(())
    };
    soon(set).await?;
    Ok(connection)
}

/// As [`open`], and refuses a replica.
pub(super) async fn open_primary(options: &Options, limit: Option<Duration>) -> Result<Connection, ConnectError> {
    let mut connection = open(options, limit).await?;
    if soon(connection.is("SELECT pg_catalog.pg_is_in_recovery()", "t")).await? {
        return Err(ConnectError::Replica);
    }
    Ok(connection)
}

async fn soon<T>(query: impl std::future::Future<Output = Result<T, String>>) -> Result<T, ConnectError> {
    let silent = |_| Err(format!("the server did not answer within {} s", PATIENCE.as_secs()));
    timeout(PATIENCE, query).await.unwrap_or_else(silent).map_err(ConnectError::Failed)
}

/// Why an attempt failed, and who is to be tried next.
enum Failure {
    /// This address is no good: the next one.
    Address(String),
    /// This host is no good: the next one.
    Host(String),
    /// libpq gives up here.
    Final(ConnectError),
}

async fn choose(options: &Options, limit: Option<Duration>) -> Result<Connection, ConnectError> {
    let rounds: &[Target] = match options.target {
        Target::PreferStandby => &[Target::Standby, Target::Any],
        ref target => std::slice::from_ref(target),
    };
    let mut failures = Vec::new();
    for target in rounds {
        for host in &options.hosts {
            match (Attempt { options, host, target: *target, limit }).run().await {
                Ok(connection) => return Ok(connection),
                Err(Failure::Address(reason) | Failure::Host(reason)) => failures.push(reason),
                Err(Failure::Final(error)) => return Err(error),
            }
        }
    }
    Err(ConnectError::Failed(failures.join("\n")))
}

/// A place that a socket can be connected to.
enum Address {
    Tcp(SocketAddr),
    Unix(String),
}

impl Address {
    /// For messages, in libpq's words.
    fn shown(&self, host: &Host) -> String {
        match (self, &host.name) {
            (Self::Unix(path), _) => format!("connection to server on socket \"{path}\" failed"),
            (Self::Tcp(address), Some(name)) if *name != address.ip().to_string() => {
                format!("connection to server at \"{name}\" ({}), port {} failed", address.ip(), address.port())
            }
            (Self::Tcp(address), _) => {
                format!("connection to server at \"{}\", port {} failed", address.ip(), address.port())
            }
        }
    }
}

/// With or without TLS.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Encryption {
    Plain,
    /// TLS when the server knows it, on the same connection without when it does not.
    PreferTls,
    Tls,
}

impl Encryption {
    /// What to try, in order. On a Unix socket `sslmode` means nothing.
    fn all(mode: SslMode, address: &Address) -> &'static [Self] {
        match (address, mode) {
            (Address::Unix(_), _) | (_, SslMode::Disable) => &[Self::Plain],
            (_, SslMode::Allow) => &[Self::Plain, Self::Tls],
            (_, SslMode::Prefer) => &[Self::PreferTls, Self::Plain],
            (_, SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull) => &[Self::Tls],
        }
    }
}

/// One host's turn.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    options: &'a Options,
    host: &'a Host,
    target: Target,
    limit: Option<Duration>,
}

impl Attempt<'_> {
    async fn run(&self) -> Result<Connection, Failure> {
        let addresses = match &self.host.place {
            Place::Addresses(addresses) => addresses,
            Place::Folder(folder) => {
                let address = Address::Unix(format!("{folder}/.s.PGSQL.{}", self.host.port));
                let deadline = self.limit.map(|limit| Instant::now() + limit);
                return self.at(&address, deadline, None).await;
            }
            Place::Unknown { why } => return Err(Failure::Host(why.clone())),
        };
        let addresses = addresses.iter().map(|address| SocketAddr::new(*address, self.host.port));
        let mut race = Race::new(addresses, self.options, self.limit);
        let mut reasons = Vec::new();
        while let Some(Finish { address, deadline, connected }) = race.next().await {
            let address = Address::Tcp(address);
            match connected {
                Err(error) => reasons.push(format!("{}: {}", address.shown(self.host), os_message(&error))),
                Ok(socket) => match self.at(&address, deadline, Some(socket)).await {
                    Err(Failure::Address(reason)) => reasons.push(reason),
                    other => return other,
                },
            }
        }
        Err(Failure::Host(reasons.join("\n")))
    }

    /// At one address, with the socket to it if there is one yet.
    async fn at(
        &self,
        address: &Address,
        deadline: Option<Instant>,
        socket: Option<Socket>,
    ) -> Result<Connection, Failure> {
        let attempt = self.with_and_without_tls(address, socket);
        let Some(deadline) = deadline else { return attempt.await };
        let expired = |_| Err(Failure::Address(format!("{}: timeout expired", address.shown(self.host))));
        timeout_at(deadline, attempt).await.unwrap_or_else(expired)
    }

    async fn with_and_without_tls(&self, address: &Address, mut socket: Option<Socket>) -> Result<Connection, Failure> {
        let shown = address.shown(self.host);
        let with_place = |why: &str| format!("{shown}: {why}");
        let mut reasons = Vec::new();
        for encryption in Encryption::all(self.options.ssl.mode, address) {
            let connected = match (socket.take(), address) {
                (Some(socket), _) => Ok(socket),
                (None, Address::Tcp(address)) => Socket::tcp(*address, self.options).await,
                (None, Address::Unix(path)) => Socket::unix(path),
            };
            let socket = connected.map_err(|error| Failure::Address(with_place(&os_message(&error))))?;
            match start(self.options, self.host, socket, *encryption).await {
                Ok(mut connection) => {
                    return match connection.suits(self.target).await {
                        Ok(Ok(())) => Ok(connection),
                        Ok(Err(why)) => Err(Failure::Host(with_place(why))),
                        Err(why) => Err(Failure::Host(with_place(&why))),
                    }
                }
                Err(Refusal::OtherEncryption(reason)) => reasons.push(with_place(&reason)),
                Err(Refusal::NotNow(reason)) => return Err(Failure::Host(with_place(&reason))),
                Err(Refusal::Final(reason)) => {
                    reasons.push(with_place(&reason));
                    break;
                }
                Err(Refusal::Unsupported(option, why)) => {
                    let option = option.to_owned();
                    return Err(Failure::Final(ConnectError::Unsupported { option, why: with_place(&why) }));
                }
            }
        }
        Err(Failure::Final(ConnectError::Failed(reasons.join("\n"))))
    }
}

/// Why a server that was reached gave no session.
enum Refusal {
    /// With TLS where it was without, or the reverse, it may work.
    OtherEncryption(String),
    /// The server is starting or stopping: another one may do.
    NotNow(String),
    Final(String),
    Unsupported(&'static str, String),
}

async fn start(options: &Options, host: &Host, socket: Socket, encryption: Encryption) -> Result<Connection, Refusal> {
    let mut config = Config::new();
    config
        .user(&options.user)
        .dbname(&options.dbname)
        .ssl_mode(match encryption {
            Encryption::Plain => config::SslMode::Disable,
            Encryption::PreferTls => config::SslMode::Prefer,
            Encryption::Tls => config::SslMode::Require,
        })
        .channel_binding(match options.channel_binding {
            ChannelBinding::Disable => config::ChannelBinding::Disable,
            ChannelBinding::Prefer => config::ChannelBinding::Prefer,
            ChannelBinding::Require => config::ChannelBinding::Require,
        });
    if let Some(name) = &options.application_name {
        config.application_name(name);
    }
    if let Some(text) = &options.server_options {
        config.options(text);
    }
    if let Some(password) = &host.password {
        config.password(&password.0);
    }
    let handshake = match encryption {
        Encryption::Plain => tls::Handshake::none(),
        Encryption::PreferTls | Encryption::Tls => {
            let bind = options.channel_binding != ChannelBinding::Disable;
            tls::Handshake::prepare(&options.ssl, host.name.as_deref(), bind)
                .map_err(|tls::Unsupported { option, why }| Refusal::Unsupported(option, why))?
        }
    };
    let progress = handshake.progress();
    let before = usize::from(encryption != Encryption::Plain);
    match config.connect_raw(Messages::new(socket, before), handshake).await {
        Ok((client, link)) => Ok(Connection { client, link, notified: VecDeque::new() }),
        Err(_) if progress.unbound.get() => {
            let why =
                "the server's certificate is signed in a way that the native session can't bind a password's proof by";
            Err(Refusal::Unsupported("channel_binding", why.to_owned()))
        }
        Err(error) => Err(refusal(&error, encryption == Encryption::PreferTls && !progress.began.get())),
    }
}

fn refusal(error: &tokio_postgres::Error, was_plain: bool) -> Refusal {
    if let Some(refused) = error.as_db_error() {
        return match refused.code() {
            &SqlState::CANNOT_CONNECT_NOW => Refusal::NotNow(words(error)),
            _ if was_plain => Refusal::Final(words(error)),
            _ => Refusal::OtherEncryption(words(error)),
        };
    }
    if let Some(error) = tls_error(error) {
        return Refusal::Unsupported("sslmode", format!("SSL error: {error}"));
    }
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    match cause.as_str() {
        "password missing" => Refusal::Final("fe_sendauth: no password supplied".to_owned()),
        "unsupported authentication method" | "unsupported SASL mechanism" => {
            Refusal::Unsupported("authentication method", "the server wants one that only libpq knows".to_owned())
        }
        "server does not support TLS" => Refusal::Final("server does not support SSL, but SSL was required".to_owned()),
        "server did not use channel binding" => {
            Refusal::Final("channel binding required, but not supported by server's authentication request".to_owned())
        }
        _ if error.to_string().contains("TLS") => Refusal::OtherEncryption(words(error)),
        _ => Refusal::Final(words(error)),
    }
}

fn tls_error(error: &tokio_postgres::Error) -> Option<&rustls::Error> {
    error.source()?.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref()
}

/// An error of the system, in its own words.
fn os_message(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
