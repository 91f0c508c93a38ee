//! What raw UDP reaches: the floors of RoCEv2.
//!
//! Packets have the size of RoCEv2's: a header, a payload of path MTU 4096 gathered from where it
//! is, and a trailer; segmentation offload puts as many into a call as it takes, receive coalescing
//! takes them out together. The receiver leaves the octets where the kernel put them, and
//! acknowledges now and then, so that nothing is lost.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    ControlMessage, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt, sockopt,
};

use crate::{Outcome, announce};

const PAYLOAD: usize = 4096;
/// The BTH.
const HEADER: usize = 12;
/// The ICRC.
const TRAILER: usize = 4;
const PACKET: usize = HEADER + PAYLOAD + TRAILER;
/// Packets that one call takes.
const BATCH: usize = 65_507 / PACKET;
const REGION: usize = 1 << 20;
/// Packets on their way at most.
const WINDOW: usize = 256;
/// Packets for which there is one acknowledge.
const ACK_EVERY: usize = 64;
const ROOM: usize = 4 << 20;
const WAIT: Duration = Duration::from_secs(10);

/// A packet with a Send of 8 octets.
const SMALL: usize = HEADER + 8 + TRAILER;

fn bind() -> Outcome<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let options = socket2::SockRef::from(&socket);
    options.set_recv_buffer_size(ROOM)?;
    options.set_send_buffer_size(ROOM)?;
    socket.set_read_timeout(Some(WAIT))?;
    Ok(socket)
}

/// Waits for a first packet and connects to its sender.
fn accept() -> Outcome<UdpSocket> {
    let socket = bind()?;
    announce(socket.local_addr()?)?;
    let (_, from) = socket.recv_from(&mut [0; SMALL])?;
    socket.connect(from)?;
    Ok(socket)
}

fn connect(address: SocketAddr) -> Outcome<UdpSocket> {
    let socket = bind()?;
    socket.connect(address)?;
    socket.send(&[0; SMALL])?;
    Ok(socket)
}

const fn packets(mib: usize) -> usize {
    (mib << 20) / PAYLOAD
}

/// The receiving end of a stream of packets.
struct Sink {
    socket: UdpSocket,
    room: Vec<u8>,
    got: usize,
    acknowledged: usize,
}

impl Sink {
    fn new(socket: UdpSocket) -> Outcome<Self> {
        setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
        Ok(Self {
            socket,
            room: vec![0; 1 << 16],
            got: 0,
            acknowledged: 0,
        })
    }

    fn receive(&mut self, all: usize) -> Outcome<()> {
        self.got += self.socket.recv(&mut self.room)?.div_ceil(PACKET);
        if self.got - self.acknowledged >= ACK_EVERY || self.got == all {
            self.socket.send(&self.got.to_ne_bytes())?;
            self.acknowledged = self.got;
        }
        Ok(())
    }
}

/// The sending end.
struct Source {
    socket: UdpSocket,
    region: Vec<u8>,
    sent: usize,
    acknowledged: usize,
}

impl Source {
    fn new(socket: UdpSocket) -> Self {
        Self {
            socket,
            region: vec![2; REGION],
            sent: 0,
            acknowledged: 0,
        }
    }

    /// Whether the window has room for a whole call.
    fn has_room(&self) -> bool {
        self.sent - self.acknowledged + BATCH <= WINDOW
    }

    /// One call's worth of packets.
    fn send(&mut self, all: usize) -> Outcome<()> {
        let (header, trailer) = ([0_u8; HEADER], [0_u8; TRAILER]);
        let count = BATCH.min(all - self.sent);
        let slices: Vec<IoSlice<'_>> = (self.sent..self.sent + count)
            .flat_map(|packet| {
                let from = packet * PAYLOAD % REGION;
                let payload = &self.region[from..from + PAYLOAD];
                [&header[..], payload, &trailer[..]].map(IoSlice::new)
            })
            .collect();
        let segment = u16::try_from(PACKET)?;
        let control = [ControlMessage::UdpGsoSegments(&segment)];
        let fd = self.socket.as_raw_fd();
        sendmsg::<()>(fd, &slices, &control, MsgFlags::empty(), None)?;
        self.sent += count;
        Ok(())
    }

    fn acknowledge(&mut self) -> Outcome<()> {
        let mut count = [0; size_of::<usize>()];
        self.socket.recv(&mut count)?;
        self.acknowledged = usize::from_ne_bytes(count);
        Ok(())
    }
}

/// Receives packets.
pub(crate) fn sink(mib: usize) -> Outcome<()> {
    let mut sink = Sink::new(accept()?)?;
    while sink.got < packets(mib) {
        sink.receive(packets(mib))?;
    }
    Ok(())
}

/// Sends packets; how long until the sink has all.
pub(crate) fn source(address: SocketAddr, mib: usize) -> Outcome<Duration> {
    let mut source = Source::new(connect(address)?);
    let all = packets(mib);
    let start = Instant::now();
    while source.acknowledged < all {
        if source.sent < all && source.has_room() {
            source.send(all)?;
        } else {
            source.acknowledge()?;
        }
    }
    Ok(start.elapsed())
}

/// Both ends of a stream of packets on this thread.
pub(crate) fn stream_alone(mib: usize) -> Outcome<()> {
    let (one, other) = pair()?;
    let (mut source, mut sink) = (Source::new(one), Sink::new(other)?);
    let all = packets(mib);
    while source.sent < all {
        while source.sent < all && source.has_room() {
            source.send(all)?;
        }
        while sink.got < source.sent {
            sink.receive(all)?;
        }
        while source.acknowledged < sink.acknowledged {
            source.acknowledge()?;
        }
    }
    Ok(())
}

fn pair() -> Outcome<(UdpSocket, UdpSocket)> {
    let (one, other) = (bind()?, bind()?);
    one.connect(other.local_addr()?)?;
    other.connect(one.local_addr()?)?;
    Ok((one, other))
}

/// How small packets are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// On connected sockets, which is the least that UDP can cost.
    Connected,
    /// As the ICRC needs it: the sender names its source address on a socket that is not connected
    /// (a connected one numbers its packets), and the receiver is told both addresses and the type
    /// of service.
    Addressed,
}

/// One end of a ping-pong.
struct End {
    socket: UdpSocket,
    style: Style,
    peer: SockaddrIn,
    control: Vec<u8>,
}

impl End {
    fn new(socket: UdpSocket, peer: SocketAddr, style: Style) -> Outcome<Self> {
        socket.set_nonblocking(true)?;
        let SocketAddr::V4(peer) = peer else {
            return Err("IPv4 only".into());
        };
        match style {
            Style::Connected => socket.connect(peer)?,
            Style::Addressed => {
                setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
                setsockopt(&socket, sockopt::IpRecvTos, &true)?;
                setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
            }
        }
        Ok(Self {
            socket,
            style,
            peer: SockaddrIn::from(peer),
            control: vec![0; 192],
        })
    }

    fn send(&self) -> Outcome<()> {
        let octets = [1; SMALL];
        if self.style == Style::Connected {
            self.socket.send(&octets)?;
            return Ok(());
        }
        let info = libc::in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: libc::in_addr {
                s_addr: u32::from_ne_bytes(Ipv4Addr::LOCALHOST.octets()),
            },
            ipi_addr: libc::in_addr { s_addr: 0 },
        };
        let control = [ControlMessage::Ipv4PacketInfo(&info)];
        let slices = [IoSlice::new(&octets)];
        let fd = self.socket.as_raw_fd();
        sendmsg(
            fd,
            &slices,
            &control,
            MsgFlags::MSG_DONTWAIT,
            Some(&self.peer),
        )?;
        Ok(())
    }

    fn receive_busily(&mut self) -> Outcome<()> {
        let mut room = [0; 2 * SMALL];
        loop {
            let empty = match self.style {
                Style::Connected => match self.socket.recv(&mut room) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => true,
                    result => {
                        result?;
                        false
                    }
                },
                Style::Addressed => {
                    let fd = self.socket.as_raw_fd();
                    let mut slices = [IoSliceMut::new(&mut room)];
                    let control = Some(self.control.as_mut_slice());
                    match recvmsg::<SockaddrIn>(fd, &mut slices, control, MsgFlags::MSG_DONTWAIT) {
                        Err(Errno::EAGAIN) => true,
                        result => {
                            result?;
                            false
                        }
                    }
                }
            };
            if !empty {
                return Ok(());
            }
        }
    }
}

/// Answers packets.
pub(crate) fn echo(iterations: usize, style: Style) -> Outcome<()> {
    let socket = bind()?;
    announce(socket.local_addr()?)?;
    let (_, from) = socket.recv_from(&mut [0; SMALL])?;
    let mut end = End::new(socket, from, style)?;
    for _ in 0..iterations {
        end.receive_busily()?;
        end.send()?;
    }
    Ok(())
}

/// Round trips.
pub(crate) fn ping(address: SocketAddr, iterations: usize, style: Style) -> Outcome<Vec<Duration>> {
    let socket = bind()?;
    socket.send_to(&[0; SMALL], address)?;
    let mut end = End::new(socket, address, style)?;
    let mut took = Vec::with_capacity(iterations);
    for _ in 0..iterations {
        let start = Instant::now();
        end.send()?;
        end.receive_busily()?;
        took.push(start.elapsed());
    }
    Ok(took)
}

/// Both ends of a ping-pong on this thread.
pub(crate) fn ping_alone(iterations: usize, style: Style) -> Outcome<()> {
    let (one, other) = (bind()?, bind()?);
    let (to_one, to_other) = (one.local_addr()?, other.local_addr()?);
    let mut ends = [
        End::new(one, to_other, style)?,
        End::new(other, to_one, style)?,
    ];
    for _ in 0..iterations {
        ends[0].send()?;
        ends[1].receive_busily()?;
        ends[1].send()?;
        ends[0].receive_busily()?;
    }
    Ok(())
}
