use super::*;
use crate::codec::emitted_over_noise;

/// What a stock Linux siw initiator sends: IRD 1, ORD 1, no peer-to-peer mode.
const SIW_REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x01\x00\x01";
const SIW_REPLY: &[u8] = b"MPA ID Rep Frame\x10\x02\x00\x04\x00\x01\x00\x01";

fn complete(kind: MpaKind, octets: &[u8]) -> MpaFrame<'_> {
    let (frame, len) = MpaFrame::parse(kind, octets).unwrap().complete().unwrap();
    assert_eq!(len, octets.len());
    assert_eq!(frame.frame_len(), len);
    let mut again = vec![0xff];
    frame.append_to(&mut again);
    assert_eq!(again[1..], *octets);
    assert_eq!(emitted_over_noise(len, |writer| frame.emit(writer)), octets);
    frame
}

#[test]
fn siw_request_and_reply() {
    let words = Enhanced {
        ird: 1,
        ord: 1,
        ..Enhanced::default()
    };
    let request = complete(MpaKind::Request, SIW_REQUEST);
    assert_eq!(request, MpaFrame::new(MpaKind::Request, words));
    assert_eq!(
        request.to_string(),
        "MPA request rev 2 IRD 1 ORD 1, 0 octets of private data"
    );
    assert_eq!(
        complete(MpaKind::Reply, SIW_REPLY),
        MpaFrame::new(MpaKind::Reply, words)
    );
}

#[test]
fn every_field() {
    let octets = b"MPA ID Rep Frame\xff\x02\x00\x07\xff\xff\x40\x05abc";
    let frame = complete(MpaKind::Reply, octets);
    assert!(frame.markers && frame.crc && frame.rejected);
    assert_eq!(frame.reserved, 0x0f);
    assert_eq!(frame.private_data, b"abc");
    let words = Enhanced {
        ird: IRD_ORD_NOT_NEGOTIATED,
        ord: 5,
        peer_to_peer: true,
        rtr_send: true,
        rtr_write: false,
        rtr_read: true,
    };
    assert_eq!(frame.enhanced, Some(words));
    assert_eq!(words.to_bytes(), [0xff, 0xff, 0x40, 0x05]);
    assert_eq!(
        frame.to_string(),
        "MPA reply rev 2 markers CRC rejected reserved 0x0f \
         IRD not negotiated ORD 5 peer-to-peer RTR-Send RTR-Read, 3 octets of private data"
    );
}

#[test]
fn each_enhanced_flag_has_its_bit() {
    let none = Enhanced::default();
    for (words, octets) in [
        (
            Enhanced {
                peer_to_peer: true,
                ..none
            },
            [0x80, 0, 0, 0],
        ),
        (
            Enhanced {
                rtr_send: true,
                ..none
            },
            [0x40, 0, 0, 0],
        ),
        (
            Enhanced {
                rtr_write: true,
                ..none
            },
            [0, 0, 0x80, 0],
        ),
        (
            Enhanced {
                rtr_read: true,
                ..none
            },
            [0, 0, 0x40, 0],
        ),
        (
            Enhanced {
                ird: 0x1234,
                ord: 0x0056,
                ..none
            },
            [0x12, 0x34, 0x00, 0x56],
        ),
    ] {
        assert_eq!(words.to_bytes(), octets);
        assert_eq!(Reader::all(&octets, Enhanced::parse), Ok(words));
    }
}

#[test]
fn a_depth_does_not_spill_into_the_flags() {
    let words = Enhanced {
        ird: 0xffff,
        ord: 0x4000,
        ..Enhanced::default()
    };
    assert_eq!(words.to_bytes(), [0x3f, 0xfe, 0x3f, 0xfe]);
}

/// In a frame of revision 1 the bit of S is a reserved bit and there are no words.
#[test]
fn before_revision_2_nothing_is_enhanced() {
    let frame = complete(MpaKind::Request, b"MPA ID Req Frame\x50\x01\x00\x02hi");
    assert_eq!(frame.enhanced, None);
    assert_eq!(frame.reserved, 0x10);
    assert!(frame.crc);
    assert_eq!(frame.private_data, b"hi");
    complete(MpaKind::Request, b"MPA ID Req Frame\x00\x00\x00\x00");
}

#[test]
fn revision_2_without_words() {
    let frame = complete(MpaKind::Reply, b"MPA ID Rep Frame\x20\x02\x00\x00");
    assert!(frame.rejected);
    assert_eq!((frame.enhanced, frame.reserved), (None, 0));
}

/// Every way to cut a frame asks for what is missing, as far as that is known.
#[test]
fn a_growing_stream() {
    let octets = b"MPA ID Rep Frame\x10\x02\x00\x07\x00\x01\x00\x01abc";
    for len in 0..octets.len() {
        let known = if len < MpaFrame::LEN {
            MpaFrame::LEN
        } else {
            octets.len()
        };
        assert_eq!(
            MpaFrame::parse(MpaKind::Reply, &octets[..len]),
            Ok(Parsed::NeedMore(known - len))
        );
    }
}

#[test]
fn octets_behind_the_frame_are_not_touched() {
    let mut stream = SIW_REPLY.to_vec();
    stream.extend_from_slice(&[0, 0x22, 0x41, 0x43]);
    let (_, len) = MpaFrame::parse(MpaKind::Reply, &stream)
        .unwrap()
        .complete()
        .unwrap();
    assert_eq!(len, SIW_REPLY.len());
}

#[test]
fn a_wrong_key_is_seen_at_its_first_wrong_octet() {
    for at in 0..KEY_LEN {
        let mut key = *MpaKind::Request.key();
        key[at] ^= 0x20;
        for len in 0..=KEY_LEN {
            let parsed = MpaFrame::parse(MpaKind::Request, &key[..len]);
            if len <= at {
                assert_eq!(parsed, Ok(Parsed::NeedMore(MpaFrame::LEN - len)));
            } else {
                assert_eq!(parsed, Err(Malformed::MpaKey));
            }
        }
    }
    assert_eq!(
        MpaFrame::parse(MpaKind::Request, b"GET "),
        Err(Malformed::MpaKey)
    );
    assert_eq!(
        MpaFrame::parse(MpaKind::Request, SIW_REPLY),
        Err(Malformed::MpaKey)
    );
    assert_eq!(
        MpaFrame::parse(MpaKind::Reply, SIW_REQUEST),
        Err(Malformed::MpaKey)
    );
}

#[test]
fn lengths_that_cannot_be() {
    for (header, error) in [
        (
            b"MPA ID Req Frame\x10\x02\x00\x03",
            Malformed::MpaEnhancedTooShort,
        ),
        (
            b"MPA ID Req Frame\x10\x02\x00\x00",
            Malformed::MpaEnhancedTooShort,
        ),
        (
            b"MPA ID Req Frame\x10\x02\x02\x01",
            Malformed::MpaPrivateDataTooLong,
        ),
        (
            b"MPA ID Req Frame\x00\x01\xff\xff",
            Malformed::MpaPrivateDataTooLong,
        ),
    ] {
        // Known as soon as the fixed part is there.
        assert_eq!(MpaFrame::parse(MpaKind::Request, header), Err(error));
    }
    let longest = MpaFrame::parse(MpaKind::Request, b"MPA ID Req Frame\x10\x02\x02\x00");
    assert_eq!(longest, Ok(Parsed::NeedMore(MAX_PRIVATE_DATA)));
}

#[test]
fn the_longest_frame() {
    let private_data = [7; MAX_PRIVATE_DATA - Enhanced::LEN];
    let frame = MpaFrame {
        private_data: &private_data,
        ..MpaFrame::new(MpaKind::Request, Enhanced::default())
    };
    let octets = emitted_over_noise(MpaFrame::MAX_LEN, |writer| frame.emit(writer));
    assert_eq!(complete(MpaKind::Request, &octets), frame);
}

#[test]
#[should_panic(expected = "513 octets of private data")]
fn a_longer_one_is_not_emitted() {
    let private_data = [7; MAX_PRIVATE_DATA - Enhanced::LEN + 1];
    let frame = MpaFrame {
        private_data: &private_data,
        ..MpaFrame::new(MpaKind::Request, Enhanced::default())
    };
    frame.append_to(&mut Vec::new());
}
