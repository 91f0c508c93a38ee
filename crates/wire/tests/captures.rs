//! Every frame that real Linux peers sent parses into typed values and comes out as the same
//! octets again, and its fields say what the protocol wants there.

mod support;

use std::collections::BTreeMap;

use softverbs_wire::ddp::{Control, DdpHeader};
use softverbs_wire::mpa::{Enhanced, Fpdu, MpaFrame, MpaKind};
use softverbs_wire::num::{MessageOffset, Msn};
use softverbs_wire::rdmap::{AtomicRequest, AtomicResponse, ImmediateData, Opcode, ReadRequest};
use softverbs_wire::terminate::{Terminate, TerminateLayout};
use softverbs_wire::{Malformed, Parsed, Reader, Writer};

use support::{Side, connections, pcap};

/// How much of what a capture contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    connections: usize,
    refused: usize,
    requests: usize,
    replies: usize,
    writes: usize,
    read_requests: usize,
    read_responses: usize,
    sends: usize,
    /// FPDUs whose PAD is not zero, which RFC 5044 §4.1 asks of a sender.
    noisy_pads: usize,
}

impl Counts {
    fn fpdus(&self) -> usize {
        self.writes + self.read_requests + self.read_responses + self.sends
    }
}

#[test]
fn rping() {
    check(
        "siw-rping.pcap",
        21,
        Counts {
            connections: 1,
            writes: 3,
            read_requests: 3,
            read_responses: 3,
            sends: 12,
            ..Counts::default()
        },
    );
}

#[test]
fn ib_write_bw() {
    check(
        "siw-write.pcap",
        47,
        Counts {
            connections: 2,
            writes: 15,
            sends: 32,
            noisy_pads: 2,
            ..Counts::default()
        },
    );
}

#[test]
fn ib_write_bw_of_long_messages() {
    check(
        "siw-write-200k.pcap",
        737,
        Counts {
            connections: 2,
            writes: 705,
            sends: 32,
            noisy_pads: 2,
            ..Counts::default()
        },
    );
}

#[test]
fn ib_read_bw() {
    check(
        "siw-read.pcap",
        52,
        Counts {
            connections: 2,
            read_requests: 5,
            read_responses: 15,
            sends: 32,
            noisy_pads: 2,
            ..Counts::default()
        },
    );
}

#[test]
fn ib_read_bw_of_long_messages() {
    check(
        "siw-read-200k.pcap",
        742,
        Counts {
            connections: 2,
            read_requests: 5,
            read_responses: 705,
            sends: 32,
            noisy_pads: 2,
            ..Counts::default()
        },
    );
}

#[test]
fn ib_send_bw() {
    check(
        "siw-send.pcap",
        39,
        Counts {
            connections: 2,
            writes: 2,
            sends: 37,
            noisy_pads: 2,
            ..Counts::default()
        },
    );
}

#[test]
fn ib_send_bw_in_both_directions() {
    check(
        "siw-send-bidir.pcap",
        46,
        Counts {
            connections: 2,
            writes: 4,
            sends: 42,
            noisy_pads: 2,
            ..Counts::default()
        },
    );
}

#[test]
fn rstream() {
    check(
        "siw-rstream.pcap",
        29,
        Counts {
            connections: 1,
            writes: 14,
            sends: 15,
            ..Counts::default()
        },
    );
}

#[test]
fn ucmatose() {
    check(
        "siw-ucmatose.pcap",
        6,
        Counts {
            connections: 1,
            sends: 6,
            ..Counts::default()
        },
    );
}

/// Connections set up and torn down: nothing but requests and replies.
#[test]
fn cmtime() {
    check(
        "siw-cmtime.pcap",
        0,
        Counts {
            connections: 20,
            ..Counts::default()
        },
    );
}

/// Refused by TCP: not even a request.
#[test]
fn no_server() {
    check(
        "siw-noserver.pcap",
        0,
        Counts {
            connections: 1,
            refused: 1,
            ..Counts::default()
        },
    );
}

/// No capture is left out.
#[test]
fn every_capture_has_its_test() {
    assert_eq!(pcap::count_of("siw-"), 11);
}

/// Parses all of a capture. Each connection that was not refused has one request and one reply.
fn check(capture: &str, fpdus: usize, expected: Counts) {
    let negotiated = expected.connections - expected.refused;
    let expected = Counts {
        requests: negotiated,
        replies: negotiated,
        ..expected
    };
    let mut counts = Counts::default();
    for connection in connections(capture) {
        counts.connections += 1;
        counts.refused += usize::from(connection.refused);
        for side in [Side::Initiator, Side::Responder] {
            let stream = connection.sent_by(side);
            if !stream.is_empty() {
                check_stream(side, stream, &mut counts);
            }
        }
    }
    assert_eq!(counts, expected);
    assert_eq!(counts.fpdus(), fpdus);
}

fn check_stream(side: Side, stream: &[u8], counts: &mut Counts) {
    let kind = match side {
        Side::Initiator => MpaKind::Request,
        Side::Responder => MpaKind::Reply,
    };
    let (frame, len) = arriving(stream, |octets| MpaFrame::parse(kind, octets));
    check_negotiation(&frame, &stream[..len]);
    match kind {
        MpaKind::Request => counts.requests += 1,
        MpaKind::Reply => counts.replies += 1,
    }

    let mut sequence = Sequence::default();
    let mut rest = &stream[len..];
    while !rest.is_empty() {
        let (fpdu, len) = arriving(rest, Fpdu::parse);
        let segment = Segment::parse(fpdu.ulpdu).unwrap();
        segment.check_encoding(&fpdu, &rest[..len]);
        sequence.check(&segment);
        match segment.header.control().opcode() {
            Opcode::WRITE => counts.writes += 1,
            Opcode::READ_REQUEST => counts.read_requests += 1,
            Opcode::READ_RESPONSE => counts.read_responses += 1,
            Opcode::SEND => counts.sends += 1,
            other => panic!("{other} is in none of the captures"),
        }
        counts.noisy_pads += usize::from(fpdu.trailer.pad().iter().any(|octet| *octet != 0));
        rest = &rest[len..];
    }
}

/// Parses the front of a stream as if only what the parser asked for had arrived.
fn arriving<'a, T>(
    stream: &'a [u8],
    parse: impl Fn(&'a [u8]) -> Result<Parsed<T>, Malformed>,
) -> (T, usize) {
    let mut arrived = 0;
    loop {
        match parse(&stream[..arrived]).unwrap() {
            Parsed::Complete { value, len } => {
                assert_eq!(len, arrived, "asked for more than it used");
                return (value, len);
            }
            Parsed::NeedMore(0) => panic!("asked for nothing"),
            Parsed::NeedMore(more) => arrived += more,
        }
        assert!(arrived <= stream.len(), "the stream ends inside a frame");
    }
}

/// What a stock siw negotiates: revision 2, no markers, no CRC, no peer-to-peer mode.
fn check_negotiation(frame: &MpaFrame<'_>, octets: &[u8]) {
    let mut again = Vec::new();
    frame.append_to(&mut again);
    assert_eq!(again, octets);
    let words = frame.enhanced.expect("siw sends the enhanced words");
    let expected = MpaFrame {
        private_data: frame.private_data,
        ..MpaFrame::new(
            frame.kind,
            Enhanced {
                ird: words.ird,
                ord: words.ord,
                ..Enhanced::default()
            },
        )
    };
    assert_eq!(*frame, expected);
    assert!(words.ird <= 128 && words.ord <= 128, "{frame}");
}

/// A DDP segment with every part that has a type as that type.
struct Segment<'a> {
    header: DdpHeader,
    operation: Operation,
    payload: &'a [u8],
}

/// What follows the DDP header.
enum Operation {
    Payload,
    ReadRequest(ReadRequest),
    AtomicRequest(AtomicRequest),
    AtomicResponse(AtomicResponse),
    Immediate(ImmediateData),
    Terminate(Terminate),
}

impl<'a> Segment<'a> {
    fn parse(ulpdu: &'a [u8]) -> Result<Self, Malformed> {
        Reader::all(ulpdu, |reader| {
            let header = DdpHeader::parse(reader)?;
            let operation = match header.control().opcode() {
                Opcode::READ_REQUEST => Operation::ReadRequest(ReadRequest::parse(reader)?),
                Opcode::ATOMIC_REQUEST => Operation::AtomicRequest(AtomicRequest::parse(reader)?),
                Opcode::ATOMIC_RESPONSE => {
                    Operation::AtomicResponse(AtomicResponse::parse(reader)?)
                }
                Opcode::IMMEDIATE | Opcode::IMMEDIATE_SE => {
                    Operation::Immediate(ImmediateData::parse(reader)?)
                }
                Opcode::TERMINATE => {
                    let (message, layout) = Terminate::parse_any(reader)?;
                    assert_eq!(layout, TerminateLayout::Rfc, "cannot be emitted as it was");
                    Operation::Terminate(message)
                }
                _ => Operation::Payload,
            };
            Ok(Self {
                header,
                operation,
                payload: reader.rest(),
            })
        })
    }

    fn check_encoding(&self, fpdu: &Fpdu<'_>, octets: &[u8]) {
        let mut again = vec![0xa5; octets.len()];
        let mut writer = Writer::new(&mut again);
        fpdu.length.emit(&mut writer);
        self.header.emit(&mut writer);
        match &self.operation {
            Operation::Payload => {}
            Operation::ReadRequest(request) => request.emit(&mut writer),
            Operation::AtomicRequest(request) => request.emit(&mut writer),
            Operation::AtomicResponse(response) => response.emit(&mut writer),
            Operation::Immediate(data) => data.emit(&mut writer),
            Operation::Terminate(message) => message.emit(&mut writer),
        }
        writer.bytes(self.payload);
        fpdu.trailer.emit(&mut writer);
        assert_eq!(writer.written(), octets.len());
        assert_eq!(again, octets);

        assert_eq!(fpdu.trailer.crc, [0; 4], "siw was not asked for CRCs");
        let opcode = self.header.control().opcode();
        let rebuilt = match self.header {
            DdpHeader::Tagged(_) => Control::tagged,
            DdpHeader::Untagged(_) => Control::untagged,
        }(opcode, self.header.control().is_last());
        assert_eq!(self.header.control(), rebuilt);
        assert_eq!(
            matches!(self.header, DdpHeader::Tagged(_)),
            opcode.is_tagged()
        );
        if matches!(self.operation, Operation::ReadRequest(_)) {
            assert_eq!(self.payload, []);
        }
    }
}

/// Numbers that have to follow each other (RFC 5041 §5), which they only do if they were read from
/// their right places.
#[derive(Default)]
struct Sequence {
    /// Of each queue: the message that is under way or due, and its next octet.
    queues: BTreeMap<u32, (Msn, MessageOffset)>,
    /// Of the tagged message under way: the next header that fits.
    tagged: Option<DdpHeader>,
}

impl Sequence {
    fn check(&mut self, segment: &Segment<'_>) {
        let octets = u32::try_from(segment.payload.len()).unwrap();
        match segment.header {
            DdpHeader::Untagged(header) => {
                let opcode = header.control.opcode();
                assert_eq!(Some(header.queue), opcode.queue(), "{header}");
                assert_eq!(header.invalidate_stag.get(), 0, "{header}");
                let (msn, mo) = self
                    .queues
                    .entry(header.queue.get())
                    .or_insert((Msn::FIRST, MessageOffset::ZERO));
                assert_eq!((header.msn, header.mo), (*msn, *mo));
                if header.control.is_last() {
                    (*msn, *mo) = (msn.next(), MessageOffset::ZERO);
                } else {
                    *mo = mo.checked_add(octets).unwrap();
                }
            }
            DdpHeader::Tagged(header) => {
                if let Some(DdpHeader::Tagged(due)) = self.tagged.take() {
                    assert_eq!((header.stag, header.to), (due.stag, due.to));
                }
                if !header.control.is_last() {
                    let mut due = header;
                    due.to = header.to.checked_add(octets.into()).unwrap();
                    self.tagged = Some(due.into());
                }
            }
        }
    }
}
