//! Takes in the workers, and looks after the socket's file.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{interval, sleep, MissedTickBehavior};

use super::reporter::Reporter;
use super::router::SharedRouter;
use super::serve::serve;
use super::socket::{Accepted, Socket};

/// How long accepting rests after an error, such as too many open files.
const REST: Duration = Duration::from_millis(100);

/// Serves all who connect, and makes the socket's file again if it has vanished, which it looks for every `look`.
pub async fn accept(router: SharedRouter, reporter: Rc<Reporter>, mut socket: Socket, look: Duration) {
    let mut workers = JoinSet::new();
    let mut failures = 0_u64;
    let mut look = interval(look);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok(Accepted::Worker(stream)) => {
                    failures = 0;
                    let worker = router.borrow_mut().connect(stream);
                    workers.spawn_local(serve(router.clone(), worker));
                }
                Ok(Accepted::Stranger { uid }) => {
                    let uid = uid.map_or_else(|| "unknown".to_owned(), |uid| uid.to_string());
                    reporter.warn(format!("a process of another user (uid {uid}) tried to connect and was severed"));
                }
                Err(error) => {
                    failures += 1;
                    if failures.is_power_of_two() {
                        reporter.warn(format!("a worker could not connect (attempt {failures}): {error}"));
                    }
                    sleep(REST).await;
                }
            },
            Some(ended) = workers.join_next() => {
                if ended.is_err_and(|ended| ended.is_panic()) {
                    reporter.error("a worker was severed by a bug in pgbus_native, please report it");
                }
            }
            _ = look.tick() => socket.restore_if_vanished(&reporter),
        }
    }
}
