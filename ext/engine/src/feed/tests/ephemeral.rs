//! Where ephemeral messages have their place, and how many may wait (invariants 17 and 18).

use super::super::*;
use super::world::{Got, World};
use super::{world, NO_BOUND, NO_LIMITS, PUBLIC};

#[test]
fn an_ephemeral_message_comes_after_the_rows_whose_wakes_came_first() {
    let mut world = world(0);
    let key = world.live(0);
    let early = world.notify(0, PUBLIC);
    world.commit(0, PUBLIC);
    let late = world.notify(0, PUBLIC);
    world.notices();
    assert_eq!(world.got(key), [Got::Ephemeral(early)]);
    world.answer_read(0);
    assert_eq!(world.got(key), [Got::Ephemeral(early), Got::Row(1), Got::Ephemeral(late)]);
    assert_eq!(world.sent, [(0, 1, true), (0, 1, false), (0, 1, true)]);
}

#[test]
fn an_ephemeral_message_does_not_wait_for_rows_whose_wakes_come_later() {
    let mut world = world(0);
    let key = world.live(0);
    world.commit(0, PUBLIC);
    let message = world.notify(0, PUBLIC);
    world.notices();
    world.execute(0);
    world.commit(0, PUBLIC);
    world.notices();
    world.answer_read(0);
    assert_eq!(world.got(key), [Got::Row(1), Got::Ephemeral(message)]);
}

#[test]
fn an_ephemeral_message_finds_its_place_among_the_rows_of_a_browser_that_is_behind() {
    let mut world = world(0);
    world.live(0);
    world.commit(0, PUBLIC);
    world.settle();
    let behind = world.connect(0, 0, NO_BOUND);
    let message = world.notify(0, PUBLIC);
    world.notices();
    assert_eq!(world.got(behind), []);
    world.commit(0, PUBLIC);
    world.settle();
    assert_eq!(world.got(behind), [Got::Row(1), Got::Ephemeral(message), Got::Row(2)]);
}

#[test]
fn an_ephemeral_message_does_not_overtake_a_row_when_the_live_browsers_leave() {
    let mut world = world(0);
    let live = world.live(0);
    let behind = world.connect(0, -1, NO_BOUND);
    world.execute(0);
    world.commit(0, PUBLIC);
    let message = world.notify(0, PUBLIC);
    world.notices();
    world.answer_read(1);
    assert_eq!(world.got(live), [Got::Row(1), Got::Ephemeral(message)]);
    world.disconnect(live);
    world.settle();
    assert_eq!(world.got(behind), [Got::Row(1), Got::Ephemeral(message)]);
}

#[test]
fn an_ephemeral_message_is_for_those_who_were_there_when_it_came() {
    let mut world = world(0);
    let first = world.live(0);
    world.commit(0, PUBLIC);
    let message = world.notify(0, PUBLIC);
    world.notices();
    let second = world.connect(0, 1, NO_BOUND);
    world.settle();
    assert_eq!(world.got(first), [Got::Row(1), Got::Ephemeral(message)]);
    assert_eq!(world.got(second), []);
}

#[test]
fn an_ephemeral_message_that_means_nothing_is_left_out_and_one_that_is_no_json_is_logged() {
    let mut world = world(0);
    let key = world.live(0);
    for payload in ["{}", "[]", "<p>", "<b>"] {
        world.handle(Input::Wake { queue: "q0".into(), payload: Some(payload.into()) });
    }
    assert_eq!((world.got(key), world.logged.len()), (&[][..], 1));
    assert!(world.logged[0].starts_with("an ephemeral message of \"s0\" is no JSON"));
}

#[test]
fn a_browser_whose_outlet_takes_no_more_ephemeral_frames_is_given_up() {
    let mut world = world(0);
    let (healthy, slow) = (world.live(0), world.connect(0, 0, (usize::MAX, 2)));
    world.command();
    world.notices();
    world.answer_read(0);
    (0..3).for_each(|_| {
        world.notify(0, PUBLIC);
    });
    world.notices();
    assert_eq!((world.given_up(slow), world.given_up(healthy)), (Some(Reason::OutletFull), None));
    world.commit(0, PUBLIC);
    world.settle();
    assert_eq!((world.got(healthy).len(), world.got(slow).len()), (4, 2));
}

#[test]
fn a_browser_for_which_too_many_ephemeral_frames_wait_is_given_up() {
    for limits in [Limits { frames: 2, ..NO_LIMITS }, Limits { bytes: 80, ..NO_LIMITS }] {
        let mut world = World::new(1, limits);
        let live = world.live(0);
        world.commit(0, PUBLIC);
        world.settle();
        let behind = world.connect(0, 0, NO_BOUND);
        (0..2).for_each(|_| {
            world.notify(0, PUBLIC);
        });
        world.notices();
        assert_eq!(world.given_up(behind), None);
        world.notify(0, PUBLIC);
        world.notices();
        assert_eq!((world.given_up(behind), world.given_up(live)), (Some(Reason::TooFarBehind), None));
        world.settle();
        world.check();
    }
}

#[test]
fn a_stream_for_which_too_many_ephemeral_messages_wait_loses_its_browsers_and_no_other_does() {
    let mut world = World::new(2, Limits { frames: 2, ..NO_LIMITS });
    let (stalled, other) = (world.live(0), world.live(1));
    world.commit(0, PUBLIC);
    (0..3).for_each(|_| {
        world.notify(0, PUBLIC);
    });
    (0..3).for_each(|_| {
        world.notify(1, PUBLIC);
    });
    world.notices();
    assert_eq!((world.given_up(stalled), world.given_up(other)), (Some(Reason::StreamStalled), None));
    assert_eq!((world.got(stalled).len(), world.got(other).len()), (0, 3));
    world.settle();
    world.check();
}
