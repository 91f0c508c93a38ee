use proptest::prelude::*;

use super::*;
use crate::codec::emitted_over_noise;
use crate::mpa::fpdu::fpdu_len;

/// RFC 5044 §4.4, Figures 5 and 6: a Send of 24 zeros. `msn` tells the two apart.
fn send_of_zeros(msn: u8) -> Vec<u8> {
    let mut covered = vec![0x00, 0x2a, 0x41, 0x43];
    covered.extend_from_slice(&[0, 0, 0, 0]);
    covered.extend_from_slice(&[0, 0, 0, 0]);
    covered.extend_from_slice(&[0, 0, 0, msn]);
    covered.extend_from_slice(&[0, 0, 0, 0]);
    covered.extend_from_slice(&[0; 24]);
    covered
}

fn inserted(position: u64, covered: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    insert(position, covered, true, &mut out);
    out
}

#[test]
fn figure_5_a_marker_before_the_fpdu() {
    let covered = send_of_zeros(1);
    let octets = inserted(0, &covered);
    assert_eq!(octets.len(), 0x34);
    assert_eq!(octets[..4], [0, 0, 0, 0]);
    assert_eq!(octets[4..0x30], covered);
    assert_eq!(octets[0x30..], [0x52, 0x23, 0x99, 0x83]);
}

#[test]
fn figure_6_a_marker_inside() {
    let covered = send_of_zeros(2);
    let octets = inserted(0x1ec, &covered);
    assert_eq!(octets.len(), 0x34);
    assert_eq!(octets[..20], covered[..20]);
    assert_eq!(octets[20..24], [0x00, 0x00, 0x00, 0x14]);
    assert_eq!(octets[24..0x30], covered[20..]);
    assert_eq!(octets[0x30..], [0x84, 0x92, 0x58, 0x98]);
}

#[test]
fn the_figures_backwards() {
    for (position, msn) in [(0, 1), (0x1ec, 2)] {
        let covered = send_of_zeros(msn);
        let octets = inserted(position, &covered);
        let mut out = vec![0xff];
        let (found, len) = strip(position, &octets, &mut out)
            .unwrap()
            .complete()
            .unwrap();
        assert_eq!(len, octets.len());
        assert_eq!(out[1..=covered.len()], covered);
        assert_eq!(out[covered.len() + 1..], found.received);
        assert_eq!(found.check_crc(), Ok(()));
    }
}

#[test]
fn one_marker() {
    let octets = [0xab, 0xcd, 0x12, 0x34];
    let marker = Marker {
        reserved: 0xabcd,
        pointer: 0x1234,
    };
    assert_eq!(Reader::all(&octets, Marker::parse), Ok(marker));
    assert_eq!(
        emitted_over_noise(Marker::LEN, |writer| marker.emit(writer)),
        octets
    );
    assert_eq!(marker.to_bytes(), octets);
    assert_eq!(marker.to_string(), "marker, FPDU began 4660 octets before");
    // RFC 5044 §4.2: reserved is ignored, and so are the low bits of the pointer.
    assert!(
        Marker {
            reserved: 7,
            pointer: 0x1237
        }
        .agrees_with(Marker::new(0x1234))
    );
    assert!(!Marker::new(0x1238).agrees_with(Marker::new(0x1234)));
}

#[test]
fn distance_to_the_next() {
    for (position, distance) in [(0, 0), (4, 508), (508, 4), (512, 0), (1028, 508)] {
        assert_eq!(until_next(position), distance);
    }
}

/// A marker due just before the CRC is inside this FPDU and covered by its CRC.
#[test]
fn a_marker_before_the_crc() {
    let covered = send_of_zeros(1);
    let octets = inserted(512 - 44, &covered);
    assert_eq!(octets[..44], covered);
    assert_eq!(octets[44..48], [0, 0, 0, 44]);
    assert_eq!(octets[48..], Crc32c::new().update(&octets[..48]).to_wire());
}

/// A marker due just after the CRC is not inside this FPDU but before the next one.
#[test]
fn a_marker_after_the_crc() {
    let covered = send_of_zeros(1);
    let first = inserted(512 - 48, &covered);
    assert_eq!(first.len(), 48);
    let second = inserted(512, &covered);
    assert_eq!(second[..4], [0, 0, 0, 0]);
    assert_eq!(second[4..48], covered);
}

#[test]
fn many_markers_count_in_their_own_distances() {
    let pieces: Vec<Piece> = Pieces::new(0, 1500).collect();
    assert_eq!(
        pieces,
        [
            Piece::Marker(Marker::new(0)),
            Piece::Octets(0..508),
            Piece::Marker(Marker::new(508)),
            Piece::Octets(508..1016),
            Piece::Marker(Marker::new(1020)),
            Piece::Octets(1016..1500),
        ]
    );
    assert_eq!(marked_len(0, 1500), 1512);
    assert_eq!(marked_len(4, 8), 8);
}

#[test]
fn without_crc_the_field_is_zero() {
    let mut out = Vec::new();
    insert(0x1ec, &send_of_zeros(2), false, &mut out);
    assert_eq!(out[0x30..], [0; 4]);
}

#[test]
fn a_marker_that_points_elsewhere() {
    for (position, at) in [(0, 0), (0x1ec, 20)] {
        let mut octets = inserted(position, &send_of_zeros(1));
        octets[at] = 0x80;
        octets[at + 3] |= 0x03;
        let mut out = Vec::new();
        let (found, _) = strip(position, &octets, &mut out)
            .unwrap()
            .complete()
            .unwrap();
        assert_eq!(
            found.check_crc(),
            Err(Malformed::Crc),
            "ignored bits are still covered"
        );

        octets[at + 3] ^= 0x08;
        out.clear();
        assert_eq!(
            strip(position, &octets, &mut out),
            Err(Malformed::MarkerPointer)
        );
        // At once, not when the FPDU is complete.
        let early = &octets[..at + Marker::LEN + UlpduLength::LEN];
        assert_eq!(
            strip(position, early, &mut out),
            Err(Malformed::MarkerPointer)
        );
        assert_eq!(out, []);
    }
}

#[test]
fn a_growing_stream() {
    for (position, head) in [(0, 6), (0x1ec, 2)] {
        let octets = inserted(position, &send_of_zeros(1));
        let mut out = Vec::new();
        for len in 0..octets.len() {
            let known = if len < head { head } else { octets.len() };
            assert_eq!(
                strip(position, &octets[..len], &mut out),
                Ok(Parsed::NeedMore(known - len))
            );
        }
        assert_eq!(out, []);
    }
}

proptest! {
    #[test]
    fn strip_undoes_insert(
        quarter in 0..1024_u64,
        payload in proptest::collection::vec(any::<u8>(), 0..3000),
        behind in proptest::collection::vec(any::<u8>(), 0..5),
    ) {
        let position = quarter * 4;
        let length = UlpduLength::new(u16::try_from(payload.len()).unwrap());
        let mut covered = length.to_bytes().to_vec();
        covered.extend_from_slice(&payload);
        covered.resize(covered.len() + length.pad_len(), 0);

        let mut stream = inserted(position, &covered);
        let marked = stream.len();
        prop_assert_eq!(marked, marked_len(position, length.fpdu_len()));
        // Nothing but markers at the places where markers belong.
        let due = (position..position + marked as u64).filter(|at| at % u64::from(SPACING) == 0);
        prop_assert_eq!(marked - length.fpdu_len(), due.count() * Marker::LEN);

        stream.extend_from_slice(&behind);
        let mut out = Vec::new();
        let (found, len) = strip(position, &stream, &mut out).unwrap().complete().unwrap();
        prop_assert_eq!(len, marked);
        prop_assert_eq!(found.check_crc(), Ok(()));
        prop_assert_eq!(&out[..covered.len()], &covered[..]);
        prop_assert_eq!(out.len(), fpdu_len(length.get()));
    }

    #[test]
    fn strip_survives_anything(
        position in any::<u64>(),
        stream in proptest::collection::vec(any::<u8>(), 0..3000),
    ) {
        let mut out = Vec::new();
        match strip(position, &stream, &mut out) {
            Ok(Parsed::Complete { len, .. }) => prop_assert!(len <= stream.len()),
            Ok(Parsed::NeedMore(more)) => prop_assert!(more > 0 && out.is_empty()),
            Err(error) => prop_assert_eq!(error, Malformed::MarkerPointer),
        }
    }
}
