//! The Terminate message: what we tell the peer, and what we make of what it tells us.

use softverbs_wire::codec::Reader;
use softverbs_wire::crc32c::Crc32c;
use softverbs_wire::ddp::{DdpHeader, UntaggedHeader};
use softverbs_wire::mpa::fpdu::{Fpdu, Trailer, UlpduLength};
use softverbs_wire::mpa::marker;
use softverbs_wire::num::{MessageOffset, Msn, QueueNumber};
use softverbs_wire::rdmap::{Opcode, ReadRequest};
use softverbs_wire::terminate::{Terminate, TerminateCode, TerminateTriple};

use super::framer::Head;
use super::send_queue::Class;
use crate::fault::{Fault, TerminateHeaders};
use crate::wr::WcStatus;

/// The segment that was found at fault, as far as its headers are known.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Offender {
    /// Length of its ULPDU.
    pub(super) ulpdu_len: u16,
    /// Its DDP header.
    pub(super) header: Option<DdpHeader>,
    /// Its RDMAP header.
    pub(super) request: Option<ReadRequest>,
}

/// The message that tells the peer of a fault.
pub(super) fn message(fault: &Fault, offender: Offender) -> Terminate {
    let terminate = Terminate::new(fault.terminate_code());
    let Some(header) = offender.header else {
        return terminate;
    };
    let with_segment = terminate.with_segment(offender.ulpdu_len, header);
    match (fault.terminate_headers(), offender.request) {
        (TerminateHeaders::None, _) => terminate,
        (TerminateHeaders::DdpAndRdmap, Some(request)) => with_segment.with_read_request(request),
        (TerminateHeaders::Ddp | TerminateHeaders::DdpAndRdmap, _) => with_segment,
    }
}

/// The message as a segment: the only one of its queue (RFC 5040 §4.8).
pub(super) fn segment(terminate: &Terminate) -> Head {
    Head::new(|writer| {
        header().emit(writer);
        terminate.emit(writer);
    })
}

const fn header() -> UntaggedHeader {
    UntaggedHeader::new(
        Opcode::TERMINATE,
        true,
        QueueNumber::TERMINATE,
        Msn::FIRST,
        MessageOffset::ZERO,
    )
}

/// A Terminate as the first FPDU of a stream whose start-up went wrong. It carries a CRC, which
/// whoever does not want it ignores.
pub(super) fn terminate_fpdu(code: TerminateCode, markers: bool) -> Vec<u8> {
    let mut ulpdu = header().to_bytes().to_vec();
    Terminate::new(code).append_to(&mut ulpdu);
    let length = UlpduLength::new(u16::try_from(ulpdu.len()).unwrap_or(u16::MAX));
    let mut octets = Vec::new();
    if markers {
        let mut covered = length.to_bytes().to_vec();
        covered.extend_from_slice(&ulpdu);
        covered.extend_from_slice(Trailer::without_crc(length).pad());
        marker::insert(0, &covered, true, &mut octets);
    } else {
        let crc = Crc32c::new().update(&length.to_bytes()).update(&ulpdu);
        let trailer = Trailer::with_crc(length, crc);
        Fpdu {
            length,
            ulpdu: &ulpdu,
            trailer,
        }
        .append_to(&mut octets);
    }
    octets
}

/// What a received message says, and which of our requests it is about, if that can be told.
pub(super) fn interpret(body: &[u8]) -> (TerminateCode, Option<(Class, WcStatus)>) {
    let Ok((terminate, _layout)) = Terminate::parse_any(&mut Reader::new(body)) else {
        // It ends inside of the headers that it promises; the error itself comes before those.
        let [first, code] = body.first_chunk().copied().unwrap_or_default();
        let triple = TerminateTriple::new(first >> 4, first, code);
        return (TerminateCode::from_triple(triple), None);
    };
    let code = terminate.code;
    let class = match terminate.ddp_header() {
        Some(header) => class_of(header.control().opcode()),
        None => class_without_header(code),
    };
    let blame = class.zip(status_of(code));
    (code, blame)
}

fn class_of(opcode: Opcode) -> Option<Class> {
    match opcode {
        Opcode::WRITE => Some(Class::Write),
        Opcode::READ_REQUEST | Opcode::ATOMIC_REQUEST => Some(Class::Read),
        opcode if opcode.is_send() || opcode.is_immediate() => Some(Class::Send),
        _ => None,
    }
}

/// Which messages have errors of this kind (RFC 5040 §4.8, RFC 5041 §7).
const fn class_without_header(code: TerminateCode) -> Option<Class> {
    match code.to_triple() {
        TerminateTriple {
            layer: 0,
            etype: 1,
            code: 0x09,
        }
        | TerminateTriple {
            layer: 0,
            etype: 2,
            code: 0x09,
        } => Some(Class::Send),
        TerminateTriple {
            layer: 0, etype: 1, ..
        } => Some(Class::Read),
        TerminateTriple {
            layer: 1, etype: 1, ..
        } => Some(Class::Write),
        TerminateTriple {
            layer: 1, etype: 2, ..
        } => Some(Class::Send),
        _ => None,
    }
}

/// What the verbs call an error that the peer found in a request of ours; `None` for those that
/// no request is to blame for.
const fn status_of(code: TerminateCode) -> Option<WcStatus> {
    match code.to_triple() {
        TerminateTriple {
            layer: 0,
            etype: 1,
            code: 0x09,
        } => Some(WcStatus::RemInvReqErr),
        TerminateTriple {
            layer: 0 | 1,
            etype: 1,
            ..
        } => Some(WcStatus::RemAccessErr),
        // The peer had no receive, or too small a one.
        TerminateTriple {
            layer: 1,
            etype: 2,
            code: 0x02,
        } => Some(WcStatus::RemOpErr),
        TerminateTriple {
            layer: 1, etype: 2, ..
        } => Some(WcStatus::RemInvReqErr),
        TerminateTriple {
            layer: 0,
            etype: 2,
            code: 0x07 | 0x08 | 0xff,
        } => Some(WcStatus::RemOpErr),
        TerminateTriple {
            layer: 0, etype: 2, ..
        } => Some(WcStatus::RemInvReqErr),
        _ => None,
    }
}
