//! Whatever the peer sends: no panic, no octet out of place, one end.

mod common;

use common::pair::Random;
use common::raw::{self, victim};
use common::*;
use proptest::prelude::*;
use softverbs_proto::iwarp::negotiate::{
    Initiator, InitiatorOutcome, Negotiated, Responder, RtrKind, Wishes,
};
use softverbs_proto::iwarp::stream::Role;
use softverbs_proto::mutation::Mutations;
use softverbs_proto::wr::{Completion, SendOp};
use softverbs_wire::rdmap::Opcode;

fn agreements() -> impl Strategy<Value = Negotiated> {
    let rtr = prop_oneof![
        Just(None),
        Just(Some(RtrKind::Send)),
        Just(Some(RtrKind::Write)),
        Just(Some(RtrKind::Read)),
    ];
    (any::<[bool; 4]>(), 0..20_u16, 0..20_u16, rtr).prop_map(|(flags, ird, ord, rtr)| {
        let [crc, markers_in, markers_out, rfc7306] = flags;
        Negotiated {
            crc,
            markers_out,
            markers_in,
            ird,
            ord,
            rtr,
            rfc7306,
        }
    })
}

/// Frames that are nearly right: good ones, and good ones with some octets changed.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let payload = || proptest::collection::vec(any::<u8>(), 0..80);
    let key = || {
        prop_oneof![
            Just(1_u32),
            Just(2),
            Just(3),
            Just(4),
            Just(9),
            any::<u32>()
        ]
    };
    let to = || {
        prop_oneof![
            0x0ff0..0x1010_u64,
            0x1ff0..0x2010_u64,
            0x8ff0..0x9110_u64,
            any::<u64>()
        ]
    };
    let small = || 0..5_u32;
    let frame = prop_oneof![
        (
            any::<bool>(),
            small(),
            prop_oneof![Just(0), 0..80_u32],
            payload()
        )
            .prop_map(|(last, msn, mo, payload)| raw::send(last, msn, mo, &payload)),
        (any::<bool>(), key(), to(), payload())
            .prop_map(|(last, key, to, payload)| raw::write(last, key, to, &payload)),
        (
            any::<bool>(),
            small(),
            prop_oneof![Just(0), any::<u64>()],
            payload()
        )
            .prop_map(|(last, key, to, payload)| raw::read_response(last, key, to, &payload)),
        (small(), key(), to(), 0..5000_u32)
            .prop_map(|(msn, key, to, size)| raw::read_request(msn, key, to, size)),
        (small(), key(), to(), any::<u64>())
            .prop_map(|(msn, key, to, add)| raw::fetch_add(msn, key, to, add)),
        (small(), small(), any::<u64>())
            .prop_map(|(msn, id, original)| raw::atomic_response(msn, id, original)),
        (small(), any::<bool>()).prop_map(|(msn, solicited)| {
            let opcode = if solicited {
                Opcode::IMMEDIATE_SE
            } else {
                Opcode::IMMEDIATE
            };
            raw::untagged(raw::header(opcode, true, msn, 0), &[5; 8])
        }),
        (payload(), 0..16_u8).prop_map(|(body, opcode)| {
            let header = raw::header(Opcode::TERMINATE, true, 1, 0);
            let frame = raw::untagged(header, &body);
            if opcode < 2 {
                frame
            } else {
                raw::with_control(&frame, |word| word ^ u16::from(opcode))
            }
        }),
        payload().prop_map(|ulpdu| raw::fpdu(&ulpdu)),
    ];
    (
        frame,
        proptest::collection::vec((any::<u16>(), any::<u8>()), 0..3),
        any::<bool>(),
    )
        .prop_map(|(mut frame, changes, change)| {
            if change {
                for (at, value) in changes {
                    let at = usize::from(at) % frame.len();
                    frame[at] = value;
                }
            }
            frame
        })
}

/// Requests of our own, so that answers have something to answer.
fn own_requests(end: &mut End) -> Vec<u64> {
    let read = SendOp::Read {
        remote_addr: 0,
        rkey: rkey(1),
    };
    let add = SendOp::FetchAdd {
        remote_addr: 0,
        rkey: rkey(1),
        add: 1,
    };
    let requests = [
        wr(0, read, sge(9, 0x9080, 40)),
        wr(1, add, sge(9, 0x90c0, 8)),
        wr(2, read, sge(9, 0x90c8, 0)),
        wr(3, SendOp::Send, sge(1, 0x1000, 3000)),
    ];
    let mut posted = Vec::new();
    for request in requests {
        let wr_id = request.wr_id;
        if end.stream.post_send(request).is_ok() {
            posted.push(wr_id);
        }
    }
    posted
}

fn attack(mut end: End, octets: &[u8], random: &mut Random) -> Result<(), TestCaseError> {
    let posted = own_requests(&mut end);
    // What the peer has no right to write.
    let forbidden = [2, 3, 4].map(|key| end.memory.octets(key).to_vec());
    let receives = end.memory.receives.len();
    let markers = end
        .stream
        .negotiated()
        .is_some_and(|agreed| agreed.markers_out);
    let mut rest = octets;
    while !rest.is_empty() {
        let len = (1 + random.below(100)).min(rest.len());
        let (now, later) = rest.split_at(len);
        rest = later;
        if random.below(2) == 0 {
            end.feed(at(0), now);
        } else {
            end.feed_directly(at(0), now);
        }
        if random.below(2) == 0 {
            end.transmit(at(0), 1 + random.below(5000), 8);
        }
        if random.below(50) == 0 {
            end.stream.on_timeout(at(25));
        }
    }
    end.flush();
    end.eof(random.below(2) == 0);
    end.flush();
    prop_assert!(end.is_closed());
    end.closed_for();
    prop_assert!(end.times_established() <= 1);
    for (key, before) in [2, 3, 4].into_iter().zip(forbidden) {
        prop_assert_eq!(end.memory.octets(key), before);
    }
    prop_assert_eq!(ids(&end.sent), posted);
    // Receives that were taken have completed, in their order.
    let taken = receives - end.memory.receives.len();
    prop_assert_eq!(ids(&end.received), (0..taken as u64).collect::<Vec<_>>());
    prop_assert_eq!(end.stream.outstanding(), 0);
    prop_assert_eq!(end.stream.deadline(), None);
    if !markers {
        // Whole frames only, and a Terminate only as the last of them.
        let sent = raw::segments(&end.record);
        let terminates = sent
            .iter()
            .filter(|segment| raw::terminate(segment).is_some())
            .count();
        let last = sent
            .last()
            .is_some_and(|segment| raw::terminate(segment).is_some());
        prop_assert_eq!(terminates, usize::from(last));
    }
    Ok(())
}

fn ids(completions: &[Completion]) -> Vec<u64> {
    completions
        .iter()
        .map(|completion| completion.wr_id)
        .collect()
}

/// A victim in the other role.
fn victim_of(negotiated: Negotiated, initiator: bool) -> End {
    let mut end = victim(negotiated.clone());
    if initiator {
        let memory = end.memory.clone();
        end = End::new(config());
        end.memory = memory;
        end.stream
            .attach(at(0), Role::Initiator, negotiated, LARGEST);
        end.drain();
    }
    end
}

/// So many cases, and no files beside the tests: a failure prints its input.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn arbitrary_octets(
        negotiated in agreements(),
        initiator: bool,
        octets in proptest::collection::vec(any::<u8>(), 0..600),
        seed: u64,
    ) {
        attack(victim_of(negotiated, initiator), &octets, &mut Random(seed))?;
    }

    #[test]
    fn frames_that_are_nearly_right(
        negotiated in agreements(),
        initiator: bool,
        frames in proptest::collection::vec(frames(), 0..12),
        seed: u64,
    ) {
        let negotiated = Negotiated { markers_in: false, ..negotiated };
        attack(victim_of(negotiated, initiator), &frames.concat(), &mut Random(seed))?;
    }

    #[test]
    fn start_up_frames(
        mut octets in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..100),
            (any::<[u8; 4]>(), proptest::collection::vec(any::<u8>(), 0..600), any::<bool>())
                .prop_map(|(fields, body, reply)| {
                    let key = if reply { b"MPA ID Rep Frame" } else { b"MPA ID Req Frame" };
                    let fields = [fields[0], fields[1] % 4, fields[2] % 3, fields[3]];
                    [&key[..], &fields, &body].concat()
                }),
        ],
        chunk in 1..700_usize,
        flags: [bool; 4],
        revision in 1..3_u8,
    ) {
        let [crc, markers, peer_to_peer, rfc7306] = flags;
        let timeout = core::time::Duration::from_secs(1);
        let mutations = Mutations::NONE;
        let wishes = Wishes {
            crc, markers, ird: 3, ord: 3, peer_to_peer, rfc7306, revision, timeout, mutations,
        };
        let mut initiator = Initiator::new(at(0), wishes.clone(), b"data");
        let mut responder = Responder::new(at(0), timeout);
        let mut outcomes = 0;
        for octets in octets.chunks(chunk) {
            let outcome = initiator.on_bytes(at(0), octets);
            if let InitiatorOutcome::Established { negotiated, consumed, .. } = &outcome {
                prop_assert!(*consumed > 0 && *consumed <= octets.len());
                prop_assert!(negotiated.ird <= 128);
                prop_assert_eq!(negotiated.markers_in, markers);
            }
            outcomes += usize::from(!matches!(outcome, InitiatorOutcome::Pending));
            responder.on_bytes(at(0), octets);
        }
        outcomes += usize::from(!matches!(initiator.on_eof(false), InitiatorOutcome::Pending));
        prop_assert_eq!(outcomes, 1, "an attempt has one end");
        if let Ok((reply, _)) = responder.accept(&wishes, b"data") {
            // Our own initiator understands it, whatever the request was.
            let mut initiator = Initiator::new(at(0), wishes, b"");
            initiator.on_bytes(at(0), &reply);
            octets.clear();
        }
    }
}
