//! The server's messages on their way to tokio-postgres, less what it can't read or would keep for ever.
//!
//! tokio-postgres ends a connection at a NOTIFY whose bytes are no UTF-8, which a SQL_ASCII database sends as they are;
//! it keeps every notice and every setting that a server tells before it is ready, and every setting's name afterwards.
//! So notifications pass with what isn't UTF-8 replaced, settings up to a bound, and notices, which nobody reads, not.

use std::io;
use std::pin::Pin;
use std::task::{ready, Context, Poll};

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const NOTIFICATION: u8 = b'A';
const NOTICE: u8 = b'N';
const SETTING: u8 = b'S';
/// A message's type, and its length without the type.
const HEADER: usize = 5;
/// Bytes of settings that a connection takes; PostgreSQL tells less than 1 KB.
const MOST_SETTINGS: usize = 64 * 1024;
/// PostgreSQL's payloads end at 8,000 bytes, and channels at 64; in UTF-8 they may be longer.
const LONGEST_NOTIFICATION: usize = 64 * 1024;
const READ_BYTES: usize = 16 * 1024;

/// A stream of the server's messages, and of ours.
#[derive(Debug)]
pub struct Messages<S> {
    stream: S,
    /// Bytes that come before the first message: the answer to the request for TLS.
    before: usize,
    message: Message,
    settings: usize,
    incoming: BytesMut,
    passed: BytesMut,
}

/// The message that is under way.
#[derive(Debug, Clone, Copy)]
enum Message {
    Header,
    /// So many bytes of it are to be passed on.
    Passes(usize),
    /// So many bytes of it are to be left out.
    Skipped(usize),
}

impl<S> Messages<S> {
    /// Messages that begin after `before` bytes.
    pub(super) fn new(stream: S, before: usize) -> Self {
        Self {
            stream,
            before,
            message: Message::Header,
            settings: 0,
            incoming: BytesMut::new(),
            passed: BytesMut::new(),
        }
    }

    pub(super) fn get_ref(&self) -> &S {
        &self.stream
    }

    /// The stream below, whose messages have not begun.
    pub(super) fn into_inner(self) -> S {
        self.stream
    }

    /// Moves what is to be passed on.
    fn sort(&mut self) -> io::Result<()> {
        while !self.incoming.is_empty() {
            self.message = match self.message {
                Message::Header => match self.begin()? {
                    Some(message) => message,
                    None => return Ok(()),
                },
                Message::Passes(left) => {
                    let part = left.min(self.incoming.len());
                    self.passed.unsplit(self.incoming.split_to(part));
                    rest(left - part, Message::Passes)
                }
                Message::Skipped(left) => {
                    let part = left.min(self.incoming.len());
                    self.incoming.advance(part);
                    rest(left - part, Message::Skipped)
                }
            };
        }
        Ok(())
    }

    /// What becomes of the next message; None before enough of it is there.
    fn begin(&mut self) -> io::Result<Option<Message>> {
        if self.incoming.len() < HEADER {
            return Ok(None);
        }
        let mut header = &self.incoming[..HEADER];
        let (kind, length) = (header.get_u8(), header.get_u32() as usize + 1);
        Ok(Some(match kind {
            NOTICE => Message::Skipped(length),
            SETTING if self.settings + length > MOST_SETTINGS => Message::Skipped(length),
            SETTING => {
                self.settings += length;
                Message::Passes(length)
            }
            NOTIFICATION if !(HEADER + 4..=LONGEST_NOTIFICATION).contains(&length) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a notification of an impossible length"));
            }
            NOTIFICATION if self.incoming.len() < length => return Ok(None),
            NOTIFICATION => {
                let message = self.incoming.split_to(length);
                match std::str::from_utf8(&message[HEADER + 4..]) {
                    Ok(_) => self.passed.unsplit(message),
                    Err(_) => self.passed.put(readable(&message)),
                }
                Message::Header
            }
            _ => Message::Passes(length),
        }))
    }
}

fn rest(left: usize, message: fn(usize) -> Message) -> Message {
    if left == 0 {
        Message::Header
    } else {
        message(left)
    }
}

/// A notification with U+FFFD in the place of what is no UTF-8.
fn readable(message: &[u8]) -> BytesMut {
    let text = String::from_utf8_lossy(&message[HEADER + 4..]);
    let mut readable = BytesMut::with_capacity(HEADER + 4 + text.len());
    readable.put_u8(NOTIFICATION);
    readable.put_u32((HEADER - 1 + 4 + text.len()) as u32);
    readable.put_slice(&message[HEADER..HEADER + 4]);
    readable.put_slice(text.as_bytes());
    readable
}

impl<S: AsyncRead + Unpin> AsyncRead for Messages<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.before > 0 {
            // No byte more: what comes after it in the clear is no part of what TLS protects.
            let mut byte = [0];
            let mut answer = ReadBuf::new(&mut byte);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut answer))?;
            this.before -= answer.filled().len();
            buf.put_slice(answer.filled());
            return Poll::Ready(Ok(()));
        }
        while this.passed.is_empty() {
            let mut piece = [0; READ_BYTES];
            let mut piece = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut piece))?;
            if piece.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.incoming.extend_from_slice(piece.filled());
            this.sort()?;
        }
        let part = this.passed.len().min(buf.remaining());
        buf.put_slice(&this.passed.split_to(part));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Messages<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
    }

    fn notification(text: &[u8]) -> Vec<u8> {
        message(NOTIFICATION, &[b"\0\0\0\x07", text].concat())
    }

    /// What passes of these bytes, which arrive in pieces of this size.
    fn passed(before: usize, bytes: &[u8], piece: usize) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut server, client) = tokio::io::duplex(piece);
            let sending = async {
                server.write_all(bytes).await.unwrap();
                drop(server);
            };
            let mut passed = Vec::new();
            let mut messages = Messages::new(client, before);
            let (_, read) = tokio::join!(sending, messages.read_to_end(&mut passed));
            read.unwrap();
            passed
        })
    }

    #[test]
    fn what_is_read_passes_as_it_is_and_notices_do_not() {
        let row = message(b'D', &[7; 100_000]);
        let wake = notification("chat\0ü\0".as_bytes());
        let bytes =
            [b"S".to_vec(), row.clone(), message(NOTICE, &[1; 50_000]), wake.clone(), message(b'Z', b"I")].concat();
        let expected = [b"S".to_vec(), row, wake, message(b'Z', b"I")].concat();
        for piece in [1, 7, 4096, 1 << 20] {
            assert!(passed(1, &bytes, piece) == expected, "in pieces of {piece} bytes");
        }
    }

    #[test]
    fn a_notification_that_is_no_utf8_becomes_readable() {
        let bytes = [notification(b"ch\xFFat\0\xE9t\xE9\0"), notification(b"next\0\0")].concat();
        let expected =
            [notification("ch\u{FFFD}at\0\u{FFFD}t\u{FFFD}\0".as_bytes()), notification(b"next\0\0")].concat();
        assert_eq!(passed(0, &bytes, 3), expected);
    }

    /// Invariant 12.
    #[test]
    fn settings_without_end_pass_up_to_a_bound() {
        let settings: Vec<u8> =
            (0..20_000).flat_map(|n| message(SETTING, format!("setting_{n}\0on\0").as_bytes())).collect();
        let passed = passed(0, &[settings, message(b'Z', b"I")].concat(), 4096);
        assert!(passed.len() <= MOST_SETTINGS + 6 && passed.ends_with(&message(b'Z', b"I")));
    }
}
