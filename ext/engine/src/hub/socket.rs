//! The hub's Unix socket: a file that nobody but its owner can open at any moment of its life.

use std::future::poll_fn;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::{fs, path};

use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};

use crate::inherit::{self, Kept};

/// The longest path of a Unix socket, in bytes: the platform's `sun_path` without its NUL.
pub const MAX_PATH_BYTES: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// The listening socket; its file goes with it, unless somebody else has put one of theirs in its place.
pub struct Socket {
    listener: Kept<UnixListener>,
    /// Absolute, since the process may change its folder meanwhile.
    path: PathBuf,
    inode: (u64, u64),
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

impl Socket {
    /// Listens at `path`, in the place of whatever file is there. Must be called inside a tokio runtime.
    ///
    /// The socket is bound in a new folder that only its owner can enter, gets its mode there and is moved into place.
    /// That way no moment exists in which somebody else could connect, and the process-wide umask, which other threads
    /// rely on, is left alone.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let folder = Self::new_folder_beside(path)?;
        let bound = Self::bind_in(&folder, path);
        let _ = fs::remove_dir_all(&folder);
        bound
    }

    /// The first of `.0`, `.1` ... that nobody has, or left when he was killed just here. Names as short as that, since
    /// the path in there must fit into a socket address too: it is no longer than `path`, whose last part has four
    /// bytes or more.
    fn new_folder_beside(path: &Path) -> io::Result<PathBuf> {
        let mut number = 0_u32;
        loop {
            let folder = path.with_file_name(format!(".{number:x}"));
            match fs::DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => return Ok(folder),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        }
    }

    fn bind_in(folder: &Path, path: &Path) -> io::Result<Self> {
        let absolute = path::absolute(path)?;
        let private = folder.join("s");
        let listener = inherit::open(|| {
            let listener = StdListener::bind(&private)?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        })?;
        fs::set_permissions(&private, fs::Permissions::from_mode(0o600))?;
        let file = fs::symlink_metadata(&private)?;
        fs::rename(&private, path)?;
        Ok(Self { listener, path: absolute, inode: (file.dev(), file.ino()) })
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
            sever(&stream);
            Ok(Accepted::Stranger { uid })
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Ends the connection itself, not only our descriptor: a process that has inherited a copy can't hold it open, and
/// the other side sees EOF at once.
pub fn sever(stream: &UnixStream) {
    let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Both);
}
