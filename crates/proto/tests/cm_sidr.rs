//! Resolution of service IDs.

mod cm_support;

use cm_support::*;
use softverbs_proto::cm::config::Config;
use softverbs_proto::cm::event::{CmEvent, CmStatus, SidrReply};
use softverbs_proto::cm::params::{ConnectionId, Listen, ListenToken, SidrReplyParams};
use softverbs_proto::cm::state::State;
use softverbs_proto::fault::Misuse;
use softverbs_wire::ib::cm::{Mad, Message, SidrReq, SidrStatus};
use softverbs_wire::num::{CommId, Qkey, Qpn, ServiceId, TransactionId};

fn resolve(pair: &mut Pair) -> ConnectionId {
    let request = pair.resolve_request(b"who");
    pair.call(CLIENT, |cm, now| cm.resolve(now, &request).unwrap())
}

fn answer(pair: &Pair) -> &SidrReply {
    let found = pair.hosts[CLIENT]
        .heard
        .iter()
        .find_map(|(.., event)| match event {
            CmEvent::SidrReply(reply) => Some(&**reply),
            _ => None,
        });
    found.expect("an answer")
}

fn valid() -> SidrReplyParams {
    SidrReplyParams::valid(Qpn::new(0x1a), Qkey::RDMA_UDP, b"me".to_vec())
}

#[test]
fn a_service_is_resolved() {
    let mut pair = Pair::new();
    let client = resolve(&mut pair);
    pair.run(ms(1));
    let (server, request) = pair.hosts[SERVER].sidr_request();
    assert_eq!(request.listener, LISTENER);
    assert_eq!(request.private_data.len(), 180);
    assert_eq!(&request.private_data[..4], b"who\0");
    assert_eq!(request.cma.unwrap().source_ip(), Some(ip(CLIENT).into()));
    pair.call(SERVER, |cm, now| {
        cm.sidr_reply(now, server, &valid()).unwrap()
    });
    assert!(pair.run_out() <= ms(2));
    let reply = answer(&pair);
    assert_eq!(reply.status, SidrStatus::VALID);
    assert_eq!((reply.qpn, reply.qkey), (Qpn::new(0x1a), Qkey::RDMA_UDP));
    assert_eq!(reply.service_id, service());
    assert_eq!(reply.private_data.len(), 136);
    assert_eq!(&reply.private_data[..3], b"me\0");
    assert_eq!(pair.hosts[CLIENT].names(client), ["SidrReply"]);
    pair.assert_empty();
}

#[test]
fn refusals_have_their_status() {
    let mut pair = Pair::new();
    resolve(&mut pair);
    pair.run(ms(1));
    let (server, _) = pair.hosts[SERVER].sidr_request();
    let refusal = SidrReplyParams::refused(SidrStatus::NO_QP, b"no".to_vec());
    pair.call(SERVER, |cm, now| {
        cm.sidr_reply(now, server, &refusal).unwrap()
    });
    pair.run_out();
    assert_eq!(answer(&pair).status, SidrStatus::NO_QP);
    pair.assert_empty();

    let mut pair = Pair::new();
    resolve(&mut pair);
    pair.run(ms(1));
    let (server, _) = pair.hosts[SERVER].sidr_request();
    pair.call(SERVER, |cm, now| cm.destroy(now, server));
    pair.run_out();
    assert_eq!(answer(&pair).status, SidrStatus::REJECT);
    pair.assert_empty();

    let mut pair = Pair::new();
    pair.call(SERVER, |cm, _| cm.unlisten(LISTENER).unwrap());
    resolve(&mut pair);
    pair.run_out();
    assert_eq!(answer(&pair).status, SidrStatus::UNSUPPORTED);
    pair.assert_empty();
}

#[test]
fn lost_messages_are_repeated_and_an_end_comes() {
    let mut pair = Pair::with_rule(|_, kind, nth| match kind {
        "SIDR_REQ" if nth < 3 => vec![],
        _ => pass(),
    });
    resolve(&mut pair);
    pair.run(ms(10_000));
    assert_eq!(
        pair.sent(CLIENT),
        [(0, "SIDR_REQ"), (4096, "SIDR_REQ"), (8192, "SIDR_REQ")]
    );
    let (server, _) = pair.hosts[SERVER].sidr_request();
    pair.call(SERVER, |cm, now| {
        cm.sidr_reply(now, server, &valid()).unwrap()
    });
    pair.run_out();
    assert_eq!(answer(&pair).status, SidrStatus::VALID);
    pair.assert_empty();

    let mut pair = Pair::with_rule(|_, _, _| vec![]);
    let client = resolve(&mut pair);
    pair.run_out();
    assert_eq!(pair.count(CLIENT, "SIDR_REQ"), 16);
    assert_eq!(
        pair.hosts[CLIENT].heard,
        [(
            at(16 * 4096),
            client,
            CmEvent::Unreachable(CmStatus::TimedOut)
        )]
    );
    pair.assert_empty();
}

#[test]
fn a_repeated_question_is_one_as_long_as_it_waits() {
    let mut pair = Pair::with_rule(|_, _, _| vec![ms(1), ms(2), ms(3)]);
    let client = resolve(&mut pair);
    pair.run(ms(10));
    assert_eq!(pair.hosts[SERVER].heard.len(), 1);
    let (server, _) = pair.hosts[SERVER].sidr_request();
    pair.call(SERVER, |cm, now| {
        cm.sidr_reply(now, server, &valid()).unwrap()
    });
    pair.run_out();
    assert_eq!(pair.hosts[CLIENT].names(client), ["SidrReply"]);
    pair.assert_empty();
}

#[test]
fn a_question_is_dropped_or_forgotten() {
    let mut pair = Pair::new();
    let client = resolve(&mut pair);
    pair.run(ms(1));
    let (server, _) = pair.hosts[SERVER].sidr_request();
    pair.call(SERVER, |cm, now| cm.drop_request(now, server).unwrap());
    pair.run(ms(100));
    assert_eq!(pair.hosts[CLIENT].cm.state(client), State::SidrReqSent);
    pair.call(CLIENT, |cm, now| cm.destroy(now, client));
    pair.run_out();
    assert!(pair.hosts[CLIENT].heard.is_empty());
    pair.assert_empty();
}

#[test]
fn too_much_private_data_is_refused() {
    let mut pair = Pair::new();
    let request = pair.resolve_request(&[1; 181]);
    let refused = pair.call(CLIENT, |cm, now| cm.resolve(now, &request));
    assert_eq!(refused, Err(Misuse::PrivateDataTooLong));
    let request = pair.resolve_request(&[1; 180]);
    pair.call(CLIENT, |cm, now| cm.resolve(now, &request).unwrap());
    pair.run(ms(1));
    let (server, _) = pair.hosts[SERVER].sidr_request();
    let mut reply = valid();
    reply.private_data = vec![1; 137];
    pair.call(SERVER, |cm, now| {
        let refused = cm.sidr_reply(now, server, &reply);
        assert_eq!(refused, Err(Misuse::PrivateDataTooLong));
        reply.private_data.pop();
        cm.sidr_reply(now, server, &reply).unwrap();
    });
    pair.run_out();
    assert_eq!(answer(&pair).private_data, [1; 136]);
    pair.assert_empty();
}

#[test]
fn one_peer_cannot_fill_the_memory() {
    let config = Config {
        max_half_open_per_peer: 10,
        max_half_open: 15,
        ..Config::default()
    };
    let mut pair = Pair::with(config, |_, _, _| pass());
    let cm = &mut pair.hosts[SERVER].cm;
    let service_id = ServiceId::new(0x5555_5555_5555_5555);
    cm.listen(ListenToken(1), Listen::service(service_id))
        .unwrap();
    for peer in 1..=3 {
        for id in 1..=1000 {
            let sidr = SidrReq {
                request_id: CommId::new(id),
                service_id,
                ..SidrReq::default()
            };
            let mut address = path(SERVER);
            address.remote = std::net::Ipv4Addr::new(10, 1, 1, peer).into();
            let mad = Mad::new(TransactionId::new(1), Message::from(sidr));
            cm.on_mad(at(0), address, &mad.to_bytes()).unwrap();
        }
        let expected = [10, 15, 15][usize::from(peer) - 1];
        assert_eq!(cm.connections(), expected);
    }
    let mut ids = Vec::new();
    while let Some((id, _)) = cm.poll_event() {
        ids.push(id);
    }
    for id in ids {
        cm.drop_request(at(0), id).unwrap();
    }
    assert!(cm.is_idle());
}
