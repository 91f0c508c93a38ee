//! The objects of RoCE: GIDs of both families, groups, InfiniBand's port space, shared receive
//! queues, limits that can be reached, and the ways between two interfaces of one host.

mod common;
#[path = "common/netns.rs"]
mod netns;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use common::{ALL, End, PATIENCE, Setup, equip, expect, listener, poll, resolved};
use softverbs::cm::{CmId, CmOption, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::{
    AhAttr, Device, Gid, Qp, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, RecvWr,
    SendData, SendFlags, SendOp, SendWr, SrqInitAttr, Transport, UdAddress, WcStatus,
};

const V4: &str = "10.98.1.1";
const V6: &str = "fd98:1::1";

/// In a namespace: two interfaces with addresses of both families, and a way to groups.
fn two_interfaces() {
    let script = "ip link add d0 type veth peer name p0; ip link add d1 type veth peer name p1; \
        for i in d0 p0 d1 p1; do ip link set $i up; done; \
        ip addr add 10.98.1.1/24 dev d0; ip addr add fd98:1::1/64 dev d0 nodad; \
        ip addr add 10.98.2.1/24 dev d1; ip addr add fd98:2::1/64 dev d1 nodad";
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success());
}

fn roce_device(address: &str) -> Device {
    Device::for_address(address.parse().unwrap(), None)
        .unwrap()
        .with_transport(Transport::Roce)
}

#[test]
fn gids_are_the_addresses() {
    if !netns::inside("gids_are_the_addresses") {
        return;
    }
    two_interfaces();
    let device = roce_device(V4);
    assert_eq!(device.name(), "roce_d0");
    let context = device.open().unwrap();
    let len = context.query_port(1).unwrap().gid_tbl_len;
    let gids: Vec<Gid> = (0..len)
        .map(|index| context.query_gid(1, index).unwrap())
        .collect();
    assert_eq!(usize::try_from(len).unwrap(), device.addresses().len());
    for (gid, address) in gids.iter().zip(device.addresses()) {
        assert_eq!(*gid, Gid::from(*address));
        assert_eq!(gid.to_ip(), *address);
    }
    // IPv4 is written into IPv6 (RoCEv2), the link-local address is there and not the first.
    let mapped: IpAddr = "::ffff:10.98.1.1".parse().unwrap();
    let IpAddr::V6(mapped) = mapped else {
        unreachable!()
    };
    assert!(gids.iter().any(|gid| gid.to_string() == mapped.to_string()
        || *gid == Gid::from(IpAddr::V4([10, 98, 1, 1].into()))));
    let link_local =
        |gid: &Gid| matches!(gid.to_ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
    assert!(
        gids.iter().any(link_local) && !link_local(&gids[0]),
        "{gids:?}"
    );
    assert_eq!(context.query_gid(1, len).unwrap_err().errno(), 22);
    assert_eq!(context.query_gid(2, 0).unwrap_err().errno(), 22);

    // A way from each to a peer of the same kind; from another family there is none, and the error
    // names what is wrong.
    let pd = context.alloc_pd().unwrap();
    let index = |address: &str| {
        let gid = Gid::from(address.parse::<IpAddr>().unwrap());
        u8::try_from(gids.iter().position(|own| *own == gid).unwrap()).unwrap()
    };
    for (own, peer, wrong) in [
        (V4, "10.98.1.9", "fd98:1::9"),
        (V6, "fd98:1::9", "10.98.1.9"),
    ] {
        let to = |peer: &str| {
            let peer: IpAddr = peer.parse().unwrap();
            AhAttr::new(peer.into(), index(own))
        };
        let ah = pd.create_ah(&to(peer)).unwrap();
        assert!(ah.attr().grh.hop_limit > 1, "across a router");
        let error = pd.create_ah(&to(wrong)).unwrap_err();
        assert_eq!(error.errno(), 22);
        assert!(error.to_string().contains("sgid_index"), "{error}");
    }
    let beyond = AhAttr::new(gids[0], u8::try_from(len).unwrap());
    assert_eq!(pd.create_ah(&beyond).unwrap_err().errno(), 22);
    let nowhere = AhAttr::new(Gid::default(), 0);
    assert_eq!(pd.create_ah(&nowhere).unwrap_err().errno(), 22);
}

#[test]
fn from_one_interface_to_another_of_the_same_host() {
    if !netns::inside("from_one_interface_to_another_of_the_same_host") {
        return;
    }
    two_interfaces();
    for transport in [Transport::Iwarp, Transport::Roce] {
        for (from, to) in [
            (V4, "10.98.2.1"),
            (V6, "fd98:2::1"),
            (V4, "127.0.0.1"),
            ("127.0.0.1", V4),
        ] {
            let address = (to.parse::<IpAddr>().unwrap(), 0).into();
            let setup = Setup {
                address,
                ..Setup::over(transport)
            };
            let (server_channel, _listening, address) = listener(&setup);
            let channel = EventChannel::new().unwrap();
            let id = CmId::new(&channel, PortSpace::Tcp, 0).unwrap();
            id.set_option(CmOption::Transport(transport)).unwrap();
            let source = (from.parse::<IpAddr>().unwrap(), 0).into();
            id.resolve_addr(Some(source), address, PATIENCE).unwrap();
            drop(expect(&channel, EventKind::AddrResolved));
            id.resolve_route(PATIENCE).unwrap();
            drop(expect(&channel, EventKind::RouteResolved));
            let client = equip(&setup, channel, id);
            client.id.connect(&setup.param).unwrap();
            let request = expect(&server_channel, EventKind::ConnectRequest);
            let peer = request.id().peer_addr().unwrap();
            assert_eq!(peer.ip(), source.ip(), "{transport:?} from {from} to {to}");
            let server = equip(&setup, server_channel, request.id().clone());
            drop(request);
            server.id.accept(&setup.param).unwrap();
            drop(expect(&client.channel, EventKind::Established));
            drop(expect(&server.channel, EventKind::Established));
            server.recv(1, 0, 64);
            client.send_inline(2, b"across", SendFlags::SIGNALED);
            client.success();
            assert_eq!(server.success().byte_len, 6);
            if transport == Transport::Roce {
                // That of the narrower interface.
                assert_eq!(client.qp.query().path_mtu, 3, "from {from} to {to}");
            }
        }
    }
}

/// A datagram identifier at an own address, in a group.
fn member(own: &str, group: SocketAddr) -> (EventChannel, End, UdParts) {
    let channel = EventChannel::new().unwrap();
    let id = CmId::new(&channel, PortSpace::Udp, 0).unwrap();
    id.bind_addr((own.parse::<IpAddr>().unwrap(), 0).into())
        .unwrap();
    let context = id.verbs().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None, 0).unwrap();
    let qp = id.create_qp(&pd, &QpInitAttr::ud(&cq, &cq)).unwrap();
    let mr = pd.alloc_mr(4096, ALL).unwrap();
    id.join_multicast(group).unwrap();
    let event = expect(&channel, EventKind::MulticastJoin);
    let ud = event.param().ud.expect("where to send");
    drop(event);
    let parts = UdParts {
        ah: pd.create_ah(&ud.ah_attr).unwrap(),
        qpn: ud.qp_num,
        qkey: ud.qkey,
    };
    let end = End {
        channel: channel.clone(),
        id,
        pd,
        cq,
        qp,
        mr,
    };
    (channel, end, parts)
}

struct UdParts {
    ah: softverbs::AddressHandle,
    qpn: softverbs::Qpn,
    qkey: u32,
}

#[test]
fn groups_of_both_families_are_joined_and_left() {
    if !netns::inside("groups_of_both_families_are_joined_and_left") {
        return;
    }
    two_interfaces();
    for (own, group) in [
        (V4, "239.98.0.7:0"),
        (V6, "[ff15::98:7]:0"),
        (V6, "[ff12::98:7]:0"),
    ] {
        let group: SocketAddr = group.parse().unwrap();
        let ends: Vec<_> = (0..3).map(|_| member(own, group)).collect();
        let send = |data: &[u8]| {
            let (_, from, parts) = &ends[0];
            let to = UdAddress {
                ah: &parts.ah,
                remote_qpn: parts.qpn,
                remote_qkey: parts.qkey,
            };
            let wr = SendWr::new(9, SendOp::Send, SendData::Inline(data)).to(to);
            from.qp.post_send(&wr).unwrap();
            let done = poll(&from.cq, 1)[0];
            assert!(done.is_success(), "{own}: {done:?}");
        };
        for (_, end, _) in &ends[1..] {
            end.recv(1, 0, 256);
            end.recv(2, 256, 256);
        }
        send(b"all of you");
        for (_, end, _) in &ends[1..] {
            let got = poll(&end.cq, 1)[0];
            assert!(got.is_success() && got.grh, "{group}: {got:?}");
            assert_eq!((got.wr_id, got.byte_len), (1, 50));
            assert_eq!(got.sl, if group.is_ipv4() { 2 } else { 1 }, "{group}");
            assert_eq!(end.read(40, 10), b"all of you");
        }
        // Who has left gets no more.
        ends[1].1.id.leave_multicast(group).unwrap();
        assert_eq!(ends[1].1.id.leave_multicast(group).unwrap_err().errno(), 22);
        send(b"the rest");
        assert_eq!(poll(&ends[2].1.cq, 1)[0].wr_id, 2);
        common::nothing(&ends[1].1.cq, Duration::from_millis(100));
    }
}

#[test]
fn the_port_space_of_infiniband() {
    let listening_channel = EventChannel::new().unwrap();
    let listening = CmId::new(&listening_channel, PortSpace::Ib, 0).unwrap();
    assert_eq!(listening.transport(), Transport::Roce);
    listening.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
    listening.listen(4).unwrap();
    let address = listening.local_addr().unwrap();
    for qp_type in [QpType::Rc, QpType::Uc] {
        let channel = EventChannel::new().unwrap();
        let id = CmId::new(&channel, PortSpace::Ib, 0).unwrap();
        id.resolve_addr(None, address, PATIENCE).unwrap();
        drop(expect(&channel, EventKind::AddrResolved));
        id.resolve_route(PATIENCE).unwrap();
        drop(expect(&channel, EventKind::RouteResolved));
        let client = of_type(qp_type, channel, id);
        client
            .id
            .connect(&ConnParam::with_private_data(*b"who"))
            .unwrap();
        let request = expect(&listening_channel, EventKind::ConnectRequest);
        assert!(request.private_data().starts_with(b"who"));
        let server = of_type(qp_type, listening_channel.clone(), request.id().clone());
        drop(request);
        server.recv(1, 0, 64);
        server.id.accept(&ConnParam::default()).unwrap();
        drop(expect(&client.channel, EventKind::Established));
        drop(expect(&server.channel, EventKind::Established));
        client.send_inline(2, b"hello", SendFlags::SIGNALED);
        client.success();
        assert_eq!(server.success().byte_len, 5);
        client.id.disconnect().unwrap();
        drop(expect(&server.channel, EventKind::Disconnected));
        drop(expect(&server.channel, EventKind::TimewaitExit));
    }
    // A port of the other space is another one.
    let setup = Setup {
        address,
        ..Setup::over(Transport::Roce)
    };
    let (channel, id) = resolved(&setup, address);
    let client = equip(&setup, channel, id);
    client.id.connect(&setup.param).unwrap();
    drop(expect(&client.channel, EventKind::Rejected));
}

fn of_type(qp_type: QpType, channel: EventChannel, id: CmId) -> End {
    let context = id.verbs().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None, 0).unwrap();
    let attr = QpInitAttr {
        qp_type,
        ..QpInitAttr::rc(&cq, &cq)
    };
    let qp = id.create_qp(&pd, &attr).unwrap();
    let mr = pd.alloc_mr(4096, ALL).unwrap();
    End {
        channel,
        id,
        pd,
        cq,
        qp,
        mr,
    }
}

/// Brings an RC queue pair by hand to where it sends to `peer`.
fn by_hand(qp: &Qp, own: &AhAttr, peer: &Qp) {
    let mut attr = QpAttr {
        qp_state: QpState::Init,
        qp_access_flags: ALL,
        path_mtu: 3,
        dest_qp_num: peer.qp_num(),
        ah_attr: *own,
        max_dest_rd_atomic: 4,
        max_rd_atomic: 4,
        min_rnr_timer: 1,
        timeout: 12,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    let init =
        QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    qp.modify(&attr, init).unwrap();
    attr.qp_state = QpState::Rtr;
    let rtr = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    qp.modify(&attr, rtr).unwrap();
    attr.qp_state = QpState::Rts;
    let rts = QpAttrMask::STATE
        | QpAttrMask::SQ_PSN
        | QpAttrMask::TIMEOUT
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::RNR_RETRY
        | QpAttrMask::MAX_QP_RD_ATOMIC;
    qp.modify(&attr, rts).unwrap();
}

#[test]
fn queue_pairs_of_a_shared_receive_queue_come_and_go_in_full_flight() {
    let context = roce_device("127.0.0.1").open().unwrap();
    let way = AhAttr::new(context.query_gid(1, 0).unwrap(), 0);
    let pd = context.alloc_pd().unwrap();
    let (cq, srq_cq) = (
        context.create_cq(4096, None, 0).unwrap(),
        context.create_cq(1 << 15, None, 0).unwrap(),
    );
    let mr = pd.alloc_mr(1 << 16, ALL).unwrap();
    let attr = SrqInitAttr {
        max_wr: 1024,
        max_sge: 1,
        ..SrqInitAttr::default()
    };
    let srq = pd.create_srq(&attr).unwrap();
    let mut posted = 0_u64;
    let mut fill_up = || {
        let before = posted;
        loop {
            let sges = [mr.sge(32_768, 64)];
            let wr_id = posted;
            match srq.post_recv(&RecvWr { wr_id, sges: &sges }) {
                Ok(()) => posted += 1,
                Err(error) => {
                    assert_eq!(error.errno(), 12, "{error}");
                    return posted - before;
                }
            }
        }
    };
    assert_eq!(fill_up(), 1024);
    let mut taken = HashSet::new();
    for round in 0..20 {
        let pairs: Vec<(Qp, Qp)> = (0..4)
            .map(|_| {
                let sender = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
                let attr = QpInitAttr {
                    srq: Some(&srq),
                    ..QpInitAttr::rc(&cq, &srq_cq)
                };
                let receiver = pd.create_qp(&attr).unwrap();
                by_hand(&sender, &way, &receiver);
                by_hand(&receiver, &way, &sender);
                (sender, receiver)
            })
            .collect();
        for n in 0..40 {
            for (sender, _) in &pairs {
                let wr = SendWr::new(n, SendOp::Send, SendData::Inline(b"for any of you"));
                sender.post_send(&wr).unwrap();
            }
        }
        // Some messages have come, others are under way. No receive is taken twice.
        let count = 1 + round % 30;
        for wc in poll(&srq_cq, count) {
            assert!(wc.is_success() && taken.insert(wc.wr_id), "{wc:?}");
        }
        // Their completions go with the queue pairs.
        drop(pairs);
        let mut room = [softverbs::Wc::default(); 64];
        assert_eq!(srq_cq.poll(&mut room).unwrap(), 0);
        // As many have been taken as messages came, which are no more than were sent.
        let again = fill_up();
        assert!(
            (u64::try_from(count).unwrap()..=160).contains(&again),
            "{again}"
        );
    }
    // The queue still serves a new one.
    let sender = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    let attr = QpInitAttr {
        srq: Some(&srq),
        ..QpInitAttr::rc(&cq, &srq_cq)
    };
    let receiver = pd.create_qp(&attr).unwrap();
    by_hand(&sender, &way, &receiver);
    by_hand(&receiver, &way, &sender);
    let wr = SendWr::new(7, SendOp::Send, SendData::Inline(b"still"));
    sender.post_send(&wr).unwrap();
    let got = poll(&srq_cq, 1)[0];
    assert_eq!((got.status, got.byte_len), (WcStatus::Success, 5));
    assert_eq!(got.qp_num, receiver.qp_num());
}

#[test]
fn what_is_advertised_can_be_had() {
    let context = roce_device("127.0.0.1").open().unwrap();
    let attr = context.query_device();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(attr.max_cqe, None, 0).unwrap();
    let cap = QpCap {
        max_send_wr: attr.max_qp_wr,
        max_recv_wr: attr.max_qp_wr,
        max_send_sge: attr.max_sge,
        max_recv_sge: attr.max_sge,
        ..QpCap::default()
    };
    let largest = QpInitAttr {
        cap,
        ..QpInitAttr::rc(&cq, &cq)
    };
    let qp = pd.create_qp(&largest).unwrap();
    assert_eq!(qp.cap(), cap, "what was asked for is what is granted");
    for cap in [
        QpCap {
            max_send_wr: attr.max_qp_wr + 1,
            ..cap
        },
        QpCap {
            max_recv_sge: attr.max_sge + 1,
            ..cap
        },
    ] {
        let beyond = QpInitAttr { cap, ..largest };
        assert_eq!(pd.create_qp(&beyond).unwrap_err().errno(), 22);
    }
    assert!(context.create_cq(attr.max_cqe + 1, None, 0).is_err());
    let srq = SrqInitAttr {
        max_wr: attr.max_srq_wr,
        max_sge: attr.max_srq_sge,
        ..SrqInitAttr::default()
    };
    pd.create_srq(&srq).unwrap();
    let beyond = SrqInitAttr {
        max_wr: attr.max_srq_wr + 1,
        ..srq
    };
    assert_eq!(pd.create_srq(&beyond).unwrap_err().errno(), 22);
    // Keys of many regions, all at once and one after the other.
    let mut keys = HashSet::new();
    for _ in 0..4 {
        let regions: Vec<_> = (0..2000).map(|_| pd.alloc_mr(64, ALL).unwrap()).collect();
        for mr in &regions {
            assert!(keys.insert(mr.rkey().get()), "a key came back at once");
        }
    }
}
