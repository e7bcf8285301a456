//! A writer thread: one event loop over many sockets, which never waits for one of them.
//!
//! A connection for which something waits has its turn: what is next leaves in one system call. A socket that takes no
//! more is blocked: the event loop says when it has room again. A browser is given up when its socket took no byte for
//! as long as what is next may take.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::io::Errno;
use rustix::net::{sendmsg, SendAncillaryBuffer, SendFlags};

use super::mailbox::Mailbox;
use super::outlet::{Inner, Outlet, Socket, Turn};
use super::queue::{Next, BATCH_FRAMES};
use super::report::Report;
use super::shared::Shared;
use crate::frame::Frame;
use crate::log::{Level, Line};

/// A connection's token is its key.
const WAKE: Token = Token(usize::MAX);
/// Turns before the thread looks at its event loop again: enough to make its system call cheap, few enough to hear of a
/// socket that has room within a millisecond.
const TURNS: usize = 64;
/// A deadline that nobody lives to see. The event loops of some systems refuse to wait longer.
const FOREVER: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// A socket that is full.
struct Blocked {
    outlet: Arc<Outlet>,
    until: Instant,
    /// Keeps the descriptor open for as long as it is registered with the event loop.
    socket: Socket,
}

/// See the module's documentation.
pub(super) struct Writer {
    shared: Arc<Shared>,
    index: usize,
    poll: Poll,
    events: Events,
    /// Connections whose turn comes, in order.
    ready: VecDeque<Arc<Outlet>>,
    /// Full sockets by their connection's key, and the same in the order of their deadlines.
    blocked: HashMap<u32, Blocked>,
    deadlines: BTreeSet<(Instant, u32)>,
    batch: Vec<Arc<Frame>>,
    acks: Vec<i64>,
    reports: Vec<Report>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> io::Result<(Self, Waker)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let writer = Self {
            shared,
            index,
            poll,
            events: Events::with_capacity(1024),
            ready: VecDeque::new(),
            blocked: HashMap::new(),
            deadlines: BTreeSet::new(),
            batch: Vec::new(),
            acks: Vec::new(),
            reports: Vec::new(),
        };
        Ok((writer, waker))
    }

    pub(super) fn run(mut self) {
        loop {
            self.receive();
            for _ in 0..TURNS {
                let Some(outlet) = self.ready.pop_front() else { break };
                self.guarded_turn(&outlet);
            }
            self.expire();
            if !self.reports.is_empty() {
                self.shared.report(std::mem::take(&mut self.reports));
            }
            if !self.ready.is_empty() || !self.mailbox().is_empty() {
                if !self.blocked.is_empty() {
                    self.poll(Some(Duration::ZERO));
                }
            } else if self.mailbox().may_end() {
                break;
            } else {
                self.park();
            }
        }
        self.mailbox().notify_joins();
        self.shared.report(Vec::new());
    }

    fn mailbox(&self) -> &Mailbox {
        &self.shared.mailboxes[self.index]
    }

    fn receive(&mut self) {
        while let Some(outlet) = self.mailbox().receive() {
            self.ready.push_back(outlet);
        }
    }

    fn park(&mut self) {
        // A frame lives no longer than it waits.
        self.batch.clear();
        self.mailbox().set_parked(true);
        if self.mailbox().is_empty() {
            let now = Instant::now();
            self.poll(self.deadlines.first().map(|(until, _)| until.saturating_duration_since(now)));
        }
        self.mailbox().set_parked(false);
    }

    fn poll(&mut self, timeout: Option<Duration>) {
        // An interrupted poll is a poll without events.
        if self.poll.poll(&mut self.events, timeout).is_err() {
            return;
        }
        for event in &self.events {
            let Some(blocked) = u32::try_from(event.token().0).ok().and_then(|key| self.blocked.get(&key)) else {
                continue;
            };
            make_ready(&mut self.ready, &blocked.outlet, &mut blocked.outlet.inner());
        }
    }

    /// A bug met in a turn costs its connection, not the thread.
    fn guarded_turn(&mut self, outlet: &Arc<Outlet>) {
        if catch_unwind(AssertUnwindSafe(|| self.turn(outlet))).is_err() {
            self.log(format!("bug in pgbus_native, please report it: a writer panicked (connection {})", outlet.id()));
            let mut inner = outlet.inner();
            self.fail(outlet, &mut inner);
        }
    }

    fn turn(&mut self, outlet: &Arc<Outlet>) {
        let mut inner = outlet.inner();
        let Some(socket) = inner.socket() else { return self.unschedule(outlet, &mut inner) };
        let next = inner.queue.next_batch(&mut self.batch, &mut self.acks);
        self.report_acks(outlet);
        let offset = match next {
            Next::Write { offset } => offset,
            Next::Nothing => return self.unschedule(outlet, &mut inner),
            Next::Close => {
                outlet.end_locked(&mut inner);
                return self.unschedule(outlet, &mut inner);
            }
            Next::Broken(reason) => {
                self.log(format!("write failed for {}: {reason}", outlet.id()));
                return self.fail(outlet, &mut inner);
            }
        };
        drop(inner);

        let sent = send(&socket, &self.batch, offset);
        self.shared.stats.writes.add(1);

        let mut inner = outlet.inner();
        if inner.has_ended() {
            return self.unschedule(outlet, &mut inner);
        }
        match sent {
            Ok(bytes) => {
                let offered: usize = self.batch.iter().map(|frame| frame.bytes.len()).sum();
                self.wrote(outlet, &mut inner, bytes);
                if offset + bytes < offered {
                    self.block(outlet, &mut inner, socket);
                } else {
                    self.continue_or_unschedule(outlet, &mut inner);
                }
            }
            Err(Errno::AGAIN) => self.block(outlet, &mut inner, socket),
            Err(Errno::INTR) => self.continue_or_unschedule(outlet, &mut inner),
            Err(_) => self.fail(outlet, &mut inner),
        }
    }

    fn wrote(&mut self, outlet: &Outlet, inner: &mut Inner, bytes: usize) {
        let whole = inner.queue.wrote(bytes, &mut self.acks);
        inner.blocked_since = None;
        if whole > 0 {
            inner.last_write = Instant::now();
            inner.notify_room();
        }
        self.shared.stats.waiting.sub(whole);
        self.shared.stats.written.add(whole);
        self.shared.stats.bytes.add(bytes);
        self.report_acks(outlet);
    }

    fn report_acks(&mut self, outlet: &Outlet) {
        self.shared.stats.acks.add(self.acks.len());
        let key = outlet.key();
        self.reports.extend(self.acks.drain(..).map(|accepted_max| Report::Ack { key, accepted_max }));
    }

    /// The socket takes what there is: another turn for the rest, if there is one.
    fn continue_or_unschedule(&mut self, outlet: &Arc<Outlet>, inner: &mut Inner) {
        if inner.queue.is_empty() {
            return self.unschedule(outlet, inner);
        }
        self.unblock(outlet.key());
        inner.turn = Turn::Ready;
        self.ready.push_back(Arc::clone(outlet));
    }

    /// The socket is full: waits for room, or for the end of its time.
    fn block(&mut self, outlet: &Arc<Outlet>, inner: &mut Inner, socket: Socket) {
        let now = Instant::now();
        let since = *inner.blocked_since.get_or_insert(now);
        let until = since.checked_add(inner.queue.deadline()).unwrap_or(now + FOREVER).min(now + FOREVER);
        if until <= now {
            return self.fail(outlet, inner);
        }
        let key = outlet.key();
        match self.blocked.get_mut(&key) {
            Some(blocked) => {
                self.deadlines.remove(&(blocked.until, key));
                blocked.until = until;
            }
            None => {
                let fd = socket.as_raw_fd();
                let token = Token(key as usize);
                if self.poll.registry().register(&mut SourceFd(&fd), token, Interest::WRITABLE).is_err() {
                    return self.fail(outlet, inner);
                }
                self.blocked.insert(key, Blocked { outlet: Arc::clone(outlet), until, socket });
            }
        }
        self.deadlines.insert((until, key));
        inner.turn = Turn::Blocked;
    }

    fn unblock(&mut self, key: u32) {
        if let Some(blocked) = self.blocked.remove(&key) {
            let fd = blocked.socket.as_raw_fd();
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
            self.deadlines.remove(&(blocked.until, key));
        }
    }

    /// Nothing is left to do for a connection.
    fn unschedule(&mut self, outlet: &Arc<Outlet>, inner: &mut Inner) {
        self.unblock(outlet.key());
        inner.blocked_since = None;
        if std::mem::replace(&mut inner.turn, Turn::Idle) != Turn::Idle {
            self.mailbox().scheduled.fetch_sub(1, SeqCst);
        }
    }

    /// Ends a connection, and reports it.
    fn fail(&mut self, outlet: &Arc<Outlet>, inner: &mut Inner) {
        // What was reported of it before must not come after its death.
        self.shared.report(std::mem::take(&mut self.reports));
        outlet.fail_locked(inner);
        self.unschedule(outlet, inner);
    }

    /// Gives a last turn to the connections whose time is over: a process that was stopped for a while finds room in
    /// its sockets when it goes on.
    fn expire(&mut self) {
        if self.deadlines.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(&(until, key)) = self.deadlines.first() {
            if until > now {
                break;
            }
            self.deadlines.pop_first();
            let Some(outlet) = self.blocked.get(&key).map(|blocked| Arc::clone(&blocked.outlet)) else { continue };
            // One whose socket has room already gets its turn anyway.
            let blocked = outlet.inner().turn == Turn::Blocked;
            if blocked {
                self.guarded_turn(&outlet);
            }
        }
    }

    fn log(&mut self, text: String) {
        self.reports.push(Report::Log(Line::new(Level::Error, text)));
    }
}

/// Gives a connection that waits for room its turn, but one.
fn make_ready(ready: &mut VecDeque<Arc<Outlet>>, outlet: &Arc<Outlet>, inner: &mut Inner) {
    if inner.turn == Turn::Blocked {
        inner.turn = Turn::Ready;
        ready.push_back(Arc::clone(outlet));
    }
}

/// Sends as much of the batch as the socket takes now, from `offset` of its first frame on.
fn send(socket: &OwnedFd, batch: &[Arc<Frame>], offset: usize) -> Result<usize, Errno> {
    #[cfg(not(target_vendor = "apple"))]
    const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
    // No signal either: the socket itself was told so when it was taken in.
    #[cfg(target_vendor = "apple")]
    const FLAGS: SendFlags = SendFlags::DONTWAIT;

    let mut slices = [IoSlice::new(&[]); BATCH_FRAMES];
    for (slice, frame) in slices.iter_mut().zip(batch) {
        *slice = IoSlice::new(&frame.bytes);
    }
    if let Some(first) = batch.first() {
        slices[0] = IoSlice::new(&first.bytes[offset..]);
    }
    sendmsg(socket.as_fd(), &slices[..batch.len()], &mut SendAncillaryBuffer::default(), FLAGS)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::super::{Item, Limit, Overflow, Pump};
    use super::*;

    const NO_LIMIT: Limit = Limit { frames: 0, overflow: Overflow::DropOldest };

    /// A connection with a frame that is partly in its socket, its browser, and its writer, which the test drives.
    fn blocked(deadline: Duration) -> (Writer, Arc<Outlet>, UnixStream) {
        let (server, browser) = UnixStream::pair().unwrap();
        let pump = Pump::new(1, NO_LIMIT);
        let outlet = pump.adopt("a".to_owned(), 0, OwnedFd::from(server)).unwrap();
        let (mut writer, _waker) = Writer::new(Arc::clone(pump.shared()), 0).unwrap();
        outlet.push(Item::Frame(Arc::new(Frame { msg_id: Some(1), bytes: vec![b'x'; 4 << 20].into() })), deadline);
        writer.receive();
        let outlet = writer.ready.pop_front().unwrap();
        writer.turn(&outlet);
        assert_eq!((outlet.inner().turn, writer.ready.len(), writer.blocked.len()), (Turn::Blocked, 0, 1));
        (writer, outlet, browser)
    }

    #[test]
    fn a_connection_gets_one_turn_however_many_events_call_for_it() {
        let (mut writer, outlet, mut browser) = blocked(FOREVER);
        let mut events = 0;
        let mut buffer = vec![0; 1 << 16];
        while events < 2 && browser.read(&mut buffer).unwrap() > 0 {
            writer.poll(Some(Duration::from_secs(1)));
            events += writer.events.iter().count();
        }
        assert_eq!(writer.ready.len(), 1);
        outlet.end();
        writer.receive();
        assert_eq!(writer.ready.len(), 1);
        let last = writer.ready.pop_front().unwrap();
        writer.turn(&last);
        assert_eq!((writer.mailbox().scheduled.load(SeqCst), writer.blocked.len(), writer.deadlines.len()), (0, 0, 0));
    }

    /// Slow is not stalled: the frame takes many times its deadline (invariant 17).
    #[test]
    fn a_browser_that_takes_bytes_now_and_then_lives() {
        let deadline = Duration::from_millis(20);
        let (mut writer, outlet, mut browser) = blocked(deadline);
        let began = Instant::now();
        while began.elapsed() < 5 * deadline {
            browser.read_exact(&mut vec![0; 64 << 10]).unwrap();
            thread::sleep(deadline * 2 / 3);
            writer.expire();
        }
        assert!(!outlet.is_closed() && outlet.cursor() == 0);
    }

    /// As after a stop of the whole process: the time is over, but there is room.
    #[test]
    fn a_connection_whose_time_is_over_gets_a_last_turn() {
        let (mut writer, outlet, mut browser) = blocked(Duration::from_millis(20));
        browser.read_exact(&mut vec![0; 128 << 10]).unwrap();
        thread::sleep(Duration::from_millis(25));
        writer.expire();
        assert!(!outlet.is_closed());
        thread::sleep(Duration::from_millis(25));
        writer.expire();
        assert!(outlet.is_closed());
        assert_eq!(writer.mailbox().scheduled.load(SeqCst), 0);
    }
}
