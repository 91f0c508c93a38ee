use std::time::Duration;

use self::layout::layout;
use super::*;
use crate::codec::{Malformed, Reader, Writer, emitted_over_noise};
use crate::num::{
    Eecn, FlowLabel, Gid, Msn24, Pkey, Psn, Qkey, Qpn, Rkey, RnrTimer, VirtualAddress,
};

pub(in crate::ib) mod layout;
mod packet;

const QPN: Qpn = Qpn::new(u32::MAX);
const RKEY: Rkey = Rkey::new(u32::MAX);
const VA: VirtualAddress = VirtualAddress::new(u64::MAX);

#[test]
fn bth() {
    let zero = Bth {
        pkey: Pkey::default(),
        ..Bth::new(Opcode::new(0), Qpn::default(), Psn::default())
    };
    layout!(Bth, Bth::LEN, zero, {
        opcode = Opcode::new(0xff), [0 0] 8;
        solicited = true, [1 0] 1;
        mig_req = true, [1 1] 1;
        pad_count = 3, [1 2] 2;
        transport_version = 15, [1 4] 4;
        pkey = Pkey::DEFAULT, [2 0] 16;
        fecn = true, [4 0] 1;
        becn = true, [4 1] 1;
        reserved6 = 0x3f, [4 2] 6;
        dest_qp = QPN, [5 0] 24;
        ack_req = true, [8 0] 1;
        reserved7 = 0x7f, [8 1] 7;
        psn = Psn::new(u32::MAX), [9 0] 24;
    });
}

#[test]
fn bth_in_words() {
    let mut bth = Bth::new(Opcode::RC_SEND_LAST, Qpn::new(0x11), Psn::new(0xabc));
    assert_eq!(bth.to_string(), "RC SEND Last to QP 0x000011 PSN 0x000abc");
    bth.solicited = true;
    bth.mig_req = true;
    bth.fecn = true;
    bth.becn = true;
    bth.ack_req = true;
    bth.pad_count = 2;
    bth.pkey = Pkey::new(0x7fff);
    bth.transport_version = 1;
    bth.reserved7 = 5;
    assert_eq!(
        bth.to_string(),
        "RC SEND Last to QP 0x000011 PSN 0x000abc SE MigReq FECN BECN AckReq pad 2 P_Key 0x7fff \
         TVer 1 reserved 0x00 0x05"
    );
}

#[test]
fn bits_beyond_their_fields_are_dropped() {
    let mut bth = Bth::new(Opcode::new(0), Qpn::default(), Psn::default());
    bth.pkey = Pkey::default();
    bth.pad_count = 0xfc;
    bth.transport_version = 0xf0;
    bth.reserved6 = 0xc0;
    bth.reserved7 = 0x80;
    assert_eq!(bth.to_bytes(), [0; 12]);
}

#[test]
fn extension_headers() {
    let zero = Reader::all(&[0; Reth::LEN], Reth::parse).unwrap();
    layout!(Reth, Reth::LEN, zero, {
        va = VA, [0 0] 64;
        rkey = RKEY, [8 0] 32;
        dma_len = u32::MAX, [12 0] 32;
    });
    let zero = Reader::all(&[0; AtomicEth::LEN], AtomicEth::parse).unwrap();
    layout!(AtomicEth, AtomicEth::LEN, zero, {
        va = VA, [0 0] 64;
        rkey = RKEY, [8 0] 32;
        swap_or_add = u64::MAX, [12 0] 64;
        compare = u64::MAX, [20 0] 64;
    });
    let zero = Aeth::new(Syndrome::from_bits(0), Msn24::ZERO);
    layout!(Aeth, Aeth::LEN, zero, {
        syndrome = Syndrome::from_bits(0xff), [0 0] 8;
        msn = Msn24::new(u32::MAX), [1 0] 24;
    });
    layout!(AtomicAckEth, AtomicAckEth::LEN, AtomicAckEth { original: 0 }, {
        original = u64::MAX, [0 0] 64;
    });
    layout!(ImmDt, ImmDt::LEN, ImmDt::default(), {
        0 = [0xff; 4], [0 0] 32;
    });
    layout!(Ieth, Ieth::LEN, Ieth { rkey: Rkey::default() }, {
        rkey = RKEY, [0 0] 32;
    });
    layout!(Deth, Deth::LEN, Deth::new(Qkey::default(), Qpn::default()), {
        qkey = Qkey::new(u32::MAX), [0 0] 32;
        reserved = 0xff, [4 0] 8;
        src_qp = QPN, [5 0] 24;
    });
    layout!(Rdeth, Rdeth::LEN, Rdeth { reserved: 0, eec: Eecn::default() }, {
        reserved = 0xff, [0 0] 8;
        eec = Eecn::new(u32::MAX), [1 0] 24;
    });
    layout!(Xrceth, Xrceth::LEN, Xrceth { reserved: 0, srq: Qpn::default() }, {
        reserved = 0xff, [0 0] 8;
        srq = QPN, [1 0] 24;
    });
}

#[test]
fn extension_headers_in_words() {
    let (va, rkey) = (VirtualAddress::new(0x1000), Rkey::new(0x1f00));
    for (words, expected) in [
        (
            Reth {
                va,
                rkey,
                dma_len: 64,
            }
            .to_string(),
            "64 octets at VA 0x0000000000001000 R_Key 0x00001f00",
        ),
        (
            AtomicEth {
                va,
                rkey,
                swap_or_add: 1,
                compare: 2,
            }
            .to_string(),
            "VA 0x0000000000001000 R_Key 0x00001f00 swap or add 0x1 compare 0x2",
        ),
        (AtomicAckEth { original: 16 }.to_string(), "was 0x10"),
        (ImmDt([0, 0, 1, 2]).to_string(), "immediate 0x00000102"),
        (Ieth { rkey }.to_string(), "invalidates R_Key 0x00001f00"),
        (
            Deth::new(Qkey::GSI, Qpn::GSI).to_string(),
            "from QP 0x000001 Q_Key 0x80010000",
        ),
        (
            Aeth::new(Syndrome::ACK, Msn24::new(7)).to_string(),
            "ACK without credits MSN 7",
        ),
        (Feth::from_bits(0x13).to_string(), "FLUSH type 0x00000013"),
    ] {
        assert_eq!(words, expected);
    }
}

#[test]
fn flush_types() {
    let flush = Reader::all(&[0, 0, 0, 0x11], Feth::parse).unwrap();
    assert!(flush.global_visibility() && !flush.persistence());
    assert_eq!(flush.selectivity(), 1);
    let flush = Feth::from_bits(0x22);
    assert!(!flush.global_visibility() && flush.persistence());
    assert_eq!(flush.selectivity(), 2);
    assert_eq!(flush.bits(), 0x22);
    assert_eq!(flush.to_bytes(), [0, 0, 0, 0x22]);
}

/// The syndromes of the field, and that each of the 256 keeps its bits.
#[test]
fn syndromes() {
    for (bits, words) in [
        (0x1f, "ACK without credits"),
        (0x00, "ACK credits 0"),
        (0x07, "ACK credits 12"),
        (0x21, "RNR NAK timer 1 (10µs)"),
        (0x20, "RNR NAK timer 0 (655.36ms)"),
        (0x60, "NAK PSN sequence error"),
        (0x61, "NAK invalid request"),
        (0x62, "NAK remote access error"),
        (0x63, "NAK remote operational error"),
        (0x64, "NAK invalid RD request"),
        (0x65, "NAK code 0x05"),
        (0x40, "reserved syndrome 0x40"),
        (0x80, "reserved syndrome 0x80"),
        (0xff, "reserved syndrome 0xff"),
    ] {
        assert_eq!(Syndrome::from_bits(bits).to_string(), words);
    }
    for bits in 0..=u8::MAX {
        let syndrome = Syndrome::from_bits(bits);
        assert_eq!(Syndrome::from(syndrome.kind()), syndrome);
        let reserved = matches!(syndrome.kind(), AethKind::Reserved(_));
        assert_eq!(reserved, !matches!(bits >> 5, 0 | 1 | 3));
    }
    assert_eq!(Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR).bits(), 0x62);
    let timer = RnrTimer::at_least(Duration::from_millis(1));
    assert_eq!(Syndrome::rnr_nak(timer).bits(), 0x2e);
    assert_eq!(Syndrome::ACK.bits(), 0x1f);
}

#[test]
fn credits() {
    let table = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
        2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    ];
    for (code, credits) in (0..).zip(table) {
        assert_eq!(CreditCode::new(code).credits(), Some(credits));
    }
    assert_eq!(CreditCode::NONE.credits(), None);
    assert_eq!(CreditCode::new(0xe3).get(), 3);
}

#[test]
fn grh() {
    let zero = Reader::all(&[0; Grh::LEN], Grh::parse).unwrap();
    let gid = Gid::new([0xff; 16]);
    layout!(Grh, Grh::LEN, zero, {
        ip_version = 15, [0 0] 4;
        traffic_class = 0xff, [0 4] 8;
        flow_label = FlowLabel::new(u32::MAX), [1 4] 20;
        payload_len = u16::MAX, [4 0] 16;
        next_header = 0xff, [6 0] 8;
        hop_limit = 0xff, [7 0] 8;
        sgid = gid, [8 0] 128;
        dgid = gid, [24 0] 128;
    });
    let header = Grh::new(gid, Gid::default(), 288, 64);
    assert_eq!(header.to_bytes()[..8], [0x60, 0, 0, 0, 1, 32, 17, 64]);
}

/// The IPv4 header of the packet in the ICRC's golden example, checksum included.
#[test]
fn ipv4_header() {
    let octets: [u8; Ipv4Header::LEN] = *packet::CNP.first_chunk().unwrap();
    let header = Ipv4Header::parse(&mut Reader::new(&octets)).unwrap();
    let expected = Ipv4Header {
        tos: 0xc2,
        id: 0x718c,
        ..Ipv4Header::new([10, 0, 17, 1].into(), [10, 0, 18, 1].into(), 60, 64)
    };
    assert_eq!(header, expected);
    assert_eq!(header.to_bytes(), octets);
    assert_eq!(
        emitted_over_noise(Ipv4Header::LEN, |writer| header.emit(writer)),
        octets
    );
    for at in 0..octets.len() {
        let mut wrong = octets;
        wrong[at] ^= 0x10;
        let mut reader = Reader::new(&wrong);
        assert_eq!(Ipv4Header::parse(&mut reader), None);
        assert_eq!(reader.remaining(), wrong.len());
    }
    assert_eq!(Ipv4Header::parse(&mut Reader::new(&octets[1..])), None);
}

#[test]
fn the_area_before_a_datagram() {
    let (source, destination) = ([10, 77, 0, 3].into(), [10, 77, 0, 2].into());
    let v4 = GrhArea::V4(Ipv4Header::new(source, destination, 316, 64));
    assert_eq!(v4.to_bytes()[..20], [0; 20]);
    assert_eq!(Reader::all(&v4.to_bytes(), GrhArea::parse), Ok(v4));
    assert_eq!(v4.gids(), (source.into(), destination.into()));
    // What precedes an IPv4 header has no meaning.
    let mut octets = v4.to_bytes();
    octets[..20].fill(0xa5);
    assert_eq!(Reader::all(&octets, GrhArea::parse), Ok(v4));

    let (sgid, dgid) = (Gid::new([3; 16]), Gid::new([2; 16]));
    let v6 = GrhArea::V6(Grh::new(sgid, dgid, 296, 64));
    assert_eq!(Reader::all(&v6.to_bytes(), GrhArea::parse), Ok(v6));
    assert_eq!(v6.gids(), (sgid, dgid));
    for area in [v4, v6] {
        let octets = emitted_over_noise(GrhArea::LEN, |writer| area.emit(writer));
        assert_eq!(octets, area.to_bytes());
    }
    assert_eq!(v4.to_string(), "10.77.0.3 to 10.77.0.2");
    assert_eq!(
        Reader::all(&[0; 39], GrhArea::parse),
        Err(Malformed::Truncated)
    );
}

/// The largest carry of an Internet checksum.
#[test]
fn checksum_of_ones() {
    let ones = std::net::Ipv4Addr::BROADCAST;
    let header = Ipv4Header {
        tos: 0xff,
        id: 0xffff,
        fragment: 0xffff,
        protocol: 0xff,
        ..Ipv4Header::new(ones, ones, 0xffff, 0xff)
    };
    let octets = header.to_bytes();
    let sum: u32 = octets
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
        .sum();
    // RFC 1071: the sum with the checksum in it is all ones.
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
}

#[test]
fn reasons_read_differently() {
    let texts: std::collections::HashSet<String> = PacketError::ALL
        .iter()
        .map(PacketError::to_string)
        .collect();
    assert_eq!(texts.len(), PacketError::ALL.len());
}
