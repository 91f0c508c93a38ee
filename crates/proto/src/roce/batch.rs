//! Packets to transmit, as gather lists of scratch and registered memory.

use core::ops::Range;

use softverbs_wire::ib::Headers;
use softverbs_wire::num::Lkey;

use super::train;
use crate::transmit::Piece;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// To the connected peer (RC, UC).
    Peer,
    /// To the address that the owner gave this number (UD); see
    /// [`UdDestination`](super::interface::UdDestination).
    Address(u64),
}

/// One packet: BTH to pad. The ICRC is the owner's to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketFrame {
    /// Where it goes.
    pub destination: Destination,
    /// Octets, a multiple of 4, without the ICRC.
    pub len: usize,
    /// The pieces are memory that its owner may change at any time (READ responses): copy them
    /// before the ICRC is computed, or the two may disagree.
    pub volatile: bool,
    /// How many packets it is: more than one if it is a [`train`].
    pub packets: u32,
    /// How many packets are before it in the batch.
    pub first: usize,
    pieces: Range<usize>,
    /// Which of the batch's trains it is.
    train: Option<usize>,
}

/// What it takes to take a train apart.
#[derive(Debug)]
struct Train {
    headers: Headers,
    /// Octets of payload of each packet but the last.
    mtu: usize,
    /// Octets of payload.
    len: usize,
}

/// Some packets of a train, to be put together.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The headers.
    pub headers: Headers,
    pieces: &'a [Piece],
    /// Octets of the train's payload before it.
    before: usize,
    /// Octets of its payload.
    pub payload_len: usize,
}

impl Part<'_> {
    /// Octets, a multiple of 4, without the ICRC.
    pub const fn frame_len(&self) -> usize {
        self.headers.header_len() + self.payload_len + self.headers.bth.pad_count as usize
    }

    /// Its payload: keys, addresses and lengths of pieces of registered memory.
    pub fn payload(&self) -> impl Iterator<Item = (Lkey, u64, usize)> {
        let (mut skip, mut left) = (self.before, self.payload_len);
        self.pieces.iter().filter_map(move |piece| {
            let Piece::Memory { key, addr, len } = *piece else {
                return None;
            };
            let skipped = skip.min(len);
            skip -= skipped;
            let here = left.min(len - skipped);
            left -= here;
            (here > 0).then(|| (key, addr.wrapping_add(skipped as u64), here))
        })
    }
}

/// Packets in the order of the wire. Reused: `clear` keeps the capacity.
///
/// Packets of equal length to one destination follow each other wherever the order of the
/// protocol allows it, for UDP segmentation offload.
#[derive(Debug, Default)]
pub struct PacketBatch {
    scratch: Vec<u8>,
    pieces: Vec<Piece>,
    frames: Vec<PacketFrame>,
    trains: Vec<Train>,
    /// Octets of the frame that is being put together.
    open: usize,
    /// Of all frames.
    packets: usize,
}

impl PacketBatch {
    /// An empty batch without any allocation.
    pub const fn new() -> Self {
        Self {
            scratch: Vec::new(),
            pieces: Vec::new(),
            frames: Vec::new(),
            trains: Vec::new(),
            open: 0,
            packets: 0,
        }
    }

    /// How many frames there are.
    pub const fn len(&self) -> usize {
        self.frames.len()
    }

    /// How many packets there are, those of trains counted each.
    pub const fn packets(&self) -> usize {
        self.packets
    }

    /// Whether there is nothing to send.
    pub const fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The packets and trains.
    pub fn frames(&self) -> &[PacketFrame] {
        &self.frames
    }

    /// The frame that a packet is in, by the packet's number in the batch.
    pub fn frame_of(&self, packet: usize) -> Option<&PacketFrame> {
        let index = if self.packets == self.frames.len() {
            packet
        } else {
            let after = self.frames.partition_point(|frame| frame.first <= packet);
            after.checked_sub(1)?
        };
        self.frames.get(index).filter(|_| packet < self.packets)
    }

    /// The gather list of a packet of this batch.
    pub fn pieces(&self, frame: &PacketFrame) -> &[Piece] {
        self.pieces.get(frame.pieces.clone()).unwrap_or(&[])
    }

    /// Some packets of a frame that is a train.
    pub fn part(&self, frame: &PacketFrame, packets: &Range<u32>) -> Option<Part<'_>> {
        let whole = self.trains.get(frame.train?)?;
        let payload = train::payload_of(whole.len, whole.mtu, packets);
        Some(Part {
            headers: train::part(&whole.headers, frame.packets, packets),
            pieces: self.pieces(frame),
            before: payload.start,
            payload_len: payload.len(),
        })
    }

    /// The scratch buffer that `Piece::Scratch` refers to.
    pub fn scratch(&self) -> &[u8] {
        &self.scratch
    }

    /// Forgets everything, keeps the allocations.
    pub fn clear(&mut self) {
        self.scratch.clear();
        self.pieces.clear();
        self.frames.clear();
        self.trains.clear();
        self.open = 0;
        self.packets = 0;
    }

    /// Octets that the allocations hold.
    pub const fn capacity(&self) -> usize {
        self.scratch.capacity()
            + self.pieces.capacity() * size_of::<Piece>()
            + self.frames.capacity() * size_of::<PacketFrame>()
            + self.trains.capacity() * size_of::<Train>()
    }

    /// Appends to the packet that is being put together what `emit` appends to the scratch
    /// buffer.
    pub(super) fn scratch_with(&mut self, emit: impl FnOnce(&mut Vec<u8>)) {
        let start = self.scratch.len();
        emit(&mut self.scratch);
        let len = self.scratch.len() - start;
        if len == 0 {
            return;
        }
        let first_of_frame = self.pieces.len() == self.next_piece();
        self.open += len;
        match self.pieces.last_mut() {
            Some(Piece::Scratch {
                start: first,
                len: before,
            }) if !first_of_frame && *first + *before == start => *before += len,
            _ => self.pieces.push(Piece::Scratch { start, len }),
        }
    }

    /// Appends a reference to registered memory.
    pub(super) fn memory(&mut self, key: Lkey, addr: u64, len: usize) {
        if len > 0 {
            self.open += len;
            self.pieces.push(Piece::Memory { key, addr, len });
        }
    }

    /// The packet is complete.
    pub(super) fn end_frame(&mut self, destination: Destination, volatile: bool) {
        self.end(destination, volatile, 1, None);
    }

    /// The train of so many packets of that MTU, with such headers and as much payload, is complete.
    pub(super) fn end_train(
        &mut self,
        destination: Destination,
        volatile: bool,
        (packets, mtu): (u32, usize),
        headers: Headers,
        len: usize,
    ) {
        self.trains.push(Train { headers, mtu, len });
        let train = self.trains.len() - 1;
        self.end(destination, volatile, packets, Some(train));
    }

    fn end(
        &mut self,
        destination: Destination,
        volatile: bool,
        packets: u32,
        train: Option<usize>,
    ) {
        let pieces = self.next_piece()..self.pieces.len();
        let first = self.packets;
        self.packets += packets as usize;
        self.frames.push(PacketFrame {
            first,
            destination,
            len: core::mem::take(&mut self.open),
            volatile,
            packets,
            pieces,
            train,
        });
    }

    /// Drops the packet that is being put together.
    pub(super) fn abandon(&mut self, scratch_len: usize) {
        self.scratch.truncate(scratch_len);
        self.pieces.truncate(self.next_piece());
        self.open = 0;
    }

    /// Number of the first piece of the packet that is being put together.
    fn next_piece(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.pieces.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Lkey = Lkey::new(7);

    fn put(batch: &mut PacketBatch, octets: &[u8]) {
        batch.scratch_with(|scratch| scratch.extend_from_slice(octets));
    }

    #[test]
    fn frames_have_pieces_of_their_own() {
        let mut batch = PacketBatch::new();
        put(&mut batch, b"abc");
        put(&mut batch, b"");
        put(&mut batch, b"d");
        batch.end_frame(Destination::Peer, false);
        put(&mut batch, b"efgh");
        batch.memory(KEY, 100, 0);
        batch.memory(KEY, 100, 3);
        put(&mut batch, b"i");
        batch.end_frame(Destination::Address(9), true);
        let memory = Piece::Memory {
            key: KEY,
            addr: 100,
            len: 3,
        };
        let scratch = |start, len| Piece::Scratch { start, len };
        let [first, second] = batch.frames() else {
            panic!("{batch:?}")
        };
        assert_eq!((first.len, first.volatile), (4, false));
        assert_eq!(batch.pieces(first), [scratch(0, 4)]);
        assert_eq!(
            (second.len, second.destination),
            (8, Destination::Address(9))
        );
        assert_eq!(
            batch.pieces(second),
            [scratch(4, 4), memory, scratch(8, 1)],
            "not joined with the packet before"
        );
        assert_eq!(batch.scratch(), b"abcdefghi");
        assert_eq!(batch.len(), 2);
    }

    #[test]
    fn an_abandoned_packet_leaves_nothing() {
        let mut batch = PacketBatch::new();
        put(&mut batch, b"abcd");
        batch.end_frame(Destination::Peer, false);
        let scratch_len = batch.scratch().len();
        put(&mut batch, b"ef");
        batch.memory(KEY, 100, 9);
        batch.abandon(scratch_len);
        put(&mut batch, b"xyzw");
        batch.end_frame(Destination::Peer, false);
        assert_eq!(batch.scratch(), b"abcdxyzw");
        let lens: Vec<_> = batch.frames().iter().map(|frame| frame.len).collect();
        assert_eq!(lens, [4, 4]);
        assert_eq!(
            batch.pieces(&batch.frames()[1]),
            [Piece::Scratch { start: 4, len: 4 }]
        );
    }

    #[test]
    fn clear_keeps_the_allocations() {
        let mut batch = PacketBatch::new();
        assert_eq!(batch.capacity(), 0);
        put(&mut batch, &[1; 1000]);
        batch.end_frame(Destination::Peer, false);
        let capacity = batch.capacity();
        assert!(capacity >= 1000);
        batch.clear();
        assert!(batch.is_empty() && batch.scratch().is_empty());
        assert_eq!(batch.capacity(), capacity);
    }
}
