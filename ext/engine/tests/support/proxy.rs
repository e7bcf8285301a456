//! A TCP proxy in front of a server, in the test's own runtime, that can fall silent without closing anything, hold
//! answers back, and counts what passes.

#![allow(dead_code)] // Each test file uses its part.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::spawn_local;

#[derive(Clone)]
pub struct Proxy {
    pub port: u16,
    state: Rc<State>,
}

struct State {
    /// One for each connection: whether it passes nothing on any more.
    silent: RefCell<Vec<Rc<Cell<bool>>>>,
    held: watch::Sender<bool>,
    requests: RefCell<Vec<u8>>,
    /// Closes the connection on which a client says this.
    cut_at: Cell<Option<&'static str>>,
    /// Pieces of bytes that came from the client, and from the server.
    pieces: Cell<(usize, usize)>,
}

impl Proxy {
    /// To be called in a LocalSet.
    pub async fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = State {
            silent: RefCell::default(),
            held: watch::channel(false).0,
            requests: RefCell::default(),
            cut_at: Cell::default(),
            pieces: Cell::default(),
        };
        let proxy = Self { port: listener.local_addr().unwrap().port(), state: Rc::new(state) };
        let state = proxy.state.clone();
        spawn_local(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { continue };
                let silent = Rc::new(Cell::new(false));
                state.silent.borrow_mut().push(silent.clone());
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                spawn_local(requests(state.clone(), silent.clone(), from_client, to_server));
                spawn_local(answers(state.clone(), silent, from_server, to_client));
            }
        });
        proxy
    }

    /// All connections of now pass nothing any more, and stay open. New ones work.
    pub fn fall_silent(&self) {
        self.state.silent.borrow().iter().for_each(|silent| silent.set(true));
    }

    /// Closes the first connection on which a client says this, in the place of passing it on.
    pub fn cut_at(&self, text: &'static str) {
        self.state.cut_at.set(Some(text));
    }

    /// While held, answers of the server wait here.
    pub fn hold_answers(&self, held: bool) {
        self.state.held.send_replace(held);
    }

    /// What clients said since the last call.
    pub fn requests(&self) -> Vec<u8> {
        self.state.requests.take()
    }

    /// How many pieces came from the client and from the server since the last call.
    pub fn pieces(&self) -> (usize, usize) {
        self.state.pieces.take()
    }
}

async fn requests(state: Rc<State>, silent: Rc<Cell<bool>>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if silent.get() {
            std::future::pending::<()>().await;
        }
        let is_end = |text: &str| buffer[..count].windows(text.len()).any(|window| window == text.as_bytes());
        if state.cut_at.get().is_some_and(is_end) {
            state.cut_at.take();
            break;
        }
        let (clients, servers) = state.pieces.get();
        state.pieces.set((clients + 1, servers));
        state.requests.borrow_mut().extend(&buffer[..count]);
        if to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
}

async fn answers(state: Rc<State>, silent: Rc<Cell<bool>>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let _ = state.held.subscribe().wait_for(|held| !held).await;
        if silent.get() {
            std::future::pending::<()>().await;
        }
        let (clients, servers) = state.pieces.get();
        state.pieces.set((clients, servers + 1));
        if to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
}
