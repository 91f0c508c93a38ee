//! Whenever things happen: each request completes exactly once, in the order of posting.

mod common;
mod effort;

use common::strategies::{agreements, cases};
use common::*;
use effort::effort;
use proptest::prelude::*;
use softverbs_proto::iwarp::negotiate::{Negotiated, RtrKind};
use softverbs_proto::iwarp::stream::{CloseCause, FpduSizing};
use softverbs_proto::memory::Access;
use softverbs_proto::wr::{Completion, SendFlags, SendOp, SendRequest, WcStatus};

fn ids(completions: &[Completion]) -> Vec<u64> {
    completions
        .iter()
        .map(|completion| completion.wr_id)
        .collect()
}

/// What happens next.
#[derive(Debug, Clone)]
enum Step {
    Post {
        a: bool,
        kind: u8,
        size: usize,
        flags: u32,
    },
    Receive {
        a: bool,
        size: usize,
    },
    Run(usize),
    Time,
    Disconnect {
        a: bool,
    },
    Abort {
        a: bool,
    },
    Eof {
        a: bool,
        reset: bool,
    },
    Deregister {
        a: bool,
    },
}

fn steps(with_end: bool) -> impl Strategy<Value = Step> {
    let size = || prop_oneof![0..70_usize, 500..600_usize, 0..9000_usize];
    let ending = if with_end { 1 } else { 0 };
    prop_oneof![
        40 => (any::<bool>(), 0..10_u8, size(), 0..8_u32)
            .prop_map(|(a, kind, size, flags)| Step::Post { a, kind, size, flags }),
        30 => (any::<bool>(), size()).prop_map(|(a, size)| Step::Receive { a, size: size + 9000 }),
        30 => (1..20_usize).prop_map(Step::Run),
        3 => Just(Step::Time),
        ending => any::<bool>().prop_map(|a| Step::Disconnect { a }),
        ending => any::<bool>().prop_map(|a| Step::Abort { a }),
        ending => (any::<bool>(), any::<bool>()).prop_map(|(a, reset)| Step::Eof { a, reset }),
        ending => any::<bool>().prop_map(|a| Step::Deregister { a }),
    ]
}

fn request(wr_id: u64, kind: u8, size: usize, flags: u32) -> SendRequest {
    let remote_addr = 0;
    let key = rkey(2);
    let source = sge(1, 7, size);
    let op = match kind {
        0 | 1 => SendOp::Send,
        2 | 3 => SendOp::Write {
            remote_addr,
            rkey: key,
        },
        4 | 5 => SendOp::Read {
            remote_addr,
            rkey: rkey(1),
        },
        6 => SendOp::FetchAdd {
            remote_addr: 16,
            rkey: key,
            add: wr_id,
        },
        7 => SendOp::CompareSwap {
            remote_addr: 16,
            rkey: key,
            compare: 0,
            swap: 1,
        },
        8 => SendOp::WriteWithImm {
            remote_addr,
            rkey: key,
            imm: 77,
        },
        _ => SendOp::Write {
            remote_addr,
            rkey: key,
        },
    };
    let flags = SendFlags::from_bits_truncate(flags);
    let mut request = match kind {
        4 | 5 => wr(wr_id, op, sge(3, 0, size)),
        6 | 7 => wr(wr_id, op, sge(3, 0, 8)),
        9 => inline(wr_id, op, &pattern(1, size)),
        _ => wr(wr_id, op, source),
    };
    request.flags = flags;
    request
}

/// Checks what became of the requests of one end.
fn check_end(end: &End, posted: &[SendRequest], received: u64) -> Result<(), TestCaseError> {
    // Each signaled request completed, others only with an error, all in the order of posting.
    let mut completions = end.sent.iter().peekable();
    let mut failed = false;
    for request in posted {
        match completions.next_if(|completion| completion.wr_id == request.wr_id) {
            Some(completion) => {
                let success = completion.status == WcStatus::Success;
                prop_assert!(success || end.is_closed());
                prop_assert!(
                    !success || request.flags.contains(SendFlags::SIGNALED),
                    "unsignaled success reported"
                );
                prop_assert!(!(success && failed && !end.is_closed()));
                failed |= !success;
            }
            None => {
                prop_assert!(
                    !request.flags.contains(SendFlags::SIGNALED),
                    "request {} has no completion",
                    request.wr_id
                );
            }
        }
    }
    prop_assert!(
        completions.next().is_none(),
        "completed twice, or out of order"
    );
    prop_assert_eq!(end.stream.outstanding(), 0);
    prop_assert!(end.times_established() <= 1);
    end.closed_for();
    // Receives that were taken completed in their order.
    let taken = received - end.memory.receives.len() as u64;
    prop_assert_eq!(ids(&end.received), (0..taken).collect::<Vec<_>>());
    Ok(())
}

fn side(pair: &mut Pair, a: bool) -> &mut End {
    if a { &mut pair.a } else { &mut pair.b }
}

fn sequence(
    negotiated: Negotiated,
    sizing: FpduSizing,
    seed: u64,
    steps: Vec<Step>,
    ends: bool,
) -> Result<(), TestCaseError> {
    let mut pair = Pair::detached(config(), Link::Random, seed);
    for end in [&mut pair.a, &mut pair.b] {
        end.memory
            .add(1, 0, Access::REMOTE_READ, &pattern(1, 10_000));
        end.memory.add(2, 0, VecMemory::all_access(), &[0; 10_000]);
        end.memory.add(3, 0, Access::LOCAL_WRITE, &[0; 10_000]);
        end.memory.add(4, 0, Access::LOCAL_WRITE, &[0; 20_000]);
    }
    let mut posted = [Vec::new(), Vec::new()];
    let mut received = [0_u64; 2];
    let attach_at = pair.random.below(4);
    for (number, step) in steps.into_iter().enumerate() {
        if number == attach_at {
            pair.attach(negotiated.clone(), sizing);
        }
        match step {
            Step::Post {
                a,
                kind,
                size,
                flags,
            } => {
                let list = &mut posted[usize::from(a)];
                let request = request(list.len() as u64, kind, size, flags);
                if side(&mut pair, a).stream.post_send(request.clone()).is_ok() {
                    list.push(request);
                }
            }
            Step::Receive { a, size } => {
                let wr_id = received[usize::from(a)];
                received[usize::from(a)] += 1;
                side(&mut pair, a)
                    .memory
                    .post_receive(wr_id, [sge(4, 0, 5), sge(4, 100, size)]);
            }
            Step::Run(rounds) => {
                for _ in 0..rounds {
                    pair.step();
                }
            }
            Step::Time => pair.pass_deadline(),
            Step::Disconnect { a } => side(&mut pair, a).stream.disconnect(at(0)),
            Step::Abort { a } => side(&mut pair, a).stream.abort(CloseCause::Local),
            Step::Eof { a, reset } => side(&mut pair, a).eof(reset),
            Step::Deregister { a } => side(&mut pair, a).memory.region_mut(1).valid = false,
        }
        pair.a.drain();
        pair.b.drain();
    }
    if pair.a.stream.negotiated().is_none() {
        pair.attach(negotiated, sizing);
    }
    pair.run();
    pair.pass_deadline();
    if !ends {
        pair.assert_open();
        for (end, posted) in [(&pair.a, &posted[1]), (&pair.b, &posted[0])] {
            prop_assert_eq!(end.sent.len(), posted.len());
            for completion in end.sent.iter().chain(&end.received) {
                prop_assert_eq!(completion.status, WcStatus::Success);
            }
        }
    }
    // Whoever waits for messages that were never posted gets the end of the other.
    for first in [true, false] {
        pair.run();
        let (end, peer) = if first {
            (&mut pair.a, &pair.b)
        } else {
            (&mut pair.b, &pair.a)
        };
        if ends || peer.is_closed() {
            end.eof(false);
        }
    }
    pair.run();
    for (end, at) in [(&mut pair.a, 1), (&mut pair.b, 0)] {
        if !end.is_closed() {
            prop_assert_eq!(
                end.stream.outstanding(),
                0,
                "left behind on an open connection"
            );
        }
        end.stream.abort(CloseCause::Local);
        end.drain();
        check_end(end, &posted[at], received[at])?;
        prop_assert_eq!(end.memory.octets(1), pattern(1, 10_000));
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(1500 * effort()))]

    #[test]
    fn each_request_completes_once(
        negotiated in agreements(),
        sizing in prop_oneof![Just(LARGEST), Just(AWARE), Just(FpduSizing::Largest { limit: 300 })],
        seed: u64,
        steps in proptest::collection::vec(steps(true), 4..60),
    ) {
        sequence(negotiated, sizing, seed, steps, true)?;
    }

    /// Without anything going wrong everything succeeds: each message finds a receive.
    #[test]
    fn good_traffic_succeeds(
        flags: [bool; 4],
        rtr in prop_oneof![Just(None), Just(Some(RtrKind::Read)), Just(Some(RtrKind::Send))],
        sizing in prop_oneof![Just(LARGEST), Just(AWARE), Just(FpduSizing::Largest { limit: 300 })],
        seed: u64,
        posts in proptest::collection::vec(
            (any::<bool>(), 0..10_u8, 0..9000_usize, 0..8_u32), 0..40),
    ) {
        let [crc, markers_in, markers_out, _] = flags;
        let negotiated = Negotiated { crc, markers_in, markers_out, rtr, ird: 3, ord: 2, ..agreed() };
        let mut steps = Vec::new();
        let messages = posts.len();
        for a in [true, false] {
            steps.extend((0..messages).map(|_| Step::Receive { a, size: 9000 }));
        }
        for (a, kind, size, flags) in posts {
            steps.push(Step::Post { a, kind, size, flags: flags | SendFlags::SIGNALED.bits() });
            steps.push(Step::Run(size % 7));
        }
        sequence(negotiated, sizing, seed, steps, false)?;
    }
}
