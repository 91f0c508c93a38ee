//! READs and atomics at the responder: order of the answers, replay, depth.

mod roce_common;

use roce_common::responder::*;
use roce_common::*;
use softverbs_proto::qp_state::QpState;
use softverbs_proto::roce::queue_pair::{PacketBatch, QpAttributes};
use softverbs_proto::wr::SendOp;
use softverbs_wire::ib::{Headers, NakCode, Opcode};

#[test]
fn reads_are_answered_in_their_order_with_acknowledges_between() {
    let mut end = responder();
    end.inject(micros(0), write_only(0, WRITABLE, 0, 1), b"a");
    end.inject(micros(0), read(1, READABLE, 5, 600), &[]);
    end.inject(micros(0), write_only(4, WRITABLE, 0, 1), b"b");
    end.inject(micros(0), read(5, READABLE, 0, 1), &[]);
    let answers: Vec<_> = end
        .answers(micros(0))
        .iter()
        .map(|headers| {
            let msn = headers.aeth.map(|aeth| aeth.msn.get());
            (headers.bth.psn, headers.bth.opcode, msn)
        })
        .collect();
    assert_eq!(
        answers,
        [
            (A_PSN, Opcode::RC_ACKNOWLEDGE, Some(1)),
            (A_PSN.advance(1), Opcode::RC_READ_RESPONSE_FIRST, Some(2)),
            (A_PSN.advance(2), Opcode::RC_READ_RESPONSE_MIDDLE, None),
            (A_PSN.advance(3), Opcode::RC_READ_RESPONSE_LAST, Some(2)),
            (A_PSN.advance(4), Opcode::RC_ACKNOWLEDGE, Some(3)),
            (A_PSN.advance(5), Opcode::RC_READ_RESPONSE_ONLY, Some(4)),
        ]
    );
}

#[test]
fn a_read_is_replayed_within_what_was_asked_for() {
    let mut end = responder();
    end.inject(micros(0), read(0, READABLE, 0, 1000), &[]);
    end.transmit_all(micros(0));
    let again = |end: &mut End, headers: Headers| -> Vec<(u32, Opcode)> {
        end.inject(micros(0), headers, &[]);
        end.answers(micros(0))
            .iter()
            .map(|headers| {
                let index = headers.bth.psn.distance_from(A_PSN);
                (u32::try_from(index).unwrap(), headers.bth.opcode)
            })
            .collect()
    };
    assert_eq!(
        again(&mut end, read(2, READABLE, 512, 488)),
        [
            (2, Opcode::RC_READ_RESPONSE_FIRST),
            (3, Opcode::RC_READ_RESPONSE_LAST)
        ]
    );
    assert_eq!(
        again(&mut end, read(1, READABLE, 256, 256)),
        [(1, Opcode::RC_READ_RESPONSE_ONLY)]
    );
    let strangers = [
        read(2, READABLE, 512, 489),
        read(2, READABLE, 0, 8),
        read(0, WRITABLE, 0, 8),
        read(2, READABLE, 511, 8),
        bth(Opcode::RC_FETCH_ADD, B_QPN, A_PSN).with_atomic_eth(atomic_eth(ATOMIC, 0)),
    ];
    for headers in strangers {
        assert_eq!(again(&mut end, headers), [], "{headers}");
    }
    assert_eq!(end.qp.state(), QpState::Rts);
    assert_eq!(end.memory.octets(ATOMIC), [0; 64]);
}

#[test]
fn only_the_latest_results_are_kept() {
    let mut end = responder_with(QpAttributes {
        max_dest_rd_atomic: 2,
        ..small(attributes().access)
    });
    let add = |index| request(Opcode::RC_FETCH_ADD, index).with_atomic_eth(atomic_eth(ATOMIC, 0));
    for index in 0..3 {
        end.inject(micros(0), add(index), &[]);
        assert_eq!(end.answers(micros(0)).len(), 1);
    }
    let mut results = Vec::new();
    for index in 0..3 {
        end.inject(micros(0), add(index), &[]);
        let original = end
            .answers(micros(0))
            .first()
            .map(|headers| headers.atomic_ack_eth.unwrap().original);
        results.push(original);
    }
    assert_eq!(results, [None, Some(1), Some(2)]);
    // A READ with the number of an atomic is answered with nothing.
    end.inject(micros(0), read(2, READABLE, 0, 8), &[]);
    assert_eq!(end.answers(micros(0)), []);
    assert_eq!(end.memory.octets(ATOMIC)[..8], 3u64.to_ne_bytes());
}

/// B75: as many as were agreed on, and no more.
#[test]
fn the_agreed_depth_is_served_and_more_is_refused() {
    for depth in [0, 1, 16] {
        let mut end = responder_with(QpAttributes {
            max_dest_rd_atomic: depth,
            ..small(attributes().access)
        });
        for index in 0..u32::from(depth) {
            end.inject(micros(0), read(index, READABLE, 0, 8), &[]);
        }
        assert_eq!(end.qp.state(), QpState::Rts);
        end.inject(micros(0), read(u32::from(depth), READABLE, 0, 8), &[]);
        assert_eq!(end.qp.state(), QpState::Err);
        let answers = end.answers(micros(0));
        let (last, before) = answers.split_last().unwrap();
        assert_eq!(kind(last), nak(NakCode::INVALID_REQUEST));
        assert_eq!(
            before.len(),
            usize::from(depth),
            "those before are answered"
        );
    }
}

/// Repetitions faster than we may answer do not pile up.
#[test]
fn replays_are_bounded() {
    let mut end = responder();
    end.inject(micros(0), read(0, READABLE, 0, 2000), &[]);
    end.inject(micros(0), write_only(8, WRITABLE, 0, 1), b"x");
    for _ in 0..10_000 {
        end.inject(micros(0), read(0, READABLE, 0, 2000), &[]);
        end.inject(micros(0), write_only(8, WRITABLE, 0, 1), b"x");
    }
    assert!(end.answers(micros(0)).len() < 500);
}

/// A region that goes away under a READ: no octet of it goes out any more.
#[test]
fn a_region_that_goes_away_ends_the_read() {
    let mut end = responder();
    end.inject(micros(0), read(0, READABLE, 0, 1000), &[]);
    end.max_packets = 2;
    assert_eq!(end.transmit(micros(0)).len(), 2);
    end.memory.region_mut(READABLE).valid = false;
    let answers = end.answers(micros(0));
    assert_eq!(answers.len(), 1);
    assert_eq!(kind(&answers[0]), nak(NakCode::REMOTE_ACCESS_ERROR));
    assert_eq!(answers[0].bth.psn, A_PSN.advance(2));
    assert_eq!(end.qp.state(), QpState::Err);
}

/// Octets that their owner may change while they are sent are marked.
#[test]
fn read_responses_are_volatile_and_sends_are_not() {
    let volatile = |end: &mut End| -> Vec<bool> {
        let mut batch = PacketBatch::new();
        end.qp
            .poll_transmit(micros(0), &mut end.memory, &mut batch, 64);
        batch.frames().iter().map(|frame| frame.volatile).collect()
    };
    let mut end = responder();
    end.inject(micros(0), read(0, READABLE, 0, 256 + 8), &[]);
    assert_eq!(volatile(&mut end), [true, false], "the second was copied");
    end.post(wr(1, SendOp::Send, sge(READABLE, 0, 200)));
    assert_eq!(volatile(&mut end), [false]);
}
