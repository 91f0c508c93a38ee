//! However a stream of FPDUs is cut into reads, and wherever its payload is placed directly: what
//! comes of it is the same as of one read.

mod common;
mod effort;

use common::pair::Random;
use common::raw::{self, own_requests, victim_of};
use common::strategies::{agreements, cases, frames};
use common::*;
use effort::effort;
use proptest::prelude::*;
use softverbs_proto::fault::Fault;
use softverbs_proto::iwarp::negotiate::Negotiated;
use softverbs_proto::iwarp::stream::{CloseCause, FpduSizing, Role, StreamEvent};
use softverbs_proto::wr::{Completion, SendOp, SendRequest, WcOpcode, WcStatus};
use softverbs_wire::codec::Malformed;
use softverbs_wire::num::Rkey;

type Received = (u64, WcStatus, u32, WcOpcode, Option<u32>, Option<Rkey>);

/// What has become of a stream.
#[derive(Debug, PartialEq)]
struct Outcome {
    events: Vec<String>,
    sent: Vec<Completion>,
    received: Vec<Received>,
    answers: Vec<u8>,
    /// Not after octets whose CRC was wrong, which may have been placed by then.
    memory: Option<Vec<Vec<u8>>>,
}

fn outcome(mut end: End) -> Outcome {
    end.flush();
    end.eof(false);
    end.flush();
    let broken = end.events.iter().any(|event| {
        matches!(
            event,
            StreamEvent::Closed {
                cause: Some(CloseCause::Fault(Fault::Malformed(Malformed::Crc)))
            }
        )
    });
    // A receive that a message with a wrong CRC had taken is flushed by the stream, one that it had not
    // by the owner: to the application it is the same.
    let left = end
        .memory
        .receives
        .iter()
        .map(|receive| (receive.wr_id, WcStatus::WrFlushErr));
    let received: Vec<_> = end
        .received
        .iter()
        .map(|done| {
            (
                done.wr_id,
                done.status,
                done.byte_len,
                done.opcode,
                done.imm,
                done.invalidated,
            )
        })
        .chain(left.map(|(wr_id, status)| (wr_id, status, 0, WcOpcode::Recv, None, None)))
        .collect();
    let memory = [1, 4, 8, 9].map(|key| end.memory.octets(key).to_vec());
    Outcome {
        events: end
            .events
            .iter()
            .map(|event| format!("{event:?}"))
            .collect(),
        sent: end.sent,
        received,
        answers: end.record,
        memory: (!broken).then(|| memory.into()),
    }
}

fn cuts_make_no_difference(
    new_end: impl Fn() -> End,
    octets: &[u8],
    random: &mut Random,
) -> Result<(), TestCaseError> {
    let mut whole = new_end();
    whole.feed(at(0), octets);
    let whole = outcome(whole);

    let mut cut = new_end();
    // Some streams in small pieces, some in large ones, some octet by octet.
    let most = [1, 7, 40, 300, 5000][random.below(5)];
    let mut rest = octets;
    while !rest.is_empty() {
        let len = (1 + random.below(most)).min(rest.len());
        let (now, later) = rest.split_at(len);
        rest = later;
        if random.below(2) == 0 {
            cut.feed(at(0), now);
        } else {
            cut.feed_directly(at(0), now);
        }
    }
    prop_assert_eq!(outcome(cut), whole);
    Ok(())
}

fn requests() -> impl Strategy<Value = Vec<SendRequest>> {
    let request = (0..5_u8, prop_oneof![0..70_usize, 0..3000_usize]).prop_map(|(kind, size)| {
        let (remote_addr, key) = (0x1000, rkey(1));
        let source = sge(1, 0x1000, size);
        match kind {
            0 | 1 => wr(0, SendOp::Send, sge(1, 0x1000, size % 65)),
            2 => wr(
                0,
                SendOp::Write {
                    remote_addr,
                    rkey: key,
                },
                source,
            ),
            3 => wr(
                0,
                SendOp::Read {
                    remote_addr,
                    rkey: key,
                },
                sge(9, 0x9000, size % 257),
            ),
            _ => wr(
                0,
                SendOp::WriteWithImm {
                    remote_addr,
                    rkey: key,
                    imm: 5,
                },
                source,
            ),
        }
    });
    proptest::collection::vec(request, 0..10)
}

/// What a peer of ours sends that was asked to do this.
fn stream_of(negotiated: &Negotiated, limit: u16, requests: Vec<SendRequest>) -> Vec<u8> {
    let peer = Negotiated {
        markers_in: negotiated.markers_out,
        markers_out: negotiated.markers_in,
        ird: negotiated.ord,
        ord: negotiated.ird,
        ..negotiated.clone()
    };
    let mut end = victim_of(agreed(), true);
    let memory = end.memory.clone();
    end = End::new(config());
    end.memory = memory;
    let sizing = FpduSizing::Largest { limit };
    end.stream.attach(at(0), Role::Initiator, peer, sizing);
    for request in requests {
        // The connection may not offer it.
        let _ = end.stream.post_send(request);
    }
    end.flush();
    end.record
}

/// An FPDU that is too short for a header: its CRC is looked at first, in one read or in many.
#[test]
fn a_frame_without_a_header_is_judged_by_its_crc_first() {
    for ulpdu in [&[][..], &[0x41]] {
        for broken in [false, true] {
            let mut octets = raw::fpdu(ulpdu);
            if broken {
                octets[7] ^= 1;
            }
            let cause = if broken {
                Malformed::Crc
            } else {
                Malformed::Truncated
            };
            let expected = format!("Closed {{ cause: Some(Fault(Malformed({cause:?}))) }}");
            for len in 1..=octets.len() {
                let negotiated = Negotiated {
                    crc: true,
                    ..agreed()
                };
                let mut end = victim_of(negotiated, false);
                for octets in octets.chunks(len) {
                    end.feed(at(0), octets);
                }
                assert_eq!(format!("{:?}", end.events[1]), expected, "by {len}");
            }
        }
    }
}

/// A length that is wrong is found by the marker that is not where it should be then, though the
/// octets that it promises never come.
#[test]
fn a_marker_out_of_place_is_found_before_the_end_of_its_frame() {
    let negotiated = Negotiated {
        markers_in: true,
        ..agreed()
    };
    let key = rkey(1);
    let write = SendOp::Write {
        remote_addr: 0x1000,
        rkey: key,
    };
    let requests = vec![wr(0, write, sge(1, 0x1000, 400)); 3];
    let mut octets = stream_of(&negotiated, u16::MAX, requests);
    // The second frame, whose length field is behind the first frame with its marker.
    let second = 4 + 2 + 14 + 400 + 4;
    assert_eq!(octets[second..second + 2], [1, 158]);
    octets[second] = 0xff;
    for len in [1, 3, 100, 500, octets.len()] {
        let mut end = victim_of(negotiated.clone(), false);
        // Two more octets than it takes to see the whole marker.
        for octets in octets[..518].chunks(len) {
            end.feed(at(0), octets);
        }
        assert!(!end.is_closed(), "the marker is right");
        for octets in octets[518..1030].chunks(len) {
            end.feed(at(0), octets);
        }
        let cause = end.closed_for();
        assert!(cause.contains("MarkerPointer"), "by {len}: {cause}");
    }
}

proptest! {
    #![proptest_config(cases(2000 * effort()))]

    #[test]
    fn of_frames_that_are_nearly_right(
        negotiated in agreements(),
        initiator: bool,
        frames in proptest::collection::vec(frames(), 0..12),
        seed: u64,
    ) {
        let negotiated = Negotiated { markers_in: false, ..negotiated };
        let new_end = || {
            let mut end = victim_of(negotiated.clone(), initiator);
            own_requests(&mut end);
            end.flush();
            end
        };
        cuts_make_no_difference(new_end, &frames.concat(), &mut Random(seed))?;
    }

    /// With and without markers and CRC; now and then an octet is another one.
    #[test]
    fn of_what_a_peer_sends(
        negotiated in agreements(),
        limit in prop_oneof![Just(u16::MAX), 128..600_u16],
        requests in requests(),
        change in proptest::option::weighted(0.3, (any::<usize>(), any::<u8>())),
        seed: u64,
    ) {
        let mut octets = stream_of(&negotiated, limit, requests);
        if let Some((at, value)) = change && !octets.is_empty() {
            let at = at % octets.len();
            octets[at] = value;
        }
        let new_end = || victim_of(negotiated.clone(), false);
        cuts_make_no_difference(new_end, &octets, &mut Random(seed))?;
    }
}
