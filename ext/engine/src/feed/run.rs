//! The feed's thread: commands, wakes, rows and time go into the feed, and what it wants done is done.

use std::collections::HashMap;
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::sync::mpsc::{channel, unbounded_channel, UnboundedReceiver, UnboundedSender, WeakUnboundedSender};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep_until;

use super::events::{Connect, Input, Limits, Output, Reason};
use super::outlets::Served;
use super::reader::{self, Page, Read};
use super::reports::{Reports, Sent, Session};
use super::router::Feed;
use super::stats::Stats;
use super::thread::{Command, Settings};
use super::wakes::{self, Source};
use super::wanted::Wanted;
use crate::log::{Level, Line};
use crate::pump::{Outlet, FLEETING};
use crate::session::recipe::{Answer, Recipes};
use crate::session::{News, Queue, NEWS_CAPACITY};

/// Pages that may wait for the feed before reading pauses.
const PAGES: usize = 4;
/// Before the thread begins anew after a bug.
const REST: Duration = Duration::from_millis(500);

/// The thread's ends of what connects it with its handle.
pub(super) struct Ends {
    pub orders: UnboundedReceiver<Command>,
    /// For the outlets' watchers.
    pub commands: WeakUnboundedSender<Command>,
    pub reports: Arc<Reports>,
    pub stats: Arc<Stats>,
}

/// The thread's whole life. After a panic, a bug of ours, it ends the connections that it serves, whose browsers come
/// back, and begins anew.
pub(super) fn run(settings: &Settings, mut ends: Ends) {
    let mut served = Served::new(settings.deadline);
    let mut wanted = Wanted::default();
    loop {
        let life = AssertUnwindSafe(|| -> io::Result<()> {
            let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
            LocalSet::new().block_on(&runtime, live(settings, &mut ends, &mut served, &mut wanted));
            Ok(())
        });
        let reason = match catch_unwind(life) {
            Ok(Ok(())) => break,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "a bug in pgbus_native, please report it".to_owned(),
        };
        ends.reports.log(Line::new(Level::Error, format!("the feed begins anew, its browsers come back: {reason}")));
        ends.stats.browsers.sub(served.fail_all());
        ends.stats.streams.sub(wanted.forget_feed());
        std::thread::sleep(REST);
    }
    ends.reports.end();
}

async fn live(settings: &Settings, ends: &mut Ends, served: &mut Served, wanted: &mut Wanted) {
    let (send_reads, reads) = unbounded_channel();
    let (send_pages, mut pages) = channel(PAGES);
    let (send_news, mut news) = channel(NEWS_CAPACITY);
    let (recipes_for_reads, for_reads) = recipes(Session::Reads, &ends.reports);
    let (recipes_for_wakes, for_wakes) = recipes(Session::Wakes, &ends.reports);
    let mut tasks = JoinSet::new();
    tasks.spawn_local({
        let reports = ends.reports.clone();
        async move { reader::run(for_reads, reads, &send_pages, &|line| reports.log(line)).await }
    });
    tasks.spawn_local({
        let source = Source { hub: settings.hub.clone(), recipes: for_wakes, health_check: settings.health_check };
        let (reports, wishes) = (ends.reports.clone(), wanted.wishes());
        async move { wakes::run(source, &wishes, &send_news, &|line| reports.log(line)).await }
    });
    let Ends { orders, commands, reports, stats } = ends;
    let feed = Feed::new(Limits { frames: FLEETING.frames, bytes: FLEETING.bytes });
    let to_database = ToDatabase { reads: send_reads, recipes_for_reads, recipes_for_wakes };
    let mut service =
        Service { feed, served, wanted, to_database, commands, reports, stats, down: false, woken: HashMap::new() };
    loop {
        let deadline = service.feed.deadline();
        tokio::select! {
            command = orders.recv() => match command {
                None | Some(Command::Stop) => return,
                Some(command) => service.command(command),
            },
            Some(news) = news.recv() => service.news(news),
            Some(page) = pages.recv() => service.page(page),
            () = sleep_until(deadline.unwrap_or_else(Instant::now).into()), if deadline.is_some() => {
                service.handle(Input::Tick);
            }
            // Neither task ends by itself, except by a panic.
            Some(Err(ended)) = tasks.join_next() => std::panic::resume_unwind(ended.into_panic()),
        }
    }
}

/// How a session asks for its recipes, and where the answers go.
fn recipes(session: Session, reports: &Arc<Reports>) -> (UnboundedSender<Answer>, Recipes) {
    let (answer, answers) = unbounded_channel();
    let reports = reports.clone();
    let ask = move |number| reports.urgent(|batch| batch.recipes.push((session, number)));
    (answer, Recipes::new(ask, answers))
}

/// What the two sessions take. They end only with this thread.
struct ToDatabase {
    reads: UnboundedSender<Read>,
    recipes_for_reads: UnboundedSender<Answer>,
    recipes_for_wakes: UnboundedSender<Answer>,
}

/// The feed and those around it.
struct Service<'a> {
    feed: Feed,
    served: &'a mut Served,
    wanted: &'a mut Wanted,
    to_database: ToDatabase,
    commands: &'a WeakUnboundedSender<Command>,
    reports: &'a Reports,
    stats: &'a Stats,
    /// The source of wakes was lost, and is not back.
    down: bool,
    /// When the last wake of a stream came that nothing was sent for yet.
    woken: HashMap<Queue, Instant>,
}

impl Service<'_> {
    fn command(&mut self, command: Command) {
        match command {
            Command::Connect(browser, outlet) => self.connect(browser, outlet),
            Command::Disconnect(key) => {
                if self.served.remove(key).is_some() {
                    self.stats.browsers.sub(1);
                    self.handle(Input::Disconnected { key });
                }
            }
            Command::Look(key) => self.handle(Input::Room { key }),
            Command::Answer(question, verdicts) => self.handle(Input::Answers { question, verdicts }),
            Command::Recipe(Session::Reads, answer) => _ = self.to_database.recipes_for_reads.send(answer),
            Command::Recipe(Session::Wakes, answer) => _ = self.to_database.recipes_for_wakes.send(answer),
            Command::Listen(queue) => self.wanted.want_for_ruby(&queue),
            Command::Unlisten(queue) => self.wanted.unwant_for_ruby(&queue),
            Command::Stop => {}
        }
    }

    fn connect(&mut self, browser: Connect, outlet: Arc<Outlet>) {
        let (key, commands) = (browser.key, self.commands.clone());
        self.stats.browsers.add(1);
        self.served.insert(key, outlet.clone());
        self.handle(Input::Connected(browser));
        outlet.watch(Box::new(move |_| {
            if let Some(commands) = commands.upgrade() {
                let _ = commands.send(Command::Look(key));
            }
        }));
    }

    fn news(&mut self, news: News) {
        match news {
            News::Up => {
                if std::mem::take(&mut self.down) {
                    self.handle(Input::AllMayHaveChanged);
                    self.wanted.rubys().for_each(|queue| self.reports.wake(queue, None));
                }
                self.stats.hears.set(true);
            }
            News::Down { .. } => {
                self.down = true;
                self.stats.losses.add(1);
                self.stats.hears.set(false);
            }
            News::Listening(queue) => {
                let waited = self.wanted.answered(&queue);
                self.tell_ruby(waited.ruby);
                if let Some(queue) = waited.feed {
                    self.handle(Input::Listening { queue });
                }
            }
            News::Refused { queue, reason } => {
                let waited = self.wanted.answered(&queue);
                self.tell_ruby(waited.ruby); // pgbus's own listener answers as well, whatever came of it
                if let Some(queue) = waited.feed {
                    self.handle(Input::ListenFailed { queue, reason });
                }
            }
            News::Wake { queue, payload } => {
                self.stats.wakes.add(1);
                if self.wanted.is_feeds(&queue) {
                    self.woken.insert(queue.clone(), Instant::now());
                }
                if self.wanted.is_rubys(&queue) {
                    self.reports.wake(&queue, payload.as_deref());
                }
                self.handle(Input::Wake { queue, payload });
            }
        }
    }

    fn tell_ruby(&self, listening: Option<Queue>) {
        if let Some(queue) = listening {
            self.reports.urgent(|batch| batch.listening.push(queue));
        }
    }

    fn page(&mut self, page: Page) {
        self.stats.pages.add(1);
        self.stats.rows.add(page.rows.as_ref().map_or(0, Vec::len));
        self.handle(Input::Rows { read: page.id, rows: page.rows });
    }

    fn handle(&mut self, input: Input) {
        for output in self.feed.handle(Instant::now(), input, self.served) {
            match output {
                Output::Listen { queue } => {
                    self.stats.streams.add(1);
                    self.wanted.want_for_feed(&queue);
                }
                Output::Unlisten { queue } => {
                    self.stats.streams.sub(1);
                    self.woken.remove(&queue);
                    self.wanted.unwant_for_feed(&queue);
                }
                Output::Read { id, queue, after, limit } => {
                    let _ = self.to_database.reads.send(Read { id, queue, after, limit });
                }
                Output::Ask(question) => {
                    self.stats.questions.add(1);
                    self.reports.urgent(|batch| batch.questions.push(question));
                }
                Output::Died { key, reason } => self.give_up(key, reason),
                Output::Sent { queue, stream, fanout, ephemeral } => {
                    let took = self.woken.remove(&queue).map_or(Duration::ZERO, |since| since.elapsed());
                    self.reports.sent(Sent { stream, fanout, ephemeral, took, times: 1 });
                }
                Output::Log(line) => self.reports.log(line),
            }
        }
    }

    /// The pump reports its end, as of any connection that it found dead.
    fn give_up(&mut self, key: u32, reason: Reason) {
        let Some(outlet) = self.served.get(key) else { return };
        if outlet.fail() && self.stats.given_up.add(1).is_power_of_two() {
            let (count, id) = (self.stats.given_up.get(), outlet.id());
            let text = format!("gave up connection {id}, {count} so far: {reason}");
            self.reports.log(Line::new(Level::Warn, text));
        }
    }
}
