//! `PgbusNative::MasterHub::Engine`: the hub that `PgbusNative::MasterHub` holds.

use std::ffi::OsString;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use magnus::{function, method, prelude::*, Error, ExceptionClass, RArray, RClass, RHash, RModule, RString, Ruby};
use pgbus_native_engine::hub::{self, Event, Hub, Limits, Notice, Options, Session, StartError};
use pgbus_native_engine::inherit;
use pgbus_native_engine::listen::ConnectError;
use pgbus_native_engine::session::recipe::Recipe;
use pgbus_native_engine::session::ruby::{Happened, Order, Report};

use crate::{argument, gvl, recipe, system_call};

#[magnus::wrap(class = "PgbusNative::MasterHub::Engine", free_immediately)]
struct Engine {
    hub: ManuallyDrop<Hub>,
    generation: u32,
    /// For error messages.
    socket_path: String,
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.is_inherited() {
            self.hub.stop();
            // SAFETY: dropped once, here, and in the process that made it.
            unsafe { ManuallyDrop::drop(&mut self.hub) };
        }
    }
}

impl Engine {
    fn spawn(
        ruby: &Ruby,
        path: RString,
        status_interval: f64,
        durable: usize,
        hard: usize,
        health_check: f64,
        recipes: bool,
    ) -> Result<Self, Error> {
        // SAFETY: the bytes are copied before Ruby runs again.
        let path = unsafe { path.as_slice() }.to_vec();
        let socket_path = String::from_utf8_lossy(&path).into_owned();
        let options = Options {
            socket_path: PathBuf::from(OsString::from_vec(path)),
            status_interval: argument::seconds(ruby, status_interval)?,
            limits: Limits { durable, hard },
            health_check: argument::seconds(ruby, health_check)?,
            session: if recipes { Session::Recipes } else { Session::Ruby },
        };
        let hub =
            Hub::spawn(options).map_err(|error| start_error(ruby, &StartError::System(error), "the hub's thread"))?;
        Ok(Self { hub: ManuallyDrop::new(hub), generation: inherit::generation(), socket_path })
    }

    /// Whether it belongs to a parent of this process.
    fn is_inherited(&self) -> bool {
        self.generation != inherit::generation()
    }

    /// Waits for the start: true, or false if it was stopped meanwhile, or an error.
    fn wait_started(ruby: &Ruby, rb_self: &Self) -> Result<bool, Error> {
        match gvl::wait(ruby, |interrupt| rb_self.hub.started(interrupt))? {
            Ok(()) => Ok(true),
            Err(StartError::Stopped) => Ok(false),
            Err(error) => Err(start_error(ruby, &error, &format!("hub socket {}", rb_self.socket_path))),
        }
    }

    fn stop(&self) {
        self.hub.stop();
    }

    /// Waits for the end, so many seconds at most. Gives whether it came.
    fn wait_ended(ruby: &Ruby, rb_self: &Self, timeout: f64) -> Result<bool, Error> {
        let timeout = argument::seconds(ruby, timeout)?;
        let ended = gvl::wait_once(|interrupt| Some(rb_self.hub.ended(timeout, interrupt)))?;
        gvl::check_interrupts(ruby)?;
        Ok(ended.unwrap_or(false))
    }

    /// `[:log, level, text]`, `[:notice, event, details]`, `[:recipe_needed, number]`, an order to the Ruby session of a
    /// recipe (`[:open_session, number, because]`, `[:listen, queue]`, `[:unlisten, queue]`, `[:close_session]`), or one to
    /// that of a factory (`[:ensure_listening, worker, queue]`, `[:remove_listening, queue]`); nil at the end.
    fn next_event(ruby: &Ruby, rb_self: &Self) -> Result<Option<RArray>, Error> {
        let event = gvl::wait(ruby, |interrupt| rb_self.hub.next_event(interrupt).ok())?;
        let array = ruby.ary_new();
        match event {
            None => return Ok(None),
            Some(Event::Log(line)) => {
                array.push(ruby.to_symbol("log"))?;
                array.push(ruby.to_symbol(line.level.name()))?;
                array.push(line.text)?;
            }
            Some(Event::Notice(notice)) => {
                array.push(ruby.to_symbol("notice"))?;
                let details = ruby.hash_new();
                array.push(ruby.to_symbol(match notice {
                    Notice::Evicted { worker, waiting } => {
                        details.aset(ruby.to_symbol("worker"), worker)?;
                        details.aset(ruby.to_symbol("waiting"), waiting)?;
                        "evicted"
                    }
                    Notice::SessionLost { reason } => {
                        details.aset(ruby.to_symbol("reason"), reason)?;
                        "session_lost"
                    }
                    Notice::SessionRestored => "session_restored",
                }))?;
                array.push(details)?;
            }
            Some(Event::RecipeNeeded { number }) => {
                array.push(ruby.to_symbol("recipe_needed"))?;
                array.push(number)?;
            }
            Some(Event::Order(order)) => push_order(ruby, array, order)?,
            Some(Event::EnsureListening { worker, queue }) => {
                array.push(ruby.to_symbol("ensure_listening"))?;
                array.push(worker)?;
                array.push(&*queue)?;
            }
            Some(Event::RemoveListening { queue }) => {
                array.push(ruby.to_symbol("remove_listening"))?;
                array.push(&*queue)?;
            }
        }
        Ok(Some(array))
    }

    fn wake(ruby: &Ruby, rb_self: &Self, queue: String, payload: Option<String>) -> Result<(), Error> {
        let (queue, payload): (Arc<str>, Option<Arc<str>>) = (queue.into(), payload.map(Into::into));
        gvl::wait(ruby, |interrupt| rb_self.hub.wake(queue.clone(), payload.clone(), interrupt).ok())
    }

    fn answer(&self, worker: u64, queue: String, failure: Option<String>) {
        self.hub.answer(worker, queue.into(), failure);
    }

    fn tell_session(&self, up: bool) {
        self.hub.session_is(up);
    }

    /// Answers `:recipe_needed`: hosts, keywords and variables, as `ConnectionOptions` resolves them. Options that the
    /// native session can't honour make a Ruby session.
    fn recipe(&self, number: u64, hosts: RArray, keywords: RHash, variables: RArray) -> Result<(), Error> {
        let recipe = recipe::made_of(hosts, keywords, variables)?;
        self.hub.recipe(number, recipe);
        Ok(())
    }

    /// Answers `:recipe_needed`: a Ruby session.
    fn ruby_recipe(&self, number: u64, because: String) {
        self.hub.recipe(number, Ok(Recipe::Ruby { because }));
    }

    /// Answers `:recipe_needed`: there is none.
    fn no_recipe(&self, number: u64, reason: String) {
        self.hub.recipe(number, Err(reason));
    }

    fn session_connected(&self, number: u64) {
        self.hub.report(Report { number, happened: Happened::Connected });
    }

    /// The first order that the session has not answered yet is carried out, or refused.
    fn session_did(&self, number: u64, failure: Option<String>) {
        self.hub.report(Report { number, happened: Happened::Done { failure } });
    }

    fn session_lost(&self, number: u64, reason: String) {
        self.hub.report(Report { number, happened: Happened::Lost { reason } });
    }

    fn dropped_durable_wakes(&self) -> u64 {
        self.hub.stats().dropped_durable_wakes.get()
    }

    fn evicted_workers(&self) -> u64 {
        self.hub.stats().evicted_workers.get()
    }

    fn stats(ruby: &Ruby, rb_self: &Self) -> Result<RHash, Error> {
        let (stats, hash) = (rb_self.hub.stats(), ruby.hash_new());
        let figures = [
            ("workers", &stats.workers),
            ("subscriptions", &stats.subscriptions),
            ("queued_frames", &stats.queued_frames),
            ("wakes_in", &stats.wakes_in),
            ("frames_out", &stats.frames_out),
            ("dropped_durable_wakes", &stats.dropped_durable_wakes),
            ("evicted_workers", &stats.evicted_workers),
            ("reconnects", &stats.reconnects),
        ];
        for (name, figure) in figures {
            hash.aset(ruby.to_symbol(name), figure.get())?;
        }
        hash.aset(ruby.to_symbol("connected_since_ms"), stats.connected_since_ms())?;
        Ok(hash)
    }
}

fn push_order(ruby: &Ruby, array: RArray, order: Order) -> Result<(), Error> {
    match order {
        Order::Connect { number, because } => {
            array.push(ruby.to_symbol("open_session"))?;
            array.push(number)?;
            array.push(because)
        }
        Order::Listen(queue) => {
            array.push(ruby.to_symbol("listen"))?;
            array.push(&*queue)
        }
        Order::Unlisten(queue) => {
            array.push(ruby.to_symbol("unlisten"))?;
            array.push(&*queue)
        }
        Order::Close => array.push(ruby.to_symbol("close_session")),
    }
}

fn engine_error(ruby: &Ruby, name: &str, error: &dyn std::error::Error) -> Error {
    let class = ruby.class_object().const_get::<_, RModule>("PgbusNative").and_then(|module| {
        module
            .const_get::<_, RClass>("MasterHub")?
            .const_get::<_, RClass>("Engine")?
            .const_get::<_, ExceptionClass>(name)
    });
    class.map_or_else(|missing| missing, |class| Error::new(class, error.to_string()))
}

/// As Ruby's own sockets raise it. `what` failed, if the system says so.
fn start_error(ruby: &Ruby, error: &StartError, what: &str) -> Error {
    match error {
        StartError::PathTooLong { .. } => Error::new(ruby.exception_arg_error(), error.to_string()),
        StartError::Socket(socket) => system_error(ruby, error, &socket.what(), socket.errno()),
        StartError::System(system) => system_error(ruby, error, what, system.raw_os_error()),
        StartError::Connect(ConnectError::Failed(_) | ConnectError::Unsupported { .. }) => {
            engine_error(ruby, "ConnectionFailed", error)
        }
        StartError::Connect(ConnectError::Replica) => engine_error(ruby, "Replica", error),
        StartError::Stopped => Error::new(ruby.exception_runtime_error(), error.to_string()),
    }
}

fn system_error(ruby: &Ruby, error: &StartError, what: &str, errno: Option<i32>) -> Error {
    errno.map_or_else(
        || Error::new(ruby.exception_io_error(), error.to_string()),
        |errno| system_call::error(ruby, what, errno),
    )
}

pub fn init(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    let class = module.define_class("MasterHub", ruby.class_object())?;
    let engine = class.define_class("Engine", ruby.class_object())?;
    engine.undef_default_alloc_func();
    engine.const_set("REBROADCAST_TICKS", hub::REBROADCAST_TICKS)?;
    for name in ["ConnectionFailed", "Replica"] {
        engine.define_error(name, ruby.exception_standard_error())?;
    }
    engine.define_singleton_method("spawn", function!(Engine::spawn, 6))?;
    engine.define_method("inherited?", method!(Engine::is_inherited, 0))?;
    engine.define_method("wait_started", method!(Engine::wait_started, 0))?;
    engine.define_method("stop", method!(Engine::stop, 0))?;
    engine.define_method("wait_ended", method!(Engine::wait_ended, 1))?;
    engine.define_method("next_event", method!(Engine::next_event, 0))?;
    engine.define_method("wake", method!(Engine::wake, 2))?;
    engine.define_method("answer", method!(Engine::answer, 3))?;
    engine.define_method("tell_session", method!(Engine::tell_session, 1))?;
    engine.define_method("recipe", method!(Engine::recipe, 4))?;
    engine.define_method("ruby_recipe", method!(Engine::ruby_recipe, 2))?;
    engine.define_method("no_recipe", method!(Engine::no_recipe, 2))?;
    engine.define_method("session_connected", method!(Engine::session_connected, 1))?;
    engine.define_method("session_did", method!(Engine::session_did, 2))?;
    engine.define_method("session_lost", method!(Engine::session_lost, 2))?;
    engine.define_method("dropped_durable_wakes", method!(Engine::dropped_durable_wakes, 0))?;
    engine.define_method("evicted_workers", method!(Engine::evicted_workers, 0))?;
    engine.define_method("stats", method!(Engine::stats, 0))
}
