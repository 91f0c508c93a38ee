//! FPDUs made by hand, and what came back.

use softverbs_proto::iwarp::negotiate::Negotiated;
use softverbs_proto::iwarp::stream::Role;
use softverbs_proto::wr::SendOp;
use softverbs_wire::codec::{Parsed, Reader};
use softverbs_wire::crc32c::Crc32c;
use softverbs_wire::ddp::{Control, DdpHeader, TaggedHeader, UntaggedHeader};
use softverbs_wire::mpa::fpdu::{Fpdu, Trailer, UlpduLength};
use softverbs_wire::num::{MessageOffset, Msn, QueueNumber, Stag, TaggedOffset};
use softverbs_wire::rdmap::{AtomicRequest, AtomicResponse, Opcode, ReadRequest};
use softverbs_wire::terminate::Terminate;

use super::{End, LARGEST, RESPONDER, VecMemory, at, config, pattern, rkey, sge, wr};

/// A frame with a right CRC.
pub fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let length = UlpduLength::new(u16::try_from(ulpdu.len()).unwrap());
    let crc = Crc32c::new().update(&length.to_bytes()).update(ulpdu);
    let mut octets = Vec::new();
    Fpdu {
        length,
        ulpdu,
        trailer: Trailer::with_crc(length, crc),
    }
    .append_to(&mut octets);
    octets
}

pub fn tagged(opcode: Opcode, last: bool, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let header = TaggedHeader::new(opcode, last, Stag::new(stag), TaggedOffset::new(to));
    fpdu(&[&header.to_bytes(), payload].concat())
}

pub fn write(last: bool, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    tagged(Opcode::WRITE, last, stag, to, payload)
}

pub fn read_response(last: bool, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    tagged(Opcode::READ_RESPONSE, last, stag, to, payload)
}

/// An untagged header, for changes.
pub fn header(opcode: Opcode, last: bool, msn: u32, mo: u32) -> UntaggedHeader {
    let queue = opcode.queue().unwrap();
    UntaggedHeader::new(opcode, last, queue, Msn::new(msn), MessageOffset::new(mo))
}

pub fn untagged(header: UntaggedHeader, body: &[u8]) -> Vec<u8> {
    fpdu(&[&header.to_bytes(), body].concat())
}

pub fn send(last: bool, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    untagged(header(Opcode::SEND, last, msn, mo), payload)
}

pub fn read_request(msn: u32, stag: u32, to: u64, size: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: Stag::new(0x55aa),
        sink_to: TaggedOffset::new(0x7777),
        size,
        source_stag: Stag::new(stag),
        source_to: TaggedOffset::new(to),
    };
    untagged(
        header(Opcode::READ_REQUEST, true, msn, 0),
        &request.to_bytes(),
    )
}

pub fn fetch_add(msn: u32, stag: u32, to: u64, add: u64) -> Vec<u8> {
    let request = AtomicRequest::fetch_add(9, Stag::new(stag), TaggedOffset::new(to), add);
    untagged(
        header(Opcode::ATOMIC_REQUEST, true, msn, 0),
        &request.to_bytes(),
    )
}

pub fn atomic_response(msn: u32, request_id: u32, original: u64) -> Vec<u8> {
    let response = AtomicResponse {
        request_id,
        original,
    };
    untagged(
        header(Opcode::ATOMIC_RESPONSE, true, msn, 0),
        &response.to_bytes(),
    )
}

/// A frame whose control word is changed.
pub fn with_control(frame: &[u8], change: impl FnOnce(u16) -> u16) -> Vec<u8> {
    let length = usize::from(u16::from_be_bytes([frame[0], frame[1]]));
    let mut ulpdu = frame[2..2 + length].to_vec();
    let word = change(u16::from_be_bytes([ulpdu[0], ulpdu[1]]));
    ulpdu[..2].copy_from_slice(&word.to_be_bytes());
    fpdu(&ulpdu)
}

pub fn on_queue(mut header: UntaggedHeader, queue: u32) -> UntaggedHeader {
    header.queue = QueueNumber::new(queue);
    header
}

/// The segments in what an end sent (a stream without markers): header and what follows it.
pub fn segments(mut octets: &[u8]) -> Vec<(DdpHeader, Vec<u8>)> {
    let mut segments = Vec::new();
    while !octets.is_empty() {
        let Ok(Parsed::Complete { value, len }) = Fpdu::parse(octets) else {
            panic!("half a frame of {} octets", octets.len());
        };
        let mut reader = Reader::new(value.ulpdu);
        segments.push((
            DdpHeader::parse(&mut reader).unwrap(),
            reader.rest().to_vec(),
        ));
        octets = &octets[len..];
    }
    segments
}

pub fn controls(octets: &[u8]) -> Vec<Control> {
    segments(octets)
        .into_iter()
        .map(|(header, _)| header.control())
        .collect()
}

/// The Terminate message in a segment.
pub fn terminate(segment: &(DdpHeader, Vec<u8>)) -> Option<Terminate> {
    let (DdpHeader::Untagged(header), body) = segment else {
        return None;
    };
    if header.control.opcode() != Opcode::TERMINATE {
        return None;
    }
    assert_eq!(header.queue, QueueNumber::TERMINATE);
    assert_eq!((header.msn.get(), header.mo.get()), (1, 0));
    assert!(header.control.is_last());
    Some(Reader::all(body, Terminate::parse).unwrap())
}

/// An end whose peer is the test: it serves region 1 to everyone, region 2 to nobody, region 3
/// belongs to another protection domain, region 4 may be written and read locally only; region 9
/// takes receives.
pub fn victim(negotiated: Negotiated) -> End {
    let mut end = End::new(config());
    let everything = VecMemory::all_access();
    end.memory.add(1, 0x1000, everything, &pattern(1, 4096));
    end.memory.add(
        2,
        0x2000,
        softverbs_proto::memory::Access::empty(),
        &pattern(2, 64),
    );
    end.memory.add(3, 0x3000, everything, &pattern(3, 64));
    end.memory.region_mut(3).our_pd = false;
    end.memory.add(
        4,
        0x4000,
        softverbs_proto::memory::Access::LOCAL_WRITE,
        &pattern(4, 64),
    );
    end.memory
        .add(8, u64::MAX - 63, everything, &pattern(8, 63));
    end.memory.add(9, 0x9000, everything, &[0; 256]);
    for wr_id in 0..3 {
        end.memory
            .post_receive(wr_id, [sge(9, 0x9000 + 64 * wr_id, 64)]);
    }
    end.stream.attach(at(0), RESPONDER, negotiated, LARGEST);
    end.drain();
    end
}

impl End {
    /// Transmits everything.
    pub fn flush(&mut self) {
        while self.transmit(at(0), 1 << 20, 1024) {}
    }

    /// The Terminate that the end sent as its last frame.
    pub fn terminate(&mut self) -> Option<Terminate> {
        self.flush();
        segments(&self.record).last().and_then(terminate)
    }
}

/// A victim in the other role.
pub fn victim_of(negotiated: Negotiated, initiator: bool) -> End {
    let mut end = victim(negotiated.clone());
    if initiator {
        let memory = end.memory.clone();
        end = End::new(config());
        end.memory = memory;
        end.stream
            .attach(at(0), Role::Initiator, negotiated, LARGEST);
        end.drain();
    }
    end
}

/// Requests of our own, so that answers have something to answer.
pub fn own_requests(end: &mut End) -> Vec<u64> {
    let read = SendOp::Read {
        remote_addr: 0,
        rkey: rkey(1),
    };
    let add = SendOp::FetchAdd {
        remote_addr: 0,
        rkey: rkey(1),
        add: 1,
    };
    let requests = [
        wr(0, read, sge(9, 0x9080, 40)),
        wr(1, add, sge(9, 0x90c0, 8)),
        wr(2, read, sge(9, 0x90c8, 0)),
        wr(3, SendOp::Send, sge(1, 0x1000, 3000)),
    ];
    let mut posted = Vec::new();
    for request in requests {
        let wr_id = request.wr_id;
        if end.stream.post_send(request).is_ok() {
            posted.push(wr_id);
        }
    }
    posted
}
