//! Conversations of real Linux peers (siw), replayed: each direction is fed to a stream of ours,
//! which has to take all of it and to do what its messages say.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::*;
use softverbs_proto::iwarp::negotiate::{
    Initiator, InitiatorOutcome, Negotiated, Responder, ResponderOutcome, Wishes,
};
use softverbs_proto::iwarp::stream::{Role, Stream, StreamConfig, StreamEvent};
use softverbs_proto::memory::{Access, Memory, MemoryFault};
use softverbs_proto::mutation::Mutations;
use softverbs_proto::transmit::TxBatch;
use softverbs_proto::wr::{RecvRequest, SendOp, Sge, WcOpcode, WcStatus};
use softverbs_wire::codec::{Parsed, Reader};
use softverbs_wire::ddp::DdpHeader;
use softverbs_wire::mpa::{Fpdu, MpaFrame, MpaKind};
use softverbs_wire::num::{Lkey, Rkey};
use softverbs_wire::rdmap::{Opcode, ReadRequest};

type Endpoint = ([u8; 4], u16);

/// What each side of a connection sent: initiator, responder.
type Connection = (Vec<u8>, Vec<u8>);

fn be16(octets: &[u8]) -> u16 {
    u16::from_be_bytes(*octets.first_chunk().unwrap())
}

fn be32(octets: &[u8]) -> u32 {
    u32::from_be_bytes(*octets.first_chunk().unwrap())
}

fn le32(octets: &[u8]) -> usize {
    u32::from_le_bytes(*octets.first_chunk().unwrap()) as usize
}

/// What one side sent: where its sequence numbers begin, and the segments by their offset.
type Segments = (u32, BTreeMap<u32, Vec<u8>>);

/// The connections of a capture of TCP over IPv4 over Ethernet that carried anything.
fn connections(capture: &str) -> Vec<Connection> {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures");
    let file = std::fs::read(captures.join(capture)).unwrap();
    let mut rest = &file[24..];
    let mut order = Vec::new();
    let mut streams: BTreeMap<(Endpoint, Endpoint), Segments> = BTreeMap::new();
    while !rest.is_empty() {
        let len = le32(&rest[8..]);
        let frame = &rest[16..16 + len];
        rest = &rest[16 + len..];
        let ip = &frame[14..];
        let tcp = &ip[usize::from(ip[0] & 15) * 4..usize::from(be16(&ip[2..]))];
        let from: Endpoint = (*ip[12..].first_chunk().unwrap(), be16(tcp));
        let to: Endpoint = (*ip[16..].first_chunk().unwrap(), be16(&tcp[2..]));
        let (sequence, syn, ack) = (be32(&tcp[4..]), tcp[13] & 2 != 0, tcp[13] & 16 != 0);
        if syn {
            streams.insert((from, to), (sequence.wrapping_add(1), BTreeMap::new()));
            if !ack {
                order.push((from, to));
            }
            continue;
        }
        let payload = &tcp[usize::from(tcp[12] >> 4) * 4..];
        if let Some((first, segments)) = streams.get_mut(&(from, to))
            && !payload.is_empty()
        {
            let at = segments.entry(sequence.wrapping_sub(*first)).or_default();
            // A retransmission may be longer than the first attempt.
            if at.len() < payload.len() {
                *at = payload.to_vec();
            }
        }
    }
    order
        .into_iter()
        .map(|(from, to)| {
            let sent = |key| streams.get(&key).map_or_else(Vec::new, assemble);
            (sent((from, to)), sent((to, from)))
        })
        .filter(|(initiator, responder)| !initiator.is_empty() && !responder.is_empty())
        .collect()
}

fn assemble((_, segments): &Segments) -> Vec<u8> {
    let mut octets = Vec::new();
    for (at, segment) in segments {
        let known = octets
            .len()
            .checked_sub(*at as usize)
            .expect("no segment is missing");
        octets.extend_from_slice(segment.get(known..).unwrap_or(&[]));
    }
    octets
}

/// The start-up frame of a direction, and the FPDUs behind it.
fn split(octets: &[u8], kind: MpaKind) -> (&[u8], &[u8]) {
    let (_, len) = MpaFrame::parse(kind, octets).unwrap().complete().unwrap();
    octets.split_at(len)
}

/// Takes and gives everything: siw had the memory, we only watch what is done to it.
#[derive(Debug, Default)]
struct Watcher {
    /// What was written where a receive or read of ours goes.
    messages: Vec<u8>,
    /// What the peer wrote to the keys that siw gave it.
    writes: Vec<u8>,
    receives: u64,
}

const OURS: u32 = 0xffff_ffff;

impl Memory for Watcher {
    fn check_local(&self, _: &Sge, _: Access) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn check_remote(&self, _: Rkey, _: u64, _: u64, _: Access) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn invalidate(&mut self, _: Rkey) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn read(&self, _: Lkey, _: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        out.fill(0);
        Ok(())
    }

    fn write(&mut self, key: Lkey, _: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let ours = key.get() == OURS;
        if ours {
            &mut self.messages
        } else {
            &mut self.writes
        }
        .extend_from_slice(data);
        Ok(())
    }

    fn atomic(
        &mut self,
        _: Rkey,
        _: u64,
        _: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, MemoryFault> {
        Err(MemoryFault::Access)
    }

    fn take_receive(&mut self) -> Option<RecvRequest> {
        self.receives += 1;
        Some(RecvRequest {
            wr_id: self.receives,
            sges: [sge(OURS, 0, 1 << 20)].into_iter().collect(),
        })
    }
}

/// The segments of a stream of FPDUs.
fn parse(octets: &[u8]) -> Vec<(DdpHeader, Vec<u8>, Vec<u8>)> {
    let mut rest = octets;
    let mut segments = Vec::new();
    while !rest.is_empty() {
        let Parsed::Complete { value, len } = Fpdu::parse(rest).unwrap() else {
            panic!()
        };
        let mut reader = Reader::new(value.ulpdu);
        let header = DdpHeader::parse(&mut reader).unwrap();
        segments.push((header, reader.rest().to_vec(), rest[..len].to_vec()));
        rest = &rest[len..];
    }
    segments
}

/// What a replay came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    messages: usize,
    written: usize,
    reads_served: usize,
    reads_made: usize,
}

/// Feeds `theirs` to a stream that has made the reads that siw made in `ours`.
fn replay(role: Role, negotiated: Negotiated, theirs: &[u8], ours: &[u8], chunk: usize) -> Totals {
    let config = StreamConfig {
        max_send_wr: 1000,
        sq_sig_all: true,
        copy_limit: 0,
        mutations: Mutations::NONE,
    };
    let mut stream = Stream::new(config);
    let mut memory = Watcher::default();
    let mut batch = TxBatch::new();
    let mut served = 0;
    let mut transmit = |stream: &mut Stream, memory: &mut Watcher| {
        batch.clear();
        stream.poll_transmit(at(0), memory, &mut batch, 1 << 20, 1024);
        // Our own frames are read requests and the answers to reads of the peer.
        let octets: usize = batch.len();
        stream.on_transmitted(octets);
    };
    let mut sinks = Vec::new();
    for (header, body, _) in parse(ours) {
        if header.control().opcode() == Opcode::READ_REQUEST {
            let request = ReadRequest::parse(&mut Reader::new(&body)).unwrap();
            let op = SendOp::Read {
                remote_addr: request.source_to.get(),
                rkey: request.source_stag.into(),
            };
            stream
                .post_send(wr(
                    sinks.len() as u64,
                    op,
                    sge(OURS, 0, request.size as usize),
                ))
                .unwrap();
            sinks.push((request.sink_stag, request.sink_to.get()));
        }
    }
    let reads = sinks.len();
    stream.attach(at(0), role, negotiated, AWARE);

    transmit(&mut stream, &mut memory);

    // Expected outcome, and the stream with the sinks as our stream names them: by number.
    let (mut sent, mut written) = (Vec::new(), Vec::new());
    let mut expected = Totals {
        reads_made: reads,
        ..Totals::default()
    };
    let mut sinks = sinks.into_iter();
    let mut sink = None;
    let mut number = 0_u32;
    for (header, body, mut frame) in parse(theirs) {
        let control = header.control();
        match header {
            DdpHeader::Tagged(tagged) if control.opcode() == Opcode::READ_RESPONSE => {
                if sink.is_none() {
                    sink = sinks.next();
                    number += 1;
                }
                let (stag, to) = sink.unwrap();
                assert_eq!(tagged.stag, stag);
                frame[4..8].copy_from_slice(&number.to_be_bytes());
                frame[8..16].copy_from_slice(&(tagged.to.get() - to).to_be_bytes());
                sent.extend_from_slice(&body);
                if control.is_last() {
                    sink = None;
                }
            }
            DdpHeader::Tagged(_) => written.extend_from_slice(&body),
            DdpHeader::Untagged(_) if control.opcode() == Opcode::READ_REQUEST => {
                expected.reads_served += 1;
            }
            DdpHeader::Untagged(_) => {
                sent.extend_from_slice(&body);
                expected.messages += usize::from(control.is_last());
            }
        }
        for octets in frame.chunks(chunk) {
            stream.on_bytes(at(0), &mut memory, octets);
            while stream.wants_transmit() {
                transmit(&mut stream, &mut memory);
            }
        }
        served += usize::from(control.opcode() == Opcode::READ_REQUEST);
    }
    expected.written = written.len();

    let mut found = Totals {
        written: memory.writes.len(),
        reads_served: served,
        ..Totals::default()
    };
    while let Some(completion) = stream.poll_recv_completion() {
        assert_eq!(completion.status, WcStatus::Success);
        assert_eq!(completion.opcode, WcOpcode::Recv);
        found.messages += 1;
    }
    while let Some(completion) = stream.poll_send_completion() {
        assert_eq!(completion.status, WcStatus::Success);
        assert_eq!(completion.opcode, WcOpcode::RdmaRead);
        found.reads_made += 1;
    }
    let mut events = Vec::new();
    while let Some(event) = stream.poll_event() {
        events.push(event);
    }
    assert!(
        matches!(events[..], [StreamEvent::Established]),
        "{events:?}"
    );
    assert_eq!(memory.messages, sent, "payload of Sends and Read Responses");
    assert_eq!(memory.writes, written, "payload of RDMA Writes");
    assert_eq!(found, expected);
    stream.on_eof(at(0), false);
    assert!(matches!(
        stream.poll_event(),
        Some(StreamEvent::Closed { cause: None })
    ));
    found
}

fn wishes() -> Wishes {
    Wishes {
        crc: false,
        markers: false,
        ird: 128,
        ord: 128,
        peer_to_peer: true,
        rfc7306: true,
        revision: 2,
        timeout: core::time::Duration::from_secs(10),
        mutations: Mutations::NONE,
    }
}

fn add(to: &mut Totals, more: &Totals) {
    to.messages += more.messages;
    to.written += more.written;
    to.reads_served += more.reads_served;
    to.reads_made += more.reads_made;
}

/// Replays both directions of every connection of a capture.
fn replay_capture(capture: &str) -> Totals {
    let mut totals = Totals::default();
    for (initiator, responder) in connections(capture) {
        let (request, to_responder) = split(&initiator, MpaKind::Request);
        let (reply, to_initiator) = split(&responder, MpaKind::Reply);
        // siw as initiator, we accept.
        let mut passive = Responder::new(at(0), wishes().timeout);
        let outcome = passive.on_bytes(at(0), request);
        assert!(
            matches!(outcome, ResponderOutcome::Request { .. }),
            "{outcome:?}"
        );
        let (_, agreed) = passive.accept(&wishes(), b"").unwrap();
        assert_eq!(
            (agreed.crc, agreed.rtr, agreed.rfc7306),
            (false, None, false)
        );

        // siw as responder, we connected. Its reply answers siw's request, which had A=0.
        let mut active = Initiator::new(at(0), wishes(), b"");
        let outcome = active.on_bytes(at(0), reply);
        let InitiatorOutcome::Established {
            negotiated,
            consumed,
            ..
        } = outcome
        else {
            panic!("{outcome:?}");
        };
        assert_eq!(consumed, reply.len());
        assert_eq!(
            (negotiated.crc, negotiated.rtr, negotiated.rfc7306),
            (false, None, false)
        );

        let negotiated = Negotiated {
            ord: 16,
            ird: 16,
            ..negotiated
        };
        let agreed = Negotiated {
            ord: 16,
            ird: 16,
            ..agreed
        };
        for chunk in [usize::MAX, 1, 700] {
            let a = replay(
                Role::Initiator,
                negotiated.clone(),
                to_initiator,
                to_responder,
                chunk,
            );
            let b = replay(RESPONDER, agreed.clone(), to_responder, to_initiator, chunk);
            if chunk == 1 {
                add(&mut totals, &a);
                add(&mut totals, &b);
            }
        }
    }
    totals
}

#[test]
fn rping() {
    let totals = replay_capture("siw-rping.pcap");
    assert_eq!(
        (totals.messages, totals.reads_served, totals.reads_made),
        (12, 3, 3)
    );
}

#[test]
fn ib_write_bw() {
    let totals = replay_capture("siw-write.pcap");
    assert_eq!((totals.messages, totals.reads_made), (32, 0));
    let totals = replay_capture("siw-write-200k.pcap");
    assert_eq!(totals.messages, 32);
    assert_eq!(totals.written, 5 * 200_000);
}

#[test]
fn ib_read_bw() {
    let totals = replay_capture("siw-read.pcap");
    assert_eq!((totals.reads_served, totals.reads_made), (5, 5));
    let totals = replay_capture("siw-read-200k.pcap");
    assert_eq!((totals.reads_served, totals.reads_made), (5, 5));
}

#[test]
fn ib_send_bw() {
    let totals = replay_capture("siw-send.pcap");
    assert!(totals.messages > 10);
    let totals = replay_capture("siw-send-bidir.pcap");
    assert!(totals.messages > 10);
}

#[test]
fn the_server_sends_first() {
    assert!(replay_capture("siw-ucmatose.pcap").messages >= 6);
    assert!(replay_capture("siw-rstream.pcap").written > 0);
}

#[test]
fn many_connections_without_a_message() {
    assert_eq!(connections("siw-cmtime.pcap").len(), 20);
    assert_eq!(replay_capture("siw-cmtime.pcap"), Totals::default());
}
