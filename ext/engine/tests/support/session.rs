//! A session under test, in a runtime like the hub's.
#![allow(dead_code)] // Each test file uses its part.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pgbus_native_engine::listen::{self, ConnectError, Host, Options, OptionsError, Place};
use pgbus_native_engine::log::{Level, Line};
use pgbus_native_engine::session::recipe::{Answer, Recipe, Recipes};
use pgbus_native_engine::session::ruby::RubySession;
use pgbus_native_engine::session::{self, News, Queue, Wishes, NEWS_CAPACITY};
use tokio::sync::mpsc::{channel, unbounded_channel, Receiver};
use tokio::task::LocalSet;
use tokio::time::timeout;

/// No test waits longer for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `test` as the hub runs its session: on one thread.
pub fn on_one_thread<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

/// Options of libpq's keywords, as Ruby resolves them; the one name that has an address is "localhost".
pub fn parse(mut keywords: Vec<(String, String)>, variables: Vec<(String, String)>) -> Result<Options, OptionsError> {
    let mut list = |keyword: &str| -> Vec<String> {
        let at = keywords.iter().rposition(|(other, _)| other == keyword);
        let value = at.map(|at| keywords.remove(at).1);
        keywords.retain(|(other, _)| other != keyword);
        value.map(|value| value.split(',').map(str::to_owned).collect()).unwrap_or_default()
    };
    let (names, addresses, mut ports) = (list("host"), list("hostaddr"), list("port"));
    let password = list("password").join(",");
    let count = names.len().max(addresses.len()).max(1);
    if ports.len() < 2 {
        ports = vec![ports.first().cloned().unwrap_or_default(); count];
    }
    let hosts = (0..count).map(|at| {
        let name = names.get(at).filter(|name| !name.is_empty()).map(String::as_str);
        let place = match (addresses.get(at).filter(|address| !address.is_empty()), name) {
            (Some(address), _) => Place::addresses([address.as_str()])?,
            (None, None) => Place::Folder("/tmp".to_owned()),
            (None, Some(folder)) if folder.starts_with(['/', '@']) => Place::Folder(folder.to_owned()),
            (None, Some("localhost")) => Place::addresses(["127.0.0.1"])?,
            (None, Some(name)) => Place::addresses([name]).unwrap_or_else(|_| Place::Unknown {
                why: format!("could not translate host name \"{name}\" to address"),
            }),
        };
        Host::new(name.map(str::to_owned), place, &ports[at], password.clone().into())
    });
    Options::parse(hosts.collect::<Result<_, _>>()?, keywords, variables)
}

pub fn options(keywords: Vec<(String, String)>) -> Options {
    parse(keywords, Vec::new()).unwrap()
}

/// Connects once, and ends the session again.
pub fn try_connect(options: &Options) -> Result<(), ConnectError> {
    on_one_thread(async { listen::connect(options, &|_| ()).await.map(|_| ()) })
}

/// A session whose recipes are native ones.
fn session(mut recipe: impl FnMut() -> Options + 'static, health_check: Duration) -> session::Session {
    let (answer, answers) = unbounded_channel();
    let recipe = RefCell::new(move || Ok(Recipe::Native(Box::new(recipe()))));
    let ask = move |number| answer.send(Answer { number, recipe: recipe.borrow_mut()() }).unwrap();
    let (_, reports) = unbounded_channel();
    session::Session::new(Recipes::new(ask, answers), RubySession::new(|_| (), reports), health_check)
}

pub struct Session {
    pub wishes: Wishes,
    pub news: Receiver<News>,
    pub lines: Rc<RefCell<Vec<Line>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Session {
    /// To be called in [`on_one_thread`].
    pub async fn start(options: Options, health_check: Duration) -> Self {
        Self::with_wishes(options, health_check, Wishes::new()).await
    }

    pub async fn with_wishes(options: Options, health_check: Duration, wishes: Wishes) -> Self {
        Self::by(move || options.clone(), health_check, wishes).await
    }

    /// By a recipe for each connect.
    pub async fn by(recipe: impl FnMut() -> Options + 'static, health_check: Duration, wishes: Wishes) -> Self {
        let lines = Rc::new(RefCell::new(Vec::new()));
        let log = {
            let lines = lines.clone();
            move |line| lines.borrow_mut().push(line)
        };
        let mut session = session(recipe, health_check);
        let first = session.connect(&log).await.unwrap();
        let (sender, news) = channel(NEWS_CAPACITY);
        let wanted = wishes.clone();
        let task = tokio::task::spawn_local(async move { session.run(first, &wanted, &sender, &log).await });
        Self { wishes, news, lines, task }
    }

    pub async fn next(&mut self) -> News {
        timeout(PATIENCE, self.news.recv()).await.expect("some news in time").expect("a session")
    }

    /// LISTENs and waits for the confirmation; other news before it are lost.
    pub async fn listen(&mut self, name: &str) {
        let queue = queue(name);
        self.wishes.want(&queue);
        self.until(&News::Listening(queue)).await;
    }

    pub async fn until(&mut self, wanted: &News) {
        while self.next().await != *wanted {}
    }

    /// Waits for the loss of the session and gives its reason.
    pub async fn until_down(&mut self) -> String {
        loop {
            if let News::Down { reason } = self.next().await {
                return reason;
            }
        }
    }

    pub fn errors(&self) -> Vec<String> {
        let lines = self.lines.borrow();
        lines.iter().filter(|line| line.level == Level::Error).map(|line| line.text.clone()).collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn queue(name: &str) -> Queue {
    Arc::from(name)
}

pub fn wake(name: &str, payload: Option<&str>) -> News {
    News::Wake { queue: queue(name), payload: payload.map(Arc::from) }
}
