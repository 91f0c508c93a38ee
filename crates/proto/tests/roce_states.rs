//! States: attributes, draining, flushing, the end.

mod roce_common;

use roce_common::*;
use softverbs_proto::memory::Access;
use softverbs_proto::qp_state::{QpAttrMask, QpState, QpType};
use softverbs_proto::roce::queue_pair::{ModifyError, QpAttributes, QpEvent, QpFailure, QueuePair};
use softverbs_proto::time::Time;
use softverbs_proto::wr::{SendOp, WcStatus};
use softverbs_wire::ib::Opcode;
use softverbs_wire::num::{PathMtu, Psn};

fn modify(
    qp: &mut QueuePair,
    attributes: &QpAttributes,
    mask: QpAttrMask,
    to: QpState,
) -> Result<(), ModifyError> {
    qp.modify(Time::ZERO, attributes, mask, to)
}

#[test]
fn the_table_of_transitions_is_the_rule() {
    let mut qp = QueuePair::new(config(QpType::Rc, A_QPN));
    assert_eq!(qp.state(), QpState::Reset);
    let all = attributes();
    for to in [QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err] {
        let refused = modify(&mut qp, &all, QpAttrMask::STATE, to);
        assert!(matches!(refused, Err(ModifyError::Transition(_))), "{to}");
    }
    modify(&mut qp, &all, TO_INIT, QpState::Init).unwrap();
    let less = TO_RTR - QpAttrMask::RQ_PSN;
    assert!(modify(&mut qp, &all, less, QpState::Rtr).is_err());
    let more = TO_RTR | QpAttrMask::QKEY;
    assert!(modify(&mut qp, &all, more, QpState::Rtr).is_err());
    assert_eq!(qp.state(), QpState::Init);
    modify(&mut qp, &all, TO_RTR, QpState::Rtr).unwrap();
    modify(&mut qp, &all, TO_RTS, QpState::Rts).unwrap();
    assert_eq!(qp.attributes().path_mtu, PathMtu::Mtu1024);
}

/// B42: 8 is no count, and a refused call changes nothing.
#[test]
fn values_out_of_range_are_refused() {
    let refused = |change: &dyn Fn(&mut QpAttributes), state| {
        let mut end = End::new(config(QpType::Rc, A_QPN));
        end.to(QpState::Init, &attributes());
        if state == QpState::Rts {
            end.to(QpState::Rtr, &attributes());
        }
        let mut wrong = attributes();
        change(&mut wrong);
        let before = *end.qp.attributes();
        let mask = masks(QpType::Rc)[if state == QpState::Rts { 2 } else { 1 }];
        let result = modify(&mut end.qp, &wrong, mask, state);
        assert_eq!(*end.qp.attributes(), before);
        assert_ne!(end.qp.state(), state);
        result
    };
    let rts = QpState::Rts;
    let range = |name| Err(ModifyError::Range(name));
    assert_eq!(refused(&|new| new.retry_cnt = 8, rts), range("retry_cnt"));
    assert_eq!(refused(&|new| new.rnr_retry = 8, rts), range("rnr_retry"));
    assert_eq!(refused(&|new| new.timeout = 32, rts), range("timeout"));
    assert_eq!(
        refused(&|new| new.max_rd_atomic = 129, rts),
        range("max_rd_atomic")
    );
    assert_eq!(
        refused(&|new| new.min_rnr_timer = 32, QpState::Rtr),
        range("min_rnr_timer")
    );
    assert_eq!(
        refused(&|new| new.max_dest_rd_atomic = 255, QpState::Rtr),
        range("max_dest_rd_atomic")
    );
}

#[test]
fn the_believed_state_has_to_be_the_present_one() {
    let mut pair = Pair::good();
    let mask = QpAttrMask::STATE | QpAttrMask::CUR_STATE;
    let believes = |cur_state| QpAttributes {
        cur_state,
        ..attributes()
    };
    assert_eq!(
        modify(&mut pair.a.qp, &believes(QpState::Rtr), mask, QpState::Rts),
        Err(ModifyError::CurrentState {
            believed: QpState::Rtr,
            actual: QpState::Rts
        })
    );
    modify(&mut pair.a.qp, &believes(QpState::Rts), mask, QpState::Rts).unwrap();
}

/// Attributes change without a transition: the flags count from now on.
#[test]
fn attributes_change_in_rts() {
    let mut pair = Pair::good();
    pair.b.memory.add(2, 0, VecMemory::all_access(), &[0; 8]);
    let none = QpAttributes {
        access: Access::empty(),
        ..attributes()
    };
    let mask = QpAttrMask::ACCESS_FLAGS;
    modify(&mut pair.b.qp, &none, mask, QpState::Rts).unwrap();
    pair.a.post(inline(1, write_op(2, 0), b"x"));
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, WcStatus::RemInvReqErr)]);
}

fn loaded() -> Pair {
    let attributes = QpAttributes {
        path_mtu: PathMtu::Mtu256,
        ..attributes()
    };
    let mut pair = Pair::new(attributes, Network::GOOD, 1);
    pair.a
        .memory
        .add(1, 0, Access::LOCAL_WRITE, &pattern(1, 50_000));
    pair.b
        .memory
        .add(2, 0, VecMemory::all_access(), &pattern(2, 50_000));
    pair
}

#[test]
fn a_draining_queue_finishes_what_has_begun() {
    let mut pair = loaded();
    pair.a.post(wr(1, write_op(2, 0), sge(1, 0, 50_000)));
    pair.a.post(wr(2, write_op(2, 0), sge(1, 0, 8)));
    pair.a.transmit(pair.now);
    let notify = QpAttributes {
        en_sqd_async_notify: true,
        ..attributes()
    };
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    modify(&mut pair.a.qp, &notify, mask, QpState::Sqd).unwrap();
    assert!(pair.a.qp.is_draining());
    // Other attributes may change meanwhile.
    let timeout = QpAttrMask::TIMEOUT;
    modify(&mut pair.a.qp, &attributes(), timeout, QpState::Sqd).unwrap();
    pair.a.post(wr(3, write_op(2, 0), sge(1, 0, 8)));
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(pair.a.events, [QpEvent::SqDrained]);
    assert!(!pair.a.qp.is_draining());
    assert_eq!(pair.a.qp.outstanding(), 2);
    // It still receives.
    pair.b.post(inline(9, SendOp::Send, b"x"));
    pair.a.memory.post_receive(5, [sge(1, 0, 8)]);
    pair.run();
    assert_eq!(pair.a.received.len(), 1);
    modify(
        &mut pair.a.qp,
        &attributes(),
        QpAttrMask::STATE,
        QpState::Rts,
    )
    .unwrap();
    pair.run();
    assert_eq!(pair.a.sent.len(), 3);
    assert_eq!(pair.a.events, [QpEvent::SqDrained]);
}

#[test]
fn an_idle_queue_has_drained_at_once() {
    let mut pair = loaded();
    let notify = QpAttributes {
        en_sqd_async_notify: true,
        ..attributes()
    };
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    modify(&mut pair.a.qp, &notify, mask, QpState::Sqd).unwrap();
    pair.a.drain();
    assert_eq!(pair.a.events, [QpEvent::SqDrained]);
    let mut pair = loaded();
    modify(&mut pair.a.qp, &notify, QpAttrMask::STATE, QpState::Sqd).unwrap();
    pair.a.drain();
    assert_eq!(pair.a.events, [], "nobody asked");
    assert!(!pair.a.qp.is_draining());
}

/// B78, B39: everything that was posted completes once, in its order.
#[test]
fn the_error_state_flushes_everything_once() {
    let mut pair = loaded();
    pair.b.memory.post_receive(7, [sge(2, 0, 50_000)]);
    for wr_id in 0..4 {
        pair.a.post(wr(wr_id, SendOp::Send, sge(1, 0, 1000)));
    }
    for octets in pair.a.transmit(pair.now) {
        pair.b.feed(pair.now, &octets.1, &Default::default());
        if pair.b.received.len() == 1 {
            break;
        }
    }
    pair.b.memory.post_receive(8, [sge(2, 0, 50_000)]);
    let next = bth(Opcode::RC_SEND_FIRST, B_QPN, A_PSN.advance(4));
    pair.b.inject(pair.now, next, &[1; 256]);
    for end in [&mut pair.a, &mut pair.b] {
        modify(&mut end.qp, &attributes(), QpAttrMask::STATE, QpState::Err).unwrap();
        end.drain();
        assert_eq!(end.events, [QpEvent::LastWqeReached]);
        assert!(!end.qp.wants_transmit());
        assert_eq!(end.qp.deadline(), None);
    }
    let flushed: Vec<_> = (0..4).map(|wr_id| (wr_id, WcStatus::WrFlushErr)).collect();
    assert_eq!(pair.a.statuses(), flushed);
    assert_eq!(
        statuses(&pair.b.received),
        [(7, WcStatus::Success), (8, WcStatus::WrFlushErr)]
    );
    pair.a.post(wr(9, SendOp::Send, sge(1, 0, 8)));
    pair.a.drain();
    assert_eq!(pair.a.statuses().last(), Some(&(9, WcStatus::WrFlushErr)));
    pair.a.qp.abort();
    pair.run();
    assert_eq!(pair.a.sent.len(), 5);
    assert_eq!(pair.a.events, [QpEvent::LastWqeReached], "once");
}

#[test]
fn reset_forgets_everything_and_the_queue_pair_is_as_new() {
    let mut pair = loaded();
    for wr_id in 0..3 {
        pair.a.post(wr(wr_id, write_op(2, 0), sge(1, 0, 10_000)));
    }
    pair.run_until(micros(5));
    for end in [&mut pair.a, &mut pair.b] {
        modify(
            &mut end.qp,
            &attributes(),
            QpAttrMask::STATE,
            QpState::Reset,
        )
        .unwrap();
        end.drain();
        assert_eq!(end.qp.state(), QpState::Reset);
        assert_eq!(end.qp.outstanding(), 0);
        assert_eq!(end.qp.deadline(), None);
    }
    assert_eq!(pair.a.sent, []);
    pair.run();
    pair.connect(attributes());
    pair.a.post(wr(7, write_op(2, 0), sge(1, 0, 100)));
    pair.run();
    assert_eq!(pair.a.statuses(), [(7, WcStatus::Success)]);
}

/// A request that cannot be carried out here: those before it complete, those behind it are
/// flushed, and the peer sees nothing of it.
#[test]
fn local_faults_complete_in_their_place() {
    let cases = [
        (wr(2, SendOp::Send, sge(99, 0, 8)), WcStatus::LocProtErr),
        (wr(2, SendOp::Send, sge(1, 49_999, 8)), WcStatus::LocProtErr),
        (wr(2, read_op(2, 0), sge(3, 0, 8)), WcStatus::LocProtErr),
        (
            inline(2, SendOp::LocalInvalidate(rkey(77)), &[]),
            WcStatus::LocProtErr,
        ),
    ];
    for (request, status) in cases {
        let mut pair = loaded();
        pair.a.memory.add(3, 0, Access::empty(), &[0; 8]);
        pair.a.post(wr(1, write_op(2, 0), sge(1, 0, 50_000)));
        pair.a.post(request);
        pair.a.post(wr(3, write_op(2, 0), sge(1, 0, 8)));
        pair.run();
        assert_eq!(
            pair.a.statuses(),
            [
                (1, WcStatus::Success),
                (2, status),
                (3, WcStatus::WrFlushErr)
            ]
        );
        let cause = QpFailure::SendQueue(status);
        assert_eq!(
            pair.a.events,
            [QpEvent::Fatal { cause }, QpEvent::LastWqeReached]
        );
        assert_eq!(pair.b.qp.state(), QpState::Rts);
        assert_eq!(pair.b.memory.octets(2), pattern(1, 50_000));
    }
    let mut pair = loaded();
    pair.connect_depth_zero();
    pair.a.post(wr(1, read_op(2, 0), sge(1, 0, 8)));
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, WcStatus::LocQpOpErr)]);
}

/// What is lost is sent again from the request: if its memory is gone by then, it fails.
#[test]
fn memory_that_is_gone_when_it_is_needed_again() {
    let mut pair = loaded();
    pair.a.post(wr(1, write_op(2, 0), sge(1, 0, 1000)));
    pair.a.transmit_all(pair.now);
    pair.a.memory.region_mut(1).valid = false;
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, WcStatus::LocProtErr)]);
    assert_eq!(pair.a.qp.state(), QpState::Err);
    let mut pair = loaded();
    pair.a.post(wr(1, read_op(2, 0), sge(1, 0, 1000)));
    for octets in pair.a.transmit_all(pair.now) {
        pair.b.feed(pair.now, &octets, &Default::default());
    }
    pair.a.memory.region_mut(1).valid = false;
    for octets in pair.b.transmit_all(pair.now) {
        pair.a.feed(pair.now, &octets, &Default::default());
    }
    assert_eq!(pair.a.statuses(), [(1, WcStatus::LocProtErr)]);
}

/// A queue pair in the wrong state is deaf.
#[test]
fn packets_count_from_rtr_on() {
    let mut end = End::new(config(QpType::Rc, B_QPN));
    end.memory.add(2, 0, VecMemory::all_access(), &[0; 8]);
    let write =
        bth(Opcode::RC_WRITE_ONLY, B_QPN, Psn::new(0)).with_reth(softverbs_wire::ib::Reth {
            va: softverbs_wire::num::VirtualAddress::new(0),
            rkey: rkey(2),
            dma_len: 4,
        });
    end.inject(micros(0), write, b"1234");
    end.to(QpState::Init, &attributes());
    end.inject(micros(0), write, b"1234");
    assert_eq!(end.memory.octets(2), [0; 8]);
    assert_eq!(end.events, []);
    assert_eq!(end.qp.counters().dropped, 2);
    assert!(!end.qp.wants_transmit());
}

impl Pair {
    /// Connects again without READs.
    fn connect_depth_zero(&mut self) {
        for end in [&mut self.a, &mut self.b] {
            modify(
                &mut end.qp,
                &attributes(),
                QpAttrMask::STATE,
                QpState::Reset,
            )
            .unwrap();
        }
        self.connect(QpAttributes {
            max_rd_atomic: 0,
            ..attributes()
        });
    }
}
