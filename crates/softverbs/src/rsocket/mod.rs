//! Sockets over RDMA: librdmacm's rsockets, byte for byte on the wire.
//!
//! [`RSocket`] has the calls of a socket and their meaning; what it sends is written straight into
//! the peer's receive buffer. Streams run over either transport; datagrams over RoCE. The peer may
//! be a program of this crate or one of rdma-core's library.
//!
//! ```
//! use softverbs::rsocket::{Family, RSocket};
//! use std::io::{Read, Write};
//!
//! let listener = RSocket::stream(Family::V4)?;
//! listener.bind("127.0.0.1:0".parse().unwrap())?;
//! listener.listen(8)?;
//! let address = listener.local_addr()?;
//! let server = std::thread::spawn(move || -> std::io::Result<()> {
//!     let (mut socket, _peer) = listener.accept()?;
//!     std::io::copy(&mut &socket, &mut &socket)?; // an echo, until the peer ends its direction
//!     socket.flush()
//! });
//!
//! let mut socket = RSocket::stream(Family::V4)?;
//! socket.connect(address)?;
//! socket.write_all(b"hello")?;
//! socket.shutdown(std::net::Shutdown::Write)?;
//! let mut echo = String::new();
//! socket.read_to_string(&mut echo)?;
//! assert_eq!(echo, "hello");
//! server.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! One thread may send while another receives. Waiting threads do the work of their connections;
//! while a program does not call, the library's own thread does.
//!
//! `stream.rs` is a stream's life, `progress.rs` its work, `endpoint.rs` its verbs objects, `transfer.rs` sending and
//! receiving, `datagram.rs` datagram sockets, `wait.rs` and `poll.rs` waiting.

mod datagram;
mod endpoint;
mod iomap;
mod keepalive;
mod option;
mod poll;
mod progress;
mod stream;
mod transfer;
mod wait;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex};

use nix::poll::PollFlags;

use self::datagram::DatagramSocket;
use self::iomap::Mappings;
pub use self::option::{RSockOpt, RSockOptName};
pub use self::poll::{PollEntry, PollSource, poll};
use self::stream::{StreamSocket, errno};
pub use self::transfer::MsgFlags;
use self::wait::Waiters;
use crate::device::Transport;
use crate::error::Result;

/// The family of a socket's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    fn check(self, address: SocketAddr) -> Result<()> {
        if (self == Self::V6) == address.is_ipv6() {
            Ok(())
        } else {
            Err(errno("rsocket", libc::EAFNOSUPPORT))
        }
    }

    fn unspecified(self) -> SocketAddr {
        match self {
            Self::V4 => (Ipv4Addr::UNSPECIFIED, 0).into(),
            Self::V6 => (Ipv6Addr::UNSPECIFIED, 0).into(),
        }
    }
}

/// A socket over RDMA. Dropping it closes it.
pub struct RSocket {
    kind: Kind,
    mappings: Mutex<Mappings>,
}

enum Kind {
    Stream(Arc<StreamSocket>),
    Datagram(Arc<DatagramSocket>),
}

impl Kind {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Stream(socket) => socket.fd(),
            Self::Datagram(socket) => socket.fd(),
        }
    }

    fn waiters(&self) -> &Waiters {
        match self {
            Self::Stream(socket) => &socket.waiters,
            Self::Datagram(socket) => &socket.waiters,
        }
    }

    fn look(&self, wanted: PollFlags, arm: bool) -> Result<PollFlags> {
        match self {
            Self::Stream(socket) => {
                let mut state = socket.lock();
                socket.progress(&mut state);
                if arm {
                    socket.arm(&mut state)?;
                }
                Ok(socket.events(&state, wanted))
            }
            Self::Datagram(socket) => socket.look(wanted, arm),
        }
    }
}

impl RSocket {
    /// A stream socket (SOCK_STREAM). EMFILE if no file descriptor is left.
    pub fn stream(family: Family) -> Result<Self> {
        Ok(Self::of(Kind::Stream(StreamSocket::new(family)?)))
    }

    /// A datagram socket (SOCK_DGRAM). Datagrams run over RoCE.
    pub fn datagram(family: Family) -> Result<Self> {
        Ok(Self::of(Kind::Datagram(DatagramSocket::new(family)?)))
    }

    fn of(kind: Kind) -> Self {
        Self {
            kind,
            mappings: Mutex::default(),
        }
    }

    fn as_stream(&self) -> Result<&Arc<StreamSocket>> {
        match &self.kind {
            Kind::Stream(socket) => Ok(socket),
            Kind::Datagram(_) => Err(errno("rsocket", libc::EOPNOTSUPP)),
        }
    }

    /// Whether it is a datagram socket.
    pub fn is_datagram(&self) -> bool {
        matches!(self.kind, Kind::Datagram(_))
    }

    /// Chooses the transport of a stream, before anything else. Without this it is that of
    /// [`CmOption::Transport`](crate::cm::CmOption::Transport).
    pub fn set_transport(&self, transport: Transport) -> Result<()> {
        self.as_stream()?.set_transport(transport)
    }

    /// Binds to a local address; port 0 is a free one. EADDRINUSE, EADDRNOTAVAIL, EACCES as for
    /// other sockets; EAFNOSUPPORT for the wrong family; EINVAL if bound already.
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        match &self.kind {
            Kind::Stream(socket) => socket.bind(address),
            Kind::Datagram(socket) => socket.bind(address),
        }
    }

    /// Listens for connections; up to `backlog` wait for [`accept`](Self::accept).
    pub fn listen(&self, backlog: i32) -> Result<()> {
        self.as_stream()?.listen(backlog)
    }

    /// Takes the next connection, and waits for one; EAGAIN if there is none and the socket does
    /// not wait. The new socket has the options of this one, but waits.
    pub fn accept(&self) -> Result<(Self, SocketAddr)> {
        let (socket, address) = self.as_stream()?.accept()?;
        Ok((Self::of(Kind::Stream(socket)), address))
    }

    /// Connects. A stream that does not wait fails with EINPROGRESS, and is writable when the
    /// attempt has ended; [`take_error`](Self::take_error) tells how. ECONNREFUSED, ETIMEDOUT,
    /// ENETUNREACH and others as for other sockets; EPROTO if the peer does not speak rsockets.
    ///
    /// A datagram socket only sends to and receives from this address from now on.
    pub fn connect(&self, address: SocketAddr) -> Result<()> {
        match &self.kind {
            Kind::Stream(socket) => socket.connect(address),
            Kind::Datagram(socket) => socket.connect(address),
        }
    }

    /// Sends, and waits until all of it is on its way, the socket does not wait, or the
    /// connection ends; returns how much is. EAGAIN: nothing, without waiting; EPIPE: this
    /// direction was shut down; ECONNRESET: by the peer.
    pub fn send(&self, data: &[u8], flags: MsgFlags) -> Result<usize> {
        self.send_vectored(&[IoSlice::new(data)], flags)
    }

    /// As [`send`](Self::send), from several buffers.
    pub fn send_vectored(&self, data: &[IoSlice<'_>], flags: MsgFlags) -> Result<usize> {
        match &self.kind {
            Kind::Stream(socket) => socket.send(data, flags),
            Kind::Datagram(socket) => socket.send(data, None, flags),
        }
    }

    /// Sends a datagram. EMSGSIZE if it is too long for one packet; EISCONN on a stream.
    pub fn send_to(
        &self,
        data: &[IoSlice<'_>],
        address: SocketAddr,
        flags: MsgFlags,
    ) -> Result<usize> {
        match &self.kind {
            Kind::Stream(_) => Err(errno("rsendto", libc::EISCONN)),
            Kind::Datagram(socket) => socket.send(data, Some(address), flags),
        }
    }

    /// Receives what has arrived, and waits until something has. 0: the peer sends no more.
    /// EAGAIN: nothing has, without waiting; ECONNRESET: the connection was lost, after
    /// everything that had arrived was read. Of a datagram, what does not fit is lost.
    pub fn recv(&self, buffer: &mut [u8], flags: MsgFlags) -> Result<usize> {
        self.recv_vectored(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// As [`recv`](Self::recv), into several buffers.
    pub fn recv_vectored(&self, buffers: &mut [IoSliceMut<'_>], flags: MsgFlags) -> Result<usize> {
        match &self.kind {
            Kind::Stream(socket) => socket.recv(buffers, flags),
            Kind::Datagram(socket) => socket.recv(buffers, flags).map(|(len, _)| len),
        }
    }

    /// As [`recv_vectored`](Self::recv_vectored), and tells whom it is from.
    pub fn recv_from(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        flags: MsgFlags,
    ) -> Result<(usize, SocketAddr)> {
        match &self.kind {
            Kind::Stream(socket) => {
                let len = socket.recv(buffers, flags)?;
                Ok((len, socket.peer_addr()?))
            }
            Kind::Datagram(socket) => socket.recv(buffers, flags),
        }
    }

    /// Ends a direction, or both. What was sent is delivered. ENOTCONN if there is no connection.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        use softverbs_proto::rsocket::Shutdown as Direction;
        self.as_stream()?.shutdown(match how {
            Shutdown::Read => Direction::Read,
            Shutdown::Write => Direction::Write,
            Shutdown::Both => Direction::Both,
        })
    }

    /// Closes the socket whatever other threads do with it; their calls fail with EBADF. Waits
    /// until the peer has got what was sent, up to [`RSockOpt::Linger`].
    pub fn close(&self) {
        match &self.kind {
            Kind::Stream(socket) => socket.close(),
            Kind::Datagram(socket) => socket.close(),
        }
        iomap::forget(&self.mappings);
    }

    /// Its own address; the unspecified one while it has none.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        match &self.kind {
            Kind::Stream(socket) => socket.local_addr(),
            Kind::Datagram(socket) => socket.local_addr(),
        }
    }

    /// The peer's address. ENOTCONN if there is none.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        match &self.kind {
            Kind::Stream(socket) => socket.peer_addr(),
            Kind::Datagram(socket) => socket.peer_addr(),
        }
    }

    /// Sets an option. EINVAL for a value out of range, or too late.
    pub fn set_option(&self, option: RSockOpt) -> Result<()> {
        match &self.kind {
            Kind::Stream(socket) => socket.set_option(option),
            Kind::Datagram(socket) => socket.set_option(option),
        }
    }

    /// The value of an option. Buffer sizes are those that there are: twice of what was set.
    pub fn option(&self, name: RSockOptName) -> RSockOpt {
        match &self.kind {
            Kind::Stream(socket) => socket.option(name),
            Kind::Datagram(socket) => socket.option(name),
        }
    }

    /// SO_ERROR: the `errno` of what has failed since the last call.
    pub fn take_error(&self) -> Option<i32> {
        match &self.kind {
            Kind::Stream(socket) => socket.take_error(),
            Kind::Datagram(_) => None,
        }
    }

    /// O_NONBLOCK: whether calls fail with EAGAIN instead of waiting.
    pub fn set_nonblocking(&self, on: bool) {
        match &self.kind {
            Kind::Stream(socket) => socket.set_nonblocking(on),
            Kind::Datagram(socket) => socket.set_nonblocking(on),
        }
    }

    /// Whether calls fail instead of waiting.
    pub fn is_nonblocking(&self) -> bool {
        match &self.kind {
            Kind::Stream(socket) => socket.is_nonblocking(),
            Kind::Datagram(socket) => socket.is_nonblocking(),
        }
    }
}

impl Drop for RSocket {
    fn drop(&mut self) {
        self.close();
    }
}

/// The number of the socket: a descriptor that nothing else has while the socket is there. Use it
/// as a name; to wait for the socket, use [`poll`](fn@poll).
impl AsRawFd for RSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.kind.fd().as_raw_fd()
    }
}

impl AsFd for RSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kind.fd()
    }
}

impl io::Read for &RSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv(buffer, MsgFlags::empty())?)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(self.recv_vectored(buffers, MsgFlags::empty())?)
    }
}

impl io::Write for &RSocket {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(self.send(data, MsgFlags::empty())?)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(self.send_vectored(data, MsgFlags::empty())?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Read for RSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl io::Write for RSocket {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for RSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RSocket")
            .field("fd", &self.as_raw_fd())
            .field("datagram", &self.is_datagram())
            .finish_non_exhaustive()
    }
}
