//! Datagrams as both the network and people see them.

use softverbs_proto::memory::Memory as _;
use softverbs_proto::roce::batch::PacketBatch;
use softverbs_proto::transmit::Piece;
use softverbs_wire::ib::cm::{Mad, Message};
use softverbs_wire::ib::{AethKind, Packet as Data};
use softverbs_wire::num::{CommId, Psn};

use crate::inbox::Inbox;
use crate::net::Packet;
use crate::world::Side;

/// First octet of a datagram of the model: which queue pair number it is for.
const TO_QP1: u8 = 1;
const TO_QP: u8 = 2;

/// What arrives.
pub(super) enum Arrival<'a> {
    /// A management datagram.
    Mad(&'a [u8]),
    /// A packet for a queue pair.
    Data(&'a [u8]),
}

pub(super) fn arrival(packet: &Packet) -> Arrival<'_> {
    match packet.octets.split_first() {
        Some((&TO_QP1, octets)) => Arrival::Mad(octets),
        Some((_, octets)) => Arrival::Data(octets),
        None => Arrival::Data(&[]),
    }
}

pub(super) fn mad_packet(octets: &[u8]) -> Packet {
    let label = match Mad::parse(octets) {
        Ok(mad) => mad.message.name().to_owned(),
        Err(error) => error.to_string(),
    };
    Packet::new(label, prefixed(TO_QP1, octets))
}

fn prefixed(kind: u8, octets: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(octets.len() + 1);
    all.push(kind);
    all.extend_from_slice(octets);
    all
}

/// The connection of the receiver that a message says to be ready, if it says so: by a REP to the
/// active side, by a RTU to the passive one.
pub(super) fn readies(octets: &[u8], to: Side) -> Option<CommId> {
    match (Mad::parse(octets).ok()?.message, to) {
        (Message::Rep(rep), Side::Active) => Some(rep.remote_comm_id),
        (Message::Rtu(rtu), Side::Passive) => Some(rtu.remote_comm_id),
        _ => None,
    }
}

/// The connection of the sender that a message says to be ready.
pub(super) fn says_ready(octets: &[u8]) -> Option<(CommId, &'static str)> {
    match Mad::parse(octets).ok()?.message {
        Message::Rep(rep) => Some((rep.local_comm_id, "REP")),
        Message::Rtu(rtu) => Some((rtu.local_comm_id, "RTU")),
        _ => None,
    }
}

/// The packets of a batch, and whether each is a request.
pub(super) fn data_packets(
    batch: &PacketBatch,
    memory: &Inbox,
    sent_from: Psn,
    received_from: Psn,
) -> Vec<(Packet, bool)> {
    let mut packets = Vec::with_capacity(batch.len());
    for frame in batch.frames() {
        let mut octets = vec![TO_QP];
        for piece in batch.pieces(frame) {
            match *piece {
                Piece::Scratch { start, len } => {
                    octets.extend_from_slice(&batch.scratch()[start..start + len]);
                }
                Piece::Memory { key, addr, len } => {
                    // Nothing of the model is sent from registered memory.
                    let _ = memory.append(key, addr, len, &mut octets);
                }
            }
        }
        octets.extend_from_slice(&[0; 4]);
        let Ok(packet) = Data::parse(&octets[1..]) else {
            continue;
        };
        let is_request = packet
            .headers
            .bth
            .opcode
            .info()
            .is_some_and(|info| !info.is_response());
        let first = if is_request { sent_from } else { received_from };
        let label = label(&packet, is_request, first);
        packets.push((Packet::new(label, octets), is_request));
    }
    packets
}

/// Requests are numbered as their sender numbers them, answers as what they answer; both from 0.
fn label(packet: &Data<'_>, is_request: bool, first: Psn) -> String {
    let psn = packet.headers.bth.psn;
    let number = psn.distance_from(first);
    match packet.headers.aeth.map(|aeth| aeth.syndrome.kind()) {
        _ if is_request => match packet.payload {
            [octet] => format!("SEND {octet}"),
            _ => format!("{} {number}", packet.headers.bth.opcode),
        },
        Some(AethKind::Ack { .. }) => format!("ACK {number}"),
        Some(AethKind::RnrNak { .. }) => format!("RNR NAK {number}"),
        Some(AethKind::Nak { .. }) => format!("NAK {number}"),
        Some(AethKind::Reserved(_)) | None => format!("{} {number}", packet.headers.bth.opcode),
    }
}
