//! What objects are changed to while they are in use: sizes, regions, states of queue pairs.

#![allow(unsafe_code, reason = "regions get other memory")]

mod common;

use std::time::Duration;

use common::{ALL, End, PATIENCE, Setup, equip, expect, listener, pair, poll, resolved};
use softverbs::cm::{ConnParam, EventChannel, EventKind};
use softverbs::{
    Access, AsyncEventKind, QpAttr, QpAttrMask, QpInitAttr, QpState, RecvWr, Rereg, SendData,
    SendFlags, SendOp, SendWr, SrqInitAttr, Transport, WcStatus,
};

common::over_both! {
    a_completion_queue_gets_another_size,
    a_shared_receive_queue_gets_another_size,
    a_queue_pair_says_what_it_was_created_with,
    a_region_gets_other_memory_domain_and_rights,
    a_region_counts_from_where_it_is_told,
    a_queue_pair_is_used_again_after_reset,
}

const EINVAL: i32 = 22;

fn a_completion_queue_gets_another_size(transport: Transport) {
    let setup = Setup::over(transport);
    let (client, server) = pair(&setup);
    assert_eq!(client.cq.resize(0).unwrap_err().errno(), EINVAL);
    assert_eq!(client.cq.resize(u32::MAX).unwrap_err().errno(), EINVAL);
    client.cq.resize(4).unwrap();
    assert_eq!(client.cq.cqe(), 4);
    for n in 0..4 {
        server.recv(n, 0, 64);
        client.send_inline(n, b"one of four", SendFlags::SIGNALED);
    }
    assert_eq!(server.completions(4).len(), 4);
    // Driven by the server's polls, and by the engine: four completions wait.
    let end = std::time::Instant::now() + PATIENCE;
    while client.cq.resize(3).is_ok() {
        client.cq.resize(4).unwrap();
        assert!(std::time::Instant::now() < end, "no completions");
        std::thread::sleep(Duration::from_millis(1));
    }
    client.cq.resize(8).unwrap();
    for n in 4..8 {
        server.recv(n, 0, 64);
        client.send_inline(n, b"four more", SendFlags::SIGNALED);
    }
    assert_eq!(server.completions(4).len(), 4);
    let done = client.completions(8);
    assert!(done.iter().map(|wc| wc.wr_id).eq(0..8));
    assert!(done.iter().all(softverbs::Wc::is_success));
}

fn a_shared_receive_queue_gets_another_size(transport: Transport) {
    let setup = Setup::over(transport);
    let (channel, _listening, address) = listener(&setup);
    let (client_channel, id) = resolved(&setup, address);
    let client = equip(&setup, client_channel, id);
    client.id.connect(&setup.param).unwrap();
    let request = expect(&channel, EventKind::ConnectRequest);
    let id = request.id().clone();
    drop(request);
    let pd = id.verbs().unwrap().alloc_pd().unwrap();
    let cq = pd.context().create_cq(64, None, 0).unwrap();
    let srq = pd
        .create_srq(&SrqInitAttr {
            max_wr: 2,
            ..SrqInitAttr::default()
        })
        .unwrap();
    let attr = QpInitAttr {
        srq: Some(&srq),
        ..QpInitAttr::rc(&cq, &cq)
    };
    let qp = id.create_qp(&pd, &attr).unwrap();
    assert!(qp.srq().unwrap().same_as(&srq));
    let mr = pd.alloc_mr(4096, ALL).unwrap();
    let sges = [mr.sge(0, 64)];
    let recv = |wr_id| srq.post_recv(&RecvWr { wr_id, sges: &sges });
    recv(1).unwrap();
    recv(2).unwrap();
    assert_eq!(recv(3).unwrap_err().errno(), 12);
    assert_eq!(srq.resize(1).unwrap_err().errno(), EINVAL);
    srq.resize(4).unwrap();
    assert_eq!(srq.query().max_wr, 4);
    recv(3).unwrap();
    recv(4).unwrap();
    srq.modify(3).unwrap();
    srq.resize(4).unwrap();
    id.accept(&setup.param).unwrap();
    drop(expect(&client.channel, EventKind::Established));
    let context = pd.context().clone();
    let next = |kind| {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let event = context.get_async_event(Some(PATIENCE)).unwrap().unwrap();
            if event.kind() == kind {
                return;
            }
            assert!(std::time::Instant::now() < end);
        }
    };
    for n in 0..2 {
        client.send_inline(n, b"x", SendFlags::SIGNALED);
        assert!(poll(&cq, 1)[0].is_success());
    }
    next(AsyncEventKind::SrqLimitReached);
    assert_eq!(srq.query().srq_limit, 0);
    client.id.disconnect().unwrap();
    next(AsyncEventKind::QpLastWqeReached);
}

fn a_queue_pair_says_what_it_was_created_with(transport: Transport) {
    let (client, _server) = pair(&Setup::over(transport));
    assert!(client.qp.pd().same_as(&client.pd));
    assert!(client.qp.send_cq().same_as(&client.cq));
    assert!(client.qp.recv_cq().same_as(&client.cq));
    assert!(client.qp.srq().is_none());
    assert_eq!(client.qp.cap(), Setup::default().cap);
    let attr = client.qp.query();
    assert_eq!(attr.qp_state, QpState::Rts);
    assert_eq!((attr.port_num, attr.pkey_index), (1, 0));
    assert!(attr.max_rd_atomic > 0 && attr.max_dest_rd_atomic > 0);
}

fn read(end: &End, remote_addr: u64, rkey: softverbs::Rkey) -> WcStatus {
    end.post(1, SendOp::Read { remote_addr, rkey }, 0, 8);
    end.completions(1)[0].status
}

fn a_region_gets_other_memory_domain_and_rights(transport: Transport) {
    let (client, server) = pair(&Setup::over(transport));
    let mr = server.pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let (lkey, rkey, first) = (mr.lkey(), mr.rkey(), mr.addr());
    let change = |change: Rereg<'_>| {
        // SAFETY: memory that is handed over is leaked, and nobody has references to it.
        unsafe { mr.rereg(&change) }
    };
    // Rights that contradict each other change nothing.
    let wrong = Rereg {
        access: Some(Access::REMOTE_WRITE),
        ..Rereg::default()
    };
    assert_eq!(change(wrong).unwrap_err().errno(), EINVAL);
    assert_eq!(mr.access(), Access::LOCAL_WRITE);
    let rights = Rereg {
        access: Some(ALL),
        ..Rereg::default()
    };
    change(rights).unwrap();
    assert_eq!((mr.lkey(), mr.rkey(), mr.addr()), (lkey, rkey, first));
    mr.copy_in(0, b"its own!").unwrap();
    assert_eq!(read(&client, first, rkey), WcStatus::Success);
    assert_eq!(client.read(0, 8), b"its own!");
    // Other memory under the same key.
    let memory = Box::leak(vec![7_u8; 4096].into_boxed_slice());
    let translation = Rereg {
        translation: Some((memory.as_mut_ptr(), 4096)),
        ..Rereg::default()
    };
    change(translation).unwrap();
    assert_eq!((mr.len(), mr.rkey()), (4096, rkey));
    let last = mr.addr() + 4088;
    assert_eq!(read(&client, last, rkey), WcStatus::Success);
    assert_eq!(client.read(0, 8), [7; 8]);
    // Another domain and all of it at once.
    let other = server.pd.context().alloc_pd().unwrap();
    let memory = Box::leak(vec![9_u8; 128].into_boxed_slice());
    let all = Rereg {
        translation: Some((memory.as_mut_ptr(), 128)),
        pd: Some(&other),
        access: Some(Access::REMOTE_READ),
    };
    change(all).unwrap();
    assert_eq!(read(&client, mr.addr(), rkey), WcStatus::RemAccessErr);
    let back = Rereg {
        pd: Some(&server.pd),
        ..Rereg::default()
    };
    change(back).unwrap();
    let (client, server) = pair(&Setup::over(transport));
    let foreign = Rereg {
        pd: Some(
            &server
                .pd
                .context()
                .device()
                .open()
                .unwrap()
                .alloc_pd()
                .unwrap(),
        ),
        ..Rereg::default()
    };
    assert_eq!(change(foreign).unwrap_err().errno(), EINVAL);
    mr.dereg().unwrap();
    assert_eq!(change(Rereg::default()).unwrap_err().errno(), EINVAL);
    drop(client);
}

fn a_region_counts_from_where_it_is_told(transport: Transport) {
    let (client, server) = pair(&Setup::over(transport));
    let memory = Box::leak(common::pattern(4096, 5).into_boxed_slice());
    let expected = memory[16..24].to_vec();
    for iova in [0, 0x1000, u64::MAX - 4096] {
        // SAFETY: the memory is leaked, and nobody has references to it.
        let mr = unsafe { server.pd.reg_mr_iova(memory.as_mut_ptr(), 4096, iova, ALL) }.unwrap();
        assert_eq!(mr.addr(), iova);
        assert_eq!(read(&client, iova + 16, mr.rkey()), WcStatus::Success);
        assert_eq!(client.read(0, 8), expected);
    }
    let zero_based = ALL | Access::ZERO_BASED;
    // SAFETY: as above.
    let mr = unsafe { server.pd.reg_mr(memory.as_mut_ptr(), 4096, zero_based) }.unwrap();
    assert_eq!(mr.addr(), 0);
    assert_eq!(read(&client, 16, mr.rkey()), WcStatus::Success);
    assert_eq!(client.read(0, 8), expected);
    assert_eq!(read(&client, 4096, mr.rkey()), WcStatus::RemAccessErr);
}

/// The application's own queue pair: connected, ended in every way, reset, connected again.
fn a_queue_pair_is_used_again_after_reset(transport: Transport) {
    let setup = Setup::over(transport);
    let (channel, _listening, address) = listener(&setup);
    let context = resolved(&setup, address).1.verbs().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(256, None, 0).unwrap();
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    let mr = pd.alloc_mr(4096, ALL).unwrap();
    let naming = ConnParam {
        qp_num: qp.qp_num(),
        ..ConnParam::default()
    };
    for round in 0..3_u64 {
        let (client_channel, id) = resolved(&setup, address);
        let to = |state| {
            let (attr, mask) = id.init_qp_attr(state).unwrap();
            qp.modify(&attr, mask).unwrap();
        };
        to(QpState::Init);
        id.connect(&naming).unwrap();
        let request = expect(&channel, EventKind::ConnectRequest);
        let server = equip(&setup, channel.clone(), request.id().clone());
        drop(request);
        server.recv(1, 0, 64);
        server.id.accept(&setup.param).unwrap();
        if transport == Transport::Roce {
            drop(expect(&client_channel, EventKind::ConnectResponse));
            to(QpState::Rtr);
            to(QpState::Rts);
            id.establish().unwrap();
        } else {
            drop(expect(&client_channel, EventKind::Established));
        }
        let wr = SendWr::new(round, SendOp::Send, SendData::Inline(b"again"));
        qp.post_send(&wr).unwrap();
        assert!(server.success().byte_len == 5);
        let done = poll(&cq, 1)[0];
        assert_eq!((done.wr_id, done.status), (round, WcStatus::Success));
        drop(expect(&server.channel, EventKind::Established));
        let left = [mr.sge(0, 64)];
        qp.post_recv(&RecvWr {
            wr_id: 100,
            sges: &left,
        })
        .unwrap();
        end(&qp, round, transport);
        let reset = QpAttr::default();
        qp.modify(&reset, QpAttrMask::STATE).unwrap();
        assert_eq!(qp.state(), QpState::Reset);
        // What was left is forgotten.
        common::nothing(&cq, Duration::from_millis(20));
        assert_eq!(qp.post_send(&wr).unwrap_err().errno(), EINVAL);
        id.destroy().unwrap();
        drain(&channel);
    }
}

/// Ends the connection of a queue pair by going to another state.
fn end(qp: &softverbs::Qp, round: u64, transport: Transport) {
    let qp_state = match round {
        0 => QpState::Err,
        1 => QpState::Sqd,
        _ => return,
    };
    let attr = QpAttr {
        qp_state,
        ..QpAttr::default()
    };
    qp.modify(&attr, QpAttrMask::STATE).unwrap();
    if transport == Transport::Iwarp {
        // Drained is ended.
        let end = std::time::Instant::now() + PATIENCE;
        while qp.state() != QpState::Err {
            assert!(std::time::Instant::now() < end, "{:?}", qp.state());
            std::thread::sleep(Duration::from_millis(1));
        }
    } else {
        assert_eq!(qp.state(), qp_state);
    }
}

fn drain(channel: &EventChannel) {
    while channel
        .get_event(Some(Duration::from_millis(1)))
        .unwrap()
        .is_some()
    {}
}
