//! Extended reliable connections, as `ibv_xsrq_pingpong` uses them.

mod common;

use std::fs::File;
use std::os::fd::AsFd;

use common::{ALL, Setup, expect, listener, poll, resolved};
use softverbs::cm::{ConnParam, EventKind};
use softverbs::{
    AhAttr, Context, Cq, Device, Mr, Pd, Qp, QpAttr, QpAttrMask, QpInitAttr, QpState, QpType,
    RecvWr, SendData, SendOp, SendWr, Srq, SrqInitAttr, Transport, Wc, WcStatus, Xrcd,
};

/// One process: a domain, two shared receive queues in protection domains of their own, and both
/// ends of connections.
struct Side {
    context: Context,
    xrcd: Xrcd,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    srqs: Vec<Shared>,
    send: Qp,
    recv: Qp,
}

struct Shared {
    pd: Pd,
    cq: Cq,
    srq: Srq,
    mr: Mr,
}

fn context() -> Context {
    let device = Device::for_address("127.0.0.1".parse().unwrap(), None).unwrap();
    device.with_transport(Transport::Roce).open().unwrap()
}

fn side() -> Side {
    let context = context();
    let xrcd = context.open_xrcd(None, true, false).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None, 0).unwrap();
    let srqs = (0..2)
        .map(|_| {
            let pd = context.alloc_pd().unwrap();
            let cq = context.create_cq(64, None, 0).unwrap();
            let attr = SrqInitAttr::default();
            let srq = pd.create_xrc_srq(&attr, &xrcd, &cq).unwrap();
            let mr = pd.alloc_mr(1 << 16, ALL).unwrap();
            Shared { pd, cq, srq, mr }
        })
        .collect();
    let attr = QpInitAttr {
        qp_type: QpType::XrcSend,
        ..QpInitAttr::rc(&cq, &cq)
    };
    let side = Side {
        send: pd.create_qp(&attr).unwrap(),
        recv: xrcd.create_qp(7).unwrap(),
        mr: pd.alloc_mr(1 << 16, ALL).unwrap(),
        context,
        xrcd,
        pd,
        cq,
        srqs,
    };
    let init = QpAttr {
        qp_state: QpState::Init,
        qp_access_flags: ALL,
        ..QpAttr::default()
    };
    let mask =
        QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    side.send.modify(&init, mask).unwrap();
    side.recv.modify(&init, mask).unwrap();
    side
}

/// Moves both ends of one direction to RTS.
fn join(from: &Side, to: &Side) {
    let address = AhAttr::new(from.context.query_gid(1, 0).unwrap(), 0);
    let base = QpAttr {
        qp_state: QpState::Rtr,
        path_mtu: 3,
        ah_attr: address,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        rq_psn: 100,
        ..QpAttr::default()
    };
    let rtr = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN;
    let of = |peer: &Qp| QpAttr {
        dest_qp_num: peer.qp_num(),
        ..base
    };
    from.send.modify(&of(&to.recv), rtr).unwrap();
    let more = rtr | QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
    to.recv.modify(&of(&from.send), more).unwrap();
    let rts = QpAttr {
        qp_state: QpState::Rts,
        sq_psn: 100,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 4,
        ..base
    };
    let of_send = QpAttrMask::STATE
        | QpAttrMask::SQ_PSN
        | QpAttrMask::TIMEOUT
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::RNR_RETRY
        | QpAttrMask::MAX_QP_RD_ATOMIC;
    from.send.modify(&rts, of_send).unwrap();
    let of_recv = QpAttrMask::STATE | QpAttrMask::SQ_PSN | QpAttrMask::TIMEOUT;
    to.recv.modify(&rts, of_recv).unwrap();
}

fn connected() -> (Side, Side) {
    let (one, other) = (side(), side());
    join(&one, &other);
    join(&other, &one);
    (one, other)
}

impl Side {
    fn post(&self, wr_id: u64, op: SendOp, len: usize, to: &Srq) -> Wc {
        let sges = [self.mr.sge(0, len)];
        let wr = SendWr::new(wr_id, op, SendData::Sges(&sges)).for_srq(to.srq_num().unwrap());
        self.send.post_send(&wr).unwrap();
        poll(&self.cq, 1)[0]
    }
}

impl Shared {
    fn recv(&self, wr_id: u64, len: usize) {
        let sges = [self.mr.sge(0, len)];
        self.srq.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    }

    fn octets(&self, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.mr.copy_out(0, &mut out).unwrap();
        out
    }
}

#[test]
fn each_message_finds_its_queue() {
    let (one, other) = connected();
    for round in 0..20_u8 {
        for (nth, shared) in (0_u8..).zip(&other.srqs) {
            // Of one packet, and of several.
            let len = if round % 2 == 0 { 100 } else { 5000 };
            let data = vec![round ^ nth << 7; len];
            one.mr.copy_in(0, &data).unwrap();
            shared.recv(u64::from(round), 8192);
            let done = one.post(1, SendOp::SendWithImm(nth.into()), len, &shared.srq);
            assert!(done.is_success(), "{done:?}");
            let got = poll(&shared.cq, 1)[0];
            assert!(got.is_success(), "{got:?}");
            assert_eq!((got.wr_id, got.byte_len as usize), (round.into(), len));
            assert_eq!(got.imm, Some(nth.into()));
            assert_eq!(got.qp_num, other.recv.qp_num());
            assert_eq!(shared.octets(len), data);
        }
    }
    // And back.
    one.srqs[1].recv(5, 64);
    other.mr.copy_in(0, b"pong").unwrap();
    assert!(
        other
            .post(1, SendOp::Send, 4, &one.srqs[1].srq)
            .is_success()
    );
    assert_eq!(poll(&one.srqs[1].cq, 1)[0].byte_len, 4);
    assert_eq!(one.srqs[1].octets(4), b"pong");
}

#[test]
fn memory_is_that_of_the_queues_domain() {
    let (one, other) = connected();
    let target = &other.srqs[0];
    let (remote_addr, rkey) = (target.mr.addr(), target.mr.rkey());
    let write = SendOp::Write { remote_addr, rkey };
    one.mr.copy_in(0, &common::pattern(9000, 4)).unwrap();
    assert!(one.post(1, write, 9000, &target.srq).is_success());
    let read = SendOp::Read { remote_addr, rkey };
    one.mr.copy_in(0, &[0; 9000]).unwrap();
    assert!(one.post(2, read, 9000, &target.srq).is_success());
    let mut back = vec![0; 9000];
    one.mr.copy_out(0, &mut back).unwrap();
    assert_eq!(back, common::pattern(9000, 4));
    target.mr.copy_in(0, &41_u64.to_ne_bytes()).unwrap();
    let add = SendOp::FetchAdd {
        remote_addr,
        rkey,
        add: 1,
    };
    assert!(one.post(3, add, 8, &target.srq).is_success());
    assert_eq!(target.octets(8), 42_u64.to_ne_bytes());
    // The other queue's domain does not have it.
    let done = one.post(4, write, 8, &other.srqs[1].srq);
    assert_eq!(done.status, WcStatus::RemAccessErr);
    assert_eq!(one.send.state(), QpState::Err);
}

#[test]
fn a_queue_that_is_not_there() {
    let (one, other) = connected();
    // One of another domain.
    let done = one.post(1, SendOp::Send, 4, &one.srqs[0].srq);
    assert_eq!(done.status, WcStatus::RemInvReqErr);
    assert_eq!(one.send.state(), QpState::Err);
    drop(other);

    let (one, mut other) = connected();
    let gone = other.srqs.remove(0);
    let number = gone.srq.srq_num().unwrap();
    drop(gone);
    let wr = SendWr::new(1, SendOp::Send, SendData::Inline(b"too late")).for_srq(number);
    one.send.post_send(&wr).unwrap();
    assert_eq!(poll(&one.cq, 1)[0].status, WcStatus::RemInvReqErr);
}

#[test]
fn waits_for_a_receive() {
    let (one, other) = connected();
    let shared = &other.srqs[0];
    let number = shared.srq.srq_num().unwrap();
    let wr = SendWr::new(1, SendOp::Send, SendData::Inline(b"patience")).for_srq(number);
    one.send.post_send(&wr).unwrap();
    common::nothing(&one.cq, std::time::Duration::from_millis(20));
    shared.recv(9, 64);
    assert!(poll(&one.cq, 1)[0].is_success());
    assert_eq!(poll(&shared.cq, 1)[0].wr_id, 9);
}

#[test]
fn ends_are_used_as_they_are_meant() {
    let (one, other) = connected();
    let errno = |result: softverbs::Result<()>| result.unwrap_err().errno();
    let wr = SendWr::new(1, SendOp::Send, SendData::Inline(b""));
    assert_eq!(errno(one.send.post_send(&wr)), 22, "for which queue?");
    assert_eq!(errno(other.recv.post_send(&wr)), 22, "sends nothing");
    let recv = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    assert_eq!(errno(one.send.post_recv(&recv)), 22);
    assert_eq!(errno(other.recv.post_recv(&recv)), 22);
    let init = |qp_type| QpInitAttr {
        qp_type,
        srq: Some(&one.srqs[0].srq),
        ..QpInitAttr::rc(&one.cq, &one.cq)
    };
    // A queue of XRC belongs to no queue pair, and a receiving end to no protection domain.
    for qp_type in [QpType::Rc, QpType::XrcSend, QpType::XrcRecv] {
        let made = one.srqs[0].pd.create_qp(&init(qp_type));
        assert_eq!(made.unwrap_err().errno(), 22);
    }
    assert!(one.srqs[0].srq.xrcd().unwrap().same_as(&one.xrcd));
    assert!(one.srqs[0].srq.cq().unwrap().same_as(&one.srqs[0].cq));
    let plain = one.pd.create_srq(&SrqInitAttr::default()).unwrap();
    assert!(plain.srq_num().is_none() && plain.xrcd().is_none() && plain.cq().is_none());
}

#[test]
fn a_receiving_end_has_several_handles() {
    let (one, other) = connected();
    let number = other.recv.qp_num();
    assert_eq!(one.xrcd.open_qp(number).unwrap_err().errno(), 2);
    let again = other.xrcd.open_qp(number).unwrap();
    assert!(again.same_as(&other.recv));
    let Side {
        recv, srqs, xrcd, ..
    } = other;
    drop(recv);
    srqs[0].recv(1, 64);
    one.mr.copy_in(0, b"still there").unwrap();
    assert!(one.post(1, SendOp::Send, 11, &srqs[0].srq).is_success());
    assert_eq!(poll(&srqs[0].cq, 1)[0].byte_len, 11);
    drop(again);
    assert_eq!(xrcd.open_qp(number).unwrap_err().errno(), 2);
}

/// As `rdma_xclient` and `rdma_xserver`: the server's private data tell the queue's number.
#[test]
fn the_connection_manager_connects_a_sending_end_to_a_receiving_end() {
    let setup = Setup::over(Transport::Roce);
    let (channel, _listening, address) = listener(&setup);
    let (client_channel, client) = resolved(&setup, address);
    let pd = client.verbs().unwrap().alloc_pd().unwrap();
    let cq = pd.context().create_cq(64, None, 0).unwrap();
    let attr = QpInitAttr {
        qp_type: QpType::XrcSend,
        ..QpInitAttr::rc(&cq, &cq)
    };
    let send = client.create_qp(&pd, &attr).unwrap();
    client.connect(&ConnParam::default()).unwrap();
    let request = expect(&channel, EventKind::ConnectRequest);
    let server = request.id().clone();
    assert_eq!(request.param().qp_num, send.qp_num());
    drop(request);
    let context = server.verbs().unwrap();
    let xrcd = context.open_xrcd(None, true, false).unwrap();
    let server_pd = context.alloc_pd().unwrap();
    let server_cq = context.create_cq(64, None, 0).unwrap();
    let srq = server_pd
        .create_xrc_srq(&SrqInitAttr::default(), &xrcd, &server_cq)
        .unwrap();
    let mr = server_pd.alloc_mr(4096, ALL).unwrap();
    let sges = [mr.sge(0, 64)];
    srq.post_recv(&RecvWr {
        wr_id: 3,
        sges: &sges,
    })
    .unwrap();
    let recv = server.create_xrc_qp(&xrcd, 0).unwrap();
    assert!(server.create_xrc_qp(&xrcd, 0).is_err(), "has one");
    let number = srq.srq_num().unwrap().get().to_be_bytes();
    server
        .accept(&ConnParam::with_private_data(number))
        .unwrap();
    let established = expect(&client_channel, EventKind::Established);
    assert_eq!(established.param().qp_num, recv.qp_num());
    let told = established.private_data()[..4].try_into().unwrap();
    let number = softverbs::Qpn::new(u32::from_be_bytes(told));
    drop(established);
    drop(expect(&channel, EventKind::Established));
    let wr = SendWr::new(1, SendOp::Send, SendData::Inline(b"over there")).for_srq(number);
    send.post_send(&wr).unwrap();
    assert!(poll(&cq, 1)[0].is_success());
    let got = poll(&server_cq, 1)[0];
    assert_eq!((got.wr_id, got.byte_len), (3, 10));
    // What peers may read is what was agreed on.
    let (remote_addr, rkey) = (mr.addr(), mr.rkey());
    let sink = pd.alloc_mr(64, ALL).unwrap();
    let sges = [sink.sge(0, 10)];
    let read = SendOp::Read { remote_addr, rkey };
    let wr = SendWr::new(2, read, SendData::Sges(&sges)).for_srq(number);
    send.post_send(&wr).unwrap();
    assert!(poll(&cq, 1)[0].is_success());
    client.disconnect().unwrap();
    drop(expect(&client_channel, EventKind::Disconnected));
    drop(expect(&channel, EventKind::Disconnected));
}

#[test]
fn domains_are_shared_by_a_file() {
    let context = context();
    let path = std::env::temp_dir().join(format!("softverbs-xrcd-{}", std::process::id()));
    let file = File::create(&path).unwrap();
    let same = File::open(&path).unwrap();
    let open =
        |file: &File, create, exclusive| context.open_xrcd(Some(file.as_fd()), create, exclusive);
    assert_eq!(open(&file, false, false).unwrap_err().errno(), 2);
    let first = open(&file, true, true).unwrap();
    let second = open(&same, false, false).unwrap();
    assert!(first.same_as(&second));
    assert_eq!(open(&same, true, true).unwrap_err().errno(), 17);
    let qp = first.create_qp(0).unwrap();
    assert!(second.open_qp(qp.qp_num()).unwrap().same_as(&qp));
    drop((first, second, qp));
    assert_eq!(open(&same, false, false).unwrap_err().errno(), 2);
    assert_eq!(
        context.open_xrcd(None, false, false).unwrap_err().errno(),
        22
    );
    std::fs::remove_file(&path).unwrap();
    let iwarp = Device::for_address("127.0.0.1".parse().unwrap(), None)
        .unwrap()
        .with_transport(Transport::Iwarp)
        .open()
        .unwrap();
    assert_eq!(iwarp.open_xrcd(None, true, false).unwrap_err().errno(), 95);
}
