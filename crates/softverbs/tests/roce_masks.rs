//! `modify` of queue pairs over RoCE by hand, every bit of the mask in every step, against the table
//! of the InfiniBand specification (11.2.5.2) written down once more.

mod common;

use common::ALL;
use softverbs::{
    AhAttr, Context, Device, Pd, Qp, QpAttr, QpAttrMask as M, QpInitAttr, QpState, QpType, Qpn,
    Transport,
};

struct Step {
    from: QpState,
    to: QpState,
    required: M,
    optional: M,
}

fn steps(qp_type: QpType) -> [Step; 4] {
    use QpState::{Init, Reset, Rtr, Rts};
    let none = M::empty();
    let (init, rtr, rtr_optional, rts, rts_optional, again) = match qp_type {
        QpType::Rc => (
            M::ACCESS_FLAGS,
            M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER,
            M::ACCESS_FLAGS | M::PKEY_INDEX,
            M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC,
            M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER,
            M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER,
        ),
        QpType::Uc => (
            M::ACCESS_FLAGS,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
            M::ACCESS_FLAGS | M::PKEY_INDEX,
            M::SQ_PSN,
            M::CUR_STATE | M::ACCESS_FLAGS,
            M::CUR_STATE | M::ACCESS_FLAGS,
        ),
        QpType::XrcSend | QpType::XrcRecv => unreachable!("not of this test"),
        QpType::Ud => (
            M::QKEY,
            none,
            M::QKEY | M::PKEY_INDEX,
            M::SQ_PSN,
            M::CUR_STATE | M::QKEY,
            M::CUR_STATE | M::QKEY,
        ),
    };
    let step = |from, to, required, optional| Step {
        from,
        to,
        required,
        optional,
    };
    [
        step(Reset, Init, M::PKEY_INDEX | M::PORT | init, none),
        step(Init, Rtr, rtr, rtr_optional),
        step(Rtr, Rts, rts, rts_optional),
        step(Rts, Rts, none, again),
    ]
}

struct Maker {
    context: Context,
    pd: Pd,
}

impl Maker {
    fn new() -> Self {
        let device = Device::for_address("127.0.0.1".parse().unwrap(), None)
            .unwrap()
            .with_transport(Transport::Roce);
        let context = device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        Self { context, pd }
    }

    fn attr(&self, from: QpState, to: QpState) -> QpAttr {
        QpAttr {
            qp_state: to,
            cur_qp_state: from,
            path_mtu: 2,
            qkey: 0x1234_5678,
            rq_psn: 0x11_1111,
            sq_psn: 0x22_2222,
            dest_qp_num: Qpn::new(0x33_3333),
            ah_attr: AhAttr::new(self.context.query_gid(1, 0).unwrap(), 0),
            qp_access_flags: ALL,
            max_rd_atomic: 3,
            max_dest_rd_atomic: 5,
            min_rnr_timer: 9,
            timeout: 11,
            retry_cnt: 6,
            rnr_retry: 4,
            ..QpAttr::default()
        }
    }

    /// A queue pair in a state.
    fn in_state(&self, qp_type: QpType, state: QpState) -> Qp {
        let cq = self.context.create_cq(16, None, 0).unwrap();
        let attr = QpInitAttr {
            qp_type,
            ..QpInitAttr::rc(&cq, &cq)
        };
        let qp = self.pd.create_qp(&attr).unwrap();
        for step in steps(qp_type) {
            if qp.state() == state {
                break;
            }
            let attr = self.attr(step.from, step.to);
            qp.modify(&attr, step.required | M::STATE).unwrap();
        }
        assert_eq!(qp.state(), state);
        qp
    }
}

#[test]
fn every_bit_in_every_step() {
    let maker = Maker::new();
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for step in steps(qp_type) {
            let what = format!("{qp_type:?}, {} to {}", step.from, step.to);
            let attr = maker.attr(step.from, step.to);
            let allowed = step.required | step.optional | M::STATE;
            // Alternate paths and rate limits are not of RoCEv2.
            let others = M::ALT_PATH | M::PATH_MIG_STATE | M::RATE_LIMIT;
            for bit in (M::all() - others).iter() {
                let qp = maker.in_state(qp_type, step.from);
                if step.required.contains(bit) {
                    let less = (step.required | M::STATE) - bit;
                    let error = qp.modify(&attr, less).unwrap_err();
                    assert_eq!(error.errno(), 22, "{what} without {bit:?}");
                    assert_eq!(qp.state(), step.from, "{what} without {bit:?}");
                }
                let more = step.required | M::STATE | bit;
                let taken = qp.modify(&attr, more);
                if allowed.contains(bit) {
                    taken.unwrap_or_else(|error| panic!("{what} with {bit:?}: {error}"));
                    assert_eq!(qp.state(), step.to);
                } else {
                    let error = taken.expect_err(&format!("{what} with {bit:?}"));
                    assert_eq!(error.errno(), 22, "{what} with {bit:?}");
                    assert_eq!(qp.state(), step.from, "{what} with {bit:?}");
                }
            }
        }
    }
}

#[test]
fn steps_that_are_none() {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd};
    let maker = Maker::new();
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for from in [Reset, Init, Rtr, Rts] {
            for to in QpState::ALL {
                let qp = maker.in_state(qp_type, from);
                let attr = maker.attr(from, to);
                let taken = qp.modify(&attr, M::STATE).is_ok();
                // Those that need nothing: the error state and RESET from everywhere, draining from
                // RTS, staying, and a datagram queue pair getting ready to receive.
                let free = match (from, to) {
                    (_, Reset | Err) | (Rts, Sqd | Rts) | (Init, Init) => true,
                    (Init, Rtr) => qp_type == QpType::Ud,
                    _ => false,
                };
                // The specification leaves it open whether RESET can become the error state.
                if (from, to) != (Reset, Err) {
                    assert_eq!(taken, free, "{qp_type:?}: {from} to {to}");
                }
                assert_eq!(qp.state(), if taken { to } else { from });
            }
        }
    }
}

#[test]
fn what_was_set_is_returned() {
    let maker = Maker::new();
    let set = maker.attr(QpState::Rtr, QpState::Rts);
    let rc = maker.in_state(QpType::Rc, QpState::Rts).query();
    assert_eq!(
        (rc.qp_state, rc.path_mtu, rc.dest_qp_num, rc.ah_attr),
        (QpState::Rts, set.path_mtu, set.dest_qp_num, set.ah_attr)
    );
    assert_eq!(
        (rc.rq_psn, rc.sq_psn, rc.qp_access_flags),
        (set.rq_psn, set.sq_psn, set.qp_access_flags)
    );
    assert_eq!(
        (rc.max_rd_atomic, rc.max_dest_rd_atomic, rc.min_rnr_timer),
        (3, 5, 9)
    );
    assert_eq!((rc.timeout, rc.retry_cnt, rc.rnr_retry), (11, 6, 4));
    let uc = maker.in_state(QpType::Uc, QpState::Rts).query();
    assert_eq!((uc.path_mtu, uc.rq_psn), (set.path_mtu, set.rq_psn));
    let ud = maker.in_state(QpType::Ud, QpState::Rts).query();
    assert_eq!((ud.qkey, ud.sq_psn), (set.qkey, set.sq_psn));
    // In RTS, what may be changed there.
    let qp = maker.in_state(QpType::Rc, QpState::Rts);
    let attr = QpAttr {
        min_rnr_timer: 30,
        ..set
    };
    qp.modify(&attr, M::MIN_RNR_TIMER).unwrap();
    assert_eq!(qp.query().min_rnr_timer, 30);
    let wrong = QpAttr {
        cur_qp_state: QpState::Sqd,
        ..attr
    };
    assert_eq!(qp.modify(&wrong, M::CUR_STATE).unwrap_err().errno(), 22);
}
