//! The send gate, and "communication established".

mod roce_common;

use roce_common::*;
use softverbs_proto::fault::Misuse;
use softverbs_proto::qp_state::{QpState, QpType};
use softverbs_proto::roce::queue_pair::QpEvent;
use softverbs_proto::wr::{SendOp, WcStatus};
use softverbs_wire::ib::{Opcode, Reth};
use softverbs_wire::num::{Pkey, VirtualAddress};

fn prepare(pair: &mut Pair) {
    let access = VecMemory::all_access();
    for end in [&mut pair.a, &mut pair.b] {
        end.memory.add(1, 0, access, &pattern(1, 64));
        end.memory.add(2, 0, access, &[0; 64]);
        for wr_id in 0..4 {
            end.memory.post_receive(wr_id, [sge(2, 0, 64)]);
        }
    }
}

/// `a` is the active side in RTS; `b` the passive one, in `state`, with its gate held.
fn passive(state: QpState, qp_type: QpType) -> Pair {
    let mut pair = Pair::reset(qp_type, Network::GOOD, 1);
    prepare(&mut pair);
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        pair.a.to(to, &of_a(attributes()));
    }
    pair.b.to(QpState::Init, &of_b(attributes()));
    pair.b.qp.hold_gate();
    pair.b.to(QpState::Rtr, &of_b(attributes()));
    if state == QpState::Rts {
        pair.b.to(QpState::Rts, &of_b(attributes()));
    }
    pair
}

fn write_only() -> softverbs_wire::ib::Headers {
    bth(Opcode::RC_WRITE_ONLY, B_QPN, A_PSN).with_reth(Reth {
        va: VirtualAddress::new(0),
        rkey: rkey(0),
        dma_len: 0,
    })
}

#[test]
fn the_first_packet_opens_the_gate_and_is_told_once() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut pair = passive(QpState::Rts, qp_type);
        pair.b.post(inline(1, SendOp::Send, b"early"));
        assert!(!pair.b.qp.gate_is_open());
        assert!(!pair.b.qp.wants_transmit());
        assert_eq!(pair.b.transmit_all(pair.now), [] as [Vec<u8>; 0]);
        assert_eq!(pair.b.qp.outstanding(), 1);
        pair.a.post(inline(1, SendOp::Send, b"first"));
        pair.a.post(inline(2, SendOp::Send, b"second"));
        pair.run();
        assert_eq!(pair.b.events, [QpEvent::CommEst]);
        assert!(pair.b.qp.gate_is_open());
        assert_eq!(pair.a.events, [], "the active side knew");
        assert_eq!(pair.b.statuses(), [(1, WcStatus::Success)]);
        assert_eq!(pair.a.received.len(), 1);
        // The RTU comes late, or never.
        assert!(!pair.b.qp.open_gate());
        pair.run();
        assert_eq!(pair.b.events, [QpEvent::CommEst]);
        pair.b.qp.hold_gate();
        assert!(pair.b.qp.gate_is_open(), "the peer was heard of");
    }
}

#[test]
fn in_rtr_the_event_is_raised_and_requests_wait_for_rts() {
    let mut pair = passive(QpState::Rtr, QpType::Rc);
    pair.b.post(inline(1, SendOp::Send, b"early"));
    pair.a.post(inline(1, SendOp::Send, b"first"));
    pair.run();
    assert_eq!(pair.b.events, [QpEvent::CommEst]);
    assert_eq!(
        pair.a.statuses(),
        [(1, WcStatus::Success)],
        "it answers in RTR"
    );
    assert_eq!(pair.b.qp.outstanding(), 1);
    pair.b.to(QpState::Rts, &of_b(attributes()));
    pair.run();
    assert_eq!(pair.b.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(pair.b.events, [QpEvent::CommEst]);
    assert_eq!(pair.a.received.len(), 1);
}

/// Without a held gate RTR alone makes the event (an application that connects by itself).
#[test]
fn in_rtr_the_event_needs_no_held_gate() {
    let mut pair = Pair::reset(QpType::Rc, Network::GOOD, 1);
    prepare(&mut pair);
    for to in [QpState::Init, QpState::Rtr] {
        pair.b.to(to, &of_b(attributes()));
    }
    pair.b.inject(pair.now, write_only(), &[]);
    pair.b.inject(pair.now, write_only(), &[]);
    assert_eq!(pair.b.events, [QpEvent::CommEst]);
}

#[test]
fn an_rtu_before_the_first_packet_opens_the_gate() {
    let mut pair = passive(QpState::Rts, QpType::Rc);
    pair.b.post(inline(1, SendOp::Send, b"x"));
    assert!(pair.b.qp.open_gate());
    assert!(!pair.b.qp.open_gate(), "a repeated one changes nothing");
    pair.run();
    assert_eq!(pair.b.statuses(), [(1, WcStatus::Success)]);
    pair.a.post(inline(1, SendOp::Send, b"y"));
    pair.run();
    assert_eq!(pair.b.events, [], "the connection manager knew already");
}

#[test]
fn requests_behind_the_gate_go_out_before_later_ones() {
    let mut pair = passive(QpState::Rts, QpType::Rc);
    for wr_id in 0..3 {
        pair.b.post(inline(wr_id, SendOp::Send, &[b'0'; 3]));
    }
    pair.b.qp.open_gate();
    pair.b.post(inline(3, SendOp::Send, b"after"));
    pair.run();
    let order: Vec<_> = pair.b.sent.iter().map(|done| done.wr_id).collect();
    assert_eq!(order, [0, 1, 2, 3]);
    let lens: Vec<_> = pair.a.received.iter().map(|done| done.byte_len).collect();
    assert_eq!(lens, [3, 3, 3, 5]);
}

/// Packets that prove nothing: of another partition, of an old connection, of another service,
/// answers to what was never asked.
#[test]
fn strangers_do_not_open_the_gate() {
    let mut pair = passive(QpState::Rts, QpType::Rc);
    let mut other_partition = write_only();
    other_partition.bth.pkey = Pkey::new(0x8001);
    let mut old = write_only();
    old.bth.psn = A_PSN.advance(0x0080_0000);
    let mut duplicate = write_only();
    duplicate.bth.psn = A_PSN.advance(u32::MAX);
    let mut future = write_only();
    future.bth.psn = A_PSN.advance(1);
    let unreliable = bth(Opcode::UC_SEND_ONLY, B_QPN, A_PSN);
    let middle = bth(Opcode::CNP, B_QPN, A_PSN);
    let answer = bth(Opcode::RC_ACKNOWLEDGE, B_QPN, B_PSN).with_aeth(
        softverbs_wire::ib::Aeth::new(softverbs_wire::ib::Syndrome::ACK, Default::default()),
    );
    for headers in [
        other_partition,
        old,
        duplicate,
        future,
        unreliable,
        middle,
        answer,
    ] {
        pair.b.inject(pair.now, headers, &[]);
        assert!(!pair.b.qp.gate_is_open(), "{headers}");
    }
    assert_eq!(pair.b.events, []);
    pair.b.inject(pair.now, write_only(), &[]);
    assert!(pair.b.qp.gate_is_open());
}

/// A first packet that finds no receive is a valid one all the same.
#[test]
fn a_first_packet_without_receive_opens_the_gate() {
    let mut pair = passive(QpState::Rts, QpType::Rc);
    pair.b.memory.receives.clear();
    pair.a.post(inline(1, SendOp::Send, b"x"));
    pair.run_until(micros(100));
    assert_eq!(pair.b.events, [QpEvent::CommEst]);
    assert!(pair.b.qp.gate_is_open());
}

#[test]
fn a_lost_first_packet_only_delays() {
    let mut pair = passive(QpState::Rts, QpType::Rc);
    let mut lost = false;
    pair.lose(move |_, _| !core::mem::replace(&mut lost, true));
    pair.b.post(inline(1, SendOp::Send, b"x"));
    pair.a.post(inline(1, SendOp::Send, b"a"));
    pair.a.post(inline(2, SendOp::Send, b"b"));
    pair.run();
    assert_eq!(pair.b.events, [QpEvent::CommEst]);
    assert_eq!(pair.b.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(pair.a.sent.len(), 2);
}

/// The active side receives before it is ready: nothing happens but a delay, and it is shorter
/// than the acknowledge timeout.
#[test]
fn a_peer_that_is_not_ready_yet_costs_a_probe() {
    let mut pair = Pair::reset(QpType::Rc, Network::GOOD, 1);
    prepare(&mut pair);
    pair.b.to(QpState::Init, &of_b(attributes()));
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        pair.a.to(to, &of_a(attributes()));
    }
    pair.a.post(inline(1, SendOp::Send, b"x"));
    pair.run_until(micros(1000));
    assert_eq!(pair.b.record, []);
    for to in [QpState::Rtr, QpState::Rts] {
        pair.b.to(to, &of_b(attributes()));
    }
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, WcStatus::Success)]);
    assert!(pair.now < micros(50_000));
}

#[test]
fn posting_is_allowed_from_rtr_on() {
    let mut pair = Pair::reset(QpType::Rc, Network::GOOD, 1);
    let post = |pair: &mut Pair| pair.b.qp.post_send(inline(1, SendOp::Send, b"x"));
    assert_eq!(post(&mut pair), Err(Misuse::State));
    pair.b.to(QpState::Init, &of_b(attributes()));
    assert_eq!(post(&mut pair), Err(Misuse::State));
    pair.b.to(QpState::Rtr, &of_b(attributes()));
    assert_eq!(post(&mut pair), Ok(()));
}
