//! A database, a session, filters and browsers, all in memory, each of which does its next step when it is told to. It
//! keeps account of what every browser has to get.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::super::*;
use crate::frame::Frame;
use crate::pump::Offer;
use crate::session::Queue;

/// A message, and what the world decides about it.
#[derive(Debug, Clone, Default)]
pub struct Post {
    pub label: Option<&'static str>,
    pub exclude: Option<u64>,
}

/// What a browser gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Got {
    Row(i64),
    Ephemeral(u64),
}

/// A message that a browser has to get, and (if ephemeral) the row that must not come after it.
#[derive(Debug, Clone, Copy)]
pub struct Due {
    pub got: Got,
    pub not_before: i64,
}

#[derive(Debug)]
pub struct Browser {
    pub number: u64,
    pub stream: usize,
    pub cursor: i64,
    /// Frames that its outlet holds, and ephemeral ones among them.
    pub capacity: (usize, usize),
    pub queued: VecDeque<bool>,
    pub said_full: bool,
    pub refused_ephemeral: bool,
    pub dead: bool,
    pub given_up: Option<Reason>,
    pub got: Vec<Got>,
    pub ephemerals_got: usize,
    pub ephemerals_due: Vec<Due>,
}

#[derive(Debug, Default)]
pub struct Table {
    pub rows: BTreeMap<i64, Post>,
    pub last: i64,
    /// The msg_id up to which rows were ever deleted.
    pub purged: i64,
    /// The last row that a wake which has arrived speaks of.
    pub woken: i64,
}

#[derive(Debug)]
pub struct Read {
    pub id: ReadId,
    pub stream: usize,
    after: i64,
    limit: usize,
    snapshot: Option<Vec<Row>>,
}

/// What the session sends. Of a durable wake: the row that it speaks of.
#[derive(Debug)]
enum Notice {
    Listening(Queue),
    Durable(usize, i64),
    Ephemeral(usize, u64, Post),
    AllMayHaveChanged,
}

#[derive(Debug, Default)]
pub struct Outside {
    pub browsers: BTreeMap<u32, Browser>,
    rooms: VecDeque<u32>,
}

pub struct World {
    pub feed: Feed,
    pub now: Instant,
    pub outside: Outside,
    pub gone: Vec<Browser>,
    pub tables: Vec<Table>,
    pub reads: Vec<Read>,
    pub questions: Vec<Question>,
    pub sent: Vec<(usize, usize, bool)>,
    pub rows_read: usize,
    pub logged: Vec<String>,
    session_up: bool,
    commands: VecDeque<Output>,
    wanted: HashSet<usize>,
    listened: HashSet<usize>,
    notices: VecDeque<Notice>,
    numbers: u64,
}

pub fn visible(label: Option<&str>, number: u64) -> bool {
    match label {
        None | Some("all") => true,
        Some("odd") => number % 2 == 1,
        Some(_) => false,
    }
}

fn text(kind: &str, number: i64, post: &Post) -> String {
    let id = post.exclude.map(|number| format!("c{number}"));
    serde_json::json!({ "html": format!("{kind}{number}"), "visible_to": post.label, "exclude": id }).to_string()
}

fn queue(stream: usize) -> Queue {
    format!("q{stream}").into()
}

pub fn stream_of(name: &str) -> usize {
    name[1..].parse().unwrap()
}

impl Outlets for Outside {
    fn offer(&mut self, key: u32, frame: &Arc<Frame>) -> Offer {
        let browser = self.browsers.get_mut(&key).expect("nothing is offered to a browser that has left");
        if browser.dead {
            return Offer::Closed;
        }
        assert_eq!(browser.given_up, None, "nothing is offered to a browser that was given up");
        let (frames, ephemerals) = browser.capacity;
        let durable = frame.msg_id.is_some();
        let room = if durable { frames } else { ephemerals };
        if browser.queued.iter().filter(|queued| **queued == durable).count() >= room {
            browser.said_full |= durable;
            browser.refused_ephemeral |= !durable;
            return Offer::Full;
        }
        browser.queued.push_back(durable);
        let bytes = std::str::from_utf8(&frame.bytes).unwrap();
        let data = bytes.rsplit_once("data: ").unwrap().1.trim();
        browser.got.push(match frame.msg_id {
            Some(msg_id) => {
                assert_eq!(bytes, format!("id: {msg_id}\nevent: turbo-stream\ndata: r{msg_id}\n\n"));
                Got::Row(msg_id)
            }
            None => {
                browser.ephemerals_got += 1;
                Got::Ephemeral(data[1..].parse().unwrap())
            }
        });
        Offer::Taken
    }
}

impl World {
    pub fn new(streams: usize, limits: Limits) -> Self {
        Self {
            feed: Feed::new(limits),
            now: Instant::now(),
            outside: Outside::default(),
            gone: Vec::new(),
            tables: (0..streams).map(|_| Table::default()).collect(),
            reads: Vec::new(),
            questions: Vec::new(),
            sent: Vec::new(),
            rows_read: 0,
            logged: Vec::new(),
            session_up: true,
            commands: VecDeque::new(),
            wanted: HashSet::new(),
            listened: HashSet::new(),
            notices: VecDeque::new(),
            numbers: 0,
        }
    }

    pub fn handle(&mut self, input: Input) {
        for output in self.feed.handle(self.now, input, &mut self.outside) {
            match output {
                Output::Listen { .. } | Output::Unlisten { .. } => self.commands.push_back(output),
                Output::Read { id, queue, after, limit } => {
                    self.reads.push(Read { id, stream: stream_of(&queue), after, limit, snapshot: None });
                }
                Output::Ask(question) => self.questions.push(question),
                Output::Died { key, reason } => {
                    let browser = self.outside.browsers.get_mut(&key).unwrap();
                    assert_eq!(browser.given_up.replace(reason), None, "given up once");
                }
                Output::Sent { stream, fanout, ephemeral, .. } => {
                    self.sent.push((stream_of(&stream), fanout, ephemeral))
                }
                Output::Log(line) => self.logged.push(line.text),
            }
        }
    }

    pub fn connect(&mut self, stream: usize, cursor: i64, capacity: (usize, usize)) -> u32 {
        let key = (0..).find(|key| !self.outside.browsers.contains_key(key)).unwrap();
        self.numbers += 1;
        let number = self.numbers;
        let browser = Browser {
            number,
            stream,
            cursor,
            capacity,
            queued: VecDeque::new(),
            said_full: false,
            refused_ephemeral: false,
            dead: false,
            given_up: None,
            got: Vec::new(),
            ephemerals_got: 0,
            ephemerals_due: Vec::new(),
        };
        self.outside.browsers.insert(key, browser);
        let (id, name) = (format!("c{number}").into(), format!("s{stream}").into());
        self.handle(Input::Connected(Connect { key, id, stream: name, queue: queue(stream), cursor }));
        key
    }

    pub fn disconnect(&mut self, key: u32) {
        self.handle(Input::Disconnected { key });
        self.gone.extend(self.outside.browsers.remove(&key));
    }

    /// The connection ends, and its owner has not yet said so.
    pub fn cut(&mut self, key: u32) {
        let browser = self.outside.browsers.get_mut(&key).unwrap();
        browser.dead = true;
        if std::mem::take(&mut browser.said_full) {
            self.outside.rooms.push_back(key);
        }
    }

    /// The browser takes some of what its outlet holds.
    pub fn drain(&mut self, key: u32, frames: usize) {
        let browser = self.outside.browsers.get_mut(&key).unwrap();
        browser.queued.drain(..frames.min(browser.queued.len()));
        let durable = browser.queued.iter().filter(|durable| **durable).count();
        if browser.said_full && !browser.dead && durable <= browser.capacity.0 / 2 {
            browser.said_full = false;
            self.outside.rooms.push_back(key);
        }
    }

    pub fn commit(&mut self, stream: usize, post: Post) {
        let table = &mut self.tables[stream];
        table.last += 1;
        table.rows.insert(table.last, post);
        if self.session_up && self.listened.contains(&stream) {
            self.notices.push_back(Notice::Durable(stream, table.last));
        }
    }

    pub fn notify(&mut self, stream: usize, post: Post) -> u64 {
        self.numbers += 1;
        if self.session_up && self.listened.contains(&stream) {
            self.notices.push_back(Notice::Ephemeral(stream, self.numbers, post));
        }
        self.numbers
    }

    pub fn purge(&mut self, stream: usize, up_to: i64) {
        let table = &mut self.tables[stream];
        table.purged = table.purged.max(up_to.min(table.last));
        table.rows.retain(|msg_id, _| *msg_id > table.purged);
    }

    pub fn lose_session(&mut self) {
        self.session_up = false;
        self.listened.clear();
        self.notices.retain(|notice| matches!(notice, Notice::Listening(_)));
    }

    /// The session comes back and listens to all that it was told to. Returns false if it was there.
    pub fn restore_session(&mut self) -> bool {
        if self.session_up {
            return false;
        }
        self.session_up = true;
        self.listened = self.wanted.clone();
        self.notices.push_back(Notice::AllMayHaveChanged);
        true
    }

    /// The session does the next thing that it was told to. Returns false if there is none.
    pub fn command(&mut self) -> bool {
        if !self.session_up {
            return false;
        }
        match self.commands.pop_front() {
            Some(Output::Listen { queue }) => {
                self.wanted.insert(stream_of(&queue));
                self.listened.insert(stream_of(&queue));
                self.notices.push_back(Notice::Listening(queue));
            }
            Some(Output::Unlisten { queue }) => {
                self.wanted.remove(&stream_of(&queue));
                self.listened.remove(&stream_of(&queue));
            }
            _ => return false,
        }
        true
    }

    /// The next notice of the session arrives. Returns false if there is none.
    pub fn notice(&mut self) -> bool {
        let Some(notice) = self.notices.pop_front() else { return false };
        match notice {
            Notice::Listening(queue) => self.handle(Input::Listening { queue }),
            Notice::Durable(stream, msg_id) => {
                self.tables[stream].woken = self.tables[stream].woken.max(msg_id);
                self.handle(Input::Wake { queue: queue(stream), payload: None });
            }
            Notice::Ephemeral(stream, number, post) => {
                let due = Due { got: Got::Ephemeral(number), not_before: self.tables[stream].woken };
                for browser in self.outside.browsers.values_mut() {
                    if browser.stream == stream && browser.may_see(&post) {
                        browser.ephemerals_due.push(due);
                    }
                }
                let payload = Some(text("e", number as i64, &post).into());
                self.handle(Input::Wake { queue: queue(stream), payload });
            }
            Notice::AllMayHaveChanged => {
                self.tables.iter_mut().for_each(|table| table.woken = table.last);
                self.handle(Input::AllMayHaveChanged);
            }
        }
        true
    }

    /// The database executes a read; its answer is on its way.
    pub fn execute(&mut self, index: usize) {
        let read = &mut self.reads[index];
        let rows = self.tables[read.stream].rows.range(read.after.saturating_add(1)..).take(read.limit);
        let rows = rows.map(|(msg_id, post)| Row { msg_id: *msg_id, message: text("r", *msg_id, post).into() });
        read.snapshot.get_or_insert_with(|| rows.collect());
    }

    pub fn answer_read(&mut self, index: usize) {
        self.execute(index);
        let read = self.reads.remove(index);
        let rows = read.snapshot.unwrap_or_default();
        self.rows_read += rows.len();
        self.handle(Input::Rows { read: read.id, rows: Ok(rows) });
    }

    pub fn fail_read(&mut self, index: usize) {
        let read = self.reads.remove(index);
        self.handle(Input::Rows { read: read.id, rows: Err("no more connections".into()) });
    }

    /// The filters are asked about the connections that the keys mean now.
    pub fn answer_question(&mut self, index: usize) {
        let question = self.questions.remove(index);
        let verdict = |label: &str, key: &u32| {
            let number = self.outside.browsers.get(key).map(|browser| browser.number);
            number.is_some_and(|number| visible(serde_json::from_str(label).unwrap(), number))
        };
        let item = |asked: &Asked| asked.keys.iter().map(|key| verdict(&asked.label, key)).collect();
        let verdicts = question.items.iter().map(item).collect();
        self.handle(Input::Answers { question: question.id, verdicts });
    }

    /// The next outlet says that it has room. Returns false if none does.
    pub fn room(&mut self) -> bool {
        let Some(key) = self.outside.rooms.pop_front() else { return false };
        self.handle(Input::Room { key });
        true
    }

    /// Time passes until something is due. Returns false if nothing is.
    pub fn tick(&mut self) -> bool {
        let Some(deadline) = self.feed.deadline() else { return false };
        self.now = deadline.max(self.now);
        self.handle(Input::Tick);
        true
    }

    /// Everybody does all that there is to do.
    pub fn settle(&mut self) {
        self.restore_session();
        for _ in 0..200_000 {
            for key in self.outside.browsers.keys().copied().collect::<Vec<_>>() {
                self.drain(key, usize::MAX);
            }
            let did = self.command() || self.notice() || self.room();
            if did {
                continue;
            }
            if !self.reads.is_empty() {
                self.answer_read(0);
            } else if !self.questions.is_empty() {
                self.answer_question(0);
            } else if !self.tick() {
                return;
            }
        }
        panic!("the feed never comes to rest");
    }
}
