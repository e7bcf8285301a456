//! The pump over real socket pairs.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const NO_LIMIT: Limit = Limit { frames: 0, overflow: Overflow::DropOldest };
const LONG: Duration = Duration::from_secs(20);

struct Client {
    outlet: Arc<Outlet>,
    order: Arc<Lock>,
    lock: Arc<Lock>,
    cursor: Arc<Cursor>,
    /// What Ruby would hold.
    server: UnixStream,
    browser: UnixStream,
}

impl Client {
    fn new(id: &str) -> Self {
        let (server, browser) = UnixStream::pair().unwrap();
        browser.set_read_timeout(Some(LONG)).unwrap();
        let (order, lock) = (Arc::new(Lock::new(false)), Arc::new(Lock::new(false)));
        let cursor = Arc::new(Cursor::new(0));
        let outlet = Arc::new(Outlet::new(id.to_owned(), Arc::clone(&order), Arc::clone(&lock), Arc::clone(&cursor)));
        outlet.attach(server.as_fd()).unwrap();
        Self { outlet, order, lock, cursor, server, browser }
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
}

fn frame(msg_id: i64, body: impl Into<Vec<u8>>) -> Arc<Frame> {
    Arc::new(Frame { msg_id, body: Ok(body.into().into_boxed_slice()) })
}

fn job(ids: impl IntoIterator<Item = i64>) -> Job {
    Job::new(ids.into_iter().map(|id| frame(id, format!("{id};"))).collect(), 0, LONG)
}

/// A job that no socket takes at once, unless its client reads.
fn large_job(msg_id: i64, deadline: Duration) -> Job {
    Job::new(vec![frame(msg_id, vec![b'x'; 4 << 20])], 0, deadline)
}

fn started(limit: Limit) -> Pump {
    let pump = Pump::new(2, limit);
    pump.start().unwrap();
    pump
}

/// The next report that is no log line.
fn next_report(pump: &Pump, early: &mut Vec<Report>) -> Report {
    while early.is_empty() {
        early.extend(pump.reports().recv_timeout(LONG).unwrap().into_iter().filter(|r| !matches!(r, Report::Log(_))));
    }
    early.remove(0)
}

fn stop(pump: &Pump) -> bool {
    pump.stop();
    let deadline = Instant::now() + LONG;
    (0..pump.writers()).all(|writer| pump.join(writer, deadline, &AtomicBool::new(false)))
}

#[test]
fn frames_arrive_in_order_and_each_job_is_acknowledged() {
    let (pump, mut client, mut early) = (started(NO_LIMIT), Client::new("a"), Vec::new());
    pump.post(&client.outlet, 7, job(1..=2));
    pump.post(&client.outlet, 7, job([]));
    pump.post(&client.outlet, 7, job([2, 3]));
    assert_eq!(client.read_exactly(6), "1;2;3;");
    for accepted_max in [2, 0, 3] {
        assert_eq!(next_report(&pump, &mut early), Report::Ack { owner: 7, accepted_max });
    }
    assert_eq!(client.cursor.get(), 3);
    assert!(client.outlet.idle_for().is_some());
    assert_eq!(pump.stats().written.get(), 3);
    assert_eq!(pump.stats().waiting.get(), 0);
    assert!(stop(&pump));
}

#[test]
fn an_all_skipped_job_is_acknowledged_with_the_cursor() {
    let (pump, client, mut early) = (started(NO_LIMIT), Client::new("a"), Vec::new());
    client.cursor.set(9);
    pump.post(&client.outlet, 1, job([8, 9]));
    assert_eq!(next_report(&pump, &mut early), Report::Ack { owner: 1, accepted_max: 9 });
    assert_eq!(pump.stats().waiting.get(), 0);
}

#[test]
fn what_was_posted_before_the_start_is_written_then() {
    let (pump, mut client) = (Pump::new(1, NO_LIMIT), Client::new("a"));
    pump.post(&client.outlet, 1, job(1..=3));
    pump.start().unwrap();
    assert_eq!(client.read_exactly(6), "1;2;3;");
    assert!(stop(&pump));
    pump.post(&client.outlet, 1, job([4]));
    pump.start().unwrap();
    assert_eq!(client.read_exactly(2), "4;");
}

#[test]
fn a_burst_takes_fewer_system_calls_than_frames() {
    let (pump, mut client) = (Pump::new(1, NO_LIMIT), Client::new("a"));
    for id in 1..=50 {
        pump.post(&client.outlet, 1, job([id]));
    }
    pump.start().unwrap();
    client.read_exactly((1..=50).map(|id| format!("{id};").len()).sum());
    assert!(stop(&pump));
    assert!(pump.stats().writes.get() < 50, "{}", pump.stats().writes.get());
}

#[test]
fn a_frame_past_its_deadline_ends_its_connection_once_and_no_other() {
    let (pump, mut stalled, mut healthy) = (started(NO_LIMIT), Client::new("stalled"), Client::new("healthy"));
    pump.post(&stalled.outlet, 1, large_job(1, Duration::from_millis(50)));
    pump.post(&stalled.outlet, 1, job([2]));
    pump.post(&healthy.outlet, 2, job([1]));
    assert_eq!(healthy.read_exactly(2), "1;");
    let mut early = Vec::new();
    let mut reports = [next_report(&pump, &mut early), next_report(&pump, &mut early)];
    reports.sort_by_key(|report| matches!(report, Report::Dead { .. }));
    assert_eq!(reports, [Report::Ack { owner: 2, accepted_max: 1 }, Report::Dead { owner: 1, jobs: 2 }]);
    assert!(stalled.outlet.is_dead());
    assert_eq!(stalled.cursor.get(), 0);
    assert!(stalled.read_to_eof().len() < 4 << 20, "the torn frame is followed by nothing but EOF");
    assert_eq!(pump.post(&stalled.outlet, 1, job([3])), Posted::Dead);
    assert!(stop(&pump));
    assert_eq!(pump.stats().dead.get(), 1);
    assert_eq!(pump.stats().connections.get(), 1);
}

#[test]
fn a_deadline_of_nothing_still_writes_what_fits() {
    let (pump, mut client, mut early) = (started(NO_LIMIT), Client::new("a"), Vec::new());
    pump.post(&client.outlet, 1, Job::new(vec![frame(1, "1;")], 0, Duration::ZERO));
    assert_eq!(client.read_exactly(2), "1;");
    assert_eq!(next_report(&pump, &mut early), Report::Ack { owner: 1, accepted_max: 1 });
}

#[test]
fn a_peer_that_is_gone_is_reported_once() {
    let (pump, client, mut early) = (started(NO_LIMIT), Client::new("a"), Vec::new());
    drop(client.browser);
    pump.post(&client.outlet, 3, job([1]));
    assert_eq!(next_report(&pump, &mut early), Report::Dead { owner: 3, jobs: 1 });
    assert!(!pump.kill(&client.outlet, 3, 0));
    assert!(stop(&pump));
    assert!(early.is_empty() && pump.reports().try_iter().flatten().next().is_none());
}

#[test]
fn a_partly_written_frame_keeps_the_lock_and_a_whole_one_hands_it_over() {
    let (pump, mut client) = (started(NO_LIMIT), Client::new("a"));
    pump.post(&client.outlet, 1, large_job(1, LONG));
    let mut first = [0];
    client.browser.read_exact(&mut first).unwrap();
    let ticket = client.lock.acquire_or_queue().expect("the writer holds the lock");
    let mut server = client.server.try_clone().unwrap();
    let lock = Arc::clone(&client.lock);
    let other = thread::spawn(move || {
        assert!(ticket.wait());
        server.write_all(b"comment").unwrap();
        lock.release();
    });
    client.read_exactly((4 << 20) - 1);
    assert_eq!(client.read_exactly(7), "comment");
    other.join().unwrap();
    pump.post(&client.outlet, 1, job([2]));
    assert_eq!(client.read_exactly(2), "2;");
}

#[test]
fn a_frame_that_has_not_begun_leaves_the_lock_free() {
    let (pump, mut client) = (started(NO_LIMIT), Client::new("a"));
    client.server.set_nonblocking(true).unwrap();
    let mut filled = 0;
    while let Ok(bytes) = client.server.write(&[b'-'; 4096]) {
        filled += bytes;
    }
    pump.post(&client.outlet, 1, job([1]));
    while pump.stats().writes.get() == 0 {
        thread::yield_now();
    }
    // The writer tried, met a full socket, and waits for room without the lock.
    if let Some(ticket) = client.lock.acquire_or_queue() {
        assert!(ticket.wait());
    }
    client.lock.release();
    client.read_exactly(filled);
    assert_eq!(client.read_exactly(2), "1;");
}

#[test]
fn a_writer_waits_for_the_lock_without_delaying_others() {
    let (pump, mut held, mut other) = (Pump::new(1, NO_LIMIT), Client::new("held"), Client::new("other"));
    pump.start().unwrap();
    for lock in [Arc::clone(&held.order), Arc::clone(&held.lock)] {
        // The writer may not have given it back yet when the client has the bytes.
        assert!(lock.acquire_or_queue().is_none_or(|ticket| ticket.wait()));
        let id = held.cursor.get() + 1;
        pump.post(&held.outlet, 1, job([id]));
        pump.post(&other.outlet, 2, job([id]));
        assert_eq!(other.read_exactly(2), format!("{id};"));
        assert_eq!(held.cursor.get(), id - 1);
        lock.release();
        assert_eq!(held.read_exactly(2), format!("{id};"));
    }
    assert!(stop(&pump));
    assert!(!held.lock.is_held() && !held.order.is_held());
}

#[test]
fn overflow_drops_the_oldest_and_says_so_at_powers_of_two() {
    let (pump, client) = (Pump::new(1, Limit { frames: 2, overflow: Overflow::DropOldest }), Client::new("a"));
    for id in 1..=7 {
        assert_eq!(pump.post(&client.outlet, 1, job([id])), Posted::Taken);
    }
    assert_eq!(pump.stats().waiting.get(), 2);
    let (lines, others): (Vec<_>, Vec<_>) =
        pump.reports().try_iter().flatten().partition(|report| matches!(report, Report::Log(_)));
    assert_eq!(lines.len(), 3, "at 1, 2 and 4: {lines:?}");
    let each = [Report::Overflow { owner: 1, dropped: 1 }, Report::Gone { owner: 1, jobs: 1 }];
    assert_eq!(others, vec![each; 5].concat());
}

#[test]
fn overflow_can_end_the_connection_instead() {
    let (pump, mut client) = (Pump::new(1, Limit { frames: 1, overflow: Overflow::Disconnect }), Client::new("a"));
    assert_eq!(pump.post(&client.outlet, 4, job([1])), Posted::Taken);
    assert_eq!(pump.post(&client.outlet, 4, job([2])), Posted::Taken);
    assert!(client.read_to_eof().is_empty());
    let reports: Vec<_> = pump.reports().try_iter().flatten().filter(|r| !matches!(r, Report::Log(_))).collect();
    assert_eq!(reports, [Report::Overflow { owner: 4, dropped: 2 }, Report::Dead { owner: 4, jobs: 2 }]);
    pump.start().unwrap();
    assert!(stop(&pump), "the outlet that ended is forgotten");
}

#[test]
fn an_outlet_that_somebody_ends_is_silent_and_its_jobs_are_accounted_for() {
    let (pump, mut client, mut early) = (started(NO_LIMIT), Client::new("a"), Vec::new());
    pump.post(&client.outlet, 5, large_job(1, LONG));
    client.read_exactly(1);
    client.outlet.end();
    client.outlet.end();
    assert_eq!(next_report(&pump, &mut early), Report::Gone { owner: 5, jobs: 1 });
    client.read_to_eof();
    assert!(stop(&pump));
    assert!(!client.lock.is_held());
    assert_eq!(pump.stats().waiting.get(), 0);
}

#[test]
fn a_poisoned_frame_ends_the_connection_at_its_turn() {
    let (pump, mut client, mut early) = (started(NO_LIMIT), Client::new("a"), Vec::new());
    let poison = Arc::new(Frame { msg_id: 2, body: Err("ArgumentError: bad".into()) });
    pump.post(&client.outlet, 1, Job::new(vec![frame(1, "1;"), poison], 0, LONG));
    assert_eq!(client.read_to_eof(), b"1;");
    assert_eq!(next_report(&pump, &mut early), Report::Dead { owner: 1, jobs: 1 });
    assert_eq!(client.cursor.get(), 1);
}

#[test]
fn another_pump_keeps_off_while_this_one_is_at_work() {
    let (one, two, mut client) = (Pump::new(1, NO_LIMIT), started(NO_LIMIT), Client::new("a"));
    one.post(&client.outlet, 1, job([1]));
    assert_eq!(two.post(&client.outlet, 1, job([2])), Posted::Elsewhere);
    one.start().unwrap();
    assert_eq!(client.read_exactly(2), "1;");
    assert!(stop(&one));
    assert_eq!(two.post(&client.outlet, 1, job([2])), Posted::Taken);
    assert_eq!(client.read_exactly(2), "2;");
    assert_eq!((one.stats().connections.get(), two.stats().connections.get()), (0, 1));
}

#[test]
fn a_stop_that_is_not_obeyed_in_time_ends_by_itself_later() {
    let (pump, mut client) = (started(NO_LIMIT), Client::new("a"));
    pump.post(&client.outlet, 1, large_job(1, LONG));
    client.read_exactly(1);
    pump.stop();
    let writer = (0..2).find(|writer| !pump.join(*writer, Instant::now(), &AtomicBool::new(false))).unwrap();
    pump.start().unwrap();
    pump.stop();
    client.read_exactly((4 << 20) - 1);
    assert!(pump.join(writer, Instant::now() + LONG, &AtomicBool::new(false)));
}

#[test]
fn a_join_can_be_interrupted() {
    let pump = Arc::new(started(NO_LIMIT));
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
    let client = Client::new("a");
    let pump = Pump::new(1, NO_LIMIT);
    pump.post(&client.outlet, 1, job([1]));
    let shared = Arc::downgrade(&pump.shared);
    drop(pump);
    client.outlet.end();
    assert!(shared.upgrade().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_the_reader_does_it_sees_whole_frames_in_order(
        jobs in prop::collection::vec(prop::collection::vec((0..6i64, 1..60_000usize), 0..5), 1..30),
        reads in prop::collection::vec(1..40_000usize, 1..40),
    ) {
        let (pump, mut client) = (started(NO_LIMIT), Client::new("a"));
        let (mut last, mut expected) = (0, String::new());
        let mut id = 0;
        for frames in jobs {
            let frames = frames
                .into_iter()
                .map(|(step, size)| {
                    id = (id + step - 1).max(1);
                    let body = format!("{id}:{}\n", "x".repeat(size));
                    if id > last {
                        last = id;
                        expected.push_str(&body);
                    }
                    frame(id, body)
                })
                .collect();
            pump.post(&client.outlet, 1, Job::new(frames, 0, LONG));
        }
        let (mut seen, mut sizes) = (Vec::new(), reads.into_iter().cycle());
        while seen.len() < expected.len() {
            let mut chunk = vec![0; sizes.next().unwrap()];
            let count = client.browser.read(&mut chunk).unwrap();
            seen.extend_from_slice(&chunk[..count]);
        }
        prop_assert_eq!(String::from_utf8(seen).unwrap(), expected);
        prop_assert!(stop(&pump));
        prop_assert_eq!(client.cursor.get(), last);
        prop_assert_eq!(pump.stats().waiting.get(), 0);
    }
}

#[test]
fn an_idle_writer_keeps_no_frame() {
    let (pump, mut client) = (started(NO_LIMIT), Client::new("a"));
    let frame = frame(1, "1;");
    let kept = Arc::downgrade(&frame);
    pump.post(&client.outlet, 1, Job::new(vec![frame], 0, LONG));
    assert_eq!(client.read_exactly(2), "1;");
    let until = Instant::now() + LONG;
    while kept.strong_count() > 0 {
        assert!(Instant::now() < until, "the frame is still held");
        thread::yield_now();
    }
}

#[test]
fn a_connection_that_one_pump_finds_dead_settles_what_another_has_for_it() {
    let (one, other, client) = (started(NO_LIMIT), started(NO_LIMIT), Client::new("a"));
    one.post(&client.outlet, 1, large_job(1, LONG));
    assert_eq!(other.post(&client.outlet, 2, job([2])), Posted::Elsewhere);
    assert!(other.kill(&client.outlet, 2, 1));
    assert_eq!(next_report(&one, &mut Vec::new()), Report::Gone { owner: 1, jobs: 1 });
    assert_eq!(next_report(&other, &mut Vec::new()), Report::Dead { owner: 2, jobs: 1 });
    assert!(stop(&one) && stop(&other));
}

#[test]
fn a_connection_goes_from_pump_to_pump_and_neither_loses_count() {
    let (pumps, client) = ([started(NO_LIMIT), started(NO_LIMIT)], Client::new("a"));
    let mut browser = client.browser.try_clone().unwrap();
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        browser.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let body = |id: u8| vec![id; [10, 1 << 20][usize::from(id % 8 == 0)]];
    for id in 1..=100 {
        let post =
            || pumps[usize::from(id % 2)].post(&client.outlet, 0, Job::new(vec![frame(id.into(), body(id))], 0, LONG));
        while post() == Posted::Elsewhere {
            thread::yield_now();
        }
    }
    assert!(pumps.iter().all(stop));
    client.outlet.end();
    assert!(reader.join().unwrap() == (1..=100).flat_map(body).collect::<Vec<_>>());
}
