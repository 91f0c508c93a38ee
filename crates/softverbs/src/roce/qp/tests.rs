use std::sync::mpsc;
use std::time::Duration;

use softverbs_proto::memory::Access;
use softverbs_proto::qp_state::QpAttrMask;
use softverbs_proto::roce::queue_pair::PacketMeta as ProtoMeta;
use softverbs_proto::wr::{InlineData, Payload, SendFlags, SendOp};
use softverbs_wire::ib::{Aeth, Bth, Headers, Opcode, Packet, Syndrome};
use softverbs_wire::num::{Msn24, Psn};

use super::*;
use crate::context::Pd;
use crate::cq::Cq;
use crate::device::Transport;
use crate::qp::{Qp, QpAttr};
use crate::roce::AhAttr;
use crate::wr::SendData;

/// An unreliable queue pair in RTS that sends to itself.
fn unreliable() -> (Cq, Qp) {
    let (cq, pd) = objects();
    let qp = queue_pair(&pd, &cq, QpType::Uc);
    connect(&qp, qp.qp_num());
    (cq, qp)
}

fn objects() -> (Cq, Pd) {
    let device = Device::for_address("127.0.0.1".parse().unwrap(), None)
        .unwrap()
        .with_transport(Transport::Roce);
    let context = device.open().unwrap();
    let cq = context.create_cq(16, None, 0).unwrap();
    (cq, context.alloc_pd().unwrap())
}

fn queue_pair(pd: &Pd, cq: &Cq, qp_type: QpType) -> Qp {
    let attr = QpInitAttr {
        qp_type,
        ..QpInitAttr::rc(cq, cq)
    };
    pd.create_qp(&attr).unwrap()
}

/// To RTS, towards a queue pair of this process.
fn connect(qp: &Qp, dest_qp_num: Qpn) {
    let reliable = qp.qp_type().is_reliable();
    qp.inner().to_init().unwrap();
    let gid = qp.inner().pd.context().query_gid(1, 0).unwrap();
    let attr = QpAttr {
        qp_state: QpState::Rtr,
        dest_qp_num,
        ah_attr: AhAttr::new(gid, 0),
        max_dest_rd_atomic: 1,
        max_rd_atomic: 1,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    let mut rtr = QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
    let mut rts = QpAttrMask::SQ_PSN;
    if reliable {
        rtr |= QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
        rts |= QpAttrMask::TIMEOUT
            | QpAttrMask::RETRY_CNT
            | QpAttrMask::RNR_RETRY
            | QpAttrMask::MAX_QP_RD_ATOMIC;
    }
    qp.modify(&attr, QpAttrMask::STATE | rtr).unwrap();
    let attr = QpAttr {
        qp_state: QpState::Rts,
        ..attr
    };
    qp.modify(&attr, QpAttrMask::STATE | rts).unwrap();
}

/// A request whose packet the kernel had no room for.
fn refused_by_the_kernel(qp: &QpInner, core: &mut Core) {
    let roce = core.roce().unwrap();
    let request = SendRequest {
        wr_id: 7,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        payload: Payload::Inline(InlineData::from_slice(b"wait")),
    };
    roce.queue_pair.post_send(request).unwrap();
    let mut batch = PacketBatch::new();
    let now = qp.engine.now();
    roce.queue_pair
        .poll_transmit(now, &mut QpMemory::new(qp), &mut batch, 1);
    assert_eq!(batch.len(), 1);
    roce.pending = batch;
    roce.pending_from = 0;
}

fn completions(cq: &Cq) -> Vec<(u64, WcStatus)> {
    let mut room = [Wc::default(); 4];
    let found = cq.poll(&mut room).unwrap();
    room[..found]
        .iter()
        .map(|wc| (wc.wr_id, wc.status))
        .collect()
}

#[test]
fn an_unreliable_request_completes_when_its_packets_have_gone() {
    let (cq, qp) = unreliable();
    let mut core = qp.inner().lock();
    refused_by_the_kernel(qp.inner(), &mut core);
    qp.inner().hand_out_packets(&mut core);
    assert_eq!(completions(&cq), [], "its packet is still here");
    // There is room.
    qp.inner().transmit(&mut core);
    assert!(core.roce().unwrap().pending.is_empty());
    drop(core);
    assert_eq!(completions(&cq), [(7, WcStatus::Success)]);
}

#[test]
fn an_unreliable_request_whose_packets_never_go_is_flushed() {
    let (cq, qp) = unreliable();
    let mut core = qp.inner().lock();
    refused_by_the_kernel(qp.inner(), &mut core);
    core.roce().unwrap().abort();
    qp.inner().transmit(&mut core);
    drop(core);
    assert_eq!(completions(&cq), [(7, WcStatus::WrFlushErr)]);
}

/// The end of the queue pair is one more occasion to send them.
#[test]
fn what_the_kernel_had_no_room_for_is_tried_once_more_before_the_end() {
    let (cq, qp) = unreliable();
    let mut core = qp.inner().lock();
    refused_by_the_kernel(qp.inner(), &mut core);
    drop(core);
    let attr = QpAttr {
        qp_state: QpState::Err,
        ..QpAttr::default()
    };
    qp.modify(&attr, QpAttrMask::STATE).unwrap();
    assert_eq!(completions(&cq), [(7, WcStatus::Success)]);
}

/// Whether the timer's work comes to an end while other threads receive at all sockets, and whether it
/// does when they are done.
fn timer_ends(qp: &Qp, now: Time) -> (bool, bool) {
    let (done, is_done) = mpsc::channel();
    let inner = qp.inner().clone();
    let engine = inner.engine;
    let port = inner.lock().roce().unwrap().port();
    let timer = move || {
        inner.timeout(engine, now);
        done.send(()).unwrap();
    };
    let early = port.while_receiving(|| {
        std::thread::spawn(timer);
        let wait = Duration::from_millis(300);
        is_done.recv_timeout(wait).is_ok()
    });
    let late = early || is_done.recv_timeout(Duration::from_secs(20)).is_ok();
    (early, late)
}

#[test]
fn a_timer_that_is_not_due_receives_nothing() {
    let (_cq, qp) = unreliable();
    let now = qp.inner().engine.now();
    assert_eq!(timer_ends(&qp, now), (true, true));
}

/// What another thread has taken from a socket, and not yet given to the queue pair, is an answer too.
#[test]
fn a_due_timer_waits_for_those_who_receive() {
    let (cq, pd) = objects();
    let qp = queue_pair(&pd, &cq, QpType::Rc);
    // Where nobody answers.
    let gone = queue_pair(&pd, &cq, QpType::Rc);
    connect(&qp, gone.qp_num());
    gone.destroy();
    let wr = SendWr::new(1, SendOp::Send, SendData::Inline(b"hello"));
    qp.post_send(&wr).unwrap();
    let later = qp.inner().engine.now() + Duration::from_secs(60);
    assert_eq!(timer_ends(&qp, later), (false, true));
}

/// Writes that this process has placed itself.
fn placed() -> u64 {
    let counters = crate::roce_status().unwrap().counters;
    let mut found = counters.iter();
    found
        .find(|(name, _)| name.starts_with("writes placed"))
        .unwrap()
        .1
}

/// A write that is done at once does not overtake the completion of one whose acknowledge another thread
/// has just received.
#[test]
fn completions_keep_the_order_of_their_requests() {
    let (cq, pd) = objects();
    let (a, b) = (
        queue_pair(&pd, &cq, QpType::Rc),
        queue_pair(&pd, &cq, QpType::Rc),
    );
    connect(&a, b.qp_num());
    connect(&b, a.qp_num());
    let both = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let attr = QpAttr {
        qp_access_flags: both,
        ..QpAttr::default()
    };
    b.modify(&attr, QpAttrMask::ACCESS_FLAGS).unwrap();
    let mr = pd.alloc_mr(64, both).unwrap();
    let op = SendOp::Write {
        remote_addr: mr.addr(),
        rkey: mr.rkey(),
    };
    let write = |id| SendWr::new(id, op, SendData::Inline(b"12345678"));
    let before = placed();
    let begin = std::time::Instant::now();
    while placed() == before {
        assert!(begin.elapsed() < Duration::from_secs(20), "no grant");
        a.post_send(&write(7)).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        completions(&cq);
    }
    std::thread::sleep(Duration::from_millis(20));
    completions(&cq);
    // Between `receive_packets` and `burst_end` of the other thread.
    let inner = a.inner();
    let mut core = inner.lock();
    refused_by_the_kernel(inner, &mut core);
    let roce = core.roce().unwrap();
    let batch = std::mem::take(&mut roce.pending);
    let psn = batch.scratch()[9..12]
        .iter()
        .fold(0, |psn, octet| psn << 8 | u32::from(*octet));
    let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, a.qp_num(), Psn::new(psn));
    let aeth = Aeth::new(Syndrome::ACK, Msn24::default());
    let mut octets = Vec::new();
    Headers::new(bth).with_aeth(aeth).append_to(&mut octets);
    octets.extend([0; 4]);
    let packet = Packet::parse(&octets).unwrap();
    let meta = ProtoMeta {
        packets: 1,
        ecn_ce: false,
        grh: None,
    };
    let mut memory = QpMemory::new(inner);
    roce.queue_pair
        .on_packet(inner.engine.now(), &mut memory, &packet, &meta);
    drop(memory);
    assert_eq!(roce.queue_pair.outstanding(), 0, "acknowledged");
    drop(core);
    a.post_send(&write(8)).unwrap();
    PacketSink::burst_end(&**inner);
    let mut ids = Vec::new();
    let begin = std::time::Instant::now();
    while ids.len() < 2 && begin.elapsed() < Duration::from_secs(20) {
        ids.extend(completions(&cq).into_iter().map(|(id, _)| id));
    }
    assert_eq!(ids, [7, 8]);
}
