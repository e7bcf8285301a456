//! The hub's socket and its file.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam_channel::never;
use pgbus_native_engine::hub::{Event, Hub, Limits, Options, Session, StartError, MAX_PATH_BYTES};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);

fn start(path: impl Into<PathBuf>) -> Result<Hub, StartError> {
    let options = Options {
        socket_path: path.into(),
        status_interval: Duration::from_millis(10),
        limits: Limits { durable: 4, hard: 16 },
        health_check: Duration::from_millis(250),
        session: Session::Ruby,
    };
    let hub = Hub::spawn(options).unwrap();
    hub.started(&never()).unwrap().map(|()| hub)
}

fn stop(hub: &Hub) {
    hub.stop();
    assert!(hub.ended(PATIENCE, &never()));
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.sock");
    (folder, path)
}

fn eventually(mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether this very hub takes in who connects there.
fn is_served(hub: &Hub, path: &Path) -> bool {
    let before = hub.stats().workers.get();
    let Ok(_worker) = UnixStream::connect(path) else { return false };
    eventually(|| hub.stats().workers.get() == before + 1);
    true
}

fn next_line(hub: &Hub) -> String {
    match hub.next_event(&never()).unwrap() {
        Some(Event::Log(line)) => line.text,
        other => panic!("expected a log line, got {other:?}"),
    }
}

#[test]
fn it_is_its_owners_and_nothing_is_left_beside_it() {
    let (folder, path) = folder();
    let hub = start(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    stop(&hub);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Cleaners of temporary folders, such as systemd's, spare a socket by the path that it was bound at.
#[test]
#[cfg(target_os = "linux")]
fn it_is_bound_at_the_path_where_it_is_found() {
    let (_folder, path) = folder();
    let is_bound_there = || {
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        sockets.lines().any(|line| line.ends_with(path.to_str().unwrap()))
    };
    fs::write(&path, "stale").unwrap();
    let hub = start(&path).unwrap();
    assert!(is_bound_there());
    fs::remove_file(&path).unwrap();
    eventually(|| path.exists() && is_served(&hub, &path));
    assert!(is_bound_there());
    stop(&hub);
}

#[test]
fn it_takes_the_place_of_a_stale_file_and_of_a_living_hubs_which_leaves_it_alone() {
    let (folder, path) = folder();
    drop(UnixListener::bind(&path).unwrap());
    let first = start(&path).unwrap();
    assert!(is_served(&first, &path));
    let second = start(&path).unwrap();
    assert!(is_served(&second, &path));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    stop(&first);
    assert!(is_served(&second, &path));
    stop(&second);
}

/// Each of them may make the file again at the very moment at which another one replaces it.
#[test]
fn of_many_hubs_at_one_path_one_is_there_in_the_end() {
    let (folder, path) = folder();
    let starts: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || start(path).unwrap())
        })
        .collect();
    let hubs: Vec<Hub> = starts.into_iter().map(|start| start.join().unwrap()).collect();
    eventually(|| UnixStream::connect(&path).is_ok());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    hubs.iter().for_each(stop);
}

#[test]
fn a_file_that_has_vanished_is_made_again_and_those_connected_stay() {
    let (_folder, path) = folder();
    let hub = start(&path).unwrap();
    let mut worker = UnixStream::connect(&path).unwrap();
    eventually(|| hub.stats().workers.get() == 1);
    for _ in 0..3 {
        fs::remove_file(&path).unwrap();
        eventually(|| path.exists() && is_served(&hub, &path));
        assert_eq!(next_line(&hub), format!("the socket {} has vanished and was made again", path.display()));
    }
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    eventually(|| hub.stats().workers.get() == 1);
    stop(&hub);
    assert_eq!(worker.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn it_says_once_that_a_file_can_not_be_made_again_and_is_there_when_it_can() {
    let (folder, path) = folder();
    let hub = start(&path).unwrap();
    let away = folder.path().with_extension("away");
    fs::rename(folder.path(), &away).unwrap();
    let line = next_line(&hub);
    assert!(line.contains("has vanished and can't be made again (attempt 1): hub socket"), "{line}");
    fs::create_dir(folder.path()).unwrap();
    eventually(|| path.exists() && is_served(&hub, &path));
    stop(&hub);
    fs::remove_dir_all(away).unwrap();
}

#[test]
fn another_ones_file_in_its_place_is_left_alone() {
    let (_folder, path) = folder();
    let hub = start(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another one's").unwrap();
    std::thread::sleep(Duration::from_millis(100)); // ten looks
    stop(&hub);
    assert_eq!(fs::read_to_string(&path).unwrap(), "another one's");
}

#[test]
fn a_folder_in_its_place_is_refused_and_stays() {
    let (_folder, path) = folder();
    fs::create_dir(&path).unwrap();
    let error = start(&path).unwrap_err();
    assert!(
        error.to_string().starts_with(&format!("hub socket {}, unlink(2): Is a directory", path.display())),
        "{error}"
    );
    assert!(path.is_dir());
}

/// /proc is such a file system.
#[test]
#[cfg(target_os = "linux")]
fn a_file_system_that_has_no_sockets_is_named() {
    let error = start("/proc/hub.sock").unwrap_err();
    assert!(error.to_string().starts_with("hub socket /proc/hub.sock, bind(2): "), "{error}");
}

#[test]
fn a_path_that_does_not_fit_is_refused() {
    let error = start(format!("/tmp/{}", "x".repeat(200))).unwrap_err();
    assert!(matches!(error, StartError::PathTooLong { length: 205 }));
}

#[test]
fn every_path_that_fits_into_a_socket_address_works() {
    for length in MAX_PATH_BYTES - 12..=MAX_PATH_BYTES {
        for name in ["s.io", "hub.sock", "a-long-name-of-a-socket"] {
            let folder = tempfile::tempdir().unwrap();
            let rest = length - folder.path().as_os_str().len() - name.len() - 2;
            let inner = folder.path().join("x".repeat(rest));
            fs::create_dir(&inner).unwrap();
            let path = inner.join(name);
            assert_eq!(path.as_os_str().len(), length);
            fs::write(&path, "stale").unwrap();
            let hub = start(&path).unwrap();
            assert!(is_served(&hub, &path));
            assert_eq!(fs::read_dir(&inner).unwrap().count(), 1);
            stop(&hub);
        }
    }
}
