//! What raw UDP reaches: the floors of RoCEv2.
//!
//! Packets have the size of RoCEv2's: a header, a payload of path MTU 4096 gathered from where it
//! is, and a trailer; segmentation offload puts as many into a call as it takes, receive coalescing
//! takes them out together. The receiver leaves the octets where the kernel put them, and
//! acknowledges now and then, so that nothing is lost.

use std::io::{ErrorKind, IoSlice};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};

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

fn receive_busily(socket: &UdpSocket) -> Outcome<()> {
    let mut room = [0; SMALL];
    loop {
        match socket.recv(&mut room) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Answers packets.
pub(crate) fn echo(iterations: usize) -> Outcome<()> {
    let socket = accept()?;
    socket.set_nonblocking(true)?;
    for _ in 0..iterations {
        receive_busily(&socket)?;
        socket.send(&[1; SMALL])?;
    }
    Ok(())
}

/// Round trips.
pub(crate) fn ping(address: SocketAddr, iterations: usize) -> Outcome<Vec<Duration>> {
    let socket = connect(address)?;
    socket.set_nonblocking(true)?;
    let mut took = Vec::with_capacity(iterations);
    for _ in 0..iterations {
        let start = Instant::now();
        socket.send(&[1; SMALL])?;
        receive_busily(&socket)?;
        took.push(start.elapsed());
    }
    Ok(took)
}

/// Both ends of a ping-pong on this thread.
pub(crate) fn ping_alone(iterations: usize) -> Outcome<()> {
    let (one, other) = pair()?;
    one.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    for _ in 0..iterations {
        one.send(&[1; SMALL])?;
        receive_busily(&other)?;
        other.send(&[1; SMALL])?;
        receive_busily(&one)?;
    }
    Ok(())
}
