//! A PostgreSQL of the tests' own: real, in a temporary folder, on a free port and a Unix socket; gone when dropped.
#![allow(dead_code)] // Each test file uses its part.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{chown, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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

/// Ends its process when dropped.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
        let _ = self.0.wait();
    }
}

pub struct Postgres {
    server: Option<Process>,
    pub folder: tempfile::TempDir,
    pub port: u16,
}

impl Postgres {
    /// One that trusts everybody.
    pub fn start() -> Self {
        Self::with(&[], &[])
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
        Self { server: None, folder, port: free_port() }
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
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_file()).unwrap();
        let server = command(bindir().join("postgres"))
            .arg("-D")
            .arg(self.data())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.server = Some(Process(server));
        wait_until("the server answers", || {
            let ready = Command::new(bindir().join("pg_isready"))
                .args(["-q", "-h", self.host(), "-p", &self.port.to_string()])
                .status();
            ready.unwrap().success()
        });
    }

    /// Ends the server at once, as a crash does; [`Self::launch`] starts it again.
    pub fn crash(&mut self) {
        self.server = None;
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
        self.sql_in(DATABASE, sql)
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
        pairs(&[("host", "127.0.0.1"), ("port", &port), ("user", USER), ("dbname", DATABASE)])
    }
}

pub fn pairs(keywords: &[(&str, &str)]) -> Vec<(String, String)> {
    keywords.iter().map(|(keyword, value)| ((*keyword).to_owned(), (*value).to_owned())).collect()
}
