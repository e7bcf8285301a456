//! One task for each worker: reads its requests, and writes what its socket did not take at once.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use tokio::io::Interest;

use super::router::Router;
use super::worker::Worker;
use crate::wire::Decoder;

/// Bytes that are read from one worker before the others have their turn.
const READ_BYTES: usize = 8 * 1024;

thread_local! {
    static BUFFER: RefCell<[u8; READ_BYTES]> = const { RefCell::new([0; READ_BYTES]) };
}

/// Serves a worker until it goes or is severed.
pub async fn serve(router: Rc<Router>, worker: Rc<Worker>) {
    let _gone = Gone { router: &router, worker: &worker };
    let mut decoder = Decoder::default();
    loop {
        let all_handled = handle(&router, &worker, &mut decoder);
        router.flush();
        if !worker.is_open() {
            return;
        }
        if !all_handled && worker.may_ask() {
            tokio::task::yield_now().await;
            continue;
        }
        let interest = match (worker.may_ask(), worker.is_waiting()) {
            (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
            (true, false) => Some(Interest::READABLE),
            (false, true) => Some(Interest::WRITABLE),
            (false, false) => None,
        };
        let ready = async {
            match interest {
                Some(interest) => worker.stream.ready(interest).await,
                None => std::future::pending().await,
            }
        };
        let ready = tokio::select! {
            ready = ready => ready,
            () = worker.look.notified() => continue,
        };
        match ready {
            Ok(ready) => {
                if ready.is_writable() {
                    router.flush_worker(&worker);
                }
                if ready.is_readable() && worker.may_ask() && read(&worker, &mut decoder).is_err() {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

/// Handles the requests that are there, as long as the worker may ask. Gives whether more bytes are needed.
fn handle(router: &Router, worker: &Rc<Worker>, decoder: &mut Decoder) -> bool {
    while worker.is_open() && worker.may_ask() {
        match decoder.next_request() {
            Ok(Some(request)) => router.request(worker, request),
            Ok(None) => return true,
            Err(error) => {
                router.protocol_error(worker, &error);
                return true;
            }
        }
    }
    false
}

/// Takes what is there; an error at the end of the stream, too.
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
    router: &'a Router,
    worker: &'a Rc<Worker>,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.router.sever(self.worker);
    }
}
