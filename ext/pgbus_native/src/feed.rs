//! `PgbusNative::Feed::Engine`: the feed's thread that `PgbusNative::Feed` holds.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use magnus::{function, method, prelude::*, Error, IntoValue, RArray, RHash, RModule, RString, Ruby, Symbol, Value};
use pgbus_native_engine::feed::message::Message;
use pgbus_native_engine::feed::reports::{Batch, Session, Wait};
use pgbus_native_engine::feed::trial::Trial;
use pgbus_native_engine::feed::{Connect, FeedThread, Question, QuestionId, Settings};
use pgbus_native_engine::frame::Frame;
use pgbus_native_engine::listen::OptionsError;
use pgbus_native_engine::session::recipe::{Answer, Recipe};

use crate::born::Born;
use crate::outlet::Outlet;
use crate::{argument, gvl, recipe};

#[magnus::wrap(class = "PgbusNative::Feed::Engine", free_immediately)]
struct Engine(Born<FeedThread>);

impl Engine {
    /// The hub's socket or nil; in seconds, the health check's interval and how long a browser may take no byte.
    fn spawn(ruby: &Ruby, hub: Option<RString>, health_check: f64, deadline: f64) -> Result<Self, Error> {
        // SAFETY: the bytes are copied before Ruby runs again.
        let hub = hub.map(|path| PathBuf::from(OsString::from_vec(unsafe { path.as_slice() }.to_vec())));
        let (health_check, deadline) = (argument::seconds(ruby, health_check)?, argument::seconds(ruby, deadline)?);
        let feed = FeedThread::spawn(Settings { hub, health_check, deadline })
            .map_err(|error| Error::new(ruby.exception_thread_error(), error.to_string()))?;
        Ok(Self(Born::new(feed)))
    }

    /// Serves a connection, under a key that names nobody else until `disconnect`: its id, its stream, and the stream's
    /// queue. False: its outlet is not this process's.
    fn connect(&self, outlet: &Outlet, key: u32, names: (String, String, String)) -> bool {
        let (Some(feed), Some(outlet)) = (self.0.get(), outlet.get()) else { return false };
        let (id, stream, queue) = names;
        let cursor = outlet.cursor();
        feed.connect(
            Connect { key, id: id.into(), stream: stream.into(), queue: queue.into(), cursor },
            outlet.clone(),
        );
        true
    }

    fn disconnect(&self, key: u32) {
        if let Some(feed) = self.0.get() {
            feed.disconnect(key);
        }
    }

    /// Has wakes of this queue reported, once `listening` was.
    fn listen(&self, queue: String) {
        if let Some(feed) = self.0.get() {
            feed.listen(queue.into());
        }
    }

    fn unlisten(&self, queue: String) {
        if let Some(feed) = self.0.get() {
            feed.unlisten(queue.into());
        }
    }

    /// For each message of the question and each of its keys, whether it is visible.
    fn answer(&self, question: u64, visible: RArray) -> Result<(), Error> {
        let visible: Vec<Vec<bool>> = visible.to_vec()?;
        if let Some(feed) = self.0.get() {
            feed.answer(QuestionId(question), visible);
        }
        Ok(())
    }

    /// A recipe for the session (`:reads` or `:wakes`) that waits for the one of this number.
    fn recipe(&self, session: Symbol, number: u64, made: (RArray, RHash, RArray)) -> Result<(), Error> {
        let (hosts, keywords, variables) = made;
        self.answer_recipe(session, number, recipe::made_of(hosts, keywords, variables)?)
    }

    /// There is none.
    fn no_recipe(&self, session: Symbol, number: u64, reason: String) -> Result<(), Error> {
        self.answer_recipe(session, number, Err(reason))
    }

    fn answer_recipe(&self, session: Symbol, number: u64, recipe: Result<Recipe, String>) -> Result<(), Error> {
        let session = if session.name()? == "reads" { Session::Reads } else { Session::Wakes };
        if let Some(feed) = self.0.get() {
            feed.recipe(session, Answer { number, recipe });
        }
        Ok(())
    }

    /// Sleeps without the GVL until there are reports, and gives all of them; nil at the end.
    fn next_reports(ruby: &Ruby, rb_self: &Self) -> Result<Option<RHash>, Error> {
        let Some(feed) = rb_self.0.get() else { return Ok(None) };
        let batch = gvl::wait(ruby, |interrupt| match feed.reports().next(interrupt) {
            Wait::Reports(batch) => Some(Some(batch)),
            Wait::Ended => Some(None),
            Wait::Interrupted => None,
        })?;
        batch.map(|batch| reports(ruby, *batch)).transpose()
    }

    fn stop(&self) {
        if let Some(feed) = self.0.get() {
            feed.stop();
        }
    }

    /// Waits for the end, so many seconds at most. Gives whether it came.
    fn wait_ended(ruby: &Ruby, rb_self: &Self, timeout: f64) -> Result<bool, Error> {
        let Some(feed) = rb_self.0.get() else { return Ok(true) };
        let timeout = argument::seconds(ruby, timeout)?;
        let ended = gvl::wait_once(|interrupt| Some(feed.ended(timeout, interrupt)))?;
        gvl::check_interrupts(ruby)?;
        Ok(ended.unwrap_or(false))
    }

    /// False in a forked child of the process that made it.
    fn is_usable(&self) -> bool {
        self.0.get().is_some()
    }

    fn stats(ruby: &Ruby, rb_self: &Self) -> Result<RHash, Error> {
        let hash = ruby.hash_new();
        let Some(feed) = rb_self.0.get() else { return Ok(hash) };
        let stats = feed.stats();
        let figures = [
            ("browsers", &stats.browsers),
            ("streams", &stats.streams),
            ("wakes", &stats.wakes),
            ("pages", &stats.pages),
            ("rows", &stats.rows),
            ("questions", &stats.questions),
            ("given_up", &stats.given_up),
            ("losses", &stats.losses),
        ];
        for (name, counter) in figures {
            hash.aset(ruby.to_symbol(name), counter.get())?;
        }
        hash.aset(ruby.to_symbol("hears"), stats.hears.get())?;
        Ok(hash)
    }

    /// What of these options only libpq can honour; nil: nothing.
    fn unsupported(ruby: &Ruby, keywords: RHash, variables: RArray) -> Result<Option<String>, Error> {
        Ok(match recipe::options(ruby.ary_new(), keywords, variables)? {
            Err(unsupported @ OptionsError::Unsupported { .. }) => Some(unsupported.to_string()),
            _ => None,
        })
    }

    /// Connects once, which may take so many seconds, and gives what only libpq can honour; nil: nothing that is known.
    fn try_connect(
        ruby: &Ruby,
        hosts: RArray,
        keywords: RHash,
        variables: RArray,
        limit: f64,
    ) -> Result<Option<String>, Error> {
        let limit = argument::seconds(ruby, limit)?;
        let options = match recipe::options(hosts, keywords, variables)? {
            Ok(options) => options,
            Err(error) => return Ok(Some(error.to_string())),
        };
        let trial = Trial::default();
        let tried = gvl::without_gvl(|| trial.unsupported(&options, limit), || trial.interrupt())?;
        gvl::check_interrupts(ruby)?;
        tried.unwrap_or(Ok(None)).map_err(|error| Error::new(ruby.exception_io_error(), error.to_string()))
    }

    /// The bytes that a row's message makes, for a comparison with pgbus's own.
    fn frame_of_row(ruby: &Ruby, msg_id: i64, text: String) -> RString {
        let message = Message::of_row(&text);
        ruby.str_from_slice(&Frame::durable(msg_id, &message.event, &message.payload).bytes)
    }
}

/// Lists by their kind; see `PgbusNative::Feed#take`.
fn reports(ruby: &Ruby, batch: Batch) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    let lines = batch.lines.into_iter().map(|line| (ruby.to_symbol(line.level.name()), line.text));
    let recipes = batch.recipes.into_iter().map(|(session, number)| {
        let name = match session {
            Session::Reads => "reads",
            Session::Wakes => "wakes",
        };
        (ruby.to_symbol(name), number)
    });
    let sent = batch.sent.into_iter().map(|sent| {
        let took_ms = sent.took.as_secs_f64() * 1000.0;
        (sent.stream.to_string(), sent.fanout, sent.ephemeral, took_ms, sent.times)
    });
    let wakes = batch.wakes.into_iter().map(|wake| (wake.queue.to_string(), wake.payload.map(String::from)));
    put(ruby, hash, "lines", lines)?;
    put(ruby, hash, "recipes", recipes)?;
    put(ruby, hash, "listening", batch.listening.into_iter().map(|queue| queue.to_string()))?;
    put(ruby, hash, "wakes", wakes)?;
    put(ruby, hash, "sent", sent)?;
    let questions = batch.questions.iter().map(|asked| question(ruby, asked)).collect::<Result<Vec<_>, _>>()?;
    put(ruby, hash, "questions", questions.into_iter())?;
    Ok(hash)
}

fn put<T: IntoValue>(ruby: &Ruby, hash: RHash, name: &str, items: impl Iterator<Item = T>) -> Result<(), Error> {
    let array = ruby.ary_new();
    for item in items {
        array.push(item.into_value_with(ruby))?;
    }
    hash.aset(ruby.to_symbol(name), array)
}

/// Its id and, for each message, the label as JSON and the keys.
fn question(ruby: &Ruby, question: &Question) -> Result<Value, Error> {
    let items = ruby.ary_new();
    for asked in &question.items {
        items.push((&*asked.label, ruby.ary_from_iter(asked.keys.iter().copied())))?;
    }
    Ok((question.id.0, items).into_value_with(ruby))
}

pub fn init(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    let class = module.define_class("Feed", ruby.class_object())?;
    let engine = class.define_class("Engine", ruby.class_object())?;
    engine.undef_default_alloc_func();
    engine.define_singleton_method("spawn", function!(Engine::spawn, 3))?;
    engine.define_singleton_method("frame_of_row", function!(Engine::frame_of_row, 2))?;
    engine.define_singleton_method("unsupported", function!(Engine::unsupported, 2))?;
    engine.define_singleton_method("try", function!(Engine::try_connect, 4))?;
    engine.define_method("connect", method!(Engine::connect, 3))?;
    engine.define_method("disconnect", method!(Engine::disconnect, 1))?;
    engine.define_method("listen", method!(Engine::listen, 1))?;
    engine.define_method("unlisten", method!(Engine::unlisten, 1))?;
    engine.define_method("answer", method!(Engine::answer, 2))?;
    engine.define_method("recipe", method!(Engine::recipe, 3))?;
    engine.define_method("no_recipe", method!(Engine::no_recipe, 3))?;
    engine.define_method("next_reports", method!(Engine::next_reports, 0))?;
    engine.define_method("stop", method!(Engine::stop, 0))?;
    engine.define_method("wait_ended", method!(Engine::wait_ended, 1))?;
    engine.define_method("usable?", method!(Engine::is_usable, 0))?;
    engine.define_method("stats", method!(Engine::stats, 0))
}
