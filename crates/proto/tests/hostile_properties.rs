//! Whatever the peer sends: no panic, no octet out of place, one end.

mod common;
mod effort;

use common::pair::Random;
use common::raw::{self, own_requests, victim_of};
use common::strategies::{agreements, cases, frames};
use common::*;
use effort::effort;
use proptest::prelude::*;
use softverbs_proto::iwarp::negotiate::{
    Initiator, InitiatorOutcome, Negotiated, Responder, Wishes,
};
use softverbs_proto::mutation::Mutations;
use softverbs_proto::wr::Completion;

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

proptest! {
    #![proptest_config(cases(2000 * effort()))]

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
