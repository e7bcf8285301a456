//! The hub's Unix socket: a file where workers look for it, which nobody but its owner can use at any moment of its life.

use std::ffi::OsString;
use std::fs;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{self, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::Poll;

use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};

use super::reporter::Reporter;
use crate::inherit::{self, Kept};

/// The longest path of a Unix socket, in bytes: the platform's `sun_path` without its NUL.
pub const MAX_PATH_BYTES: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// Workers that may wait to be taken in.
const BACKLOG: i32 = 1024;
/// How often binding is tried again when somebody else puts a file there at the same time.
const ATTEMPTS: u32 = 100;

/// The listening socket; its file goes with it, unless somebody else has put one of theirs in its place.
pub struct Socket {
    listener: Kept<UnixListener>,
    /// Absolute, since the process may change its folder meanwhile.
    path: PathBuf,
    /// None if another hub has put its own in the place before we could look.
    inode: Option<Inode>,
    /// How often the file could not be made again, for the throttling of log lines.
    failures: u64,
}

/// What a connection attempt came to.
pub enum Accepted {
    /// A worker.
    Worker(Kept<UnixStream>),
    /// A process of another user, severed.
    Stranger {
        /// Its user id; None if the system does not say.
        uid: Option<u32>,
    },
}

/// A system call for the socket failed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", self.what())]
pub struct SocketError {
    call: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl SocketError {
    fn of<'a>(call: &'static str, path: &'a Path) -> impl Fn(io::Error) -> Self + 'a {
        move |source| Self { call, path: path.to_owned(), source }
    }

    /// The call and its path, as Ruby says it.
    pub fn what(&self) -> String {
        format!("hub socket {}, {}(2)", self.path.display(), self.call)
    }

    /// The system's number of the error, if it has one.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

impl Socket {
    /// Listens at `path`, in the place of whatever file is there. Must be called inside a tokio runtime.
    ///
    /// The socket is bound at the path itself, since cleaners of temporary folders spare a socket by the path that it
    /// was bound at. It gets its mode before it listens: until then it admits nobody. The process-wide umask, which
    /// other threads rely on, is left alone.
    ///
    /// # Errors
    /// Those of the system calls. Then the path is as it was.
    pub fn bind(path: &Path, reporter: &Reporter) -> Result<Self, SocketError> {
        let absolute = path::absolute(path).map_err(SocketError::of("getcwd", path))?;
        // What is too long in full may fit as it was given.
        let bound_at = if absolute.as_os_str().len() <= MAX_PATH_BYTES { &absolute } else { path };
        let mut attempts = 0;
        loop {
            attempts += 1;
            let replaced = Replaced::set_aside(path)?;
            match listen(bound_at, reporter) {
                // Somebody else has put a file there meanwhile.
                Err(error) if error.source.kind() == io::ErrorKind::AddrInUse && attempts < ATTEMPTS => {}
                Err(error) => return Err(error),
                Ok((listener, inode)) => {
                    replaced.discard();
                    return Ok(Self { listener, path: absolute, inode, failures: 0 });
                }
            }
        }
    }

    /// Makes the file again if it has vanished, as a cleaner's doing or a hub's that had taken its place. Leaves another
    /// one's alone.
    pub fn restore_if_vanished(&mut self, reporter: &Reporter) {
        let found = fs::symlink_metadata(&self.path);
        if !found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return;
        }
        match listen(&self.path, reporter) {
            Ok((listener, inode)) => {
                // Whoever connected to the old one and was not accepted yet sees EOF.
                (self.listener, self.inode, self.failures) = (listener, inode, 0);
                reporter.warn(format!("the socket {} has vanished and was made again", self.path.display()));
            }
            Err(error) => {
                self.failures += 1;
                if self.failures.is_power_of_two() {
                    reporter.error(format!(
                        "the socket {} has vanished and can't be made again (attempt {}): {error}",
                        self.path.display(),
                        self.failures
                    ));
                }
            }
        }
    }

    /// Waits for the next connection. Can be dropped while waiting.
    ///
    /// # Errors
    /// Those of accept(2), and of [`inherit::open`]; the socket can be used further.
    pub async fn accept(&self) -> io::Result<Accepted> {
        let stream = poll_fn(|context| {
            let accepted = inherit::open(|| match self.listener.poll_accept(context) {
                Poll::Ready(accepted) => accepted.map(|(stream, _)| stream),
                Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            });
            match accepted {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                done => Poll::Ready(done),
            }
        })
        .await?;
        let uid = stream.peer_cred().ok().map(|peer| peer.uid());
        if uid == Some(geteuid().as_raw()) {
            Ok(Accepted::Worker(stream))
        } else {
            shut_down(&stream);
            Ok(Accepted::Stranger { uid })
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.inode.is_some() && self.inode == inode(&self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

type Inode = (u64, u64);

/// Binds, sets the mode, then listens. Leaves no file behind if it fails.
fn listen(path: &Path, reporter: &Reporter) -> Result<(Kept<UnixListener>, Option<Inode>), SocketError> {
    let mut call = "socket";
    let mut mode = Ok(());
    let listener = inherit::open(|| {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        call = "bind";
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        mode = fs::set_permissions(path, fs::Permissions::from_mode(0o600));
        call = "listen";
        listening(socket).inspect_err(|_| _ = fs::remove_file(path))
    });
    let listener = listener.map_err(SocketError::of(call, path))?;
    if let Err(error) = mode {
        reporter.warn(format!(
            "the socket {} can't be made its owner's alone ({error}); processes of other users are severed when they connect",
            path.display()
        ));
    }
    Ok((listener, inode(path)))
}

fn listening(socket: OwnedFd) -> io::Result<UnixListener> {
    rustix::net::listen(&socket, BACKLOG)?;
    let listener = StdListener::from(socket);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

fn inode(path: &Path) -> Option<Inode> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// The file that was at the socket's path. It may be a living hub's, and so it comes back unless we take its place.
struct Replaced {
    path: PathBuf,
    aside: Option<PathBuf>,
}

/// Counts the names of files set aside, since one process may have several hubs.
static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Replaced {
    fn set_aside(path: &Path) -> Result<Self, SocketError> {
        let nothing = Self { path: path.to_owned(), aside: None };
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(nothing),
            Err(error) => return Err(SocketError::of("stat", path)(error)),
            Ok(file) if file.is_dir() => return Err(SocketError::of("unlink", path)(rustix::io::Errno::ISDIR.into())),
            Ok(_) => {}
        }
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}.{}", std::process::id(), NUMBER.fetch_add(1, Relaxed)));
        let aside = path.with_file_name(name);
        match fs::rename(path, &aside) {
            Ok(()) => Ok(Self { path: path.to_owned(), aside: Some(aside) }),
            // Somebody else was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(nothing),
            // The file system may not rename sockets.
            Err(_) => fs::remove_file(path).map(|()| nothing).map_err(SocketError::of("unlink", path)),
        }
    }

    fn discard(mut self) {
        if let Some(aside) = self.aside.take() {
            let _ = fs::remove_file(aside);
        }
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        let Some(aside) = self.aside.take() else { return };
        if fs::symlink_metadata(&self.path).is_err() {
            let _ = fs::rename(aside, &self.path);
        } else {
            let _ = fs::remove_file(aside);
        }
    }
}

/// Ends the connection itself, not only our descriptor: a process that has inherited a copy can't hold it open, and
/// the other side sees EOF at once.
pub fn shut_down(stream: &UnixStream) {
    let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Both);
}
