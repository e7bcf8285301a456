//! A PostgreSQL of the tests' own: real, in a temporary folder, on a free port and a Unix socket; gone when dropped, and
//! when the tests end, however they end.
#![allow(dead_code)] // Each test file uses its part.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{chown, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub const USER: &str = "pgbus";
pub const DATABASE: &str = "pgbus";

/// The folder of initdb and postgres.
pub fn bindir() -> PathBuf {
    let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .collect();
    versions.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    versions.reverse();
    versions.extend(std::env::split_paths(&path));
    versions.into_iter().find(|bin| bin.join("initdb").exists()).expect("PostgreSQL's initdb; run bin/setup")
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The user and group that servers run as, when we are root, as whom PostgreSQL does not run.
fn owner() -> Option<(u32, u32)> {
    if fs::metadata("/proc/self").map_or(true, |me| me.uid() != 0) {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("postgres:")).expect("a user named postgres; run bin/setup");
    let fields: Vec<&str> = line.split(':').collect();
    Some((fields[2].parse().unwrap(), fields[3].parse().unwrap()))
}

/// A command that runs as somebody PostgreSQL takes.
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    if let Some((uid, gid)) = owner() {
        command.uid(uid).gid(gid);
    }
    command.current_dir("/").stdin(Stdio::null()).env("LC_ALL", "C");
    command
}

pub fn give_to_owner(path: &Path) {
    if let Some((uid, gid)) = owner() {
        chown(path, Some(uid), Some(gid)).unwrap();
    }
}

pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text.trim_end().to_owned()
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server program, ended by its signal for an end at once when dropped. Its parent is a shell that waits for the end of our
/// pipe: so it ends also when we are killed, and the folder goes with it.
pub struct Process {
    shell: Child,
}

impl Process {
    pub fn start(program: &Path, arguments: &[&str], signal: &str, folder: &Path) -> Self {
        let guard = "folder=$1; signal=$2; shift 2; \"$@\" </dev/null & pid=$!; read keep; kill -$signal $pid 2>/dev/null; wait $pid; \
                     [ \"$keep\" ] || rm -rf \"$folder\"";
        let log = fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", guard, "sh"]).arg(folder).arg(signal);
        // The shell stays who we are, so that it can remove all that we put into the folder.
        if let Some((uid, gid)) = owner() {
            shell.args(["setpriv", "--clear-groups"]).args([format!("--reuid={uid}"), format!("--regid={gid}")]);
        }
        let shell = shell
            .arg(program)
            .current_dir("/")
            .env("LC_ALL", "C")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap();
        Self { shell }
    }

    /// Ends it and keeps its folder.
    pub fn end(mut self) {
        let _ = self.shell.stdin.take().map(|mut pipe| pipe.write_all(b"keep\n"));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

pub struct Postgres {
    server: Option<Process>,
    folder: Arc<tempfile::TempDir>,
    pub port: u16,
    pub database: String,
}

impl Postgres {
    /// One that trusts everybody.
    pub fn start() -> Self {
        Self::with(&[], &[])
    }

    /// A database of its own on a server that all tests of a file share.
    pub fn shared() -> Self {
        static SERVER: OnceLock<Postgres> = OnceLock::new();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        SERVER.get_or_init(Self::start).database(NUMBER.fetch_add(1, Relaxed))
    }

    fn database(&self, number: u32) -> Self {
        let database = format!("test_{number}");
        self.sql(&format!("CREATE DATABASE {database}"));
        Self { server: None, folder: self.folder.clone(), port: self.port, database }
    }

    /// With lines of postgresql.conf, and lines of pg_hba.conf that come before the ones that trust everybody.
    pub fn with(settings: &[&str], hba: &[&str]) -> Self {
        let mut postgres = Self::prepare();
        let data = postgres.data();
        run(command(bindir().join("initdb")).arg("-D").arg(&data).args([
            "-U",
            USER,
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]));
        postgres.configure(settings, hba);
        postgres.launch();
        postgres.sql_in("postgres", &format!("CREATE DATABASE {DATABASE}"));
        postgres
    }

    /// A streaming replica of another one.
    pub fn replica_of(primary: &Self) -> Self {
        let mut replica = Self::prepare();
        run(command(bindir().join("pg_basebackup")).arg("-D").arg(replica.data()).args([
            "-U",
            USER,
            "-h",
            "127.0.0.1",
            "-p",
            &primary.port.to_string(),
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
        ]));
        replica.configure(&[], &[]);
        replica.launch();
        replica
    }

    fn prepare() -> Self {
        let folder = tempfile::Builder::new().prefix("pgbus_native-pg-").tempdir_in("/tmp").unwrap();
        give_to_owner(folder.path());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { server: None, folder: Arc::new(folder), port: free_port(), database: DATABASE.to_owned() }
    }

    fn configure(&self, settings: &[&str], hba: &[&str]) {
        let trust = [
            "local all all trust",
            "host all all 127.0.0.1/32 trust",
            "host replication all 127.0.0.1/32 trust",
            "local replication all trust",
        ];
        fs::write(self.data().join("pg_hba.conf"), [hba, &trust].concat().join("\n") + "\n").unwrap();
        let own = format!(
            "listen_addresses = '127.0.0.1'\nport = {}\nunix_socket_directories = '{}'\nfsync = off\n\
             wal_level = replica\nhot_standby = on\nlogging_collector = off\n",
            self.port,
            self.folder.path().display()
        );
        let text =
            fs::read_to_string(self.data().join("postgresql.conf")).unwrap() + &own + &settings.join("\n") + "\n";
        fs::write(self.data().join("postgresql.conf"), text).unwrap();
    }

    pub fn launch(&mut self) {
        let data = self.data();
        let arguments = ["-D", data.to_str().unwrap()];
        self.server = Some(Process::start(&bindir().join("postgres"), &arguments, "QUIT", self.folder.path()));
        wait_until("the server answers", || {
            let ready = Command::new(bindir().join("pg_isready"))
                .args(["-q", "-h", self.host(), "-p", &self.port.to_string()])
                .status();
            ready.unwrap().success()
        });
    }

    /// Ends the server at once, as a crash does; [`Self::launch`] starts it again.
    pub fn crash(&mut self) {
        self.server.take().unwrap().end();
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The folder of the Unix socket.
    pub fn host(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap()
    }

    /// Runs SQL, gives what it gives: rows by line, columns by "|".
    pub fn sql(&self, sql: &str) -> String {
        self.sql_in(&self.database, sql)
    }

    pub fn sql_in(&self, database: &str, sql: &str) -> String {
        run(Command::new(bindir().join("psql")).args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-U", USER]).args([
            "-h",
            self.host(),
            "-p",
            &self.port.to_string(),
            "-d",
            database,
            "-c",
            sql,
        ]))
    }

    /// NOTIFYs a queue as PGMQ's trigger does; with a payload as pgbus does for ephemeral messages.
    pub fn notify(&self, queue: &str, payload: &str) {
        self.sql(&format!("SELECT pg_notify('pgmq.q_{queue}.INSERT', '{payload}')"));
    }

    /// Keywords of a connection over TCP.
    pub fn keywords(&self) -> Vec<(String, String)> {
        let port = self.port.to_string();
        pairs(&[("host", "127.0.0.1"), ("port", &port), ("user", USER), ("dbname", &self.database)])
    }
}

pub fn pairs(keywords: &[(&str, &str)]) -> Vec<(String, String)> {
    keywords.iter().map(|(keyword, value)| ((*keyword).to_owned(), (*value).to_owned())).collect()
}
