//! Loss, duplication and reordering of 1 %, 5 % and 20 % of all packets in both directions:
//! all data intact, every request completed once and in its order, atomics executed once.
//!
//! 300 seeds by default. `SOFTVERBS_SEEDS=10000` runs ten thousand; `SOFTVERBS_SEED=n` runs
//! one, to look at a failure that was reported.

mod roce_common;

use core::time::Duration;
use std::env;

use roce_common::*;
use softverbs_proto::qp_state::QpType;
use softverbs_proto::roce::queue_pair::QpAttributes;
use softverbs_proto::wr::{SendOp, WcOpcode, WcStatus};
use softverbs_wire::num::{PathMtu, Rkey};

/// Sources of Sends and Writes, sinks of Reads, results of atomics.
const LOCAL: u32 = 1;
/// What the peer reads.
const READ_FROM: u32 = 2;
/// What the peer writes to, each request its own part.
const WRITE_TO: u32 = 3;
/// What receives are filled with.
const RECEIVE: u32 = 4;
/// Words for atomics.
const WORDS: u32 = 5;
/// Keys to invalidate start here.
const VICTIMS: u32 = 100;

const MAX_LEN: usize = 12_000;

fn seeds() -> core::ops::Range<u64> {
    let number = |name| env::var(name).ok().map(|text| text.parse().unwrap());
    if let Some(seed) = number("SOFTVERBS_SEED") {
        return seed..seed + 1;
    }
    0..number("SOFTVERBS_SEEDS").unwrap_or(300)
}

/// What one end asked for, in order.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Asked {
    Send {
        len: usize,
        imm: Option<u32>,
        victim: Option<u32>,
    },
    Write {
        len: usize,
        imm: Option<u32>,
    },
    Read {
        len: usize,
    },
    Add,
    Swap,
}

/// Part of a region that belongs to the request.
fn slot(index: usize) -> u64 {
    (index * MAX_LEN) as u64
}

fn seed_of(from_a: bool, index: usize) -> u8 {
    index.to_le_bytes()[0].wrapping_mul(2) + u8::from(from_a)
}

struct Plan {
    asked: Vec<Asked>,
    posted: usize,
    receives: usize,
    posted_receives: usize,
}

fn plan(random: &mut Random, mtu: usize) -> Plan {
    let asked: Vec<Asked> = (0..4 + random.below(12))
        .map(|index| {
            let len = match random.below(6) {
                0 => random.below(5),
                1 => (mtu - 1 + random.below(3)) % MAX_LEN,
                2 => random.below(MAX_LEN),
                _ => random.below(3 * mtu) % MAX_LEN,
            };
            let imm = (random.below(2) == 0).then_some(u32::try_from(index).unwrap() * 7);
            match random.below(6) {
                0 | 1 => Asked::Send {
                    len,
                    imm,
                    victim: (imm.is_none() && random.below(3) == 0)
                        .then_some(VICTIMS + u32::try_from(index).unwrap()),
                },
                2 => Asked::Write { len, imm },
                3 => Asked::Read { len },
                4 => Asked::Add,
                _ => Asked::Swap,
            }
        })
        .collect();
    let receives = asked
        .iter()
        .filter(|asked| {
            matches!(
                asked,
                Asked::Send { .. } | Asked::Write { imm: Some(_), .. }
            )
        })
        .count();
    Plan {
        asked,
        posted: 0,
        receives,
        posted_receives: 0,
    }
}

fn prepare(end: &mut End, own: &Plan, peer: &Plan, is_a: bool) {
    let access = VecMemory::all_access();
    let mut local = vec![0; own.asked.len() * MAX_LEN];
    for (index, asked) in own.asked.iter().enumerate() {
        let (Asked::Send { len, .. } | Asked::Write { len, .. }) = *asked else {
            continue;
        };
        let at = index * MAX_LEN;
        local[at..at + len].copy_from_slice(&pattern(seed_of(is_a, index), len));
    }
    end.memory.add(LOCAL, 0, access, &local);
    let room = peer.asked.len() * MAX_LEN;
    end.memory.add(READ_FROM, 0, access, &pattern(0xaa, room));
    end.memory.add(WRITE_TO, 0, access, &vec![0x77; room]);
    end.memory.add(RECEIVE, 0, access, &vec![0x55; room]);
    end.memory.add(WORDS, 0, access, &[0; 16]);
    for asked in &peer.asked {
        if let Asked::Send {
            victim: Some(key), ..
        } = *asked
        {
            end.memory.add(key, 0, access, &[0; 8]);
        }
    }
}

fn post_some(end: &mut End, plan: &mut Plan, random: &mut Random) {
    let count = 1 + random.below(4);
    for _ in 0..count {
        let Some(&asked) = plan.asked.get(plan.posted) else {
            return;
        };
        let index = plan.posted;
        let at = slot(index);
        let op = match asked {
            Asked::Send {
                victim: Some(key), ..
            } => SendOp::SendWithInvalidate(Rkey::new(key)),
            Asked::Send { imm: Some(imm), .. } => SendOp::SendWithImm(imm),
            Asked::Send { .. } => SendOp::Send,
            Asked::Write { imm: None, .. } => write_op(WRITE_TO, at),
            Asked::Write { imm: Some(imm), .. } => SendOp::WriteWithImm {
                remote_addr: at,
                rkey: rkey(WRITE_TO),
                imm,
            },
            Asked::Read { .. } => read_op(READ_FROM, at),
            Asked::Add => fetch_add(WORDS, 0, 1),
            Asked::Swap => {
                // The n-th swap finds what the one before it left.
                let before = plan.asked[..index]
                    .iter()
                    .filter(|asked| **asked == Asked::Swap)
                    .count() as u64;
                SendOp::CompareSwap {
                    remote_addr: 8,
                    rkey: rkey(WORDS),
                    compare: before,
                    swap: before + 1,
                }
            }
        };
        let len = match asked {
            Asked::Send { len, .. } | Asked::Write { len, .. } | Asked::Read { len } => len,
            Asked::Add | Asked::Swap => 8,
        };
        end.post(wr(index as u64, op, sge(LOCAL, at, len)));
        plan.posted += 1;
    }
}

fn post_receives(end: &mut End, peer: &mut Plan, count: usize) {
    for _ in 0..count.min(peer.receives - peer.posted_receives) {
        let index = peer.posted_receives;
        end.memory
            .post_receive(index as u64, [sge(RECEIVE, slot(index), MAX_LEN)]);
        peer.posted_receives += 1;
    }
}

fn check(own: &End, peer: &End, plan: &Plan, is_a: bool, seed: u64) {
    let expected: Vec<_> = (0..plan.asked.len() as u64)
        .map(|wr_id| (wr_id, WcStatus::Success))
        .collect();
    assert_eq!(own.statuses(), expected, "seed {seed}");
    let mut received = peer.received.iter();
    let (mut adds, mut swaps) = (0u64, 0u64);
    let mut receive_index = 0;
    for (index, asked) in plan.asked.iter().enumerate() {
        let at = index * MAX_LEN;
        let word = || {
            let octets = &own.memory.octets(LOCAL)[at..at + 8];
            u64::from_ne_bytes(octets.try_into().unwrap())
        };
        match *asked {
            Asked::Send { len, imm, victim } => {
                let done = received.next().expect("a receive for each message");
                assert_eq!(done.wr_id, receive_index as u64, "seed {seed}");
                assert_eq!((done.opcode, done.imm), (WcOpcode::Recv, imm));
                assert_eq!(done.byte_len as usize, len);
                assert_eq!(done.invalidated, victim.map(Rkey::new));
                let at = receive_index * MAX_LEN;
                let octets = &peer.memory.octets(RECEIVE)[at..at + MAX_LEN];
                assert_eq!(octets[..len], pattern(seed_of(is_a, index), len));
                assert!(octets[len..].iter().all(|octet| *octet == 0x55));
                receive_index += 1;
            }
            Asked::Write { len, imm } => {
                let octets = &peer.memory.octets(WRITE_TO)[at..at + MAX_LEN];
                assert_eq!(octets[..len], pattern(seed_of(is_a, index), len));
                assert!(octets[len..].iter().all(|octet| *octet == 0x77));
                if imm.is_some() {
                    let done = received.next().expect("a receive for the data");
                    assert_eq!((done.opcode, done.imm), (WcOpcode::RecvRdmaWithImm, imm));
                    assert_eq!(done.byte_len as usize, len);
                    receive_index += 1;
                }
            }
            Asked::Read { len } => {
                let source = &pattern(0xaa, plan.asked.len() * MAX_LEN)[at..at + len];
                assert_eq!(&own.memory.octets(LOCAL)[at..at + len], source);
            }
            Asked::Add => {
                assert_eq!(word(), adds, "seed {seed}: executed once");
                adds += 1;
            }
            Asked::Swap => {
                assert_eq!(word(), swaps, "seed {seed}: executed once");
                swaps += 1;
            }
        }
    }
    assert_eq!(received.next(), None);
    let words = [adds.to_ne_bytes(), swaps.to_ne_bytes()].concat();
    assert_eq!(peer.memory.octets(WORDS), words);
}

/// What a run did, so that the tests can tell that they test something.
#[derive(Debug, Default)]
struct Tally {
    retransmitted: u64,
    duplicates: u64,
    rnr: u64,
    probes: u64,
    losses: u64,
    timeouts: u64,
    slowest: Duration,
}

fn run(seed: u64, percent: usize, tally: &mut Tally) {
    let mut random = Random(seed.wrapping_mul(0x1234_5678_9abc_def1) + percent as u64);
    let mtu = PathMtu::ALL[random.below(5)];
    let depth = 1 + u8::try_from(random.below(4)).unwrap();
    let attributes = QpAttributes {
        path_mtu: mtu,
        max_rd_atomic: depth,
        max_dest_rd_atomic: depth + u8::try_from(random.below(2)).unwrap(),
        timeout: 17,
        min_rnr_timer: 1 + u8::try_from(random.below(12)).unwrap(),
        ..attributes()
    };
    let network = Network::all(percent);
    // Trains in every other run: whole, in parts or taken apart.
    let network_seed = random.next();
    let mut pair = match seed % 4 {
        0 | 2 => Pair::reset(QpType::Rc, network, network_seed),
        1 => Pair::with_trains(QpType::Rc, network, network_seed, Some(Random(seed))),
        _ => Pair::with_trains(QpType::Rc, network, network_seed, None),
    };
    pair.connect(attributes);
    for end in [&mut pair.a, &mut pair.b] {
        end.max_packets = 1 + random.below(64);
    }
    let mut of_a = plan(&mut random, mtu.octets());
    let mut of_b = plan(&mut random, mtu.octets());
    prepare(&mut pair.a, &of_a, &of_b, true);
    prepare(&mut pair.b, &of_b, &of_a, false);
    // Some receives come late, so that senders have to wait for them.
    loop {
        post_some(&mut pair.a, &mut of_a, &mut random);
        post_some(&mut pair.b, &mut of_b, &mut random);
        let pause = Duration::from_micros(random.next() % 400);
        let until = pair.now + pause;
        pair.run_until(until);
        pair.now = pair.now.max(until);
        let (for_a, for_b) = (random.below(4), random.below(4));
        post_receives(&mut pair.b, &mut of_a, for_b);
        post_receives(&mut pair.a, &mut of_b, for_a);
        let all_posted =
            |plan: &Plan| plan.posted == plan.asked.len() && plan.posted_receives == plan.receives;
        if all_posted(&of_a) && all_posted(&of_b) {
            break;
        }
    }
    pair.run();
    pair.assert_connected();
    check(&pair.a, &pair.b, &of_a, true, seed);
    check(&pair.b, &pair.a, &of_b, false, seed);
    for end in [&pair.a, &pair.b] {
        let counters = end.qp.counters();
        tally.retransmitted += counters.retransmitted;
        tally.duplicates += counters.duplicates;
        tally.rnr += counters.rnr_naks_received;
        tally.probes += counters.probes;
        tally.losses += counters.losses;
        tally.timeouts += counters.timeouts;
        assert_eq!(end.qp.deadline(), None, "seed {seed}: no timer is left");
    }
    tally.slowest = tally.slowest.max(pair.now.since_epoch());
}

fn run_all(percent: usize) {
    let mut tally = Tally::default();
    for seed in seeds() {
        run(seed, percent, &mut tally);
    }
    eprintln!("{percent} %: {tally:?}");
    if seeds().count() > 100 {
        assert!(tally.retransmitted > 0 && tally.duplicates > 0, "{tally:?}");
        assert!(tally.rnr > 0 && tally.losses > 0, "{tally:?}");
    }
}

#[test]
fn one_percent() {
    run_all(1);
}

#[test]
fn five_percent() {
    run_all(5);
}

#[test]
fn twenty_percent() {
    run_all(20);
}

/// Bulk transfers go on at a useful rate: what is lost is asked for at once, from where it is
/// missing, and not after an acknowledge timeout.
#[test]
fn bulk_transfers_do_not_wait_for_the_timeout() {
    const LEN: usize = 4 << 20;
    for (percent, limit) in [(1, 60), (5, 400)] {
        let network = Network {
            drop: percent,
            ..Network::GOOD
        };
        for read in [false, true] {
            let mut pair = Pair::new(attributes(), network, 5);
            let access = VecMemory::all_access();
            pair.a.memory.add(1, 0, access, &pattern(1, LEN));
            pair.b.memory.add(2, 0, access, &pattern(2, LEN));
            let op = if read { read_op(2, 0) } else { write_op(2, 0) };
            pair.a.post(wr(1, op, sge(1, 0, LEN)));
            pair.run();
            pair.assert_connected();
            assert_eq!(pair.a.memory.octets(1), pair.b.memory.octets(2));
            let took = pair.now.since_epoch();
            assert!(
                took < Duration::from_millis(limit),
                "{percent} % of loss, read {read}: {took:?}"
            );
            assert_eq!(pair.a.qp.counters().timeouts, 0);
        }
    }
}
