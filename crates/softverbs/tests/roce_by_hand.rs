//! Queue pairs over RoCE that the application manages itself, as `ibv_rc_pingpong` does.

mod common;

use std::time::Duration;

use common::{ALL, PATIENCE, poll};
use softverbs::{
    AhAttr, AsyncElement, AsyncEventKind, Context, Cq, Device, Mr, Pd, Qp, QpAttr, QpAttrMask,
    QpInitAttr, QpState, QpType, RecvWr, SendData, SendOp, SendWr, Transport, UdAddress, WcOpcode,
    WcStatus,
};

struct Hand {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

const QKEY: u32 = 0x1111_1111;

fn hand(qp_type: QpType) -> Hand {
    let device = Device::for_address("127.0.0.1".parse().unwrap(), None)
        .unwrap()
        .with_transport(Transport::Roce);
    let context = device.open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(256, None, 0).unwrap();
    let attr = QpInitAttr {
        qp_type,
        ..QpInitAttr::rc(&cq, &cq)
    };
    let qp = pd.create_qp(&attr).unwrap();
    let mr = pd.alloc_mr(1 << 16, ALL).unwrap();
    let hand = Hand {
        context,
        pd,
        cq,
        qp,
        mr,
    };
    let init = QpAttr {
        qp_state: QpState::Init,
        qkey: QKEY,
        qp_access_flags: ALL,
        ..QpAttr::default()
    };
    let last = match qp_type {
        QpType::Ud => QpAttrMask::QKEY,
        _ => QpAttrMask::ACCESS_FLAGS,
    };
    let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | last;
    hand.qp.modify(&init, mask).unwrap();
    hand
}

impl Hand {
    fn address(&self) -> AhAttr {
        AhAttr::new(self.context.query_gid(1, 0).unwrap(), 0)
    }

    fn to_rtr(&self, peer: &Self, min_rnr_timer: u8) {
        let attr = QpAttr {
            qp_state: QpState::Rtr,
            path_mtu: 3,
            dest_qp_num: peer.qp.qp_num(),
            rq_psn: psn(peer),
            ah_attr: peer.address(),
            max_dest_rd_atomic: 4,
            min_rnr_timer,
            ..QpAttr::default()
        };
        let mut mask = QpAttrMask::STATE
            | QpAttrMask::AV
            | QpAttrMask::PATH_MTU
            | QpAttrMask::DEST_QPN
            | QpAttrMask::RQ_PSN;
        if self.qp.qp_type() == QpType::Rc {
            mask |= QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
        }
        self.qp.modify(&attr, mask).unwrap();
    }

    fn to_rts(&self, retry_cnt: u8, rnr_retry: u8) {
        let attr = QpAttr {
            qp_state: QpState::Rts,
            sq_psn: psn(self),
            timeout: 8,
            retry_cnt,
            rnr_retry,
            max_rd_atomic: 4,
            ..QpAttr::default()
        };
        let mut mask = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
        if self.qp.qp_type() == QpType::Rc {
            mask |= QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_CNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::MAX_QP_RD_ATOMIC;
        }
        self.qp.modify(&attr, mask).unwrap();
    }

    fn recv(&self, wr_id: u64, offset: usize, len: usize) {
        let sges = [self.mr.sge(offset, len)];
        self.qp.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    }

    fn send(&self, wr_id: u64, data: &[u8]) {
        let wr = SendWr::new(wr_id, SendOp::Send, SendData::Inline(data));
        self.qp.post_send(&wr).unwrap();
    }

    fn octets(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.mr.copy_out(offset, &mut out).unwrap();
        out
    }

    fn async_event(&self) -> AsyncEventKind {
        let event = self.context.get_async_event(Some(PATIENCE)).unwrap();
        let event = event.expect("an event in time");
        assert_eq!(event.element(), AsyncElement::Qp(self.qp.qp_num()));
        event.kind()
    }
}

/// Some number of 24 bits that differs.
fn psn(hand: &Hand) -> u32 {
    0xff_fff0 ^ hand.qp.qp_num().get() & 0xff
}

fn connected(qp_type: QpType) -> (Hand, Hand) {
    let (one, other) = (hand(qp_type), hand(qp_type));
    one.to_rtr(&other, 12);
    other.to_rtr(&one, 12);
    one.to_rts(7, 7);
    other.to_rts(7, 7);
    (one, other)
}

#[test]
fn connected_services() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (one, other) = connected(qp_type);
        for round in 0..40_u8 {
            other.recv(round.into(), 0, 64);
            one.send(1, &[round; 33]);
            assert!(poll(&one.cq, 1)[0].is_success());
            let got = poll(&other.cq, 1)[0];
            assert!(got.is_success(), "{got:?}");
            assert_eq!((got.wr_id, got.byte_len), (round.into(), 33));
            assert_eq!(other.octets(0, 33), [round; 33]);
        }
        let attr = one.qp.query();
        assert_eq!((attr.qp_state, attr.path_mtu), (QpState::Rts, 3));
        assert_eq!(attr.dest_qp_num, other.qp.qp_num());
        assert_eq!(attr.ah_attr, other.address());
    }
}

#[test]
fn communication_established_is_told_once() {
    let (one, other) = (hand(QpType::Rc), hand(QpType::Rc));
    one.to_rtr(&other, 12);
    other.to_rtr(&one, 12);
    one.to_rts(7, 7);
    // The other one is in RTR: its first packet tells that the peer is there.
    other.recv(1, 0, 64);
    other.recv(2, 64, 64);
    one.send(1, b"first");
    one.send(2, b"second");
    assert_eq!(poll(&other.cq, 2).len(), 2);
    assert_eq!(other.async_event(), AsyncEventKind::CommEst);
    // A request in RTR waits for RTS.
    other.send(3, b"answer");
    one.recv(4, 0, 64);
    other.to_rts(7, 7);
    let mut done = poll(&one.cq, 3);
    done.retain(|wc| wc.opcode == WcOpcode::Recv);
    assert_eq!(done[0].byte_len, 6);
    let none = other
        .context
        .get_async_event(Some(Duration::from_millis(50)));
    assert!(none.unwrap().is_none());
}

#[test]
fn no_receive_in_time() {
    let (one, other) = (hand(QpType::Rc), hand(QpType::Rc));
    one.to_rtr(&other, 12);
    other.to_rtr(&one, 12);
    one.to_rts(7, 1);
    one.send(1, b"nobody takes it");
    one.send(2, b"nor this");
    let done = poll(&one.cq, 2);
    assert_eq!(done[0].status, WcStatus::RnrRetryExcErr);
    assert_eq!(done[1].status, WcStatus::WrFlushErr);
    assert_eq!(one.qp.state(), QpState::Err);
}

#[test]
fn a_receive_that_comes_late_is_found() {
    let (one, other) = connected(QpType::Rc);
    one.send(1, b"patience");
    std::thread::sleep(Duration::from_millis(5));
    other.recv(2, 0, 64);
    assert!(poll(&one.cq, 1)[0].is_success());
    assert_eq!(poll(&other.cq, 1)[0].byte_len, 8);
}

#[test]
fn a_peer_that_has_gone() {
    let (one, other) = connected(QpType::Rc);
    drop(other);
    one.send(1, b"is there anybody");
    let done = poll(&one.cq, 1);
    assert_eq!(done[0].status, WcStatus::RetryExcErr);
    assert_eq!(one.qp.state(), QpState::Err);
}

#[test]
fn reset_and_again() {
    let (one, other) = connected(QpType::Rc);
    one.recv(9, 0, 64);
    for hand in [&one, &other] {
        let attr = QpAttr::default();
        hand.qp.modify(&attr, QpAttrMask::STATE).unwrap();
        assert_eq!(hand.qp.state(), QpState::Reset);
        let init = QpAttr {
            qp_state: QpState::Init,
            ..attr
        };
        let mask = QpAttrMask::STATE
            | QpAttrMask::PKEY_INDEX
            | QpAttrMask::PORT
            | QpAttrMask::ACCESS_FLAGS;
        hand.qp.modify(&init, mask).unwrap();
    }
    one.to_rtr(&other, 12);
    other.to_rtr(&one, 12);
    one.to_rts(7, 7);
    other.to_rts(7, 7);
    other.recv(1, 0, 64);
    one.send(2, b"again");
    let done = poll(&one.cq, 1);
    assert!(
        done[0].is_success() && done[0].wr_id == 2,
        "what was posted before is forgotten: {done:?}"
    );
    assert!(poll(&other.cq, 1)[0].is_success());
}

#[test]
fn transitions_and_attributes_are_checked() {
    let one = hand(QpType::Rc);
    let try_to = |attr: QpAttr, mask| one.qp.modify(&attr, mask).unwrap_err().errno();
    let rtr = QpAttr {
        qp_state: QpState::Rtr,
        path_mtu: 3,
        ah_attr: one.address(),
        ..QpAttr::default()
    };
    let all = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    assert_eq!(try_to(rtr, QpAttrMask::STATE), 22, "attributes missing");
    assert_eq!(try_to(rtr, all | QpAttrMask::QKEY), 22, "one too many");
    assert_eq!(try_to(QpAttr { path_mtu: 6, ..rtr }, all), 22);
    let ah_attr = AhAttr {
        is_global: false,
        ..one.address()
    };
    assert_eq!(try_to(QpAttr { ah_attr, ..rtr }, all), 22);
    let rts = QpAttr {
        qp_state: QpState::Rts,
        ..rtr
    };
    assert_eq!(try_to(rts, all), 22, "no such transition");
    one.qp.modify(&rtr, all).unwrap();
}

#[test]
fn datagrams() {
    let (one, other) = (hand(QpType::Ud), hand(QpType::Ud));
    for hand in [&one, &other] {
        let rtr = QpAttr {
            qp_state: QpState::Rtr,
            ..QpAttr::default()
        };
        hand.qp.modify(&rtr, QpAttrMask::STATE).unwrap();
        hand.to_rts(0, 0);
    }
    let ah = one.pd.create_ah(&other.address()).unwrap();
    let to = UdAddress {
        ah: &ah,
        remote_qpn: other.qp.qp_num(),
        remote_qkey: QKEY,
    };
    let message = |wr_id, op, to: UdAddress<'_>| {
        let wr = SendWr::new(wr_id, op, SendData::Inline(b"datagram")).to(to);
        one.qp.post_send(&wr).unwrap();
        assert!(poll(&one.cq, 1)[0].is_success());
    };
    other.recv(1, 0, 100);
    other.recv(2, 100, 100);
    message(1, SendOp::Send, to);
    let got = poll(&other.cq, 1)[0];
    assert!(got.is_success() && got.grh, "{got:?}");
    assert_eq!((got.src_qp, got.sl), (Some(one.qp.qp_num()), 2));
    assert_eq!(got.byte_len, 48, "the network header counts");
    assert_eq!(other.octets(40, 8), b"datagram");
    // Its last octets are the addresses (IPv4).
    assert_eq!(other.octets(32, 8), [127, 0, 0, 1, 127, 0, 0, 1]);
    // The answer finds its way by what came.
    let area: [u8; 40] = other.octets(0, 40).try_into().unwrap();
    let back = other.context.init_ah_from_wc(&got, &area).unwrap();
    assert_eq!(back, one.address());
    let ah_back = other.pd.create_ah_from_wc(&got, &area).unwrap();
    let answer = UdAddress {
        ah: &ah_back,
        remote_qpn: got.src_qp.unwrap(),
        remote_qkey: QKEY,
    };
    one.recv(9, 0, 100);
    let wr = SendWr::new(9, SendOp::Send, SendData::Inline(b"answer")).to(answer);
    other.qp.post_send(&wr).unwrap();
    assert!(poll(&other.cq, 1)[0].is_success());
    let answered = poll(&one.cq, 1)[0];
    assert_eq!((answered.wr_id, answered.byte_len), (9, 46));
    let without = softverbs::Wc { grh: false, ..got };
    assert!(other.context.init_ah_from_wc(&without, &area).is_err());
    // A wrong key gets nothing in.
    let wrong = UdAddress {
        remote_qkey: 5,
        ..to
    };
    message(2, SendOp::Send, wrong);
    message(3, SendOp::SendWithImm(77), to);
    let got = poll(&other.cq, 1)[0];
    assert_eq!((got.wr_id, got.imm), (2, Some(77)));
    // Without a destination, or with an operation that datagrams do not have.
    let lost = SendWr::new(1, SendOp::Send, SendData::Inline(b""));
    assert_eq!(one.qp.post_send(&lost).unwrap_err().errno(), 22);
    let (remote_addr, rkey) = (other.mr.addr(), other.mr.rkey());
    let write = SendOp::Write { remote_addr, rkey };
    let write = SendWr::new(1, write, SendData::Inline(b"")).to(to);
    assert_eq!(one.qp.post_send(&write).unwrap_err().errno(), 95);
}
