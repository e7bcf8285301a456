//! Connection options: libpq's keywords, with libpq's meaning.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::error::OptionsError;

/// Everything that a connection needs to know, as libpq would have resolved it.
#[derive(Debug, Clone)]
pub struct Options {
    pub(super) hosts: Vec<Host>,
    pub(super) user: String,
    pub(super) dbname: String,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) target: Target,
    pub(super) keepalive: Keepalive,
    pub(super) tcp_user_timeout: Option<Duration>,
    pub(super) application_name: Option<String>,
    pub(super) server_options: Option<String>,
    pub(super) ssl: Ssl,
    pub(super) channel_binding: ChannelBinding,
    pub(super) variables: Vec<(String, String)>,
}

/// One of the servers to try, in the order in which libpq would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    pub(super) name: Option<String>,
    pub(super) place: Place,
    pub(super) port: u16,
    pub(super) password: Option<Secret>,
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A folder with a Unix socket; "@" in front means Linux's abstract namespace.
    Folder(String),
    /// All of a name's, in the order in which they are to be tried.
    Addresses(Vec<IpAddr>),
    /// The name has no address.
    Unknown {
        /// In libpq's words.
        why: String,
    },
}

impl Host {
    /// `name`, when one was given, is what certificates are checked against. `port` as libpq takes it: empty for 5432. An
    /// empty `password`, which may have any bytes, counts as none.
    ///
    /// # Errors
    /// [`OptionsError::Invalid`] for a port that is none.
    pub fn new(name: Option<String>, place: Place, port: &str, password: Vec<u8>) -> Result<Self, OptionsError> {
        let password = Some(password).filter(|password| !password.is_empty()).map(Secret);
        Ok(Self { name, place, port: port_number(port)?, password })
    }
}

impl Place {
    /// The addresses that these texts are.
    ///
    /// # Errors
    /// [`OptionsError::Unsupported`] for one that only the C library can read, such as an IPv6 address with a zone.
    pub fn addresses<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, OptionsError> {
        let address = |text: &str| {
            let unreadable = || unsupported("hostaddr", format!("{text:?} is neither an IPv4 nor an IPv6 address"));
            text.parse().map_err(|_| unreadable())
        };
        texts.into_iter().map(address).collect::<Result<_, _>>().map(Self::Addresses)
    }
}

/// Bytes that no log, message or `inspect` may show.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(pub Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

/// None means: the operating system's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keepalive {
    pub enabled: bool,
    pub idle: Option<Duration>,
    pub interval: Option<Duration>,
    pub count: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) enum TlsVersion {
    V1_2,
    V1_3,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Roots {
    /// libpq's default file, which counts when it exists.
    Default(Option<PathBuf>),
    File(PathBuf),
    System,
}

#[derive(Debug, Clone)]
pub(super) struct Ssl {
    pub mode: SslMode,
    pub roots: Roots,
    /// None: libpq's default file, when it exists.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Whether a client certificate may be sent (`sslcertmode`).
    pub offer_cert: bool,
    pub sni: bool,
    pub min: TlsVersion,
    pub max: TlsVersion,
    /// `~/.postgresql`, where libpq finds a home.
    pub folder: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChannelBinding {
    Disable,
    Prefer,
    Require,
}

/// Keywords that mean nothing to a LISTEN session over the ways of authentication that it knows.
const WITHOUT_MEANING: [&str; 7] =
    ["service", "servicefile", "sslcompression", "krbsrvname", "gsslib", "gssdelegation", "max_protocol_version"];

/// Keywords that would change what is sent, checked or believed, in a way that only libpq knows. Value: what is as
/// good as not given.
const LIBPQ_ONLY: [(&str, &[&str]); 14] = [
    ("sslcrl", &[]),
    ("sslcrldir", &[]),
    ("sslkeylogfile", &[]),
    ("requirepeer", &[]),
    ("require_auth", &[]),
    ("replication", &["false", "off", "no", "0"]),
    ("gssencmode", &["disable", "prefer"]),
    ("sslnegotiation", &["postgres"]),
    ("load_balance_hosts", &["disable"]),
    ("min_protocol_version", &["3.0"]),
    ("scram_client_key", &[]),
    ("scram_server_key", &[]),
    ("oauth_issuer", &[]),
    ("oauth_client_id", &[]),
];

impl Options {
    /// Understands libpq's keywords and values, after all of libpq's sources (environment, service file, defaults) were
    /// merged; those that say where a server is, and its password, are `hosts`. Empty values count as not given. One
    /// keyword more than libpq has, `certificates_folder`, is its folder of default certificates. `variables` are SET in
    /// every new session, in their order.
    ///
    /// # Errors
    /// [`OptionsError::Unsupported`] for an option that a native session can't honour exactly, and
    /// [`OptionsError::Invalid`] for one that makes no sense.
    pub fn parse(
        hosts: Vec<Host>,
        keywords: impl IntoIterator<Item = (String, String)>,
        variables: Vec<(String, String)>,
    ) -> Result<Self, OptionsError> {
        let mut given = Given(keywords.into_iter().filter(|(_, value)| !value.is_empty()).collect());
        for (option, harmless) in LIBPQ_ONLY {
            if let Some(value) = given.take(option) {
                if !harmless.contains(&value.as_str()) {
                    return Err(unsupported(option, "only libpq knows how"));
                }
            }
        }
        given.utf8("client_encoding")?;
        let user = given.take("user").ok_or_else(|| invalid("user", "", "the name of a database user"))?;
        let application_name = given.take("application_name");
        let fallback = given.take("fallback_application_name");
        let options = Self {
            hosts,
            dbname: given.take("dbname").unwrap_or_else(|| user.clone()),
            user,
            // libpq: zero, negative or none means no limit, and a limit is at least two seconds.
            connect_timeout: given
                .number("connect_timeout")?
                .and_then(|seconds| u64::try_from(seconds).ok())
                .filter(|&seconds| seconds > 0)
                .map(|seconds| Duration::from_secs(seconds.max(2))),
            target: given.choice("target_session_attrs", &TARGETS)?.unwrap_or(Target::Any),
            keepalive: Keepalive {
                enabled: given.number("keepalives")? != Some(0),
                idle: given.positive("keepalives_idle")?.map(Duration::from_secs),
                interval: given.positive("keepalives_interval")?.map(Duration::from_secs),
                count: given.positive("keepalives_count")?.map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
            },
            tcp_user_timeout: given.positive("tcp_user_timeout")?.map(Duration::from_millis),
            application_name: application_name.or(fallback),
            server_options: given.take("options"),
            channel_binding: given.choice("channel_binding", &CHANNEL_BINDINGS)?.unwrap_or(ChannelBinding::Prefer),
            ssl: given.ssl()?,
            variables: checked(variables)?,
        };
        match given.0.keys().find(|keyword| !WITHOUT_MEANING.contains(&keyword.as_str())) {
            Some(keyword) => Err(unsupported(keyword, "not an option that the native session knows")),
            None => Ok(options),
        }
    }
}

const TARGETS: [(&str, Target); 6] = [
    ("any", Target::Any),
    ("read-write", Target::ReadWrite),
    ("read-only", Target::ReadOnly),
    ("primary", Target::Primary),
    ("standby", Target::Standby),
    ("prefer-standby", Target::PreferStandby),
];

const CHANNEL_BINDINGS: [(&str, ChannelBinding); 3] =
    [("disable", ChannelBinding::Disable), ("prefer", ChannelBinding::Prefer), ("require", ChannelBinding::Require)];

const SSL_MODES: [(&str, SslMode); 6] = [
    ("disable", SslMode::Disable),
    ("allow", SslMode::Allow),
    ("prefer", SslMode::Prefer),
    ("require", SslMode::Require),
    ("verify-ca", SslMode::VerifyCa),
    ("verify-full", SslMode::VerifyFull),
];

fn unsupported(option: &str, why: impl Into<String>) -> OptionsError {
    OptionsError::Unsupported { option: option.to_owned(), why: why.into() }
}

fn invalid(option: &str, value: &str, allowed: impl Into<String>) -> OptionsError {
    OptionsError::Invalid { option: option.to_owned(), value: value.to_owned(), allowed: allowed.into() }
}

/// The names of variables go into SQL as they are, so they must be names: `search_path`, `pgbus.tenant`.
fn checked(variables: Vec<(String, String)>) -> Result<Vec<(String, String)>, OptionsError> {
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && word.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$')
    };
    for (name, value) in &variables {
        if !name.split('.').all(is_word) {
            return Err(invalid("variables", name, "names of settings, such as statement_timeout"));
        }
        if value.contains('\0') {
            return Err(invalid("variables", name, "values without NUL characters"));
        }
    }
    Ok(variables)
}

/// What was given and not looked at yet.
struct Given(HashMap<String, String>);

impl Given {
    fn take(&mut self, option: &str) -> Option<String> {
        self.0.remove(option)
    }

    fn number(&mut self, option: &str) -> Result<Option<i64>, OptionsError> {
        let Some(value) = self.take(option) else { return Ok(None) };
        match value.trim().parse::<i32>() {
            Ok(number) => Ok(Some(number.into())),
            Err(_) => Err(invalid(option, &value, "an integer")),
        }
    }

    /// libpq: zero and less mean the operating system's default.
    fn positive(&mut self, option: &str) -> Result<Option<u64>, OptionsError> {
        let number = self.number(option)?;
        Ok(number.and_then(|number| u64::try_from(number).ok()).filter(|&number| number > 0))
    }

    fn choice<T: Copy>(&mut self, option: &str, choices: &[(&str, T)]) -> Result<Option<T>, OptionsError> {
        let Some(value) = self.take(option) else { return Ok(None) };
        match choices.iter().find(|(name, _)| *name == value) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => {
                let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
                Err(invalid(option, &value, names.join(", ")))
            }
        }
    }

    /// PostgreSQL's names of UTF-8, however they are written.
    fn utf8(&mut self, option: &str) -> Result<(), OptionsError> {
        let Some(value) = self.take(option) else { return Ok(()) };
        let name: String = value.chars().filter(char::is_ascii_alphanumeric).collect();
        if ["utf8", "unicode"].contains(&name.to_ascii_lowercase().as_str()) {
            return Ok(());
        }
        Err(unsupported(option, format!("{value:?}, where the native session speaks UTF8 only")))
    }

    fn ssl(&mut self) -> Result<Ssl, OptionsError> {
        let folder = self.take("certificates_folder").map(PathBuf::from);
        let roots = match self.take("sslrootcert") {
            Some(value) if value == "system" => Roots::System,
            Some(file) => Roots::File(file.into()),
            None => Roots::Default(folder.as_ref().map(|folder| folder.join("root.crt"))),
        };
        let mode = self.choice("sslmode", &SSL_MODES)?;
        let mode = match (&roots, mode) {
            (Roots::System, None | Some(SslMode::VerifyFull)) => SslMode::VerifyFull,
            (Roots::System, Some(_)) => {
                return Err(invalid("sslmode", "weaker", "verify-full, with sslrootcert=system"));
            }
            (_, mode) => mode.unwrap_or(SslMode::Prefer),
        };
        let crl = folder.as_ref().map(|folder| folder.join("root.crl"));
        if mode != SslMode::Disable && crl.is_some_and(|crl| crl.exists()) {
            return Err(unsupported("sslcrl", "there is a ~/.postgresql/root.crl"));
        }
        if self.take("sslpassword").is_some() {
            return Err(unsupported("sslpassword", "an encrypted key is only for libpq"));
        }
        let min = self.tls_version("ssl_min_protocol_version")?.unwrap_or(TlsVersion::V1_2);
        let max = self.tls_version("ssl_max_protocol_version")?.unwrap_or(TlsVersion::V1_3);
        if min > max {
            return Err(invalid("ssl_min_protocol_version", "TLSv1.3", "at most ssl_max_protocol_version"));
        }
        let offer_cert = match self.take("sslcertmode").as_deref() {
            None | Some("allow") => true,
            Some("disable") => false,
            Some(_) => return Err(unsupported("sslcertmode", "only libpq knows how")),
        };
        Ok(Ssl {
            mode,
            roots,
            cert: self.take("sslcert").map(PathBuf::from),
            key: self.take("sslkey").map(PathBuf::from),
            offer_cert,
            sni: self.take("sslsni").is_none_or(|value| !value.starts_with('0')),
            min,
            max,
            folder,
        })
    }

    /// rustls knows no version before 1.2. A lower limit below that is honoured by 1.2 and 1.3; an upper one is not.
    fn tls_version(&mut self, option: &str) -> Result<Option<TlsVersion>, OptionsError> {
        let Some(value) = self.take(option) else { return Ok(None) };
        match value.to_ascii_lowercase().as_str() {
            "tlsv1.2" => Ok(Some(TlsVersion::V1_2)),
            "tlsv1.3" => Ok(Some(TlsVersion::V1_3)),
            "tlsv1" | "tlsv1.1" => Err(unsupported(option, format!("{value}, where rustls begins with TLSv1.2"))),
            _ => Err(invalid(option, &value, "TLSv1, TLSv1.1, TLSv1.2, TLSv1.3")),
        }
    }
}

fn port_number(port: &str) -> Result<u16, OptionsError> {
    if port.trim().is_empty() {
        return Ok(5432);
    }
    match port.trim().parse() {
        Ok(0) | Err(_) => Err(invalid("port", port, "1 to 65535")),
        Ok(number) => Ok(number),
    }
}
