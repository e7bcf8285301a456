//! The hub: one thread that listens to the database once and wakes every worker over a Unix socket.
//!
//! | file | idea |
//! | --- | --- |
//! | `mod.rs` | [`Hub`]: the handle that other threads hold |
//! | `run.rs` | the hub's thread, from its first to its last line |
//! | `router.rs` | who gets which wake; sub, unsub, ack, status, eviction |
//! | `serve.rs` | one task for each worker |
//! | `worker.rs` | one worker: its connection, and how long the hub waits for it |
//! | `outbox.rs` | what waits for one worker, and what is left out |
//! | `socket.rs` | the Unix socket |
//! | `reporter.rs`, `stats.rs` | log lines and figures |

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{bounded, select, unbounded, Receiver, Sender};
use tokio::sync::{mpsc, Notify};

use crate::listen;
use crate::log::Line;
use crate::session::recipe::{self, Recipe};
use crate::session::ruby;
use crate::session::{News, Queue, NEWS_CAPACITY};

mod outbox;
mod reporter;
mod router;
mod run;
mod serve;
mod socket;
mod stats;
mod worker;

pub use outbox::Limits;
pub use socket::MAX_PATH_BYTES;
pub use stats::{Figure, Stats};
pub use worker::WorkerId;

/// Subscriptions that one worker may have; one that asks for more is severed.
pub const MAX_SUBSCRIPTIONS: usize = 16_384;
/// Bytes of a queue's name that a worker may subscribe to; one that sends a longer one is severed.
pub const MAX_QUEUE_BYTES: usize = 1024;
/// Every so many ticks the status is told again, so that a worker that came in between knows it.
pub const REBROADCAST_TICKS: u32 = 5;

/// How a hub is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where workers connect.
    pub socket_path: PathBuf,
    /// How often the native session's health is told to the workers.
    pub status_interval: Duration,
    /// Of each worker's outbox.
    pub limits: Limits,
    /// How long the native session's connection may be idle before it is asked for a sign of life. An ack waits for it
    /// one second longer than that at most.
    pub health_check: Duration,
    /// Who listens to the database.
    pub session: Session,
}

/// Who listens to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Session {
    /// A session of the engine's own, which asks for a recipe before each connect by [`Event::RecipeNeeded`].
    Recipes,
    /// Somebody outside the engine, who takes [`Event`]s and calls [`Hub::wake`], [`Hub::answer`] and
    /// [`Hub::session_is`].
    Ruby,
}

/// What a hub has to say to those who hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// For the logger.
    Log(Line),
    /// For whoever watches.
    Notice(Notice),
    /// The session is about to connect: [`Hub::recipe`], with this number, says how.
    RecipeNeeded {
        /// That of the question.
        number: u64,
    },
    /// To the Ruby session that a recipe asked for; [`Hub::report`] says what became of it.
    Order(ruby::Order),
    /// To the Ruby session: LISTEN for this sub, then [`Hub::answer`].
    EnsureListening {
        /// Whose sub it is.
        worker: WorkerId,
        /// The queue.
        queue: Queue,
    },
    /// To the Ruby session: nobody subscribes to this queue any more.
    RemoveListening {
        /// The queue.
        queue: Queue,
    },
}

/// What somebody who watches the hub wants to hear of at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A worker was severed because it did not read.
    Evicted {
        /// Which.
        worker: WorkerId,
        /// Frames that waited for it.
        waiting: usize,
    },
    /// The session is lost.
    SessionLost {
        /// Why, in words, without secrets.
        reason: String,
    },
    /// The session is back.
    SessionRestored,
}

/// Why a hub did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The path does not fit into the system's socket address.
    #[error("too long unix socket path ({length} bytes given, at most {MAX_PATH_BYTES})")]
    PathTooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// There is no session.
    #[error(transparent)]
    Connect(#[from] listen::ConnectError),
    /// A system call for the socket or the thread failed.
    #[error("{0}")]
    System(#[from] io::Error),
    /// [`Hub::stop`] was called meanwhile.
    #[error("the hub was stopped while it started")]
    Stopped,
}

/// A hub that runs, or is about to, in a thread of its own. Any thread may call any method.
///
/// In a forked child it is a picture of its parent's hub: nothing of it may be called, nor may it be dropped.
#[derive(Debug)]
pub struct Hub {
    stats: Arc<Stats>,
    stop: Arc<Notify>,
    started: Receiver<Result<(), StartError>>,
    ended: Receiver<Infallible>,
    events: Receiver<Event>,
    wakes: Sender<News>,
    wake_arrived: Arc<Notify>,
    told: mpsc::UnboundedSender<Told>,
    recipes: mpsc::UnboundedSender<recipe::Answer>,
    reports: mpsc::UnboundedSender<ruby::Report>,
}

/// What the Ruby session tells beside wakes.
#[derive(Debug)]
enum Told {
    Answer { worker: WorkerId, queue: Queue, failure: Option<String> },
    Health(bool),
}

impl Hub {
    /// Starts the thread; [`Hub::started`] tells how that goes on.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn spawn(options: Options) -> io::Result<Self> {
        let stats = Arc::new(Stats::default());
        let stop = Arc::new(Notify::new());
        let wake_arrived = Arc::new(Notify::new());
        let (tell_started, started) = bounded(1);
        let (end, ended) = bounded(0);
        let (report, events) = unbounded();
        let (wakes, wakes_of_ruby) = bounded(NEWS_CAPACITY);
        let (told, told_of_ruby) = mpsc::unbounded_channel();
        let (recipes, recipe_answers) = mpsc::unbounded_channel();
        let (reports, reports_of_ruby) = mpsc::unbounded_channel();
        let ends = run::Ends {
            stats: stats.clone(),
            stop: stop.clone(),
            started: tell_started,
            events: report,
            wakes: wakes_of_ruby,
            wake_arrived: wake_arrived.clone(),
            told: told_of_ruby,
            recipes: recipe_answers,
            reports: reports_of_ruby,
        };
        thread::Builder::new().name("pgbus-hub".to_owned()).spawn(move || {
            let _end: Sender<Infallible> = end;
            run::run(options, ends);
        })?;
        Ok(Self { stats, stop, started, ended, events, wakes, wake_arrived, told, recipes, reports })
    }

    /// Waits until workers can connect, or the start has failed. None: `interrupt` came first.
    ///
    /// # Errors
    /// The start has failed; nothing is left of it.
    pub fn started(&self, interrupt: &Receiver<()>) -> Option<Result<(), StartError>> {
        select! {
            recv(self.started) -> result => Some(result.unwrap_or(Err(StartError::Stopped))),
            recv(interrupt) -> _ => None,
        }
    }

    /// Has the hub end: every worker sees EOF, the socket's file goes, the session is closed. Returns at once.
    pub fn stop(&self) {
        self.stop.notify_one();
    }

    /// Waits for the end of the hub's thread. False: not in this time, or `interrupt` came first.
    pub fn ended(&self, timeout: Duration, interrupt: &Receiver<()>) -> bool {
        select! {
            recv(self.ended) -> _ => true,
            recv(interrupt) -> _ => false,
            default(timeout) => false,
        }
    }

    /// Waits for the next event. `Ok(None)`: there will be none any more, the hub has ended.
    ///
    /// # Errors
    /// `interrupt` came first.
    pub fn next_event(&self, interrupt: &Receiver<()>) -> Result<Option<Event>, Interrupted> {
        select! {
            recv(self.events) -> event => Ok(event.ok()),
            recv(interrupt) -> _ => Err(Interrupted),
        }
    }

    /// Passes on a wake of the Ruby session. Waits while the hub waits for a slow worker.
    ///
    /// # Errors
    /// `interrupt` came first, and the wake was not taken.
    pub fn wake(&self, queue: Queue, payload: Option<Arc<str>>, interrupt: &Receiver<()>) -> Result<(), Interrupted> {
        select! {
            // An error means that the hub has ended; nobody is there to be woken.
            send(self.wakes, News::Wake { queue, payload }) -> _ => {
                self.wake_arrived.notify_one();
                Ok(())
            },
            recv(interrupt) -> _ => Err(Interrupted),
        }
    }

    /// Answers an [`Event::RecipeNeeded`]; an error says in words, without secrets, why there is no recipe.
    pub fn recipe(&self, number: u64, recipe: Result<Recipe, String>) {
        let _ = self.recipes.send(recipe::Answer { number, recipe });
    }

    /// Says what became of an [`Event::Order`].
    pub fn report(&self, report: ruby::Report) {
        let _ = self.reports.send(report);
    }

    /// The Ruby session answers an [`Event::EnsureListening`]; with a reason if it failed.
    pub fn answer(&self, worker: WorkerId, queue: Queue, failure: Option<String>) {
        let _ = self.told.send(Told::Answer { worker, queue, failure });
    }

    /// The Ruby session was looked at: up, or down. To be called once every [`Options::status_interval`], since it is
    /// the tick at which the workers are told.
    pub fn session_is(&self, up: bool) {
        let _ = self.told.send(Told::Health(up));
    }

    /// Its figures.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }
}

/// A wait ended because somebody wanted it to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;
