//! Random plays: commands, losses, copies, forgeries and time in any order. Every connection ends
//! at most once, with exactly one event unless its owner gave it up, and nothing is left. A model
//! of what an application knows (`cm_reference`) says what each may hear and ask for at any moment.

mod cm_reference;
mod cm_support;
mod effort;

use std::collections::{BTreeMap, BTreeSet};

use cm_reference::{Phase, first};
use cm_support::*;
use effort::effort;
use proptest::collection::vec;
use proptest::prelude::*;
use softverbs_proto::cm::config::Config;
use softverbs_proto::cm::endpoint::Endpoint;
use softverbs_proto::cm::event::{CmEvent, QpEvent};
use softverbs_proto::cm::ids::IdSpace;
use softverbs_proto::cm::params::{
    AcceptParams, ConnectionId, Listen, RejectParams, SidrReplyParams,
};
use softverbs_proto::cm::state::State;
use softverbs_proto::time::Time;
use softverbs_wire::ib::cm::{
    Apr, Drep, Dreq, Lap, Mad, Message, MessageKind, Mra, Rej, RejReason, Rep, Req, Rtu, SidrRep,
    SidrReq,
};
use softverbs_wire::num::{CommId, Guid, Psn, Qkey, Qpn, RetryCount, TimeoutCode, TransactionId};

fn small(n: usize) -> u8 {
    u8::try_from(n).unwrap()
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

/// A step of a random play. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    Connect,
    Resolve,
    Accept(usize),
    Establish(usize),
    Reject(usize),
    Mra(usize),
    Disconnect(usize),
    DisconnectReply(usize),
    SidrReply(usize),
    DropRequest(usize),
    Destroy(usize),
    CommEst(usize),
    PathMig(usize),
    /// A host believes that the process at the other end of a connection is gone.
    PeerGone(usize),
    /// Lets one datagram of those under way arrive: which one, and whether a copy stays.
    Deliver(usize, bool),
    Lose(usize),
    /// Lets time pass, in milliseconds.
    Wait(u64),
    /// A message that nobody sent, with these two names, from this kind.
    Forge(usize, usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let one = 0..64usize;
    prop_oneof![
        2 => Just(Step::Connect),
        1 => Just(Step::Resolve),
        4 => one.clone().prop_map(Step::Accept),
        4 => one.clone().prop_map(Step::Establish),
        1 => one.clone().prop_map(Step::Reject),
        1 => one.clone().prop_map(Step::Mra),
        2 => one.clone().prop_map(Step::Disconnect),
        1 => one.clone().prop_map(Step::DisconnectReply),
        1 => one.clone().prop_map(Step::SidrReply),
        1 => one.clone().prop_map(Step::DropRequest),
        1 => one.clone().prop_map(Step::Destroy),
        2 => one.clone().prop_map(Step::CommEst),
        1 => one.clone().prop_map(Step::PathMig),
        1 => one.clone().prop_map(Step::PeerGone),
        12 => (one.clone(), any::<bool>()).prop_map(|(n, copy)| Step::Deliver(n, copy)),
        2 => one.clone().prop_map(Step::Lose),
        2 => (0..6000u64).prop_map(Step::Wait),
        2 => (one.clone(), one.clone(), one).prop_map(|(a, b, c)| Step::Forge(a, b, c)),
    ]
}

/// One host's view of its connections.
#[derive(Default)]
struct Ledger {
    ids: Vec<ConnectionId>,
    /// What each heard.
    heard: BTreeMap<ConnectionId, Vec<CmEvent>>,
    /// Where the model is with each.
    phases: BTreeMap<ConnectionId, Phase>,
    /// The names that the application gave up.
    given_up: BTreeSet<ConnectionId>,
}

struct Play {
    now: Time,
    hosts: [(Endpoint, Ledger); 2],
    flying: Vec<(usize, [u8; 256])>,
    next_qpn: u32,
}

impl Play {
    fn new() -> Self {
        let config = Config {
            max_half_open_per_peer: 8,
            ..Config::default()
        };
        let host = |number: u32| {
            let guid = Guid::new(u64::from(number));
            let ids = IdSpace::whole(number << 20, 0);
            let mut cm = Endpoint::new(config.clone(), guid, ids);
            cm.listen(LISTENER, Listen::service(service())).unwrap();
            (cm, Ledger::default())
        };
        Self {
            now: Time::ZERO,
            hosts: [host(1), host(2)],
            flying: Vec::new(),
            next_qpn: 0,
        }
    }

    fn drain(&mut self) {
        for (number, (cm, ledger)) in self.hosts.iter_mut().enumerate() {
            while let Some((id, event)) = cm.poll_event() {
                assert!(!ledger.given_up.contains(&id), "{event:?} for nobody");
                if !ledger.heard.contains_key(&id) {
                    ledger.ids.push(id);
                }
                let next = match ledger.phases.get(&id) {
                    Some(phase) => phase.hears(name(&event)),
                    None => first(name(&event)),
                };
                let Some(next) = next else {
                    panic!(
                        "{:?} after {:?}, in {:?}",
                        name(&event),
                        ledger.heard.get(&id),
                        ledger.phases.get(&id)
                    );
                };
                ledger.phases.insert(id, next);
                ledger.heard.entry(id).or_default().push(event);
            }
            while let Some(transmit) = cm.poll_transmit() {
                self.flying.push((1 - number, *transmit.octets));
            }
        }
        let excess = self.flying.len().saturating_sub(64);
        self.flying.drain(..excess);
    }

    fn forged(&self, a: usize, b: usize, kind: usize) -> Message {
        let pick = |ids: &[ConnectionId], n: usize| {
            ids.get(n % (ids.len() + 1))
                .map_or_else(|| CommId::new(small(n).into()), |id| id.comm_id())
        };
        let local_comm_id = pick(&self.hosts[0].1.ids, a);
        let remote_comm_id = pick(&self.hosts[1].1.ids, b);
        let reason = RejReason::new(u16::try_from(a % 40).unwrap());
        match kind % 11 {
            0 => Req {
                local_comm_id,
                service_id: service(),
                local_qpn: Qpn::new(1),
                ..Req::default()
            }
            .into(),
            1 => Mra {
                local_comm_id,
                remote_comm_id,
                message: MessageKind::new(small(a)),
                ..Mra::default()
            }
            .into(),
            2 => Rej {
                local_comm_id,
                remote_comm_id,
                reason,
                ..Rej::default()
            }
            .into(),
            3 => Rep {
                local_comm_id,
                remote_comm_id,
                local_qpn: Qpn::new(2),
                ..Rep::default()
            }
            .into(),
            4 => Rtu {
                local_comm_id,
                remote_comm_id,
                ..Rtu::default()
            }
            .into(),
            5 => Dreq {
                local_comm_id,
                remote_comm_id,
                ..Dreq::default()
            }
            .into(),
            6 => Drep {
                local_comm_id,
                remote_comm_id,
                ..Drep::default()
            }
            .into(),
            7 => Lap {
                local_comm_id,
                remote_comm_id,
                ..Lap::default()
            }
            .into(),
            8 => Apr {
                local_comm_id,
                remote_comm_id,
                ..Apr::default()
            }
            .into(),
            9 => SidrReq {
                request_id: local_comm_id,
                service_id: service(),
                ..SidrReq::default()
            }
            .into(),
            _ => SidrRep {
                request_id: remote_comm_id,
                ..SidrRep::default()
            }
            .into(),
        }
    }

    fn step(&mut self, step: &Step) {
        let now = self.now;
        match *step {
            Step::Connect => {
                let mut pair = Pair::new();
                let mut request = pair.connect_request(CLIENT);
                self.next_qpn += 1;
                request.qpn = Qpn::new(self.next_qpn % 6 + 1);
                let id = self.hosts[0].0.connect(now, &request).unwrap();
                self.hosts[0].1.ids.push(id);
                self.hosts[0].1.heard.insert(id, Vec::new());
                self.hosts[0].1.phases.insert(id, Phase::Asked);
            }
            Step::Resolve => {
                let request = Pair::new().resolve_request(b"who");
                let id = self.hosts[0].0.resolve(now, &request).unwrap();
                self.hosts[0].1.ids.push(id);
                self.hosts[0].1.heard.insert(id, Vec::new());
                self.hosts[0].1.phases.insert(id, Phase::Resolving);
            }
            Step::Deliver(n, copy) => {
                if !self.flying.is_empty() {
                    let n = n % self.flying.len();
                    let (to, octets) = if copy {
                        self.flying[n]
                    } else {
                        self.flying.remove(n)
                    };
                    self.hosts[to].0.on_mad(now, path(to), &octets).unwrap();
                }
            }
            Step::Lose(n) => {
                if !self.flying.is_empty() {
                    let n = n % self.flying.len();
                    self.flying.remove(n);
                }
            }
            Step::Wait(millis) => {
                self.now = now + ms(millis);
                for (cm, _) in &mut self.hosts {
                    cm.on_timeout(self.now);
                    assert!(cm.deadline().is_none_or(|deadline| deadline > self.now));
                }
            }
            Step::Forge(a, b, kind) => {
                let mad = Mad::new(TransactionId::new(3), self.forged(a, b, kind));
                self.hosts[1]
                    .0
                    .on_mad(now, path(1), &mad.to_bytes())
                    .unwrap();
            }
            Step::Accept(n)
            | Step::Establish(n)
            | Step::Reject(n)
            | Step::Mra(n)
            | Step::Disconnect(n)
            | Step::DisconnectReply(n)
            | Step::SidrReply(n)
            | Step::DropRequest(n)
            | Step::Destroy(n)
            | Step::CommEst(n)
            | Step::PathMig(n)
            | Step::PeerGone(n) => self.command(step, n),
        }
        self.drain();
    }

    fn command(&mut self, step: &Step, n: usize) {
        let now = self.now;
        let (cm, ledger) = &mut self.hosts[n % 2];
        if ledger.ids.is_empty() {
            return;
        }
        let id = ledger.ids[n / 2 % ledger.ids.len()];
        let consumer = RejectParams::consumer(Vec::new());
        let sidr = SidrReplyParams::valid(Qpn::new(1), Qkey::RDMA_UDP, Vec::new());
        self.next_qpn += 1;
        let mut accept = accept_params();
        accept.qpn = Qpn::new(self.next_qpn % 6 + 1);
        let done = match step {
            Step::Accept(_) => cm.accept(now, id, &accept),
            Step::Establish(_) => cm.establish(now, id),
            Step::Reject(_) => cm.reject(now, id, &consumer),
            Step::Mra(_) => cm.mra(now, id, TimeoutCode::new(20)),
            Step::Disconnect(_) => cm.disconnect(now, id),
            Step::DisconnectReply(_) => cm.disconnect_reply(now, id),
            Step::SidrReply(_) => cm.sidr_reply(now, id, &sidr),
            Step::DropRequest(_) => cm.drop_request(now, id),
            Step::CommEst(_) => cm.on_qp_event(now, id, QpEvent::CommEst),
            Step::PathMig(_) => cm.on_qp_event(now, id, QpEvent::PathMig),
            Step::PeerGone(_) => cm.on_peer_gone(now, id),
            _ => {
                cm.destroy(now, id);
                Ok(())
            }
        };
        let named = match step {
            Step::Accept(_) => "accept",
            Step::Establish(_) => "establish",
            Step::Mra(_) => "mra",
            Step::Disconnect(_) => "disconnect",
            _ => "",
        };
        let phase = ledger.phases[&id];
        // What is given up has no story any more, and once the end has begun it may be asked for again.
        let ends = matches!(phase, Phase::Leaving | Phase::Over | Phase::Forgotten);
        if !named.is_empty() && !ledger.given_up.contains(&id) && !ends {
            let expected = phase.does(named);
            assert_eq!(done.is_ok(), expected.is_some(), "{named} in {phase:?}");
            ledger.phases.insert(id, expected.unwrap_or(phase));
        }
        let gives_up = matches!(
            step,
            Step::Reject(_) | Step::SidrReply(_) | Step::DropRequest(_) | Step::Destroy(_)
        );
        if gives_up && done.is_ok() {
            ledger.given_up.insert(id);
        }
    }

    /// The applications have what they want and confirm every end; then time alone finishes
    /// everything that waits for the peer.
    fn finish(&mut self) {
        for _ in 0..400 {
            self.drain();
            for (to, octets) in core::mem::take(&mut self.flying) {
                self.hosts[to]
                    .0
                    .on_mad(self.now, path(to), &octets)
                    .unwrap();
            }
            self.drain();
            for (cm, ledger) in &mut self.hosts {
                for id in &ledger.ids {
                    match cm.state(*id) {
                        // Nobody else ends these.
                        State::ReqRcvd
                        | State::MraReqSent
                        | State::RepRcvd
                        | State::MraRepSent
                        | State::SidrReqRcvd => {
                            ledger.given_up.insert(*id);
                            cm.destroy(self.now, *id);
                        }
                        State::Established | State::DreqRcvd => {
                            let done = cm.disconnect(self.now, *id);
                            let phase = ledger.phases[id];
                            if let (Ok(()), Some(next)) = (done, phase.does("disconnect")) {
                                ledger.phases.insert(*id, next);
                            }
                        }
                        _ => {}
                    }
                }
            }
            self.drain();
            let deadlines = self.hosts.iter().filter_map(|(cm, _)| cm.deadline());
            if let Some(deadline) = deadlines.min() {
                self.now = self.now.max(deadline);
            }
            for (cm, _) in &mut self.hosts {
                cm.on_timeout(self.now);
            }
        }
        self.drain();
    }

    fn check(&self) {
        for (cm, ledger) in &self.hosts {
            assert_eq!(cm.connections(), 0, "{cm:?}");
            assert!(cm.is_idle(), "{cm:?}");
            for (id, heard) in &ledger.heard {
                let established = heard.iter().filter(|event| **event == CmEvent::Established);
                assert!(established.count() <= 1, "{heard:?}");
                let ends = heard.iter().filter(|event| event.is_terminal()).count();
                if ledger.given_up.contains(id) {
                    assert!(ends <= 1, "{heard:?}");
                } else {
                    assert_eq!(ends, 1, "{heard:?}");
                    let after = heard
                        .iter()
                        .skip_while(|event| !event.is_terminal())
                        .skip(1);
                    for event in after {
                        assert!(
                            matches!(event, CmEvent::TimewaitExit | CmEvent::Qp(_)),
                            "{heard:?}"
                        );
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000 * effort()))]

    #[test]
    fn every_connection_ends_once_and_nothing_is_left(steps in vec(step(), 1..120)) {
        let mut play = Play::new();
        for step in &steps {
            play.step(step);
        }
        play.finish();
        play.check();
    }
}
