//! What bad requests and bad arguments get: the completion status, the event, the errno, and a
//! text that names the attribute.

mod common;

use common::{ALL, End, Setup, expect, pair};
use softverbs::cm::EventKind;
use softverbs::{
    Access, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, RecvWr, Rkey, SendData, SendFlags,
    SendOp, SendWr, Sge, SrqInitAttr, Transport, WcStatus,
};

common::over_both! {
    reads_of_what_may_not_be_read,
    writes_to_where_nothing_may_be_written,
    local_keys_are_checked_too,
    a_read_needs_a_sink_that_may_be_written,
    a_message_longer_than_its_receive,
    queues_that_are_full_say_so_and_keep_what_they_have,
    invalidated_keys_are_invalid,
    zero_length_operations_need_no_key,
    a_fenced_request_waits_for_the_reads_before_it,
}

fn both_disconnect(ends: [&End; 2]) {
    for end in ends {
        expect(&end.channel, EventKind::Disconnected);
        assert_eq!(end.qp.state(), QpState::Err);
    }
}

/// The requester reads with what `forge` makes of the right address and key.
fn read_with(transport: Transport, forge: impl Fn(&End, u64, Rkey) -> (u64, Rkey)) -> WcStatus {
    let (client, server) = pair(&Setup {
        len: 8192,
        ..Setup::over(transport)
    });
    server.fill(0, 8192, 1);
    let before = client.read(0, 8192);
    let (remote_addr, rkey) = forge(&server, server.mr.addr(), server.mr.rkey());
    client.post(1, SendOp::Read { remote_addr, rkey }, 0, 4096);
    client.post(2, SendOp::Read { remote_addr, rkey }, 0, 4096);
    let done = client.completions(2);
    assert_eq!((done[0].wr_id, done[1].wr_id), (1, 2));
    // field B39: the second one is flushed.
    assert_eq!(done[1].status, WcStatus::WrFlushErr);
    both_disconnect([&client, &server]);
    assert_eq!(client.read(0, 8192), before, "nothing may have been placed");
    done[0].status
}

fn reads_of_what_may_not_be_read(transport: Transport) {
    type Way = fn(&End, u64, Rkey) -> (u64, Rkey);
    let ways: [Way; 6] = [
        |_, addr, rkey| (addr, Rkey::new(rkey.get() ^ 1)),
        |_, addr, rkey| (addr + 4097, rkey),
        |_, addr, rkey| (addr - 1, rkey),
        |_, _, rkey| (u64::MAX - 10, rkey),
        |server, _, _| {
            let other = server.pd.alloc_mr(8192, Access::LOCAL_WRITE).unwrap();
            let target = (other.addr(), other.rkey());
            std::mem::forget(other);
            target
        },
        |server, _, _| {
            let pd = server.id.verbs().unwrap().alloc_pd().unwrap();
            let other = pd.alloc_mr(8192, ALL).unwrap();
            let target = (other.addr(), other.rkey());
            std::mem::forget(other);
            target
        },
    ];
    for (n, way) in ways.into_iter().enumerate() {
        assert_eq!(read_with(transport, way), WcStatus::RemAccessErr, "way {n}");
    }
}

fn writes_to_where_nothing_may_be_written(transport: Transport) {
    for (n, beyond) in [(0, false), (1, true)] {
        let (client, server) = pair(&Setup {
            len: 8192,
            ..Setup::over(transport)
        });
        let guarded = server
            .pd
            .alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)
            .unwrap();
        let (remote_addr, rkey) = if beyond {
            (server.mr.addr() + 8192 - 4095, server.mr.rkey())
        } else {
            (guarded.addr(), guarded.rkey())
        };
        let before = server.read(0, 8192);
        client.fill(0, 4096, 1);
        client.post(1, SendOp::Write { remote_addr, rkey }, 0, 4096);
        both_disconnect([&client, &server]);
        assert_eq!(
            server.read(0, 8192),
            before,
            "case {n}: the region is as it was"
        );
        let mut out = vec![9; 4096];
        guarded.copy_out(0, &mut out).unwrap();
        assert!(out.iter().all(|octet| *octet == 0), "case {n}");
    }
}

fn local_keys_are_checked_too(transport: Transport) {
    let forge: [fn(&End) -> Sge; 4] = [
        |end| Sge {
            lkey: softverbs::Lkey::new(end.mr.lkey().get() ^ 1),
            ..end.mr.sge(0, 64)
        },
        |end| Sge {
            addr: end.mr.addr() + (1 << 20) - 63,
            ..end.mr.sge(0, 64)
        },
        |end| Sge {
            addr: u64::MAX - 3,
            ..end.mr.sge(0, 64)
        },
        |end| {
            let pd = end.id.verbs().unwrap().alloc_pd().unwrap();
            let other = pd.alloc_mr(64, ALL).unwrap();
            let sge = other.sge(0, 64);
            std::mem::forget(other);
            sge
        },
    ];
    for (n, forge) in forge.into_iter().enumerate() {
        let (client, server) = pair(&Setup::over(transport));
        server.recv(1, 0, 64);
        let sges = [forge(&client)];
        client
            .qp
            .post_send(&SendWr::new(7, SendOp::Send, SendData::Sges(&sges)))
            .unwrap();
        let wc = client.completions(1)[0];
        assert_eq!((wc.wr_id, wc.status), (7, WcStatus::LocProtErr), "case {n}");
        both_disconnect([&client, &server]);
        // The receive: never used.
        assert_eq!(server.completions(1)[0].status, WcStatus::WrFlushErr);
    }
}

fn a_read_needs_a_sink_that_may_be_written(transport: Transport) {
    let (client, server) = pair(&Setup::over(transport));
    let constant = client.pd.alloc_mr(64, Access::empty()).unwrap();
    let read = SendOp::Read {
        remote_addr: server.mr.addr(),
        rkey: server.mr.rkey(),
    };
    let sges = [constant.sge(0, 64)];
    client
        .qp
        .post_send(&SendWr::new(1, read, SendData::Sges(&sges)))
        .unwrap();
    assert_eq!(client.completions(1)[0].status, WcStatus::LocProtErr);
}

fn a_message_longer_than_its_receive(transport: Transport) {
    let (client, server) = pair(&Setup::over(transport));
    server.recv(3, 0, 100);
    server.fill(100, 64, 5);
    let behind = server.read(100, 64);
    client.send(1, 0, 101);
    let wc = server.completions(1)[0];
    assert_eq!((wc.wr_id, wc.status), (3, WcStatus::LocLenErr));
    both_disconnect([&client, &server]);
    assert_eq!(server.read(100, 64), behind, "nothing beyond the receive");
}

fn queues_that_are_full_say_so_and_keep_what_they_have(transport: Transport) {
    // field B23
    let setup = Setup {
        cap: QpCap {
            max_send_wr: 4,
            max_recv_wr: 3,
            max_send_sge: 2,
            ..QpCap::default()
        },
        ..Setup::over(transport)
    };
    let (client, server, _listening) = common::requested(&setup);
    // Not yet accepted, so all of them stay in the queue.
    let sge = [client.mr.sge(0, 8)];
    let three = [client.mr.sge(0, 8); 3];
    let wr = |wr_id| SendWr::new(wr_id, SendOp::Send, SendData::Sges(&sge));
    let too_many = SendWr::new(9, SendOp::Send, SendData::Sges(&three));
    let (index, error) = client
        .qp
        .post_send_list(&[wr(0), wr(1), too_many, wr(2)])
        .unwrap_err();
    assert_eq!((index, error.errno()), (2, 22), "{error}");
    assert!(error.to_string().contains("scatter/gather"), "{error}");
    let list = [wr(2), wr(3), wr(4)];
    let (index, error) = client.qp.post_send_list(&list).unwrap_err();
    assert_eq!((index, error.errno()), (2, 12), "{error}");
    for n in 0..3 {
        server.recv(n, 0, 64);
    }
    let error = server
        .qp
        .post_recv(&RecvWr {
            wr_id: 9,
            sges: &[],
        })
        .unwrap_err();
    assert_eq!(error.errno(), 12);
    server.id.accept(&setup.param).unwrap();
    assert!(server.completions(3).iter().map(|wc| wc.wr_id).eq(0..3));
    if transport == Transport::Roce {
        // There the last one waits for a receive.
        server.recv(3, 0, 64);
    }
    assert!(client.completions(4).iter().map(|wc| wc.wr_id).eq(0..4));
}

#[test]
fn the_state_table_is_enforced() {
    let (client, server) = pair(&Setup::default());
    let context = client.id.verbs().unwrap();
    let qp = client
        .pd
        .create_qp(&QpInitAttr::rc(&client.cq, &client.cq))
        .unwrap();
    assert_eq!(qp.state(), QpState::Reset);
    // field B86: receives from INIT on.
    let recv = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    assert_eq!(qp.post_recv(&recv).unwrap_err().errno(), 22);
    let to = |state| QpAttr {
        qp_state: state,
        ..QpAttr::default()
    };
    let error = qp.modify(&to(QpState::Rts), QpAttrMask::STATE).unwrap_err();
    assert_eq!(error.errno(), 22);
    assert!(
        error.to_string().contains("RESET") && error.to_string().contains("RTS"),
        "{error}"
    );
    qp.modify(&to(QpState::Init), QpAttrMask::STATE).unwrap();
    qp.post_recv(&recv).unwrap();
    let send = SendWr::new(2, SendOp::Send, SendData::Inline(b"x"));
    assert_eq!(qp.post_send(&send).unwrap_err().errno(), 22);
    let bad_port = QpAttr {
        port_num: 2,
        ..QpAttr::default()
    };
    let error = qp.modify(&bad_port, QpAttrMask::PORT).unwrap_err();
    assert!(error.to_string().contains("port_num"), "{error}");
    qp.modify(&to(QpState::Rtr), QpAttrMask::STATE).unwrap();
    qp.post_send(&send).unwrap();
    qp.modify(&to(QpState::Err), QpAttrMask::STATE).unwrap();
    let flushed = client.completions(2);
    assert!(flushed.iter().all(|wc| wc.status == WcStatus::WrFlushErr));
    qp.modify(&to(QpState::Reset), QpAttrMask::STATE).unwrap();
    assert_eq!(qp.state(), QpState::Reset);
    // And for a connected one: everything outstanding is flushed, the peer hears of it.
    for n in 0..5 {
        server.recv(n, 0, 8);
    }
    server
        .qp
        .modify(&to(QpState::Err), QpAttrMask::STATE)
        .unwrap();
    assert_eq!(server.completions(5).len(), 5);
    both_disconnect([&client, &server]);
    drop(context);
}

#[test]
fn arguments_out_of_range_are_named() {
    let (client, _server) = pair(&Setup::default());
    let context = client.id.verbs().unwrap();
    let named = |error: softverbs::Error, name: &str| {
        assert_eq!(error.errno(), 22, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    };
    named(context.create_cq(0, None, 0).unwrap_err(), "cqe");
    named(context.query_port(2).unwrap_err(), "port_num");
    named(context.query_gid(1, 99).unwrap_err(), "index");
    named(context.query_pkey(1, 1).unwrap_err(), "index");
    let cap = QpCap {
        max_inline_data: 1 << 20,
        ..QpCap::default()
    };
    let attr = QpInitAttr {
        cap,
        ..QpInitAttr::rc(&client.cq, &client.cq)
    };
    // field B91
    named(client.pd.create_qp(&attr).unwrap_err(), "max_inline_data");
    let access = Access::REMOTE_WRITE;
    named(client.pd.alloc_mr(64, access).unwrap_err(), "access");
    named(client.id.create_qp(&client.pd, &attr).unwrap_err(), "id");
    let srq = SrqInitAttr {
        max_wr: 0,
        ..SrqInitAttr::default()
    };
    named(client.pd.create_srq(&srq).unwrap_err(), "max_wr");
    // field B90: the sizes of a receive queue that is not used do not count.
    let srq = client.pd.create_srq(&SrqInitAttr::default()).unwrap();
    let cap = QpCap {
        max_recv_wr: u32::MAX,
        ..QpCap::default()
    };
    let attr = QpInitAttr {
        cap,
        srq: Some(&srq),
        ..QpInitAttr::rc(&client.cq, &client.cq)
    };
    let qp = client.pd.create_qp(&attr).unwrap();
    assert_eq!(qp.cap().max_recv_wr, 0);
}

fn invalidated_keys_are_invalid(transport: Transport) {
    let (client, server) = pair(&Setup::over(transport));
    let rkey = server.mr.rkey();
    server.recv(1, 0, 64);
    let op = SendOp::SendWithInvalidate(rkey);
    client
        .qp
        .post_send(&SendWr::new(1, op, SendData::Inline(b"done with it")))
        .unwrap();
    client.success();
    assert_eq!(server.success().invalidated_rkey, Some(rkey));
    let read = SendOp::Read {
        remote_addr: server.mr.addr(),
        rkey,
    };
    client.post(2, read, 0, 8);
    assert_eq!(client.completions(1)[0].status, WcStatus::RemAccessErr);
    both_disconnect([&client, &server]);
}

fn zero_length_operations_need_no_key(transport: Transport) {
    // field B13, B50, B95, B99
    let (client, server) = pair(&Setup::over(transport));
    let rkey = Rkey::new(0);
    client
        .qp
        .post_send(&SendWr::new(
            1,
            SendOp::Write {
                remote_addr: 0,
                rkey,
            },
            SendData::Sges(&[]),
        ))
        .unwrap();
    client
        .qp
        .post_send(&SendWr::new(
            2,
            SendOp::Read {
                remote_addr: 0,
                rkey,
            },
            SendData::Sges(&[]),
        ))
        .unwrap();
    let empty = Sge::default();
    server
        .qp
        .post_recv(&RecvWr {
            wr_id: 5,
            sges: &[empty],
        })
        .unwrap();
    client
        .qp
        .post_send(&SendWr::new(3, SendOp::Send, SendData::Sges(&[empty])))
        .unwrap();
    let done = client.completions(3);
    assert!(
        done.iter().all(|wc| wc.status == WcStatus::Success),
        "{done:?}"
    );
    assert_eq!(server.success().byte_len, 0);
}

fn a_fenced_request_waits_for_the_reads_before_it(transport: Transport) {
    // field B29: the Send carries what the Read brought.
    let (client, server) = pair(&Setup::over(transport));
    let data = server.fill(0, 500_000, 4);
    server.recv(1, 600_000, 400_000);
    let read = SendOp::Read {
        remote_addr: server.mr.addr(),
        rkey: server.mr.rkey(),
    };
    client.post(1, read, 0, 400_000);
    let sges = [client.mr.sge(0, 400_000)];
    let fenced = SendWr::new(2, SendOp::Send, SendData::Sges(&sges))
        .with_flags(SendFlags::FENCE | SendFlags::SIGNALED);
    client.qp.post_send(&fenced).unwrap();
    assert!(client.completions(2).iter().map(|wc| wc.wr_id).eq(1..=2));
    server.success();
    assert_eq!(server.read(600_000, 400_000), data[..400_000]);
}
