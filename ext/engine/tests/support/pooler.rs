//! A real PgBouncer.

use std::fs;
use std::net::TcpStream;
use std::path::Path;

use super::support::{free_port, give_to_owner, wait_until, Postgres, Process, USER};

/// PgBouncer in front of a server, or None with a word about it where it isn't installed.
pub fn pooler(postgres: &Postgres, mode: &str, folder: &Path) -> Option<(Process, u16)> {
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
