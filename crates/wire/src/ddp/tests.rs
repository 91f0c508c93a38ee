use super::*;
use crate::codec::{Malformed, Reader, emitted_over_noise};
use crate::num::{MessageOffset, Msn, QueueNumber, Stag, TaggedOffset};
use crate::rdmap::Opcode;

const TAGGED: [u8; TaggedHeader::LEN] = [
    0x81, 0x42, 0xde, 0xad, 0xbe, 0xef, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,
];

const UNTAGGED: [u8; UntaggedHeader::LEN] = [
    0x41, 0x44, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3,
];

fn tagged() -> TaggedHeader {
    let to = TaggedOffset::new(0x0102_0304_0506_0708);
    TaggedHeader::new(Opcode::READ_RESPONSE, false, Stag::new(0xdead_beef), to)
}

fn untagged() -> UntaggedHeader {
    UntaggedHeader {
        control: Control::untagged(Opcode::SEND_INVALIDATE, true),
        invalidate_stag: Stag::new(0xdead_beef),
        queue: QueueNumber::new(1),
        msn: Msn::new(2),
        mo: MessageOffset::new(3),
    }
}

/// RFC 5040 §4.1 and RFC 7306 §4: the word of each message's last segment.
#[test]
fn control_word_of_every_message() {
    for (opcode, word) in [
        (Opcode::WRITE, 0xc140),
        (Opcode::READ_REQUEST, 0x4141),
        (Opcode::READ_RESPONSE, 0xc142),
        (Opcode::SEND, 0x4143),
        (Opcode::SEND_INVALIDATE, 0x4144),
        (Opcode::SEND_SE, 0x4145),
        (Opcode::SEND_SE_INVALIDATE, 0x4146),
        (Opcode::TERMINATE, 0x4147),
        (Opcode::IMMEDIATE, 0x4148),
        (Opcode::IMMEDIATE_SE, 0x4149),
        (Opcode::ATOMIC_REQUEST, 0x414a),
        (Opcode::ATOMIC_RESPONSE, 0x414b),
    ] {
        let make = if opcode.is_tagged() {
            Control::tagged
        } else {
            Control::untagged
        };
        assert_eq!(make(opcode, true), Control::from_bits(word));
        assert_eq!(make(opcode, false), Control::from_bits(word & !0x4000));
        assert_eq!(make(opcode, false).with_last(true), make(opcode, true));
        assert_eq!(make(opcode, true).with_last(false), make(opcode, false));
        assert_eq!(make(opcode, true).opcode(), opcode);
    }
}

#[test]
fn control_word_by_field() {
    let word = Control::from_bits(0x8000);
    assert!(word.is_tagged() && !word.is_last());
    assert!(Control::from_bits(0x4000).is_last());
    assert_eq!(Control::from_bits(0x3c30).reserved(), 0x3c30);
    assert_eq!(Control::from_bits(0xc3cf).reserved(), 0);
    assert_eq!(Control::from_bits(0x0200).ddp_version(), 2);
    assert_eq!(Control::from_bits(0x0080).rdmap_version(), 2);
    assert_eq!(Control::from_bits(0xffff).opcode().get(), 15);
    let current = Control::tagged(Opcode::WRITE, true);
    assert_eq!(current.ddp_version(), Control::DDP_VERSION);
    assert_eq!(current.rdmap_version(), Control::RDMAP_VERSION);
}

#[test]
fn every_control_word_survives() {
    for bits in 0..=u16::MAX {
        let word = Reader::all(&bits.to_be_bytes(), Control::parse).unwrap();
        assert_eq!(
            emitted_over_noise(Control::LEN, |writer| word.emit(writer)),
            bits.to_be_bytes()
        );
    }
}

#[test]
fn a_tagged_header() {
    assert_eq!(Reader::all(&TAGGED, TaggedHeader::parse), Ok(tagged()));
    assert_eq!(tagged().to_bytes(), TAGGED);
    assert_eq!(
        emitted_over_noise(TaggedHeader::LEN, |writer| tagged().emit(writer)),
        TAGGED
    );
}

#[test]
fn an_untagged_header() {
    assert_eq!(
        Reader::all(&UNTAGGED, UntaggedHeader::parse),
        Ok(untagged())
    );
    assert_eq!(untagged().to_bytes(), UNTAGGED);
    assert_eq!(
        emitted_over_noise(UntaggedHeader::LEN, |writer| untagged().emit(writer)),
        UNTAGGED
    );
}

#[test]
fn either_header_by_its_flag() {
    for (octets, header) in [
        (&TAGGED[..], DdpHeader::from(tagged())),
        (&UNTAGGED, untagged().into()),
    ] {
        assert_eq!(Reader::all(octets, DdpHeader::parse), Ok(header));
        assert_eq!(header.header_len(), octets.len());
        assert_eq!(DdpHeader::len_of(header.control()), octets.len());
        assert_eq!(
            emitted_over_noise(octets.len(), |writer| header.emit(writer)),
            octets
        );
    }
}

#[test]
fn the_other_model_is_refused() {
    let mut reader = Reader::new(&UNTAGGED);
    assert_eq!(TaggedHeader::parse(&mut reader), Err(Malformed::DdpModel));
    let mut octets = UNTAGGED;
    octets[0] |= 0x80;
    assert_eq!(
        UntaggedHeader::parse(&mut Reader::new(&octets)),
        Err(Malformed::DdpModel)
    );
}

#[test]
fn a_short_header_is_not_consumed() {
    for octets in [&TAGGED[..], &UNTAGGED] {
        for len in 0..octets.len() {
            let mut reader = Reader::new(&octets[..len]);
            assert_eq!(DdpHeader::parse(&mut reader), Err(Malformed::Truncated));
            assert_eq!(reader.remaining(), len);
        }
    }
}

#[test]
fn in_words() {
    assert_eq!(
        tagged().to_string(),
        "RDMA Read Response, STag 0xdeadbeef TO 0x102030405060708"
    );
    assert_eq!(
        DdpHeader::from(untagged()).to_string(),
        "Send with Invalidate last, QN 1 MSN 2 MO 3 invalidates 0xdeadbeef"
    );
    assert_eq!(
        Control::from_bits(0x3ebf).to_string(),
        "opcode 0xf DV 2 RV 2 reserved 0x3c30"
    );
}
