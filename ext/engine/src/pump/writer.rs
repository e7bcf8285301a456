//! A writer thread: one event loop over many sockets, which never waits for one of them.
//!
//! An outlet on its list has its turn: the thread takes the outlet's locks, sends what is next in one system call, and
//! gives the locks back. What a socket does not take at once stalls: the event loop says when there is room again, or
//! the frame's time is over. Only a frame that is partly in its socket keeps the locks meanwhile.

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

use super::outlet::{Gathered, Inner, Next, Stage, Stall, BATCH_FRAMES};
use super::{locked, Mailbox, Outlet, Report, Shared, Work};
use crate::log::{Level, Line};

const WAKE: Token = Token(0);
/// Turns before the thread looks at its event loop again.
const TURNS: usize = 64;
/// A deadline that nobody lives to see.
const FOREVER: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// See the module's documentation.
pub(super) struct Writer {
    shared: Arc<Shared>,
    index: usize,
    poll: Poll,
    events: Events,
    /// Outlets whose turn comes, in order.
    ready: VecDeque<Arc<Outlet>>,
    stalled: HashMap<usize, Arc<Outlet>>,
    deadlines: BTreeSet<(Instant, usize)>,
    last_token: usize,
    batch: Vec<Gathered>,
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
            stalled: HashMap::new(),
            deadlines: BTreeSet::new(),
            last_token: WAKE.0,
            batch: Vec::new(),
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
                let _ = self.shared.reports.send(std::mem::take(&mut self.reports));
            }
            if !self.ready.is_empty() || !self.mailbox().receiver.is_empty() {
                if !self.stalled.is_empty() {
                    self.poll(Some(Duration::ZERO));
                }
            } else if self.may_end() {
                break;
            } else {
                self.park();
            }
        }
        self.shared.mailboxes[self.index].ended.notify_all();
        let _ = self.shared.reports.send(Vec::new());
    }

    fn mailbox(&self) -> &Mailbox {
        &self.shared.mailboxes[self.index]
    }

    fn receive(&mut self) {
        while let Ok(work) = self.mailbox().receiver.try_recv() {
            match work {
                Work::Look(outlet) => line_up(&mut self.ready, &outlet, &mut outlet.inner()),
                Work::Granted(outlet) => {
                    let mut inner = outlet.inner();
                    inner.stage = match inner.stage {
                        Stage::AwaitsOrder => Stage::HasOrder,
                        Stage::AwaitsLock => Stage::HasBoth,
                        other => other,
                    };
                    line_up(&mut self.ready, &outlet, &mut inner);
                }
            }
        }
    }

    /// Decides, against a start and a stop at the same time, whether this thread is to end.
    fn may_end(&self) -> bool {
        let mailbox = self.mailbox();
        let mut phase = locked(&mailbox.phase);
        if !phase.stopping || mailbox.busy.load(SeqCst) > 0 {
            return false;
        }
        phase.running = false;
        phase.waker = None;
        true
    }

    fn park(&mut self) {
        // A frame lives no longer than the jobs it is in.
        self.batch.clear();
        let mailbox = self.mailbox();
        mailbox.parked.store(true, SeqCst);
        if mailbox.receiver.is_empty() {
            let now = Instant::now();
            self.poll(self.deadlines.first().map(|(until, _)| until.saturating_duration_since(now)));
        }
        self.mailbox().parked.store(false, SeqCst);
    }

    fn poll(&mut self, timeout: Option<Duration>) {
        // An interrupted poll is a poll without events.
        if self.poll.poll(&mut self.events, timeout).is_err() {
            return;
        }
        for event in &self.events {
            if let Some(outlet) = self.stalled.get(&event.token().0) {
                line_up(&mut self.ready, outlet, &mut outlet.inner());
            }
        }
    }

    /// A bug met in a turn costs its connection, not the thread.
    fn guarded_turn(&mut self, outlet: &Arc<Outlet>) {
        if catch_unwind(AssertUnwindSafe(|| self.turn(outlet))).is_err() {
            let text = format!("bug in pgbus_native, please report it: a writer panicked (connection {})", outlet.id());
            self.reports.push(Report::Log(Line::new(Level::Error, text)));
            let mut inner = outlet.inner();
            self.kill(outlet, &mut inner);
        }
    }

    fn turn(&mut self, outlet: &Arc<Outlet>) {
        let mut inner = outlet.inner();
        inner.ready = false;
        if !inner.scheduled {
            return;
        }
        if outlet.is_dead() {
            return self.dismiss(outlet, &mut inner);
        }
        if !outlet.acquire(&mut inner, &self.shared, self.index) {
            return;
        }
        outlet.settle(&mut inner, &self.shared, &mut self.reports);
        let socket = match outlet.gather(&mut inner, &mut self.batch) {
            Next::Write(socket) => socket,
            // Everything is settled, unless the cursor has moved since.
            Next::Nothing => return self.go_on(outlet, &mut inner),
            Next::Poisoned(reason) => {
                let text = format!("write failed for {}: {reason}", outlet.id());
                self.reports.push(Report::Log(Line::new(Level::Error, text)));
                return self.kill(outlet, &mut inner);
            }
        };
        let offset = inner.offset;
        drop(inner);

        let sent = send(&socket, &self.batch, offset);
        self.shared.stats.writes.add(1);

        let mut inner = outlet.inner();
        if outlet.is_dead() {
            return self.dismiss(outlet, &mut inner);
        }
        let full = match sent {
            Ok(bytes) => {
                outlet.advance(&mut inner, &self.shared, &self.batch, bytes);
                let length: usize = self.batch.iter().map(|(.., frame)| length(&frame.body)).sum();
                offset + bytes < length
            }
            Err(Errno::AGAIN) => true,
            Err(Errno::INTR) => false,
            Err(_) => return self.kill(outlet, &mut inner),
        };
        outlet.settle(&mut inner, &self.shared, &mut self.reports);
        if full && outlet.rest(&mut inner) {
            self.stall(outlet, &mut inner, socket);
        } else {
            self.go_on(outlet, &mut inner);
        }
    }

    /// The socket takes what there is: another turn for the rest, if there is one.
    fn go_on(&mut self, outlet: &Arc<Outlet>, inner: &mut Inner) {
        if outlet.rest(inner) {
            self.recover(inner);
            outlet.release(inner);
            line_up(&mut self.ready, outlet, inner);
        } else {
            self.dismiss(outlet, inner);
        }
    }

    /// The socket is full: waits for room or for the end of the frame's time.
    fn stall(&mut self, outlet: &Arc<Outlet>, inner: &mut Inner, socket: Arc<OwnedFd>) {
        let now = Instant::now();
        // The event loops of some systems refuse to wait longer than that.
        let until = outlet.time_limit(inner, now).unwrap_or(now + FOREVER).min(now + FOREVER);
        if until <= now {
            return self.kill(outlet, inner);
        }
        match &mut inner.stall {
            Some(stall) => {
                self.deadlines.remove(&(stall.until, stall.token));
                self.deadlines.insert((until, stall.token));
                stall.until = until;
            }
            None => {
                self.last_token += 1;
                let token = self.last_token;
                let fd = socket.as_raw_fd();
                if self.poll.registry().register(&mut SourceFd(&fd), Token(token), Interest::WRITABLE).is_err() {
                    return self.kill(outlet, inner);
                }
                self.stalled.insert(token, Arc::clone(outlet));
                self.deadlines.insert((until, token));
                inner.stall = Some(Stall { token, until, socket });
            }
        }
        if inner.offset == 0 {
            outlet.release(inner);
        }
    }

    /// The socket takes bytes again.
    fn recover(&mut self, inner: &mut Inner) {
        if let Some(stall) = inner.stall.take() {
            let fd = stall.socket.as_raw_fd();
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
            self.stalled.remove(&stall.token);
            self.deadlines.remove(&(stall.until, stall.token));
        }
    }

    /// Takes an outlet that has nothing to do any more off the list.
    fn dismiss(&mut self, outlet: &Arc<Outlet>, inner: &mut Inner) {
        self.recover(inner);
        if outlet.release(inner) {
            inner.scheduled = false;
            self.mailbox().busy.fetch_sub(1, SeqCst);
        }
    }

    /// Ends a connection, and says so.
    fn kill(&mut self, outlet: &Arc<Outlet>, inner: &mut Inner) {
        if let Some(jobs) = outlet.end_locked(inner) {
            self.shared.stats.dead.add(1);
            self.reports.push(Report::Dead { owner: inner.owner, jobs });
        }
        self.dismiss(outlet, inner);
    }

    /// Ends the connections whose frame took too long.
    fn expire(&mut self) {
        if self.deadlines.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(&(until, token)) = self.deadlines.first() {
            if until > now {
                break;
            }
            self.deadlines.pop_first();
            if let Some(outlet) = self.stalled.get(&token).cloned() {
                let mut inner = outlet.inner();
                self.kill(&outlet, &mut inner);
            }
        }
    }
}

/// Gives the outlet a turn, but one: by the time of a second it may be off this list, and on another pump's.
fn line_up(ready: &mut VecDeque<Arc<Outlet>>, outlet: &Arc<Outlet>, inner: &mut Inner) {
    if inner.scheduled && !std::mem::replace(&mut inner.ready, true) {
        ready.push_back(Arc::clone(outlet));
    }
}

fn length(body: &Result<Box<[u8]>, String>) -> usize {
    body.as_ref().map_or(0, |body| body.len())
}

/// Sends as much of the batch as the socket takes now, from `offset` of its first frame on.
fn send(socket: &OwnedFd, batch: &[Gathered], offset: usize) -> Result<usize, Errno> {
    #[cfg(not(target_vendor = "apple"))]
    const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
    // No signal either: the socket itself was told so when it was attached.
    #[cfg(target_vendor = "apple")]
    const FLAGS: SendFlags = SendFlags::DONTWAIT;

    let bodies = batch.iter().filter_map(|(.., frame)| frame.body.as_deref().ok());
    let mut slices = [IoSlice::new(&[]); BATCH_FRAMES];
    let mut count = 0;
    for (slice, body) in slices.iter_mut().zip(bodies) {
        *slice = IoSlice::new(if count == 0 { &body[offset..] } else { body });
        count += 1;
    }
    sendmsg(socket.as_fd(), &slices[..count], &mut SendAncillaryBuffer::default(), FLAGS)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::super::lock::Lock;
    use super::super::{Cursor, Frame, Job, Limit, Overflow, Pump};
    use super::*;

    #[test]
    fn an_outlet_lines_up_once_however_many_events_call_for_it() {
        let (server, mut browser) = UnixStream::pair().unwrap();
        let lock = || Arc::new(Lock::new(false));
        let outlet = Arc::new(Outlet::new("a".to_owned(), lock(), lock(), Arc::new(Cursor::new(0))));
        outlet.attach(server.as_fd()).unwrap();
        let pump = Pump::new(1, Limit { frames: 0, overflow: Overflow::DropOldest });
        let (mut writer, _waker) = Writer::new(Arc::clone(&pump.shared), 0).unwrap();
        let large = Arc::new(Frame { msg_id: 1, body: Ok(vec![b'x'; 4 << 20].into()) });
        pump.post(&outlet, 0, Job::new(vec![large], 0, FOREVER));
        writer.receive();
        let first = writer.ready.pop_front().unwrap();
        writer.turn(&first);
        assert!(outlet.inner().stall.is_some() && writer.ready.is_empty());

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
        assert_eq!(writer.mailbox().busy.load(SeqCst), 0);
    }
}
