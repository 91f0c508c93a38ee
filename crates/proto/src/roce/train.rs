//! Trains: consecutive packets of one message as one, with the headers of a packet that had all of their
//! payload. What segmentation offload is to an adapter: the way through the queue pair is taken once for
//! many packets. On a wire there are none: whoever sends takes a train apart ([`part`]), and between two
//! ends that share memory it may stay together.
//!
//! A train has the sequence number of its first packet. Every packet but the last one has a payload as
//! long as the path MTU.

use core::ops::Range;

use softverbs_wire::ib::{
    Extra, Headers, Opcode, OpcodeInfo, Operation, Packet, Position, Service, Trailer,
};
use softverbs_wire::num::PathMtu;

/// Most packets of a train.
pub const MOST: u32 = 16;

/// The headers of the packets `range` of a train of `count`, which are a train again, or a packet.
pub fn part(whole: &Headers, count: u32, range: &Range<u32>) -> Headers {
    let (first, last) = (range.start == 0, range.end >= count);
    let mut part = *whole;
    let Some(info) = whole.bth.opcode.info().filter(|_| !first || !last) else {
        return part;
    };
    part.bth.psn = whole.bth.psn.advance(range.start);
    if !first {
        part.reth = None;
    }
    if !last {
        part.bth.ack_req = false;
        part.bth.solicited = false;
        part.bth.pad_count = 0;
        part.imm_dt = None;
        part.ieth = None;
    }
    let position = Position::new(
        first && info.position.starts(),
        last && info.position.ends(),
    );
    if position == Position::Middle {
        part.aeth = None;
    }
    let extra = match (part.imm_dt, part.ieth) {
        (Some(_), _) => Extra::Immediate,
        (None, Some(_)) => Extra::Invalidate,
        (None, None) => Extra::None,
    };
    let opcode = Opcode::find(info.service, info.operation, position, extra);
    debug_assert!(opcode.is_some(), "{} has no {position:?}", whole.bth.opcode);
    part.bth.opcode = opcode.unwrap_or(whole.bth.opcode);
    part
}

/// Which octets of the payload of a train, `len` octets, the packets `range` have.
pub fn payload_of(len: usize, mtu: usize, range: &Range<u32>) -> Range<usize> {
    let at = |packet: u32| (packet as usize).saturating_mul(mtu).min(len);
    at(range.start)..at(range.end)
}

/// Whether there are trains of such packets, and `len` octets are the payload of one of `count`.
pub(super) const fn fits(info: &OpcodeInfo, count: u32, len: usize, mtu: usize) -> bool {
    let has_payload = matches!(
        info.operation,
        Operation::Send | Operation::Write | Operation::ReadResponse
    ) && !matches!(info.service, Service::Ud);
    let most = (count as usize).saturating_mul(mtu);
    has_payload && count <= MOST && len <= most && len + mtu > most
}

/// The path MTU of a train of `count` packets, two or more, with so many octets of payload.
pub fn mtu_of(len: usize, count: u32) -> Option<usize> {
    let mut mtus = PathMtu::ALL.into_iter().map(PathMtu::octets);
    let count = count as usize;
    mtus.find(|mtu| count > 1 && len <= count * mtu && len > (count - 1) * mtu)
}

/// A packet of a train of `count`.
pub fn packet<'a>(train: &Packet<'a>, count: u32, index: u32, mtu: usize) -> Packet<'a> {
    let range = index..index + 1;
    let payload = train
        .payload
        .get(payload_of(train.payload.len(), mtu, &range))
        .unwrap_or_default();
    Packet {
        headers: part(&train.headers, count, &range),
        payload,
        trailer: Trailer::new(payload.len(), train.trailer.icrc),
    }
}
