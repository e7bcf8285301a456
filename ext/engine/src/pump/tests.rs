//! The pump over real socket pairs.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{mpsc, Arc};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::frame::Frame;

const NO_LIMIT: Limit = Limit { frames: 0, overflow: Overflow::DropOldest };
const LONG: Duration = Duration::from_secs(20);
/// No socket takes so much at once, unless its browser reads.
const LARGE: usize = 4 << 20;

struct Client {
    outlet: Arc<Outlet>,
    browser: UnixStream,
}

impl Client {
    fn new(pump: &Pump, id: &str, cursor: i64) -> Self {
        let (server, browser) = UnixStream::pair().unwrap();
        browser.set_read_timeout(Some(LONG)).unwrap();
        let outlet = pump.adopt(id.to_owned(), cursor, OwnedFd::from(server)).unwrap();
        Self { outlet, browser }
    }

    fn read_exactly(&mut self, bytes: usize) -> String {
        let mut buffer = vec![0; bytes];
        self.browser.read_exact(&mut buffer).unwrap();
        String::from_utf8(buffer).unwrap()
    }

    fn read_to_eof(&mut self) -> Vec<u8> {
        let mut buffer = Vec::new();
        self.browser.read_to_end(&mut buffer).unwrap();
        buffer
    }

    /// Has a frame that is partly in the socket.
    fn stall(&mut self, deadline: Duration) {
        self.outlet.post(Job { deadline, ..large_job(1) });
        assert_eq!(self.read_exactly(1), "x");
    }
}

fn item(msg_id: impl Into<Option<i64>>, bytes: impl Into<Vec<u8>>) -> Item {
    Item::Frame(Arc::new(Frame { msg_id: msg_id.into(), bytes: bytes.into().into() }))
}

fn job(ids: impl IntoIterator<Item = i64>) -> Job {
    job_of(ids.into_iter().map(|id| item(id, format!("{id};"))).collect())
}

fn job_of(items: Vec<Item>) -> Job {
    Job { items, known_from: None, batch_max: None, deadline: LONG }
}

fn large_job(msg_id: i64) -> Job {
    job_of(vec![item(msg_id, vec![b'x'; LARGE])])
}

fn started(writers: usize, limit: Limit) -> Pump {
    let pump = Pump::new(writers, limit);
    pump.start().unwrap();
    pump
}

/// The reports so far and to come, without log lines, until there are so many.
fn reports(pump: &Pump, count: usize) -> Vec<Report> {
    let mut reports = Vec::new();
    while reports.len() < count {
        let batch = pump.reports().recv_timeout(LONG).unwrap();
        reports.extend(batch.into_iter().filter(|report| !matches!(report, Report::Log(_))));
    }
    reports
}

fn stop(pump: &Pump) -> bool {
    pump.stop();
    let deadline = Instant::now() + LONG;
    (0..pump.writers()).all(|writer| pump.join(writer, deadline, &AtomicBool::new(false)))
}

#[test]
fn everything_leaves_in_the_order_in_which_it_was_handed_over() {
    let pump = started(2, NO_LIMIT);
    let mut client = Client::new(&pump, "a", 0);
    client.outlet.post(job(1..=2));
    client.outlet.push(item(None, "ephemeral;"), LONG);
    client.outlet.post(Job { batch_max: Some(0), ..job([]) });
    client.outlet.push(item(3, "3;"), LONG);
    client.outlet.post(job([3, 4]));
    assert_eq!(client.read_exactly(18), "1;2;ephemeral;3;4;");
    let key = client.outlet.key();
    assert_eq!(reports(&pump, 3), [2, 0, 4].map(|accepted_max| Report::Ack { key, accepted_max }));
    assert_eq!(client.outlet.cursor(), 4);
    assert!(stop(&pump));
    assert_eq!((pump.stats().written.get(), pump.stats().waiting.get()), (5, 0));
}

#[test]
fn what_was_posted_before_the_start_is_written_then() {
    let pump = Pump::new(1, NO_LIMIT);
    let mut client = Client::new(&pump, "a", 0);
    client.outlet.post(job(1..=3));
    pump.start().unwrap();
    assert_eq!(client.read_exactly(6), "1;2;3;");
    assert!(stop(&pump));
    client.outlet.post(job([4]));
    pump.start().unwrap();
    assert_eq!(client.read_exactly(2), "4;");
}

#[test]
fn a_burst_takes_fewer_system_calls_than_frames() {
    let pump = Pump::new(1, NO_LIMIT);
    let mut client = Client::new(&pump, "a", 0);
    for id in 1..=50 {
        client.outlet.post(job([id]));
    }
    pump.start().unwrap();
    client.read_exactly((1..=50).map(|id| format!("{id};").len()).sum());
    assert!(stop(&pump));
    assert!(pump.stats().writes.get() < 50, "{}", pump.stats().writes.get());
}

#[test]
fn a_browser_that_takes_no_byte_is_given_up_once_and_delays_no_other() {
    let pump = started(1, NO_LIMIT);
    let (mut stalled, mut healthy) = (Client::new(&pump, "stalled", 0), Client::new(&pump, "healthy", 0));
    stalled.outlet.post(Job { deadline: Duration::from_millis(50), ..large_job(1) });
    stalled.outlet.post(job([2]));
    healthy.outlet.post(job([1]));
    assert_eq!(healthy.read_exactly(2), "1;");
    let mut seen = reports(&pump, 2);
    seen.sort_by_key(|report| matches!(report, Report::Dead { .. }));
    let (dead, alive) = (stalled.outlet.key(), healthy.outlet.key());
    assert_eq!(seen, [Report::Ack { key: alive, accepted_max: 1 }, Report::Dead { key: dead }]);
    assert!(stalled.outlet.is_closed());
    assert_eq!(stalled.outlet.cursor(), 0);
    assert!(stalled.read_to_eof().len() < LARGE, "the torn frame is followed by nothing but EOF");
    assert_eq!(stalled.outlet.post(job([3])), Handed::Closed);
    assert!(stop(&pump));
    assert_eq!((pump.stats().dead.get(), pump.stats().connections.get()), (1, 1));
}

#[test]
fn a_deadline_of_nothing_still_writes_what_fits() {
    let pump = started(1, NO_LIMIT);
    let mut client = Client::new(&pump, "a", 0);
    client.outlet.post(Job { deadline: Duration::ZERO, ..job([1]) });
    assert_eq!(client.read_exactly(2), "1;");
}

#[test]
fn a_peer_that_is_gone_is_reported_once() {
    let pump = started(1, NO_LIMIT);
    let Client { outlet, browser } = Client::new(&pump, "a", 0);
    drop(browser);
    outlet.push(item(None, "ephemeral"), LONG);
    assert_eq!(reports(&pump, 1), [Report::Dead { key: outlet.key() }]);
    assert!(!outlet.fail());
    assert!(stop(&pump));
    assert!(pump.reports().try_iter().flatten().next().is_none());
}

#[test]
fn overflow_can_end_the_connection_whose_client_then_comes_back() {
    let pump = Pump::new(1, Limit { frames: 1, overflow: Overflow::Disconnect });
    let mut client = Client::new(&pump, "a", 0);
    assert_eq!(client.outlet.post(job([1])), Handed::Taken);
    assert_eq!(client.outlet.post(job([2])), Handed::Closed);
    assert!(client.read_to_eof().is_empty());
    let key = client.outlet.key();
    assert_eq!(reports(&pump, 2), [Report::Overflow { key, dropped: 2 }, Report::Dead { key }]);
    pump.start().unwrap();
    assert!(stop(&pump), "the connection that ended is forgotten");
}

#[test]
fn overflow_is_logged_at_powers_of_two() {
    let pump = Pump::new(1, Limit { frames: 2, overflow: Overflow::DropOldest });
    let client = Client::new(&pump, "a", 0);
    for id in 1..=7 {
        assert_eq!(client.outlet.post(job([id])), Handed::Taken);
    }
    assert_eq!(pump.stats().waiting.get(), 2);
    let all: Vec<_> = pump.reports().try_iter().flatten().collect();
    let lines = all.iter().filter(|report| matches!(report, Report::Log(_))).count();
    assert_eq!((all.len(), lines), (8, 3), "at 1, 2 and 4: {all:?}");
}

#[test]
fn an_end_is_silent_shuts_the_socket_and_is_forgotten_by_the_writer() {
    let pump = started(1, NO_LIMIT);
    let mut client = Client::new(&pump, "a", 0);
    client.stall(LONG);
    client.outlet.end();
    client.outlet.end();
    assert!(client.read_to_eof().len() < LARGE);
    assert!(stop(&pump));
    assert_eq!((pump.stats().waiting.get(), pump.stats().connections.get()), (0, 0));
    assert!(pump.reports().try_iter().flatten().next().is_none());
}

#[test]
fn a_close_follows_what_was_handed_over_before_it() {
    let pump = started(1, NO_LIMIT);
    let mut client = Client::new(&pump, "a", 0);
    client.stall(LONG);
    client.outlet.push(item(None, "farewell"), LONG);
    client.outlet.close();
    assert!(client.outlet.is_closed());
    assert_eq!(client.outlet.push(item(None, "late"), LONG), Handed::Closed);
    client.outlet.end();
    assert!(client.read_to_eof().ends_with(b"xfarewell"));
}

#[test]
fn a_close_of_an_idle_connection_or_of_a_stopped_pump_is_immediate() {
    let pump = Pump::new(1, NO_LIMIT);
    let (mut idle, mut waiting) = (Client::new(&pump, "a", 0), Client::new(&pump, "b", 0));
    waiting.outlet.post(job([1]));
    for client in [&mut idle, &mut waiting] {
        client.outlet.close();
        assert_eq!(client.read_to_eof(), b"");
    }
}

/// Invariant 1: the number stays taken until Ruby's object does not mean it any more, and while a writer may use it.
#[test]
fn the_descriptor_is_closed_when_the_connection_ended_and_ruby_let_go() {
    let is_open = |fd: i32| std::path::Path::new(&format!("/dev/fd/{fd}")).exists();
    let pump = Pump::new(1, NO_LIMIT);
    let steps: [fn(&Arc<Outlet>); 2] = [|outlet| outlet.release(), |outlet| outlet.end()];
    for [first, second] in [steps, [steps[1], steps[0]]] {
        let client = Client::new(&pump, "a", 0);
        let fd = client.outlet.inner().socket().unwrap().as_raw_fd();
        first(&client.outlet);
        assert!(is_open(fd));
        second(&client.outlet);
        assert!(!is_open(fd));
    }
}

#[test]
fn a_broken_message_ends_the_connection_at_its_turn() {
    let pump = started(1, NO_LIMIT);
    let mut client = Client::new(&pump, "a", 0);
    let broken = Item::Broken { msg_id: Some(2), reason: "ArgumentError: bad".into() };
    client.outlet.post(job_of(vec![item(1, "1;"), broken]));
    assert_eq!(client.read_to_eof(), b"1;");
    assert_eq!(reports(&pump, 1), [Report::Dead { key: client.outlet.key() }]);
    assert_eq!(client.outlet.cursor(), 1);
}

/// Invariants 12 and 15: what does not fit is refused, and who offers it is notified when it fits.
#[test]
fn the_archive_is_offered_as_far_as_there_is_room() {
    let pump = started(1, NO_LIMIT);
    let mut client = Client::new(&pump, "a", 0);
    let (notify, notices) = mpsc::channel();
    client.outlet.watch(Box::new(move |notice| notify.send(notice).unwrap_or_default()));
    let frame = |msg_id: i64| Arc::new(Frame { msg_id: Some(msg_id), bytes: vec![b'x'; 1 << 20].into() });
    let taken = (1..).take_while(|msg_id| client.outlet.offer(&frame(*msg_id), LONG) == Offer::Taken).count();
    assert!((4..8).contains(&taken), "{taken}");
    assert_eq!(client.outlet.offer(&frame(1), LONG), Offer::Taken, "it has that one");
    assert!(notices.try_recv().is_err());
    client.read_exactly(taken << 20);
    assert_eq!(notices.recv_timeout(LONG).unwrap(), Notice::Room);
    client.outlet.end();
    assert_eq!(notices.recv_timeout(LONG).unwrap(), Notice::Ended);
    assert_eq!(client.outlet.offer(&frame(9), LONG), Offer::Closed);
}

/// Invariant 17: a browser that is full of what can be read again is not given up for an ephemeral message.
#[test]
fn what_can_not_be_read_again_has_a_limit_of_its_own_however_much_else_waits() {
    let pump = Pump::new(1, NO_LIMIT);
    let client = Client::new(&pump, "a", 0);
    let frame = |msg_id: Option<i64>| Arc::new(Frame { msg_id, bytes: b"x".as_slice().into() });
    let archive = (1..).take_while(|msg_id| client.outlet.offer(&frame(Some(*msg_id)), LONG) == Offer::Taken).count();
    assert_eq!(archive, BOUND.frames);
    let fleeting = (0..).take_while(|_| client.outlet.offer(&frame(None), LONG) == Offer::Taken).count();
    assert_eq!(fleeting, FLEETING.frames);
    assert!(!client.outlet.is_closed(), "who offers decides what becomes of the browser");
}

#[test]
fn a_stop_that_is_not_obeyed_in_time_ends_by_itself_later() {
    let pump = started(1, NO_LIMIT);
    let mut client = Client::new(&pump, "a", 0);
    client.stall(LONG);
    pump.stop();
    assert!(!pump.join(0, Instant::now(), &AtomicBool::new(false)));
    pump.start().unwrap();
    pump.stop();
    client.read_exactly(LARGE - 1);
    assert!(pump.join(0, Instant::now() + LONG, &AtomicBool::new(false)));
}

#[test]
fn a_join_can_be_interrupted() {
    let pump = Arc::new(started(1, NO_LIMIT));
    let interrupted = Arc::new(AtomicBool::new(false));
    let (done, waiting) = mpsc::channel();
    let (other, flag) = (Arc::clone(&pump), Arc::clone(&interrupted));
    thread::spawn(move || done.send(other.join(0, Instant::now() + LONG, &flag)).unwrap());
    interrupted.store(true, SeqCst);
    pump.disturb_joins();
    assert!(!waiting.recv_timeout(LONG).unwrap());
}

#[test]
fn a_pump_that_is_dropped_unstarted_frees_what_it_held() {
    let pump = Pump::new(1, NO_LIMIT);
    let client = Client::new(&pump, "a", 0);
    client.outlet.post(job([1]));
    let outlet = Arc::downgrade(&client.outlet);
    drop((pump, client));
    assert!(outlet.upgrade().is_none());
}

#[test]
fn an_idle_writer_keeps_no_frame() {
    let pump = started(1, NO_LIMIT);
    let mut client = Client::new(&pump, "a", 0);
    let frame = Arc::new(Frame { msg_id: Some(1), bytes: b"1;".as_slice().into() });
    let kept = Arc::downgrade(&frame);
    client.outlet.push(Item::Frame(frame), LONG);
    assert_eq!(client.read_exactly(2), "1;");
    let until = Instant::now() + LONG;
    while kept.strong_count() > 0 {
        assert!(Instant::now() < until, "the frame is still held");
        thread::yield_now();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Invariants 2 and 3.
    #[test]
    fn whatever_the_reader_does_it_sees_whole_frames_in_order(
        jobs in prop::collection::vec(prop::collection::vec((0..6i64, 1..60_000usize), 0..5), 1..30),
        reads in prop::collection::vec(1..40_000usize, 1..40),
    ) {
        let pump = started(2, NO_LIMIT);
        let mut client = Client::new(&pump, "a", 0);
        let (mut last, mut expected, mut id) = (0, String::new(), 0);
        for frames in jobs {
            let mut items = Vec::new();
            for (step, size) in frames {
                id = (id + step - 1).max(1);
                let body = format!("{id}:{}\n", "x".repeat(size));
                if id > last {
                    last = id;
                    expected.push_str(&body);
                }
                items.push(item(id, body));
            }
            client.outlet.post(job_of(items));
        }
        let (mut seen, mut sizes) = (Vec::new(), reads.into_iter().cycle());
        while seen.len() < expected.len() {
            let mut chunk = vec![0; sizes.next().unwrap()];
            let count = client.browser.read(&mut chunk).unwrap();
            seen.extend_from_slice(&chunk[..count]);
        }
        prop_assert_eq!(String::from_utf8(seen).unwrap(), expected);
        prop_assert!(stop(&pump));
        prop_assert_eq!((client.outlet.cursor(), pump.stats().waiting.get()), (last, 0));
    }
}

#[test]
fn a_browser_may_half_close_and_still_read() {
    let pump = started(1, NO_LIMIT);
    let mut client = Client::new(&pump, "a", 0);
    client.browser.write_all(b"GET").unwrap();
    client.browser.shutdown(std::net::Shutdown::Write).unwrap();
    client.outlet.post(job([1]));
    assert_eq!(client.read_exactly(2), "1;");
}
