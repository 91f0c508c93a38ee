//! Sending: packets are put together in a buffer, ICRC included, as many as one call takes.
//!
//! The payload is copied into the buffer rather than gathered by the kernel from registered
//! memory: computing the ICRC brings it into the cache anyway, the copy is then cheap, and what
//! the ICRC says is true even if the application changes its memory meanwhile.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{OnceLock, Weak};

use softverbs_proto::memory::MemoryFault;
use softverbs_proto::roce::batch::{PacketBatch, PacketFrame, Part};
use softverbs_proto::transmit::Piece;
use softverbs_wire::codec::Writer;
use softverbs_wire::ib::mad::{MAD_LEN, gsi_headers};
use softverbs_wire::ib::{Icrc, Ipv4Ident};
use softverbs_wire::num::{Lkey, Psn};

use super::border::{PacketSink, SendPath, Sent};
use super::counters::add;
use super::socket::Sock;
use super::sys::{self, Envelope};
use super::{PRIVATE_V4, PRIVATE_V6, Port};
use crate::error::{Error, Result};
use crate::fault;
use crate::mr_table::{Domain, LastPin, MrTable};

/// Octets that one call takes: those of the longest UDP datagram of IPv4.
const GATHER_LEN: usize = 65_507;
/// Packets that one call takes, in every kernel with segmentation offload.
const GATHER_PACKETS: usize = 64;

thread_local! {
    static BUFFERS: RefCell<Buffer> = RefCell::new(Buffer::new());
}

/// Where packets are put together. What it held before is overwritten, not cleared.
pub(super) struct Buffer {
    octets: Vec<u8>,
    len: usize,
}

impl Buffer {
    pub(super) fn new() -> Self {
        Self {
            octets: vec![0; GATHER_LEN],
            len: 0,
        }
    }

    /// The next `len` octets, to be written.
    pub(super) fn room(&mut self, len: usize) -> &mut [u8] {
        let start = self.len;
        self.len += len;
        // One packet can be longer than what is gathered.
        if self.octets.len() < self.len {
            self.octets.resize(self.len, 0);
        }
        &mut self.octets[start..self.len]
    }

    /// What was written.
    pub(super) fn filled(&mut self) -> &mut [u8] {
        &mut self.octets[..self.len]
    }
}

/// The ends of a path with their ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// Source and destination of IPv4.
    V4(SocketAddrV4, SocketAddrV4),
    /// Source and destination of IPv6.
    V6(SocketAddrV6, SocketAddrV6),
}

impl Ends {
    /// Nothing if the families differ.
    pub(super) const fn new(from: (IpAddr, u16), to: (IpAddr, u16)) -> Option<Self> {
        match (from.0, to.0) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => Some(Self::V4(
                SocketAddrV4::new(local, from.1),
                SocketAddrV4::new(remote, to.1),
            )),
            (IpAddr::V6(local), IpAddr::V6(remote)) => Some(Self::V6(
                SocketAddrV6::new(local, from.1, 0, 0),
                SocketAddrV6::new(remote, to.1, 0, 0),
            )),
            _ => None,
        }
    }

    /// The ICRC of a packet whose last octets are the place for it. `ident` is that of IPv4.
    pub(super) fn icrc(&self, ident: u16, datagram: &[u8]) -> Option<Icrc> {
        match *self {
            Self::V4(from, to) => Icrc::of_datagram_v4(from, to, Ipv4Ident::new(ident), datagram),
            Self::V6(from, to) => Icrc::of_datagram_v6(from, to, datagram),
        }
    }

    /// Writes the ICRC of a packet to its end.
    pub(super) fn seal(&self, ident: u16, datagram: &mut [u8]) {
        if let Some(icrc) = self.icrc(ident, datagram)
            && let Some(place) = datagram.last_chunk_mut()
        {
            *place = icrc.finish();
        }
    }
}

/// Packets to be sent, by their numbers.
pub(super) trait Packets {
    fn count(&self) -> usize;

    /// How many packets, from number `index` on, may go as one, a train.
    fn together(&self, index: usize) -> u32;

    /// Octets of a packet, or of a train of `count`, without the ICRC.
    fn len_of(&self, index: usize, count: u32) -> usize;

    /// Writes a packet, or a train of `count`, without the ICRC, to a place of its length.
    fn write(
        &self,
        index: usize,
        count: u32,
        place: &mut [u8],
    ) -> std::result::Result<(), MemoryFault>;
}

/// Packets of a batch, whose payload is in registered memory.
struct Batched<'a> {
    memory: LastPin<'a>,
    domain: Domain,
    batch: &'a PacketBatch,
    packets: Range<usize>,
    /// The last packet of a train that was asked for: its number, the count, and what it is.
    last: Cell<Option<(usize, u32, Part<'a>)>>,
}

impl<'a> Batched<'a> {
    /// Where a packet is: its frame and its number there.
    fn find(&self, index: usize) -> Option<(&'a PacketFrame, u32)> {
        let packet = self.packets.start + index;
        let frame = self.batch.frame_of(packet)?;
        Some((frame, u32::try_from(packet - frame.first).ok()?))
    }

    /// Packets that are not a whole frame.
    fn part(&self, index: usize, count: u32) -> Option<Part<'a>> {
        if let Some((of, as_many, part)) = self.last.get()
            && (of, as_many) == (index, count)
        {
            return Some(part);
        }
        let (frame, first) = self.find(index)?;
        let packets = first..first + count;
        let part = (packets != (0..frame.packets)).then(|| self.batch.part(frame, &packets))??;
        self.last.set(Some((index, count, part)));
        Some(part)
    }

    fn copy_out(
        &self,
        (key, addr, len): (Lkey, u64, usize),
        place: &mut &mut [u8],
    ) -> std::result::Result<(), MemoryFault> {
        let room = take_room(place, len);
        self.memory
            .with(key.get(), |pin| pin.copy_out(addr, room, self.domain))
    }
}

impl Packets for Batched<'_> {
    fn count(&self) -> usize {
        self.packets.len()
    }

    fn together(&self, index: usize) -> u32 {
        self.find(index)
            .map_or(1, |(frame, packet)| frame.packets - packet)
    }

    fn len_of(&self, index: usize, count: u32) -> usize {
        if let Some(part) = self.part(index, count) {
            return part.frame_len();
        }
        self.find(index).map_or(0, |(frame, _)| frame.len)
    }

    fn write(
        &self,
        index: usize,
        count: u32,
        mut place: &mut [u8],
    ) -> std::result::Result<(), MemoryFault> {
        if let Some(part) = self.part(index, count) {
            let headers = take_room(&mut place, part.headers.header_len());
            part.headers.emit(&mut Writer::new(headers));
            for piece in part.payload() {
                self.copy_out(piece, &mut place)?;
            }
            place.fill(0);
            return Ok(());
        }
        let Some((frame, _)) = self.find(index) else {
            return Ok(());
        };
        for piece in self.batch.pieces(frame) {
            match *piece {
                Piece::Scratch { start, len } => {
                    let octets = &self.batch.scratch()[start..start + len];
                    take_room(&mut place, len).copy_from_slice(octets);
                }
                Piece::Memory { key, addr, len } => self.copy_out((key, addr, len), &mut place)?,
            }
        }
        Ok(())
    }
}

/// The first octets of a place, which is behind them then.
fn take_room<'p>(place: &mut &'p mut [u8], len: usize) -> &'p mut [u8] {
    let (room, rest) = std::mem::take(place).split_at_mut(len);
    *place = rest;
    room
}

/// Packets in the buffer: all of `segment` octets but the last, which may be shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gathered {
    pub(super) packets: usize,
    pub(super) segment: usize,
}

/// Puts as many packets, from number `first` on, into the buffer as one call takes. With them,
/// what is wrong with the memory of the next one.
pub(super) fn gather(
    packets: &impl Packets,
    first: usize,
    offload: bool,
    ends: &Ends,
    buffer: &mut Buffer,
) -> (Gathered, Option<MemoryFault>) {
    buffer.len = 0;
    let mut gathered = Gathered::default();
    for index in first..packets.count() {
        let len = packets.len_of(index, 1) + Icrc::LEN;
        if gathered.packets == 0 {
            gathered.segment = len;
        } else if !offload
            || gathered.packets == GATHER_PACKETS
            || len > gathered.segment
            || buffer.len + len > GATHER_LEN
        {
            break;
        }
        let start = buffer.len;
        if let Err(fault) = packets.write(index, 1, buffer.room(len - Icrc::LEN)) {
            buffer.len = start;
            return (gathered, Some(fault));
        }
        buffer.room(Icrc::LEN);
        // The kernel numbers the segments of one call from 0.
        let ident = u16::try_from(gathered.packets).unwrap_or(0);
        ends.seal(ident, &mut buffer.filled()[start..]);
        gathered.packets += 1;
        if len < gathered.segment {
            break;
        }
    }
    (gathered, None)
}

/// What the kernel made of one call.
pub(super) enum Outcome {
    Took,
    Blocked,
    Refused(i32),
}

impl Port {
    /// The socket and the ends of a path to a UDP port. Nothing if its addresses are of different
    /// families, of one that this host does not have, or not known: the ICRC covers them.
    fn ends(&self, path: &SendPath, to_port: u16) -> Option<(&Sock, Ends, Envelope)> {
        let which = if path.remote.is_ipv6() {
            PRIVATE_V6
        } else {
            PRIVATE_V4
        };
        let sock = self.socks[which].get()?;
        if path.local.is_unspecified() || path.remote.is_unspecified() {
            return None;
        }
        let ends = Ends::new((path.local, sock.port), (path.remote, to_port))?;
        let to: SocketAddr = match path.remote {
            IpAddr::V6(remote) => SocketAddrV6::new(remote, to_port, 0, path.interface).into(),
            remote @ IpAddr::V4(_) => (remote, to_port).into(),
        };
        let envelope = Envelope {
            from: path.local,
            to,
            interface: path.interface,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
        };
        Some((sock, ends, envelope))
    }

    /// Sends packets of a batch, all to one destination, as far as the kernel takes them.
    pub(crate) fn send(
        &self,
        regions: &MrTable,
        domain: Domain,
        batch: &PacketBatch,
        packets: Range<usize>,
        path: &SendPath,
    ) -> Sent {
        let packets = Batched {
            memory: LastPin::new(regions),
            domain,
            batch,
            packets,
            last: Cell::new(None),
        };
        self.send_packets(&packets, path)
    }

    pub(super) fn send_packets(&self, packets: &impl Packets, path: &SendPath) -> Sent {
        let to_port = self.route(path);
        if let Some(sent) = self.send_by_lane(packets, path, to_port) {
            return sent;
        }
        let Some((sock, ends, envelope)) = self.ends(path, to_port) else {
            return Sent::Lost {
                errno: libc::EADDRNOTAVAIL,
            };
        };
        let mut took = 0;
        BUFFERS.with_borrow_mut(|buffer| {
            while took < packets.count() {
                // Each packet passes the edge alone.
                let offload = sock.gso.load(Ordering::Relaxed) && !fault::armed();
                let (gathered, fault) = gather(packets, took, offload, &ends, buffer);
                if gathered.packets > 0 {
                    match self.transmit(sock, &ends, &envelope, gathered, buffer.filled()) {
                        (n, Outcome::Took) => took += n,
                        (n, Outcome::Blocked) if took + n == 0 => return Sent::Blocked,
                        (n, Outcome::Refused(errno)) if took + n == 0 => {
                            return Sent::Lost { errno };
                        }
                        (n, _) => return Sent::Took(took + n),
                    }
                }
                if let Some(fault) = fault {
                    return Sent::Gone { took, fault };
                }
            }
            Sent::Took(took)
        })
    }

    /// Sends what is in the buffer. How many packets were taken, and what stopped it.
    fn transmit(
        &self,
        sock: &Sock,
        ends: &Ends,
        envelope: &Envelope,
        gathered: Gathered,
        buffer: &mut [u8],
    ) -> (usize, Outcome) {
        let counters = &self.counters;
        let Gathered { packets, segment } = gathered;
        if packets == 1 {
            let outcome = self.transmit_once(sock, envelope, buffer, None);
            return (usize::from(matches!(outcome, Outcome::Took)), outcome);
        }
        let outcome = self.transmit_once(sock, envelope, buffer, u16::try_from(segment).ok());
        match outcome {
            Outcome::Took => {
                add(&counters.gathers_out, 1);
                add(&counters.gathered_out, packets);
                return (packets, outcome);
            }
            // No segmentation offload by this kernel or this interface, or the packets are longer
            // than its MTU: one by one it shows.
            Outcome::Refused(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP | libc::EMSGSIZE) => {}
            _ => return (0, outcome),
        }
        let mut took = 0;
        for packet in buffer.chunks_mut(segment) {
            // Each of them has identification 0 then.
            ends.seal(0, packet);
            match self.transmit_once(sock, envelope, packet, None) {
                Outcome::Took => took += 1,
                outcome => return (took, outcome),
            }
        }
        add(&counters.fallbacks, 1);
        sock.gso.store(false, Ordering::Relaxed);
        (took, Outcome::Took)
    }

    /// One call of the kernel.
    fn transmit_once(
        &self,
        sock: &Sock,
        envelope: &Envelope,
        octets: &[u8],
        segment: Option<u16>,
    ) -> Outcome {
        // A plan that was installed since they were gathered finds the next ones.
        if fault::armed() && segment.is_none() {
            return self.disturb_sending(sock, envelope, octets);
        }
        self.transmit_undisturbed(sock, envelope, octets, segment)
    }

    pub(super) fn transmit_undisturbed(
        &self,
        sock: &Sock,
        envelope: &Envelope,
        octets: &[u8],
        segment: Option<u16>,
    ) -> Outcome {
        let counters = &self.counters;
        let packets = segment.map_or(1, |segment| octets.len().div_ceil(segment.into()));
        let error = loop {
            match sys::send(sock.fd(), envelope, octets, segment) {
                Ok(()) => {
                    add(&counters.packets_out, packets);
                    return Outcome::Took;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => break error,
            }
        };
        match error.raw_os_error().unwrap_or(libc::EIO) {
            libc::EAGAIN => {
                add(&counters.blocked, 1);
                sock.blocked.store(true, Ordering::Relaxed);
                Outcome::Blocked
            }
            // A full queue of the interface loses packets as a switch does.
            libc::ENOBUFS => {
                add(&counters.refused, packets);
                Outcome::Took
            }
            errno => {
                if segment.is_none() {
                    let counter = if errno == libc::EMSGSIZE {
                        &counters.too_big
                    } else {
                        &counters.refused
                    };
                    add(counter, packets);
                }
                Outcome::Refused(errno)
            }
        }
    }

    /// After [`Sent::Blocked`] on a path, or less than all: `sink` is told once, when there is room.
    pub(crate) fn wait_for_room(&self, path: Option<&SendPath>, sink: Weak<dyn PacketSink>) {
        if path.is_some_and(|path| self.wait_for_lane(path, &sink)) {
            return;
        }
        let mut private = self.socks[..=PRIVATE_V6].iter().filter_map(OnceLock::get);
        // If none is blocked any more, any of them will say so.
        let first = private.clone().next();
        let blocked = private.find(|sock| sock.blocked.load(Ordering::Relaxed));
        if let Some(sock) = blocked.or(first) {
            sock.wait_for_room(self.engine, sink);
        }
    }

    /// Sends a management datagram. What the kernel has no room for is lost.
    pub(crate) fn send_mad(&self, path: &SendPath, mad: &[u8; MAD_LEN]) -> Result<()> {
        let to_port = self.route_mad(path.remote, mad);
        let Some((sock, ends, envelope)) = self.ends(path, to_port) else {
            return Err(Error::Unreachable {
                address: (path.remote, to_port).into(),
                errno: libc::EADDRNOTAVAIL,
            });
        };
        let mut packet = Vec::with_capacity(MAD_LEN + 32);
        gsi_headers(Psn::new(self.gsi_psn.fetch_add(1, Ordering::Relaxed))).append_to(&mut packet);
        packet.extend_from_slice(mad);
        packet.extend_from_slice(&[0; Icrc::LEN]);
        ends.seal(0, &mut packet);
        match self.transmit_once(sock, &envelope, &packet, None) {
            Outcome::Took | Outcome::Blocked => Ok(()),
            Outcome::Refused(errno) => Err(Error::Unreachable {
                address: (path.remote, to_port).into(),
                errno,
            }),
        }
    }
}
