//! A connection that lives long, in virtual time: bursts of requests of all kinds over a network
//! that loses, doubles and reorders one packet in a hundred, and idle times of up to a minute
//! between them. Whatever counts, wraps or times out does so many times.
//!
//! 24 hours by default, `SOFTVERBS_HOURS` sets another number.

#![allow(clippy::print_stdout, reason = "tests report what they found")]

mod roce_common;

use core::time::Duration;
use std::env;

use roce_common::*;
use softverbs_proto::wr::{SendOp, WcStatus};

const SOURCE: u32 = 1;
const SINK: u32 = 2;
const RECEIVE: u32 = 3;
const WORD: u32 = 4;
const ROOM: usize = 16 * 1024;
const BURST: usize = 24;

/// What one end posts in a burst; how many receives its peer needs, and how much it adds.
fn burst(end: &mut End, random: &mut Random) -> (usize, u64) {
    let (mut receives, mut adds) = (0, 0);
    for wr_id in 0..BURST as u64 {
        let len = random.below(ROOM / 2);
        let at = (random.below(ROOM / 2)) as u64;
        match random.below(8) {
            0..3 => {
                receives += 1;
                end.post(wr(wr_id, SendOp::Send, sge(SOURCE, at, len)));
            }
            3..5 => end.post(wr(wr_id, write_op(SINK, at), sge(SOURCE, at, len))),
            5..7 => end.post(wr(wr_id, read_op(SOURCE, at), sge(SINK, at, len))),
            _ => {
                adds += 1;
                end.post(wr(wr_id, fetch_add(WORD, 0, 1), sge(RECEIVE, 0, 8)));
            }
        }
    }
    (receives, adds)
}

fn post_receives(end: &mut End, count: usize) {
    for wr_id in 0..count as u64 {
        end.memory.post_receive(wr_id, [sge(RECEIVE, 0, ROOM)]);
    }
}

fn word(end: &End) -> u64 {
    u64::from_ne_bytes(end.memory.octets(WORD)[..8].try_into().unwrap())
}

#[test]
fn a_connection_that_lives_for_a_day() {
    let hours: u64 = env::var("SOFTVERBS_HOURS").map_or(24, |text| text.parse().unwrap());
    let mut pair = Pair::new(attributes(), Network::all(1), 3);
    let access = VecMemory::all_access();
    for end in [&mut pair.a, &mut pair.b] {
        // Both ends' sources are the same, so that sinks can only get what they may have.
        end.memory.add(SOURCE, 0, access, &pattern(9, ROOM));
        end.memory.add(SINK, 0, access, &pattern(9, ROOM));
        end.memory.add(RECEIVE, 0, access, &vec![0; ROOM]);
        end.memory.add(WORD, 0, access, &[0; 8]);
    }
    let mut random = Random(77);
    let (mut adds_of_a, mut adds_of_b) = (0, 0);
    let (mut bursts, mut requests) = (0_u64, 0_u64);
    let end_of_run = Duration::from_secs(hours * 3600);
    while pair.now.since_epoch() < end_of_run {
        let (for_b, adds) = burst(&mut pair.a, &mut random);
        adds_of_a += adds;
        let (for_a, adds) = burst(&mut pair.b, &mut random);
        adds_of_b += adds;
        post_receives(&mut pair.a, for_a);
        post_receives(&mut pair.b, for_b);
        pair.run_until(pair.now + Duration::from_secs(3600));
        pair.assert_connected();
        bursts += 1;
        requests += 2 * BURST as u64;
        let expected: Vec<_> = (0..BURST as u64)
            .map(|wr_id| (wr_id, WcStatus::Success))
            .collect();
        for (end, received, added) in [
            (&mut pair.a, for_a, adds_of_b),
            (&mut pair.b, for_b, adds_of_a),
        ] {
            assert_eq!(end.statuses(), expected, "burst {bursts}");
            assert_eq!(end.received.len(), received, "burst {bursts}");
            assert_eq!(word(end), added, "burst {bursts}: each once");
            assert_eq!(end.memory.octets(SINK), pattern(9, ROOM), "burst {bursts}");
            assert_eq!(end.qp.deadline(), None, "no timer is left");
            end.sent.clear();
            end.received.clear();
            end.sources.clear();
            end.events.clear();
            end.clear_record();
        }
        pair.now = pair.now + Duration::from_millis(1000 + random.next() % 59_000);
    }
    let counters = pair.a.qp.counters();
    println!("{hours} virtual hours: {bursts} bursts, {requests} requests; one end: {counters:?}");
    assert!(counters.retransmitted > bursts / 10, "{counters:?}");
}
