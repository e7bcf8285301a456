//! One task for each worker: reads its requests, writes what its socket did not take at once, and notices when it reads
//! nothing.
//!
//! Every turn ends with a `yield_now`. Readiness costs nothing of tokio's budget for a task, so a worker that talks, or
//! reads, without end would otherwise keep the thread.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{Interest, Ready};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::router::{Input, SharedRouter};
use super::worker::Worker;
use crate::wire::Decoder;

/// Bytes that are read from one worker before the others have their turn.
const READ_BYTES: usize = 4 * 1024;
/// Between two probes of a worker that is over its limit.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

thread_local! {
    static BUFFER: RefCell<[u8; READ_BYTES]> = const { RefCell::new([0; READ_BYTES]) };
}

/// Serves a worker until it goes or is disconnected.
pub async fn serve(router: SharedRouter, worker: Rc<Worker>) {
    let _gone = Gone { router: &router, worker: &worker };
    let mut decoder = Decoder::default();
    loop {
        take_requests(&router, &worker, &mut decoder);
        if !worker.is_open() {
            return;
        }
        // Nothing may be awaited in between: a request that was held back is taken when the watch changes.
        match next(&worker).await {
            Turn::Ready(Err(_)) => return,
            Turn::Ready(Ok(ready)) => {
                if ready.is_writable() {
                    router.borrow_mut().handle([Input::Writable(worker.clone())]);
                }
                if ready.is_readable() && worker.may_ask() && read(&worker, &mut decoder).is_err() {
                    return;
                }
            }
            Turn::Changed => {}
            Turn::Probe => router.borrow_mut().handle([Input::Probe(worker.clone())]),
        }
        // They are answered before the others have their turn.
        take_requests(&router, &worker, &mut decoder);
        yield_now().await;
    }
}

/// What a task's turn is for.
enum Turn {
    Ready(io::Result<Ready>),
    /// Something else is to be waited for now, or requests that were held back may be taken.
    Changed,
    Probe,
}

async fn next(worker: &Worker) -> Turn {
    let watch = worker.watch();
    worker.watched.set(watch);
    let ready = async {
        match (watch.readable, watch.writable) {
            (true, true) => worker.stream.ready(Interest::READABLE | Interest::WRITABLE).await,
            (true, false) => worker.stream.ready(Interest::READABLE).await,
            (false, true) => worker.stream.ready(Interest::WRITABLE).await,
            (false, false) => std::future::pending().await,
        }
    };
    tokio::select! {
        ready = ready => Turn::Ready(ready),
        () = worker.wakeup.notified() => Turn::Changed,
        () = sleep(PROBE_INTERVAL), if watch.probe => Turn::Probe,
    }
}

/// Has the router handle the requests that are there, as far as the worker may ask.
fn take_requests(router: &SharedRouter, worker: &Rc<Worker>, decoder: &mut Decoder) {
    router.borrow_mut().handle(std::iter::from_fn(|| next_request(worker, decoder)));
}

/// The next whole request, as long as the worker may ask.
fn next_request(worker: &Rc<Worker>, decoder: &mut Decoder) -> Option<Input> {
    if !worker.may_ask() {
        return None;
    }
    decoder.next_request().transpose().map(|request| Input::Request(worker.clone(), request))
}

/// Reads what is there. The end of the stream is an error.
fn read(worker: &Worker, decoder: &mut Decoder) -> io::Result<()> {
    BUFFER.with_borrow_mut(|buffer| match worker.stream.try_read(buffer) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(length) => {
            decoder.push(&buffer[..length]);
            Ok(())
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(()),
        Err(error) => Err(error),
    })
}

/// Forgets the worker when its task ends, also by a panic.
struct Gone<'a> {
    router: &'a SharedRouter,
    worker: &'a Rc<Worker>,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.router.borrow_mut().handle([Input::Gone(self.worker.clone())]);
    }
}
