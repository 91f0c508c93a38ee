//! Both halves of a reliable connection beside a model of a responder, over random requests and a
//! network that loses, repeats and reorders: the real responder answers every packet as the model
//! does and has the same memory after it; the real requester gets everything done by the model.
//!
//! `SOFTVERBS_SEED=n` runs one, to look at a failure that was reported.

mod effort;
mod roce_common;

use core::time::Duration;
use std::collections::BTreeMap;

use effort::effort;
use roce_common::model::{Answer, Model};
use roce_common::responder::*;
use roce_common::*;
use softverbs_proto::memory::Access;
use softverbs_proto::roce::queue_pair::PacketMeta;
use softverbs_proto::time::Time;
use softverbs_proto::wr::{SendOp, WcStatus};
use softverbs_wire::ib::{AtomicEth, Headers, Opcode, Packet, Position};
use softverbs_wire::num::{PathMtu, VirtualAddress};

const SEEDS: u64 = 1000;
/// Of each kind of memory.
const LEN: usize = 2000;
/// Where receives are.
const INBOX: u32 = 9;
const ROOM: usize = 800;

/// Says which seed it was that failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SOFTVERBS_SEED={} runs it again", self.0);
        }
    }
}

fn seeds() -> core::ops::Range<u64> {
    match std::env::var("SOFTVERBS_SEED") {
        Ok(text) => {
            let seed = text.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..SEEDS * u64::from(effort()),
    }
}

/// The packets of random requests in their order.
fn script(random: &mut Random) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut index = 0;
    let mut push = |mut headers: Headers, payload: &[u8], random: &mut Random| {
        headers.bth.ack_req = random.below(3) > 0;
        packets.push(built(headers, payload));
    };
    for number in 0..20 {
        let len = [0, 1, random.below(256), 256, random.below(700)][random.below(5)];
        let at = random.below(LEN - 700) as u64;
        let dma_len = u32::try_from(len).unwrap();
        let kind = random.below(6);
        match kind {
            0..=2 => {
                let payload = pattern(number, len);
                let pieces: Vec<&[u8]> = match len {
                    0 => vec![&[]],
                    _ => payload.chunks(MTU).collect(),
                };
                for (piece, payload) in pieces.iter().enumerate() {
                    let position = Position::new(piece == 0, piece + 1 == pieces.len());
                    let send = kind == 0;
                    let opcode = match (send, position) {
                        (true, Position::First) => Opcode::RC_SEND_FIRST,
                        (true, Position::Middle) => Opcode::RC_SEND_MIDDLE,
                        (true, Position::Last) => Opcode::RC_SEND_LAST,
                        (true, Position::Only) => Opcode::RC_SEND_ONLY,
                        (false, Position::First) => Opcode::RC_WRITE_FIRST,
                        (false, Position::Middle) => Opcode::RC_WRITE_MIDDLE,
                        (false, Position::Last) => Opcode::RC_WRITE_LAST,
                        (false, Position::Only) => Opcode::RC_WRITE_ONLY,
                    };
                    let mut headers = request(opcode, index);
                    if !send && piece == 0 {
                        headers = headers.with_reth(reth(WRITABLE, at, dma_len));
                    }
                    push(headers, payload, random);
                    index += 1;
                }
            }
            3 | 4 => {
                push(read(index, READABLE, at, dma_len), &[], random);
                index += u32::try_from(len.div_ceil(MTU).max(1)).unwrap();
            }
            _ => {
                let add = random.below(2) == 0;
                let opcode = if add {
                    Opcode::RC_FETCH_ADD
                } else {
                    Opcode::RC_CMP_SWAP
                };
                let atomic = AtomicEth {
                    va: VirtualAddress::new(8),
                    rkey: rkey(ATOMIC),
                    swap_or_add: random.next() % 3,
                    compare: random.next() % 3,
                };
                push(request(opcode, index).with_atomic_eth(atomic), &[], random);
                index += 1;
            }
        }
    }
    packets
}

/// Of a READ of several packets, the part from one of them on: as its requester asks for it when
/// that one was lost.
fn rest_of_read(octets: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut headers = Packet::parse(octets).unwrap().headers;
    let reth = headers
        .reth
        .filter(|_| headers.bth.opcode == Opcode::RC_READ_REQUEST)?;
    let packets = usize::try_from(reth.dma_len).unwrap().div_ceil(MTU);
    let skip = u32::try_from(random.below(packets.max(1))).unwrap();
    let octets = skip * u32::try_from(MTU).unwrap();
    headers.bth.psn = headers.bth.psn.advance(skip);
    let (va, len) = (reth.va.get() + u64::from(octets), reth.dma_len - octets);
    Some(built(headers.with_reth(self::reth(READABLE, va, len)), &[]))
}

/// What is compared of an answer.
fn essence((headers, payload): Answer) -> impl PartialEq + core::fmt::Debug {
    let bth = headers.bth;
    (
        bth.opcode,
        bth.psn,
        headers.aeth,
        headers.atomic_ack_eth,
        payload,
    )
}

fn responder_beside_the_model(seed: u64) -> (usize, usize) {
    let _says = Seed(seed);
    let mut random = Random(seed);
    let packets = script(&mut random);
    let mut end = responder();
    end.memory
        .add(INBOX, 0, Access::LOCAL_WRITE, &[0; 20 * ROOM]);
    let mut model = Model::new(A_QPN, A_PSN, pattern(1, LEN), LEN);
    let index_of = |psn| {
        packets
            .iter()
            .position(|octets| Packet::parse(octets).unwrap().headers.bth.psn == psn)
    };
    for _ in 0..150 {
        let next = index_of(model.next).unwrap_or(packets.len());
        let choice = random.below(20);
        let octets = match choice {
            0..=11 => packets.get(next).cloned(),
            12..=14 if next > 0 => packets.get(random.below(next)).cloned(),
            15 if next > 0 => rest_of_read(&packets[random.below(next)], &mut random),
            16 => packets.get(next + 1 + random.below(4)).cloned(),
            17..=19 if model.receives < 20 => {
                let at = (model.receives * ROOM) as u64;
                end.memory
                    .post_receive(model.receives as u64, [sge(INBOX, at, ROOM)]);
                model.receives += 1;
                None
            }
            _ => None,
        };
        let Some(octets) = octets else { continue };
        let packet = Packet::parse(&octets).unwrap();
        let expected = model.packet(&packet);
        end.feed(micros(1), &octets, &PacketMeta::default());
        let answers = end.transmit_all(micros(1));
        let answers = answers.iter().map(|octets| {
            let packet = Packet::parse(octets).unwrap();
            essence((packet.headers, packet.payload.to_vec()))
        });
        let expected = expected.into_iter().map(essence);
        assert_eq!(
            answers.collect::<Vec<_>>(),
            expected.collect::<Vec<_>>(),
            "{packet}"
        );
        assert_eq!(end.memory.octets(WRITABLE), model.writable, "{packet}");
        let word = &end.memory.octets(ATOMIC)[8..16];
        assert_eq!(word, model.word.to_ne_bytes(), "{packet}");
        assert_eq!(end.received.len(), model.received.len(), "{packet}");
    }
    for (number, (done, octets)) in end.received.iter().zip(&model.received).enumerate() {
        assert_eq!(
            (done.wr_id, done.status),
            (number as u64, WcStatus::Success)
        );
        assert_eq!(done.byte_len as usize, octets.len());
        let at = number * ROOM;
        assert_eq!(end.memory.octets(INBOX)[at..at + octets.len()], octets[..]);
    }
    end.memory.assert_canaries();
    (model.duplicates, model.gaps)
}

#[test]
fn a_responder_answers_as_the_model_does() {
    let (mut duplicates, mut gaps, mut runs) = (0, 0, 0);
    for seed in seeds() {
        let (again, early) = responder_beside_the_model(seed);
        duplicates += again;
        gaps += early;
        runs += 1;
    }
    eprintln!("{runs} runs, {duplicates} packets came again, {gaps} too early");
    assert!(runs == 1 || duplicates > runs && gaps > runs);
}

/// What is on its way, by the time of arrival: whether to the model, and its octets.
#[derive(Default)]
struct Way {
    packets: BTreeMap<(Time, u64), (bool, Vec<u8>)>,
    sent: u64,
}

impl Way {
    fn send(&mut self, now: Time, to_model: bool, octets: &[u8], random: &mut Random) {
        if random.chance(10) {
            return;
        }
        for _ in 0..1 + usize::from(random.chance(10)) {
            let late = if random.chance(20) {
                random.next() % 80_000
            } else {
                0
            };
            let arrival = now + LATENCY + Duration::from_nanos(late);
            self.sent += 1;
            self.packets
                .insert((arrival, self.sent), (to_model, octets.to_vec()));
        }
    }
}

/// A request and what it has to lead to.
enum Asked {
    Send(Vec<u8>),
    Write { at: usize, octets: Vec<u8> },
    Read { at: usize, len: usize },
    Add(u64),
}

fn ask(end: &mut End, random: &mut Random, count: usize) -> Vec<Asked> {
    end.memory
        .add(INBOX, 0, VecMemory::all_access(), &vec![0; count * ROOM]);
    let mut all = Vec::new();
    for index in 0..count {
        let slot = index * ROOM;
        let len = [0, 1, 256, random.below(256), random.below(700)][random.below(5)];
        let at = random.below(LEN - 700);
        let octets = pattern(index.to_le_bytes()[0], len);
        let asked = match random.below(4) {
            0 => Asked::Send(octets),
            1 => Asked::Write { at, octets },
            2 => Asked::Read { at, len },
            _ => Asked::Add(random.next() % 5),
        };
        let (op, len) = match &asked {
            Asked::Send(octets) => (SendOp::Send, octets.len()),
            Asked::Write { at, octets } => (write_op(WRITABLE, *at as u64), octets.len()),
            Asked::Read { at, len } => (read_op(READABLE, *at as u64), *len),
            Asked::Add(add) => (fetch_add(ATOMIC, 8, *add), 8),
        };
        if let Asked::Send(octets) | Asked::Write { octets, .. } = &asked {
            let region = end.memory.region_mut(INBOX).octets_mut();
            region[slot..slot + len].copy_from_slice(octets);
        }
        end.post(wr(index as u64, op, sge(INBOX, slot as u64, len)));
        all.push(asked);
    }
    all
}

fn requester_beside_the_model(seed: u64) -> usize {
    const COUNT: usize = 16;
    let _says = Seed(seed);
    let mut random = Random(seed);
    let small = softverbs_proto::roce::queue_pair::QpAttributes {
        path_mtu: PathMtu::Mtu256,
        ..attributes()
    };
    let mut end = Pair::new(small, Network::GOOD, 1).a;
    let mut model = Model::new(A_QPN, A_PSN, pattern(1, LEN), LEN);
    let all = ask(&mut end, &mut random, COUNT);
    let (mut now, mut way) = (micros(1), Way::default());
    let mut steps = 0;
    loop {
        for octets in end.transmit_all(now) {
            way.send(now, true, &octets, &mut random);
        }
        let arrival = way.packets.first_key_value().map(|((time, _), _)| *time);
        let Some(next) = arrival.into_iter().chain(end.qp.deadline()).min() else {
            break;
        };
        now = now.max(next);
        while let Some(entry) = way.packets.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let (to_model, octets) = entry.remove();
            if !to_model {
                end.feed(now, &octets, &PacketMeta::default());
                continue;
            }
            for (headers, payload) in model.packet(&Packet::parse(&octets).unwrap()) {
                way.send(now, false, &built(headers, &payload), &mut random);
            }
            if random.chance(30) {
                model.receives += 1;
            }
        }
        if end.qp.deadline().is_some_and(|deadline| deadline <= now) {
            end.qp.on_timeout(now);
            end.drain();
        }
        steps += 1;
        assert!(steps < 100_000, "never comes to rest");
    }
    check_requester(&end, &model, &all);
    model.duplicates
}

fn check_requester(end: &End, model: &Model, all: &[Asked]) {
    let expected: Vec<_> = (0..all.len() as u64)
        .map(|wr_id| (wr_id, WcStatus::Success))
        .collect();
    assert_eq!(end.statuses(), expected, "{:?}", end.events);
    let (mut writable, mut word, mut sends) = (vec![0; LEN], 0, Vec::new());
    for (index, asked) in all.iter().enumerate() {
        let here = &end.memory.octets(INBOX)[index * ROOM..];
        match asked {
            Asked::Send(octets) => sends.push(octets.clone()),
            Asked::Write { at, octets } => writable[*at..at + octets.len()].copy_from_slice(octets),
            Asked::Read { at, len } => assert_eq!(here[..*len], model.readable[*at..at + len]),
            Asked::Add(add) => {
                assert_eq!(here[..8], u64::to_ne_bytes(word), "executed once");
                word += add;
            }
        }
    }
    assert_eq!(model.received, sends);
    assert_eq!(model.writable, writable);
    assert_eq!(model.word, word);
    end.memory.assert_canaries();
}

#[test]
fn a_requester_gets_everything_done_by_the_model() {
    let (mut duplicates, mut runs) = (0, 0);
    for seed in seeds() {
        duplicates += requester_beside_the_model(seed);
        runs += 1;
    }
    eprintln!("{runs} runs, {duplicates} packets came again");
    assert!(runs == 1 || duplicates > runs);
}
