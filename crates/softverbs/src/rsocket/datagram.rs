//! Datagram sockets.
//!
//! A socket has a UDP socket, whose address is its own, and a UD queue pair for each local
//! address that it uses. The first datagrams to somebody travel over UDP, behind a header that
//! says where the queue pair is; the answer says where the peer's is, and from then on datagrams
//! go there.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use socket2::{Domain, SockAddr, SockRef, Type};
use softverbs_wire::rsocket::{DatagramHeader, DatagramOp, ProbeHeader};
use softverbs_wire::{Reader, Writer};

use super::Family;
use super::option::{Options, RSockOpt, RSockOptName};
use super::stream::errno;
use super::transfer::MsgFlags;
use super::wait::{self, Waiters};
use crate::cm::source_address;
use crate::engine::sys;
use crate::error::{Error, Result};

mod port;

use port::{Port, Sent};

/// Most octets of a datagram, headers included.
const LONGEST: usize = 2048;
/// Peers that are remembered; those forgotten are asked again.
const PEERS: usize = 65_536;
/// The UDP socket is looked at every so often, and always before sleeping.
const UDP_EVERY: u32 = 16;

struct Peer {
    /// Which of the ports leads there.
    port: usize,
    /// Its queue pair, once it has said which.
    way: Option<port::Way>,
}

struct State {
    closed: bool,
    options: Options,
    ports: Vec<Port>,
    peers: HashMap<SocketAddr, Peer>,
    connected: Option<SocketAddr>,
    inbox: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Buffers of datagrams that were read.
    spare: Vec<Vec<u8>>,
    scratch: Vec<u8>,
    /// The UDP socket had no room for the last datagram.
    udp_full: bool,
    /// What of the UDP socket wakes those who sleep.
    attended: EpollFlags,
}

pub(super) struct DatagramSocket {
    family: Family,
    udp: UdpSocket,
    ready: Epoll,
    nonblocking: AtomicBool,
    looks: AtomicU32,
    pub(super) waiters: Waiters,
    state: Mutex<State>,
}

impl DatagramSocket {
    pub(super) fn new(family: Family) -> Result<Arc<Self>> {
        let domain = match family {
            Family::V4 => Domain::IPV4,
            Family::V6 => Domain::IPV6,
        };
        let udp = sys::socket(domain, Type::DGRAM.nonblocking(), None)
            .map_err(Error::from_call("socket"))?;
        let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(Error::from_call("epoll_create1"))?;
        ready
            .add(udp.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))
            .map_err(Error::from_call("epoll_ctl"))?;
        Ok(Arc::new(Self {
            family,
            udp: udp.into(),
            ready,
            nonblocking: AtomicBool::new(false),
            looks: AtomicU32::new(0),
            waiters: Waiters::default(),
            state: Mutex::new(State {
                closed: false,
                options: Options::default(),
                ports: Vec::new(),
                peers: HashMap::new(),
                connected: None,
                inbox: VecDeque::new(),
                spare: Vec::new(),
                scratch: vec![0; LONGEST],
                udp_full: false,
                attended: EpollFlags::EPOLLIN,
            }),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.ready.0.as_fd()
    }

    pub(super) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(super) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    pub(super) fn bind(&self, address: SocketAddr) -> Result<()> {
        self.family.check(address)?;
        SockRef::from(&self.udp)
            .bind(&SockAddr::from(address))
            .map_err(Error::from_call("bind"))
    }

    pub(super) fn connect(&self, address: SocketAddr) -> Result<()> {
        self.family.check(address)?;
        self.udp
            .connect(address)
            .map_err(Error::from_call("connect"))?;
        let mut state = self.lock();
        self.peer(&mut state, address)?;
        state.connected = Some(address);
        state.inbox.retain(|(source, _)| *source == address);
        Ok(())
    }

    pub(super) fn local_addr(&self) -> Result<SocketAddr> {
        self.udp
            .local_addr()
            .map_err(Error::from_call("getsockname"))
    }

    pub(super) fn peer_addr(&self) -> Result<SocketAddr> {
        let connected = self.lock().connected;
        connected.ok_or_else(|| errno("rgetpeername", libc::ENOTCONN))
    }

    pub(super) fn set_option(&self, option: RSockOpt) -> Result<()> {
        let socket = SockRef::from(&self.udp);
        match option {
            RSockOpt::ReuseAddr(on) => socket.set_reuse_address(on),
            RSockOpt::V6Only(on) => socket.set_only_v6(on),
            _ => Ok(()),
        }
        .map_err(Error::from_call("setsockopt"))?;
        let mut state = self.lock();
        if state.options.keep(option) {
            Ok(())
        } else {
            Err(Error::invalid("option", "the value is out of range"))
        }
    }

    pub(super) fn option(&self, name: RSockOptName) -> RSockOpt {
        self.lock().options.value(name)
    }

    /// The peer with this address, and the port that leads to it.
    fn peer(&self, state: &mut State, address: SocketAddr) -> Result<usize> {
        if let Some(peer) = state.peers.get(&address) {
            return Ok(peer.port);
        }
        let own = self.local_addr()?.ip();
        // An address of loopback reaches others there only: as good as none.
        let local = if own.is_unspecified() || own.is_loopback() {
            source_address(address)?.ip()
        } else {
            own
        };
        let known = state.ports.iter().position(|port| port.local == local);
        let port = match known {
            Some(port) => port,
            None => {
                let port = Port::create(local, &state.options.sizes)?;
                let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
                self.ready
                    .add(port.channel.fd(), event)
                    .map_err(Error::from_call("epoll_ctl"))?;
                state.ports.push(port);
                state.ports.len() - 1
            }
        };
        if state.peers.len() >= PEERS
            && let Some(&old) = state
                .peers
                .keys()
                .find(|old| Some(**old) != state.connected)
        {
            state.peers.remove(&old);
        }
        state.peers.insert(address, Peer { port, way: None });
        Ok(port)
    }

    pub(super) fn send(
        &self,
        data: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        flags: MsgFlags,
    ) -> Result<usize> {
        let nonblocking = self.is_nonblocking() || flags.contains(MsgFlags::DONTWAIT);
        if let Some(to) = to {
            self.family.check(to)?;
        }
        let len: usize = data.iter().map(|piece| piece.len()).sum();
        self.wait_for(nonblocking, |state| {
            let Some(to) = to.or(state.connected) else {
                return Some(Err(errno("rsend", libc::EDESTADDRREQ)));
            };
            match self.try_send(state, data, len, to) {
                Ok(true) => {
                    // What was left for the next poll leaves now.
                    self.progress(state, false);
                    Some(Ok(len))
                }
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            }
        })
    }

    /// `false`: there is no room at the moment.
    fn try_send(
        &self,
        state: &mut State,
        data: &[IoSlice<'_>],
        len: usize,
        to: SocketAddr,
    ) -> Result<bool> {
        let port = self.peer(state, to)?;
        let limit = state.ports[port].limit.min(LONGEST);
        if len > limit - ProbeHeader::MAX_LEN {
            return Err(errno("rsend", libc::EMSGSIZE));
        }
        let source = SocketAddr::new(state.ports[port].local, self.local_addr()?.port());
        let Some(way) = state.peers.get(&to).and_then(|peer| peer.way.clone()) else {
            return self.probe(state, port, DatagramOp::Data, data, to);
        };
        let header = DatagramHeader { source };
        let mut octets = [0; DatagramHeader::MAX_LEN];
        header.emit(&mut Writer::new(&mut octets));
        match state.ports[port].send(&octets[..header.len()], data, &way)? {
            Sent::Posted => Ok(true),
            Sent::NoRoom => Ok(false),
        }
    }

    /// Says over UDP where our queue pair is.
    fn probe(
        &self,
        state: &mut State,
        port: usize,
        op: DatagramOp,
        data: &[IoSlice<'_>],
        to: SocketAddr,
    ) -> Result<bool> {
        let port = &state.ports[port];
        let header = ProbeHeader {
            op,
            qpn: port.qp_num(),
            address: port.local,
        };
        let mut octets = vec![0; header.len()];
        header.emit(&mut Writer::new(&mut octets));
        data.iter()
            .for_each(|piece| octets.extend_from_slice(piece));
        let sent = SockRef::from(&self.udp).send_to(&octets, &SockAddr::from(to));
        state.udp_full = matches!(&sent, Err(error) if error.kind() == ErrorKind::WouldBlock);
        match sent {
            Ok(_) => Ok(true),
            Err(_) if state.udp_full => Ok(false),
            Err(error) => Err(Error::from_call("sendto")(error)),
        }
    }

    /// Whether the next datagram over UDP is likely to find room.
    fn udp_has_room(&self, state: &mut State) -> bool {
        if state.udp_full {
            let mut fds = [PollFd::new(self.udp.as_fd(), PollFlags::POLLOUT)];
            state.udp_full = poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready == 0);
        }
        !state.udp_full
    }

    /// Sees to it that the UDP socket wakes those who sleep when they can do something then: it is
    /// not read when there is no room for what it has, and written to seldom.
    fn attend(&self, state: &mut State) -> Result<()> {
        let mut wanted = EpollFlags::empty();
        if state.inbox.len() < usize::from(state.options.sizes.recv_queue) {
            wanted |= EpollFlags::EPOLLIN;
        } else {
            // An error wakes unasked, until it is taken.
            let _ = self.udp.take_error();
        }
        if state.udp_full {
            wanted |= EpollFlags::EPOLLOUT;
        }
        if wanted != state.attended {
            self.ready
                .modify(self.udp.as_fd(), &mut EpollEvent::new(wanted, 0))
                .map_err(Error::from_call("epoll_ctl"))?;
            state.attended = wanted;
        }
        Ok(())
    }

    pub(super) fn recv(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        flags: MsgFlags,
    ) -> Result<(usize, SocketAddr)> {
        let nonblocking = self.is_nonblocking() || flags.contains(MsgFlags::DONTWAIT);
        self.wait_for(nonblocking, |state| {
            let (source, datagram) = state.inbox.front()?;
            let (source, mut rest) = (*source, &datagram[..]);
            let mut len = 0;
            for buffer in buffers.iter_mut() {
                let now = rest.len().min(buffer.len());
                buffer[..now].copy_from_slice(&rest[..now]);
                rest = &rest[now..];
                len += now;
            }
            if !flags.contains(MsgFlags::PEEK)
                && let Some((_, datagram)) = state.inbox.pop_front()
            {
                state.spare.push(datagram);
            }
            Some(Ok((len, source)))
        })
    }

    /// Takes what has arrived. `all`: over UDP, too, which costs a system call.
    fn progress(&self, state: &mut State, all: bool) {
        if state.closed {
            return;
        }
        let room = usize::from(state.options.sizes.recv_queue);
        let mut used = false;
        let State {
            ports,
            inbox,
            spare,
            connected,
            ..
        } = state;
        for port in ports {
            used |= port.progress(|octets| {
                let mut reader = Reader::new(octets);
                let header = DatagramHeader::parse(&mut reader);
                if let Ok(Some(DatagramHeader { source })) = header
                    && connected.is_none_or(|only| only == source)
                    && inbox.len() < room
                {
                    push(inbox, spare, source, reader.rest());
                }
            });
        }
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        if all || looks.is_multiple_of(UDP_EVERY) {
            used |= self.take_probes(state, room);
        }
        if used {
            self.waiters.wake();
        }
    }

    fn take_probes(&self, state: &mut State, room: usize) -> bool {
        let mut used = false;
        // What cannot be kept waits in the UDP socket.
        while state.inbox.len() < room {
            let mut octets = std::mem::take(&mut state.scratch);
            let received = self.udp.recv_from(&mut octets);
            if let Ok((len, source)) = received {
                used = true;
                // A peer that cannot be reached gets no answer, and asks again.
                let _ = self.on_probe(state, &octets[..len], source);
            }
            state.scratch = octets;
            match received {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // Refused by somebody we sent to; that was one error, and the next one waits.
                Err(_) => used = true,
            }
        }
        used
    }

    fn on_probe(&self, state: &mut State, octets: &[u8], source: SocketAddr) -> Result<()> {
        let mut reader = Reader::new(octets);
        let Ok(Some(header)) = ProbeHeader::parse(&mut reader) else {
            return Ok(());
        };
        if header.address.is_ipv4() != source.is_ipv4() {
            return Ok(());
        }
        let port = self.peer(state, source)?;
        let known = state.peers.get(&source).and_then(|peer| peer.way.as_ref());
        if known.is_none_or(|way| way.qpn != header.qpn) {
            let way = state.ports[port].way(source.ip(), header.qpn)?;
            if let Some(peer) = state.peers.get_mut(&source) {
                peer.way = Some(way);
            }
        }
        if header.op == DatagramOp::Data {
            self.probe(state, port, DatagramOp::Control, &[], source)?;
            let State { inbox, spare, .. } = state;
            push(inbox, spare, source, reader.rest());
        }
        Ok(())
    }

    fn arm(&self, state: &mut State) -> Result<()> {
        loop {
            let mut armed = false;
            for port in &mut state.ports {
                armed |= port.arm()?;
            }
            if !armed {
                return Ok(());
            }
            self.progress(state, true);
        }
    }

    pub(super) fn look(&self, wanted: PollFlags, arm: bool) -> Result<PollFlags> {
        let mut state = self.lock();
        self.progress(&mut state, true);
        if arm {
            self.arm(&mut state)?;
        }
        if state.closed {
            return Ok(PollFlags::POLLNVAL);
        }
        let mut events = PollFlags::empty();
        if !state.inbox.is_empty() {
            events |= PollFlags::POLLIN;
        }
        if state.ports.iter().all(Port::has_room) && self.udp_has_room(&mut state) {
            events |= PollFlags::POLLOUT;
        }
        events &= wanted;
        if arm && events.is_empty() {
            self.attend(&mut state)?;
        }
        Ok(events)
    }

    fn wait_for<T>(
        &self,
        nonblocking: bool,
        mut attempt: impl FnMut(&mut State) -> Option<Result<T>>,
    ) -> Result<T> {
        let found = wait::until(&self.waiters, self.fd(), nonblocking, None, |arm| {
            let mut state = self.lock();
            if state.closed {
                return Err(errno("rsocket", libc::EBADF));
            }
            self.progress(&mut state, arm || nonblocking);
            if arm {
                self.arm(&mut state)?;
            }
            let found = attempt(&mut state).transpose();
            if arm && matches!(found, Ok(None)) {
                self.attend(&mut state)?;
            }
            found
        })?;
        found.ok_or_else(|| errno("rsocket", libc::EAGAIN))
    }

    pub(super) fn close(&self) {
        let mut state = self.lock();
        self.progress(&mut state, false);
        state.closed = true;
        let ports = std::mem::take(&mut state.ports);
        state.peers.clear();
        state.inbox.clear();
        drop(state);
        self.waiters.wake();
        drop(ports);
    }
}

fn push(
    inbox: &mut VecDeque<(SocketAddr, Vec<u8>)>,
    spare: &mut Vec<Vec<u8>>,
    source: SocketAddr,
    octets: &[u8],
) {
    let mut datagram = spare.pop().unwrap_or_default();
    datagram.clear();
    datagram.extend_from_slice(octets);
    inbox.push_back((source, datagram));
}
