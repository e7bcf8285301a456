//! The LISTEN session on a real PostgreSQL: wishes, wakes, odd names, loss and return.
#![allow(clippy::unwrap_used)]

#[path = "support/session.rs"]
mod session;
#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use pgbus_native_engine::session::News;
use session::{on_one_thread, options, queue, wake, Session};
use support::Postgres;

const HEALTH_CHECK: Duration = Duration::from_millis(250);

#[test]
fn wakes_arrive_in_order_with_their_payload() {
    let postgres = Postgres::start();
    on_one_thread(async {
        let mut session = Session::start(options(postgres.keywords()), HEALTH_CHECK).await;
        assert_eq!(session.next().await, News::Up);
        session.listen("chat").await;
        postgres.notify("chat", "");
        postgres.notify("chat", "<b>ü</b>");
        postgres.notify("other", "");
        postgres.notify("chat", "last");
        assert_eq!(session.next().await, wake("chat", None));
        assert_eq!(session.next().await, wake("chat", Some("<b>ü</b>")));
        assert_eq!(session.next().await, wake("chat", Some("last")));
        session.wishes.unwant(&queue("chat"));
        session.listen("other").await;
        postgres.notify("chat", "");
        postgres.notify("other", "");
        assert_eq!(session.next().await, wake("other", None));
    });
}

#[test]
fn a_crash_of_the_server_is_survived() {
    let mut postgres = Postgres::start();
    on_one_thread(async {
        let mut session = Session::start(options(postgres.keywords()), HEALTH_CHECK).await;
        session.listen("a").await;
        session.listen("b").await;
        postgres.crash();
        session.until_down().await;
        // A wish of the meantime is fulfilled with the others.
        session.wishes.want(&queue("c"));
        session.wishes.unwant(&queue("b"));
        postgres.launch();
        assert_eq!(session.next().await, News::Listening(queue("a")));
        assert_eq!(session.next().await, News::Listening(queue("c")));
        assert_eq!(session.next().await, News::Up);
        postgres.notify("c", "back");
        assert_eq!(session.next().await, wake("c", Some("back")));
    });
}
