//! Memory windows of both types, over both transports.

mod common;

use common::{ALL, End, Setup, equip, expect, listener, pair, requested, resolved};
use softverbs::cm::{ConnParam, EventKind};
use softverbs::{
    Access, Mr, Mw, MwBindInfo, MwType, RecvWr, Rkey, SendData, SendFlags, SendOp, SendWr,
    Transport, WcOpcode, WcStatus, inc_rkey,
};

common::over_both! {
    a_window_shows_its_part_and_no_more,
    windows_grant_no_more_than_they_say,
    an_invalidated_window_is_shut_and_can_be_bound_again,
    the_peer_invalidates_a_window,
    a_window_of_type_2_is_for_its_queue_pair,
    a_window_of_type_1_is_for_all_of_its_domain,
    binds_that_are_not_allowed,
    a_region_with_a_window_cannot_go,
    windows_of_type_2_go_with_their_queue_pair,
    a_window_is_not_for_local_use,
}

const PART: MwPart = MwPart {
    offset: 4096,
    len: 512,
};

#[derive(Clone, Copy)]
struct MwPart {
    offset: usize,
    len: usize,
}

fn region(end: &End) -> Mr {
    let mr = end.pd.alloc_mr(1 << 16, ALL | Access::MW_BIND).unwrap();
    mr.copy_in(0, &common::pattern(1 << 16, 3)).unwrap();
    mr
}

fn info(mr: &Mr, part: MwPart, access: Access) -> MwBindInfo<'_> {
    MwBindInfo {
        mr,
        addr: mr.addr() + part.offset as u64,
        length: part.len as u64,
        access,
    }
}

fn post(end: &End, wr_id: u64, op: SendOp) -> WcStatus {
    end.qp
        .post_send(&SendWr::new(wr_id, op, SendData::Sges(&[])))
        .unwrap();
    let wc = end.completions(1)[0];
    assert_eq!(wc.wr_id, wr_id);
    if wc.is_success() {
        let opcode = match op {
            SendOp::BindMw(_) => WcOpcode::BindMw,
            _ => WcOpcode::LocalInv,
        };
        assert_eq!(wc.opcode, opcode);
    }
    wc.status
}

fn bind(end: &End, mw: &Mw, mr: &Mr, access: Access) -> Rkey {
    let rkey = inc_rkey(mw.rkey());
    let op = mw.bind(rkey, &info(mr, PART, access));
    assert_eq!(post(end, 77, op), WcStatus::Success);
    assert_eq!(mw.rkey(), rkey);
    rkey
}

fn write(end: &End, remote_addr: u64, rkey: Rkey, len: usize) -> WcStatus {
    end.post(5, SendOp::Write { remote_addr, rkey }, 0, len);
    // The answer to a Write over iWARP is none: what comes behind it tells.
    let done = end.completions(1)[0].status;
    if done != WcStatus::Success {
        return done;
    }
    let read = SendOp::Read { remote_addr, rkey };
    end.post(6, read, 0, 0);
    end.completions(1)[0].status
}

fn read(end: &End, remote_addr: u64, rkey: Rkey, len: usize) -> WcStatus {
    end.post(6, SendOp::Read { remote_addr, rkey }, 0, len);
    end.completions(1)[0].status
}

/// A refusal as the requester sees it: over iWARP a Write may have completed before.
fn refused(transport: Transport, status: WcStatus) {
    let wanted = match transport {
        Transport::Roce => &[WcStatus::RemAccessErr][..],
        Transport::Iwarp => &[WcStatus::RemAccessErr, WcStatus::WrFlushErr],
    };
    assert!(wanted.contains(&status), "{status:?}");
}

const RW: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn a_window_shows_its_part_and_no_more(transport: Transport) {
    let (client, server) = pair(&Setup::over(transport));
    let mr = region(&server);
    let mw = server.pd.alloc_mw(MwType::Type2).unwrap();
    let rkey = bind(&server, &mw, &mr, RW);
    let start = mr.addr() + PART.offset as u64;
    let data = client.fill(0, PART.len, 9);
    assert_eq!(write(&client, start, rkey, PART.len), WcStatus::Success);
    let mut there = vec![0; PART.len];
    mr.copy_out(PART.offset, &mut there).unwrap();
    assert_eq!(there, data);
    let last = start + PART.len as u64 - 8;
    assert_eq!(read(&client, last, rkey, 8), WcStatus::Success);
    // One octet too far; the region would have it.
    assert_eq!(read(&client, last, rkey, 9), WcStatus::RemAccessErr);

    // Counted from zero.
    let (client, server) = pair(&Setup::over(transport));
    let mr = region(&server);
    let mw = server.pd.alloc_mw(MwType::Type2).unwrap();
    let rkey = bind(&server, &mw, &mr, RW | Access::ZERO_BASED);
    assert_eq!(read(&client, 1, rkey, 8), WcStatus::Success);
    assert_eq!(
        client.read(0, 8),
        common::pattern(1 << 16, 3)[PART.offset + 1..PART.offset + 9]
    );
    let before = mr.addr() + PART.offset as u64;
    assert_eq!(read(&client, before, rkey, 8), WcStatus::RemAccessErr);
}

fn windows_grant_no_more_than_they_say(transport: Transport) {
    for (access, write_ok) in [(Access::REMOTE_READ, false), (Access::REMOTE_WRITE, true)] {
        let (client, server) = pair(&Setup::over(transport));
        let mr = region(&server);
        let mw = server.pd.alloc_mw(MwType::Type2).unwrap();
        let rkey = bind(&server, &mw, &mr, access);
        let start = mr.addr() + PART.offset as u64;
        if write_ok {
            assert_eq!(write(&client, start, rkey, 64), WcStatus::Success);
            assert_eq!(read(&client, start, rkey, 8), WcStatus::RemAccessErr);
        } else {
            assert_eq!(read(&client, start, rkey, 8), WcStatus::Success);
            refused(transport, write(&client, start, rkey, 64));
            let mut there = vec![0; 64];
            mr.copy_out(PART.offset, &mut there).unwrap();
            let untouched = &common::pattern(1 << 16, 3)[PART.offset..PART.offset + 64];
            assert_eq!(there, untouched);
        }
    }
}

fn an_invalidated_window_is_shut_and_can_be_bound_again(transport: Transport) {
    let (client, server) = pair(&Setup::over(transport));
    let mr = region(&server);
    let mw = server.pd.alloc_mw(MwType::Type2).unwrap();
    let start = mr.addr() + PART.offset as u64;
    let mut keys = Vec::new();
    for _ in 0..300 {
        let rkey = bind(&server, &mw, &mr, RW);
        assert_eq!(read(&client, start, rkey, 8), WcStatus::Success);
        let op = SendOp::LocalInvalidate(rkey);
        assert_eq!(post(&server, 1, op), WcStatus::Success);
        keys.push(rkey);
    }
    assert_eq!(keys[0], keys[256], "only the lowest octet changes");
    let rkey = bind(&server, &mw, &mr, RW);
    assert_eq!(read(&client, start, rkey, 8), WcStatus::Success);
    assert_eq!(
        read(&client, start, *keys.last().unwrap(), 8),
        WcStatus::RemAccessErr,
        "an older key"
    );
}

fn the_peer_invalidates_a_window(transport: Transport) {
    let (client, server) = pair(&Setup::over(transport));
    let mr = region(&server);
    let mw = server.pd.alloc_mw(MwType::Type2).unwrap();
    let rkey = bind(&server, &mw, &mr, RW);
    server
        .qp
        .post_recv(&RecvWr {
            wr_id: 1,
            sges: &[],
        })
        .unwrap();
    let start = mr.addr() + PART.offset as u64;
    // What is written by way of the window comes together with its end, and no other memory is used
    // in between.
    let write = SendOp::Write {
        remote_addr: start,
        rkey,
    };
    let write = SendWr::new(0, write, SendData::Inline(&[7; 64])).with_flags(SendFlags::empty());
    let op = SendOp::SendWithInvalidate(rkey);
    let send = SendWr::new(1, op, SendData::Inline(b""));
    client.qp.post_send_list(&[write, send]).unwrap();
    client.success();
    assert_eq!(server.success().invalidated_rkey, Some(rkey));
    // Nothing is bound any more, so the region may go.
    mr.dereg().unwrap();
    assert_eq!(read(&client, start, rkey, 8), WcStatus::RemAccessErr);

    // One of type 1 is not the peer's to invalidate.
    let (client, server) = pair(&Setup::over(transport));
    let mr = region(&server);
    let mw = server.pd.alloc_mw(MwType::Type1).unwrap();
    let rkey = server
        .qp
        .bind_mw(&mw, 1, SendFlags::SIGNALED, Some(&info(&mr, PART, RW)))
        .unwrap();
    server.success();
    server.recv(2, 0, 64);
    let op = SendOp::SendWithInvalidate(rkey);
    client
        .qp
        .post_send(&SendWr::new(1, op, SendData::Inline(b"done with it")))
        .unwrap();
    assert_eq!(server.completions(1)[0].status, WcStatus::RemInvReqErr);
}

/// Two connections whose servers share a protection domain: the second server's is the first's.
fn two_servers(transport: Transport) -> (End, End, End, End) {
    let setup = Setup::over(transport);
    let (client, server) = pair(&setup);
    let (channel, listening, address) = listener(&setup);
    let (other_channel, id) = resolved(&setup, address);
    let other = equip(&setup, other_channel, id);
    other.id.connect(&ConnParam::default()).unwrap();
    let request = expect(&channel, EventKind::ConnectRequest);
    let id = request.id().clone();
    drop(request);
    let attr = softverbs::QpInitAttr::rc(&server.cq, &server.cq);
    let qp = id.create_qp(&server.pd, &attr).unwrap();
    id.accept(&ConnParam::default()).unwrap();
    drop(expect(&other.channel, EventKind::Established));
    let (pd, cq) = (server.pd.clone(), server.cq.clone());
    let mr = pd.alloc_mr(64, ALL).unwrap();
    let second = End {
        channel,
        id,
        pd,
        cq,
        qp,
        mr,
    };
    drop(listening);
    (client, server, other, second)
}

fn a_window_of_type_2_is_for_its_queue_pair(transport: Transport) {
    let (client, server, other, _second) = two_servers(transport);
    let mr = region(&server);
    let mw = server.pd.alloc_mw(MwType::Type2).unwrap();
    let rkey = bind(&server, &mw, &mr, RW);
    let start = mr.addr() + PART.offset as u64;
    assert_eq!(read(&client, start, rkey, 8), WcStatus::Success);
    assert_eq!(read(&other, start, rkey, 8), WcStatus::RemAccessErr);
}

fn a_window_of_type_1_is_for_all_of_its_domain(transport: Transport) {
    let (client, server, other, _second) = two_servers(transport);
    let mr = region(&server);
    let mw = server.pd.alloc_mw(MwType::Type1).unwrap();
    let start = mr.addr() + PART.offset as u64;
    let bind = |info: Option<&MwBindInfo<'_>>| {
        let rkey = server
            .qp
            .bind_mw(&mw, 3, SendFlags::SIGNALED, info)
            .unwrap();
        assert_eq!(server.success().opcode, WcOpcode::BindMw);
        assert_eq!(mw.rkey(), rkey);
        rkey
    };
    let first = bind(Some(&info(&mr, PART, RW)));
    assert_eq!(read(&client, start, first, 8), WcStatus::Success);
    assert_eq!(read(&other, start, first, 8), WcStatus::Success);
    // Bound again without being invalidated: the key of before is no more.
    let elsewhere = MwPart { offset: 0, len: 64 };
    let second = bind(Some(&info(&mr, elsewhere, RW)));
    assert_eq!(read(&client, mr.addr(), second, 8), WcStatus::Success);
    assert_eq!(read(&other, mr.addr(), first, 8), WcStatus::RemAccessErr);
    // No octets: unbound.
    assert!(mr.dereg().unwrap_err().errno() == libc_ebusy());
    let nothing = MwPart { offset: 0, len: 0 };
    let third = bind(Some(&info(&mr, nothing, RW)));
    mr.dereg().unwrap();
    assert_eq!(read(&client, start, third, 8), WcStatus::RemAccessErr);
}

fn libc_ebusy() -> i32 {
    16
}

fn binds_that_are_not_allowed(transport: Transport) {
    let try_bind = |make: &dyn Fn(&End, &Mr, &Mw) -> SendOp| {
        let (_client, server) = pair(&Setup::over(transport));
        let mr = region(&server);
        let mw = server.pd.alloc_mw(MwType::Type2).unwrap();
        let op = make(&server, &mr, &mw);
        let status = post(&server, 1, op);
        if status != WcStatus::Success {
            assert_eq!(server.qp.state(), softverbs::QpState::Err);
        }
        status
    };
    let next = |mw: &Mw| inc_rkey(mw.rkey());
    let good = try_bind(&|_, mr, mw| mw.bind(next(mw), &info(mr, PART, RW)));
    assert_eq!(good, WcStatus::Success);
    let not_bindable = try_bind(&|end, _, mw| {
        let mr = end.pd.alloc_mr(1 << 16, ALL).unwrap();
        let op = mw.bind(next(mw), &info(&mr, PART, RW));
        std::mem::forget(mr);
        op
    });
    let beyond = MwPart {
        offset: (1 << 16) - 8,
        len: 9,
    };
    let statuses = [
        not_bindable,
        try_bind(&|_, mr, mw| mw.bind(next(mw), &info(mr, beyond, RW))),
        try_bind(&|_, mr, mw| mw.bind(mw.rkey(), &info(mr, PART, RW))),
        try_bind(&|_, mr, mw| {
            let other = Rkey::new(mw.rkey().get() ^ 0x100);
            mw.bind(other, &info(mr, PART, RW))
        }),
        try_bind(&|_, mr, mw| {
            let empty = MwPart { offset: 0, len: 0 };
            mw.bind(next(mw), &info(mr, empty, RW))
        }),
        try_bind(&|end, mr, _| {
            let pd = end.pd.context().alloc_pd().unwrap();
            let mw = pd.alloc_mw(MwType::Type2).unwrap();
            mw.bind(inc_rkey(mw.rkey()), &info(mr, PART, RW))
        }),
        try_bind(&|end, _, mw| {
            let access = Access::LOCAL_WRITE | RW | Access::MW_BIND | Access::ZERO_BASED;
            let mr = end.pd.alloc_mr(1 << 16, access).unwrap();
            let op = mw.bind(next(mw), &info(&mr, PART, RW));
            std::mem::forget(mr);
            op
        }),
        try_bind(&|end, mr, mw| {
            // Bound already.
            assert_eq!(
                post(end, 1, mw.bind(next(mw), &info(mr, PART, RW))),
                WcStatus::Success
            );
            mw.bind(next(mw), &info(mr, PART, RW))
        }),
    ];
    assert_eq!(statuses, [WcStatus::MwBindErr; 8]);
    let (_client, server) = pair(&Setup::over(transport));
    let mw = server.pd.alloc_mw(MwType::Type2).unwrap();
    let refused = server.qp.bind_mw(&mw, 1, SendFlags::SIGNALED, None);
    assert_eq!(refused.unwrap_err().errno(), 22);
}

fn a_region_with_a_window_cannot_go(transport: Transport) {
    let (client, server) = pair(&Setup::over(transport));
    let mr = region(&server);
    let mw = server.pd.alloc_mw(MwType::Type2).unwrap();
    let rkey = bind(&server, &mw, &mr, RW);
    assert_eq!(mr.dereg().unwrap_err().errno(), libc_ebusy());
    let start = mr.addr() + PART.offset as u64;
    assert_eq!(read(&client, start, rkey, 8), WcStatus::Success);
    let other = server.pd.alloc_mw(MwType::Type2).unwrap();
    bind(&server, &other, &mr, RW);
    drop(mw);
    assert_eq!(mr.dereg().unwrap_err().errno(), libc_ebusy());
    // Its memory goes with its last handle, so the window is shut.
    let rkey = other.rkey();
    drop(mr);
    assert_eq!(read(&client, start, rkey, 8), WcStatus::RemAccessErr);
}

fn windows_of_type_2_go_with_their_queue_pair(transport: Transport) {
    let (_client, server, _listening) = requested(&Setup::over(transport));
    server.id.accept(&ConnParam::default()).unwrap();
    drop(expect(&server.channel, EventKind::Established));
    let mr = region(&server);
    let one = server.pd.alloc_mw(MwType::Type2).unwrap();
    bind(&server, &one, &mr, RW);
    assert_eq!(mr.dereg().unwrap_err().errno(), libc_ebusy());
    let End { id, qp, .. } = server;
    id.destroy_qp();
    drop(qp);
    mr.dereg().unwrap();
}

fn a_window_is_not_for_local_use(transport: Transport) {
    let (_client, server) = pair(&Setup::over(transport));
    let mr = region(&server);
    let mw = server.pd.alloc_mw(MwType::Type2).unwrap();
    let rkey = bind(&server, &mw, &mr, RW);
    let sge = softverbs::Sge {
        addr: mr.addr() + PART.offset as u64,
        length: 8,
        lkey: softverbs::Lkey::new(rkey.get()),
    };
    server
        .qp
        .post_send(&SendWr::new(1, SendOp::Send, SendData::Sges(&[sge])))
        .unwrap();
    assert_eq!(server.completions(1)[0].status, WcStatus::LocProtErr);
}
