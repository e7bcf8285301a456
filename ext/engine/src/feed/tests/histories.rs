//! Whatever happens in whatever order, every browser gets what it has to get.

use proptest::prelude::*;
use proptest::sample::Index;

use super::super::*;
use super::world::{Post, World};

/// Something that happens. An index chooses among what is there.
#[derive(Debug, Clone)]
enum Step {
    Connect { stream: usize, cursor: u8, capacity: (usize, usize) },
    Disconnect(Index),
    Cut(Index),
    Drain(Index, usize),
    Commit { stream: usize, label: Option<&'static str>, exclude: Option<Index> },
    Burst { stream: usize, label: Option<&'static str>, rows: usize },
    Notify { stream: usize, label: Option<&'static str>, exclude: Option<Index> },
    Purge { stream: usize, rows: u8 },
    Command,
    Notice,
    Execute(Index),
    AnswerRead(Index),
    FailRead(Index),
    AnswerQuestion(Index),
    Room,
    LoseSession,
    RestoreSession,
    Tick,
}

const STREAMS: usize = 3;

fn label() -> impl Strategy<Value = Option<&'static str>> {
    prop_oneof![5 => Just(None), 2 => Just(Some("odd")), 1 => Just(Some("all")), 1 => Just(Some("nobody"))]
}

fn capacity() -> impl Strategy<Value = (usize, usize)> {
    prop_oneof![
        2 => Just((usize::MAX, usize::MAX)),
        2 => (1usize..4, Just(usize::MAX)),
        1 => (1usize..40, 1usize..4),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let (stream, index) = (0..STREAMS, any::<Index>());
    let exclude = prop::option::weighted(0.2, any::<Index>());
    prop_oneof![
        6 => (stream.clone(), any::<u8>(), capacity())
            .prop_map(|(stream, cursor, capacity)| Step::Connect { stream, cursor, capacity }),
        2 => index.prop_map(Step::Disconnect),
        1 => any::<Index>().prop_map(Step::Cut),
        6 => (any::<Index>(), 1usize..40).prop_map(|(index, frames)| Step::Drain(index, frames)),
        10 => (stream.clone(), label(), exclude.clone())
            .prop_map(|(stream, label, exclude)| Step::Commit { stream, label, exclude }),
        1 => (stream.clone(), label(), prop_oneof![8 => 1usize..60, 1 => 450usize..1100])
            .prop_map(|(stream, label, rows)| Step::Burst { stream, label, rows }),
        8 => (stream.clone(), label(), exclude)
            .prop_map(|(stream, label, exclude)| Step::Notify { stream, label, exclude }),
        1 => (stream, any::<u8>()).prop_map(|(stream, rows)| Step::Purge { stream, rows }),
        8 => Just(Step::Command),
        20 => Just(Step::Notice),
        10 => any::<Index>().prop_map(Step::Execute),
        18 => any::<Index>().prop_map(Step::AnswerRead),
        2 => any::<Index>().prop_map(Step::FailRead),
        8 => any::<Index>().prop_map(Step::AnswerQuestion),
        6 => Just(Step::Room),
        1 => Just(Step::LoseSession),
        3 => Just(Step::RestoreSession),
        3 => Just(Step::Tick),
    ]
}

impl World {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Connect { stream, cursor, capacity } => {
                let last = self.tables[*stream].last;
                // At the end, behind it, from the first row, or a cursor that no row has yet.
                let cursor = match cursor % 4 {
                    0 => last,
                    1 => (last - i64::from(cursor / 4)).max(0),
                    2 => 0,
                    _ => last + i64::from(cursor / 16),
                };
                self.connect(*stream, cursor, *capacity);
            }
            Step::Disconnect(index) => self.choose(index).into_iter().for_each(|key| self.disconnect(key)),
            Step::Cut(index) => self.choose(index).into_iter().for_each(|key| self.cut(key)),
            Step::Drain(index, frames) => self.choose(index).into_iter().for_each(|key| self.drain(key, *frames)),
            Step::Commit { stream, label, exclude } => {
                let post = self.post(*label, *exclude);
                self.commit(*stream, post);
            }
            Step::Burst { stream, label, rows } => {
                (0..*rows).for_each(|_| self.commit(*stream, Post { label: *label, exclude: None }));
            }
            Step::Notify { stream, label, exclude } => {
                let post = self.post(*label, *exclude);
                self.notify(*stream, post);
            }
            Step::Purge { stream, rows } => self.purge(*stream, self.tables[*stream].last - i64::from(*rows)),
            Step::Command => drop(self.command()),
            Step::Notice => drop(self.notice()),
            Step::Execute(index) if !self.reads.is_empty() => self.execute(index.index(self.reads.len())),
            Step::AnswerRead(index) if !self.reads.is_empty() => self.answer_read(index.index(self.reads.len())),
            Step::FailRead(index) if !self.reads.is_empty() => self.fail_read(index.index(self.reads.len())),
            Step::AnswerQuestion(index) if !self.questions.is_empty() => {
                self.answer_question(index.index(self.questions.len()));
            }
            Step::Execute(_) | Step::AnswerRead(_) | Step::FailRead(_) | Step::AnswerQuestion(_) => {}
            Step::Room => drop(self.room()),
            Step::LoseSession => self.lose_session(),
            Step::RestoreSession => drop(self.restore_session()),
            Step::Tick => drop(self.tick()),
        }
    }

    fn choose(&self, index: &Index) -> Option<u32> {
        let keys: Vec<u32> = self.outside.browsers.keys().copied().collect();
        (!keys.is_empty()).then(|| keys[index.index(keys.len())])
    }

    fn post(&self, label: Option<&'static str>, exclude: Option<Index>) -> Post {
        let exclude = exclude.and_then(|index| self.choose(&index)).map(|key| self.outside.browsers[&key].number);
        Post { label, exclude }
    }
}

fn play(steps: &[Step], limits: Limits) -> World {
    let mut world = World::new(STREAMS, limits);
    for step in steps {
        world.step(step);
        world.check_bounds(limits);
    }
    world.settle();
    world.check();
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_browser_gets_what_it_has_to_get(steps in prop::collection::vec(step(), 1..300)) {
        let limits = Limits { frames: 100_000, bytes: usize::MAX };
        let world = play(&steps, limits);
        for browser in world.gone.iter().chain(world.outside.browsers.values()) {
            prop_assert!(matches!(browser.given_up, None | Some(Reason::OutletFull)));
            prop_assert_eq!(browser.given_up.is_some(), browser.refused_ephemeral);
        }
    }

    #[test]
    fn what_waits_is_bounded_and_those_who_are_not_given_up_get_all(steps in prop::collection::vec(step(), 1..300)) {
        play(&steps, Limits { frames: 3, bytes: 200 });
    }
}
