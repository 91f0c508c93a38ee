//! What a responder answers, packet by packet, and what a requester makes of refusals.

mod roce_common;

use roce_common::responder::*;
use roce_common::*;
use softverbs_proto::memory::Access;
use softverbs_proto::qp_state::QpState;
use softverbs_proto::roce::queue_pair::{QpEvent, QpFailure};
use softverbs_proto::wr::{SendOp, WcStatus};
use softverbs_wire::ib::{Aeth, AethKind, Headers, Ieth, ImmDt, NakCode, Opcode, Syndrome};
use softverbs_wire::num::{Psn, RnrTimer};

fn answers(end: &mut End) -> Vec<(Psn, AethKind, u32)> {
    end.answers(micros(0))
        .iter()
        .map(|headers| {
            let aeth = headers.aeth.expect("an acknowledge");
            (headers.bth.psn, aeth.syndrome.kind(), aeth.msn.get())
        })
        .collect()
}

fn ack() -> AethKind {
    Syndrome::ACK.kind()
}

/// Feeds the packets and expects that the last is refused for good, with nothing placed by it.
fn refuses(end: &mut End, packets: &[(Headers, &[u8])], code: NakCode, cause: QpFailure) {
    let (last, before) = packets.split_last().unwrap();
    for (headers, payload) in before {
        end.inject(micros(0), *headers, payload);
    }
    let written = end.memory.writes;
    answers(end);
    assert_eq!(end.qp.state(), QpState::Rts);
    end.inject(micros(0), last.0, last.1);
    assert_eq!(end.qp.state(), QpState::Err, "{}", last.0);
    assert_eq!(
        end.events.last_chunk(),
        Some(&[QpEvent::Fatal { cause }, QpEvent::LastWqeReached])
    );
    assert_eq!(end.memory.writes, written, "nothing is placed");
    let answers = answers(end);
    let [(psn, kind, _)] = answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!((psn, kind), (last.0.bth.psn, nak(code)), "{}", last.0);
    // It is deaf now.
    end.inject(micros(0), write_only(9, WRITABLE, 0, 0), &[]);
    assert!(!end.qp.wants_transmit());
    assert_eq!(end.memory.writes, written);
}

#[test]
fn a_gap_is_told_once_until_it_is_filled() {
    let mut end = responder();
    let write = |index| write_only(index, WRITABLE, u64::from(index), 1);
    end.inject(micros(0), write(0), b"a");
    assert_eq!(answers(&mut end), [(A_PSN, ack(), 1)]);
    for index in [2, 3, 5, 2] {
        end.inject(micros(0), write(index), b"x");
    }
    let gap = nak(NakCode::PSN_SEQUENCE_ERROR);
    assert_eq!(answers(&mut end), [(A_PSN.advance(1), gap, 1)]);
    end.inject(micros(0), write(4), b"x");
    assert_eq!(answers(&mut end), []);
    for index in 1..4 {
        end.inject(micros(0), write(index), b"b");
    }
    assert_eq!(answers(&mut end), [(A_PSN.advance(3), ack(), 4)]);
    end.inject(micros(0), write(5), b"x");
    assert_eq!(answers(&mut end), [(A_PSN.advance(4), gap, 4)], "a new gap");
    assert_eq!(end.memory.octets(WRITABLE)[..6], *b"abbb\0\0");
    assert_eq!(end.qp.counters().out_of_sequence, 6);
}

#[test]
fn duplicates_are_acknowledged_with_the_last_number_and_not_carried_out() {
    let mut end = responder();
    for index in 0..3 {
        end.inject(micros(0), write_only(index, WRITABLE, 0, 1), b"a");
    }
    answers(&mut end);
    let mut again = write_only(0, WRITABLE, 0, 1);
    again.bth.ack_req = false;
    end.inject(micros(0), again, b"z");
    assert_eq!(answers(&mut end), [(A_PSN.advance(2), ack(), 3)]);
    assert_eq!(end.memory.octets(WRITABLE)[0], b'a');
    assert_eq!(end.qp.counters().duplicates, 1);
}

#[test]
fn no_acknowledge_names_a_read() {
    let mut end = responder();
    end.inject(micros(0), write_only(0, WRITABLE, 0, 1), b"a");
    end.inject(micros(0), read(1, READABLE, 0, 600), &[]);
    end.answers(micros(0));
    end.inject(micros(0), write_only(0, WRITABLE, 0, 1), b"z");
    assert_eq!(answers(&mut end), [(A_PSN, ack(), 2)]);
}

#[test]
fn without_ack_req_there_is_no_acknowledge() {
    let mut end = responder();
    let mut quiet = write_only(0, WRITABLE, 0, 1);
    quiet.bth.ack_req = false;
    end.inject(micros(0), quiet, b"a");
    assert!(!end.qp.wants_transmit());
    end.inject(micros(0), write_only(1, WRITABLE, 0, 1), b"a");
    assert_eq!(answers(&mut end), [(A_PSN.advance(1), ack(), 2)]);
}

#[test]
fn lengths_are_those_that_the_place_in_the_message_demands() {
    let invalid = NakCode::INVALID_REQUEST;
    let cause = QpFailure::InvalidRequest;
    let full = [1; MTU];
    let first = request(Opcode::RC_SEND_FIRST, 0);
    let middle = request(Opcode::RC_SEND_MIDDLE, 1);
    let last = request(Opcode::RC_SEND_LAST, 1);
    let only = request(Opcode::RC_SEND_ONLY, 0);
    let long = [1; MTU + 4];
    let cases: [&[(Headers, &[u8])]; 9] = [
        &[(first, &full[1..])],
        &[(first, &long)],
        &[(first, &[])],
        &[(first, &full), (middle, &full[4..])],
        &[(first, &full), (middle, &long)],
        // G4: a Last without payload.
        &[(first, &full), (last, &[])],
        &[(first, &full), (last, &long)],
        &[(only, &long)],
        &[(read(0, READABLE, 0, 4), &[0; 4])],
    ];
    for packets in cases {
        let mut end = responder();
        end.memory.post_receive(7, [sge(WRITABLE, 0, 2000)]);
        refuses(&mut end, packets, invalid, cause);
    }
    let mut end = responder();
    end.memory.post_receive(7, [sge(WRITABLE, 0, 2000)]);
    end.inject(micros(0), first, &full);
    end.inject(micros(0), last, &full[..1]);
    assert_eq!(end.received[0].byte_len, 257, "the shortest Last");
}

#[test]
fn packets_come_in_the_order_of_their_message() {
    let full = [1; MTU];
    let first = request(Opcode::RC_SEND_FIRST, 0);
    let write_first = request(Opcode::RC_WRITE_FIRST, 0).with_reth(reth(WRITABLE, 0, 1000));
    let cases: [&[(Headers, &[u8])]; 8] = [
        &[(request(Opcode::RC_SEND_MIDDLE, 0), &full)],
        &[(request(Opcode::RC_SEND_LAST, 0), &full)],
        &[(request(Opcode::RC_WRITE_LAST, 0), &full)],
        &[(first, &full), (request(Opcode::RC_SEND_FIRST, 1), &full)],
        &[(first, &full), (request(Opcode::RC_SEND_ONLY, 1), &full)],
        &[(first, &full), (request(Opcode::RC_WRITE_MIDDLE, 1), &full)],
        &[
            (write_first, &full),
            (request(Opcode::RC_SEND_LAST, 1), &full),
        ],
        &[(first, &full), (read(1, READABLE, 0, 1), &[])],
    ];
    for packets in cases {
        let mut end = responder();
        for wr_id in 0..2 {
            end.memory.post_receive(wr_id, [sge(WRITABLE, 0, 2000)]);
        }
        let invalid = NakCode::INVALID_REQUEST;
        refuses(&mut end, packets, invalid, QpFailure::InvalidRequest);
        let begun = packets[0].0.bth.opcode == Opcode::RC_SEND_FIRST;
        let flushed: &[_] = if begun {
            &[(0, WcStatus::WrFlushErr)]
        } else {
            &[]
        };
        assert_eq!(statuses(&end.received), flushed);
    }
}

#[test]
fn a_write_is_as_long_as_it_says() {
    let full = [1; MTU];
    let first = |len| request(Opcode::RC_WRITE_FIRST, 0).with_reth(reth(WRITABLE, 0, len));
    let last = request(Opcode::RC_WRITE_LAST, 1);
    let middle = request(Opcode::RC_WRITE_MIDDLE, 1);
    let cases: [&[(Headers, &[u8])]; 7] = [
        &[(write_only(0, WRITABLE, 0, 8), &[1; 4])],
        &[(write_only(0, WRITABLE, 0, 4), &[1; 8])],
        &[(first(256), &full)],
        &[(first(300), &full), (last, &[1; 40])],
        &[(first(300), &full), (last, &[1; 48])],
        &[(first(300), &full), (middle, &full)],
        &[(read(0, READABLE, 0, (1 << 31) + 1), &[])],
    ];
    for packets in cases {
        let cause = QpFailure::InvalidRequest;
        refuses(&mut responder(), packets, NakCode::INVALID_REQUEST, cause);
    }
}

#[test]
fn access_flags_of_the_queue_pair_come_first() {
    let atomic = request(Opcode::RC_FETCH_ADD, 0).with_atomic_eth(atomic_eth(99, 0));
    // The keys are wrong as well: it is the flags that are looked at.
    let cases: [(Headers, &[u8]); 3] = [
        (write_only(0, 99, 0, 1), b"x"),
        (read(0, 99, 0, 1), b""),
        (atomic, b""),
    ];
    for case in cases {
        let mut end = responder_with(small(Access::LOCAL_WRITE));
        let cause = QpFailure::InvalidRequest;
        refuses(&mut end, &[case], NakCode::INVALID_REQUEST, cause);
    }
}

/// B55 among them: an address that wraps.
#[test]
fn memory_is_checked_before_the_first_octet() {
    let write_first =
        |key, va, len| request(Opcode::RC_WRITE_FIRST, 0).with_reth(reth(key, va, len));
    let full: &[u8] = &[1; MTU];
    let atomic = |key, va| request(Opcode::RC_CMP_SWAP, 0).with_atomic_eth(atomic_eth(key, va));
    let cases: [(Headers, &[u8]); 14] = [
        (write_only(0, 99, 0, 1), b"x"),
        (write_only(0, READABLE, 0, 1), b"x"),
        (write_only(0, OTHER_PD, 0, 1), b"x"),
        (write_only(0, WRITABLE, 2000, 1), b"x"),
        (write_only(0, WRITABLE, u64::MAX, 4), b"wrap"),
        // Its first packet would fit.
        (write_first(WRITABLE, 1000, 1001), full),
        (write_first(WRITABLE, u64::MAX - 300, 1000), full),
        (read(0, 99, 0, 1), b""),
        (read(0, WRITABLE, 0, 1), b""),
        (read(0, READABLE, 1000, 1001), b""),
        (read(0, READABLE, u64::MAX - 3, 8), b""),
        (atomic(READABLE, 0), b""),
        (atomic(ATOMIC, 64), b""),
        (atomic(ATOMIC, u64::MAX - 7), b""),
    ];
    for case in cases {
        let cause = QpFailure::RemoteAccess;
        refuses(
            &mut responder(),
            &[case],
            NakCode::REMOTE_ACCESS_ERROR,
            cause,
        );
    }
}

#[test]
fn misaligned_atomics_and_unknown_operations_are_invalid() {
    let misaligned = request(Opcode::RC_FETCH_ADD, 0).with_atomic_eth(atomic_eth(ATOMIC, 4));
    // B57.
    let atomic_write = request(Opcode::RC_ATOMIC_WRITE, 0).with_reth(reth(WRITABLE, 0, 8));
    let cases: [(Headers, &[u8]); 3] = [
        (misaligned, b""),
        (atomic_write, &[1; 8]),
        (atomic_write, &[1; 4]),
    ];
    for case in cases {
        let cause = QpFailure::InvalidRequest;
        refuses(&mut responder(), &[case], NakCode::INVALID_REQUEST, cause);
    }
}

/// B50, G4: nothing is read or written, so the key does not matter.
#[test]
fn zero_length_operations_need_no_key() {
    let mut end = responder();
    end.inject(micros(0), write_only(0, 99, u64::MAX, 0), &[]);
    end.inject(micros(0), read(1, 98, u64::MAX, 0), &[]);
    assert_eq!(end.qp.state(), QpState::Rts);
    let answers = end.answers(micros(0));
    assert_eq!(answers[1].bth.opcode, Opcode::RC_READ_RESPONSE_ONLY);
    assert_eq!(answers.len(), 2);
    assert_eq!(end.memory.checks.get(), 0);
}

#[test]
fn a_receive_that_is_too_short_says_so() {
    let mut end = responder();
    end.memory.post_receive(7, [sge(WRITABLE, 0, 4)]);
    let send = request(Opcode::RC_SEND_ONLY, 0);
    let cause = QpFailure::InvalidRequest;
    refuses(
        &mut end,
        &[(send, b"12345")],
        NakCode::INVALID_REQUEST,
        cause,
    );
    assert_eq!(statuses(&end.received), [(7, WcStatus::LocLenErr)]);
}

#[test]
fn a_receive_without_memory_is_our_own_fault() {
    for key in [99, READABLE, OTHER_PD] {
        let mut end = responder();
        end.memory
            .post_receive(7, [sge(WRITABLE, 0, 4), sge(key, 0, 8)]);
        let send = request(Opcode::RC_SEND_ONLY, 0);
        let code = NakCode::REMOTE_OPERATIONAL_ERROR;
        refuses(&mut end, &[(send, b"12345")], code, QpFailure::Local);
        assert_eq!(statuses(&end.received), [(7, WcStatus::LocProtErr)]);
    }
}

#[test]
fn a_key_that_cannot_be_invalidated_ends_the_connection() {
    let mut end = responder();
    end.memory.post_receive(7, [sge(WRITABLE, 0, 4)]);
    let send = request(Opcode::RC_SEND_ONLY_INVALIDATE, 0).with_ieth(Ieth { rkey: rkey(99) });
    end.inject(micros(0), send, b"1234");
    assert_eq!(end.qp.state(), QpState::Err);
    assert_eq!(statuses(&end.received), [(7, WcStatus::RemInvReqErr)]);
    assert_eq!(answers(&mut end), [], "the peer is not told (IBA class J)");
}

#[test]
fn without_receive_the_peer_is_asked_to_wait() {
    let mut end = responder();
    let send = request(Opcode::RC_SEND_ONLY, 0);
    let timer = RnrTimer::new(12);
    let rnr = AethKind::RnrNak { timer };
    end.inject(micros(0), send, b"1");
    // The rest of the burst is no news.
    end.inject(micros(0), request(Opcode::RC_SEND_ONLY, 1), b"2");
    assert_eq!(answers(&mut end), [(A_PSN, rnr, 0)]);
    assert_eq!(end.qp.state(), QpState::Rts);
    end.inject(micros(0), send, b"1");
    assert_eq!(answers(&mut end), [(A_PSN, rnr, 0)]);
    end.memory.post_receive(7, [sge(WRITABLE, 0, 4)]);
    end.inject(micros(0), send, b"1");
    assert_eq!(answers(&mut end), [(A_PSN, ack(), 1)]);
    assert_eq!(end.received.len(), 1);
    assert_eq!(end.qp.counters().rnr_naks_sent, 2);
}

/// The data of a WRITE with immediate is not placed until its receive is there.
#[test]
fn a_write_with_immediate_waits_for_its_receive_with_its_last_packet() {
    let mut end = responder();
    let first = request(Opcode::RC_WRITE_FIRST, 0).with_reth(reth(WRITABLE, 0, 260));
    let last = request(Opcode::RC_WRITE_LAST_IMMEDIATE, 1).with_imm_dt(ImmDt([0, 0, 0, 9]));
    end.inject(micros(0), first, &[1; MTU]);
    end.inject(micros(0), last, &[1; 4]);
    let kinds: Vec<_> = answers(&mut end).iter().map(|(_, kind, _)| *kind).collect();
    assert!(
        matches!(kinds[..], [_, AethKind::RnrNak { .. }]),
        "{kinds:?}"
    );
    assert_eq!(end.memory.octets(WRITABLE)[256..260], [0; 4]);
    end.memory.post_receive(7, []);
    end.inject(micros(0), last, &[1; 4]);
    assert_eq!(answers(&mut end), [(A_PSN.advance(1), ack(), 1)]);
    assert_eq!(end.memory.octets(WRITABLE)[256..260], [1; 4]);
    assert_eq!(
        (end.received[0].byte_len, end.received[0].imm),
        (260, Some(9))
    );
}

#[test]
fn refusals_become_statuses() {
    let cases = [
        (NakCode::INVALID_REQUEST, WcStatus::RemInvReqErr),
        (NakCode::REMOTE_ACCESS_ERROR, WcStatus::RemAccessErr),
        (NakCode::REMOTE_OPERATIONAL_ERROR, WcStatus::RemOpErr),
    ];
    for (code, status) in cases {
        let mut end = Pair::good().a;
        end.memory.add(1, 0, Access::LOCAL_WRITE, &[0; 3000]);
        for (wr_id, op) in [SendOp::Send, SendOp::Send, read_op(9, 0), SendOp::Send]
            .into_iter()
            .enumerate()
        {
            end.post(wr(wr_id as u64, op, sge(1, 0, 2000)));
        }
        end.transmit_all(micros(0));
        let refused = bth(Opcode::RC_ACKNOWLEDGE, A_QPN, A_PSN.advance(3));
        let aeth = Aeth::new(Syndrome::nak(code), Default::default());
        end.inject(micros(0), refused.with_aeth(aeth), &[]);
        assert_eq!(
            end.statuses(),
            [
                (0, WcStatus::Success),
                (1, status),
                (2, WcStatus::WrFlushErr),
                (3, WcStatus::WrFlushErr)
            ]
        );
        assert_eq!(end.qp.state(), QpState::Err);
        assert!(!end.qp.wants_transmit());
    }
}

/// Between the two ends: each refusal with what both applications see.
#[test]
fn both_ends_learn_of_a_refusal() {
    let mut pair = Pair::good();
    pair.a.memory.add(1, 0, Access::LOCAL_WRITE, &[0; 5000]);
    pair.b.memory.add(2, 0, Access::LOCAL_WRITE, &[0; 5000]);
    pair.b.memory.post_receive(7, [sge(2, 0, 10)]);
    pair.a.post(wr(1, SendOp::Send, sge(1, 0, 5000)));
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(statuses(&pair.b.received), [(7, WcStatus::LocLenErr)]);
    assert_eq!(pair.b.qp.state(), QpState::Err);
    assert_eq!(pair.b.memory.octets(2), [0; 5000]);
}
