//! What a forked child must not inherit.
//!
//! A child gets a copy of every descriptor of its parent. A copy of the hub's socket to a worker would keep that
//! worker from ever seeing EOF; a copy of the LISTEN session's would keep the database from noticing that the master
//! died, and a copy of a browser's socket would keep that browser from seeing EOF. So the engine opens such descriptors
//! through [`open`], which notes them in a table of plain atomics, and the binding closes all of them in the child,
//! right after the fork, where nothing but atomics and system calls may be used ([`after_fork_in_child`]).
//!
//! A fork in between a descriptor's birth and its note would miss it. So births and deaths of these descriptors pass
//! a gate that a fork shuts for its own short time: [`before_fork`] waits for the few system calls that are under way
//! inside, and those who come later wait until the fork is done. Nobody waits for anything longer than that, and no
//! lock is left locked in the child.

use std::hint;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

/// Descriptors from this number on can't be noted; Linux gives none to a process unless `fs.nr_open` was raised.
const CAPACITY: RawFd = 1 << 20;
const BITS: RawFd = u64::BITS as RawFd;

/// One bit for each descriptor: 128 KB, of which a process touches the pages that its descriptors need.
static NOTED: [AtomicU64; (CAPACITY / BITS) as usize] = [const { AtomicU64::new(0) }; (CAPACITY / BITS) as usize];
static FORKING: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicU32 = AtomicU32::new(0);
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the first process and this one. What was made in another generation belongs to a
/// parent: its threads don't exist here and its descriptors are closed.
pub fn generation() -> u32 {
    GENERATION.load(SeqCst)
}

/// Runs `body` at a time when no fork happens. `body` must be a few system calls that don't block.
pub fn undisturbed<T>(body: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            INSIDE.fetch_sub(1, SeqCst);
        }
    }
    loop {
        while FORKING.load(SeqCst) {
            std::thread::yield_now();
        }
        INSIDE.fetch_add(1, SeqCst);
        if !FORKING.load(SeqCst) {
            break;
        }
        INSIDE.fetch_sub(1, SeqCst);
    }
    let _leave = Leave;
    body()
}

/// Opens a descriptor that forked children must not keep, and notes it. `open` must not block.
///
/// # Errors
/// Those of `open`, and [`io::ErrorKind::OutOfMemory`] for a descriptor of 1,048,576 or more.
pub fn open<T: AsRawFd>(open: impl FnOnce() -> io::Result<T>) -> io::Result<Kept<T>> {
    undisturbed(|| {
        note(open()?).map_err(|inner| {
            let fd = inner.as_raw_fd();
            let text = format!("descriptor {fd} can't be kept from forked children (at most {})", CAPACITY - 1);
            io::Error::new(io::ErrorKind::OutOfMemory, text)
        })
    })
}

/// Notes a descriptor that forked children must not keep any more.
///
/// # Errors
/// It comes back if its number is 1,048,576 or more.
pub fn keep<T: AsRawFd>(inner: T) -> Result<Kept<T>, T> {
    undisturbed(|| note(inner))
}

fn note<T: AsRawFd>(inner: T) -> Result<Kept<T>, T> {
    let fd = inner.as_raw_fd();
    if fd >= CAPACITY {
        return Err(inner);
    }
    NOTED[(fd / BITS) as usize].fetch_or(bit(fd), SeqCst);
    Ok(Kept { inner: Some(inner), fd })
}

fn bit(fd: RawFd) -> u64 {
    1 << (fd % BITS)
}

/// A descriptor of this process alone: closed here when dropped, and closed in every child at its birth.
///
/// In a child it must never be dropped, since its number may be somebody else's by then: leak what was inherited.
#[derive(Debug)]
pub struct Kept<T: AsRawFd> {
    inner: Option<T>,
    fd: RawFd,
}

impl<T: AsRawFd> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect("only drop empties it")
    }
}

impl<T: AsRawFd> Drop for Kept<T> {
    fn drop(&mut self) {
        undisturbed(|| {
            NOTED[(self.fd / BITS) as usize].fetch_and(!bit(self.fd), SeqCst);
            self.inner = None;
        });
    }
}

/// To be called in the thread that forks, before it does: from here to [`after_fork_in_parent`] or
/// [`after_fork_in_child`] no noted descriptor is born or dies.
pub fn before_fork() {
    while FORKING.swap(true, SeqCst) {
        std::thread::yield_now();
    }
    while INSIDE.load(SeqCst) > 0 {
        hint::spin_loop();
    }
}

/// To be called in the parent after the fork.
pub fn after_fork_in_parent() {
    FORKING.store(false, SeqCst);
}

/// To be called in the child before anything else: starts a new [`generation`] and hands every noted descriptor to
/// `close`. Uses atomics only, as a child of a process with threads must.
pub fn after_fork_in_child(close: impl Fn(RawFd)) {
    GENERATION.fetch_add(1, SeqCst);
    for (index, word) in NOTED.iter().enumerate() {
        let mut noted = word.swap(0, SeqCst);
        while noted != 0 {
            close(index as RawFd * BITS + noted.trailing_zeros() as RawFd);
            noted &= noted - 1;
        }
    }
    FORKING.store(false, SeqCst);
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc;
    use std::sync::{Mutex, PoisonError};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// The table is the process's, and so these tests take turns.
    static TURN: Mutex<()> = Mutex::new(());

    fn is_noted(fd: RawFd) -> bool {
        NOTED[(fd / BITS) as usize].load(SeqCst) & bit(fd) != 0
    }

    #[test]
    fn notes_a_descriptor_for_as_long_as_it_is_open() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = open(|| TcpListener::bind("127.0.0.1:0")).unwrap();
        let fd = kept.as_raw_fd();
        assert!(is_noted(fd));
        drop(kept);
        assert!(!is_noted(fd));
    }

    #[test]
    fn notes_nothing_for_a_descriptor_that_could_not_be_opened() {
        let error = open(|| Err::<TcpListener, _>(io::Error::other("no"))).unwrap_err();
        assert_eq!(error.to_string(), "no");
    }

    #[test]
    fn lets_no_descriptor_be_born_during_a_fork() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        before_fork();
        let (born, birth) = mpsc::channel();
        let opener = thread::spawn(move || {
            let kept = open(|| TcpListener::bind("127.0.0.1:0"));
            born.send(()).unwrap();
            kept
        });
        assert!(birth.recv_timeout(Duration::from_millis(50)).is_err(), "born while the gate was shut");
        after_fork_in_parent();
        birth.recv().unwrap();
        drop(opener.join().unwrap());
    }

    #[test]
    fn a_fork_waits_for_the_descriptor_that_is_being_born() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (go, gate) = mpsc::channel::<()>();
        let (inside, is_inside) = mpsc::channel();
        let opener = thread::spawn(move || {
            open(|| {
                inside.send(()).unwrap();
                gate.recv().unwrap();
                TcpListener::bind("127.0.0.1:0")
            })
        });
        is_inside.recv().unwrap();
        let (forked, fork) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let forker = thread::spawn(move || {
            before_fork();
            forked.send(()).unwrap();
            let is_noted = told.recv().map(is_noted);
            after_fork_in_parent();
            is_noted
        });
        assert!(fork.recv_timeout(Duration::from_millis(50)).is_err(), "forked in the middle of a birth");
        go.send(()).unwrap();
        fork.recv().unwrap();
        let kept = opener.join().unwrap().unwrap();
        tell.send(kept.as_raw_fd()).unwrap();
        assert_eq!(forker.join().unwrap(), Ok(true));
    }

    #[test]
    fn a_child_closes_what_is_noted_and_starts_a_generation() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = open(|| TcpListener::bind("127.0.0.1:0")).unwrap();
        let before = generation();
        let closed = Mutex::new(Vec::new());
        before_fork();
        after_fork_in_child(|fd| closed.lock().unwrap().push(fd));
        assert!(closed.into_inner().unwrap().contains(&kept.as_raw_fd()));
        assert_eq!(generation(), before + 1);
        assert!(!is_noted(kept.as_raw_fd()));
    }
}
