//! Any octets can be parsed without a panic, and what was parsed is emitted as the same octets.

#[path = "support/effort.rs"]
mod effort;
#[path = "support/roundtrip.rs"]
mod roundtrip;

use proptest::collection::vec;
use proptest::prelude::*;

use softverbs_wire::ddp::{Control, DdpHeader, TaggedHeader, UntaggedHeader};
use softverbs_wire::mpa::{Enhanced, Fpdu, Marker, MpaFrame, MpaKind, Trailer, UlpduLength};
use softverbs_wire::num::{MessageOffset, Msn, QueueNumber, Stag, TaggedOffset};
use softverbs_wire::rdmap::{
    AtomicOp, AtomicRequest, AtomicResponse, ImmediateData, Opcode, ReadRequest,
};
use softverbs_wire::terminate::{Terminate, TerminateCode, TerminateTriple};
use softverbs_wire::{Malformed, Parsed, Reader, Writer};

use effort::effort;
use roundtrip::same_octets;

/// If `value` is emitted and parsed, it is still `value`.
fn same_value<T: PartialEq + std::fmt::Debug>(
    value: &T,
    len: usize,
    emit: impl FnOnce(&T, &mut Writer<'_>),
    parse: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
) {
    let mut octets = vec![0xa5; len];
    emit(value, &mut Writer::new(&mut octets));
    assert_eq!(Reader::all(&octets, parse).as_ref(), Ok(value));
}

fn opcode() -> impl Strategy<Value = Opcode> {
    any::<u8>().prop_map(Opcode::new)
}

fn tagged_header() -> impl Strategy<Value = TaggedHeader> {
    (any::<u16>(), any::<u32>(), any::<u64>()).prop_map(|(control, stag, to)| TaggedHeader {
        control: Control::from_bits(control | 0x8000),
        stag: Stag::new(stag),
        to: TaggedOffset::new(to),
    })
}

fn untagged_header() -> impl Strategy<Value = UntaggedHeader> {
    (any::<u16>(), any::<[u32; 4]>()).prop_map(|(control, [stag, queue, msn, mo])| UntaggedHeader {
        control: Control::from_bits(control & 0x7fff),
        invalidate_stag: Stag::new(stag),
        queue: QueueNumber::new(queue),
        msn: Msn::new(msn),
        mo: MessageOffset::new(mo),
    })
}

fn ddp_header() -> impl Strategy<Value = DdpHeader> {
    prop_oneof![
        tagged_header().prop_map(DdpHeader::from),
        untagged_header().prop_map(DdpHeader::from),
    ]
}

fn read_request() -> impl Strategy<Value = ReadRequest> {
    (any::<[u32; 3]>(), any::<[u64; 2]>()).prop_map(
        |([sink, size, source], [sink_to, source_to])| ReadRequest {
            sink_stag: Stag::new(sink),
            sink_to: TaggedOffset::new(sink_to),
            size,
            source_stag: Stag::new(source),
            source_to: TaggedOffset::new(source_to),
        },
    )
}

fn terminate() -> impl Strategy<Value = Terminate> {
    let segment = proptest::option::of((any::<u16>(), ddp_header()));
    let code = any::<[u8; 3]>().prop_map(|[layer, etype, code]| {
        TerminateCode::from_triple(TerminateTriple::new(layer, etype, code))
    });
    let request = proptest::option::of(read_request());
    (code, 0..0x2000_u16, segment, request).prop_map(|(code, reserved, segment, request)| {
        let mut message = Terminate::new(code);
        message.reserved = reserved;
        if let Some((len, header)) = segment {
            message = message.with_segment(len, header);
        }
        if let Some(request) = request {
            message = message.with_read_request(request);
        }
        message
    })
}

fn enhanced() -> impl Strategy<Value = Enhanced> {
    (0..0x4000_u16, 0..0x4000_u16, any::<[bool; 4]>()).prop_map(
        |(ird, ord, [peer_to_peer, rtr_send, rtr_write, rtr_read])| Enhanced {
            ird,
            ord,
            peer_to_peer,
            rtr_send,
            rtr_write,
            rtr_read,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256 * effort()))]

    #[test]
    fn headers_from_any_octets(octets in vec(any::<u8>(), 0..100)) {
        same_octets(&octets, Control::parse, Control::emit);
        same_octets(&octets, TaggedHeader::parse, TaggedHeader::emit);
        same_octets(&octets, UntaggedHeader::parse, UntaggedHeader::emit);
        same_octets(&octets, DdpHeader::parse, DdpHeader::emit);
        same_octets(&octets, ReadRequest::parse, ReadRequest::emit);
        same_octets(&octets, AtomicRequest::parse, AtomicRequest::emit);
        same_octets(&octets, AtomicResponse::parse, AtomicResponse::emit);
        same_octets(&octets, ImmediateData::parse, ImmediateData::emit);
        same_octets(&octets, Terminate::parse, Terminate::emit);
        same_octets(&octets, Marker::parse, Marker::emit);
        same_octets(&octets, Enhanced::parse, Enhanced::emit);
        same_octets(&octets, UlpduLength::parse, UlpduLength::emit);
        if let Ok((message, _)) = Terminate::parse_any(&mut Reader::new(&octets)) {
            prop_assert!(message.message_len() <= Terminate::MAX_LEN);
        }
    }

    #[test]
    fn a_trailer_from_any_octets(len in any::<u16>(), octets in vec(any::<u8>(), 0..10)) {
        let length = UlpduLength::new(len);
        same_octets(&octets, |reader| Trailer::parse(length, reader), Trailer::emit);
    }

    #[test]
    fn an_fpdu_from_any_octets(stream in vec(any::<u8>(), 0..600), short in any::<bool>()) {
        let mut stream = stream;
        if short && let Some(high) = stream.first_mut() {
            *high &= 0x01;
        }
        match Fpdu::parse(&stream) {
            Ok(Parsed::Complete { value, len }) => {
                let mut again = vec![0xa5; len];
                value.emit(&mut Writer::new(&mut again));
                prop_assert_eq!(again, &stream[..len]);
            }
            Ok(Parsed::NeedMore(more)) => prop_assert!(more > 0),
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn an_mpa_frame_from_any_octets(
        reply in any::<bool>(),
        with_key in any::<bool>(),
        octets in vec(any::<u8>(), 0..600),
        short in any::<bool>(),
    ) {
        let kind = if reply { MpaKind::Reply } else { MpaKind::Request };
        let mut stream = if with_key { kind.key().to_vec() } else { Vec::new() };
        stream.extend_from_slice(&octets);
        if short && let Some(high) = stream.get_mut(18) {
            *high = 0;
        }
        match MpaFrame::parse(kind, &stream) {
            Ok(Parsed::Complete { value, len }) => {
                let mut again = Vec::new();
                value.append_to(&mut again);
                prop_assert_eq!(again, &stream[..len]);
            }
            Ok(Parsed::NeedMore(more)) => prop_assert!(more > 0),
            Err(_) => {}
        }
    }

    #[test]
    fn a_ddp_header_stays_itself(header in ddp_header()) {
        same_value(&header, header.header_len(), DdpHeader::emit, DdpHeader::parse);
    }

    #[test]
    fn a_control_word_stays_itself(opcode in opcode(), last in any::<bool>()) {
        for control in [Control::tagged(opcode, last), Control::untagged(opcode, last)] {
            same_value(&control, Control::LEN, Control::emit, Control::parse);
            prop_assert_eq!(control.opcode(), opcode);
            prop_assert_eq!(control.is_last(), last);
        }
    }

    #[test]
    fn a_read_request_stays_itself(request in read_request()) {
        same_value(&request, ReadRequest::LEN, ReadRequest::emit, ReadRequest::parse);
    }

    #[test]
    fn an_atomic_request_stays_itself(
        operation in any::<u8>(),
        words in any::<[u32; 3]>(),
        longs in any::<[u64; 5]>(),
    ) {
        let request = AtomicRequest {
            operation: AtomicOp::new(operation),
            reserved: words[0] & !0x0f,
            request_id: words[1],
            stag: Stag::new(words[2]),
            to: TaggedOffset::new(longs[0]),
            add_or_swap: longs[1],
            add_or_swap_mask: longs[2],
            compare: longs[3],
            compare_mask: longs[4],
        };
        same_value(&request, AtomicRequest::LEN, AtomicRequest::emit, AtomicRequest::parse);
    }

    #[test]
    fn a_terminate_stays_itself(message in terminate()) {
        same_value(&message, message.message_len(), Terminate::emit, Terminate::parse);
    }

    #[test]
    fn an_mpa_frame_stays_itself(
        reply in any::<bool>(),
        flags in any::<[bool; 3]>(),
        reserved in 0..16_u8,
        revision in any::<u8>(),
        words in proptest::option::of(enhanced()),
        private_data in vec(any::<u8>(), 0..=508),
    ) {
        let kind = if reply { MpaKind::Reply } else { MpaKind::Request };
        let frame = MpaFrame {
            kind,
            markers: flags[0],
            crc: flags[1],
            rejected: flags[2],
            reserved,
            revision,
            enhanced: words.filter(|_| revision >= MpaFrame::REVISION),
            private_data: &private_data,
        };
        let mut octets = Vec::new();
        frame.append_to(&mut octets);
        let len = octets.len();
        prop_assert_eq!(MpaFrame::parse(kind, &octets), Ok(Parsed::Complete { value: frame, len }));
    }
}
