use super::*;
use crate::codec::emitted_over_noise;
use crate::ddp::{TaggedHeader, UntaggedHeader};
use crate::num::{MessageOffset, Msn, QueueNumber, Stag, TaggedOffset};
use crate::rdmap::{Opcode, ReadRequest};

/// The FPDU of a ULPDU that is here as a whole.
fn framed(ulpdu: &[u8]) -> Vec<u8> {
    let length = UlpduLength::new(u16::try_from(ulpdu.len()).unwrap());
    let crc = Crc32c::new().update(&length.to_bytes()).update(ulpdu);
    let fpdu = Fpdu {
        length,
        ulpdu,
        trailer: Trailer::with_crc(length, crc),
    };
    let mut octets = Vec::new();
    fpdu.append_to(&mut octets);
    assert_eq!(
        octets,
        emitted_over_noise(length.fpdu_len(), |writer| fpdu.emit(writer))
    );
    assert_eq!(
        Fpdu::parse(&octets),
        Ok(Parsed::Complete {
            value: fpdu,
            len: octets.len()
        })
    );
    assert_eq!(fpdu.check_crc(), Ok(()));
    octets
}

fn crc_of(fpdu: &[u8]) -> [u8; 4] {
    *fpdu.last_chunk().unwrap()
}

#[test]
fn lengths() {
    for (ulpdu_len, pad, fpdu) in [
        (0, 2, 8),
        (1, 1, 8),
        (2, 0, 8),
        (3, 3, 12),
        (14, 0, 20),
        (18, 0, 24),
        (65535, 3, 65544),
    ] {
        assert_eq!(pad_len(ulpdu_len), pad);
        assert_eq!(fpdu_len(ulpdu_len), fpdu);
        assert_eq!(UlpduLength::new(ulpdu_len).pad_len(), pad);
        assert_eq!(UlpduLength::new(ulpdu_len).fpdu_len(), fpdu);
    }
    assert_eq!(Fpdu::MAX_LEN, 65544);
}

#[test]
fn a_length_field_in_network_order() {
    let length = UlpduLength::new(0x0123);
    assert_eq!(length.to_bytes(), [0x01, 0x23]);
    assert_eq!(
        emitted_over_noise(UlpduLength::LEN, |writer| length.emit(writer)),
        [0x01, 0x23]
    );
    assert_eq!(Reader::all(&[0x01, 0x23], UlpduLength::parse), Ok(length));
    assert_eq!(length.to_string(), "ULPDU of 291 octets");
}

/// A Send of 24 zeros. RFC 5044 has the same one with a marker; see the tests of markers.
#[test]
fn crc_of_a_send() {
    let header = UntaggedHeader::new(
        Opcode::SEND,
        true,
        QueueNumber::SEND,
        Msn::FIRST,
        MessageOffset::ZERO,
    );
    let mut ulpdu = header.to_bytes().to_vec();
    ulpdu.extend_from_slice(&[0; 24]);
    let fpdu = framed(&ulpdu);
    assert_eq!(fpdu[..4], [0x00, 0x2a, 0x41, 0x43]);
    assert_eq!(crc_of(&fpdu), [0xb7, 0x24, 0x3e, 0xc3]);
}

/// The zero-length Write by which an initiator tells that it is ready to receive.
#[test]
fn crc_of_an_rtr_write() {
    let header = TaggedHeader::new(Opcode::WRITE, true, Stag::new(1), TaggedOffset::new(0));
    let fpdu = framed(&header.to_bytes());
    assert_eq!(fpdu[..4], [0x00, 0x0e, 0xc1, 0x40]);
    assert_eq!(crc_of(&fpdu), [0xeb, 0xd3, 0x4c, 0x5f]);
}

/// The zero-length Read for the same purpose.
#[test]
fn crc_of_an_rtr_read() {
    let header = UntaggedHeader::new(
        Opcode::READ_REQUEST,
        true,
        QueueNumber::READ_REQUEST,
        Msn::FIRST,
        MessageOffset::ZERO,
    );
    let request = ReadRequest {
        sink_stag: Stag::new(0),
        sink_to: TaggedOffset::new(0),
        size: 0,
        source_stag: Stag::new(1),
        source_to: TaggedOffset::new(0),
    };
    let mut ulpdu = header.to_bytes().to_vec();
    ulpdu.extend_from_slice(&request.to_bytes());
    let fpdu = framed(&ulpdu);
    assert_eq!(fpdu[..4], [0x00, 0x2e, 0x41, 0x41]);
    assert_eq!(crc_of(&fpdu), [0xba, 0x10, 0xe3, 0xc9]);
}

/// Linux siw leaves CRC and its field alone unless asked: `0022 4143 ...` and zeros at the end.
#[test]
fn without_crc() {
    let length = UlpduLength::new(0x0022);
    let trailer = Trailer::without_crc(length);
    assert_eq!(emitted_over_noise(4, |writer| trailer.emit(writer)), [0; 4]);
    let padded = Trailer::without_crc(UlpduLength::new(19));
    assert_eq!(emitted_over_noise(7, |writer| padded.emit(writer)), [0; 7]);
    assert_eq!(padded.trailer_len(), Trailer::MAX_LEN);
    assert_eq!(padded.to_string(), "PAD 3, CRC 00000000");
}

/// A sender may leave anything in PAD, and Linux siw does; it counts for the CRC.
#[test]
fn pad_is_kept_and_covered() {
    let octets = [0x00, 0x01, 0x77, 0x40, 0, 0, 0, 0];
    let (fpdu, len) = Fpdu::parse(&octets).unwrap().complete().unwrap();
    assert_eq!(len, octets.len());
    assert_eq!(fpdu.trailer.pad(), [0x40]);
    let mut again = Vec::new();
    fpdu.append_to(&mut again);
    assert_eq!(again, octets);

    let crc = Crc32c::new().update(&octets[..4]);
    let good = Trailer {
        crc: crc.to_wire(),
        ..fpdu.trailer
    };
    assert_eq!(
        Fpdu {
            trailer: good,
            ..fpdu
        }
        .check_crc(),
        Ok(())
    );
    let zero_pad = Trailer {
        pad: [0; 3],
        ..good
    };
    assert_eq!(
        Fpdu {
            trailer: zero_pad,
            ..fpdu
        }
        .check_crc(),
        Err(Malformed::Crc)
    );
}

#[test]
fn any_changed_bit_fails_the_crc() {
    let fpdu = framed(b"twenty-one octets....");
    for bit in 16..fpdu.len() * 8 {
        let mut changed = fpdu.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let (parsed, _) = Fpdu::parse(&changed).unwrap().complete().unwrap();
        assert_eq!(parsed.check_crc(), Err(Malformed::Crc), "bit {bit}");
    }
}

#[test]
fn a_growing_stream() {
    let fpdu = framed(b"abc");
    for len in 0..fpdu.len() {
        let known = if len < UlpduLength::LEN {
            UlpduLength::LEN
        } else {
            fpdu.len()
        };
        assert_eq!(Fpdu::parse(&fpdu[..len]), Ok(Parsed::NeedMore(known - len)));
    }
    let mut more = fpdu.clone();
    more.push(0);
    let (_, len) = Fpdu::parse(&more).unwrap().complete().unwrap();
    assert_eq!(len, fpdu.len());
}

#[test]
fn a_trailer_cut_short_is_not_consumed() {
    let length = UlpduLength::new(19);
    let mut reader = Reader::new(&[0; 6]);
    assert_eq!(
        Trailer::parse(length, &mut reader),
        Err(Malformed::Truncated)
    );
    assert_eq!(reader.remaining(), 6);
}

/// RFC 5044 §4.5. An Ethernet segment has an EMSS of 1460, with timestamps 1448.
#[test]
fn mulpdu_leaves_room_for_everything() {
    assert_eq!(mulpdu(1460), 1454);
    assert_eq!(mulpdu(1448), 1442);
    assert_eq!(mulpdu(1463), 1454);
    assert_eq!(mulpdu_with_markers(1460), 1442);
    assert_eq!(mulpdu_with_markers(512), 502);
    assert_eq!(mulpdu_with_markers(513), 498);
    assert_eq!(mulpdu(0), MIN_MULPDU);
    assert_eq!(mulpdu_with_markers(100), MIN_MULPDU);
    assert_eq!(mulpdu(u32::MAX), u16::MAX);
    assert_eq!(mulpdu_with_markers(u32::MAX), u16::MAX);

    for emss in 140..70_000 {
        let ulpdu_len = mulpdu(emss);
        assert!(fpdu_len(ulpdu_len) <= emss as usize, "EMSS {emss}");
        // Nothing is wasted but the alignment.
        assert!(
            ulpdu_len == u16::MAX || fpdu_len(ulpdu_len) + 4 > emss as usize,
            "EMSS {emss}"
        );
    }
}

#[test]
fn mulpdu_with_markers_fits_wherever_they_fall() {
    for emss in (144..9000).chain(65_000..=65_535) {
        let fpdu_len = fpdu_len(mulpdu_with_markers(emss));
        for position in [0, 4, 256, 508] {
            let marked = marker::marked_len(position, fpdu_len);
            assert!(
                marked <= emss as usize,
                "EMSS {emss} at {position}: {marked}"
            );
        }
    }
}
