//! Both sides, the network between them, and everything that can happen next.

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use softverbs_proto::cm::config::Config;
use softverbs_proto::cm::endpoint::Endpoint;
use softverbs_proto::cm::ids::IdSpace;
use softverbs_proto::cm::params::{
    AcceptParams, CmaAddresses, ConnectRequest, Listen, ListenToken, PathAddress, RejectParams,
    Route,
};
use softverbs_proto::cm::state::State as CmState;
use softverbs_proto::mutation::Mutations;
use softverbs_proto::qp_state::QpType;
use softverbs_proto::time::Time;
use softverbs_wire::ib::rdma_cm::{PortSpace, ServicePort};
use softverbs_wire::num::{Guid, PathMtu, Psn, Qpn, RetryCount, ServiceId, TimeoutCode};

use super::end;
use super::host::{Conn, Host, new_qp};
use super::packets::{self, Arrival};
use crate::app::{AppStep, Phase, Plan};
use crate::bounds::Bounds;
use crate::end::Of;
use crate::net::{Fate, Network};
use crate::shared::Shared;
use crate::world::{Log, Property, Side, Sight, Violation, World};

const ACTIVE_QPN: Qpn = Qpn::new(0x11);

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub struct IbScenario {
    /// What the applications may do; the active one first.
    pub plans: [Plan; 2],
    /// What the network and time may do.
    pub bounds: Bounds,
    /// How often a connection manager repeats a message, and a queue pair a packet, after a
    /// timeout.
    pub retries: u8,
    /// Defects on demand; none in a release.
    pub mutations: Mutations,
}

/// Which timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IbTimer {
    /// The connection manager's.
    Cm,
    /// A queue pair's, by its number on this side.
    Qp(u8),
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IbStep {
    /// The network does something with a packet on its way to this side.
    Net(Side, u8, Fate),
    /// A deadline has come. Others that have come as well may be late.
    Timer(Side, IbTimer),
    /// What a queue pair noted is told to the connection manager.
    Tell(Side, u8),
    /// The application does something with the connection of this number.
    App(Side, u8, AppStep),
}

/// A state.
#[derive(Clone, Debug)]
pub struct IbWorld {
    scenario: Arc<IbScenario>,
    now: Time,
    pub(super) hosts: [Shared<Host>; 2],
    net: Network,
    violation: Option<Violation>,
}

impl Hash for IbWorld {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.now.hash(state);
        self.hosts.hash(state);
        self.net.hash(state);
        self.violation.hash(state);
    }
}

fn address(side: Side) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, if side == Side::Active { 1 } else { 2 }).into()
}

fn path(from: Side) -> PathAddress {
    PathAddress::from_ips(address(from), address(from.peer()))
}

fn service() -> ServiceId {
    ServicePort::new(PortSpace::TCP, 7174).service_id()
}

impl IbWorld {
    /// The state in which the active side has just asked for a connection.
    pub fn new(scenario: IbScenario) -> Self {
        let config = Config {
            max_cm_retries: scenario.retries,
            destroy_retries: scenario.retries,
            stale_retries: 1,
            mutations: scenario.mutations,
            ..Config::default()
        };
        let host = |side: Side| {
            let number = side as u32 + 1;
            let guid = Guid::new(0x5054_00ff_fe00_0000 + u64::from(number));
            Shared::new(Host {
                side,
                plan: scenario.plans[side.index()],
                cm: Endpoint::new(config.clone(), guid, IdSpace::whole(number << 8, 0)),
                retries: scenario.retries,
                mutations: scenario.mutations,
                conns: Vec::new(),
                violation: None,
            })
        };
        let mut world = Self {
            scenario: Arc::new(scenario),
            now: Time::ZERO,
            hosts: Side::BOTH.map(host),
            net: Network::new(scenario.bounds),
            violation: None,
        };
        world.hosts[Side::Passive.index()].update(|host| {
            if host
                .cm
                .listen(ListenToken(1), Listen::service(service()))
                .is_err()
            {
                host.violated(Property::Command, "listen");
            }
        });
        world.change(Side::Active, &mut Log::off(), connect);
        world
    }

    /// Changes one side, and lets follow what follows.
    fn change(
        &mut self,
        side: Side,
        log: &mut Log,
        change: impl FnOnce(&mut Host, Time, &mut Log),
    ) {
        let now = self.now;
        let mut out = Vec::new();
        self.violation = self.hosts[side.index()].update(|host| {
            change(host, now, log);
            host.settle(now, &mut out, log);
            host.violation.take()
        });
        for packet in out {
            log.note(|| Sight::Sent {
                from: side,
                label: packet.label.clone(),
            });
            self.net.send(side.peer(), packet);
        }
        if self.violation.is_none() {
            self.violation = end::check(self);
        }
    }

    pub(super) fn host(&self, side: Side) -> &Host {
        &self.hosts[side.index()]
    }

    pub(super) fn scenario(&self) -> &IbScenario {
        &self.scenario
    }

    fn arrive(&mut self, to: Side, at: u8, fate: Fate, log: &mut Log) {
        let name = self.net.name(to, at);
        let Some(packet) = self.net.take(to, at, fate) else {
            return;
        };
        if fate == Fate::Drop {
            log.note(|| Sight::Lost { to, label: name });
            // The network may have nothing left to do.
            return self.change(to, log, |_, _, _| {});
        }
        log.note(|| Sight::Arrived {
            to,
            label: name,
            again: fate == Fate::Duplicate,
        });
        self.change(to, log, |host, now, _| match packets::arrival(&packet) {
            Arrival::Mad(octets) => {
                let listens = packets::readies(octets, to);
                for conn in &mut host.conns {
                    conn.peer_listens |= Some(conn.id.comm_id()) == listens;
                }
                if let Err(error) = host.cm.on_mad(now, path(to), octets) {
                    host.violated(Property::Events, format_args!("a MAD of ours: {error}"));
                }
            }
            Arrival::Data(octets) => host.on_data(now, octets),
        });
    }

    /// Every timer that runs, and when it fires.
    fn timers(&self) -> impl Iterator<Item = (Time, Side, IbTimer)> {
        Side::BOTH.into_iter().flat_map(|side| {
            let host = self.host(side);
            let cm = host.cm.deadline().map(|at| (at, side, IbTimer::Cm));
            let qps = host
                .conns
                .iter()
                .enumerate()
                .filter_map(move |(number, conn)| {
                    let number = u8::try_from(number).unwrap_or(u8::MAX);
                    let at = conn.qp.as_ref()?.deadline()?;
                    Some((at, side, IbTimer::Qp(number)))
                });
            cm.into_iter().chain(qps)
        })
    }

    fn fire(&mut self, side: Side, timer: IbTimer, log: &mut Log) {
        let due = self
            .timers()
            .find(|(_, of, what)| (*of, *what) == (side, timer));
        let Some((deadline, ..)) = due else { return };
        if !self.rests() {
            self.net.left.timers = self.net.left.timers.saturating_sub(1);
        }
        self.now = self.now.max(deadline);
        self.change(side, log, |host, now, log| {
            log.local(side, || {
                format!("{} fires at {:?}", timer_name(timer), now.since_epoch())
            });
            match timer {
                IbTimer::Cm => host.cm.on_timeout(now),
                IbTimer::Qp(number) => {
                    if let Some(qp) = host
                        .conns
                        .get_mut(usize::from(number))
                        .and_then(|conn| conn.qp.as_mut())
                    {
                        qp.on_timeout(now);
                    }
                }
            }
        });
    }

    /// Nothing is on its way, and nobody has to do anything: only time is left.
    fn rests(&self) -> bool {
        self.net.is_empty()
            && self.hosts.iter().all(|host| {
                host.conns.iter().all(|conn| {
                    conn.notes.is_empty()
                        && !matches!(conn.app.phase, Phase::Requested | Phase::Replied)
                })
            })
    }

    /// Nothing at all is left, unless an application wants something.
    pub(super) fn is_at_rest(&self) -> bool {
        self.rests() && self.timers().next().is_none()
    }

    fn app_steps(&self, side: Side, out: &mut Vec<IbStep>) {
        let host = self.host(side);
        for (number, conn) in host.conns.iter().enumerate() {
            let number = u8::try_from(number).unwrap_or(u8::MAX);
            let mut may = |step: AppStep| out.push(IbStep::App(side, number, step));
            let (app, plan) = (&conn.app, &host.plan);
            if app.forgotten {
                continue;
            }
            let state = host.cm.state(conn.id);
            if conn.qp.is_some() && app.posted < plan.sends {
                may(AppStep::Post);
            }
            match app.phase {
                Phase::Requested => {
                    may(AppStep::Accept);
                }
                Phase::Replied if conn.wanted.is_empty() => may(AppStep::Establish),
                Phase::Replied => may(AppStep::Ready),
                Phase::Unseen
                | Phase::Connecting
                | Phase::Establishing
                | Phase::Established
                | Phase::Over => {}
            }
            let undecided = matches!(app.phase, Phase::Requested | Phase::Replied);
            if undecided && plan.delays && !app.delayed {
                may(AppStep::Delay);
            }
            let accepted = matches!(state, CmState::RepSent | CmState::MraRepRcvd);
            // Who sends on a connection does not reject it any more.
            let untouched = undecided && conn.wanted.is_empty() != plan.confirms;
            if plan.rejects && !app.ended_it && (untouched || accepted) {
                may(AppStep::Reject);
            }
            if plan.disconnects && !app.ended_it && (accepted || state == CmState::Established) {
                may(AppStep::Disconnect);
            }
            if plan.destroys {
                may(AppStep::Destroy);
            }
        }
    }

    fn act(&mut self, side: Side, number: u8, step: AppStep, log: &mut Log) {
        self.change(side, log, |host, now, log| {
            let at = usize::from(number);
            let Some(id) = host.conns.get(at).map(|conn| conn.id) else {
                return;
            };
            if step != AppStep::Establish {
                log.local(side, || step.to_string());
            }
            let done = match step {
                AppStep::Post => {
                    host.post(at);
                    Ok(())
                }
                AppStep::Accept => {
                    let mutations = host.mutations;
                    let conn = &mut host.conns[at];
                    conn.qp = Some(new_qp(conn.qpn, mutations));
                    conn.app.phase = Phase::Establishing;
                    let accept = accept_params(conn.qpn);
                    host.cm.accept(now, id, &accept)
                }
                AppStep::Ready => {
                    host.ready(now, at, log);
                    Ok(())
                }
                AppStep::Establish => {
                    host.establish(now, at, log);
                    Ok(())
                }
                // Of iWARP only.
                AppStep::PostLater | AppStep::Poll | AppStep::Abort => Ok(()),
                AppStep::Delay => {
                    host.conns[at].app.delayed = true;
                    host.cm.mra(now, id, TimeoutCode::new(20))
                }
                AppStep::Reject => {
                    let rejected = host.cm.reject(now, id, &RejectParams::consumer(Vec::new()));
                    forget(host, at);
                    host.abort(at);
                    rejected
                }
                AppStep::Disconnect => {
                    host.conns[at].app.ended_it = true;
                    host.cm.disconnect(now, id)
                }
                AppStep::Destroy => {
                    host.cm.destroy(now, id);
                    forget(host, at);
                    let conn = &mut host.conns[at];
                    conn.qp = None;
                    conn.notes.clear();
                    Ok(())
                }
            };
            if let Err(misuse) = done {
                host.violated(Property::Command, format_args!("{step}: {misuse}"));
            }
        });
    }
}

fn forget(host: &mut Host, at: usize) {
    let app = &mut host.conns[at].app;
    app.ended_it = true;
    app.forgotten = true;
    app.phase = Phase::Over;
}

fn connect(host: &mut Host, now: Time, _: &mut Log) {
    let retries = host.retries;
    let request = ConnectRequest {
        service_id: service(),
        addresses: Some(CmaAddresses {
            source: address(Side::Active),
            source_port: 4711,
            destination: address(Side::Passive),
        }),
        route: Route::new(path(Side::Active)),
        path_mtu: PathMtu::Mtu1024,
        qpn: ACTIVE_QPN,
        qp_type: QpType::Rc,
        starting_psn: Psn::new(100),
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: RetryCount::new(retries),
        rnr_retry_count: RetryCount::new(retries),
        flow_control: false,
        srq: false,
        private_data: Vec::new(),
    };
    match host.cm.connect(now, &request) {
        Ok(id) => {
            let mut conn = Conn::new(id, Phase::Connecting, ACTIVE_QPN, host.plan.receives);
            conn.qp = Some(new_qp(ACTIVE_QPN, host.mutations));
            host.conns.push(conn);
        }
        Err(misuse) => host.violated(Property::Command, format_args!("connect: {misuse}")),
    }
}

fn accept_params(qpn: Qpn) -> AcceptParams {
    AcceptParams {
        qpn,
        starting_psn: Psn::new(200),
        responder_resources: 0,
        initiator_depth: 0,
        rnr_retry_count: RetryCount::new(7),
        flow_control: false,
        srq: false,
        private_data: Vec::new(),
    }
}

fn timer_name(timer: IbTimer) -> String {
    match timer {
        IbTimer::Cm => "cm timer".to_owned(),
        IbTimer::Qp(0) => "qp timer".to_owned(),
        IbTimer::Qp(number) => format!("qp timer of connection {number}"),
    }
}

impl World for IbWorld {
    type Step = IbStep;

    fn steps(&self, out: &mut Vec<IbStep>) {
        if self.violation.is_some() {
            return;
        }
        self.net
            .fates(|to, at, fate| out.push(IbStep::Net(to, at, fate)));
        for side in Side::BOTH {
            for (number, conn) in self.host(side).conns.iter().enumerate() {
                if !conn.notes.is_empty() {
                    out.push(IbStep::Tell(side, u8::try_from(number).unwrap_or(u8::MAX)));
                }
            }
            self.app_steps(side, out);
        }
        if self.rests() {
            // Only time is left: the next deadline comes.
            let next = self.timers().map(|(at, ..)| at).min();
            let due = self.timers().filter(|(at, ..)| Some(*at) == next);
            out.extend(due.map(|(_, side, timer)| IbStep::Timer(side, timer)));
        } else if self.net.left.timers > 0 {
            out.extend(
                self.timers()
                    .map(|(_, side, timer)| IbStep::Timer(side, timer)),
            );
        }
    }

    fn next_step(&self) -> Option<IbStep> {
        let mut steps = Vec::new();
        self.steps(&mut steps);
        let rank = |step: &IbStep| match step {
            IbStep::Tell(..) => Some(0),
            IbStep::Net(_, _, Fate::Deliver) => Some(1),
            IbStep::App(_, _, AppStep::Accept | AppStep::Ready | AppStep::Establish) => Some(2),
            IbStep::Timer(..) if self.rests() => Some(3),
            IbStep::Net(..) | IbStep::App(..) | IbStep::Timer(..) => None,
        };
        steps
            .into_iter()
            .filter(|step| rank(step).is_some())
            .min_by_key(rank)
    }

    fn take(&mut self, step: &IbStep, log: &mut Log) {
        match *step {
            IbStep::Net(to, at, fate) => self.arrive(to, at, fate, log),
            IbStep::Timer(side, timer) => self.fire(side, timer, log),
            IbStep::Tell(side, number) => self.change(side, log, |host, now, _| {
                host.tell(now, number.into());
            }),
            IbStep::App(side, number, step) => self.act(side, number, step, log),
        }
    }

    fn describe(&self, step: &IbStep) -> String {
        match *step {
            IbStep::Net(to, at, fate) => {
                let name = self.net.name(to, at);
                match fate {
                    Fate::Deliver => format!("{to} gets {name}"),
                    Fate::Duplicate => format!("{to} gets a copy of {name}"),
                    Fate::Drop => format!("{to} misses {name}"),
                }
            }
            IbStep::Timer(side, timer) => format!("{side} {}", timer_name(timer)),
            IbStep::Tell(side, number) => format!("{side} tells its cm{}", Of(number)),
            IbStep::App(side, number, step) => format!("{side} {step}{}", Of(number)),
        }
    }

    fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    fn summary(&self) -> String {
        end::summary(self)
    }
}
