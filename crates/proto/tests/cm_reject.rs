//! Rejection: by the application, by the connection manager, and of what is stale.

mod cm_support;

use cm_support::*;
use softverbs_proto::cm::config::Config;
use softverbs_proto::cm::endpoint::Endpoint;
use softverbs_proto::cm::event::{CmEvent, QpAction};
use softverbs_proto::cm::ids::IdSpace;
use softverbs_proto::cm::params::{Listen, ListenToken, RejectParams};
use softverbs_proto::cm::state::State;
use softverbs_proto::qp_state::QpType;
use softverbs_wire::ib::cm::{Mad, Message, MessageKind, RejReason, Req, TransportService};
use softverbs_wire::ib::rdma_cm::{PortSpace, ServicePort};
use softverbs_wire::num::{CommId, Guid, MtuCode, PathMtu, Qpn, ServiceId, TransactionId};

/// A REQ of the client that never reached the network.
fn req(pair: &mut Pair) -> Req {
    let request = pair.connect_request(CLIENT);
    let mut cm = Endpoint::new(
        Config::default(),
        pair.hosts[CLIENT].cm.ca_guid(),
        IdSpace::whole(0x7000, 0),
    );
    cm.connect(pair.now, &request).unwrap();
    match Mad::parse(&*cm.poll_transmit().unwrap().octets)
        .unwrap()
        .message
    {
        Message::Req(req) => req,
        other => panic!("{other}"),
    }
}

fn inject(pair: &mut Pair, req: Req) {
    pair.inject(SERVER, &Mad::new(TransactionId::new(0x55), req));
}

#[test]
fn the_application_says_no() {
    let mut pair = Pair::new();
    pair.hosts[SERVER].on_request = Habit::No;
    let client = pair.connect();
    pair.run_out();
    let Some((.., CmEvent::Rejected(rejected))) = pair.hosts[CLIENT].heard.last() else {
        panic!("not rejected");
    };
    assert_eq!(rejected.reason, RejReason::CONSUMER);
    assert_eq!(rejected.private_data.len(), 148);
    assert_eq!(&rejected.private_data[..3], b"no\0");
    assert_eq!(pair.hosts[CLIENT].names(client), ["Rejected"]);
    assert_eq!(pair.hosts[SERVER].heard.len(), 1, "it knows");
    pair.assert_empty();
}

#[test]
fn the_active_side_says_no_to_the_reply() {
    let mut pair = Pair::new();
    pair.hosts[CLIENT].on_reply = Habit::No;
    let client = pair.connect();
    pair.run_out();
    let (server, _) = pair.hosts[SERVER].request();
    assert_eq!(pair.hosts[SERVER].names(server), ["Request", "Rejected"]);
    assert_eq!(pair.hosts[CLIENT].names(client), ["Reply"]);
    assert_eq!(rej(&last(&pair, CLIENT, "REJ")).message, MessageKind::REP);
    pair.assert_empty();
}

/// A process that dies after it accepted: the client hears of it after it was established.
#[test]
fn a_rejection_can_follow_the_establishment() {
    let mut pair = Pair::with_rule(|_, kind, _| if kind == "RTU" { vec![] } else { pass() });
    let client = pair.connect();
    pair.run(ms(10));
    let (server, _) = pair.hosts[SERVER].request();
    let reject = RejectParams::consumer(Vec::new());
    pair.call(SERVER, |cm, now| cm.reject(now, server, &reject).unwrap());
    assert_eq!(rej(&last(&pair, SERVER, "REJ")).message, MessageKind::OTHER);
    pair.run_out();
    assert_eq!(
        pair.hosts[CLIENT].names(client),
        ["Reply", "Established", "Rejected", "TimewaitExit"]
    );
    pair.assert_empty();
}

#[test]
fn nobody_listens() {
    let mut pair = Pair::new();
    let mut request = pair.connect_request(CLIENT);
    request.service_id = ServicePort::new(PortSpace::TCP, 1).service_id();
    let client = pair.connect_with(CLIENT, &request);
    pair.run_out();
    let rej = rej(&last(&pair, SERVER, "REJ"));
    assert_eq!(rej.reason, RejReason::INVALID_SERVICE_ID);
    assert_eq!(
        (rej.local_comm_id, rej.remote_comm_id, rej.message),
        (CommId::NONE, client.comm_id(), MessageKind::REQ)
    );
    assert_eq!(pair.hosts[CLIENT].reason(), rej.reason);
    pair.assert_empty();
}

#[test]
fn nobody_listens_any_more_or_on_that_address() {
    let mut pair = Pair::new();
    let cm = &mut pair.hosts[SERVER].cm;
    cm.unlisten(LISTENER).unwrap();
    cm.unlisten(LISTENER).unwrap_err();
    let port = ServicePort::from_service_id(service()).unwrap();
    let elsewhere = Listen::port(port, Some(ip(CLIENT).into()));
    cm.listen(ListenToken(1), elsewhere).unwrap();
    cm.listen(ListenToken(2), elsewhere).unwrap_err();
    pair.connect();
    pair.run_out();
    assert_eq!(pair.hosts[CLIENT].reason(), RejReason::CONSUMER);
    let here = Listen::port(port, Some(ip(SERVER).into()));
    pair.call(SERVER, |cm, _| cm.listen(ListenToken(3), here).unwrap());
    pair.connect();
    pair.run(ms(10));
    assert_eq!(pair.hosts[SERVER].request().1.listener, ListenToken(3));
}

#[test]
fn services_that_are_no_ports_have_no_header() {
    let mut pair = Pair::new();
    let service_id = ServiceId::new(0x1000_0000_0000_0001);
    let listen = Listen::service(service_id);
    pair.call(SERVER, |cm, _| cm.listen(ListenToken(5), listen).unwrap());
    let mut request = pair.connect_request(CLIENT);
    request.service_id = service_id;
    request.addresses = None;
    request.private_data = vec![7; 92];
    pair.connect_with(CLIENT, &request);
    pair.run(ms(5));
    let (_, heard) = pair.hosts[SERVER].request();
    assert_eq!((heard.cma, &heard.private_data), (None, &vec![7; 92]));
}

#[test]
fn what_cannot_be_served_is_rejected_with_its_reason() {
    type Change = fn(&mut Req);
    let cases: [(Change, RejReason); 7] = [
        (
            |req| req.transport_service = TransportService::RD,
            RejReason::INVALID_TRANSPORT_SERVICE,
        ),
        (
            |req| req.transport_service = TransportService::EXTENDED,
            RejReason::INVALID_TRANSPORT_SERVICE,
        ),
        (
            |req| req.path_mtu = MtuCode::new(0),
            RejReason::INVALID_PATH_MTU,
        ),
        (
            |req| req.path_mtu = PathMtu::Mtu4096.code(),
            RejReason::INVALID_PATH_MTU,
        ),
        (
            |req| req.primary_path.remote_gid = Default::default(),
            RejReason::PRIMARY_REMOTE_GID,
        ),
        (
            |req| req.private_data = Default::default(),
            RejReason::CONSUMER,
        ),
        (
            |req| req.service_id = ServiceId::new(1),
            RejReason::INVALID_SERVICE_ID,
        ),
    ];
    for (change, reason) in cases {
        let config = Config {
            max_path_mtu: PathMtu::Mtu2048,
            ..Config::default()
        };
        let mut pair = Pair::with(config, |_, _, _| pass());
        let mut req = req(&mut pair);
        change(&mut req);
        inject(&mut pair, req);
        assert_eq!(rej(&last(&pair, SERVER, "REJ")).reason, reason);
        pair.run_out();
        pair.assert_empty();
    }
}

#[test]
fn an_alternate_path_is_declined_and_uc_is_not() {
    let mut pair = Pair::new();
    let mut req = req(&mut pair);
    req.alternate_path = req.primary_path;
    req.transport_service = TransportService::UC;
    inject(&mut pair, req);
    assert_eq!(pair.hosts[SERVER].request().1.qp_type, QpType::Uc);
    match last(&pair, SERVER, "REP").message {
        Message::Rep(rep) => assert_eq!(rep.failover_accepted, 1),
        other => panic!("{other}"),
    }
}

#[test]
fn other_class_versions_are_told_so() {
    let mut pair = Pair::new();
    let mad = Mad::new(TransactionId::new(0x55), req(&mut pair));
    let mut octets = mad.to_bytes();
    octets[2] = 1;
    let now = pair.now;
    pair.hosts[SERVER]
        .cm
        .on_mad(now, path(SERVER), &octets)
        .unwrap_err();
    pair.settle();
    let answer = last(&pair, SERVER, "REJ");
    assert_eq!(answer.header.transaction_id.get(), 0x55);
    assert_eq!(rej(&answer).reason, RejReason::INVALID_CLASS_VERSION);
    assert_eq!(
        Some(rej(&answer).remote_comm_id),
        mad.message.local_comm_id()
    );
    pair.assert_empty();
}

#[test]
fn a_request_is_dropped_and_comes_again() {
    let mut pair = Pair::new();
    pair.hosts[SERVER].on_request = Habit::Wait;
    let client = pair.connect();
    pair.run(ms(10));
    let (server, _) = pair.hosts[SERVER].request();
    pair.call(SERVER, |cm, now| cm.drop_request(now, server).unwrap());
    pair.hosts[SERVER].on_request = Habit::Yes;
    pair.run(ms(5000));
    assert_eq!(pair.sent(SERVER), [(4609, "REP")], "no answer to the first");
    assert_eq!(pair.hosts[CLIENT].cm.state(client), State::Established);
}

#[test]
fn a_reply_to_nothing_is_rejected() {
    let mut pair = Pair::with_rule(|_, kind, _| if kind == "REP" { vec![ms(50)] } else { pass() });
    let client = pair.connect();
    pair.run(ms(10));
    // The REJ of the destroyed connection is lost.
    pair.rule = Box::new(|_, _, _| vec![]);
    pair.call(CLIENT, |cm, now| cm.destroy(now, client));
    pair.rule = Box::new(|_, _, _| pass());
    pair.run_out();
    let (server, _) = pair.hosts[SERVER].request();
    assert_eq!(pair.hosts[SERVER].reason(), RejReason::INVALID_COMM_ID);
    assert_eq!(pair.hosts[SERVER].names(server), ["Request", "Rejected"]);
    assert_eq!(pair.hosts[SERVER].when("Rejected"), at(52));
    pair.assert_empty();
}

/// The client's process is killed; a new one of the same adapter comes at once, with the same
/// queue pair number.
#[test]
fn a_killed_peer_reconnects_at_once() {
    for same_id in [false, true] {
        for data in [false, true] {
            let rule = move |_, kind: &str, nth| match kind {
                "RTU" if data && nth == 1 => vec![],
                _ => pass(),
            };
            let mut pair = Pair::with_rule(rule);
            let request = pair.connect_request(CLIENT);
            let first = pair.connect_with(CLIENT, &request);
            if data {
                pair.post(CLIENT, first);
            }
            pair.run(ms(10));
            let (old, _) = pair.hosts[SERVER].request();
            assert_eq!(pair.hosts[SERVER].cm.state(old), State::Established);

            let guid = pair.hosts[CLIENT].cm.ca_guid();
            let start = if same_id { 1 << 16 } else { 0x9999 };
            let ids = IdSpace::whole(start, 0x4b66_0000);
            pair.hosts[CLIENT].cm = Endpoint::new(Config::default(), guid, ids);
            pair.hosts[CLIENT].qps.clear();
            pair.hosts[CLIENT].heard.clear();
            let mut request = request.clone();
            request.starting_psn = request.starting_psn.advance(1000);
            let client = pair.connect_with(CLIENT, &request);
            assert_eq!(client == first, same_id);
            pair.run(ms(200));

            assert_eq!(rej(&last(&pair, SERVER, "REJ")).reason.get(), 10);
            let (server, _) = pair.hosts[SERVER].request();
            assert_ne!(server, old);
            assert_eq!(pair.states(client, server), [State::Established; 2]);
            assert_eq!(pair.hosts[CLIENT].names(client), ["Reply", "Established"]);
            assert_eq!(pair.hosts[CLIENT].when("Established"), at(10 + 104));
            pair.run(ms(100_000));
            assert_eq!(
                pair.hosts[SERVER].names(old),
                ["Request", "Established", "Disconnected", "TimewaitExit"]
            );
            assert_eq!(pair.states(client, server), [State::Established; 2]);
        }
    }
}

#[test]
fn a_killed_peer_reconnects_though_its_old_request_is_half_open() {
    for habit in [Habit::Wait, Habit::Yes] {
        let mut pair = Pair::with_rule(|_, kind, nth| match kind {
            "REP" if nth == 1 => vec![],
            _ => pass(),
        });
        pair.hosts[SERVER].on_request = habit;
        let request = pair.connect_request(CLIENT);
        pair.connect_with(CLIENT, &request);
        pair.run(ms(10));
        let (old, _) = pair.hosts[SERVER].request();
        let guid = pair.hosts[CLIENT].cm.ca_guid();
        let ids = IdSpace::whole(0x9999, 0);
        pair.hosts[CLIENT].cm = Endpoint::new(Config::default(), guid, ids);
        pair.hosts[CLIENT].qps.clear();
        pair.hosts[SERVER].on_request = Habit::Yes;
        let client = pair.connect_with(CLIENT, &request);
        pair.run(ms(5000));
        assert_eq!(pair.hosts[CLIENT].cm.state(client), State::Established);
        assert_eq!(pair.hosts[SERVER].names(old), ["Request", "Rejected"]);
        assert_eq!(pair.hosts[SERVER].reason().get(), 10);
    }
}

#[test]
fn a_stale_rejection_reaches_the_application_in_the_end() {
    let config = Config {
        stale_retries: 2,
        ..Config::default()
    };
    let mut pair = Pair::with(config, |_, _, _| pass());
    pair.hosts[SERVER].on_request = Habit::Wait;
    let client = pair.connect();
    pair.run(ms(1));
    for _ in 0..3 {
        let (server, _) = pair.hosts[SERVER].request();
        let reject = RejectParams::reason(RejReason::STALE_CONNECTION);
        pair.call(SERVER, |cm, now| cm.reject(now, server, &reject).unwrap());
        pair.run(ms(250));
    }
    assert_eq!(
        pair.sent(CLIENT),
        [(0, "REQ"), (102, "REQ"), (2 + 250 + 200, "REQ")]
    );
    assert_eq!(pair.hosts[CLIENT].names(client), ["Rejected"]);
    assert_eq!(pair.hosts[CLIENT].reason(), RejReason::STALE_CONNECTION);
    pair.run_out();
    pair.assert_empty();
}

/// The server's process is killed and a new one replies with a queue pair that the client still
/// has a connection to.
#[test]
fn a_reply_with_a_queue_pair_of_a_live_connection_is_stale() {
    let mut pair = Pair::new();
    let first = pair.connect();
    pair.run(ms(10));
    let (old, _) = pair.hosts[SERVER].request();
    let (old_qpn, _) = pair.hosts[SERVER].qp(old);
    let guid = pair.hosts[SERVER].cm.ca_guid();
    let ids = IdSpace::whole(0x9999, 0);
    pair.hosts[SERVER].cm = Endpoint::new(Config::default(), guid, ids);
    pair.hosts[SERVER].qps.clear();
    pair.hosts[SERVER].on_request = Habit::Wait;
    let listen = Listen::service(service());
    pair.call(SERVER, |cm, _| cm.listen(LISTENER, listen).unwrap());
    let client = pair.connect();
    pair.run(ms(1));
    let accept = |pair: &mut Pair| {
        let (server, _) = pair.hosts[SERVER].request();
        let mut params = pair.accept_params(SERVER);
        params.qpn = old_qpn;
        pair.hosts[SERVER].qps.clear();
        pair.hosts[SERVER].add_qp(old_qpn, server);
        pair.call(SERVER, |cm, now| cm.accept(now, server, &params).unwrap());
    };
    accept(&mut pair);
    pair.run(ms(2));
    assert_eq!(rej(&last(&pair, CLIENT, "REJ")).message, MessageKind::REP);
    assert_eq!(pair.hosts[SERVER].reason().get(), 10);
    pair.run(ms(110));
    accept(&mut pair);
    pair.run(ms(10));
    assert_eq!(pair.hosts[CLIENT].cm.state(client), State::Established);
    assert_eq!(pair.hosts[CLIENT].names(client), ["Reply", "Established"]);
    assert_eq!(
        pair.hosts[CLIENT].names(first),
        ["Reply", "Established", "Disconnected"]
    );
}

#[test]
fn a_stale_connection_stops_sending_at_once() {
    let mut pair = Pair::new();
    pair.connect();
    pair.run(ms(10));
    let mut stale = req(&mut pair);
    let (_, request) = pair.hosts[SERVER].request();
    stale.local_qpn = request.remote_qpn;
    let now = pair.now;
    let cm = &mut pair.hosts[SERVER].cm;
    let mad = Mad::new(TransactionId::new(1), stale);
    cm.on_mad(now, path(SERVER), &mad.to_bytes()).unwrap();
    let (_, event) = cm.poll_event().unwrap();
    assert_eq!(event, CmEvent::Qp(QpAction::ToErr));
}

#[test]
fn other_adapters_and_other_hosts_may_use_the_same_numbers() {
    let mut pair = Pair::new();
    pair.connect();
    pair.run(ms(10));
    let (old, request) = pair.hosts[SERVER].request();
    let (qpn, comm_id) = (request.remote_qpn, request.remote_comm_id);
    let mut other = req(&mut pair);
    other.local_qpn = qpn;
    other.local_comm_id = comm_id;
    other.local_ca_guid = Guid::new(1);
    inject(&mut pair, other);
    other.local_ca_guid = pair.hosts[CLIENT].cm.ca_guid();
    let mut address = path(SERVER);
    address.remote = std::net::Ipv4Addr::new(10, 9, 9, 9).into();
    let now = pair.now;
    let octets = Mad::new(TransactionId::new(2), other).to_bytes();
    pair.hosts[SERVER].cm.on_mad(now, address, &octets).unwrap();
    while let Some((id, _)) = pair.hosts[SERVER].cm.poll_event() {
        assert_ne!(id, old);
    }
    assert_eq!(pair.hosts[SERVER].cm.connections(), 3);
    assert_eq!(pair.hosts[SERVER].cm.state(old), State::Established);
}

/// The connection is over on both sides, though its names are still known.
#[test]
fn timewait_is_no_obstacle_for_a_queue_pair_number() {
    let mut pair = Pair::new();
    let request = pair.connect_request(CLIENT);
    let first = pair.connect_with(CLIENT, &request);
    pair.run(ms(10));
    pair.call(CLIENT, |cm, now| cm.disconnect(now, first).unwrap());
    pair.run(ms(5));
    let (old, _) = pair.hosts[SERVER].request();
    assert_eq!(pair.states(first, old), [State::Timewait; 2]);
    pair.hosts[CLIENT].qps.clear();
    let client = pair.connect_with(CLIENT, &request);
    pair.run(ms(5));
    assert_eq!(pair.hosts[CLIENT].cm.state(client), State::Established);
    assert_eq!(pair.count(SERVER, "REJ"), 0);
}

/// A copy of the REQ that the network kept for long.
#[test]
fn an_old_request_does_not_revive_its_connection() {
    let mut pair = Pair::with_rule(|_, kind, _| match kind {
        "REQ" => vec![ms(1), ms(100), ms(2000)],
        _ => pass(),
    });
    let client = pair.connect();
    pair.run(ms(10));
    pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
    pair.run(ms(500));
    assert_eq!(rej(&last(&pair, SERVER, "REJ")).reason.get(), 10);
    pair.run_out();
    // After TimeWait it looks like a new one, but nobody waits for the REP.
    assert_eq!(pair.hosts[SERVER].reason(), RejReason::INVALID_COMM_ID);
    let established = |host: usize| {
        let heard = pair.hosts[host].heard.iter();
        heard
            .filter(|(.., event)| *event == CmEvent::Established)
            .count()
    };
    assert_eq!((established(CLIENT), established(SERVER)), (1, 1));
    pair.assert_empty();
}

#[test]
fn a_qpn_is_no_secret_between_peers() {
    // Two connections of one adapter to one listener differ by queue pair and communication ID.
    let mut pair = Pair::new();
    let ids: Vec<_> = (0..50).map(|_| pair.connect()).collect();
    pair.run(ms(10));
    for id in &ids {
        assert_eq!(pair.hosts[CLIENT].cm.state(*id), State::Established);
    }
    let mut qpns: Vec<Qpn> = pair.hosts[SERVER]
        .qps
        .values()
        .map(|qp| qp.rtr.unwrap().dest_qpn)
        .collect();
    qpns.dedup();
    assert_eq!(qpns.len(), 50);
    for id in ids {
        pair.call(CLIENT, |cm, now| cm.disconnect(now, id).unwrap());
    }
    pair.run_out();
    pair.assert_empty();
}

/// The peer died after it replied, and its successor wants something of us.
#[test]
fn a_stale_connection_that_we_have_not_confirmed() {
    let mut pair = Pair::new();
    pair.hosts[CLIENT].on_reply = Habit::Wait;
    let client = pair.connect();
    pair.run(ms(10));
    let mut stale = req(&mut pair);
    let reply = pair.hosts[CLIENT].reply();
    stale.local_qpn = reply.remote_qpn;
    stale.local_ca_guid = reply.remote_ca_guid;
    pair.inject(CLIENT, &Mad::new(TransactionId::new(1), stale));
    assert_eq!(pair.hosts[CLIENT].names(client), ["Reply", "Rejected"]);
    assert_eq!(pair.hosts[CLIENT].reason(), RejReason::STALE_CONNECTION);
    assert_eq!(rej(&last(&pair, CLIENT, "REJ")).reason.get(), 10);
    pair.run(ms(600));
    assert_eq!(
        pair.hosts[CLIENT].names(client),
        ["Reply", "Rejected", "TimewaitExit"]
    );
}

/// An attempt after a stale rejection has all its retries, at the usual interval, although an MRA
/// had made it longer.
#[test]
fn an_attempt_after_a_stale_rejection_is_a_whole_one() {
    let mut pair = Pair::with_rule(|_, kind, nth| match kind {
        "REQ" if nth > 2 => vec![],
        _ => pass(),
    });
    pair.hosts[SERVER].on_request = Habit::Wait;
    let client = pair.connect();
    pair.run(ms(4700));
    assert_eq!(pair.hosts[CLIENT].cm.state(client), State::MraReqRcvd);
    let (server, _) = pair.hosts[SERVER].request();
    let reject = RejectParams::reason(RejReason::STALE_CONNECTION);
    pair.call(SERVER, |cm, now| cm.reject(now, server, &reject).unwrap());
    pair.run_out();
    assert_eq!(pair.count(CLIENT, "REQ"), 2 + 16);
    assert_eq!(pair.hosts[CLIENT].names(client), ["Unreachable"]);
    let again = 4700 + 1 + 100;
    assert_eq!(
        pair.hosts[CLIENT].when("Unreachable"),
        at(again + 16 * 4608)
    );
}
