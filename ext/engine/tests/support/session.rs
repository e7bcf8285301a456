//! A session under test, in a runtime like the hub's.
#![allow(dead_code)] // Each test file uses its part.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pgbus_native_engine::listen::{self, ConnectError, Options};
use pgbus_native_engine::log::{Level, Line};
use pgbus_native_engine::session::{News, Queue, Wishes, NEWS_CAPACITY};
use tokio::sync::mpsc::{channel, Receiver};
use tokio::task::LocalSet;
use tokio::time::timeout;

/// No test waits longer for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `test` as the hub runs its session: on one thread.
pub fn on_one_thread<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

pub fn options(keywords: Vec<(String, String)>) -> Options {
    Options::parse(keywords, Vec::new()).unwrap()
}

/// Connects once, and ends the session again.
pub fn try_connect(options: &Options) -> Result<(), ConnectError> {
    on_one_thread(async { listen::connect(options, &|_| ()).await.map(|_| ()) })
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
        let lines = Rc::new(RefCell::new(Vec::new()));
        let log = {
            let lines = lines.clone();
            move |line| lines.borrow_mut().push(line)
        };
        let first = listen::connect(&options, &log).await.unwrap();
        let (sender, news) = channel(NEWS_CAPACITY);
        let wanted = wishes.clone();
        let task = tokio::task::spawn_local(async move {
            listen::run(first, &options, health_check, &wanted, &sender, &log).await;
        });
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
