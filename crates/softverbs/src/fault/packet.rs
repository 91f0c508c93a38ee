//! Which kinds a RoCE packet is of.

use std::fmt;

use softverbs_wire::ib::cm::{Mad, Message};
use softverbs_wire::ib::{AethKind, Operation, Packet};
use softverbs_wire::num::Qpn;

use super::kind::{Kind, Kinds};

/// A packet and its kinds.
pub(crate) struct Classified<'a> {
    pub(crate) kinds: Kinds,
    octets: &'a [u8],
    packet: Option<Packet<'a>>,
}

const PACKET: Kinds = Kinds::of(&[Kind::Any, Kind::Packet]);

impl<'a> Classified<'a> {
    /// Of BTH to ICRC.
    pub(crate) fn new(octets: &'a [u8]) -> Self {
        let packet = Packet::parse(octets).ok();
        let kinds = match &packet {
            // As much as can be told of something that is not well formed.
            None => PACKET,
            Some(packet) if packet.headers.bth.dest_qp == Qpn::GSI => cm_kinds(packet),
            Some(packet) => data_kinds(packet),
        };
        Self {
            kinds,
            octets,
            packet,
        }
    }
}

fn cm_kinds(packet: &Packet<'_>) -> Kinds {
    let cm = PACKET.with(Kind::Cm);
    let Ok(mad) = Mad::parse(packet.payload) else {
        return cm;
    };
    cm.with(match mad.message {
        Message::Req(_) => Kind::Req,
        Message::Mra(_) => Kind::Mra,
        Message::Rej(_) => Kind::Rej,
        Message::Rep(_) => Kind::Rep,
        Message::Rtu(_) => Kind::Rtu,
        Message::Dreq(_) => Kind::Dreq,
        Message::Drep(_) => Kind::Drep,
        Message::SidrReq(_) => Kind::SidrReq,
        Message::SidrRep(_) => Kind::SidrRep,
        Message::Lap(_) => Kind::Lap,
        Message::Apr(_) => Kind::Apr,
    })
}

fn data_kinds(packet: &Packet<'_>) -> Kinds {
    let headers = &packet.headers;
    let mut kinds = PACKET.with(Kind::Data);
    let Some(info) = headers.bth.opcode.info() else {
        return kinds;
    };
    if info.is_request() {
        kinds = kinds.with(Kind::Request);
        if info.position.starts() {
            kinds = kinds.with(Kind::Message);
        }
    } else if info.is_response() {
        kinds = kinds.with(Kind::Response);
    }
    match info.operation {
        Operation::Send => kinds.with(Kind::Send),
        Operation::Write => kinds.with(Kind::Write),
        Operation::ReadRequest => kinds.with(Kind::ReadRequest),
        Operation::ReadResponse => kinds.with(Kind::ReadResponse),
        Operation::CmpSwap | Operation::FetchAdd | Operation::AtomicWrite => {
            kinds.with(Kind::Atomic)
        }
        Operation::AtomicAcknowledge => kinds.with(Kind::AtomicAck),
        Operation::CongestionNotification => kinds.with(Kind::Cnp),
        Operation::Acknowledge => match headers.aeth.map(|aeth| aeth.syndrome.kind()) {
            Some(AethKind::Ack { .. }) => kinds.with(Kind::Ack),
            Some(AethKind::Nak { .. }) => kinds.with(Kind::Nak),
            Some(AethKind::RnrNak { .. }) => kinds.with(Kind::Nak).with(Kind::Rnr),
            Some(AethKind::Reserved(_)) | None => kinds,
        },
        Operation::Resync | Operation::Flush => kinds,
    }
}

impl fmt::Display for Classified<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.packet {
            None => write!(f, "{} octets that are no packet", self.octets.len()),
            Some(packet) if self.kinds.contains(Kind::Cm) => match Mad::parse(packet.payload) {
                Ok(mad) => mad.message.fmt(f),
                Err(_) => packet.fmt(f),
            },
            Some(packet) => packet.fmt(f),
        }
    }
}
