//! Two connection managers, their applications and queue pairs, and the network between them, in
//! virtual time.

#![allow(dead_code, unreachable_pub, reason = "every test file uses its part")]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use softverbs_proto::cm::config::Config;
use softverbs_proto::cm::endpoint::Endpoint;
use softverbs_proto::cm::event::{
    CmEvent, QpAction, QpEvent, Reply, Request, RtrAttributes, RtsAttributes, SidrRequest, Transmit,
};
use softverbs_proto::cm::ids::IdSpace;
use softverbs_proto::cm::params::{
    AcceptParams, CmaAddresses, ConnectRequest, ConnectionId, Listen, ListenToken, PathAddress,
    RejectParams, ResolveRequest, Route,
};
use softverbs_proto::cm::state::State;
use softverbs_proto::qp_state::{QpState, QpType};
use softverbs_proto::send_gate::{Opener, SendGate};
use softverbs_proto::time::Time;
use softverbs_wire::ib::cm::{Mad, Message, RejReason};
use softverbs_wire::ib::mad::MAD_LEN;
use softverbs_wire::ib::rdma_cm::{PortSpace, ServicePort};
use softverbs_wire::num::{Guid, PathMtu, Psn, Qpn, RetryCount, ServiceId};

/// The active side in most tests.
pub const CLIENT: usize = 0;
/// The passive side in most tests.
pub const SERVER: usize = 1;

pub const LISTENER: ListenToken = ListenToken(77);

/// One way through the network.
pub const LATENCY: Duration = Duration::from_millis(1);

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub fn at(millis: u64) -> Time {
    Time::new(ms(millis))
}

pub fn service() -> ServiceId {
    ServicePort::new(PortSpace::TCP, 7174).service_id()
}

pub fn ip(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, u8::try_from(host).unwrap() + 1)
}

/// The path from a host to the other one.
pub fn path(from: usize) -> PathAddress {
    PathAddress::from_ips(ip(from).into(), ip(1 - from).into())
}

/// What the application does when it hears of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Says yes: accept, confirm.
    Yes,
    /// Says no: reject.
    No,
    /// Does nothing.
    Wait,
}

#[derive(Debug)]
pub struct Qp {
    pub id: ConnectionId,
    pub state: QpState,
    pub gate: SendGate,
    pub rtr: Option<RtrAttributes>,
    pub rts: Option<RtsAttributes>,
    /// Requests that wait for the gate.
    pub waiting: u32,
    pub received: u32,
}

/// A process: application, connection manager, queue pairs.
pub struct Host {
    pub cm: Endpoint,
    pub qps: BTreeMap<Qpn, Qp>,
    pub on_request: Habit,
    pub on_reply: Habit,
    pub on_disconnected: Habit,
    /// What the application heard, actions on queue pairs not included.
    pub heard: Vec<(Time, ConnectionId, CmEvent)>,
    next_qpn: u32,
}

impl Host {
    fn new(host: usize, config: Config) -> Self {
        let number = u32::try_from(host).unwrap() + 1;
        Self {
            cm: Endpoint::new(
                config,
                Guid::new(0x5054_00ff_fe00_0000 + u64::from(number)),
                IdSpace::whole(number << 16, 0x4b66_0000 * number),
            ),
            qps: BTreeMap::new(),
            on_request: Habit::Yes,
            on_reply: Habit::Yes,
            on_disconnected: Habit::Yes,
            heard: Vec::new(),
            next_qpn: number << 20,
        }
    }

    pub fn take_qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn::new(self.next_qpn)
    }

    pub fn add_qp(&mut self, qpn: Qpn, id: ConnectionId) {
        self.qps.insert(
            qpn,
            Qp {
                id,
                state: QpState::Init,
                gate: SendGate::CLOSED,
                rtr: None,
                rts: None,
                waiting: 0,
                received: 0,
            },
        );
    }

    pub fn qp(&mut self, id: ConnectionId) -> (Qpn, &mut Qp) {
        let (qpn, qp) = self.qps.iter_mut().find(|(_, qp)| qp.id == id).unwrap();
        (*qpn, qp)
    }

    /// The events of a connection by their names.
    pub fn names(&self, id: ConnectionId) -> Vec<&'static str> {
        self.heard
            .iter()
            .filter(|(_, of, _)| *of == id)
            .map(|(_, _, event)| name(event))
            .collect()
    }

    /// When the event of this name came.
    pub fn when(&self, wanted: &str) -> Time {
        let found = self.heard.iter().find(|(.., event)| name(event) == wanted);
        found.unwrap_or_else(|| panic!("no {wanted}")).0
    }

    pub fn request(&self) -> (ConnectionId, &Request) {
        let found = self
            .heard
            .iter()
            .rev()
            .find_map(|(_, id, event)| match event {
                CmEvent::Request(request) => Some((*id, &**request)),
                _ => None,
            });
        found.expect("a request")
    }

    pub fn sidr_request(&self) -> (ConnectionId, &SidrRequest) {
        let found = self
            .heard
            .iter()
            .rev()
            .find_map(|(_, id, event)| match event {
                CmEvent::SidrRequest(request) => Some((*id, &**request)),
                _ => None,
            });
        found.expect("a SIDR request")
    }

    pub fn reply(&self) -> &Reply {
        let found = self.heard.iter().rev().find_map(|(.., event)| match event {
            CmEvent::Reply(reply) => Some(&**reply),
            _ => None,
        });
        found.expect("a reply")
    }

    pub fn reason(&self) -> RejReason {
        let found = self.heard.iter().rev().find_map(|(.., event)| match event {
            CmEvent::Rejected(rejected) => Some(rejected.reason),
            _ => None,
        });
        found.expect("a rejection")
    }
}

pub fn name(event: &CmEvent) -> &'static str {
    match event {
        CmEvent::Request(_) => "Request",
        CmEvent::Reply(_) => "Reply",
        CmEvent::Established => "Established",
        CmEvent::Rejected(_) => "Rejected",
        CmEvent::Unreachable(_) => "Unreachable",
        CmEvent::Disconnected(_) => "Disconnected",
        CmEvent::TimewaitExit => "TimewaitExit",
        CmEvent::SidrRequest(_) => "SidrRequest",
        CmEvent::SidrReply(_) => "SidrReply",
        CmEvent::Qp(_) => "Qp",
    }
}

#[derive(Clone, Debug)]
enum Packet {
    Mad(PathAddress, Box<[u8; MAD_LEN]>),
    Data(Qpn),
}

/// What the network does to one packet: when its copies arrive. None: it is lost.
pub type Fate = Vec<Duration>;

/// From which host, what it is ("DATA" or the message's name), the how many-th of this kind from
/// this host, from 1.
pub type Rule = Box<dyn FnMut(usize, &'static str, usize) -> Fate>;

pub struct Pair {
    pub now: Time,
    pub hosts: [Host; 2],
    pub rule: Rule,
    /// All that was sent: when, by whom, what.
    pub log: Vec<(Time, usize, &'static str)>,
    /// The same, as datagrams.
    pub mads: Vec<(usize, Mad)>,
    flying: BTreeMap<(Time, usize), (usize, Packet)>,
    sequence: usize,
}

pub fn pass() -> Fate {
    vec![LATENCY]
}

impl Pair {
    pub fn new() -> Self {
        Self::with(Config::default(), |_, _, _| pass())
    }

    pub fn with_rule(rule: impl FnMut(usize, &'static str, usize) -> Fate + 'static) -> Self {
        Self::with(Config::default(), rule)
    }

    pub fn with(
        config: Config,
        rule: impl FnMut(usize, &'static str, usize) -> Fate + 'static,
    ) -> Self {
        let mut pair = Self {
            now: Time::ZERO,
            hosts: [Host::new(0, config.clone()), Host::new(1, config)],
            rule: Box::new(rule),
            log: Vec::new(),
            mads: Vec::new(),
            flying: BTreeMap::new(),
            sequence: 0,
        };
        pair.hosts[SERVER]
            .cm
            .listen(LISTENER, Listen::service(service()))
            .unwrap();
        pair
    }

    /// Kind and time in milliseconds of all that a host sent.
    pub fn sent(&self, host: usize) -> Vec<(u64, &'static str)> {
        self.log
            .iter()
            .filter(|(_, by, _)| *by == host)
            .map(|(when, _, what)| (millis(*when), *what))
            .collect()
    }

    pub fn count(&self, host: usize, kind: &str) -> usize {
        self.sent(host)
            .iter()
            .filter(|(_, what)| *what == kind)
            .count()
    }

    pub fn connect_request(&mut self, from: usize) -> ConnectRequest {
        let qpn = self.hosts[from].take_qpn();
        ConnectRequest {
            service_id: service(),
            addresses: Some(CmaAddresses {
                source: ip(from).into(),
                source_port: 4711,
                destination: ip(1 - from).into(),
            }),
            route: Route::new(path(from)),
            path_mtu: PathMtu::Mtu1024,
            qpn,
            qp_type: QpType::Rc,
            starting_psn: Psn::new(0x111),
            responder_resources: 3,
            initiator_depth: 4,
            retry_count: RetryCount::new(6),
            rnr_retry_count: RetryCount::new(5),
            flow_control: true,
            srq: false,
            private_data: b"ping".to_vec(),
        }
    }

    pub fn connect(&mut self) -> ConnectionId {
        let request = self.connect_request(CLIENT);
        self.connect_with(CLIENT, &request)
    }

    pub fn connect_with(&mut self, from: usize, request: &ConnectRequest) -> ConnectionId {
        let host = &mut self.hosts[from];
        let id = host.cm.connect(self.now, request).unwrap();
        host.add_qp(request.qpn, id);
        self.settle();
        id
    }

    pub fn accept_params(&mut self, host: usize) -> AcceptParams {
        AcceptParams {
            qpn: self.hosts[host].take_qpn(),
            starting_psn: Psn::new(0x222),
            responder_resources: 4,
            initiator_depth: 3,
            rnr_retry_count: RetryCount::new(2),
            flow_control: true,
            srq: true,
            private_data: b"pong".to_vec(),
        }
    }

    pub fn accept(&mut self, host: usize, id: ConnectionId) {
        let params = self.accept_params(host);
        self.hosts[host].add_qp(params.qpn, id);
        self.hosts[host].cm.accept(self.now, id, &params).unwrap();
        self.settle();
    }

    pub fn resolve_request(&self, private_data: &[u8]) -> ResolveRequest {
        ResolveRequest {
            service_id: service(),
            addresses: Some(CmaAddresses {
                source: ip(CLIENT).into(),
                source_port: 4711,
                destination: ip(SERVER).into(),
            }),
            route: Route::new(path(CLIENT)),
            private_data: private_data.to_vec(),
        }
    }

    /// Calls a command of a host's connection manager and lets its consequences begin.
    pub fn call<T>(&mut self, host: usize, command: impl FnOnce(&mut Endpoint, Time) -> T) -> T {
        let result = command(&mut self.hosts[host].cm, self.now);
        self.settle();
        result
    }

    /// Posts a send request.
    pub fn post(&mut self, host: usize, id: ConnectionId) {
        self.hosts[host].qp(id).1.waiting += 1;
        self.settle();
    }

    /// Lets a stranger send a datagram to a host.
    pub fn inject(&mut self, to: usize, mad: &Mad) {
        let address = path(to);
        self.hosts[to]
            .cm
            .on_mad(self.now, address, &mad.to_bytes())
            .unwrap();
        self.settle();
    }

    /// Runs for so long.
    pub fn run(&mut self, duration: Duration) {
        let until = self.now + duration;
        while let Some(next) = self.next().filter(|next| *next <= until) {
            self.now = next;
            self.step();
        }
        self.now = until;
    }

    /// Runs until nothing is left to happen. The time that it took.
    pub fn run_out(&mut self) -> Duration {
        let start = self.now;
        let mut steps = 0;
        while let Some(next) = self.next() {
            self.now = self.now.max(next);
            self.step();
            steps += 1;
            assert!(steps < 100_000, "it comes to an end");
        }
        self.now - start
    }

    /// Nothing is left in either connection manager.
    pub fn assert_empty(&self) {
        for host in &self.hosts {
            assert!(host.cm.is_idle(), "{:?}", host.cm);
            assert_eq!(host.cm.connections(), 0);
            assert_eq!(host.cm.deadline(), None);
        }
    }

    pub fn states(&self, client: ConnectionId, server: ConnectionId) -> [State; 2] {
        [
            self.hosts[CLIENT].cm.state(client),
            self.hosts[SERVER].cm.state(server),
        ]
    }

    fn next(&self) -> Option<Time> {
        let arrival = self.flying.keys().next().map(|(time, _)| *time);
        let deadlines = self.hosts.iter().filter_map(|host| host.cm.deadline());
        arrival.into_iter().chain(deadlines).min()
    }

    fn step(&mut self) {
        while let Some(entry) = self.flying.first_entry().filter(|e| e.key().0 <= self.now) {
            let (to, packet) = entry.remove();
            self.arrive(to, packet);
            self.settle();
        }
        for host in &mut self.hosts {
            host.cm.on_timeout(self.now);
        }
        self.settle();
    }

    fn arrive(&mut self, to: usize, packet: Packet) {
        let host = &mut self.hosts[to];
        match packet {
            Packet::Mad(address, octets) => host
                .cm
                .on_mad(self.now, address.reversed(), &*octets)
                .unwrap(),
            Packet::Data(qpn) => {
                let Some(qp) = host.qps.get_mut(&qpn) else {
                    return;
                };
                if matches!(qp.state, QpState::Rtr | QpState::Rts) {
                    qp.received += 1;
                    let id = qp.id;
                    if qp.received == 1 {
                        host.cm.on_qp_event(self.now, id, QpEvent::CommEst).ok();
                    }
                }
            }
        }
    }

    /// Applications and queue pairs do what they have to, and what is ready to leave leaves.
    pub fn settle(&mut self) {
        for host in [CLIENT, SERVER] {
            while let Some((id, event)) = self.hosts[host].cm.poll_event() {
                self.hear(host, id, event);
            }
            while let Some(Transmit { address, octets }) = self.hosts[host].cm.poll_transmit() {
                assert_eq!(address.local, path(host).local);
                let mad = Mad::parse(&*octets).expect("a message");
                let kind = mad.message.name();
                self.mads.push((host, mad));
                self.send(host, kind, Packet::Mad(address, octets));
            }
            let mut data = Vec::new();
            for qp in self.hosts[host].qps.values_mut() {
                if qp.state == QpState::Rts && qp.gate.is_open() {
                    let to = qp.rtr.expect("it went through RTR").dest_qpn;
                    data.extend((0..core::mem::take(&mut qp.waiting)).map(|_| to));
                }
            }
            for to in data {
                self.send(host, "DATA", Packet::Data(to));
            }
        }
    }

    fn send(&mut self, host: usize, kind: &'static str, packet: Packet) {
        self.log.push((self.now, host, kind));
        let nth = self.count(host, kind);
        for delay in (self.rule)(host, kind, nth) {
            self.sequence += 1;
            self.flying.insert(
                (self.now + delay, self.sequence),
                (1 - host, packet.clone()),
            );
        }
    }

    fn hear(&mut self, host: usize, id: ConnectionId, event: CmEvent) {
        let now = self.now;
        if let CmEvent::Qp(action) = event {
            self.act(host, id, action);
            return;
        }
        let there = &mut self.hosts[host];
        there.heard.push((now, id, event.clone()));
        let (request, reply) = (there.on_request, there.on_reply);
        let confirms = there.on_disconnected == Habit::Yes;
        match event {
            CmEvent::Request(_) if request == Habit::Yes => self.accept(host, id),
            CmEvent::Request(_) if request == Habit::No => {
                let reject = RejectParams::consumer(b"no".to_vec());
                there.cm.reject(now, id, &reject).unwrap();
            }
            CmEvent::Reply(_) if reply == Habit::Yes => there.cm.establish(now, id).unwrap(),
            CmEvent::Reply(_) if reply == Habit::No => {
                let reject = RejectParams::consumer(b"no".to_vec());
                there.cm.reject(now, id, &reject).unwrap();
            }
            CmEvent::Disconnected(_) if confirms => there.cm.disconnect(now, id).unwrap(),
            _ => {}
        }
    }

    fn act(&mut self, host: usize, id: ConnectionId, action: QpAction) {
        let (_, qp) = self.hosts[host].qp(id);
        match action {
            QpAction::ToRtr(rtr) => {
                assert_eq!(qp.state, QpState::Init);
                qp.state = QpState::Rtr;
                qp.rtr = Some(rtr);
            }
            QpAction::ToRts(rts) => {
                assert_eq!(qp.state, QpState::Rtr);
                qp.state = QpState::Rts;
                qp.rts = Some(rts);
            }
            QpAction::OpenGate(by) => {
                assert_eq!(qp.state, QpState::Rts);
                assert!(qp.gate.open(by), "the gate opens once");
            }
            QpAction::ToErr => qp.state = QpState::Err,
        }
    }

    pub fn opener(&mut self, host: usize, id: ConnectionId) -> Option<Opener> {
        match self.hosts[host].qp(id).1.gate {
            SendGate::Open { by } => Some(by),
            SendGate::Closed { .. } => None,
        }
    }
}

pub fn millis(time: Time) -> u64 {
    u64::try_from(time.since_epoch().as_millis()).unwrap()
}

/// The last message of a kind that a host sent.
pub fn last(pair: &Pair, host: usize, kind: &str) -> Mad {
    let found = pair
        .mads
        .iter()
        .rev()
        .find(|(by, mad)| *by == host && mad.message.name() == kind);
    found.unwrap_or_else(|| panic!("no {kind}")).1
}

pub fn rej(mad: &Mad) -> softverbs_wire::ib::cm::Rej {
    match mad.message {
        Message::Rej(rej) => rej,
        other => panic!("{other} is no REJ"),
    }
}
