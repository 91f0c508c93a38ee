//! What real Linux peers sent, with some octets changed: no parser panics, and what is still parsed
//! is emitted as the same octets.
//!
//! Each execution is one frame, changed as its number says, for all parsers. `SOFTVERBS_SEED=n`
//! runs one, to look at a failure that was reported.

#[allow(dead_code, reason = "others use the rest")]
mod support;

#[allow(dead_code, reason = "others use the rest")]
#[path = "support/datagram.rs"]
mod datagram;
#[path = "support/effort.rs"]
mod effort;
#[path = "support/roundtrip.rs"]
mod roundtrip;

use std::fmt::Debug;

use softverbs_wire::ddp::{Control, DdpHeader, TaggedHeader, UntaggedHeader};
use softverbs_wire::ib::cm::{
    Apr, Drep, Dreq, Lap, Mad, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq,
};
use softverbs_wire::ib::mad::MadHeader;
use softverbs_wire::ib::rdma_cm::CmaHeader;
use softverbs_wire::ib::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Grh, GrhArea, Headers, Icrc, Ieth, ImmDt,
    Ipv4Ident, Packet, Rdeth, Reth, Xrceth,
};
use softverbs_wire::mpa::{Enhanced, Fpdu, Marker, MpaFrame, MpaKind, UlpduLength, marker};
use softverbs_wire::num::Qpn;
use softverbs_wire::rdmap::{AtomicRequest, AtomicResponse, ImmediateData, ReadRequest};
use softverbs_wire::rsocket::{
    ByteOrder, ConnectData, DatagramHeader, IomapEntry, ProbeHeader, RemoteBuffer,
};
use softverbs_wire::terminate::{Terminate, TerminateLayout};
use softverbs_wire::{Malformed, Parsed, Reader, Writer};

use datagram::roce_datagram;
use effort::effort;
use roundtrip::same_octets;
use support::{Side, connections, pcap};

const EXECUTIONS: u64 = 100_000;
/// Of larger frames the front is enough.
const LONGEST: usize = 2048;

/// A small generator of numbers that are random enough (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    fn octet(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

/// Where a parser may begin: frames, and what is inside of them.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for capture in pcap::names() {
        if capture.starts_with("siw-") {
            for connection in connections(&capture) {
                for side in [Side::Initiator, Side::Responder] {
                    of_stream(connection.sent_by(side), &mut seeds);
                }
            }
        } else {
            let file = pcap::read(&capture);
            for datagram in pcap::frames(&file).into_iter().filter_map(roce_datagram) {
                of_datagram(datagram.payload, &mut seeds);
            }
        }
    }
    for seed in &mut seeds {
        seed.truncate(LONGEST);
    }
    seeds.sort();
    seeds.dedup();
    seeds
}

fn of_stream(stream: &[u8], seeds: &mut Vec<Vec<u8>>) {
    let mut rest = stream;
    for kind in [MpaKind::Request, MpaKind::Reply] {
        if let Ok(Parsed::Complete { value, len }) = MpaFrame::parse(kind, rest) {
            seeds.push(rest[..len].to_vec());
            seeds.push(value.private_data.to_vec());
            rest = &rest[len..];
        }
    }
    while let Ok(Parsed::Complete { value, len }) = Fpdu::parse(rest) {
        seeds.push(rest[..len].to_vec());
        seeds.push(value.ulpdu.to_vec());
        // With markers, as if it were the first of a stream.
        let mut marked = Vec::new();
        let covered = &rest[..len - 4];
        marker::insert(0, covered, true, &mut marked);
        seeds.push(marked);
        let mut reader = Reader::new(value.ulpdu);
        if DdpHeader::parse(&mut reader).is_ok() {
            seeds.push(reader.rest().to_vec());
        }
        rest = &rest[len..];
    }
    assert_eq!(rest, [], "a capture ends with a whole frame");
}

fn of_datagram(octets: &[u8], seeds: &mut Vec<Vec<u8>>) {
    seeds.push(octets.to_vec());
    let packet = Packet::parse(octets).unwrap();
    seeds.push(packet.payload.to_vec());
    if packet.headers.bth.dest_qp == Qpn::GSI {
        // The message behind its header.
        seeds.push(packet.payload[MadHeader::LEN..].to_vec());
        for at in [140, 180] {
            seeds.push(packet.payload[at..].to_vec());
        }
    }
}

fn change(octets: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    for _ in 0..random.below(4) {
        // Where headers are, mostly.
        let reach = if random.below(3) == 0 {
            octets.len()
        } else {
            octets.len().min(64)
        };
        if reach == 0 {
            octets.push(random.octet());
            continue;
        }
        let at = random.below(reach);
        match random.below(8) {
            0 => octets[at] ^= 1 << random.below(8),
            1 => octets[at] = random.octet(),
            2 => octets[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            3 => octets.truncate(at),
            4 => octets.insert(at, random.octet()),
            5 => drop(octets.remove(at)),
            6 => {
                let other = &others[random.below(others.len())];
                let from = random.below(other.len() + 1);
                octets.truncate(at);
                octets.extend_from_slice(&other[from..]);
            }
            _ => {
                let end = (at + 1 + random.below(8)).min(octets.len());
                let value = random.octet();
                octets[at..end].fill(value);
            }
        }
    }
}

/// What was parsed is itself when it is emitted and parsed again: for headers that keep no reserved
/// bits, since nobody else emits them.
fn same_value<T: PartialEq + Debug>(
    octets: &[u8],
    parse: impl Fn(&mut Reader<'_>) -> Result<Option<T>, Malformed>,
    emit: impl FnOnce(&T, &mut Writer<'_>),
) -> bool {
    let Ok(Some(value)) = parse(&mut Reader::new(octets)) else {
        return false;
    };
    let mut again = [0; 64];
    let mut writer = Writer::new(&mut again);
    emit(&value, &mut writer);
    let len = writer.written();
    assert_eq!(parse(&mut Reader::new(&again[..len])), Ok(Some(value)));
    true
}

fn iwarp(octets: &[u8]) {
    same_octets(octets, Control::parse, Control::emit);
    same_octets(octets, TaggedHeader::parse, TaggedHeader::emit);
    same_octets(octets, UntaggedHeader::parse, UntaggedHeader::emit);
    same_octets(octets, DdpHeader::parse, DdpHeader::emit);
    same_octets(octets, ReadRequest::parse, ReadRequest::emit);
    same_octets(octets, AtomicRequest::parse, AtomicRequest::emit);
    same_octets(octets, AtomicResponse::parse, AtomicResponse::emit);
    same_octets(octets, ImmediateData::parse, ImmediateData::emit);
    same_octets(octets, Terminate::parse, Terminate::emit);
    same_octets(octets, Marker::parse, Marker::emit);
    same_octets(octets, Enhanced::parse, Enhanced::emit);
    same_octets(octets, UlpduLength::parse, UlpduLength::emit);
    let mut reader = Reader::new(octets);
    if let Ok((message, TerminateLayout::Rfc)) = Terminate::parse_any(&mut reader) {
        let len = octets.len() - reader.remaining();
        let mut again = vec![0xa5; len];
        message.emit(&mut Writer::new(&mut again));
        assert_eq!(again, octets[..len], "{message}");
    }
}

/// Whether an FPDU or a frame of the start-up is in front.
fn stream(octets: &[u8]) -> bool {
    let mut parsed = false;
    if let Ok(Parsed::Complete { value, len }) = Fpdu::parse(octets) {
        let mut again = vec![0xa5; len];
        value.emit(&mut Writer::new(&mut again));
        assert_eq!(again, octets[..len]);
        let _ = value.check_crc();
        parsed = true;
    }
    for kind in [MpaKind::Request, MpaKind::Reply] {
        if let Ok(Parsed::Complete { value, len }) = MpaFrame::parse(kind, octets) {
            let mut again = Vec::new();
            value.append_to(&mut again);
            assert_eq!(again, octets[..len]);
            parsed = true;
        }
    }
    for position in [0, 4, 508] {
        let mut plain = Vec::new();
        match marker::strip(position, octets, &mut plain) {
            Ok(Parsed::Complete { value, len }) => {
                let mut again = Vec::new();
                marker::insert(position, &plain[..plain.len() - 4], true, &mut again);
                assert_eq!(again.len(), len);
                let same = again[..len - 4] == octets[..len - 4];
                // Low bits of a marker mean nothing.
                assert!(!same || value.check_crc().is_ok() == (again == octets[..len]));
                parsed = true;
            }
            Ok(Parsed::NeedMore(more)) => assert!(more > 0 && plain.is_empty()),
            Err(_) => assert_eq!(plain, []),
        }
    }
    parsed
}

/// Whether it is a packet or a datagram of the connection manager.
fn roce(octets: &[u8]) -> bool {
    same_octets(octets, Headers::parse, Headers::emit);
    same_octets(octets, Bth::parse, Bth::emit);
    same_octets(octets, Rdeth::parse, Rdeth::emit);
    same_octets(octets, Deth::parse, Deth::emit);
    same_octets(octets, Xrceth::parse, Xrceth::emit);
    same_octets(octets, Feth::parse, Feth::emit);
    same_octets(octets, Reth::parse, Reth::emit);
    same_octets(octets, AtomicEth::parse, AtomicEth::emit);
    same_octets(octets, Aeth::parse, Aeth::emit);
    same_octets(octets, AtomicAckEth::parse, AtomicAckEth::emit);
    same_octets(octets, ImmDt::parse, ImmDt::emit);
    same_octets(octets, Ieth::parse, Ieth::emit);
    same_octets(octets, Grh::parse, Grh::emit);
    let _ = GrhArea::parse(&mut Reader::new(octets));
    let mut parsed = false;
    if let Ok(packet) = Packet::parse(octets) {
        let mut again = vec![0xa5; packet.packet_len()];
        packet.emit(&mut Writer::new(&mut again));
        assert_eq!(again, octets, "{packet}");
        parsed = true;
    }
    let (source, destination) = ("10.77.0.3:50000".parse(), "10.77.0.2:4791".parse());
    let (source, destination) = (source.unwrap(), destination.unwrap());
    let _ = Icrc::of_datagram_v4(source, destination, Ipv4Ident::new(1), octets);
    if let Ok(mad) = Mad::parse(octets) {
        assert_eq!(mad.to_bytes().to_vec(), octets, "{mad}");
        parsed = true;
    }
    parsed
}

fn messages(octets: &[u8]) {
    same_octets(octets, MadHeader::parse, MadHeader::emit);
    same_octets(octets, CmaHeader::parse, CmaHeader::emit);
    same_octets(octets, Req::parse, Req::emit);
    same_octets(octets, Mra::parse, Mra::emit);
    same_octets(octets, Rej::parse, Rej::emit);
    same_octets(octets, Rep::parse, Rep::emit);
    same_octets(octets, Rtu::parse, Rtu::emit);
    same_octets(octets, Dreq::parse, Dreq::emit);
    same_octets(octets, Drep::parse, Drep::emit);
    same_octets(octets, SidrReq::parse, SidrReq::emit);
    same_octets(octets, SidrRep::parse, SidrRep::emit);
    same_octets(octets, Lap::parse, Lap::emit);
    same_octets(octets, Apr::parse, Apr::emit);
}

fn rsocket(octets: &[u8]) {
    same_octets(octets, ConnectData::parse, ConnectData::emit);
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let parse = |reader: &mut Reader<'_>| RemoteBuffer::parse(reader, order);
        same_octets(octets, parse, |value, writer| value.emit(writer, order));
        let parse = |reader: &mut Reader<'_>| IomapEntry::parse(reader, order);
        same_octets(octets, parse, |value, writer| value.emit(writer, order));
    }
    same_value(octets, DatagramHeader::parse, DatagramHeader::emit);
    same_value(octets, ProbeHeader::parse, ProbeHeader::emit);
}

/// Says which execution it was that failed.
struct Execution(u64);

impl Drop for Execution {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SOFTVERBS_SEED={} runs it again", self.0);
        }
    }
}

#[test]
fn no_change_to_a_frame_confuses_a_parser() {
    let seeds = seeds();
    let only = std::env::var("SOFTVERBS_SEED").ok();
    let executions = match only {
        Some(text) => {
            let seed: u64 = text.parse().expect("SOFTVERBS_SEED: a number");
            seed..seed + 1
        }
        None => 0..EXECUTIONS * u64::from(effort()),
    };
    let (mut streams, mut packets, mut count) = (0, 0, 0);
    for execution in executions {
        let _says = Execution(execution);
        let mut random = Random(execution);
        let mut octets = seeds[random.below(seeds.len())].clone();
        change(&mut octets, &seeds, &mut random);
        iwarp(&octets);
        messages(&octets);
        rsocket(&octets);
        streams += u64::from(stream(&octets));
        packets += u64::from(roce(&octets));
        count += 1;
    }
    eprintln!(
        "{} seeds, {count} executions; {streams} were frames of a stream, {packets} packets or MADs",
        seeds.len()
    );
    // Enough of them come as far as that.
    if count >= EXECUTIONS {
        assert!(streams > count / 20 && packets > count / 20);
    }
}
