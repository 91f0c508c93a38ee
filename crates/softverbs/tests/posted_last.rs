//! What was posted before the application ends a queue pair leaves, although nobody polls any more: an
//! unsignaled request has no completion to wait for.

mod common;

use std::time::{Duration, Instant};

use common::{ALL, End, PATIENCE, Setup, expect, pair, poll};
use softverbs::cm::{CmId, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::{
    Cq, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, RecvWr, SendData, SendFlags, SendOp,
    SendWr, UdAddress, Wc,
};

common::over_both! {
    before_the_connection_ends,
    before_the_identifier_lets_go_of_the_queue_pair,
    before_the_identifier_goes,
    before_the_queue_pair_goes,
    before_the_error_state,
}

/// Whether requests were left for the next poll depends on the moment.
const ROUNDS: usize = 10;

/// Polls until the engine leaves the work to us: from then on requests are left for the next poll.
fn poll_for_a_while(cq: &Cq) {
    let end = Instant::now() + Duration::from_millis(3);
    while Instant::now() < end {
        let mut room = [Wc::default()];
        assert_eq!(cq.poll(&mut room).unwrap(), 0);
    }
}

fn to_error() -> (QpAttr, QpAttrMask) {
    let attr = QpAttr {
        qp_state: QpState::Err,
        ..QpAttr::default()
    };
    (attr, QpAttrMask::STATE)
}

/// A connection whose client posts several requests and ends it at once.
fn posted(setup: &Setup, end: impl Fn(&End)) {
    const COUNT: usize = 20;
    for round in 0..ROUNDS {
        let (client, server) = pair(setup);
        for n in 0..COUNT {
            server.recv(n as u64, 64 * n, 64);
        }
        poll_for_a_while(&client.cq);
        for n in 0..COUNT {
            client.send_inline(n as u64, b"before the end", SendFlags::empty());
        }
        end(&client);
        let got = server.completions(COUNT);
        assert!(got.iter().all(Wc::is_success), "round {round}: {got:?}");
    }
}

fn before_the_connection_ends(transport: softverbs::Transport) {
    posted(&Setup::over(transport), |end| end.id.disconnect().unwrap());
}

fn before_the_identifier_lets_go_of_the_queue_pair(transport: softverbs::Transport) {
    posted(&Setup::over(transport), |end| end.id.destroy_qp());
}

fn before_the_identifier_goes(transport: softverbs::Transport) {
    posted(&Setup::over(transport), |end| end.id.destroy().unwrap());
}

fn before_the_queue_pair_goes(transport: softverbs::Transport) {
    posted(&Setup::over(transport), |end| end.qp.destroy());
}

fn before_the_error_state(transport: softverbs::Transport) {
    let (attr, mask) = to_error();
    posted(&Setup::over(transport), |end| {
        end.qp.modify(&attr, mask).unwrap();
    });
}

/// The same with datagrams: more of them than have their turn at once.
fn datagrams(count: u32, end: impl Fn(&CmId, &softverbs::Qp)) {
    let cap = QpCap {
        max_send_wr: count,
        max_recv_wr: count,
        ..QpCap::default()
    };
    let equip = |id: &CmId| {
        let context = id.verbs().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(2 * count, None, 0).unwrap();
        let attr = QpInitAttr {
            cap,
            ..QpInitAttr::ud(&cq, &cq)
        };
        let qp = id.create_qp(&pd, &attr).unwrap();
        (pd, cq, qp)
    };
    for round in 0..ROUNDS {
        let server_channel = EventChannel::new().unwrap();
        let listening = CmId::new(&server_channel, PortSpace::Udp, 0).unwrap();
        listening.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
        listening.listen(0).unwrap();
        let channel = EventChannel::new().unwrap();
        let client = CmId::new(&channel, PortSpace::Udp, 0).unwrap();
        let address = listening.local_addr().unwrap();
        client.resolve_addr(None, address, PATIENCE).unwrap();
        drop(expect(&channel, EventKind::AddrResolved));
        client.resolve_route(PATIENCE).unwrap();
        drop(expect(&channel, EventKind::RouteResolved));
        let (pd, cq, qp) = equip(&client);
        client.connect(&ConnParam::default()).unwrap();

        let request = expect(&server_channel, EventKind::ConnectRequest);
        let server = request.id().clone();
        let (server_pd, server_cq, server_qp) = equip(&server);
        let mr = server_pd.alloc_mr(256, ALL).unwrap();
        for wr_id in 0..u64::from(count) {
            let sges = [mr.sge(0, 256)];
            server_qp.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
        }
        server.accept(&ConnParam::default()).unwrap();
        let established = expect(&channel, EventKind::Established);
        let ud = established.param().ud.expect("where to send");
        let ah = pd.create_ah(&ud.ah_attr).unwrap();
        drop(established);

        poll_for_a_while(&cq);
        for n in 0..u64::from(count) {
            let to = UdAddress {
                ah: &ah,
                remote_qpn: ud.qp_num,
                remote_qkey: ud.qkey,
            };
            let wr = SendWr::new(n, SendOp::Send, SendData::Inline(b"before the end"))
                .with_flags(SendFlags::empty())
                .to(to);
            qp.post_send(&wr).unwrap();
        }
        drop(ah);
        end(&client, &qp);
        let got = poll(&server_cq, count as usize);
        assert!(got.iter().all(Wc::is_success), "round {round}: {got:?}");
    }
}

#[test]
fn datagrams_before_the_identifier_lets_go_of_the_queue_pair() {
    for count in [10, 600] {
        datagrams(count, |id, _| id.destroy_qp());
    }
}

#[test]
fn datagrams_before_the_identifier_goes() {
    datagrams(10, |id, _| id.destroy().unwrap());
}

#[test]
fn datagrams_before_the_queue_pair_goes() {
    for count in [10, 600] {
        datagrams(count, |_, qp| qp.destroy());
    }
}

#[test]
fn datagrams_before_the_error_state() {
    let (attr, mask) = to_error();
    datagrams(10, |_, qp| qp.modify(&attr, mask).unwrap());
}
