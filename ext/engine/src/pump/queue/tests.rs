use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const NO_LIMIT: Limit = Limit { frames: 0, overflow: Overflow::DropOldest };
const LONG: Duration = Duration::from_secs(60);

fn frame(msg_id: impl Into<Option<i64>>, length: usize) -> Arc<Frame> {
    Arc::new(Frame { msg_id: msg_id.into(), bytes: vec![b'x'; length].into() })
}

fn job(ids: impl IntoIterator<Item = i64>) -> Job {
    let items = ids.into_iter().map(|id| Item::Frame(frame(id, 10))).collect();
    Job { items, known_from: None, batch_max: None, deadline: LONG }
}

/// As the binding makes it: without what is known.
fn job_for(queue: &Queue, ids: impl IntoIterator<Item = i64>) -> Job {
    let (known, new): (Vec<_>, Vec<_>) = ids.into_iter().partition(|id| queue.has(*id));
    Job { known_from: known.first().copied(), ..job(new) }
}

fn empty_job(batch_max: i64) -> Job {
    Job { batch_max: Some(batch_max), ..job([]) }
}

fn fleeting(length: usize) -> Item {
    Item::Frame(frame(None, length))
}

/// What is next, as positions.
fn batch(queue: &mut Queue) -> Vec<Option<i64>> {
    let mut batch = Vec::new();
    queue.next_batch(&mut batch, &mut Vec::new());
    batch.iter().map(|frame| frame.msg_id).collect()
}

/// Everything that leaves a queue, as positions, and the acknowledgements.
fn drain(queue: &mut Queue) -> (Vec<Option<i64>>, Vec<i64>) {
    let (mut left, mut acks, mut next) = (Vec::new(), Vec::new(), Vec::new());
    while let Next::Write { offset } = queue.next_batch(&mut next, &mut acks) {
        left.extend(next.iter().map(|frame| frame.msg_id));
        queue.wrote(next.iter().map(|frame| frame.bytes.len()).sum::<usize>() - offset, &mut acks);
    }
    (left, acks)
}

#[test]
fn what_the_connection_has_or_what_waits_is_not_queued_again() {
    let mut queue = Queue::new(2);
    queue.post(job(1..=4), NO_LIMIT);
    queue.post(job(1..=5), NO_LIMIT);
    assert_eq!(queue.push(Item::Frame(frame(5, 10)), LONG), Ok(false));
    assert_eq!(queue.frames(), 3);
    assert_eq!(drain(&mut queue), (vec![Some(3), Some(4), Some(5)], vec![4, 5]));
}

#[test]
fn jobs_without_anything_new_are_acknowledged_in_their_turn_and_take_no_room() {
    let mut queue = Queue::new(0);
    queue.post(job([1]), NO_LIMIT);
    for batch_max in 7..1000 {
        queue.post(job([1]), NO_LIMIT);
        queue.post(empty_job(batch_max), NO_LIMIT);
    }
    assert_eq!(queue.entries.len(), 2);
    let (left, acks) = drain(&mut queue);
    assert_eq!((left, acks.len(), acks.iter().all(|ack| *ack == 999)), (vec![Some(1)], 1987, true));
}

#[test]
fn a_job_without_items_is_acknowledged_with_its_batch_max_and_one_whose_items_are_known_with_the_cursor() {
    let mut queue = Queue::new(9);
    for (job, accepted_max) in [(empty_job(5), 5), (job([8, 9]), 9)] {
        queue.post(job, NO_LIMIT);
        assert_eq!(drain(&mut queue), (vec![], vec![accepted_max]));
    }
}

#[test]
fn the_cursor_passes_whole_frames_only() {
    let mut queue = Queue::new(0);
    queue.post(job(1..=3), NO_LIMIT);
    let mut acks = Vec::new();
    batch(&mut queue);
    assert_eq!((queue.wrote(19, &mut acks), queue.cursor()), (1, 1));
    assert_eq!(queue.next_batch(&mut Vec::new(), &mut acks), Next::Write { offset: 9 });
    assert_eq!((queue.wrote(1, &mut acks), queue.cursor()), (1, 2));
    assert_eq!((queue.wrote(10, &mut acks), queue.cursor(), acks), (1, 3, vec![3]));
}

#[test]
fn a_batch_for_an_empty_queue_always_waits() {
    for overflow in [Overflow::DropOldest, Overflow::Disconnect] {
        let mut queue = Queue::new(0);
        assert_eq!(queue.post(job(1..=101), Limit { frames: 100, overflow }), Posted::Waits { dropped: 0 });
        assert_eq!(queue.frames(), 101);
    }
}

#[test]
fn frames_that_wait_count_once_against_the_limit() {
    let limit = Limit { frames: 4, overflow: Overflow::Disconnect };
    let mut queue = Queue::new(0);
    for last in 1..=4 {
        assert_eq!(queue.post(job(1..=last), limit), Posted::Waits { dropped: 0 });
    }
    assert_eq!(queue.post(job(1..=5), limit), Posted::Overflowed(Overflowed { jobs: 5 }));
}

#[test]
fn drops_the_oldest_jobs_until_the_new_one_fits() {
    let limit = Limit { frames: 4, overflow: Overflow::DropOldest };
    let mut queue = Queue::new(0);
    queue.post(job(1..=2), limit);
    queue.post(job(3..=4), limit);
    assert_eq!(queue.post(job(5..=7), limit), Posted::Waits { dropped: 2 });
    assert_eq!(drain(&mut queue), (vec![Some(5), Some(6), Some(7)], vec![7]));
}

#[test]
fn a_job_that_has_begun_is_neither_counted_nor_dropped() {
    let limit = Limit { frames: 2, overflow: Overflow::DropOldest };
    let mut queue = Queue::new(0);
    queue.post(job(1..=2), limit);
    batch(&mut queue);
    queue.wrote(5, &mut Vec::new());
    queue.post(job(3..=4), limit);
    assert_eq!(queue.post(job(5..=6), limit), Posted::Waits { dropped: 1 });
    assert_eq!(drain(&mut queue).0, [1, 2, 5, 6].map(Some));
}

#[test]
fn what_a_job_brings_again_is_not_lost_by_making_room_for_it() {
    let limit = Limit { frames: 4, overflow: Overflow::DropOldest };
    let mut queue = Queue::new(0);
    for (ids, dropped) in [(1..=2, 0), (1..=4, 0), (3..=6, 1), (4..=8, 0)] {
        let job = job_for(&queue, ids);
        assert_eq!(queue.post(job, limit), Posted::Waits { dropped });
    }
    assert_eq!(drain(&mut queue).0, (3..=8).map(Some).collect::<Vec<_>>());
}

#[test]
fn replayed_messages_are_no_jobs_and_are_never_dropped() {
    let limit = Limit { frames: 1, overflow: Overflow::DropOldest };
    let mut queue = Queue::new(0);
    queue.push(Item::Frame(frame(1, 10)), LONG).unwrap();
    queue.push(fleeting(10), LONG).unwrap();
    queue.post(job([2]), limit);
    assert_eq!(queue.post(job([3]), limit), Posted::Waits { dropped: 1 });
    assert_eq!(drain(&mut queue).0, [Some(1), None, Some(3)]);
}

#[test]
fn frames_that_exist_nowhere_else_have_a_limit_of_their_own() {
    let mut queue = Queue::new(0);
    queue.push(fleeting(FLEETING.bytes + 1), LONG).expect("the first one always waits");
    assert_eq!(queue.push(fleeting(1), LONG), Err(Overflowed { jobs: 0 }));
    let mut queue = Queue::new(0);
    queue.post(job(1..=2), NO_LIMIT);
    for _ in 0..FLEETING.frames {
        queue.push(fleeting(1), LONG).unwrap();
    }
    assert_eq!(queue.push(fleeting(1), LONG), Err(Overflowed { jobs: 1 }));
}

#[test]
fn a_broken_message_and_the_close_wait_for_what_is_before_them() {
    let mut queue = Queue::new(0);
    queue.push(Item::Frame(frame(1, 10)), LONG).unwrap();
    queue.push(Item::Broken { msg_id: Some(2), reason: "bad".into() }, LONG).unwrap();
    assert_eq!(batch(&mut queue), [Some(1)]);
    queue.wrote(10, &mut Vec::new());
    assert_eq!(queue.next_batch(&mut Vec::new(), &mut Vec::new()), Next::Broken("bad".into()));
    let mut queue = Queue::new(0);
    queue.push(fleeting(10), LONG).unwrap();
    queue.close();
    assert_eq!(drain(&mut queue).0, [None]);
    assert_eq!(queue.next_batch(&mut Vec::new(), &mut Vec::new()), Next::Close);
}

#[test]
fn the_archive_waits_within_bounds_but_for_a_first_frame_of_any_size() {
    let mut queue = Queue::new(0);
    assert!(!queue.is_full(&frame(1, BOUND.bytes + 1)));
    queue.push(Item::Frame(frame(1, BOUND.bytes - 1)), LONG).unwrap();
    assert!(queue.is_full(&frame(2, 2)) && !queue.is_full(&frame(2, 1)) && !queue.has_room());
    drain(&mut queue);
    assert!(queue.has_room());
}

#[test]
fn an_idle_queue_keeps_little_room() {
    let mut queue = Queue::new(0);
    queue.post(job(1..=100), NO_LIMIT);
    drain(&mut queue);
    assert!(queue.entries.capacity() <= IDLE_CAPACITY);
}

#[derive(Debug, Clone)]
enum Step {
    Post { from: i64, count: i64 },
    Push { msg_id: i64 },
    Fleeting,
    Write { bytes: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (-3..4i64, 0..5i64).prop_map(|(from, count)| Step::Post { from, count }),
        (0..3i64).prop_map(|msg_id| Step::Push { msg_id }),
        Just(Step::Fleeting),
        (0..60usize).prop_map(|bytes| Step::Write { bytes }),
    ]
}

proptest! {
    /// Invariants 2, 3 and 12, whatever is handed over while a system call is under way.
    #[test]
    fn frames_leave_in_order_none_twice_and_what_is_counted_is_there(
        steps in prop::collection::vec(step(), 1..200),
        limit in 0..6usize,
    ) {
        let limit = Limit { frames: limit, overflow: Overflow::DropOldest };
        let (mut queue, mut last, mut posts, mut lost) = (Queue::new(0), 0, 0, 0);
        let (mut seen, mut acks, mut next) = (Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Post { from, count } => {
                    let from = (last + from).max(1);
                    last = last.max(from + count - 1);
                    posts += 1;
                    let job = job_for(&queue, from..from + count);
                    if let Posted::Waits { dropped } = queue.post(job, limit) {
                        lost += dropped;
                    }
                }
                Step::Push { msg_id } => {
                    last = last.max(last + msg_id);
                    queue.push(Item::Frame(frame(last, 10)), LONG).unwrap();
                }
                Step::Fleeting => drop(queue.push(fleeting(7), LONG)),
                Step::Write { bytes } => {
                    if let Next::Write { offset } = queue.next_batch(&mut next, &mut acks) {
                        let first: Vec<_> = next.iter().map(|frame| frame.msg_id).collect();
                        // A post in between does not take away what is being written.
                        posts += 1;
                        last += 1;
                        if let Posted::Waits { dropped } = queue.post(job([last]), limit) {
                            lost += dropped;
                        }
                        let offered = next.iter().map(|frame| frame.bytes.len()).sum::<usize>() - offset;
                        let whole = queue.wrote(bytes.min(offered), &mut acks);
                        seen.extend(first.into_iter().take(whole));
                    }
                }
            }
            let counted = queue.entries.iter().filter(|entry| matches!(entry, Entry::Item { .. })).count();
            prop_assert_eq!(counted, queue.frames());
            prop_assert!(queue.cursor() <= queue.queued_to);
        }
        seen.extend(drain(&mut queue).0);
        let durable: Vec<_> = seen.into_iter().flatten().collect();
        prop_assert!(durable.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", durable);
        prop_assert_eq!((queue.frames(), queue.bytes, queue.fleeting, queue.fleeting_bytes), (0, 0, 0, 0));
        prop_assert!(acks.len() <= posts);
        prop_assert!(limit.frames > 0 || lost == 0);
        prop_assert_eq!(durable.iter().collect::<BTreeSet<_>>().len(), durable.len());
    }
}
