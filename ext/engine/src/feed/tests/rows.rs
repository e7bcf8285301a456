//! Who gets which rows, and what is read for it (invariants 14 and 15).

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::world::{Got, World};
use super::{world, FOR_ODD, NO_BOUND, NO_LIMITS, PUBLIC};

#[test]
fn a_browser_is_read_for_after_its_listen_is_confirmed_and_not_before() {
    let mut world = world(3);
    let key = world.connect(0, 1, NO_BOUND);
    assert!(world.reads.is_empty());
    world.command();
    assert!(world.reads.is_empty(), "LISTEN was executed, but that is not known yet");
    world.notices();
    assert_eq!(world.reads.len(), 1);
    world.answer_read(0);
    assert_eq!(world.got(key), [Got::Row(2), Got::Row(3)]);
    assert!(world.reads.is_empty() && world.sent.is_empty(), "history is no broadcast");
}

#[test]
fn an_answer_to_a_listen_that_was_taken_back_does_not_count_for_the_next_one() {
    let mut world = world(0);
    let key = world.connect(0, 0, NO_BOUND);
    world.disconnect(key);
    world.connect(0, 0, NO_BOUND);
    world.command();
    world.notices();
    assert!(world.reads.is_empty());
    world.command();
    world.command();
    world.notices();
    assert_eq!(world.reads.len(), 1);
}

#[test]
fn a_row_is_read_once_for_all_live_browsers_and_counted_once() {
    let mut world = world(0);
    let keys = [world.live(0), world.live(0), world.live(0)];
    world.rows_read = 0;
    world.commit(0, PUBLIC);
    world.settle();
    assert_eq!(world.rows_read, 1);
    assert_eq!(world.sent, [(0, 3, false)]);
    assert!(keys.iter().all(|key| world.got(*key) == [Got::Row(1)]));
}

#[test]
fn wakes_during_a_read_lead_to_one_more_read() {
    let mut world = world(0);
    let key = world.live(0);
    world.commit(0, PUBLIC);
    world.notices();
    world.execute(0);
    (0..5).for_each(|_| world.commit(0, PUBLIC));
    world.notices();
    assert_eq!(world.reads.len(), 1, "one at a time");
    world.answer_read(0);
    assert_eq!(world.got(key), [Got::Row(1)]);
    world.answer_read(0);
    assert_eq!(world.got(key).len(), 6);
    assert!(world.reads.is_empty());
}

#[test]
fn pages_are_read_until_one_is_not_full() {
    let mut world = world(1200);
    let key = world.connect(0, 0, NO_BOUND);
    world.command();
    world.notices();
    for (rows, reads) in [(500, 1), (1000, 1), (1200, 0)] {
        world.answer_read(0);
        assert_eq!((world.got(key).len(), world.reads.len()), (rows, reads));
    }
}

#[test]
fn browsers_that_are_behind_at_the_same_cursor_share_a_read() {
    let mut world = world(3);
    let first = world.connect(0, 1, NO_BOUND);
    let second = world.connect(0, 1, NO_BOUND);
    world.command();
    world.notices();
    let third = world.connect(0, 1, NO_BOUND);
    assert_eq!(world.reads.len(), 1);
    world.settle();
    assert_eq!(world.rows_read, 2);
    assert!([first, second, third].iter().all(|key| world.got(*key) == [Got::Row(2), Got::Row(3)]));
}

#[test]
fn a_slow_browser_delays_nobody_and_is_read_for_when_it_has_room() {
    let mut world = world(0);
    let fast = world.live(0);
    let slow = world.connect(0, 0, (2, 0));
    world.settle();
    (0..5).for_each(|_| world.commit(0, PUBLIC));
    world.notices();
    world.answer_read(0);
    assert_eq!((world.got(fast).len(), world.got(slow).len()), (5, 2));
    world.answer_read(0);
    assert!(world.reads.is_empty(), "nothing is read for who has no room");
    world.drain(slow, 2);
    world.room();
    world.answer_read(0);
    assert_eq!(world.got(slow).len(), 4);
    world.settle();
    assert_eq!(world.got(slow), world.got(fast));
}

#[test]
fn a_slow_browser_is_not_read_a_full_page_for_little_room() {
    let mut world = world(1000);
    let slow = world.connect(0, 0, (20, 0));
    world.settle();
    assert_eq!(world.got(slow).len(), 1000);
    assert!(world.rows_read < 500 + 3 * 1000, "{} rows were read", world.rows_read);
}

#[test]
fn a_browser_that_is_behind_meets_a_tail_that_moves_without_a_gap_or_a_double() {
    let mut world = world(1);
    let live = world.live(0);
    let behind = world.connect(0, 0, NO_BOUND);
    world.execute(0);
    world.commit(0, PUBLIC);
    world.notices();
    world.answer_read(1);
    assert_eq!(world.got(live), [Got::Row(2)]);
    world.answer_read(0);
    assert_eq!(world.got(behind), [Got::Row(1)]);
    assert_eq!(world.reads.len(), 1, "it has to read on");
    world.commit(0, PUBLIC);
    world.notices();
    assert_eq!(world.reads.len(), 2, "it does not move the tail");
    world.answer_read(1);
    assert_eq!((world.got(live).len(), world.got(behind).len()), (2, 1));
    world.settle();
    assert_eq!(world.got(behind), [Got::Row(1), Got::Row(2), Got::Row(3)]);
}

#[test]
fn a_cursor_that_no_row_ever_had_harms_nobody_else() {
    let mut world = world(3);
    world.connect(0, 1_000_000, NO_BOUND);
    world.settle();
    let key = world.connect(0, 0, NO_BOUND);
    world.settle();
    world.commit(0, PUBLIC);
    world.settle();
    assert_eq!(world.got(key).len(), 4);
    world.check();
}

#[test]
fn deleted_rows_keep_nobody_behind() {
    let mut world = world(0);
    world.live(0);
    (0..5).for_each(|_| world.commit(0, PUBLIC));
    world.settle();
    world.purge(0, 5);
    let key = world.connect(0, 0, NO_BOUND);
    world.settle();
    world.rows_read = 0;
    world.commit(0, PUBLIC);
    world.settle();
    assert_eq!((world.got(key), world.rows_read), (&[Got::Row(6)][..], 1));
}

#[test]
fn a_lost_session_wakes_every_stream() {
    let mut world = world(0);
    let key = world.live(0);
    world.lose_session();
    world.commit(0, PUBLIC);
    world.restore_session();
    world.notices();
    world.answer_read(0);
    assert_eq!(world.got(key), [Got::Row(1)]);
}

#[test]
fn a_failed_read_is_asked_for_again_later_and_ever_later_and_logged_rarely() {
    let mut world = world(0);
    let key = world.live(0);
    world.commit(0, PUBLIC);
    world.notices();
    let mut waits = Vec::new();
    for _ in 0..8 {
        world.fail_read(0);
        assert!(world.reads.is_empty());
        let before = world.now;
        world.tick();
        waits.push(world.now - before);
        assert_eq!(world.reads.len(), 1);
    }
    assert_eq!(waits[..3], [100, 200, 400].map(Duration::from_millis));
    assert_eq!(waits[7], Duration::from_secs(5));
    assert_eq!(world.logged.len(), 2, "{:?}", world.logged);
    assert!(world.logged[0].contains("reading \"q0\" failed") && world.logged[0].ends_with("no more connections"));
    world.answer_read(0);
    assert_eq!(world.got(key), [Got::Row(1)]);
}

#[test]
fn a_stream_whose_reads_fail_keeps_no_other_from_reading() {
    let mut world = world(0);
    let (first, second) = (world.live(0), world.live(1));
    world.commit(0, PUBLIC);
    world.notices();
    world.fail_read(0);
    world.commit(1, PUBLIC);
    world.notices();
    world.answer_read(0);
    assert_eq!((world.got(first).len(), world.got(second).len()), (0, 1));
}

#[test]
fn reads_for_browsers_behind_are_bounded_and_streams_take_turns() {
    let mut world = World::new(30, NO_LIMITS);
    for stream in 0..30 {
        (0..8).for_each(|_| world.commit(stream, PUBLIC));
    }
    for cursor in 0..8 {
        for stream in 0..30 {
            world.connect(stream, cursor, NO_BOUND);
        }
    }
    while world.command() {}
    world.notices();
    let mut streams = Vec::new();
    while !world.reads.is_empty() {
        assert!(world.reads.len() <= 16);
        streams.push(world.reads[0].stream);
        world.answer_read(0);
    }
    // The first sixteen start as their LISTENs are confirmed; then the streams take turns.
    let turns: BTreeSet<usize> = streams[16..40].iter().copied().collect();
    assert_eq!(turns.len(), 24, "{streams:?}");
    world.check();
}

#[test]
fn a_key_that_connects_again_means_the_new_browser_alone() {
    let mut world = world(0);
    let key = world.live(0);
    let connect = Connect { key, id: "new".into(), stream: "s1".into(), queue: "q1".into(), cursor: 0 };
    world.handle(Input::Connected(connect));
    world.settle();
    world.commit(0, PUBLIC);
    world.commit(1, PUBLIC);
    world.settle();
    assert_eq!((world.got(key), world.sent.as_slice()), (&[Got::Row(1)][..], &[(1, 1, false)][..]));
}

#[test]
fn a_refused_listen_ends_the_browsers_of_that_stream() {
    let mut world = world(0);
    let (key, other) = (world.connect(0, 0, NO_BOUND), world.live(1));
    assert_eq!(world.given_up(key), None);
    world.disconnect(key);
    let queue: crate::session::Queue = "q0".into();
    let connect = Connect { key: 7, id: "c".into(), stream: "s0".into(), queue: queue.clone(), cursor: 0 };
    let mut feed = Feed::new(NO_LIMITS);
    feed.handle(world.now, Input::Connected(connect), &mut world.outside);
    let refused = |queue| Input::ListenFailed { queue, reason: "too long".into() };
    assert_eq!(feed.handle(world.now, refused("q0".into()), &mut world.outside), [], "another listen of that queue");
    let outputs = feed.handle(world.now, refused(queue.clone()), &mut world.outside);
    assert!(matches!(&outputs[0], Output::Log(line) if line.text.ends_with("LISTEN for \"q0\": too long")));
    assert_eq!(outputs[1..], [Output::Died { key: 7, reason: Reason::ListenRefused }, Output::Unlisten { queue }]);
    assert_eq!(world.given_up(other), None);
}

#[test]
fn a_stream_without_browsers_is_forgotten() {
    let mut world = world(0);
    for _ in 0..3 {
        let key = world.live(0);
        world.commit(0, FOR_ODD);
        world.notices();
        world.answer_read(0);
        world.disconnect(key);
        world.settle();
        let feed = format!("{:?}", world.feed);
        for table in ["streams: {}", "browsers: {}", "turns: []", "reads: {}", "questions: {}", "timers: {}"] {
            assert!(feed.contains(table), "{table} in {feed}");
        }
    }
}

#[test]
fn a_browser_alone_on_its_stream_that_falls_behind_is_counted_as_well() {
    let mut world = world(0);
    let slow = world.connect(0, 0, (1, 0));
    world.settle();
    (0..3).for_each(|_| world.commit(0, PUBLIC));
    world.settle();
    world.sent.clear();
    world.commit(0, PUBLIC);
    world.commit(0, PUBLIC);
    world.notices();
    world.answer_read(0);
    assert_eq!(world.sent, [(0, 1, false)]);
    world.settle();
    assert_eq!((world.sent.len(), world.got(slow).len()), (1, 5));
}

proptest! {
    #[test]
    fn whatever_the_order_of_wakes_and_reads_a_row_is_read_once_for_live_browsers(
        steps in prop::collection::vec(0u8..4, 1..80),
    ) {
        let mut world = world(0);
        let keys = [world.live(0), world.live(0)];
        for step in steps {
            match step {
                0 => world.commit(0, PUBLIC),
                1 => drop(world.notice()),
                2 if !world.reads.is_empty() => world.execute(0),
                3 if !world.reads.is_empty() => world.answer_read(0),
                _ => {}
            }
        }
        world.settle();
        prop_assert_eq!(world.rows_read, world.tables[0].rows.len());
        prop_assert!(keys.iter().all(|key| world.got(*key).len() == world.rows_read));
    }
}
