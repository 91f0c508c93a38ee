use softverbs_proto::qp_state::QpAttrMask;
use softverbs_proto::wr::{InlineData, Payload, SendFlags, SendOp};

use super::*;
use crate::cq::Cq;
use crate::device::Transport;
use crate::qp::{Qp, QpAttr};
use crate::roce::AhAttr;

/// An unreliable queue pair in RTS that sends to itself.
fn unreliable() -> (Cq, Qp) {
    let device = Device::for_address("127.0.0.1".parse().unwrap(), None)
        .unwrap()
        .with_transport(Transport::Roce);
    let context = device.open().unwrap();
    let cq = context.create_cq(16, None, 0).unwrap();
    let attr = QpInitAttr {
        qp_type: QpType::Uc,
        ..QpInitAttr::rc(&cq, &cq)
    };
    let qp = context.alloc_pd().unwrap().create_qp(&attr).unwrap();
    qp.inner().to_init().unwrap();
    let attr = QpAttr {
        qp_state: QpState::Rtr,
        dest_qp_num: qp.qp_num(),
        ah_attr: AhAttr::new(context.query_gid(1, 0).unwrap(), 0),
        ..QpAttr::default()
    };
    let path = QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
    qp.modify(&attr, QpAttrMask::STATE | path).unwrap();
    let attr = QpAttr {
        qp_state: QpState::Rts,
        ..attr
    };
    let rts = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
    qp.modify(&attr, rts).unwrap();
    (cq, qp)
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
