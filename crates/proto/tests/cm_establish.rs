//! Establishment: who hears what, whatever is lost, late, doubled or out of order.

mod cm_support;

use cm_support::*;
use softverbs_proto::cm::config::Config;
use softverbs_proto::cm::event::CmEvent;
use softverbs_proto::cm::params::{AcceptParams, RejectParams};
use softverbs_proto::cm::state::State;
use softverbs_proto::fault::Misuse;
use softverbs_proto::qp_state::{QpState, QpType};
use softverbs_proto::send_gate::Opener;
use softverbs_wire::ib::cm::{Message, TransportService};
use softverbs_wire::num::{Psn, Qpn, RetryCount, TimeoutCode};

const BOTH: [State; 2] = [State::Established; 2];

#[test]
fn both_sides_get_what_the_other_offers() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.run(ms(3));
    let (server, request) = pair.hosts[SERVER].request();
    assert_eq!(request.listener, LISTENER);
    assert_eq!(request.private_data.len(), 56, "always the whole field");
    assert_eq!(&request.private_data[..5], b"ping\0");
    let cma = request.cma.unwrap();
    assert_eq!(cma.source_ip(), Some(ip(CLIENT).into()));
    assert_eq!(
        (cma.source_port, cma.destination_ip()),
        (4711, Some(ip(SERVER).into()))
    );
    assert_eq!(
        (request.responder_resources, request.initiator_depth),
        (4, 3),
        "swapped to the listener's view"
    );
    let reply = pair.hosts[CLIENT].reply();
    assert_eq!(reply.private_data.len(), 196);
    assert_eq!(&reply.private_data[..5], b"pong\0");
    assert_eq!((reply.responder_resources, reply.initiator_depth), (3, 4));
    assert_eq!(pair.states(client, server), BOTH);
    assert_eq!(pair.hosts[CLIENT].names(client), ["Reply", "Established"]);
    assert_eq!(pair.hosts[SERVER].names(server), ["Request", "Established"]);
    assert_eq!(pair.opener(CLIENT, client), Some(Opener::Role));
    assert_eq!(pair.opener(SERVER, server), Some(Opener::ReadyToUse));
    assert!(pair.run_out().is_zero(), "no timer is left");
}

#[test]
fn queue_pairs_fit_together() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.run(ms(3));
    let (server, _) = pair.hosts[SERVER].request();
    let (client_qpn, qp) = pair.hosts[CLIENT].qp(client);
    let (client_rtr, client_rts) = (qp.rtr.unwrap(), qp.rts.unwrap());
    let (server_qpn, qp) = pair.hosts[SERVER].qp(server);
    let (server_rtr, server_rts) = (qp.rtr.unwrap(), qp.rts.unwrap());
    assert_eq!(client_rtr.dest_qpn, server_qpn);
    assert_eq!(server_rtr.dest_qpn, client_qpn);
    assert_eq!(client_rtr.rq_psn, server_rts.sq_psn);
    assert_eq!(server_rtr.rq_psn, client_rts.sq_psn);
    assert_eq!(client_rtr.max_dest_rd_atomic, server_rts.max_rd_atomic);
    assert_eq!(server_rtr.max_dest_rd_atomic, client_rts.max_rd_atomic);
    assert_eq!(client_rtr.path_mtu, server_rtr.path_mtu);
    // 6 is the client's retry count; RNR retry counts cross: each side gets the other's.
    assert_eq!(client_rts.retry_count.get(), 6);
    assert_eq!(server_rts.retry_count.get(), 6);
    assert_eq!(client_rts.rnr_retry_count.get(), 2);
    assert_eq!(server_rts.rnr_retry_count.get(), 5);
    assert_eq!(client_rts.timeout, TimeoutCode::new(17));
    assert_eq!(server_rts.timeout, TimeoutCode::new(17));
    assert_eq!(client_rtr.path.remote_gid, path(CLIENT).remote);
    assert_eq!(server_rtr.path.remote_gid, path(SERVER).remote);
    assert_eq!(server_rtr.path.hop_limit, 64);
}

#[test]
fn the_passive_side_is_ready_before_it_replies_and_holds_its_gate() {
    let mut pair = Pair::with_rule(|_, kind, _| if kind == "REP" { vec![] } else { pass() });
    pair.connect();
    pair.run(ms(1));
    let (server, _) = pair.hosts[SERVER].request();
    pair.post(SERVER, server);
    pair.run(ms(100));
    let (_, qp) = pair.hosts[SERVER].qp(server);
    assert_eq!((qp.state, qp.waiting), (QpState::Rts, 1));
    assert!(!qp.gate.is_open());
}

#[test]
fn data_establishes_when_every_rtu_is_lost() {
    let mut pair = Pair::with_rule(|_, kind, _| if kind == "RTU" { vec![] } else { pass() });
    let client = pair.connect();
    pair.post(CLIENT, client);
    pair.run(ms(3));
    let (server, _) = pair.hosts[SERVER].request();
    // REQ, REP and the first packet: one millisecond each.
    assert_eq!(pair.hosts[SERVER].when("Established"), at(3));
    assert_eq!(pair.opener(SERVER, server), Some(Opener::FirstFrame));
    pair.post(SERVER, server);
    pair.run(ms(60_000));
    assert_eq!(pair.count(SERVER, "REP"), 1, "no REP is repeated");
    assert_eq!(pair.count(SERVER, "DATA"), 1);
    assert_eq!(pair.states(client, server), BOTH);
    assert_eq!(pair.hosts[SERVER].names(server), ["Request", "Established"]);
    assert!(pair.run_out().is_zero());
}

#[test]
fn a_late_rtu_after_data_changes_nothing() {
    let mut pair = Pair::with_rule(|_, kind, _| match kind {
        "RTU" => vec![ms(5), ms(700), ms(701)],
        _ => pass(),
    });
    let client = pair.connect();
    pair.post(CLIENT, client);
    pair.run(ms(2000));
    let (server, _) = pair.hosts[SERVER].request();
    assert_eq!(pair.hosts[SERVER].names(server), ["Request", "Established"]);
    assert_eq!(pair.hosts[SERVER].when("Established"), at(3));
    assert_eq!(pair.states(client, server), BOTH);
}

#[test]
fn late_data_after_the_rtu_changes_nothing() {
    let mut pair = Pair::with_rule(|_, kind, _| match kind {
        "DATA" => vec![ms(50)],
        _ => pass(),
    });
    let client = pair.connect();
    pair.post(CLIENT, client);
    pair.run(ms(2000));
    let (server, _) = pair.hosts[SERVER].request();
    assert_eq!(pair.hosts[SERVER].names(server), ["Request", "Established"]);
    assert_eq!(pair.opener(SERVER, server), Some(Opener::ReadyToUse));
    assert_eq!(pair.hosts[SERVER].qp(server).1.received, 1);
}

/// Without data, the REP's repetition brings another RTU: the only way there is.
#[test]
fn a_lost_rtu_is_repeated_for_a_repeated_rep() {
    let mut pair = Pair::with_rule(|_, kind, nth| match kind {
        "RTU" if nth <= 3 => vec![],
        _ => pass(),
    });
    let client = pair.connect();
    pair.run(ms(60_000));
    let (server, _) = pair.hosts[SERVER].request();
    assert_eq!(pair.states(client, server), BOTH);
    let reps: Vec<_> = pair.sent(SERVER);
    let expected = [1, 4097, 8193, 12_289].map(|time| (time, "REP"));
    assert_eq!(reps, expected);
    assert_eq!(pair.hosts[CLIENT].names(client), ["Reply", "Established"]);
}

#[test]
fn lost_replies_are_repeated_by_time() {
    for lost in [1, 2, 7, 15] {
        let mut pair = Pair::with_rule(move |_, kind, nth| match kind {
            "REP" if nth <= lost => vec![],
            _ => pass(),
        });
        let client = pair.connect();
        pair.run(ms(100_000));
        let (server, _) = pair.hosts[SERVER].request();
        assert_eq!(pair.states(client, server), BOTH, "{lost} lost");
        let reps = pair.count(SERVER, "REP");
        assert_eq!(reps, lost + 1);
        let requests: Vec<_> = pair.hosts[SERVER].names(server);
        assert_eq!(requests, ["Request", "Established"]);
    }
}

#[test]
fn lost_requests_are_repeated_by_time() {
    let mut pair = Pair::with_rule(|_, kind, nth| match kind {
        "REQ" if nth <= 3 => vec![],
        _ => pass(),
    });
    let client = pair.connect();
    pair.run(ms(20_000));
    let (server, _) = pair.hosts[SERVER].request();
    assert_eq!(pair.states(client, server), BOTH);
    let expected = [0, 4608, 9216, 13_824].map(|time| (time, "REQ"));
    assert_eq!(pair.sent(CLIENT)[..4], expected);
}

#[test]
fn doubled_messages_have_one_effect() {
    for kind in ["REQ", "REP", "RTU", "DREQ", "DREP", "DATA", "all"] {
        let mut pair = Pair::with_rule(move |_, what, _| {
            if kind == what || kind == "all" {
                vec![ms(1), ms(1), ms(3), ms(40)]
            } else {
                pass()
            }
        });
        let client = pair.connect();
        pair.post(CLIENT, client);
        pair.run(ms(100));
        let (server, _) = pair.hosts[SERVER].request();
        assert_eq!(pair.states(client, server), BOTH, "{kind}");
        pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
        pair.run_out();
        for (host, id, first) in [(CLIENT, client, "Reply"), (SERVER, server, "Request")] {
            assert_eq!(
                pair.hosts[host].names(id),
                [first, "Established", "Disconnected", "TimewaitExit"],
                "{kind}"
            );
        }
        pair.assert_empty();
    }
}

/// The passive side takes its time. The REQ comes again, an MRA stops it.
#[test]
fn a_slow_decision_is_announced_when_the_request_comes_again() {
    let mut pair = Pair::new();
    pair.hosts[SERVER].on_request = Habit::Wait;
    let client = pair.connect();
    pair.run(ms(60_000));
    let (server, _) = pair.hosts[SERVER].request();
    assert_eq!(
        pair.states(client, server),
        [State::MraReqRcvd, State::MraReqSent]
    );
    assert_eq!(pair.sent(CLIENT), [(0, "REQ"), (4608, "REQ")]);
    assert_eq!(pair.sent(SERVER), [(4609, "MRA")]);
    pair.accept(SERVER, server);
    pair.run(ms(10));
    assert_eq!(pair.states(client, server), BOTH);
}

#[test]
fn without_mras_repeated_messages_are_ignored() {
    let config = Config {
        delayed_mra: None,
        ..Config::default()
    };
    let mut pair = Pair::with(config, |_, _, _| pass());
    pair.hosts[SERVER].on_request = Habit::Wait;
    pair.hosts[CLIENT].on_reply = Habit::Wait;
    let client = pair.connect();
    pair.run(ms(10_000));
    let (server, _) = pair.hosts[SERVER].request();
    let states = [State::ReqSent, State::ReqRcvd];
    assert_eq!(pair.states(client, server), states);
    pair.accept(SERVER, server);
    pair.run(ms(10_000));
    let states = [State::RepRcvd, State::RepSent];
    assert_eq!(pair.states(client, server), states);
    assert_eq!(pair.count(CLIENT, "MRA") + pair.count(SERVER, "MRA"), 0);
    // Told in so many words, the peer waits.
    let service = TimeoutCode::new(24);
    pair.call(CLIENT, |cm, now| cm.mra(now, client, service).unwrap());
    pair.run(ms(10_000));
    let states = [State::MraRepSent, State::MraRepRcvd];
    assert_eq!(pair.states(client, server), states);
    pair.call(CLIENT, |cm, now| cm.establish(now, client).unwrap());
    pair.run(ms(1));
    assert_eq!(pair.states(client, server), BOTH);
}

/// All three messages of the establishment and the first packets overtake one another.
#[test]
fn any_order_of_arrival_establishes_once() {
    for seed in 0..500_usize {
        let mut state = seed;
        let mut pair = Pair::with_rule(move |_, _, _| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let random = (state >> 33) % 60;
            let late = ms(u64::try_from(random).unwrap());
            match random % 5 {
                0 => vec![],
                1 => vec![late, ms(1)],
                _ => vec![late],
            }
        });
        let client = pair.connect();
        for _ in 0..40 {
            pair.run(ms(700));
            if pair.hosts[CLIENT].cm.state(client) == State::Established {
                pair.post(CLIENT, client);
            }
        }
        let (server, _) = pair.hosts[SERVER].request();
        assert_eq!(pair.states(client, server), BOTH, "{seed}");
        assert_eq!(pair.hosts[CLIENT].names(client), ["Reply", "Established"]);
        assert_eq!(pair.hosts[SERVER].names(server), ["Request", "Established"]);
    }
}

#[test]
fn an_mra_extends_the_wait_and_not_for_ever() {
    let mut pair = Pair::with_rule(|host, kind, _| match (host, kind) {
        (SERVER, "REP") => vec![],
        _ => pass(),
    });
    pair.hosts[SERVER].on_request = Habit::Wait;
    pair.connect();
    pair.run(ms(1));
    let (server, _) = pair.hosts[SERVER].request();
    let eighteen = TimeoutCode::new(22);
    pair.call(SERVER, |cm, now| cm.mra(now, server, eighteen).unwrap());
    pair.run(ms(40_000));
    // Received after 2 ms; 16.384 s of service and 512 ms of path.
    assert_eq!(
        pair.sent(CLIENT),
        [(0, "REQ"), (2 + 16_896, "REQ"), (2 + 2 * 16_896, "REQ")]
    );
    pair.call(SERVER, |cm, now| cm.destroy(now, server));
    pair.run_out();
    assert_eq!(pair.hosts[CLIENT].reason().get(), 28);
    pair.assert_empty();
}

#[test]
fn the_active_side_may_be_slow_too() {
    let mut pair = Pair::new();
    pair.hosts[CLIENT].on_reply = Habit::Wait;
    let client = pair.connect();
    pair.run(ms(20_000));
    let (server, _) = pair.hosts[SERVER].request();
    assert_eq!(
        pair.states(client, server),
        [State::MraRepSent, State::MraRepRcvd]
    );
    assert_eq!(pair.sent(SERVER), [(1, "REP"), (4097, "REP")]);
    pair.call(CLIENT, |cm, now| cm.establish(now, client).unwrap());
    pair.run(ms(1));
    assert_eq!(pair.states(client, server), BOTH);
}

#[test]
fn nobody_there_ends_after_16_attempts() {
    let mut pair = Pair::with_rule(|host, _, _| if host == CLIENT { vec![] } else { pass() });
    let client = pair.connect();
    pair.run_out();
    assert_eq!(pair.count(CLIENT, "REQ"), 16);
    assert_eq!(pair.hosts[CLIENT].names(client), ["Unreachable"]);
    assert_eq!(pair.hosts[CLIENT].when("Unreachable"), at(16 * 4608));
    assert_eq!(pair.hosts[CLIENT].qp(client).1.state, QpState::Err);
    assert_eq!(
        pair.count(CLIENT, "REJ"),
        1,
        "the peer may have heard the REQ"
    );
    pair.assert_empty();
}

#[test]
fn a_silent_active_side_ends_after_16_replies() {
    let mut pair = Pair::with_rule(|host, kind, _| match (host, kind) {
        (CLIENT, "REQ") => pass(),
        (SERVER, "REJ") => pass(),
        _ => vec![],
    });
    let client = pair.connect();
    pair.hosts[CLIENT]
        .cm
        .drop_request(at(0), client)
        .unwrap_err();
    pair.run_out();
    let (server, _) = pair.hosts[SERVER].request();
    assert_eq!(pair.hosts[SERVER].names(server), ["Request", "Unreachable"]);
    assert_eq!(pair.hosts[SERVER].when("Unreachable"), at(1 + 16 * 4096));
    // Its REJ of reason 4 tells the client, which has no name of the server for it.
    assert_eq!(pair.hosts[CLIENT].names(client), ["Rejected"]);
    assert_eq!(pair.hosts[CLIENT].reason().get(), 4);
    pair.assert_empty();
}

#[test]
fn what_failed_locally_is_withdrawn_before_it_is_sent() {
    let mut pair = Pair::new();
    pair.hosts[SERVER].on_request = Habit::Wait;
    let client = pair.connect();
    pair.run(ms(2));
    let (server, _) = pair.hosts[SERVER].request();
    let params = pair.accept_params(SERVER);
    let now = pair.now;
    let cm = &mut pair.hosts[SERVER].cm;
    cm.accept(now, server, &params).unwrap();
    // The queue pair could not be modified.
    cm.destroy(now, server);
    assert_eq!(cm.poll_event(), None, "nobody wants to hear of it");
    pair.settle();
    pair.run(ms(10));
    assert_eq!(pair.count(SERVER, "REP"), 0);
    assert_eq!(pair.hosts[CLIENT].names(client), ["Rejected"]);
    pair.run_out();
    pair.assert_empty();
}

#[test]
fn nothing_is_heard_of_what_was_rejected() {
    let mut pair = Pair::new();
    pair.hosts[SERVER].on_request = Habit::Wait;
    pair.connect();
    pair.run(ms(2));
    let (server, _) = pair.hosts[SERVER].request();
    let params = pair.accept_params(SERVER);
    let now = pair.now;
    let cm = &mut pair.hosts[SERVER].cm;
    cm.accept(now, server, &params).unwrap();
    let reject = RejectParams::consumer(Vec::new());
    cm.reject(now, server, &reject).unwrap();
    assert_eq!(cm.poll_event(), None);
    pair.run_out();
    assert_eq!(pair.count(SERVER, "REP"), 0);
    assert_eq!(pair.hosts[SERVER].names(server), ["Request"]);
    pair.assert_empty();
}

#[test]
fn commands_at_the_wrong_moment_are_refused_and_harmless() {
    let mut pair = Pair::new();
    let client = pair.connect();
    let refused = |result: Result<(), Misuse>| assert_eq!(result, Err(Misuse::State));
    pair.call(CLIENT, |cm, now| {
        refused(cm.establish(now, client));
        refused(cm.disconnect(now, client));
        refused(cm.disconnect_reply(now, client));
        refused(cm.drop_request(now, client));
    });
    pair.run(ms(10));
    let (server, _) = pair.hosts[SERVER].request();
    assert_eq!(pair.states(client, server), BOTH);
    let params = pair.accept_params(SERVER);
    pair.call(SERVER, |cm, now| refused(cm.accept(now, server, &params)));
    pair.call(SERVER, |cm, now| {
        cm.destroy(now, server);
        assert!(cm.disconnect(now, server).is_err(), "the name is gone");
    });
}

#[test]
fn too_much_private_data_is_refused() {
    let mut pair = Pair::new();
    let mut request = pair.connect_request(CLIENT);
    assert_eq!(request.max_private_data(), 56);
    request.private_data = vec![1; 57];
    let refused = pair.call(CLIENT, |cm, now| cm.connect(now, &request));
    assert_eq!(refused, Err(Misuse::PrivateDataTooLong));
    request.addresses = None;
    request.private_data = vec![1; 93];
    let refused = pair.call(CLIENT, |cm, now| cm.connect(now, &request));
    assert_eq!(refused, Err(Misuse::PrivateDataTooLong));
    pair.assert_empty();

    pair.hosts[SERVER].on_request = Habit::Wait;
    pair.connect();
    pair.run(ms(1));
    let (server, _) = pair.hosts[SERVER].request();
    let mut params = pair.accept_params(SERVER);
    params.private_data = vec![1; 197];
    let refused = pair.call(SERVER, |cm, now| cm.accept(now, server, &params));
    assert_eq!(refused, Err(Misuse::PrivateDataTooLong));
    pair.accept(SERVER, server);
}

/// A device that connects to itself has both halves of the connection.
#[test]
fn a_device_connects_to_itself() {
    let mut pair = Pair::new();
    let mut request = pair.connect_request(SERVER);
    request.route.address.remote = request.route.address.local;
    let cm = &mut pair.hosts[SERVER].cm;
    let mut heard = Vec::new();
    let client = cm.connect(at(0), &request).unwrap();
    loop {
        while let Some((id, event)) = cm.poll_event() {
            match event {
                CmEvent::Request(_) => {
                    let params = AcceptParams {
                        qpn: Qpn::new(99),
                        starting_psn: Psn::new(1),
                        responder_resources: 0,
                        initiator_depth: 0,
                        rnr_retry_count: RetryCount::MAX,
                        flow_control: false,
                        srq: false,
                        private_data: Vec::new(),
                    };
                    cm.accept(at(0), id, &params).unwrap();
                }
                CmEvent::Reply(_) => cm.establish(at(0), id).unwrap(),
                CmEvent::Established => {
                    heard.push(id);
                    if heard.len() == 2 {
                        cm.disconnect(at(0), client).unwrap();
                    }
                }
                CmEvent::Disconnected(_) => cm.disconnect(at(0), id).unwrap(),
                _ => {}
            }
        }
        let Some(transmit) = cm.poll_transmit() else {
            break;
        };
        cm.on_mad(at(0), transmit.address.reversed(), &*transmit.octets)
            .unwrap();
    }
    assert_eq!(heard.len(), 2);
    cm.on_timeout(at(512));
    while cm.poll_event().is_some() {}
    assert!(cm.is_idle());
}

#[test]
fn a_sending_end_of_xrc_finds_its_receiving_end() {
    let mut pair = Pair::new();
    let mut request = pair.connect_request(CLIENT);
    request.qp_type = QpType::XrcSend;
    let client = pair.connect_with(CLIENT, &request);
    pair.run(ms(3));
    let (server, of_peer) = pair.hosts[SERVER].request();
    assert_eq!(of_peer.qp_type, QpType::XrcRecv);
    assert_eq!(
        (of_peer.responder_resources, of_peer.initiator_depth),
        (4, 0)
    );
    assert_eq!(pair.states(client, server), BOTH);
    // IBA annex A14: the type is an extended one, and the REP names the queue pair as a context.
    let Message::Req(req) = last(&pair, CLIENT, "REQ").message else {
        panic!("no REQ");
    };
    let service = (req.transport_service, req.extended_transport);
    assert_eq!(service, (TransportService::EXTENDED, 1));
    let (qpn, qp) = pair.hosts[SERVER].qp(server);
    assert_eq!(qp.rtr.unwrap().qp_type, QpType::XrcRecv);
    let Message::Rep(rep) = last(&pair, SERVER, "REP").message else {
        panic!("no REP");
    };
    assert_eq!((rep.local_qpn.get(), rep.local_eecn.get()), (0, qpn.get()));
    assert!(rep.srq);
    let (_, qp) = pair.hosts[CLIENT].qp(client);
    assert_eq!(qp.rtr.unwrap().dest_qpn, qpn);
    assert_eq!(pair.hosts[CLIENT].reply().remote_qpn, qpn);
}
