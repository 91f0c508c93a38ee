//! Whole packets.

use super::*;

/// A congestion notification of a ConnectX-4 Lx, from the IP header to the ICRC.
pub(super) const CNP: [u8; 60] = [
    0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, // IP
    0x0a, 0x00, 0x11, 0x01, 0x0a, 0x00, 0x12, 0x01, // addresses
    0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00, // UDP
    0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00, 0x00, 0x00, 0x00, // BTH
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // reserved
    0x82, 0xfd, 0x00, 0x2a, // ICRC
];

#[test]
fn congestion_notification() {
    let datagram = &CNP[28..];
    let packet = Packet::parse(datagram).unwrap();
    let expected = Bth {
        becn: true,
        ..Bth::new(Opcode::CNP, Qpn::new(0x118), Psn::new(0))
    };
    assert_eq!(packet.headers, Headers::new(expected));
    assert_eq!(packet.payload, [0; 16]);
    assert_eq!(packet.trailer, Trailer::new(16, [0x82, 0xfd, 0x00, 0x2a]));
    let mut again = vec![1];
    packet.append_to(&mut again);
    assert_eq!(again[1..], *datagram);
    let icrc = Icrc::of_datagram_v4(
        "10.0.17.1:0".parse().unwrap(),
        "10.0.18.1:4791".parse().unwrap(),
        Ipv4Ident::new(0x718c),
        datagram,
    );
    assert_eq!(icrc.map(Icrc::finish), Some(packet.trailer.icrc));
    assert_eq!(
        packet.to_string(),
        "CNP to QP 0x000118 PSN 0x000000 BECN, 16 octets of payload"
    );
}

fn octets_of(headers: &Headers, payload: &[u8], trailer: &Trailer) -> Vec<u8> {
    let len = headers.header_len() + payload.len() + trailer.trailer_len();
    emitted_over_noise(len, |writer| {
        headers.emit(writer);
        writer.bytes(payload);
        trailer.emit(writer);
    })
}

#[test]
fn payloads_of_every_alignment() {
    let payload = [0x11, 0x22, 0x33, 0x44, 0x55];
    for (len, pad) in [(0, 0), (1, 3), (2, 2), (3, 1), (4, 0), (5, 3)] {
        assert_eq!(pad_count(len), pad);
        let mut bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(17), Psn::new(5));
        bth.pad_count = pad_count(len);
        let headers = Headers::new(bth);
        let trailer = Trailer::new(len, [1, 2, 3, 4]);
        assert_eq!(trailer.pad(), &[0; 3][..usize::from(pad)]);
        let octets = octets_of(&headers, &payload[..len], &trailer);
        assert_eq!(octets.len() % 4, 0);
        let packet = Packet::parse(&octets).unwrap();
        let expected = Packet {
            headers,
            payload: &payload[..len],
            trailer,
        };
        assert_eq!(packet, expected);
        assert_eq!(packet.packet_len(), octets.len());
    }
    assert_eq!(pad_count(usize::MAX), 1);
}

/// Pad octets should be zero, yet are covered by the ICRC as they are.
#[test]
fn a_noisy_pad_is_kept() {
    let mut octets = [0; 20];
    octets[0] = Opcode::RC_SEND_ONLY.get();
    octets[1] = 0x20;
    octets[12..].copy_from_slice(&[1, 2, 0xaa, 0xbb, 5, 6, 7, 8]);
    let packet = Packet::parse(&octets).unwrap();
    assert_eq!(packet.payload, [1, 2]);
    assert_eq!(packet.trailer.pad(), [0xaa, 0xbb]);
    assert_eq!(packet.trailer.icrc, [5, 6, 7, 8]);
    assert_eq!(packet.trailer.to_string(), "pad 2, ICRC 0x08070605");
    let mut again = Vec::new();
    packet.append_to(&mut again);
    assert_eq!(again, octets);
}

#[test]
fn pads_that_cannot_be() {
    let with = |len: usize, pad: u8| {
        let mut octets = vec![0; len];
        octets[0] = Opcode::RC_SEND_ONLY.get();
        octets[1] = pad << 4;
        Packet::parse(&octets).map(|packet| packet.payload.len())
    };
    assert_eq!(with(16, 0), Ok(0));
    assert_eq!(with(20, 3), Ok(1));
    for pad in 1..4 {
        assert_eq!(with(16, pad), Err(PacketError::Pad));
    }
    for len in [17, 18, 19, 21] {
        for pad in 0..4 {
            assert_eq!(with(len, pad), Err(PacketError::Pad));
        }
    }
}

#[test]
fn packets_that_nobody_knows() {
    let mut octets = [0; 16];
    octets[1] = 0x01;
    assert_eq!(Packet::parse(&octets), Err(PacketError::TransportVersion));
    octets[..2].copy_from_slice(&[0x15, 0]);
    assert_eq!(Packet::parse(&octets), Err(PacketError::UnknownOpcode));
    let mut reader = Reader::new(&octets);
    assert!(Headers::parse(&mut reader).is_err());
    assert_eq!(reader.remaining(), 16);
}

#[test]
fn every_opcode_has_its_shortest_packet() {
    let mut longest = 0;
    for opcode in Opcode::ALL {
        let header_len = opcode.info().unwrap().header_len;
        longest = longest.max(header_len);
        let mut octets = vec![0xff; header_len + Icrc::LEN];
        octets[..2].copy_from_slice(&[opcode.get(), 0]);
        let packet = Packet::parse(&octets).unwrap();
        assert_eq!(packet.payload, []);
        assert_eq!(packet.headers.header_len(), header_len);
        assert_eq!(octets_of(&packet.headers, &[], &packet.trailer), octets);
        for len in 0..octets.len() {
            assert_eq!(
                Packet::parse(&octets[..len]),
                Err(PacketError::Malformed(Malformed::Truncated)),
                "{opcode}, {len} octets"
            );
        }
    }
    assert_eq!(longest, Headers::MAX_LEN);
    assert_eq!(Packet::MIN_LEN, 16);
}

/// Built by hand as a requester and a responder do.
#[test]
fn headers_by_hand() {
    let bth = |opcode| Bth::new(opcode, Qpn::new(0x11), Psn::new(1));
    let reth = Reth {
        va: VirtualAddress::new(0x1000),
        rkey: Rkey::new(0x1f00),
        dma_len: 3,
    };
    let atomic = AtomicEth {
        va: VirtualAddress::new(0x1000),
        rkey: Rkey::new(0x1f00),
        swap_or_add: 1,
        compare: 0,
    };
    let aeth = Aeth::new(Syndrome::ACK, Msn24::new(1));
    let ieth = Ieth {
        rkey: Rkey::new(0x1f00),
    };
    let deth = Deth::new(Qkey::RDMA_UDP, Qpn::new(0x12));
    let headers = [
        Headers::new(bth(Opcode::RC_WRITE_ONLY_IMMEDIATE))
            .with_reth(reth)
            .with_imm_dt(ImmDt([1, 2, 3, 4])),
        Headers::new(bth(Opcode::RC_CMP_SWAP)).with_atomic_eth(atomic),
        Headers::new(bth(Opcode::RC_ATOMIC_ACKNOWLEDGE))
            .with_aeth(aeth)
            .with_atomic_ack_eth(AtomicAckEth { original: 1 }),
        Headers::new(bth(Opcode::RC_SEND_ONLY_INVALIDATE)).with_ieth(ieth),
        Headers::new(bth(Opcode::UD_SEND_ONLY_IMMEDIATE))
            .with_deth(deth)
            .with_imm_dt(ImmDt([1, 2, 3, 4])),
    ];
    for headers in headers {
        let octets = emitted_over_noise(headers.header_len(), |writer| headers.emit(writer));
        let mut reader = Reader::new(&octets);
        assert_eq!(Headers::parse(&mut reader), Ok(headers));
        assert!(reader.is_empty());
        let mut appended = Vec::new();
        headers.append_to(&mut appended);
        assert_eq!(appended, octets);
    }
    assert_eq!(
        headers[4].to_string(),
        "UD SEND Only with Immediate to QP 0x000011 PSN 0x000001, from QP 0x000012 Q_Key \
         0x01234567, immediate 0x01020304"
    );
    assert_eq!(
        headers[0].extensions(),
        Opcode::RC_WRITE_ONLY_IMMEDIATE.info().unwrap().extensions
    );
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "extension headers")]
fn a_header_that_the_opcode_does_not_have() {
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11), Psn::new(1));
    let headers = Headers::new(bth).with_imm_dt(ImmDt::default());
    headers.emit(&mut Writer::new(&mut [0; 16]));
}
