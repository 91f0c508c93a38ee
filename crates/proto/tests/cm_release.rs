//! Release: disconnecting from either side, from both, from none; TimeWait; destroying.

mod cm_support;

use cm_support::*;
use softverbs_proto::cm::config::Config;
use softverbs_proto::cm::endpoint::Endpoint;
use softverbs_proto::cm::event::{CmEvent, CmStatus};
use softverbs_proto::cm::ids::IdSpace;
use softverbs_proto::cm::params::{Adapter, ConnectionId, Listen};
use softverbs_proto::cm::state::State;
use softverbs_proto::qp_state::QpState;
use softverbs_wire::ib::cm::{ApStatus, Dreq, Lap, Mad, Message, MessageKind, Rej, RejReason};
use softverbs_wire::num::{CommId, Qpn, TimeoutCode, TransactionId};

/// Both connected.
fn connected(
    rule: impl FnMut(usize, &'static str, usize) -> Fate + 'static,
) -> (Pair, ConnectionId, ConnectionId) {
    let mut pair = Pair::with_rule(rule);
    let client = pair.connect();
    pair.run(ms(10));
    let (server, _) = pair.hosts[SERVER].request();
    assert_eq!(pair.states(client, server), [State::Established; 2]);
    (pair, client, server)
}

fn status(pair: &Pair, host: usize) -> CmStatus {
    let found = pair.hosts[host]
        .heard
        .iter()
        .find_map(|(.., event)| match event {
            CmEvent::Disconnected(status) => Some(*status),
            _ => None,
        });
    found.expect("it is disconnected")
}

#[test]
fn the_one_who_disconnects_waits_for_the_others_application() {
    let (mut pair, client, server) = connected(|_, _, _| pass());
    pair.hosts[SERVER].on_disconnected = Habit::Wait;
    pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
    assert_eq!(pair.hosts[CLIENT].qp(client).1.state, QpState::Err);
    pair.run(ms(20));
    assert_eq!(
        pair.states(client, server),
        [State::DreqSent, State::DreqRcvd]
    );
    assert_eq!(pair.hosts[SERVER].qp(server).1.state, QpState::Rts);
    assert_eq!(pair.hosts[CLIENT].names(client).len(), 2);
    pair.call(SERVER, |cm, now| cm.disconnect_reply(now, server).unwrap());
    assert_eq!(pair.hosts[SERVER].qp(server).1.state, QpState::Err);
    pair.run(ms(2));
    assert_eq!(pair.states(client, server), [State::Timewait; 2]);
    assert_eq!(status(&pair, CLIENT), CmStatus::Success);
    let dreq = last(&pair, CLIENT, "DREQ").header.transaction_id;
    assert_eq!(last(&pair, SERVER, "DREP").header.transaction_id, dreq);
    pair.run_out();
    // TimeWait of the path's timeout, 17.
    assert_eq!(pair.hosts[SERVER].when("TimewaitExit"), at(30 + 512));
    assert_eq!(pair.hosts[CLIENT].when("TimewaitExit"), at(31 + 512));
    pair.assert_empty();
}

#[test]
fn the_passive_side_may_disconnect() {
    let (mut pair, client, server) = connected(|_, _, _| pass());
    pair.call(SERVER, |cm, now| cm.disconnect(now, server).unwrap());
    pair.run_out();
    let dreq = last(&pair, SERVER, "DREQ").header.transaction_id;
    assert_eq!(last(&pair, CLIENT, "DREP").header.transaction_id, dreq);
    for (host, id) in [(CLIENT, client), (SERVER, server)] {
        assert_eq!(status(&pair, host), CmStatus::Success);
        assert_eq!(pair.hosts[host].names(id).last(), Some(&"TimewaitExit"));
    }
    pair.assert_empty();
}

#[test]
fn both_disconnect_at_once() {
    for lost in [None, Some(CLIENT), Some(SERVER)] {
        let (mut pair, client, server) = connected(move |host, kind, nth| {
            let lose = kind == "DREP" && Some(host) == lost && nth == 1;
            if lose { vec![] } else { pass() }
        });
        pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
        pair.call(SERVER, |cm, now| cm.disconnect(now, server).unwrap());
        pair.run(ms(5));
        assert_eq!(pair.states(client, server), [State::Timewait; 2]);
        assert_eq!(pair.count(CLIENT, "DREP") + pair.count(SERVER, "DREP"), 2);
        pair.run_out();
        for (host, id) in [(CLIENT, client), (SERVER, server)] {
            assert_eq!(status(&pair, host), CmStatus::Success);
            assert_eq!(
                pair.hosts[host].names(id)[2..],
                ["Disconnected", "TimewaitExit"]
            );
        }
        pair.assert_empty();
    }
}

#[test]
fn a_lost_drep_is_sent_again() {
    let (mut pair, client, _) = connected(|_, kind, nth| match kind {
        // The fourth comes when the server has forgotten the connection.
        "DREP" if nth < 4 => vec![],
        _ => pass(),
    });
    pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
    pair.run_out();
    assert_eq!(status(&pair, CLIENT), CmStatus::Success);
    assert_eq!(pair.count(CLIENT, "DREQ"), 4);
    pair.assert_empty();
}

#[test]
fn a_silent_peer_is_disconnected_after_16_attempts() {
    let (mut pair, client, _) = connected(|_, kind, _| match kind {
        "DREQ" => vec![],
        _ => pass(),
    });
    pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
    pair.run_out();
    assert_eq!(status(&pair, CLIENT), CmStatus::TimedOut);
    assert_eq!(status(&pair, CLIENT).errno(), -110);
    assert_eq!(pair.count(CLIENT, "DREQ"), 16);
    assert_eq!(pair.hosts[CLIENT].when("Disconnected"), at(10 + 16 * 4608));
    assert_eq!(pair.hosts[CLIENT].cm.connections(), 0);
}

/// The passive side uses the timeout of the REQ.
#[test]
fn the_passive_side_times_out_by_the_timeout_of_the_request() {
    let (mut pair, _, server) = connected(|_, kind, _| match kind {
        "DREQ" => vec![],
        _ => pass(),
    });
    pair.call(SERVER, |cm, now| cm.disconnect(now, server).unwrap());
    pair.run_out();
    assert_eq!(pair.hosts[SERVER].when("Disconnected"), at(10 + 16 * 4096));
}

/// Where a host finds the adapter of the other one.
fn adapter_of_peer(pair: &Pair, host: usize) -> Adapter {
    Adapter {
        address: path(host).remote,
        guid: pair.hosts[1 - host].cm.ca_guid(),
    }
}

/// As if a DREQ had come, but for the answer.
#[test]
fn a_peer_that_is_gone_is_disconnected() {
    for host in [CLIENT, SERVER] {
        let (mut pair, client, server) = connected(|_, _, _| pass());
        let (id, other) = [(client, server), (server, client)][host];
        let adapter = adapter_of_peer(&pair, host);
        let cm = &pair.hosts[host].cm;
        assert_eq!(cm.peer_of(id), Some((adapter, other.comm_id())));
        assert_eq!(cm.connections_with(adapter).collect::<Vec<_>>(), [id]);
        let sent = pair.sent(host).len();
        pair.call(host, |cm, now| cm.on_peer_gone(now, id).unwrap());
        assert_eq!(pair.hosts[host].qp(id).1.state, QpState::Err);
        assert_eq!(pair.hosts[host].cm.state(id), State::Timewait);
        assert_eq!(status(&pair, host), CmStatus::Success);
        assert_eq!(pair.hosts[host].cm.connections_with(adapter).count(), 0);
        // Asked again, it is known; and a DREQ that was late changes nothing.
        pair.call(host, |cm, now| cm.on_peer_gone(now, id).unwrap());
        assert_eq!(pair.sent(host).len(), sent, "there is nobody to talk to");
        pair.call(1 - host, |cm, now| cm.disconnect(now, other).unwrap());
        pair.run_out();
        assert_eq!(pair.count(host, "DREP"), 1);
        assert_eq!(
            pair.hosts[host].names(id)[2..],
            ["Disconnected", "TimewaitExit"]
        );
        pair.assert_empty();
    }
}

#[test]
fn a_dreq_that_came_before_its_sender_went_counts_once() {
    for habit in [Habit::Yes, Habit::Wait] {
        let (mut pair, client, server) = connected(|_, _, _| pass());
        pair.hosts[SERVER].on_disconnected = habit;
        pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
        pair.run(ms(2));
        pair.call(SERVER, |cm, now| {
            cm.on_peer_gone(now, server).unwrap();
            cm.disconnect_reply(now, server).unwrap();
        });
        pair.run_out();
        assert_eq!(
            pair.hosts[SERVER].names(server)[2..],
            ["Disconnected", "TimewaitExit"]
        );
        pair.assert_empty();
    }
}

#[test]
fn nobody_waits_for_the_drep_of_a_peer_that_is_gone() {
    let (mut pair, client, _) = connected(|_, kind, _| match kind {
        "DREQ" => vec![],
        _ => pass(),
    });
    pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
    pair.run(ms(5));
    pair.call(CLIENT, |cm, now| cm.on_peer_gone(now, client).unwrap());
    assert_eq!(status(&pair, CLIENT), CmStatus::Success);
    assert_eq!(pair.hosts[CLIENT].cm.state(client), State::Timewait);
    pair.run_out();
    assert_eq!(pair.count(CLIENT, "DREQ"), 1);
    assert_eq!(pair.hosts[CLIENT].cm.connections(), 0);
}

/// Retries end what is not established, whatever is known of the peer.
#[test]
fn a_peer_that_is_gone_before_it_is_connected_is_unreachable() {
    let mut pair = Pair::with_rule(|_, kind, _| match kind {
        "RTU" | "REJ" => vec![],
        _ => pass(),
    });
    pair.connect();
    pair.run(ms(10));
    let (server, _) = pair.hosts[SERVER].request();
    let adapter = adapter_of_peer(&pair, SERVER);
    let with: Vec<_> = pair.hosts[SERVER].cm.connections_with(adapter).collect();
    assert_eq!(with, [server]);
    pair.call(SERVER, |cm, now| cm.on_peer_gone(now, server).unwrap());
    assert_eq!(pair.hosts[SERVER].cm.state(server), State::RepSent);
    pair.rule = Box::new(|_, _, _| vec![]);
    pair.run(ms(100_000));
    assert_eq!(pair.hosts[SERVER].names(server), ["Request", "Unreachable"]);
}

#[test]
fn disconnecting_again_does_no_harm() {
    let (mut pair, client, server) = connected(|_, _, _| pass());
    for _ in 0..3 {
        pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
    }
    pair.run(ms(4));
    pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
    pair.call(SERVER, |cm, now| cm.disconnect_reply(now, server).unwrap());
    pair.run_out();
    assert_eq!(
        (pair.count(CLIENT, "DREQ"), pair.count(SERVER, "DREP")),
        (1, 1)
    );
    pair.assert_empty();
}

#[test]
fn the_passive_side_disconnects_before_it_is_established() {
    let mut pair = Pair::with_rule(|_, kind, _| if kind == "RTU" { vec![] } else { pass() });
    let client = pair.connect();
    pair.run(ms(10));
    let (server, _) = pair.hosts[SERVER].request();
    pair.call(SERVER, |cm, now| cm.disconnect(now, server).unwrap());
    pair.run_out();
    assert_eq!(
        pair.hosts[SERVER].names(server),
        ["Request", "Disconnected", "TimewaitExit"]
    );
    assert_eq!(
        pair.hosts[CLIENT].names(client),
        ["Reply", "Established", "Disconnected", "TimewaitExit"]
    );
    pair.assert_empty();
}

#[test]
fn the_active_side_disconnects_though_its_rtu_was_lost() {
    let mut pair = Pair::with_rule(|_, kind, _| if kind == "RTU" { vec![] } else { pass() });
    let client = pair.connect();
    pair.run(ms(10));
    let (server, _) = pair.hosts[SERVER].request();
    pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
    pair.run_out();
    assert_eq!(
        pair.hosts[SERVER].names(server),
        ["Request", "Disconnected", "TimewaitExit"]
    );
    pair.assert_empty();
}

/// Runs a connection attempt up to `steps` milliseconds, destroys one side, and expects that the
/// other hears of it in exactly one way.
#[test]
fn destroying_in_any_state_ends_both_sides() {
    for victim in [CLIENT, SERVER] {
        for steps in 0..9 {
            for waits in [false, true] {
                let mut pair = Pair::with_rule(|_, _, _| vec![ms(2)]);
                if waits {
                    pair.hosts[SERVER].on_request = Habit::Wait;
                    pair.hosts[CLIENT].on_reply = Habit::Wait;
                }
                let client = pair.connect();
                pair.run(ms(steps));
                let server = pair.hosts[SERVER].heard.first().map(|(_, id, _)| *id);
                let id = if victim == CLIENT {
                    Some(client)
                } else {
                    server
                };
                let Some(id) = id else {
                    continue;
                };
                let before = pair.hosts[victim].heard.len();
                pair.call(victim, |cm, now| cm.destroy(now, id));
                pair.call(victim, |cm, now| cm.destroy(now, id));
                pair.run(ms(100));
                if waits && victim == CLIENT {
                    // The request may have come only now.
                    let server = pair.hosts[SERVER].heard.first().map(|(_, id, _)| *id);
                    pair.call(SERVER, |cm, now| {
                        server.iter().for_each(|id| cm.destroy(now, *id));
                    });
                }
                pair.run_out();
                let heard = pair.hosts[victim].heard.len() - before;
                assert_eq!(heard, 0, "{victim} {steps}");
                let other = &pair.hosts[1 - victim];
                let ends = other.heard.iter().filter(|(.., event)| event.is_terminal());
                let all = other.heard.len();
                if !(waits && victim == CLIENT) {
                    assert_eq!(ends.count(), usize::from(all > 0), "{victim} {steps}");
                }
                pair.assert_empty();
            }
        }
    }
}

#[test]
fn destroying_while_disconnecting_leaves_nothing() {
    for victim in [CLIENT, SERVER] {
        for steps in [0, 1, 2, 3, 4, 100] {
            let (mut pair, client, server) = connected(|_, _, _| pass());
            pair.hosts[SERVER].on_disconnected = Habit::Wait;
            pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
            pair.run(ms(steps));
            let id = [client, server][victim];
            pair.call(victim, |cm, now| cm.destroy(now, id));
            pair.run(ms(10));
            pair.call(SERVER, |cm, now| cm.destroy(now, server));
            pair.run_out();
            pair.assert_empty();
        }
    }
}

/// Nobody waits for the outcome, so the attempts are fewer.
#[test]
fn a_destroyed_connection_gives_up_sooner() {
    let (mut pair, client, _) = connected(|_, kind, _| match kind {
        "DREQ" => vec![],
        _ => pass(),
    });
    pair.call(CLIENT, |cm, now| cm.destroy(now, client));
    pair.run_out();
    assert_eq!(pair.count(CLIENT, "DREQ"), 4);
    assert_eq!(pair.hosts[CLIENT].cm.connections(), 0);
}

#[test]
fn a_dreq_for_nothing_is_answered() {
    let mut pair = Pair::new();
    let dreq = Dreq {
        local_comm_id: CommId::new(5),
        remote_comm_id: CommId::new(6),
        remote_qpn: Qpn::new(7),
        ..Dreq::default()
    };
    pair.inject(SERVER, &Mad::new(TransactionId::new(9), dreq));
    let drep = last(&pair, SERVER, "DREP");
    assert_eq!(drep.header.transaction_id.get(), 9);
    assert_eq!(drep.message.local_comm_id(), Some(CommId::new(6)));
    assert_eq!(drep.message.remote_comm_id(), Some(CommId::new(5)));
}

#[test]
fn a_dreq_of_another_queue_pair_or_another_peer_is_not_ours() {
    let (mut pair, client, server) = connected(|_, _, _| pass());
    let (server_qpn, _) = pair.hosts[SERVER].qp(server);
    let mut dreq = Dreq {
        local_comm_id: client.comm_id(),
        remote_comm_id: server.comm_id(),
        remote_qpn: Qpn::new(server_qpn.get() + 1),
        ..Dreq::default()
    };
    pair.inject(SERVER, &Mad::new(TransactionId::new(9), dreq));
    dreq.remote_qpn = server_qpn;
    let mad = Mad::new(TransactionId::new(9), dreq);
    let mut stranger = path(SERVER);
    stranger.remote = std::net::Ipv4Addr::new(10, 9, 9, 9).into();
    let now = pair.now;
    let cm = &mut pair.hosts[SERVER].cm;
    cm.on_mad(now, stranger, &mad.to_bytes()).unwrap();
    assert_eq!(cm.state(server), State::Established);
    assert!(cm.poll_transmit().is_some(), "the stranger gets its answer");
    pair.inject(SERVER, &mad);
    assert_ne!(pair.hosts[SERVER].cm.state(server), State::Established);
}

#[test]
fn alternate_paths_are_not_supported() {
    let (mut pair, client, server) = connected(|_, _, _| pass());
    let (server_qpn, _) = pair.hosts[SERVER].qp(server);
    let lap = |remote_comm_id, remote_qpn| {
        let lap = Lap {
            local_comm_id: client.comm_id(),
            remote_comm_id,
            remote_qpn,
            ..Lap::default()
        };
        Mad::new(TransactionId::new(9), lap)
    };
    let outcome = |pair: &Pair| match last(pair, SERVER, "APR").message {
        Message::Apr(apr) => apr.status,
        other => panic!("{other}"),
    };
    pair.inject(SERVER, &lap(server.comm_id(), server_qpn));
    assert_eq!(outcome(&pair), ApStatus::UNSUPPORTED);
    pair.inject(SERVER, &lap(server.comm_id(), Qpn::new(1)));
    assert_eq!(outcome(&pair), ApStatus::QPN_EECN_MISMATCH);
    pair.inject(SERVER, &lap(CommId::new(1), server_qpn));
    assert_eq!(outcome(&pair), ApStatus::INVALID_COMM_ID);
    let migrated = softverbs_proto::cm::event::QpEvent::PathMig;
    pair.call(SERVER, |cm, now| {
        cm.on_qp_event(now, server, migrated).unwrap_err();
    });
    assert_eq!(pair.states(client, server), [State::Established; 2]);
}

/// A peer that knows nothing of the connection says so in its own way.
#[test]
fn a_rejected_dreq_is_the_end_too() {
    let (mut pair, client, server) = connected(|host, kind, _| match (host, kind) {
        (CLIENT, "DREQ") => vec![],
        _ => pass(),
    });
    pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
    let rej = Rej {
        local_comm_id: server.comm_id(),
        remote_comm_id: client.comm_id(),
        message: MessageKind::OTHER,
        reason: RejReason::INVALID_COMM_ID,
        ..Rej::default()
    };
    pair.inject(CLIENT, &Mad::new(TransactionId::new(9), rej));
    assert_eq!(pair.hosts[CLIENT].cm.state(client), State::Timewait);
    assert_eq!(status(&pair, CLIENT), CmStatus::Success);
    pair.run(ms(1000));
    assert_eq!(
        pair.hosts[CLIENT].names(client)[2..],
        ["Disconnected", "TimewaitExit"]
    );
}

#[test]
fn a_repeated_dreq_is_answered_in_timewait() {
    let (mut pair, client, server) = connected(|_, kind, nth| match kind {
        "DREQ" => vec![ms(1), ms(100)],
        "DREP" if nth == 1 => vec![],
        _ => pass(),
    });
    pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
    pair.run(ms(99));
    assert_eq!(
        pair.states(client, server),
        [State::DreqSent, State::Timewait]
    );
    pair.run(ms(2));
    assert_eq!(pair.states(client, server), [State::Timewait; 2]);
    let dreq = last(&pair, CLIENT, "DREQ").header.transaction_id;
    assert_eq!(last(&pair, SERVER, "DREP").header.transaction_id, dreq);
}

/// Each side stays in TimeWait for its queue pair's timeout; the active side's contains the delay
/// of the adapter that acknowledges, which the REP tells.
#[test]
fn timewait_is_of_the_queue_pairs_timeout() {
    let mut pair = Pair::new();
    let config = Config {
        ack_delay: TimeoutCode::new(18),
        ..Config::default()
    };
    let guid = pair.hosts[SERVER].cm.ca_guid();
    let mut cm = Endpoint::new(config, guid, IdSpace::whole(7, 7));
    cm.listen(LISTENER, Listen::service(service())).unwrap();
    pair.hosts[SERVER].cm = cm;
    let client = pair.connect();
    pair.run(ms(10));
    let (_, qp) = pair.hosts[CLIENT].qp(client);
    assert_eq!(qp.rts.unwrap().timeout, TimeoutCode::new(19));
    pair.call(CLIENT, |cm, now| cm.disconnect(now, client).unwrap());
    pair.run_out();
    assert_eq!(pair.hosts[SERVER].when("TimewaitExit"), at(11 + 512));
    assert_eq!(pair.hosts[CLIENT].when("TimewaitExit"), at(12 + 2048));
}
