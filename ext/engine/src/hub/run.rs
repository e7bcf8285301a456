//! The hub's thread: session first, then the socket, then its tasks, until it is told to stop.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, Notify};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

use super::reporter::Reporter;
use super::router::{Asked, Router};
use super::serve::serve;
use super::socket::{Accepted, Socket};
use super::stats::Stats;
use super::{Event, Options, Session, StartError, Told, MAX_PATH_BYTES};
use crate::session::recipe::{self, Recipes};
use crate::session::ruby::{self, RubySession};
use crate::session::{self, News, Wishes, NEWS_CAPACITY};

/// How much longer than a health check an ack waits for the native session.
const ACK_GRACE: Duration = Duration::from_secs(1);
/// How often overdue acks are looked for, while acks wait.
const OVERDUE_CHECK: Duration = Duration::from_millis(50);
/// How long accepting rests after an error, such as too many open files.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// News that are passed on before the sockets are written to; also what one vectored write can take.
const BATCH: usize = 64;

/// The thread's ends of what connects it with its handle.
pub struct Ends {
    pub stats: Arc<Stats>,
    pub stop: Arc<Notify>,
    pub started: Sender<Result<(), StartError>>,
    pub events: Sender<Event>,
    pub wakes: Receiver<News>,
    pub wake_arrived: Arc<Notify>,
    pub told: mpsc::UnboundedReceiver<Told>,
    pub recipes: mpsc::UnboundedReceiver<recipe::Answer>,
    pub reports: mpsc::UnboundedReceiver<ruby::Report>,
}

/// The hub's whole life. A panic, a bug of ours, ends it: the workers see EOF and fall back to listeners of their own.
pub fn run(options: Options, ends: Ends) {
    let started = ends.started.clone();
    let reporter = Reporter::new(ends.events.clone());
    let life = AssertUnwindSafe(|| {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        LocalSet::new().block_on(&runtime, live(options, ends))
    });
    match catch_unwind(life) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => drop(started.try_send(Err(error))),
        Err(_) => reporter.error("the hub has ended by a bug in pgbus_native; its workers fall back, please report it"),
    }
}

async fn live(options: Options, ends: Ends) -> Result<(), StartError> {
    let Ends { stats, stop, started, events, wakes, wake_arrived, told, recipes, reports } = ends;
    let (send_news, news) = mpsc::channel(NEWS_CAPACITY);
    let wishes = Wishes::new();
    let asked = match options.session {
        Session::Recipes => Asked::Native(wishes.clone()),
        Session::Ruby => Asked::Ruby,
    };
    let ack_deadline = options.health_check + ACK_GRACE;
    let router = Rc::new(Router::new(asked, options.limits, ack_deadline, stats, Reporter::new(events.clone())));
    let mut tasks = JoinSet::new();
    if options.session == Session::Recipes {
        let mut session = session(events, recipes, reports, options.health_check);
        let log = |line| router.reporter.log(line);
        let first = tokio::select! {
            first = session.connect(&log) => first?,
            () = stop.notified() => return Err(StartError::Stopped),
        };
        let (reporting, news) = (router.clone(), send_news.clone());
        tasks.spawn_local(async move {
            let log = |line| reporting.reporter.log(line);
            session.run(first, &wishes, &news, &log).await;
        });
        tasks.spawn_local(tick(router.clone(), options.status_interval));
    }
    // The wakes of a Ruby session, of either kind.
    tasks.spawn_local(forward(wakes, wake_arrived, send_news));
    router.up();
    let socket = bind(&options)?;
    let _ = started.send(Ok(()));
    tasks.spawn_local(pass_on(router.clone(), news));
    tasks.spawn_local(take_told(router.clone(), told));
    tasks.spawn_local(ack_overdue(router.clone()));
    tasks.spawn_local(accept(router.clone(), socket));
    tokio::select! {
        () = stop.notified() => {}
        // None of these tasks ends by itself, except by a panic.
        Some(Err(ended)) = tasks.join_next() => {
            if let Ok(panic) = ended.try_into_panic() {
                router.sever_all();
                std::panic::resume_unwind(panic);
            }
        }
    }
    router.sever_all();
    tasks.shutdown().await;
    Ok(())
}

/// A session whose questions and orders go out as events.
fn session(
    events: Sender<Event>,
    recipes: mpsc::UnboundedReceiver<recipe::Answer>,
    reports: mpsc::UnboundedReceiver<ruby::Report>,
    health_check: Duration,
) -> session::Session {
    let questions = events.clone();
    let ask = move |number| _ = questions.send(Event::RecipeNeeded { number });
    let order = move |order| _ = events.send(Event::Order(order));
    session::Session::new(Recipes::new(ask, recipes), RubySession::new(order, reports), health_check)
}

fn bind(options: &Options) -> Result<Socket, StartError> {
    let length = options.socket_path.as_os_str().len();
    if length > MAX_PATH_BYTES {
        return Err(StartError::PathTooLong { length });
    }
    Ok(Socket::bind(&options.socket_path)?)
}

/// Passes on what the session tells, in batches: one system call a worker for all that came at once.
async fn pass_on(router: Rc<Router>, mut news: mpsc::Receiver<News>) {
    let mut batch = Vec::with_capacity(BATCH);
    while news.recv_many(&mut batch, BATCH).await > 0 {
        for one in batch.drain(..) {
            router.news(one).await;
        }
        router.flush();
        // The workers' own tasks have their turn between two batches of a burst.
        tokio::task::yield_now().await;
    }
    std::future::pending().await
}

/// Brings the Ruby session's wakes to the router at the pace that it takes them.
async fn forward(wakes: Receiver<News>, arrived: Arc<Notify>, news: mpsc::Sender<News>) {
    loop {
        while let Ok(wake) = wakes.try_recv() {
            let _ = news.send(wake).await;
        }
        arrived.notified().await;
    }
}

async fn take_told(router: Rc<Router>, mut told: mpsc::UnboundedReceiver<Told>) {
    while let Some(one) = told.recv().await {
        match one {
            Told::Answer { worker, queue, failure } => router.answered_for(worker, &queue, failure.as_deref()),
            Told::Health(up) => {
                if up {
                    router.up();
                } else {
                    router.down("its listener is not connected".to_owned());
                }
                router.tick();
            }
        }
        router.flush();
    }
    std::future::pending().await
}

async fn ack_overdue(router: Rc<Router>) {
    loop {
        router.awaiting.notified().await;
        while router.ack_overdue() {
            router.flush();
            sleep(OVERDUE_CHECK).await;
        }
        router.flush();
    }
}

async fn tick(router: Rc<Router>, interval: Duration) {
    loop {
        sleep(interval).await;
        router.tick();
    }
}

async fn accept(router: Rc<Router>, socket: Socket) {
    let mut workers = JoinSet::new();
    let mut failures = 0_u64;
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok(Accepted::Worker(stream)) => {
                    failures = 0;
                    workers.spawn_local(serve(router.clone(), router.welcome(stream)));
                }
                Ok(Accepted::Stranger { uid }) => {
                    let uid = uid.map_or_else(|| "unknown".to_owned(), |uid| uid.to_string());
                    router.reporter.warn(format!("a process of another user (uid {uid}) tried to connect and was severed"));
                }
                Err(error) => {
                    failures += 1;
                    if failures.is_power_of_two() {
                        router.reporter.warn(format!("a worker could not connect (attempt {failures}): {error}"));
                    }
                    sleep(ACCEPT_REST).await;
                }
            },
            Some(ended) = workers.join_next() => {
                if ended.is_err_and(|ended| ended.is_panic()) {
                    router.reporter.error("a worker was severed by a bug in pgbus_native, please report it");
                }
            }
        }
    }
}
