//! Whom the app's filters are asked about, and who waits for the answers.

use super::super::item::MAX_PAIRS;
use super::super::*;
use super::world::{Got, Post};
use super::{world, FOR_ODD, NO_BOUND, PUBLIC};

#[test]
fn a_row_with_a_label_stops_its_stream_until_the_answer_and_no_other() {
    let mut world = world(0);
    let (odd, even, other) = (world.live(0), world.live(0), world.live(1));
    [PUBLIC, FOR_ODD, PUBLIC, FOR_ODD].into_iter().for_each(|post| world.commit(0, post));
    let message = world.notify(0, FOR_ODD);
    world.commit(1, PUBLIC);
    world.notices();
    world.answer_read(0);
    world.answer_read(0);
    assert_eq!(
        (world.got(odd), world.got(even), world.got(other)),
        (&[Got::Row(1)][..], &[Got::Row(1)][..], &[Got::Row(1)][..])
    );
    assert_eq!(world.questions.len(), 1, "one question for the page");
    let labels: Vec<(&str, usize)> =
        world.questions[0].items.iter().map(|asked| (&*asked.label, asked.keys.len())).collect();
    assert_eq!(labels, [("\"odd\"", 2), ("\"odd\"", 2)]);
    world.answer_question(0);
    world.settle();
    let rows = [1, 2, 3, 4].map(Got::Row);
    assert_eq!(world.got(odd), [&rows[..], &[Got::Ephemeral(message)]].concat());
    assert_eq!(world.got(even), [Got::Row(1), Got::Row(3)]);
}

#[test]
fn a_page_of_a_browser_behind_asks_for_that_browser_alone_and_stops_only_that() {
    let mut world = world(0);
    let live = world.live(0);
    world.commit(0, FOR_ODD);
    world.settle();
    let behind = world.connect(0, 0, NO_BOUND);
    world.answer_read(0);
    assert_eq!(world.questions[0].items[0].keys, [behind]);
    world.commit(0, PUBLIC);
    world.notices();
    world.answer_read(0);
    assert_eq!(world.got(live), [Got::Row(1), Got::Row(2)]);
    world.settle();
    assert_eq!(world.got(behind), [Got::Row(2)]);
}

#[test]
fn a_question_has_a_bounded_number_of_pairs() {
    let mut world = world(0);
    let keys: Vec<u32> = (0..3).map(|_| world.live(0)).collect();
    (0..500).for_each(|_| world.commit(0, FOR_ODD));
    world.notices();
    world.answer_read(0);
    let pairs: usize = world.questions[0].items.iter().map(|asked| asked.keys.len()).sum();
    assert_eq!(pairs, MAX_PAIRS);
    world.settle();
    assert_eq!(keys.iter().map(|key| world.got(*key).len()).collect::<Vec<_>>(), [500, 0, 500]);
}

#[test]
fn what_an_answer_leaves_out_is_hidden() {
    let mut world = world(0);
    let key = world.live(0);
    (0..2).for_each(|_| world.commit(0, FOR_ODD));
    world.notices();
    world.answer_read(0);
    let question = world.questions.remove(0).id;
    world.handle(Input::Answers { question, verdicts: vec![vec![]] });
    assert_eq!((world.got(key), world.questions.len()), (&[][..], 0));
}

#[test]
fn who_is_excluded_is_not_asked_for() {
    let mut world = world(0);
    let (actor, other) = (world.live(0), world.live(0));
    let exclude = Some(world.outside.browsers[&actor].number);
    world.commit(0, Post { label: Some("all"), exclude });
    world.commit(0, Post { label: None, exclude });
    world.notify(0, Post { label: None, exclude });
    world.notices();
    world.answer_read(0);
    assert_eq!(world.questions[0].items[0].keys, [other]);
    world.settle();
    assert_eq!((world.got(actor).len(), world.got(other).len()), (0, 3));
}

#[test]
fn an_answer_about_a_browser_that_has_left_is_not_taken_for_its_successor() {
    let mut world = world(0);
    let first = world.live(0);
    assert_eq!(world.outside.browsers[&first].number, 1);
    world.live(0);
    world.commit(0, FOR_ODD);
    world.notices();
    world.answer_read(0);
    let verdicts = vec![vec![true, true]];
    world.disconnect(first);
    world.connect(0, 1, NO_BOUND);
    world.disconnect(first);
    let successor = world.connect(0, 0, NO_BOUND);
    assert_eq!((successor, world.outside.browsers[&successor].number % 2), (first, 0));
    let question = world.questions.remove(0).id;
    world.handle(Input::Answers { question, verdicts });
    world.settle();
    assert_eq!(world.got(successor), []);
}
