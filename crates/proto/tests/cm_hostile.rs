//! Peers that mean no good, and those that are out of their mind: whatever arrives, nothing
//! panics, memory stays bounded, and other peers' connections stay.

mod cm_support;

use cm_support::*;
use proptest::collection::vec;
use proptest::prelude::*;
use softverbs_proto::cm::config::Config;
use softverbs_proto::cm::endpoint::Endpoint;
use softverbs_proto::cm::params::{AcceptParams, Listen, ListenToken, RejectParams};
use softverbs_proto::cm::state::State;
use softverbs_wire::ib::cm::{
    Drep, Dreq, Mad, Message, MessageKind, Mra, PrivateData, Rej, RejReason, Req, Rtu,
};
use softverbs_wire::num::{
    CommId, Guid, MtuCode, Psn, Qpn, RetryCount, ServiceId, TimeoutCode, TransactionId,
};

const RAW_SERVICE: ServiceId = ServiceId::new(0x1234_0000_0000_0001);

fn flood(cm: &mut Endpoint, peer: u8, count: u32) {
    let mut address = path(SERVER);
    address.remote = std::net::Ipv4Addr::new(10, 1, 1, peer).into();
    for number in 1..=count {
        let mut req = Req {
            local_comm_id: CommId::new(number),
            local_ca_guid: Guid::new(u64::from(peer)),
            local_qpn: Qpn::new(number),
            service_id: RAW_SERVICE,
            ..Req::default()
        };
        req.path_mtu = MtuCode::new(3);
        req.primary_path.remote_gid = address.local;
        let mad = Mad::new(TransactionId::new(1), req);
        cm.on_mad(at(0), address, &mad.to_bytes()).unwrap();
    }
}

fn accept_params() -> AcceptParams {
    AcceptParams {
        qpn: Qpn::new(5),
        starting_psn: Psn::new(6),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: RetryCount::MAX,
        flow_control: false,
        srq: false,
        private_data: Vec::new(),
    }
}

#[test]
fn half_open_requests_are_limited() {
    let config = Config {
        max_half_open_per_peer: 20,
        max_half_open: 50,
        ..Config::default()
    };
    let mut pair = Pair::with(config, |_, _, _| pass());
    let cm = &mut pair.hosts[SERVER].cm;
    cm.listen(ListenToken(1), Listen::service(RAW_SERVICE))
        .unwrap();
    for (peer, expected) in [(1, 20), (2, 40), (3, 50), (4, 50)] {
        flood(cm, peer, 1000);
        assert_eq!(cm.connections(), expected);
    }
    let mut requests = Vec::new();
    while let Some((id, _)) = cm.poll_event() {
        requests.push(id);
    }
    assert_eq!(requests.len(), 50);
    // Accepting does not make room: nothing has shown yet that the peers are there.
    for id in &requests {
        cm.accept(at(0), *id, &accept_params()).unwrap();
    }
    while cm.poll_event().is_some() || cm.poll_transmit().is_some() {}
    flood(cm, 1, 1000);
    assert_eq!(cm.connections(), 50);
    // They are not, and time clears up.
    while let Some(deadline) = cm.deadline() {
        cm.on_timeout(deadline);
        while cm.poll_event().is_some() || cm.poll_transmit().is_some() {}
    }
    assert!(cm.is_idle());
}

#[test]
fn timeouts_of_a_peer_are_bounded() {
    let config = Config::default();
    let (max_wait, max_timewait) = (config.max_wait, config.max_timewait);
    let mut pair = Pair::new();
    let cm = &mut pair.hosts[SERVER].cm;
    cm.listen(ListenToken(1), Listen::service(RAW_SERVICE))
        .unwrap();
    let address = path(SERVER);
    let mut req = Req {
        local_comm_id: CommId::new(7),
        service_id: RAW_SERVICE,
        local_cm_response_timeout: TimeoutCode::MAX,
        ..Req::default()
    };
    req.path_mtu = MtuCode::new(3);
    req.primary_path.remote_gid = address.local;
    req.primary_path.local_ack_timeout = TimeoutCode::MAX;
    let send = |cm: &mut Endpoint, message: Message| {
        let mad = Mad::new(TransactionId::new(1), message);
        cm.on_mad(at(0), address, &mad.to_bytes()).unwrap();
    };
    send(cm, req.into());
    let (id, _) = cm.poll_event().unwrap();
    cm.accept(at(0), id, &accept_params()).unwrap();
    assert_eq!(cm.deadline(), Some(at(0) + max_wait));
    let mra = Mra {
        local_comm_id: CommId::new(7),
        remote_comm_id: id.comm_id(),
        message: MessageKind::REP,
        service_timeout: TimeoutCode::MAX,
        ..Mra::default()
    };
    send(cm, mra.into());
    assert_eq!(cm.state(id), State::MraRepRcvd);
    assert_eq!(cm.deadline(), Some(at(0) + max_wait));
    cm.reject(at(0), id, &RejectParams::consumer(Vec::new()))
        .unwrap();
    assert_eq!(cm.deadline(), Some(at(0) + max_timewait));
}

#[test]
fn nobody_ends_or_establishes_the_connection_of_somebody_else() {
    let mut pair = Pair::with_rule(|_, kind, _| if kind == "RTU" { vec![] } else { pass() });
    let client = pair.connect();
    pair.run(ms(10));
    let (server, _) = pair.hosts[SERVER].request();
    let (local, remote) = (client.comm_id(), server.comm_id());
    let guid = pair.hosts[CLIENT].cm.ca_guid();
    let mut stranger = path(SERVER);
    stranger.remote = std::net::Ipv4Addr::new(10, 6, 6, 6).into();
    let mut timeout = Rej {
        local_comm_id: local,
        reason: RejReason::TIMEOUT,
        info_len: 8,
        ..Rej::default()
    };
    let octets = guid.get().to_be_bytes();
    timeout.info = PrivateData::new(&octets).unwrap();
    let rej = Rej {
        remote_comm_id: remote,
        reason: RejReason::CONSUMER,
        ..timeout
    };
    let messages: [Message; 5] = [
        timeout.into(),
        rej.into(),
        Rtu {
            local_comm_id: local,
            remote_comm_id: remote,
            ..Rtu::default()
        }
        .into(),
        Dreq {
            local_comm_id: local,
            remote_comm_id: remote,
            remote_qpn: pair.hosts[SERVER].qp(server).0,
            ..Dreq::default()
        }
        .into(),
        Drep {
            local_comm_id: local,
            remote_comm_id: remote,
            ..Drep::default()
        }
        .into(),
    ];
    let now = pair.now;
    for message in messages {
        let mad = Mad::new(TransactionId::new(1), message);
        let cm = &mut pair.hosts[SERVER].cm;
        cm.on_mad(now, stranger, &mad.to_bytes()).unwrap();
        assert_eq!(cm.poll_event(), None, "{}", mad.message);
        assert_eq!(cm.state(server), State::RepSent);
    }
}

#[test]
fn octets_that_are_no_message_are_errors() {
    let mut pair = Pair::new();
    let cm = &mut pair.hosts[SERVER].cm;
    let whole = Mad::new(TransactionId::new(1), Rtu::default()).to_bytes();
    for len in 0..256 {
        cm.on_mad(at(0), path(SERVER), &whole[..len]).unwrap_err();
    }
    let mut long = whole.to_vec();
    long.push(0);
    cm.on_mad(at(0), path(SERVER), &long).unwrap_err();
    for (at_, value) in [(0, 2), (1, 4), (2, 3), (3, 1), (17, 0x77)] {
        let mut octets = whole;
        octets[at_] = value;
        cm.on_mad(at(0), path(SERVER), &octets).unwrap_err();
    }
    assert!(cm.is_idle(), "no answer to any of them");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_octets_are_survived(
        mads in vec((vec(any::<u8>(), 232), 0x0f..0x1cu8, any::<bool>()), 1..20),
    ) {
        let mut pair = Pair::new();
        let client = pair.connect();
        pair.run(ms(10));
        let (server, _) = pair.hosts[SERVER].request();
        for (data, attribute, aimed) in mads {
            let mut octets = Mad::new(TransactionId::new(1), Rtu::default()).to_bytes();
            octets[17] = attribute;
            octets[24..].copy_from_slice(&data);
            if aimed {
                octets[24..28].copy_from_slice(&client.comm_id().get().to_be_bytes());
                octets[28..32].copy_from_slice(&server.comm_id().get().to_be_bytes());
            }
            let now = pair.now;
            let cm = &mut pair.hosts[SERVER].cm;
            cm.on_mad(now, path(SERVER), &octets).ok();
            pair.settle();
            pair.run(ms(1));
        }
        pair.call(CLIENT, |cm, now| cm.destroy(now, client));
        pair.call(SERVER, |cm, now| cm.destroy(now, server));
        pair.run_out();
        pair.assert_empty();
    }
}
