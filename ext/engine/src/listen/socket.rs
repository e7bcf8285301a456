//! The socket to the server, kept from forked children.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{ready, Context, Poll};

use socket2::{Domain, SockAddr, Socket as RawSocket, TcpKeepalive, Type};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::options::Options;
use crate::inherit::{self, Kept};

/// A connection to a server.
#[derive(Debug)]
pub enum Socket {
    /// By an address.
    Tcp(Kept<TcpStream>),
    /// By a path, or an abstract name.
    Unix(Kept<UnixStream>),
}

impl Socket {
    pub(super) async fn tcp(address: SocketAddr, options: &Options) -> io::Result<Self> {
        let stream = inherit::open(|| {
            let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, None)?;
            tune(&socket, options)?;
            begin_connect(&socket, &address.into())?;
            TcpStream::from_std(socket.into())
        })?;
        loop {
            stream.writable().await?;
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            // Readiness may be false; only a connected socket has a peer.
            let connected = stream.try_io(Interest::WRITABLE, || match stream.peer_addr() {
                Err(error) if error.kind() == io::ErrorKind::NotConnected => Err(io::ErrorKind::WouldBlock.into()),
                other => other,
            });
            match connected {
                Ok(_) => return Ok(Self::Tcp(stream)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn unix(path: &str) -> io::Result<Self> {
        let address = match path.strip_prefix('@') {
            Some(name) => SockAddr::unix(format!("\0{name}"))?,
            None => SockAddr::unix(path)?,
        };
        inherit::open(|| {
            let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
            begin_connect(&socket, &address)?;
            UnixStream::from_std(socket.into())
        })
        .map(Self::Unix)
    }
}

fn begin_connect(socket: &RawSocket, address: &SockAddr) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    match socket.connect(address) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Ok(()),
        other => other,
    }
}

fn tune(socket: &RawSocket, options: &Options) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive = options.keepalive;
    if keepalive.enabled {
        let mut wanted = TcpKeepalive::new();
        if let Some(idle) = keepalive.idle {
            wanted = wanted.with_time(idle);
        }
        if let Some(interval) = keepalive.interval {
            wanted = wanted.with_interval(interval);
        }
        if let Some(count) = keepalive.count {
            wanted = wanted.with_retries(count);
        }
        socket.set_keepalive(true)?;
        socket.set_tcp_keepalive(&wanted)?;
    }
    // Elsewhere libpq ignores it too.
    #[cfg(target_os = "linux")]
    if let Some(timeout) = options.tcp_user_timeout {
        socket.set_tcp_user_timeout(Some(timeout))?;
    }
    Ok(())
}

/// Tries `$call` on the stream until it does something else than block.
macro_rules! when_ready {
    ($self:ident, $cx:ident, $ready:ident, |$stream:ident| $call:expr) => {
        loop {
            let result = match &*$self {
                Socket::Tcp($stream) => {
                    ready!($stream.$ready($cx))?;
                    $call
                }
                Socket::Unix($stream) => {
                    ready!($stream.$ready($cx))?;
                    $call
                }
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        when_ready!(self, cx, poll_read_ready, |stream| {
            stream.try_read(buf.initialize_unfilled()).map(|count| buf.advance(count))
        })
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        when_ready!(self, cx, poll_write_ready, |stream| stream.try_write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = match &*self {
            Self::Tcp(stream) => socket2::SockRef::from(&**stream).shutdown(std::net::Shutdown::Write),
            Self::Unix(stream) => socket2::SockRef::from(&**stream).shutdown(std::net::Shutdown::Write),
        };
        Poll::Ready(stream)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use socket2::SockRef;

    use super::*;

    /// What the system says of a socket that was opened with these options.
    fn opened<T>(keywords: &[(&str, &str)], ask: impl FnOnce(SockRef<'_>) -> T) -> T {
        let keywords = keywords.iter().chain(&[("user", "a")]).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let options = Options::parse(Vec::new(), keywords, Vec::new()).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            match Socket::tcp(listener.local_addr().unwrap(), &options).await.unwrap() {
                Socket::Tcp(stream) => ask(SockRef::from(&*stream)),
                Socket::Unix(_) => unreachable!(),
            }
        })
    }

    #[test]
    fn keepalives_are_as_asked_for() {
        let wanted = [("keepalives_idle", "7"), ("keepalives_interval", "3"), ("keepalives_count", "2")];
        opened(&wanted, |socket| {
            assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(7));
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(3));
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), 2);
        });
        assert!(opened(&[], |socket| socket.keepalive().unwrap()));
        assert!(!opened(&[("keepalives", "0")], |socket| socket.keepalive().unwrap()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_timeout_of_unacknowledged_data_is_as_asked_for() {
        let timeout = opened(&[("tcp_user_timeout", "9000")], |socket| socket.tcp_user_timeout().unwrap());
        assert_eq!(timeout, Some(Duration::from_secs(9)));
    }
}
