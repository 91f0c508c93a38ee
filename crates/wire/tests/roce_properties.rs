//! Any octets can be parsed as RoCEv2 without a panic, and what was parsed is emitted as the same
//! octets.

#[path = "support/effort.rs"]
mod effort;
#[path = "support/roundtrip.rs"]
mod roundtrip;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use softverbs_wire::ib::cm::{
    Apr, Drep, Dreq, Lap, Mad, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq,
};
use softverbs_wire::ib::mad::{AttributeId, MAD_LEN, MadHeader};
use softverbs_wire::ib::rdma_cm::{CmaHeader, ServicePort};
use softverbs_wire::ib::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Grh, GrhArea, Headers, Icrc, Ieth, ImmDt,
    Ipv4Ident, Opcode, Packet, PacketError, Rdeth, Reth, Trailer, Xrceth, pad_count,
};
use softverbs_wire::num::{FlowLabel, Psn, Qpn, ServiceId};
use softverbs_wire::{Reader, Writer};

use effort::effort;
use roundtrip::same_octets;

/// Octets that begin as the packet of some opcode does.
fn octets_of_a_packet() -> impl Strategy<Value = Vec<u8>> {
    (select(Opcode::ALL), 0..16_u8, vec(any::<u8>(), 2..200)).prop_map(
        |(opcode, flags, mut octets)| {
            octets[..2].copy_from_slice(&[opcode.get(), flags << 4]);
            octets
        },
    )
}

/// Octets that begin as a datagram of a connection manager does.
fn octets_of_a_mad() -> impl Strategy<Value = Vec<u8>> {
    (0x0e..0x1d_u8, vec(any::<u8>(), MAD_LEN - 2..MAD_LEN + 2)).prop_map(
        |(attribute, mut octets)| {
            octets[..4].copy_from_slice(&[1, 7, 2, 3]);
            octets[16..18].copy_from_slice(&[0, attribute]);
            octets
        },
    )
}

fn check_packet(octets: &[u8]) {
    if let Ok(packet) = Packet::parse(octets) {
        let mut again = vec![0xa5; packet.packet_len()];
        let mut writer = Writer::new(&mut again);
        packet.emit(&mut writer);
        assert_eq!(writer.written(), octets.len());
        assert_eq!(again, octets, "{packet}");
        assert!(octets.len() >= Packet::MIN_LEN);
        assert!(packet.headers.header_len() <= Headers::MAX_LEN);
    }
    same_octets(octets, Headers::parse, Headers::emit);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256 * effort()))]

    #[test]
    fn octets_of_headers_survive(octets in vec(any::<u8>(), 0..64)) {
        same_octets(&octets, Bth::parse, Bth::emit);
        same_octets(&octets, Rdeth::parse, Rdeth::emit);
        same_octets(&octets, Deth::parse, Deth::emit);
        same_octets(&octets, Xrceth::parse, Xrceth::emit);
        same_octets(&octets, Feth::parse, Feth::emit);
        same_octets(&octets, Reth::parse, Reth::emit);
        same_octets(&octets, AtomicEth::parse, AtomicEth::emit);
        same_octets(&octets, Aeth::parse, Aeth::emit);
        same_octets(&octets, AtomicAckEth::parse, AtomicAckEth::emit);
        same_octets(&octets, ImmDt::parse, ImmDt::emit);
        same_octets(&octets, Ieth::parse, Ieth::emit);
        same_octets(&octets, Grh::parse, Grh::emit);
        same_octets(&octets, MadHeader::parse, MadHeader::emit);
        same_octets(&octets, CmaHeader::parse, CmaHeader::emit);
        let _ = GrhArea::parse(&mut Reader::new(&octets));
    }

    #[test]
    fn octets_of_messages_survive(octets in vec(any::<u8>(), 230..236)) {
        same_octets(&octets, Req::parse, Req::emit);
        same_octets(&octets, Mra::parse, Mra::emit);
        same_octets(&octets, Rej::parse, Rej::emit);
        same_octets(&octets, Rep::parse, Rep::emit);
        same_octets(&octets, Rtu::parse, Rtu::emit);
        same_octets(&octets, Dreq::parse, Dreq::emit);
        same_octets(&octets, Drep::parse, Drep::emit);
        same_octets(&octets, SidrReq::parse, SidrReq::emit);
        same_octets(&octets, SidrRep::parse, SidrRep::emit);
        same_octets(&octets, Lap::parse, Lap::emit);
        same_octets(&octets, Apr::parse, Apr::emit);
        for attribute in 0x0f..0x1c {
            let parse = |reader: &mut Reader<'_>| {
                Message::parse(AttributeId::new(attribute), reader)
            };
            same_octets(&octets, parse, Message::emit);
        }
    }

    #[test]
    fn octets_of_datagrams_survive(octets in octets_of_a_mad()) {
        match Mad::parse(&octets) {
            Ok(mad) => prop_assert_eq!(mad.to_bytes().to_vec(), octets),
            Err(error) => prop_assert!(
                octets.len() != MAD_LEN
                    || (error == PacketError::UnknownAttribute
                        && !(0x10..=0x1a).contains(&octets[17])),
                "{error}"
            ),
        }
    }

    #[test]
    fn octets_of_packets_survive(octets in octets_of_a_packet()) {
        check_packet(&octets);
    }

    #[test]
    fn anything_is_parsed_without_a_panic(octets in vec(any::<u8>(), 0..300)) {
        check_packet(&octets);
        let _ = Mad::parse(&octets);
    }

    /// A packet sent in pieces is the packet that is received.
    #[test]
    fn pieces_become_a_packet(
        opcode in select(Opcode::ALL),
        fields in vec(any::<u8>(), Headers::MAX_LEN),
        payload in vec(any::<u8>(), 0..300),
        id in any::<u16>(),
    ) {
        let mut octets = fields;
        octets[..2].copy_from_slice(&[opcode.get(), 0]);
        let mut headers = Headers::parse(&mut Reader::new(&octets)).unwrap();
        headers.bth.pad_count = pad_count(payload.len());

        let mut scratch = Vec::new();
        headers.append_to(&mut scratch);
        let pad = vec![0; usize::from(headers.bth.pad_count)];
        let len = scratch.len() + payload.len() + pad.len() + Icrc::LEN;
        let (source, destination) = ("10.77.0.3:50000".parse(), "10.77.0.2:4791".parse());
        let (source, destination) = (source.unwrap(), destination.unwrap());
        let ident = Ipv4Ident::new(id);
        let icrc = Icrc::new_v4(source, destination, ident, len, &scratch)
            .update(&payload)
            .update(&pad)
            .finish();
        let trailer = Trailer::new(payload.len(), icrc);
        let mut datagram = vec![0xa5; len];
        let mut writer = Writer::new(&mut datagram);
        writer.bytes(&scratch);
        writer.bytes(&payload);
        trailer.emit(&mut writer);
        prop_assert_eq!(writer.written(), len);

        let expected = Packet { headers, payload: &payload, trailer };
        prop_assert_eq!(Packet::parse(&datagram), Ok(expected));
        let received = Icrc::of_datagram_v4(source, destination, ident, &datagram).unwrap();
        prop_assert_eq!(received.finish(), icrc);
    }

    #[test]
    fn service_ids_there_and_back(id in any::<u32>()) {
        let id = ServiceId::new(id.into());
        let port = ServicePort::from_service_id(id).unwrap();
        prop_assert_eq!(port.service_id(), id);
    }

    #[test]
    fn numbers_of_24_and_20_bits(value in any::<u32>()) {
        prop_assert_eq!(Qpn::new(value).get(), value & 0x00ff_ffff);
        prop_assert_eq!(Psn::new(value).get(), value & 0x00ff_ffff);
        prop_assert_eq!(FlowLabel::new(value).get(), value & 0x000f_ffff);
    }
}
