//! What is peculiar to InfiniBand's connection manager: lengths, reasons, the end of a connection.

mod common;

use std::time::Duration;

use common::{PATIENCE, Setup, equip, expect, listener, no_event, pair, requested, resolved};
use softverbs::cm::{CmId, CmOption, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::{AsyncEventKind, IbMtu, QpState, SendFlags, Transport, WcStatus};

fn roce() -> Setup {
    Setup::over(Transport::Roce)
}

#[test]
fn private_data_has_fixed_lengths() {
    let setup = Setup {
        param: ConnParam {
            private_data: b"from client".to_vec(),
            responder_resources: 3,
            initiator_depth: 5,
            ..ConnParam::default()
        },
        ..roce()
    };
    let (server_channel, listening, address) = listener(&setup);
    let (client_channel, id) = resolved(&setup, address);
    let client = equip(&setup, client_channel, id);
    let too_long = ConnParam::with_private_data([0; 57]);
    assert_eq!(client.id.connect(&too_long).unwrap_err().errno(), 22);
    client.id.connect(&setup.param).unwrap();
    let request = expect(&server_channel, EventKind::ConnectRequest);
    assert_eq!(request.private_data().len(), 56);
    assert!(request.private_data().starts_with(b"from client\0"));
    // From the listener's view.
    let param = request.param();
    assert_eq!(param.responder_resources, 5);
    assert_eq!(param.initiator_depth, 3);
    assert_eq!((param.retry_count, param.rnr_retry_count), (7, 7));
    assert_eq!(param.qp_num, client.qp.qp_num());
    assert!(request.listen_id().unwrap().same_as(&listening));
    assert_eq!(request.id().local_addr(), Some(address));
    assert_eq!(request.id().peer_addr(), client.id.local_addr());
    let server = equip(&setup, server_channel, request.id().clone());
    drop(request);
    let too_long = ConnParam::with_private_data([0; 197]);
    assert_eq!(server.id.accept(&too_long).unwrap_err().errno(), 22);
    let answer = ConnParam::with_private_data([7; 196]);
    server.id.accept(&answer).unwrap();
    let established = expect(&client.channel, EventKind::Established);
    assert_eq!(established.private_data(), [7; 196]);
    assert_eq!(established.param().initiator_depth, 5);
    assert_eq!(established.param().responder_resources, 3);
    assert_eq!(established.param().qp_num, server.qp.qp_num());
    let established = expect(&server.channel, EventKind::Established);
    assert!(established.private_data().is_empty());
    assert_eq!(client.qp.query().max_rd_atomic, 5);
    assert_eq!(server.qp.query().max_rd_atomic, 3);
}

#[test]
fn reasons_of_rejections() {
    let setup = roce();
    let (client, server, listening) = requested(&setup);
    assert_eq!(server.id.reject(&[0; 149]).unwrap_err().errno(), 22);
    server.id.reject(b"not now").unwrap();
    let event = expect(&client.channel, EventKind::Rejected);
    assert_eq!(event.status(), 28);
    assert!(event.is_consumer_reject());
    assert_eq!(event.private_data().len(), 148);
    assert!(event.private_data().starts_with(b"not now\0"));
    assert_eq!(client.qp.state(), QpState::Err);

    let address = listening.local_addr().unwrap();
    drop(listening);
    let (channel, id) = resolved(&setup, address);
    let client = equip(&setup, channel, id);
    client.id.connect(&setup.param).unwrap();
    // Posted before the answer: flushed, not forgotten.
    client.send_inline(5, b"lost", SendFlags::empty());
    let event = expect(&client.channel, EventKind::Rejected);
    assert_eq!((event.status(), event.is_consumer_reject()), (8, false));
    let done = client.completions(1);
    assert_eq!((done[0].wr_id, done[0].status), (5, WcStatus::WrFlushErr));
}

#[test]
fn both_ends_hear_of_a_disconnect_and_of_its_end() {
    let (client, server) = pair(&roce());
    server.recv(1, 0, 64);
    client.id.disconnect().unwrap();
    for end in [&client, &server] {
        let event = expect(&end.channel, EventKind::Disconnected);
        assert_eq!(event.status(), 0);
        drop(event);
        assert_eq!(end.qp.state(), QpState::Err);
        // Again does no harm.
        end.id.disconnect().unwrap();
    }
    assert_eq!(server.completions(1)[0].status, WcStatus::WrFlushErr);
    for end in [&client, &server] {
        drop(expect(&end.channel, EventKind::TimewaitExit));
        no_event(&end.channel, Duration::from_millis(10));
    }
}

#[test]
fn sends_right_after_accept_wait_for_the_peer() {
    for _ in 0..20 {
        let (client, server, _listening) = requested(&roce());
        client.recv(1, 0, 64);
        server.id.accept(&ConnParam::default()).unwrap();
        server.id.notify(AsyncEventKind::SqDrained).unwrap();
        server.send_inline(2, b"first", SendFlags::SIGNALED);
        assert_eq!(client.success().byte_len, 5);
        server.success();
        drop(expect(&client.channel, EventKind::Established));
        drop(expect(&server.channel, EventKind::Established));
        server.id.notify(AsyncEventKind::CommEst).unwrap();
        no_event(&server.channel, Duration::from_millis(2));
    }
}

#[test]
fn a_queue_pair_that_fails_ends_the_connection() {
    let (client, server) = pair(&roce());
    client.recv(9, 0, 64);
    // Longer than the receive.
    server.recv(1, 0, 4);
    client.send_inline(1, b"too long", SendFlags::SIGNALED);
    let done = client.completions(2);
    assert_eq!(done[0].status, WcStatus::RemInvReqErr);
    assert_eq!(server.completions(1)[0].status, WcStatus::LocLenErr);
    for end in [&client, &server] {
        drop(expect(&end.channel, EventKind::Disconnected));
    }
}

/// An acknowledge may wait for what the application does next, but not beyond the end.
#[test]
fn a_message_that_was_seen_is_acknowledged_whatever_follows() {
    for end in [0, 1, 2] {
        let (client, server) = pair(&roce());
        for wr_id in 0..3 {
            server.recv(wr_id, 0, 64);
        }
        // Acknowledges wait only while applications poll.
        let begin = std::time::Instant::now();
        while begin.elapsed() < Duration::from_millis(5) {
            assert_eq!(server.cq.poll(&mut [softverbs::Wc::default()]).unwrap(), 0);
        }
        for wr_id in 0..3 {
            client.send_inline(wr_id, b"seen", SendFlags::SIGNALED);
            server.success();
        }
        match end {
            0 => server.id.disconnect().unwrap(),
            1 => {
                let to_error = softverbs::QpAttr {
                    qp_state: QpState::Err,
                    ..softverbs::QpAttr::default()
                };
                server
                    .qp
                    .modify(&to_error, softverbs::QpAttrMask::STATE)
                    .unwrap();
            }
            _ => drop(server),
        }
        for _ in 0..3 {
            client.success();
        }
    }
}

#[test]
fn ports_are_not_those_of_tcp() {
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let setup = Setup { address, ..roce() };
    let (_channel, _listening, same) = listener(&setup);
    assert_eq!(same, address);
}

#[test]
fn wildcards_of_both_families_share_a_port() {
    let setup = Setup {
        address: "0.0.0.0:0".parse().unwrap(),
        ..roce()
    };
    let (v4_channel, _v4, address) = listener(&setup);
    let port = address.port();
    let v6_setup = Setup {
        address: format!("[::]:{port}").parse().unwrap(),
        server_options: vec![CmOption::Afonly(true)],
        ..roce()
    };
    let (v6_channel, _v6, _) = listener(&v6_setup);
    for (to, channel) in [("127.0.0.1", &v4_channel), ("::1", &v6_channel)] {
        let to = (to.parse::<std::net::IpAddr>().unwrap(), port).into();
        let (client_channel, id) = resolved(&setup, to);
        let client = equip(&setup, client_channel, id);
        client.id.connect(&setup.param).unwrap();
        let request = expect(channel, EventKind::ConnectRequest);
        let server = equip(&setup, channel.clone(), request.id().clone());
        server.id.accept(&setup.param).unwrap();
        drop(expect(&client.channel, EventKind::Established));
        drop(expect(channel, EventKind::Established));
        server.recv(1, 0, 64);
        client.send_inline(1, b"hello", SendFlags::SIGNALED);
        client.success();
        server.success();
        drop(client);
        drop(expect(channel, EventKind::Disconnected));
    }
}

#[test]
fn the_transport_is_chosen_before_the_address() {
    let channel = EventChannel::new().unwrap();
    let id = CmId::new(&channel, PortSpace::Tcp, 0).unwrap();
    id.set_option(CmOption::Transport(Transport::Roce)).unwrap();
    assert_eq!(id.transport(), Transport::Roce);
    let address = "127.0.0.1:9".parse().unwrap();
    id.resolve_addr(None, address, PATIENCE).unwrap();
    let late = id.set_option(CmOption::Transport(Transport::Iwarp));
    assert_eq!(late.unwrap_err().errno(), 22);
    assert_eq!(id.verbs().unwrap().device().name(), "roce_lo");
    let datagrams = CmId::new(&channel, PortSpace::Udp, 0).unwrap();
    assert_eq!(datagrams.transport(), Transport::Roce);
    let iwarp = datagrams.set_option(CmOption::Transport(Transport::Iwarp));
    assert_eq!(iwarp.unwrap_err().errno(), 95);
}

#[test]
fn the_active_side_chooses_a_path_mtu() {
    for (mtu, code) in [(IbMtu::Mtu256, 1), (IbMtu::Mtu1024, 3), (IbMtu::Mtu4096, 5)] {
        let setup = Setup {
            client_options: vec![CmOption::PathMtu(mtu)],
            ..roce()
        };
        let (client, server) = pair(&setup);
        for end in [&client, &server] {
            assert_eq!(end.qp.query().path_mtu, code);
        }
        let sent = client.fill(0, 9999, 7);
        server.recv(1, 0, 10_000);
        client.send(2, 0, 9999);
        client.success();
        assert_eq!(server.success().byte_len, 9999);
        assert_eq!(server.read(0, 9999), sent);
    }
}

#[test]
fn a_path_mtu_that_the_port_has_not_got_is_refused() {
    let narrow = softverbs::devices().unwrap().into_iter().find(|device| {
        let device = device.with_transport(Transport::Roce);
        let port = device.open().and_then(|context| context.query_port(1));
        !device.addresses().is_empty() && port.is_ok_and(|port| port.active_mtu < IbMtu::Mtu4096)
    });
    let Some(narrow) = narrow else {
        return; // Every interface of this machine has packets of 4096 octets.
    };
    let setup = Setup {
        address: narrow.socket_addr(narrow.addresses()[0], 0),
        client_options: vec![CmOption::PathMtu(IbMtu::Mtu4096)],
        ..roce()
    };
    let (_channel, _listening, address) = listener(&setup);
    let (client_channel, id) = resolved(&setup, address);
    let client = equip(&setup, client_channel, id);
    let error = client.id.connect(&setup.param).unwrap_err();
    assert_eq!(error.errno(), 22);
    assert!(error.to_string().contains("active_mtu"), "{error}");
    // And again with one that it has.
    client
        .id
        .set_option(CmOption::PathMtu(IbMtu::Mtu256))
        .unwrap();
    client.id.connect(&setup.param).unwrap();
}
