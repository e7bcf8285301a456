use std::time::Duration;

use super::*;
use crate::hub::Event;
use crate::inherit;

const DEADLINE: Duration = Duration::from_millis(20);

struct Fixture {
    router: RefCell<Router>,
    wishes: Wishes,
    _events: crossbeam_channel::Receiver<Event>,
}

impl Fixture {
    fn new() -> Self {
        let (report, events) = crossbeam_channel::unbounded();
        let wishes = Wishes::new();
        let session = SessionKind::Native(wishes.clone());
        let limits = Limits { durable: 4, hard: 64 };
        let mut router = Router::new(session, limits, DEADLINE, Arc::default(), Rc::new(Reporter::new(report)));
        router.up();
        Self { router: RefCell::new(router), wishes, _events: events }
    }

    /// A worker and its own end of the connection, which must be kept.
    fn worker(&self) -> (Rc<Worker>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (self.router.borrow_mut().connect(inherit::open(|| Ok(ours)).unwrap()), theirs)
    }

    fn sub(&self, worker: &Rc<Worker>, queue: &str) {
        self.handle(Input::Request(worker.clone(), Ok(Request::Sub(queue.to_owned()))));
    }

    fn unsub(&self, worker: &Rc<Worker>, queue: &str) {
        self.handle(Input::Request(worker.clone(), Ok(Request::Unsub(queue.to_owned()))));
    }

    fn handle(&self, input: Input) {
        self.router.borrow_mut().handle([input]);
    }

    fn answered(&self, queue: Queue) {
        self.handle(Input::News(News::Listening(queue)));
    }

    fn down(&self) {
        self.handle(Input::News(News::Down { reason: "gone".to_owned() }));
    }

    fn wish(&self, queue: &str) -> Queue {
        self.wishes.wanted(queue).unwrap()
    }

    /// Waits until no ack is pending any more.
    async fn ack_overdue(&self) {
        while self.router.borrow_mut().ack_overdue() {
            tokio::time::sleep(DEADLINE).await;
        }
    }

    fn streams(&self) -> (usize, usize) {
        (self.router.borrow().streams.queues().len(), self.wishes.all().len())
    }
}

fn on_one_thread(test: impl std::future::Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

/// Invariant 12: an outage may be as long as it likes.
#[test]
fn an_outage_keeps_no_stream_that_nobody_subscribes_to() {
    on_one_thread(async {
        let fixture = Fixture::new();
        let (worker, _end) = fixture.worker();
        fixture.sub(&worker, "known");
        fixture.answered(fixture.wish("known"));
        fixture.down();
        tokio::time::sleep(DEADLINE).await;
        for i in 0..100 {
            let (other, _end) = fixture.worker();
            fixture.sub(&worker, &format!("left {i}"));
            fixture.sub(&other, &format!("gone {i}"));
            fixture.unsub(&worker, &format!("left {i}"));
            fixture.handle(Input::Gone(other));
            fixture.ack_overdue().await;
        }
        assert_eq!(fixture.streams(), (1, 1));
        fixture.unsub(&worker, "known");
        assert_eq!(fixture.streams(), (0, 0));
    });
}

/// Invariant 7: the session may have UNLISTENed in between.
#[test]
fn an_answer_counts_for_the_sub_that_asked_and_for_no_later_one() {
    on_one_thread(async {
        let fixture = Fixture::new();
        let (worker, _end) = fixture.worker();
        fixture.down();
        fixture.sub(&worker, "chat");
        let first = fixture.wish("chat");
        fixture.ack_overdue().await;
        fixture.unsub(&worker, "chat");
        fixture.sub(&worker, "chat");
        fixture.answered(first);
        assert_eq!(worker.pending_acks.get(), 1);
        fixture.answered(fixture.wish("chat"));
        assert_eq!(worker.pending_acks.get(), 0);
    });
}

/// Invariant 7, when a session is lost again while it is being built anew.
#[test]
fn an_answer_of_a_session_that_was_lost_again_before_it_was_up_does_not_last() {
    on_one_thread(async {
        let fixture = Fixture::new();
        let (worker, _end) = fixture.worker();
        fixture.sub(&worker, "chat");
        fixture.answered(fixture.wish("chat"));
        fixture.down();
        fixture.answered(fixture.wish("chat"));
        fixture.down();
        let (late, _end) = fixture.worker();
        fixture.sub(&late, "chat");
        assert_eq!(late.pending_acks.get(), 1, "acked while nobody listens");
        fixture.answered(fixture.wish("chat"));
        assert_eq!(late.pending_acks.get(), 0);
    });
}
