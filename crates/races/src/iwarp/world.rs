//! Both sides, TCP between them, and everything that can happen next.

use softverbs_proto::mutation::Mutations;
use softverbs_proto::time::Time;

use super::conn::{Around, Conn, Socket};
use super::end;
use super::host::Host;
use super::tcp::Tcp;
use crate::app::{AppStep, Phase, Plan};
use crate::bounds::Bounds;
use crate::end::Of;
use crate::shared::Shared;
use crate::world::{Log, Side, Sight, Violation, World};

/// What both sides ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IwarpSetup {
    /// MPA revision of the first attempt.
    pub revision: u8,
    /// Peer-to-peer mode: the initiator begins with an RTR frame.
    pub peer_to_peer: bool,
    /// The responder chooses an RDMA Write as RTR frame, as others do; ours takes a Read.
    pub rtr_write: bool,
    /// CRC.
    pub crc: bool,
    /// Markers, both ways.
    pub markers: bool,
    /// Octets that TCP takes in one direction before they are read; a frame of the start-up needs
    /// 25.
    pub room: usize,
}

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub struct IwarpScenario {
    /// What the applications may do; the active one first.
    pub plans: [Plan; 2],
    /// What both ask for.
    pub setup: IwarpSetup,
    /// What the network and time may do.
    pub bounds: Bounds,
    /// Defects on demand; none in a release.
    pub mutations: Mutations,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IwarpStep {
    /// The connection of this number of this side reads so many octets.
    Read(Side, u8, u16),
    /// It finds the end of the stream.
    ReadEnd(Side, u8),
    /// A reset arrives.
    Reset(Side, u8),
    /// The network resets a TCP connection.
    Cut(u8),
    /// The queue pair gets the socket from the start-up.
    Attach(Side, u8),
    /// TCP takes octets again.
    Room(Side, u8),
    /// A deadline has come. Others that have come as well may be late.
    Timer(Side, u8),
    /// The application does something.
    App(Side, u8, AppStep),
}

/// A state.
#[derive(Clone, Debug, Hash)]
pub struct IwarpWorld {
    now: Time,
    hosts: [Shared<Host>; 2],
    tcp: Tcp,
    /// What the network and time may still do.
    left: Bounds,
    /// They have done something that ends connections.
    disturbed: bool,
    violation: Option<Violation>,
}

impl IwarpWorld {
    /// The state in which the active side has just asked for a connection.
    pub fn new(scenario: IwarpScenario) -> Self {
        let host = |side: Side| {
            Shared::new(Host {
                side,
                plan: scenario.plans[side.index()],
                setup: scenario.setup,
                mutations: scenario.mutations,
                conns: Vec::new(),
            })
        };
        let mut world = Self {
            now: Time::ZERO,
            hosts: Side::BOTH.map(host),
            tcp: Tcp::new(scenario.setup.room),
            left: scenario.bounds,
            disturbed: false,
            violation: None,
        };
        world.change(Side::Active, &mut Log::off(), Host::connect);
        world
    }

    pub(super) fn host(&self, side: Side) -> &Host {
        &self.hosts[side.index()]
    }

    pub(super) const fn tcp(&self) -> &Tcp {
        &self.tcp
    }

    /// Whether the network or time has ended something.
    pub(super) const fn is_disturbed(&self) -> bool {
        self.disturbed
    }

    /// Changes one side, and lets follow what follows.
    fn change(
        &mut self,
        side: Side,
        log: &mut Log,
        change: impl FnOnce(&mut Host, &mut Around<'_>),
    ) {
        let (now, tcp) = (self.now, &mut self.tcp);
        let before = tcp.count();
        self.violation = self.hosts[side.index()].update(|host| {
            let mut violation = None;
            let mut around = Around {
                side,
                now,
                tcp,
                log,
                violation: &mut violation,
            };
            change(host, &mut around);
            violation
        });
        for link in before..self.tcp.count() {
            self.hosts[Side::Passive.index()].update(|host| host.welcome(now, link));
        }
        if self.violation.is_none() {
            self.violation = end::check(self);
        }
    }

    /// All connections of both sides with their numbers.
    fn conns(&self) -> impl Iterator<Item = (Side, u8, &Conn)> {
        Side::BOTH.into_iter().flat_map(|side| {
            (0..)
                .zip(&self.host(side).conns)
                .map(move |(number, conn)| (side, number, conn))
        })
    }

    /// What happens sooner or later by itself.
    fn pending(&self, mut each: impl FnMut(IwarpStep)) {
        for (side, number, conn) in self.conns() {
            if matches!(conn.socket, Socket::Handover { .. }) {
                each(IwarpStep::Attach(side, number));
            }
            let link = conn.link;
            if conn.is_reading() {
                let readable = self.tcp.readable(link, side);
                if readable > 0 {
                    let all = u16::try_from(readable).unwrap_or(u16::MAX);
                    each(IwarpStep::Read(side, number, all));
                } else if self.tcp.at_end(link, side) {
                    each(IwarpStep::ReadEnd(side, number));
                }
            }
            let arrived = self.tcp.is_dead(link, side) && conn.is_reading();
            if arrived || self.tcp.is_resetting(link, side) {
                each(IwarpStep::Reset(side, number));
            }
            if conn.waits_for_room() && self.tcp.room(link, side) > 0 {
                each(IwarpStep::Room(side, number));
            }
            if conn.qp.as_ref().is_some_and(|qp| qp.deferred) {
                each(IwarpStep::App(side, number, AppStep::Poll));
            }
            if conn.app.phase == Phase::Requested {
                each(IwarpStep::App(side, number, AppStep::Accept));
            }
        }
    }

    /// Only time is left.
    fn rests(&self) -> bool {
        let mut rests = true;
        self.pending(|_| rests = false);
        rests
    }

    fn timers(&self) -> impl Iterator<Item = (Time, Side, u8)> {
        self.conns()
            .filter_map(|(side, number, conn)| Some((conn.deadline()?, side, number)))
    }

    /// Nothing at all is left, unless an application wants something.
    pub(super) fn is_at_rest(&self) -> bool {
        self.rests() && self.timers().next().is_none()
    }

    fn fire(&mut self, side: Side, number: u8, log: &mut Log) {
        let due = self
            .timers()
            .find(|timer| (timer.1, timer.2) == (side, number));
        let Some((deadline, ..)) = due else { return };
        let early = !self.rests();
        if early {
            self.left.timers = self.left.timers.saturating_sub(1);
        }
        self.now = self.now.max(deadline);
        let now = self.now;
        // Before the change, which checks: a timer that comes too early may end a connection.
        self.disturbed |= early
            && self
                .conn(side, number)
                .is_some_and(|conn| conn.ends_at(now));
        self.change(side, log, |host, around| {
            around.local(|| format!("timer fires at {:?}", now.since_epoch()));
            host.fire(around, number.into());
        });
    }

    fn conn(&self, side: Side, number: u8) -> Option<&Conn> {
        self.host(side).conns.get(usize::from(number))
    }

    fn read(&mut self, side: Side, number: u8, octets: u16, log: &mut Log) {
        let Some(conn) = self.conn(side, number) else {
            return;
        };
        let (link, octets) = (conn.link, usize::from(octets));
        if octets < self.tcp.readable(link, side)
            && let Some(splits) = &mut self.left.splits
        {
            *splits = splits.saturating_sub(1);
        }
        log.note(|| Sight::Arrived {
            to: side,
            label: self.tcp.name(link, side, octets),
            again: false,
        });
        self.change(side, log, |host, around| {
            host.read(around, number.into(), octets);
        });
    }

    fn reset(&mut self, side: Side, number: u8, log: &mut Log) {
        let Some(conn) = self.conn(side, number) else {
            return;
        };
        let link = conn.link;
        if self.tcp.is_resetting(link, side) {
            self.tcp.take_reset(link, side);
            log.local(side, || "the connection is reset".to_owned());
        }
        self.change(side, log, |host, around| {
            if host.conns[usize::from(number)].is_reading() {
                host.read_end(around, number.into(), true);
            }
        });
    }

    fn cut(&mut self, link: u8, log: &mut Log) {
        self.left.resets = self.left.resets.saturating_sub(1);
        self.disturbed = true;
        self.tcp.cut(link.into());
        log.local(Side::Active, || "the network resets".to_owned());
        self.change(Side::Active, log, |_, _| {});
    }
}

impl World for IwarpWorld {
    type Step = IwarpStep;

    fn steps(&self, out: &mut Vec<IwarpStep>) {
        if self.violation.is_some() {
            return;
        }
        self.pending(|step| match step {
            IwarpStep::Read(side, number, all) => {
                let lingers = |conn: &Conn| matches!(conn.socket, Socket::Linger { .. });
                // How it is cut makes no difference to who forgets it.
                let splits =
                    self.left.splits != Some(0) && !self.conn(side, number).is_some_and(lingers);
                let least = if splits { 1 } else { all };
                out.extend((least..=all).map(|octets| IwarpStep::Read(side, number, octets)));
            }
            // Among those of the application.
            IwarpStep::App(..) => {}
            step => out.push(step),
        });
        for (side, number, _) in self.conns() {
            let host = self.host(side);
            host.app_steps(number.into(), |step| {
                out.push(IwarpStep::App(side, number, step))
            });
        }
        if self.left.resets > 0 {
            let living = self
                .tcp
                .living()
                .map(|link| u8::try_from(link).unwrap_or(u8::MAX));
            out.extend(living.map(IwarpStep::Cut));
        }
        if self.rests() {
            // The next deadline comes.
            let next = self.timers().map(|(at, ..)| at).min();
            let due = self.timers().filter(|(at, ..)| Some(*at) == next);
            out.extend(due.map(|(_, side, number)| IwarpStep::Timer(side, number)));
        } else if self.left.timers > 0 {
            let timers = self.timers();
            out.extend(timers.map(|(_, side, number)| IwarpStep::Timer(side, number)));
        }
    }

    fn next_step(&self) -> Option<IwarpStep> {
        let mut next = None;
        self.pending(|step| {
            next.get_or_insert(step);
        });
        next.or_else(|| {
            let (_, side, number) = self.timers().min_by_key(|(at, ..)| *at)?;
            Some(IwarpStep::Timer(side, number))
        })
        .filter(|_| self.violation.is_none())
    }

    fn take(&mut self, step: &IwarpStep, log: &mut Log) {
        match *step {
            IwarpStep::Read(side, number, octets) => self.read(side, number, octets, log),
            IwarpStep::ReadEnd(side, number) => self.change(side, log, |host, around| {
                around.local(|| "reads the end".to_owned());
                host.read_end(around, number.into(), false);
            }),
            IwarpStep::Reset(side, number) => self.reset(side, number, log),
            IwarpStep::Cut(link) => self.cut(link, log),
            IwarpStep::Attach(side, number) => self.change(side, log, |host, around| {
                host.conns[usize::from(number)].attach(around);
            }),
            IwarpStep::Room(side, number) => self.change(side, log, |host, around| {
                host.conns[usize::from(number)].on_room(around);
            }),
            IwarpStep::Timer(side, number) => self.fire(side, number, log),
            IwarpStep::App(side, number, step) => self.change(side, log, |host, around| {
                host.act(around, number.into(), step);
            }),
        }
    }

    fn describe(&self, step: &IwarpStep) -> String {
        match *step {
            IwarpStep::Read(side, number, octets) => {
                let link = self.conn(side, number).map_or(0, |conn| conn.link);
                let name = self.tcp.name(link, side, octets.into());
                format!("{side} reads {name}{}", Of(number))
            }
            IwarpStep::ReadEnd(side, number) => format!("{side} reads the end{}", Of(number)),
            IwarpStep::Reset(side, number) => format!("{side} gets a reset{}", Of(number)),
            IwarpStep::Cut(link) => format!("network resets{}", Of(link)),
            IwarpStep::Attach(side, number) => {
                format!("{side} queue pair takes over{}", Of(number))
            }
            IwarpStep::Room(side, number) => format!("{side} has room{}", Of(number)),
            IwarpStep::Timer(side, number) => format!("{side} timer{}", Of(number)),
            IwarpStep::App(side, number, step) => format!("{side} {step}{}", Of(number)),
        }
    }

    fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    fn summary(&self) -> String {
        end::summary(self)
    }
}
