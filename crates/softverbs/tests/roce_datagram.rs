//! Datagram identifiers: the port space of UDP.

mod common;

use common::{ALL, PATIENCE, expect, no_event, poll};
use softverbs::cm::{CmId, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::{
    Cq, Mr, Pd, Qp, QpInitAttr, RecvWr, SendData, SendOp, SendWr, Transport, UdAddress,
};
use std::net::SocketAddr;
use std::time::Duration;

fn equip(id: &CmId) -> (Pd, Cq, Qp, Mr) {
    let context = id.verbs().unwrap();
    assert_eq!(context.device().transport(), Transport::Roce);
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None, 0).unwrap();
    let wrong = id.create_qp(&pd, &QpInitAttr::rc(&cq, &cq)).unwrap_err();
    assert_eq!(wrong.errno(), 22);
    let qp = id.create_qp(&pd, &QpInitAttr::ud(&cq, &cq)).unwrap();
    let mr = pd.alloc_mr(4096, ALL).unwrap();
    (pd, cq, qp, mr)
}

fn listening() -> (EventChannel, CmId, SocketAddr) {
    let channel = EventChannel::new().unwrap();
    let id = CmId::new(&channel, PortSpace::Udp, 0).unwrap();
    id.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
    id.listen(0).unwrap();
    let address = id.local_addr().unwrap();
    (channel, id, address)
}

fn resolved(address: SocketAddr) -> (EventChannel, CmId) {
    let channel = EventChannel::new().unwrap();
    let id = CmId::new(&channel, PortSpace::Udp, 0).unwrap();
    id.resolve_addr(None, address, PATIENCE).unwrap();
    drop(expect(&channel, EventKind::AddrResolved));
    id.resolve_route(PATIENCE).unwrap();
    drop(expect(&channel, EventKind::RouteResolved));
    (channel, id)
}

#[test]
fn a_datagram_to_a_port() {
    let (server_channel, _listening, address) = listening();
    let (client_channel, client) = resolved(address);
    let (pd, cq, qp, _mr) = equip(&client);
    client
        .connect(&ConnParam::with_private_data(*b"who is there"))
        .unwrap();

    let request = expect(&server_channel, EventKind::ConnectRequest);
    assert_eq!(request.private_data().len(), 180);
    assert!(request.private_data().starts_with(b"who is there"));
    let server = request.id().clone();
    let (_server_pd, server_cq, server_qp, server_mr) = equip(&server);
    let sges = [server_mr.sge(0, 256)];
    let recv = RecvWr {
        wr_id: 7,
        sges: &sges,
    };
    server_qp.post_recv(&recv).unwrap();
    server
        .accept(&ConnParam::with_private_data(*b"it is me"))
        .unwrap();

    let established = expect(&client_channel, EventKind::Established);
    assert!(established.private_data().starts_with(b"it is me"));
    assert_eq!(established.private_data().len(), 136);
    let ud = established.param().ud.expect("where to send");
    assert_eq!(ud.qp_num, server_qp.qp_num());
    let ah = pd.create_ah(&ud.ah_attr).unwrap();
    let to = UdAddress {
        ah: &ah,
        remote_qpn: ud.qp_num,
        remote_qkey: ud.qkey,
    };
    let wr = SendWr::new(1, SendOp::Send, SendData::Inline(b"hello")).to(to);
    qp.post_send(&wr).unwrap();
    assert!(poll(&cq, 1)[0].is_success());
    let got = poll(&server_cq, 1)[0];
    assert!(got.is_success(), "{got:?}");
    assert_eq!((got.wr_id, got.byte_len), (7, 45));
    assert_eq!(got.src_qp, Some(qp.qp_num()));
    no_event(&server_channel, Duration::from_millis(20));
    assert_eq!(client.disconnect().unwrap_err().errno(), 22);
}

#[test]
fn a_datagram_to_a_group() {
    let own = softverbs::devices().unwrap();
    let own = own
        .iter()
        .filter(|device| !device.is_loopback())
        .find_map(|device| device.addresses().iter().find(|ip| ip.is_ipv4()).copied());
    let Some(own) = own else {
        return; // Groups need an interface that has them.
    };
    let group: SocketAddr = "239.77.12.9:0".parse().unwrap();
    let ends: Vec<_> = (0..2)
        .map(|_| {
            let channel = EventChannel::new().unwrap();
            let id = CmId::new(&channel, PortSpace::Udp, 0).unwrap();
            id.bind_addr((own, 0).into()).unwrap();
            let objects = equip(&id);
            id.join_multicast(group).unwrap();
            let event = expect(&channel, EventKind::MulticastJoin);
            let ud = event.param().ud.expect("where to send");
            drop(event);
            (channel, id, objects, ud)
        })
        .collect();
    let [
        (_, _, (pd, cq, qp, _), ud),
        (_, other, (_, other_cq, other_qp, other_mr), _),
    ] = &ends[..]
    else {
        unreachable!()
    };
    let sges = [other_mr.sge(0, 256)];
    let recv = RecvWr {
        wr_id: 7,
        sges: &sges,
    };
    other_qp.post_recv(&recv).unwrap();
    let ah = pd.create_ah(&ud.ah_attr).unwrap();
    let to = UdAddress {
        ah: &ah,
        remote_qpn: ud.qp_num,
        remote_qkey: ud.qkey,
    };
    let wr = SendWr::new(1, SendOp::Send, SendData::Inline(b"all")).to(to);
    qp.post_send(&wr).unwrap();
    assert!(poll(cq, 1)[0].is_success());
    let got = poll(other_cq, 1)[0];
    assert_eq!((got.wr_id, got.byte_len), (7, 43));
    assert_eq!(got.src_qp, Some(qp.qp_num()));
    other.leave_multicast(group).unwrap();
    assert_eq!(other.leave_multicast(group).unwrap_err().errno(), 22);
}

#[test]
fn nobody_or_nobody_who_wants() {
    let (server_channel, listening, address) = listening();
    let (client_channel, client) = resolved(address);
    let _objects = equip(&client);
    client.connect(&ConnParam::default()).unwrap();
    let request = expect(&server_channel, EventKind::ConnectRequest);
    request.id().reject(b"no").unwrap();
    let event = expect(&client_channel, EventKind::Unreachable);
    assert_eq!(event.status(), 2, "the status of the answer");
    drop((request, listening));

    let (client_channel, client) = resolved(address);
    let _objects = equip(&client);
    client.connect(&ConnParam::default()).unwrap();
    let event = expect(&client_channel, EventKind::Unreachable);
    assert_eq!(event.status(), 1, "not supported");
}
