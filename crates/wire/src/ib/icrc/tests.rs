use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Bit by bit, as the definition says: reflected polynomial 0xedb88320, inverted at both ends.
fn crc32_by_definition(octets: &[u8]) -> u32 {
    let mut remainder = u32::MAX;
    for octet in octets {
        remainder ^= u32::from(*octet);
        for _ in 0..8 {
            let carry = remainder & 1 != 0;
            remainder >>= 1;
            if carry {
                remainder ^= 0xedb8_8320;
            }
        }
    }
    !remainder
}

/// The ICRC of a whole IPv4 packet with every header as sent.
fn by_definition_v4(packet: &[u8]) -> [u8; 4] {
    let mut masked = vec![0xff; 8];
    masked.extend_from_slice(&packet[..packet.len() - 4]);
    for at in [1, 8, 10, 11, 26, 27, 32] {
        masked[8 + at] = 0xff;
    }
    crc32_by_definition(&masked).to_le_bytes()
}

/// The ICRC of a whole IPv6 packet with every header as sent.
fn by_definition_v6(packet: &[u8]) -> [u8; 4] {
    let mut masked = vec![0xff; 8];
    masked.extend_from_slice(&packet[..packet.len() - 4]);
    masked[8] |= 0x0f;
    for at in [1, 2, 3, 7, 46, 47, 52] {
        masked[8 + at] = 0xff;
    }
    crc32_by_definition(&masked).to_le_bytes()
}

/// A packet's IPv4 and UDP headers, with noise where the ICRC does not look.
fn packet_v4(
    (source, destination): (SocketAddrV4, SocketAddrV4),
    word: [u8; 4],
    datagram: &[u8],
) -> Vec<u8> {
    let udp_len = u16::try_from(8 + datagram.len()).unwrap();
    let mut packet = vec![0x45, 0xc2];
    packet.extend((20 + udp_len).to_be_bytes());
    packet.extend(word);
    packet.extend([0x40, 17, 0x12, 0x34]);
    packet.extend(source.ip().octets());
    packet.extend(destination.ip().octets());
    packet.extend(source.port().to_be_bytes());
    packet.extend(destination.port().to_be_bytes());
    packet.extend(udp_len.to_be_bytes());
    packet.extend([0x56, 0x78]);
    packet.extend(datagram);
    packet
}

fn packet_v6((source, destination): (SocketAddrV6, SocketAddrV6), datagram: &[u8]) -> Vec<u8> {
    let udp_len = u16::try_from(8 + datagram.len()).unwrap();
    let mut packet = vec![0x61, 0x23, 0x45, 0x67];
    packet.extend(udp_len.to_be_bytes());
    packet.extend([17, 0x40]);
    packet.extend(source.ip().octets());
    packet.extend(destination.ip().octets());
    packet.extend(source.port().to_be_bytes());
    packet.extend(destination.port().to_be_bytes());
    packet.extend(udp_len.to_be_bytes());
    packet.extend([0x56, 0x78]);
    packet.extend(datagram);
    packet
}

fn ends_v4() -> impl Strategy<Value = (SocketAddrV4, SocketAddrV4)> {
    any::<(Ipv4Addr, u16, Ipv4Addr, u16)>().prop_map(|(source, from, destination, to)| {
        (
            SocketAddrV4::new(source, from),
            SocketAddrV4::new(destination, to),
        )
    })
}

fn ends_v6() -> impl Strategy<Value = (SocketAddrV6, SocketAddrV6)> {
    any::<(Ipv6Addr, u16, Ipv6Addr, u16)>().prop_map(|(source, from, destination, to)| {
        (
            SocketAddrV6::new(source, from, 1, 2),
            SocketAddrV6::new(destination, to, 3, 4),
        )
    })
}

fn ident() -> impl Strategy<Value = Ipv4Ident> {
    any::<(u16, bool)>().prop_map(|(id, dont_fragment)| Ipv4Ident { id, dont_fragment })
}

/// From the shortest packet to beyond an Ethernet frame.
fn datagram() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 16..2000)
}

#[test]
fn check_value() {
    assert_eq!(Icrc(0).update(b"123456789"), Icrc(0xcbf4_3926));
    assert_eq!(crc32_by_definition(b"123456789"), 0xcbf4_3926);
    assert_eq!(Icrc(0xcbf4_3926).finish(), [0x26, 0x39, 0xf4, 0xcb]);
    assert_eq!(format!("{:?}", Icrc(0xcbf4_3926)), "Icrc(0xcbf43926)");
}

#[test]
fn what_is_too_short_has_none() {
    let v4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
    let v6 = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 1, 0, 0);
    for len in 0..16 {
        let datagram = vec![0; len];
        assert_eq!(
            Icrc::of_datagram_v4(v4, v4, Ipv4Ident::ZERO, &datagram),
            None
        );
        assert_eq!(Icrc::of_datagram_v6(v6, v6, &datagram), None);
    }
    assert!(Icrc::of_datagram_v4(v4, v4, Ipv4Ident::ZERO, &[0; 16]).is_some());
    assert!(Icrc::of_datagram_v6(v6, v6, &[0; 16]).is_some());
    assert_eq!(Icrc(1).explain(Ipv4Ident::ZERO, [0; 4], 3), None);
    assert_eq!(Icrc(1).explain(Ipv4Ident::ZERO, [0; 4], usize::MAX), None);
}

#[test]
#[should_panic(expected = "shorter than a BTH")]
fn headers_that_are_too_short() {
    let end = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
    let _ = Icrc::new_v4(end, end, Ipv4Ident::ZERO, 16, &[0; 11]);
}

/// All identifications and both states of the flag, for one packet.
#[test]
fn every_identification_explains() {
    let (source, destination) = (
        SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 3), 0xf131),
        SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), 4791),
    );
    let mut datagram = [0x11; 288];
    let assumed = Ipv4Ident::ZERO;
    let blind = Icrc::of_datagram_v4(source, destination, assumed, &datagram).unwrap();
    for id in 0..=u16::MAX {
        let dont_fragment = id % 3 != 0;
        let ident = Ipv4Ident { id, dont_fragment };
        let sent = Icrc::of_datagram_v4(source, destination, ident, &datagram).unwrap();
        assert_eq!(blind.explain(assumed, sent.finish(), 288), Some(ident));
    }
    // A bit that no identification can have turned.
    let sent = blind.finish();
    datagram[100] ^= 1;
    let wrong = Icrc::of_datagram_v4(source, destination, assumed, &datagram).unwrap();
    assert_eq!(wrong.explain(assumed, sent, 288), None);
}

/// Of the 2³² differences, 2¹⁷ are explained: noise passes about once in 2¹⁵.
#[test]
fn noise_is_not_explained() {
    let explained = (0..1 << 20_u32)
        .map(|index: u32| index.wrapping_mul(0x9e37_79b1).to_le_bytes())
        .filter(|noise| Icrc(0).explain(Ipv4Ident::ZERO, *noise, 100).is_some())
        .count();
    // Of a million, 32 are expected.
    assert!((10..60).contains(&explained), "{explained}");
}

#[test]
fn identifications_in_words() {
    assert_eq!(Ipv4Ident::new(0x718c).to_string(), "ID 0x718c DF");
    assert_eq!(Ipv4Ident::default().to_string(), "ID 0x0000");
}

proptest! {
    #[test]
    fn v4_agrees_with_the_definition(ends in ends_v4(), ident in ident(), datagram in datagram()) {
        let packet = packet_v4(ends, ident.to_bytes(), &datagram);
        let icrc = Icrc::of_datagram_v4(ends.0, ends.1, ident, &datagram).unwrap();
        prop_assert_eq!(icrc.finish(), by_definition_v4(&packet));
    }

    #[test]
    fn v6_agrees_with_the_definition(ends in ends_v6(), datagram in datagram()) {
        let packet = packet_v6(ends, &datagram);
        let icrc = Icrc::of_datagram_v6(ends.0, ends.1, &datagram).unwrap();
        prop_assert_eq!(icrc.finish(), by_definition_v6(&packet));
    }

    #[test]
    fn it_does_not_matter_how_it_is_fed(
        v4 in ends_v4(),
        v6 in ends_v6(),
        datagram in datagram(),
        header_len in 12..64_usize,
        cut in 0..2000_usize,
    ) {
        let covered = &datagram[..datagram.len() - 4];
        let (headers, payload) = covered.split_at(header_len.min(covered.len()));
        let (left, right) = payload.split_at(cut.min(payload.len()));
        let len = datagram.len();
        let ident = Ipv4Ident::new(7);
        let pieces = Icrc::new_v4(v4.0, v4.1, ident, len, headers).update(left).update(right);
        prop_assert_eq!(Some(pieces), Icrc::of_datagram_v4(v4.0, v4.1, ident, &datagram));
        let pieces = Icrc::new_v6(v6.0, v6.1, len, headers).update(left).update(right);
        prop_assert_eq!(Some(pieces), Icrc::of_datagram_v6(v6.0, v6.1, &datagram));
    }

    /// Whatever was assumed, the identification that was sent is found.
    #[test]
    fn the_identification_is_found(
        ends in ends_v4(),
        sent in ident(),
        assumed in ident(),
        datagram in datagram(),
    ) {
        let of = |ident| Icrc::of_datagram_v4(ends.0, ends.1, ident, &datagram).unwrap();
        let found = of(assumed).explain(assumed, of(sent).finish(), datagram.len());
        prop_assert_eq!(found, Some(sent));
    }

    /// A word that no sender can have used explains nothing: fragments, and the reserved flag.
    #[test]
    fn other_words_are_refused(ends in ends_v4(), word in any::<[u8; 4]>(), datagram in datagram()) {
        let sent = by_definition_v4(&packet_v4(ends, word, &datagram));
        let assumed = Ipv4Ident::new(1);
        let found = Icrc::of_datagram_v4(ends.0, ends.1, assumed, &datagram)
            .unwrap()
            .explain(assumed, sent, datagram.len());
        let [high, low, flags, offset] = word;
        let expected = (flags & 0xbf == 0 && offset == 0).then_some(Ipv4Ident {
            id: u16::from_be_bytes([high, low]),
            dont_fragment: flags != 0,
        });
        prop_assert_eq!(found, expected);
    }

    /// Damage is never explained by what was sent. That another identification explains it has a
    /// chance of 2⁻¹⁵; a receiver that knows what to expect sees through that too.
    #[test]
    fn damage_is_found(
        ends in ends_v4(),
        sent in ident(),
        datagram in datagram(),
        at in 0..1_000_000_usize,
        burst in 1..=u8::MAX,
    ) {
        let of = |ident, datagram: &[u8]| {
            Icrc::of_datagram_v4(ends.0, ends.1, ident, datagram).unwrap()
        };
        let received = of(sent, &datagram).finish();
        let mut damaged = datagram;
        let covered = damaged.len() - 4;
        let at = at % covered;
        damaged[at] ^= burst;
        let found = of(Ipv4Ident::ZERO, &damaged).explain(Ipv4Ident::ZERO, received, damaged.len());
        if at == Bth::VARIANT_OCTET {
            prop_assert_eq!(found, Some(sent));
        } else {
            prop_assert_ne!(found, Some(sent));
        }
    }
}
