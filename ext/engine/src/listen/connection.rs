//! From options to one connection that is ready for LISTEN: libpq's order of hosts and addresses, of ways with and
//! without TLS, and its rules for when to go on to the next.

use std::collections::VecDeque;
use std::error::Error as _;
use std::future::{poll_fn, Future};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{ready, Poll};
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::config::{self, Config};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Notification, SimpleQueryMessage};

use super::error::ConnectError;
use super::options::{ChannelBinding, Host, Options, Place, SslMode, Target};
use super::socket::Socket;
use super::{passfile, resolve, tls};

/// How long the first queries of a new connection may take, and an attempt to connect anew when `connect_timeout` sets
/// no limit: a session must not wait for ever for a server that went silent.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The half of a connection that reads and writes; somebody must poll it.
pub(crate) type Link = tokio_postgres::Connection<Socket, tls::Stream>;

/// A connection and what was notified while it was being set up.
pub(crate) struct Connection {
    pub client: Client,
    pub link: Link,
    pub notified: VecDeque<Notification>,
}

/// Connects to the first server that libpq would choose, SETs the variables and makes sure that it is no replica.
/// `limit` bounds an attempt at one address; `connect_timeout`, where given, counts instead.
pub(crate) async fn open(options: &Options, limit: Option<Duration>) -> Result<Connection, ConnectError> {
    let mut connection = choose(options, options.connect_timeout.or(limit)).await?;
    let prepared = timeout(PATIENCE, async {
        for (name, value) in &options.variables {
            let value = value.replace('\'', "''");
            connection.query(&format!("SET {name} = '{value}'")).await?;
        }
        connection.is("SELECT pg_catalog.pg_is_in_recovery()", "t").await
    });
    match prepared.await {
        Ok(Ok(false)) => Ok(connection),
        Ok(Ok(true)) => Err(ConnectError::Replica),
        Ok(Err(reason)) => Err(ConnectError::Failed(reason)),
        Err(_) => Err(ConnectError::Failed(format!("the server did not answer within {} s", PATIENCE.as_secs()))),
    }
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
    let mut only_names = true;
    for target in rounds {
        for host in &options.hosts {
            let addresses = match addresses(host, limit).await {
                Ok(addresses) => addresses,
                Err(reason) => {
                    failures.push(reason);
                    continue;
                }
            };
            only_names = false;
            for address in addresses {
                let attempt = attempt(options, host, &address, *target);
                let failure = match limit {
                    Some(limit) => timeout(limit, attempt)
                        .await
                        .unwrap_or_else(|_| Err(Failure::Host(format!("{}: timeout expired", address.shown(host))))),
                    None => attempt.await,
                };
                match failure {
                    Ok(connection) => return Ok(connection),
                    Err(Failure::Address(reason)) => failures.push(reason),
                    Err(Failure::Host(reason)) => {
                        failures.push(reason);
                        break;
                    }
                    Err(Failure::Final(error)) => return Err(error),
                }
            }
        }
    }
    let reasons = failures.join("\n");
    if only_names {
        // The C library may know sources of names that we don't: mDNS, LDAP, systemd's.
        return Err(ConnectError::Unsupported { option: "host".to_owned(), why: reasons });
    }
    Err(ConnectError::Failed(reasons))
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

async fn addresses(host: &Host, limit: Option<Duration>) -> Result<Vec<Address>, String> {
    match &host.place {
        Place::Folder(folder) => Ok(vec![Address::Unix(format!("{folder}/.s.PGSQL.{}", host.port))]),
        Place::Address(address) => Ok(vec![Address::Tcp(SocketAddr::new(*address, host.port))]),
        Place::Name(name) => {
            let found = timeout(limit.unwrap_or(PATIENCE), resolve::addresses(name)).await;
            let found = found.unwrap_or_else(|_| Err("timeout expired".to_owned()));
            let found = found.map_err(|why| format!("could not translate host name \"{name}\" to address: {why}"))?;
            Ok(found.into_iter().map(|address| Address::Tcp(SocketAddr::new(address, host.port))).collect())
        }
    }
}

/// With or without TLS.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    /// TLS when the server knows it, on the same connection without when it does not.
    PreferTls,
    Tls,
}

impl Way {
    /// The ways to try, in order. On a Unix socket `sslmode` means nothing.
    fn all(mode: SslMode, address: &Address) -> &'static [Self] {
        match (address, mode) {
            (Address::Unix(_), _) | (_, SslMode::Disable) => &[Self::Plain],
            (_, SslMode::Allow) => &[Self::Plain, Self::Tls],
            (_, SslMode::Prefer) => &[Self::PreferTls, Self::Plain],
            (_, SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull) => &[Self::Tls],
        }
    }
}

async fn attempt(options: &Options, host: &Host, address: &Address, target: Target) -> Result<Connection, Failure> {
    let shown = address.shown(host);
    let with_place = |why: &str| format!("{shown}: {why}");
    let mut reasons = Vec::new();
    for way in Way::all(options.ssl.mode, address) {
        let socket = match address {
            Address::Tcp(address) => Socket::tcp(*address, options).await,
            Address::Unix(path) => Socket::unix(path),
        };
        let socket = socket.map_err(|error| Failure::Address(with_place(&told(&error))))?;
        match start(options, host, socket, *way, address).await {
            Ok(mut connection) => {
                return match connection.suits(target).await {
                    Ok(Ok(())) => Ok(connection),
                    Ok(Err(why)) => Err(Failure::Host(with_place(why))),
                    Err(why) => Err(Failure::Host(with_place(&why))),
                }
            }
            Err(Refusal::OtherWay(reason)) => reasons.push(with_place(&reason)),
            Err(Refusal::NotNow(reason)) => return Err(Failure::Host(with_place(&reason))),
            Err(Refusal::Final(reason)) => {
                reasons.push(with_place(&reason));
                break;
            }
            Err(Refusal::Unsupported(option, why)) => {
                return Err(Failure::Final(ConnectError::Unsupported {
                    option: option.to_owned(),
                    why: with_place(&why),
                }))
            }
        }
    }
    Err(Failure::Final(ConnectError::Failed(reasons.join("\n"))))
}

/// Why a server that was reached gave no session.
enum Refusal {
    /// With TLS where it was without, or the reverse, it may work.
    OtherWay(String),
    /// The server is starting or stopping: another one may do.
    NotNow(String),
    Final(String),
    Unsupported(&'static str, String),
}

async fn start(
    options: &Options,
    host: &Host,
    socket: Socket,
    way: Way,
    address: &Address,
) -> Result<Connection, Refusal> {
    let mut config = Config::new();
    config
        .user(&options.user)
        .dbname(&options.dbname)
        .ssl_mode(match way {
            Way::Plain => config::SslMode::Disable,
            Way::PreferTls => config::SslMode::Prefer,
            Way::Tls => config::SslMode::Require,
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
    let (password, complaint) = password(options, host, address);
    if let Some(password) = password {
        config.password(password);
    }
    let connector = match way {
        Way::Plain => None,
        Way::PreferTls | Way::Tls => {
            Some(tls::connector(&options.ssl, host.name.as_deref()).map_err(|error| match error {
                tls::SetupError::Failed(why) => Refusal::OtherWay(why),
                tls::SetupError::Unsupported { option, why } => Refusal::Unsupported(option, why),
            })?)
        }
    };
    let handshake = tls::Handshake::new(connector);
    let began = handshake.began();
    match config.connect_raw(socket, handshake).await {
        Ok((client, link)) => Ok(Connection { client, link, notified: VecDeque::new() }),
        Err(error) => Err(refusal(&error, complaint, way == Way::PreferTls && !began.get())),
    }
}

/// libpq's order: the options' password, else the password file's for this host. Beside it, what is wrong with the
/// file.
fn password(options: &Options, host: &Host, address: &Address) -> (Option<String>, Option<String>) {
    if let Some(password) = &options.password {
        return (Some(password.0.clone()), None);
    }
    let Some(file) = &options.passfile else { return (None, None) };
    let named = match (&host.name, address) {
        (Some(name), _) => name.clone(),
        (None, Address::Tcp(address)) => address.ip().to_string(),
        (None, Address::Unix(_)) => "localhost".to_owned(),
    };
    let name = if options.default_folder.as_deref() == Some(&named) { "localhost" } else { &named };
    let key = passfile::Key { host: name, port: host.port, dbname: &options.dbname, user: &options.user };
    match passfile::lookup(file, &key) {
        Ok(password) => (password.map(|password| password.0), None),
        Err(complaint) => (None, Some(complaint)),
    }
}

fn refusal(error: &tokio_postgres::Error, complaint: Option<String>, was_plain: bool) -> Refusal {
    if let Some(refused) = error.as_db_error() {
        return match refused.code() {
            &SqlState::CANNOT_CONNECT_NOW => Refusal::NotNow(words(error)),
            _ if was_plain => Refusal::Final(words(error)),
            _ => Refusal::OtherWay(words(error)),
        };
    }
    if let Some(error) = tls_error(error) {
        let reason = tls::explain(error);
        return if tls::is_limit_of_rustls(error) {
            Refusal::Unsupported("sslmode", reason)
        } else {
            Refusal::OtherWay(reason)
        };
    }
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    match cause.as_str() {
        "password missing" => {
            let complaint = complaint.map(|complaint| format!(" ({complaint})")).unwrap_or_default();
            Refusal::Final(format!("fe_sendauth: no password supplied{complaint}"))
        }
        "unsupported authentication method" | "unsupported SASL mechanism" => {
            Refusal::Unsupported("authentication method", "the server wants one that only libpq knows".to_owned())
        }
        "server does not support TLS" => Refusal::Final("server does not support SSL, but SSL was required".to_owned()),
        "server did not use channel binding" => {
            Refusal::Final("channel binding required, but not supported by server's authentication request".to_owned())
        }
        _ if error.to_string().contains("TLS") => Refusal::OtherWay(words(error)),
        _ => Refusal::Final(words(error)),
    }
}

fn tls_error(error: &tokio_postgres::Error) -> Option<&rustls::Error> {
    error.source()?.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref()
}

/// The server's words, or ours, on one line.
pub(crate) fn words(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        let mut text = format!("{}:  {}", error.severity(), error.message());
        for (label, more) in [("DETAIL", error.detail()), ("HINT", error.hint())] {
            if let Some(more) = more {
                text.push_str(&format!(" {label}:  {more}"));
            }
        }
        return text.replace('\n', " ");
    }
    if error.is_closed() {
        return "server closed the connection unexpectedly".to_owned();
    }
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// An error of the system, in its own words.
fn told(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

impl Connection {
    /// Runs a query with nothing else in flight and gives the first column of its first row.
    ///
    /// # Errors
    /// The server's words, or what became of the connection.
    pub async fn query(&mut self, sql: &str) -> Result<Option<String>, String> {
        let mut query = pin!(self.client.simple_query(sql));
        let link = &mut self.link;
        let notified = &mut self.notified;
        let messages = poll_fn(|cx| loop {
            if let Poll::Ready(result) = query.as_mut().poll(cx) {
                return Poll::Ready(result.map_err(|error| words(&error)));
            }
            // A link that ended keeps its queries waiting, so it is asked too.
            match ready!(link.poll_message(cx)) {
                Some(Ok(AsyncMessage::Notification(notification))) => notified.push_back(notification),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(words(&error))),
                None => return Poll::Ready(Err("the connection was closed".to_owned())),
            }
        });
        let messages = messages.await?;
        Ok(messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.try_get(0).ok().flatten().map(str::to_owned),
            _ => None,
        }))
    }

    async fn is(&mut self, sql: &str, value: &str) -> Result<bool, String> {
        Ok(self.query(sql).await?.as_deref() == Some(value))
    }

    /// Whether the session is of the kind that `target_session_attrs` asks for, else libpq's words for it.
    async fn suits(&mut self, target: Target) -> Result<Result<(), &'static str>, String> {
        const READ_ONLY: &str = "SHOW transaction_read_only";
        const REPLICA: &str = "SELECT pg_catalog.pg_is_in_recovery()";
        let (sql, wanted, else_it_is) = match target {
            Target::Any | Target::PreferStandby => return Ok(Ok(())),
            Target::ReadWrite => (READ_ONLY, "off", "session is read-only"),
            Target::ReadOnly => (READ_ONLY, "on", "session is not read-only"),
            Target::Primary => (REPLICA, "f", "server is in hot standby mode"),
            Target::Standby => (REPLICA, "t", "server is not in hot standby mode"),
        };
        Ok(if self.is(sql, wanted).await? { Ok(()) } else { Err(else_it_is) })
    }
}
