//! The feed as other threads hold it.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{bounded, select, Receiver, Sender};
use tokio::sync::mpsc::{unbounded_channel, UnboundedSender};

use super::events::{Connect, QuestionId};
use super::reports::{Reports, Session};
use super::run::{run, Ends};
use super::stats::Stats;
use crate::pump::Outlet;
use crate::session::recipe::Answer;
use crate::session::Queue;

/// How a feed is to be.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The hub's socket. None: there is no hub.
    pub hub: Option<PathBuf>,
    /// How long a LISTEN session's connection may be idle before it is asked for a sign of life.
    pub health_check: Duration,
    /// How long a browser's socket may take no byte of a frame.
    pub deadline: Duration,
}

/// What the feed's thread is asked to do.
#[derive(Debug)]
pub(super) enum Command {
    Connect(Connect, Arc<Outlet>),
    Disconnect(u32),
    /// The outlet has room again, or ended.
    Look(u32),
    Answer(QuestionId, Vec<Vec<bool>>),
    Recipe(Session, Answer),
    Listen(Queue),
    Unlisten(Queue),
    Stop,
}

/// A feed that runs in a thread of its own. Any thread may call any method; none of them blocks but those that say so.
///
/// In a forked child it is a picture of its parent's: nothing of it may be called, nor may it be dropped.
#[derive(Debug)]
pub struct FeedThread {
    commands: UnboundedSender<Command>,
    reports: Arc<Reports>,
    stats: Arc<Stats>,
    ended: Receiver<Infallible>,
}

impl FeedThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn spawn(settings: Settings) -> io::Result<Self> {
        let (commands, orders) = unbounded_channel();
        let (end, ended) = bounded(0);
        let (reports, stats) = (Arc::new(Reports::new()), Arc::new(Stats::default()));
        let ends = Ends { orders, commands: commands.downgrade(), reports: reports.clone(), stats: stats.clone() };
        thread::Builder::new().name("pgbus-feed".to_owned()).spawn(move || {
            let _end: Sender<Infallible> = end;
            run(&settings, ends);
        })?;
        Ok(Self { commands, reports, stats, ended })
    }

    /// Takes a browser in: its outlet gets what is above its cursor, and then whatever comes. Its key names nobody else
    /// until [`FeedThread::disconnect`].
    pub fn connect(&self, browser: Connect, outlet: Arc<Outlet>) {
        self.command(Command::Connect(browser, outlet));
    }

    /// Forgets a browser.
    pub fn disconnect(&self, key: u32) {
        self.command(Command::Disconnect(key));
    }

    /// Answers a question: for each message and each of its browsers, whether the browser may see it.
    pub fn answer(&self, question: QuestionId, visible: Vec<Vec<bool>>) {
        self.command(Command::Answer(question, visible));
    }

    /// Answers a session that waits for its recipe.
    pub fn recipe(&self, session: Session, answer: Answer) {
        self.command(Command::Recipe(session, answer));
    }

    /// Asks for the wakes of a queue, for connections that Ruby serves. Reported when its LISTEN is active.
    pub fn listen(&self, queue: Queue) {
        self.command(Command::Listen(queue));
    }

    /// Asks for no more wakes of a queue.
    pub fn unlisten(&self, queue: Queue) {
        self.command(Command::Unlisten(queue));
    }

    /// What it has to say.
    pub fn reports(&self) -> &Reports {
        &self.reports
    }

    /// Its figures.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Has the thread end. Returns at once.
    pub fn stop(&self) {
        self.command(Command::Stop);
    }

    /// Blocks until the thread has ended. False: not in this time, or `interrupt` came first.
    pub fn ended(&self, timeout: Duration, interrupt: &Receiver<()>) -> bool {
        select! {
            recv(self.ended) -> _ => true,
            recv(interrupt) -> _ => false,
            default(timeout) => false,
        }
    }

    fn command(&self, command: Command) {
        let _ = self.commands.send(command); // the thread has ended: nobody is there to be served
    }
}
