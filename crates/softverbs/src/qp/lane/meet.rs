//! How the two ends of a connection find each other.
//!
//! Whoever is at work first waits at a Unix socket for the other one, which comes there when it is at
//! work as well, and brings the memory. The name of the socket is that of the TCP connection: both know
//! it, nobody else of this network namespace has it, and others cannot reach the socket. The two trust
//! each other if both act for one user. Where the other one never comes (it is a process of another
//! user, or of another network namespace, or an adapter of the kernel), the connection stays as it is.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use softverbs_proto::time::Time;

use super::{AGAIN, CALLS, MOST, MOST_WAITING, PLACES, Place, WAITING, is_alive};
use crate::engine::sources::{Source, Token};
use crate::engine::{Engine, Set, sys};
use crate::error::{Error, Result};
use crate::qp::QpInner;
use crate::qp::drive::Connection;
use crate::same_host::SameHost;
use crate::same_host::pipe::{Ends, Pipes};
use crate::same_host::sys::{effective_uid, receive_descriptors, send_descriptors};

/// So long the other end is waited for. If it is not at work by then, it may be later.
const PATIENCE: Duration = Duration::from_secs(2);
/// What comes with the memory.
const HELLO: [u8; 8] = *b"softverb";

/// Why there is no lane.
enum No {
    /// Not now.
    Yet,
    /// It will not change.
    Ever,
}

impl From<io::Error> for No {
    fn from(_: io::Error) -> Self {
        Self::Yet
    }
}

/// The name by which the ends of a connection find each other, if both are on this host.
fn name(socket: BorrowedFd<'_>) -> std::result::Result<SockAddr, No> {
    let socket = SockRef::from(&socket);
    let address = |address: SockAddr| -> std::result::Result<SocketAddr, No> {
        let address = address.as_socket().ok_or(No::Ever)?;
        Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
    };
    let mut ends = [
        address(socket.local_addr()?)?,
        address(socket.peer_addr()?)?,
    ];
    if !is_here(ends[1].ip(), ends[0].ip())? {
        return Err(No::Ever);
    }
    ends.sort_unstable();
    let name = format!("\0softverbs1:{}-{}", ends[0], ends[1]);
    Ok(SockAddr::unix(OsStr::from_bytes(name.as_bytes()))?)
}

/// Whether an address is one of this host that says which connection it is.
fn is_here(remote: IpAddr, local: IpAddr) -> io::Result<bool> {
    if let IpAddr::V6(remote) = remote
        && remote.is_unicast_link_local()
    {
        // Every interface may have it.
        return Ok(false);
    }
    if remote.is_loopback() || remote == local {
        return Ok(true);
    }
    let ours = getifaddrs()?.filter_map(|of| of.address).filter_map(|of| {
        match (of.as_sockaddr_in(), of.as_sockaddr_in6()) {
            (Some(v4), _) => Some(IpAddr::from(v4.ip())),
            (_, Some(v6)) => Some(IpAddr::from(v6.ip())),
            _ => None,
        }
    });
    Ok({ ours }.any(|ours| ours == remote))
}

/// Whether the process at the other end of a Unix socket acts for the same user.
fn is_same_user(socket: &impl AsFd) -> bool {
    getsockopt(socket, PeerCredentials).is_ok_and(|of| of.uid() == effective_uid())
}

/// A connection that waits for its other end.
#[derive(Debug)]
pub(super) struct Offer {
    qp: Weak<QpInner>,
    /// Of the connection.
    connection: Token,
    token: OnceLock<Token>,
    waiting: Mutex<Option<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    socket: Socket,
    /// Who has come, and has not said anything yet.
    came: Option<Socket>,
    place: Place,
    _waits: Place,
}

impl Connection {
    /// Looks for the other end, if it is time to.
    pub(in crate::qp) fn look_for_lane(&mut self, qp: &QpInner) {
        if !self.way.is_due() {
            return;
        }
        self.way.left = AGAIN;
        if let Some(used) = &self.way.used {
            // Nobody has looked at the memory for so long.
            if used.lane.pipes.withdraw() {
                self.leave_lane(qp.engine);
            }
        } else if self.way.offer.is_none() {
            match self.meet(qp) {
                Ok(()) => {}
                Err(No::Yet) => self.way.left = CALLS,
                Err(No::Ever) => self.way.left = u32::MAX,
            }
        }
    }

    fn meet(&mut self, qp: &QpInner) -> std::result::Result<(), No> {
        if self.edge.is_some() || qp.engine.same_host != SameHost::Memory {
            return Err(No::Ever);
        }
        let place = Place::take(&PLACES, MOST).ok_or(No::Yet)?;
        let name = name(self.socket.as_fd())?;
        let socket = sys::socket(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&name) {
            Ok(()) if !is_same_user(&socket) => Err(No::Ever),
            Ok(()) => {
                let (ends, file) = Pipes::create()?;
                send_descriptors(socket.as_fd(), None, &HELLO, &[file.as_fd()])?;
                self.adopt(qp, ends, socket.into(), place);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                let waits = Place::take(&WAITING, MOST_WAITING).ok_or(No::Yet)?;
                let socket = sys::socket(Domain::UNIX, Type::STREAM, None)?;
                socket.set_nonblocking(true)?;
                // The other end may be faster.
                socket.bind(&name)?;
                socket.listen(1)?;
                let waiting = Waiting {
                    socket,
                    came: None,
                    place,
                    _waits: waits,
                };
                self.way.offer = Offer::start(qp, self.token, waiting).ok();
                Ok(())
            }
            Err(_) => Err(No::Yet),
        }
    }
}

impl Offer {
    fn start(qp: &QpInner, connection: Token, waiting: Waiting) -> Result<Arc<Self>> {
        let engine = qp.engine;
        let offer = Arc::new(Self {
            qp: qp.weak(),
            connection,
            token: OnceLock::new(),
            waiting: Mutex::new(Some(waiting)),
        });
        let token = engine.sources.add(offer.clone());
        let _ = offer.token.set(token);
        let waiting = offer.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = waiting.as_ref().map_or(Ok(()), |waiting| {
            let fd = waiting.socket.as_fd();
            engine.watch(Set::Control, token, fd, EpollFlags::EPOLLIN)
        });
        drop(waiting);
        if let Err(error) = watched {
            engine.sources.remove(token);
            return Err(error);
        }
        engine.set_timer(token, Some(engine.now() + PATIENCE));
        Ok(offer)
    }

    /// Nobody is waited for any more. What was there.
    fn stop(&self, engine: &Engine) -> Option<Waiting> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = waiting.take()?;
        engine.unwatch(Set::Control, waiting.socket.as_fd());
        if let Some(came) = &waiting.came {
            engine.unwatch(Set::Control, came.as_fd());
        }
        if let Some(&token) = self.token.get() {
            engine.set_timer(token, None);
            engine.sources.remove(token);
        }
        Some(waiting)
    }

    /// The connection goes.
    pub(super) fn end(&self, engine: &Engine) {
        drop(self.stop(engine));
    }

    /// Somebody has come, or has said something: the memory, once it is there. Fails if it is not what was
    /// waited for.
    fn look(&self, engine: &Engine) -> Result<Option<Ends>> {
        let wrong = || Error::invalid("peer", "is no peer");
        let os = Error::from_call::<io::Error>("accept4");
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(waiting) = &mut *waiting else {
            return Ok(None);
        };
        if waiting.came.is_none() {
            let (came, _) = match waiting.socket.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                came => came.map_err(os)?,
            };
            if !is_same_user(&came) {
                return Err(wrong());
            }
            if let Some(&token) = self.token.get() {
                engine.watch(Set::Control, token, came.as_fd(), EpollFlags::EPOLLIN)?;
            }
            waiting.came = Some(came);
        }
        let Some(came) = &waiting.came else {
            return Ok(None);
        };
        let mut hello = [0; HELLO.len()];
        let (len, with) = match receive_descriptors(came.as_fd(), &mut hello, &mut Vec::new()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            said => said.map_err(Error::from_call("recvmsg"))?,
        };
        let [file] = <[OwnedFd; 1]>::try_from(with).map_err(|_| wrong())?;
        if hello[..len] != HELLO {
            return Err(wrong());
        }
        let ends = Pipes::open(file.as_fd()).map_err(Error::from_call("mmap"))?;
        Ok(Some(ends))
    }

    /// Ends the wait; with the memory, if there is some.
    fn finish(&self, engine: &Engine, ends: Option<Ends>) {
        // Not with the lock, which whoever closes the connection takes when he has that of the queue pair.
        let Some(waiting) = self.stop(engine) else {
            return;
        };
        let Some(qp) = self.qp.upgrade() else { return };
        let mut core = qp.lock();
        let Some(connection) = core.connection().filter(|of| of.token == self.connection) else {
            return;
        };
        connection.way.offer = None;
        let Some(ends) = ends else { return };
        // If it has ended, it may be another one that has come, with the same addresses.
        if !is_alive(connection.socket.as_fd()) {
            return;
        }
        let pipes = Arc::clone(&ends.0);
        if let Some(came) = waiting.came {
            connection.adopt(&qp, ends, came.into(), waiting.place);
        }
        if connection.way.has_lane() && !pipes.accept() {
            connection.leave_lane(engine);
        }
    }
}

impl Source for Offer {
    fn ready(&self, engine: &Engine, _: EpollFlags) {
        match self.look(engine) {
            Ok(None) => {}
            Ok(ends) => self.finish(engine, ends),
            Err(_) => self.finish(engine, None),
        }
    }

    fn timeout(&self, engine: &Engine, _: Time) {
        self.finish(engine, None);
    }
}
