//! A UDP socket of the port, and how the engine serves it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, Weak};

use nix::sys::epoll::EpollFlags;
use socket2::{Domain, Protocol, SockRef, Type};
use softverbs_proto::time::Time;

use super::border::PacketSink;
use super::sys::{self, Inbox};
use super::{Port, RELAY};
use crate::engine::sources::{Source, Token};
use crate::engine::{Engine, Set, sys as engine_sys};

/// Receive calls' worth of room: each may bring 64 KiB.
pub(super) const INBOX: usize = 16;
/// Wanted room in the kernel, as far as it is allowed.
const RECEIVE_ROOM: usize = 16 << 20;
const SEND_ROOM: usize = 4 << 20;
/// After so many empty polls, a socket is left to epoll.
const IDLE_POLLS: u32 = 1024;

/// How often a socket is polled before it counts as hot.
const HEAT_EVERY: u32 = 256;

/// What epoll does for a socket.
#[derive(Debug, Default)]
struct Watch {
    /// Nothing: application threads poll it all the time.
    hot: bool,
    /// It tells when there is room.
    for_room: bool,
}

impl Watch {
    fn interest(&self) -> EpollFlags {
        let mut interest = EpollFlags::EPOLLIN;
        interest.set(EpollFlags::EPOLLOUT, self.for_room);
        interest
    }
}

/// A UDP socket.
pub(super) struct Sock {
    socket: UdpSocket,
    pub(super) v6: bool,
    /// The port that it is bound to.
    pub(super) port: u16,
    /// Segmentation offload works, as far as is known.
    pub(super) gso: AtomicBool,
    /// Received datagrams are coalesced.
    pub(super) gro: bool,
    /// Datagrams without a checksum arrive (IPv6).
    pub(super) no_checksum: bool,
    pub(super) inbox: Mutex<Option<Inbox<INBOX>>>,
    /// An application thread has polled it.
    polled: AtomicBool,
    /// How often they did.
    polls: AtomicU32,
    watch: Mutex<Watch>,
    /// Polls in a row that brought nothing.
    idle: AtomicU32,
    /// Receptions in a row that brought as much as could be expected.
    hits: AtomicU32,
    /// It had no room for packets the last time.
    pub(super) blocked: AtomicBool,
    waiting: Mutex<Vec<Weak<dyn PacketSink>>>,
    any_waiting: AtomicBool,
    pub(super) token: OnceLock<Token>,
}

impl Sock {
    /// Binds a port of all addresses of a family; 0 is any.
    pub(super) fn bind(v6: bool, port: u16) -> io::Result<Self> {
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = engine_sys::socket(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        let fd = socket.as_fd();
        let address: SocketAddr = if v6 {
            socket.set_only_v6(true)?;
            (Ipv6Addr::UNSPECIFIED, port).into()
        } else {
            (Ipv4Addr::UNSPECIFIED, port).into()
        };
        // Everything the ICRC covers must be known: the source address to the sender, and the
        // destination to the receiver; with `DO`, identification 0 and no fragments.
        let (level, options) = if v6 {
            let options = [
                (libc::IPV6_RECVPKTINFO, 1),
                (libc::IPV6_RECVTCLASS, 1),
                (libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
                (libc::IPV6_DONTFRAG, 1),
            ];
            (libc::IPPROTO_IPV6, options)
        } else {
            let options = [
                (libc::IP_PKTINFO, 1),
                (libc::IP_RECVTOS, 1),
                (libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
                (libc::IP_MULTICAST_ALL, 1),
            ];
            (libc::IPPROTO_IP, options)
        };
        for (index, (name, value)) in options.into_iter().enumerate() {
            let set = sys::set_option(fd, level, name, value);
            // Without the first there are no ICRCs. The others are missing in places (gVisor).
            if index == 0 {
                set?;
            }
        }
        // A kernel that does not know it would send what was gathered as one datagram.
        let gso = sys::set_option(fd, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        make_room(fd);
        let gro = sys::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        let no_checksum =
            !v6 || sys::set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1).is_ok();
        socket.bind(&address.into())?;
        let socket = UdpSocket::from(socket);
        let port = socket.local_addr()?.port();
        Ok(Self {
            socket,
            v6,
            port,
            gso: AtomicBool::new(gso),
            gro,
            no_checksum,
            inbox: Mutex::new(None),
            polled: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            watch: Mutex::default(),
            // Until something comes it is left to epoll.
            idle: AtomicU32::new(IDLE_POLLS),
            hits: AtomicU32::new(0),
            blocked: AtomicBool::new(false),
            waiting: Mutex::default(),
            any_waiting: AtomicBool::new(false),
            token: OnceLock::new(),
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn options(&self) -> SockRef<'_> {
        SockRef::from(&self.socket)
    }

    /// Whether an application thread that polls should look here itself.
    pub(super) fn is_busy(&self) -> bool {
        self.idle.load(Ordering::Relaxed) < IDLE_POLLS
    }

    /// Takes note of a poll of an application thread.
    pub(super) fn note_poll(&self, engine: &Engine, got: usize) {
        self.polled.store(true, Ordering::Relaxed);
        // Lost increments are harmless.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        if polls.is_multiple_of(HEAT_EVERY) {
            self.heat(engine);
        }
        let idle = if got > 0 {
            0
        } else {
            self.idle.load(Ordering::Relaxed).saturating_add(1)
        };
        self.idle.store(idle, Ordering::Relaxed);
    }

    /// How often in a row there was as much as could be expected.
    pub(super) fn hits(&self) -> u32 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Whether there was this time.
    pub(super) fn note_hit(&self, hit: bool) {
        let hits = if hit {
            self.hits().saturating_add(1)
        } else {
            0
        };
        self.hits.store(hits, Ordering::Relaxed);
    }

    /// Something came, by whoever's receiving.
    pub(super) fn note_traffic(&self) {
        self.idle.store(0, Ordering::Relaxed);
    }

    /// `sink` is told when there is room to send.
    pub(super) fn wait_for_room(&self, engine: &Engine, sink: Weak<dyn PacketSink>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(sink);
        self.any_waiting.store(true, Ordering::Release);
        self.watch_for_room(engine, true);
    }

    fn watch_for_room(&self, engine: &Engine, on: bool) {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch.for_room = on;
        if let Some(&token) = self.token.get()
            && !watch.hot
        {
            engine.rewatch(Set::Data, token, self.fd(), watch.interest());
        }
    }

    /// Application threads poll this socket all the time: epoll need not watch it meanwhile.
    fn heat(&self, engine: &Engine) {
        let Some(&token) = self.token.get() else {
            return;
        };
        if !engine.is_backed_off() {
            return;
        }
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.hot || watch.for_room {
            return;
        }
        watch.hot = true;
        engine.mute(self.fd());
        drop(watch);
        if !engine.add_hot(token) {
            self.cool(engine);
        }
    }

    /// They do no more.
    fn cool(&self, engine: &Engine) {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&token) = self.token.get()
            && std::mem::take(&mut watch.hot)
        {
            engine.unmute(token, self.fd(), watch.interest());
        }
    }

    /// Tells those who wait for room that they may try.
    pub(super) fn offer_room(&self, engine: &Engine) {
        if !self.any_waiting.load(Ordering::Acquire) {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.any_waiting.store(false, Ordering::Release);
        self.blocked.store(false, Ordering::Relaxed);
        self.watch_for_room(engine, false);
        let told = std::mem::take(&mut *waiting);
        drop(waiting);
        for sink in told {
            if let Some(sink) = sink.upgrade() {
                sink.room();
            }
        }
    }
}

/// Gives a socket as much room as it may have.
pub(super) fn make_room(fd: BorrowedFd<'_>) {
    for (forced, plain, room) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_ROOM),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_ROOM),
    ] {
        let room = i32::try_from(room).unwrap_or(i32::MAX);
        // Only root may go beyond the system's limit.
        if sys::set_option(fd, libc::SOL_SOCKET, forced, room).is_err() {
            let _ = sys::set_option(fd, libc::SOL_SOCKET, plain, room);
        }
    }
}

impl std::fmt::Debug for Sock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sock")
            .field("v6", &self.v6)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// One of the port's sockets, as the engine sees it.
pub(super) struct Served {
    pub(super) port: &'static Port,
    /// Number of the socket, or [`RELAY`].
    pub(super) which: usize,
}

impl Source for Served {
    fn ready(&self, engine: &Engine, readiness: EpollFlags) {
        if self.which == RELAY {
            self.port.receive_relayed();
            self.port.deliver_mads();
            return;
        }
        if readiness.contains(EpollFlags::EPOLLOUT)
            && let Some(sock) = self.port.socks[self.which].get()
        {
            sock.offer_room(engine);
        }
        if readiness.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLERR) {
            self.port.receive(self.which, false);
            self.port.deliver_mads();
        }
    }

    fn timeout(&self, _: &Engine, now: Time) {
        self.port.claim_public_ports();
        self.port.touch_files(now);
    }

    fn neglected(&self) -> bool {
        match self.port.socks.get(self.which).and_then(OnceLock::get) {
            Some(sock) => {
                !sock.polled.swap(false, Ordering::Relaxed)
                    || sock.any_waiting.load(Ordering::Relaxed)
            }
            None => true,
        }
    }

    fn cool(&self, engine: &Engine) {
        if let Some(sock) = self.port.socks.get(self.which).and_then(OnceLock::get) {
            sock.cool(engine);
        }
    }
}
