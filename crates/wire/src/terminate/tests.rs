use std::collections::HashSet;

use super::*;
use crate::codec::{Malformed, Reader, emitted_over_noise};
use crate::ddp::{DdpHeader, TaggedHeader, UntaggedHeader};
use crate::num::{MessageOffset, Msn, QueueNumber, Stag, TaggedOffset};
use crate::rdmap::{Opcode, ReadRequest};

/// RFC 5040 §4.8, RFC 5041 §7, RFC 5044 §8, RFC 6581 §8: each type and its codes.
const TABLE: &[(u8, u8, &[u8])] = &[
    (0, 0, &[0x00]),
    (0, 1, &[0x00, 0x01, 0x02, 0x03, 0x04, 0x09, 0xff]),
    (0, 2, &[0x05, 0x06, 0x07, 0x08, 0x09, 0xff]),
    (1, 0, &[0x00]),
    (1, 1, &[0x00, 0x01, 0x02, 0x03, 0x04]),
    (1, 2, &[0x01, 0x02, 0x03, 0x04, 0x05, 0x06]),
    (2, 0, &[0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07]),
];

fn write_header() -> DdpHeader {
    TaggedHeader::new(
        Opcode::WRITE,
        true,
        Stag::new(0x0a0b_0c0d),
        TaggedOffset::new(0x10),
    )
    .into()
}

fn read_header() -> DdpHeader {
    UntaggedHeader::new(
        Opcode::READ_REQUEST,
        true,
        QueueNumber::READ_REQUEST,
        Msn::new(3),
        MessageOffset::ZERO,
    )
    .into()
}

fn read_request() -> ReadRequest {
    ReadRequest {
        sink_stag: Stag::new(1),
        sink_to: TaggedOffset::new(2),
        size: 3,
        source_stag: Stag::new(4),
        source_to: TaggedOffset::new(5),
    }
}

fn octets_of(message: Terminate) -> Vec<u8> {
    let mut octets = Vec::new();
    message.append_to(&mut octets);
    assert_eq!(octets.len(), message.message_len());
    assert_eq!(
        octets,
        emitted_over_noise(octets.len(), |writer| message.emit(writer))
    );
    octets
}

/// The same message as siw lays it out (struct iwarp_terminate on a little-endian host).
fn as_siw(message: Terminate) -> Vec<u8> {
    let mut octets = octets_of(message);
    octets[0] = octets[0].rotate_left(4);
    octets[2] = octets[2].reverse_bits();
    octets
}

#[test]
fn every_triple_both_ways() {
    let mut known = 0;
    for layer in 0..16 {
        for etype in 0..16 {
            for code in 0..=u8::MAX {
                let triple = TerminateTriple::new(layer, etype, code);
                let expected = TABLE
                    .iter()
                    .any(|(l, e, codes)| (*l, *e) == (layer, etype) && codes.contains(&code));
                let value = TerminateCode::from(triple);
                assert_eq!(TerminateTriple::from(value), triple);
                assert_eq!(
                    !matches!(value, TerminateCode::Unknown(_)),
                    expected,
                    "{triple}"
                );
                known += usize::from(expected);
            }
        }
    }
    assert_eq!(known, 33);
    assert_eq!(TerminateCode::ALL.len(), known);
}

#[test]
fn every_code_both_ways() {
    for code in TerminateCode::ALL {
        assert_eq!(TerminateCode::from_triple(code.to_triple()), *code);
    }
    let texts: HashSet<_> = TerminateCode::ALL
        .iter()
        .map(|code| code.meaning().unwrap())
        .collect();
    assert_eq!(
        texts.len(),
        TerminateCode::ALL.len(),
        "two codes read the same"
    );
}

/// Spot checks by hand, so that a line of the table in the wrong place shows.
#[test]
fn codes_by_name() {
    for (code, triple) in [
        (TerminateCode::RdmapLocalCatastrophic, (0, 0, 0)),
        (TerminateCode::ProtectionAccess, (0, 1, 2)),
        (TerminateCode::OperationUnexpectedOpcode, (0, 2, 6)),
        (TerminateCode::TaggedToWrap, (1, 1, 3)),
        (TerminateCode::UntaggedNoBuffer, (1, 2, 2)),
        (TerminateCode::UntaggedMsnRange, (1, 2, 3)),
        (TerminateCode::MpaCrc, (2, 0, 2)),
        (TerminateCode::MpaNoMatchingRtr, (2, 0, 7)),
    ] {
        let (layer, etype, number) = triple;
        assert_eq!(code.to_triple(), TerminateTriple::new(layer, etype, number));
    }
}

#[test]
fn codes_in_words() {
    assert_eq!(
        TerminateCode::UntaggedNoBuffer.to_string(),
        "no buffer available for the message (layer 1 type 2 code 0x02)"
    );
    let unknown = |layer, etype, code| {
        TerminateCode::from_triple(TerminateTriple::new(layer, etype, code)).to_string()
    };
    assert_eq!(unknown(2, 3, 2), "unknown error (layer 2 type 3 code 0x02)");
    // RFC 5040 §4.8, RFC 5041 §7: any code may stand with these types.
    assert_eq!(
        unknown(0, 0, 7),
        "local catastrophic error (layer 0 type 0 code 0x07)"
    );
    assert_eq!(
        unknown(1, 0, 7),
        "local catastrophic error of DDP (layer 1 type 0 code 0x07)"
    );
}

#[test]
fn an_error_alone() {
    let message = Terminate::new(TerminateCode::MpaInsufficientIrd);
    assert_eq!(octets_of(message), [0x20, 0x06, 0x00, 0x00]);
    assert_eq!(
        Reader::all(&octets_of(message), Terminate::parse),
        Ok(message)
    );
    assert_eq!((message.segment_len(), message.ddp_header()), (None, None));
}

#[test]
fn with_the_segment_that_caused_it() {
    let message = Terminate::new(TerminateCode::TaggedBounds).with_segment(0x1234, write_header());
    let octets = octets_of(message);
    assert_eq!(octets[..6], [0x11, 0x01, 0xc0, 0x00, 0x12, 0x34]);
    assert_eq!(octets[6..10], [0xc1, 0x40, 0x0a, 0x0b]);
    assert_eq!(octets.len(), 4 + 2 + TaggedHeader::LEN);
    assert_eq!(Reader::all(&octets, Terminate::parse), Ok(message));
    assert_eq!(message.segment_len(), Some(0x1234));
    assert_eq!(message.ddp_header(), Some(write_header()));
    assert_eq!(
        message.to_string(),
        "tagged segment exceeds its buffer (layer 1 type 1 code 0x01), segment of 4660 octets, \
         RDMA Write last, STag 0x0a0b0c0d TO 0x10"
    );
}

#[test]
fn with_the_read_request_that_caused_it() {
    let message = Terminate::new(TerminateCode::ProtectionAccess)
        .with_segment(0x2e, read_header())
        .with_read_request(read_request());
    let octets = octets_of(message);
    assert_eq!(octets[..6], [0x01, 0x02, 0xe0, 0x00, 0x00, 0x2e]);
    assert_eq!(octets.len(), Terminate::MAX_LEN);
    assert_eq!(octets[24..], read_request().to_bytes());
    assert_eq!(Reader::all(&octets, Terminate::parse), Ok(message));
    assert_eq!(message.read_request(), Some(read_request()));
}

/// M without D, D without M, and reserved bits: unusual, and kept.
#[test]
fn odd_flags_survive() {
    let mut length_alone = vec![0x10, 0x00, 0x80, 0x00, 0x00, 0x05];
    let mut header_alone = vec![0x10, 0x00, 0x5f, 0xff, 0x00, 0x05];
    header_alone.extend_from_slice(&[0xc1; TaggedHeader::LEN]);
    let mut request_alone = vec![0x10, 0x00, 0x20, 0x01];
    request_alone.extend_from_slice(&read_request().to_bytes());
    for octets in [&mut length_alone, &mut header_alone, &mut request_alone] {
        let message = Reader::all(octets, Terminate::parse).unwrap();
        assert_eq!(octets_of(message), *octets);
    }
    let message = Reader::all(&header_alone, Terminate::parse).unwrap();
    assert_eq!(
        message.segment_len(),
        None,
        "without M the length is not to be believed"
    );
}

#[test]
fn a_short_message_is_not_consumed() {
    let message = Terminate::new(TerminateCode::ProtectionAccess)
        .with_segment(0x2e, read_header())
        .with_read_request(read_request());
    for octets in [octets_of(message), as_siw(message)] {
        for len in 0..octets.len() {
            let mut reader = Reader::new(&octets[..len]);
            assert_eq!(Terminate::parse_any(&mut reader), Err(Malformed::Truncated));
            assert_eq!(reader.remaining(), len);
        }
    }
    let octets = octets_of(message);
    let mut reader = Reader::new(&octets[..30]);
    assert_eq!(Terminate::parse(&mut reader), Err(Malformed::Truncated));
    assert_eq!(reader.remaining(), 30);
}

/// With any of M, D, R the flag octet tells the layout, whatever the error.
#[test]
fn both_layouts_of_every_code() {
    for code in TerminateCode::ALL {
        let message = Terminate::new(*code).with_segment(100, write_header());
        assert_eq!(
            Reader::all(&octets_of(message), Terminate::parse_any),
            Ok((message, TerminateLayout::Rfc))
        );
        assert_eq!(
            Reader::all(&as_siw(message), Terminate::parse_any),
            Ok((message, TerminateLayout::Siw))
        );
        let message = Terminate::new(*code).with_read_request(read_request());
        for (octets, layout) in [
            (octets_of(message), TerminateLayout::Rfc),
            (as_siw(message), TerminateLayout::Siw),
        ] {
            assert_eq!(
                Reader::all(&octets, Terminate::parse_any),
                Ok((message, layout))
            );
        }
    }
    let message = Terminate::new(TerminateCode::ProtectionBounds)
        .with_segment(0x2e, read_header())
        .with_read_request(read_request());
    assert_eq!(
        Reader::all(&as_siw(message), Terminate::parse_any),
        Ok((message, TerminateLayout::Siw))
    );
}

/// The flags decide even where the error would say otherwise.
#[test]
fn flags_outweigh_the_error() {
    for (flags, layout, code) in [
        (
            0x20,
            TerminateLayout::Rfc,
            TerminateCode::from_triple(TerminateTriple::new(0, 2, 2)),
        ),
        (0x04, TerminateLayout::Siw, TerminateCode::MpaCrc),
    ] {
        let mut octets = vec![0x02, 0x02, flags, 0x00];
        octets.extend_from_slice(&read_request().to_bytes());
        let (message, found) = Reader::all(&octets, Terminate::parse_any).unwrap();
        assert_eq!((found, message.code), (layout, code));
        assert_eq!(message.read_request(), Some(read_request()));
    }
}

/// The octets of a siw that found a CRC mismatch, first four.
#[test]
fn siw_octets_by_hand() {
    let mut octets = vec![0x02, 0x02, 0x03, 0x00, 0x00, 0x10];
    octets.extend_from_slice(&match write_header() {
        DdpHeader::Tagged(header) => header.to_bytes(),
        DdpHeader::Untagged(_) => unreachable!(),
    });
    let (message, layout) = Reader::all(&octets, Terminate::parse_any).unwrap();
    assert_eq!(layout, TerminateLayout::Siw);
    assert_eq!(message.code, TerminateCode::MpaCrc);
    assert_eq!(message.segment_len(), Some(16));
    assert_eq!(octets_of(message)[..4], [0x20, 0x02, 0xc0, 0x00]);
}

/// Without M, D, R the error decides; if it makes sense both ways, the RFC wins.
#[test]
fn layouts_without_flags() {
    for (octets, layout, code) in [
        ([0x20, 2, 0, 0], TerminateLayout::Rfc, TerminateCode::MpaCrc),
        ([0x02, 2, 0, 0], TerminateLayout::Siw, TerminateCode::MpaCrc),
        (
            [0x02, 5, 0, 0],
            TerminateLayout::Rfc,
            TerminateCode::OperationRdmapVersion,
        ),
        (
            [0x21, 5, 0, 0],
            TerminateLayout::Siw,
            TerminateCode::UntaggedTooLong,
        ),
        (
            [0x00, 0, 0, 0],
            TerminateLayout::Rfc,
            TerminateCode::RdmapLocalCatastrophic,
        ),
        (
            // cxgb4 names MPA's errors with type 3.
            [0x23, 2, 0, 0],
            TerminateLayout::Rfc,
            TerminateCode::Unknown(TerminateTriple::new(2, 3, 2)),
        ),
    ] {
        let (message, found) = Reader::all(&octets, Terminate::parse_any).unwrap();
        assert_eq!((found, message.code), (layout, code), "{octets:02x?}");
    }
}
