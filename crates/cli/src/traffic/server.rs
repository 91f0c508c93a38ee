//! The server: it follows what a client asks for, unless its user demands otherwise.

use std::io::{Write, stderr};
use std::net::{SocketAddr, TcpListener};

use nix::sys::signal::Signal;
use nix::unistd::getppid;
use softverbs::cm::{CmEvent, CmId, ConnParam, EventKind};

use super::bandwidth;
use super::endpoint::Endpoint;
use super::layout::Layout;
use super::progress::Progress;
use super::{is_target, judge, latency, result_of, sleeps};
use crate::deadline::Deadline;
use crate::exchange::{CmControl, Control, LaneKeys, Message, TcpControl, unexpected};
use crate::fabric::{Cm, Listeners, announce, device_address, show, show_peer, unwanted};
use crate::failure::{Failure, Outcome};
use crate::plan::{Metric, ServerPlan, TrafficPlan, Workload};

/// Memory that a client may make this server register.
const MOST_MEMORY: usize = 32 << 30;

/// Waits for clients and serves them.
pub(crate) fn run(plan: &TrafficPlan, server: &ServerPlan) -> Outcome<()> {
    if let Some(parent) = server.parent {
        end_with(parent)?;
    }
    let cm = Cm::new(plan.timeout, plan.transport)?;
    let address = device_address(&plan.local, None)?;
    let door = Door::open(&cm, plan, server, address)?;
    let serve_one = || {
        door.next_client(&cm, server)?
            .serve(&cm, plan, server, &door)
    };
    loop {
        match serve_one() {
            Ok(text) => {
                // Whoever does not read stderr still gets the service.
                let _ = writeln!(stderr().lock(), "{text}");
                if !server.persistent {
                    return Ok(());
                }
            }
            Err(failure) if !server.persistent => return Err(failure),
            // The way that a server without end ends.
            Err(Failure::Interrupted) => return Ok(()),
            Err(Failure::Run(text)) => complain(&text),
            Err(failure) => return Err(failure),
        }
    }
}

/// From here on this process ends when its parent does, however that ends.
fn end_with(parent: i32) -> Outcome<()> {
    let cannot = |error| Failure::run(format!("cannot stay with process {parent}: {error}"));
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(cannot)?;
    // It may have ended before.
    if getppid().as_raw() == parent {
        return Ok(());
    }
    Err(Failure::run(format!("process {parent} has gone")))
}

/// Where clients come in.
enum Door {
    /// Everything at one port of the RDMA CM.
    Cm(Listeners),
    /// The exchange at a TCP port; the port for the queue pairs is opened for each client.
    Tcp(TcpListener, Option<SocketAddr>),
}

/// A client whose Hello has come.
struct Client {
    control: Control,
    address: Option<SocketAddr>,
    session: u64,
    workload: Workload,
    /// The request of a client that came through the CM waits for its answer.
    request: Option<CmId>,
}

impl Door {
    fn open(
        cm: &Cm,
        plan: &TrafficPlan,
        server: &ServerPlan,
        address: Option<SocketAddr>,
    ) -> Outcome<Self> {
        let file = server.port_file.as_deref();
        if !plan.tcp_exchange {
            let listeners = Listeners::new(cm, address, server.port, &[])?;
            announce(listeners.address, file)?;
            return Ok(Self::Cm(listeners));
        }
        let cannot = |error| Failure::run(format!("cannot listen: {error}"));
        let listener = match address {
            Some(mut address) => {
                address.set_port(server.port);
                TcpListener::bind(address)
            }
            None => TcpListener::bind(("::", server.port))
                .or_else(|_| TcpListener::bind(("0.0.0.0", server.port))),
        }
        .map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        announce(listener.local_addr().map_err(cannot)?, file)?;
        Ok(Self::Tcp(listener, address))
    }

    /// Waits for a client's Hello. Whatever else comes to the door is sent away.
    fn next_client(&self, cm: &Cm, server: &ServerPlan) -> Outcome<Client> {
        let deadline = Deadline::maybe_after(server.wait);
        match self {
            Self::Cm(_) => loop {
                let event = cm.next(deadline)?.ok_or_else(|| nobody(server))?;
                if event.kind() != EventKind::ConnectRequest {
                    continue;
                }
                match Message::decode(event.private_data()) {
                    Ok(Message::Hello { session, workload }) => {
                        let id = event.id().clone();
                        return Ok(Client {
                            control: Control::Cm(CmControl::new(id.clone())?),
                            address: id.peer_addr(),
                            session,
                            workload,
                            request: Some(id),
                        });
                    }
                    Ok(other) => send_away(event.id(), &unexpected(&other, "Hello").to_string()),
                    Err(error) => send_away(event.id(), &error.to_string()),
                }
            },
            Self::Tcp(listener, _) => loop {
                let (control, address) =
                    TcpControl::accept(listener, deadline)?.ok_or_else(|| nobody(server))?;
                let mut control = Control::Tcp(control);
                let reason = match control.receive(cm.timeout) {
                    Ok(Message::Hello { session, workload }) => {
                        return Ok(Client {
                            control,
                            address: Some(address),
                            session,
                            workload,
                            request: None,
                        });
                    }
                    Ok(other) => unexpected(&other, "Hello"),
                    Err(failure @ Failure::Run(_)) => failure,
                    Err(failure) => return Err(failure),
                };
                let reason = format!("{reason}; --tcp-exchange has to be given at both ends");
                let _ = control.send(&Message::Refuse(reason.clone()));
                complain(&format!("{}: {reason}", show(address)));
            },
        }
    }
}

impl Client {
    /// Serves this client to the end; returns what there is to say about it.
    fn serve(
        mut self,
        cm: &Cm,
        plan: &TrafficPlan,
        server: &ServerPlan,
        door: &Door,
    ) -> Outcome<String> {
        let name = show_peer(self.address);
        self.check(plan, server)
            .map_err(|failure| failure.while_doing(&name))?;
        let own_door;
        let listeners = match door {
            Door::Cm(listeners) => listeners,
            Door::Tcp(_, address) => {
                own_door = Listeners::new(cm, *address, 0, &Endpoint::options(&self.workload))?;
                &own_door
            }
        };
        let workload = self.workload;
        let serve = || -> Outcome<()> {
            self.welcome(listeners.address.port())?;
            let mut end = self.accept_lanes(cm, plan, listeners)?;
            self.rounds(plan, &mut end)?;
            for lane in &end.lanes {
                // The client may have been faster.
                let _ = lane.id.disconnect();
            }
            self.control.close();
            Ok(())
        };
        serve().map_err(|failure| failure.while_doing(&name))?;
        Ok(format!("served {name}: {workload}"))
    }

    /// Refuses what the user does not want, and what would take this machine down.
    fn check(&mut self, plan: &TrafficPlan, server: &ServerPlan) -> Outcome<()> {
        let too_much = || {
            let octets = Layout::new(&self.workload)
                .len()
                .filter(|octets| *octets <= MOST_MEMORY);
            octets
                .is_none()
                .then(|| "the measurement takes too much memory".to_owned())
        };
        let reason = server
            .demands
            .refuse(plan.workload.metric, &self.workload)
            .or_else(too_much);
        let Some(reason) = reason else { return Ok(()) };
        match &self.request {
            Some(id) => refuse(id, &reason),
            None => {
                let _ = self.control.send(&Message::Refuse(reason.clone()));
            }
        }
        Err(Failure::run(format!("refused: {reason}")))
    }

    /// Agrees.
    fn welcome(&mut self, port: u16) -> Outcome<()> {
        let welcome = Message::Welcome {
            session: self.session,
            port,
        };
        match &self.request {
            Some(id) => Ok(id.accept(&ConnParam::with_private_data(welcome.encode()))?),
            None => self.control.send(&welcome),
        }
    }

    /// Accepts the connections of all queue pairs, and waits until all are established.
    fn accept_lanes(
        &mut self,
        cm: &Cm,
        plan: &TrafficPlan,
        listeners: &Listeners,
    ) -> Outcome<Endpoint> {
        let mut workload = self.workload;
        workload.crc |= plan.workload.crc;
        let mut endpoint: Option<Endpoint> = None;
        // The lanes, and the connection of the exchange if it is one of the CM.
        let mut missing = u32::from(workload.qps) + u32::from(self.request.is_some());
        let mut deadline = Deadline::after(cm.timeout);
        while missing > 0 {
            let Some(event) = cm.next(deadline)? else {
                return Err(Failure::run(
                    "the client did not connect its queue pairs in time",
                ));
            };
            let mine = |id: &CmId| {
                self.request
                    .as_ref()
                    .is_some_and(|request| request.same_as(id))
                    || endpoint
                        .iter()
                        // What happens mostly concerns the last one.
                        .flat_map(|end| end.lanes.iter().rev())
                        .any(|lane| lane.id.same_as(id))
            };
            match event.kind() {
                EventKind::ConnectRequest => {
                    let Some(keys) = self.lane_of(&event, listeners, endpoint.as_ref()) else {
                        refuse(event.id(), "busy with another client");
                        continue;
                    };
                    let accepted = self.accept_lane(plan, workload, &mut endpoint, &event, keys);
                    if let Err(failure) = accepted {
                        refuse(event.id(), &failure.to_string());
                        return Err(failure);
                    }
                    deadline = Deadline::after(cm.timeout);
                }
                EventKind::Established if mine(event.id()) => missing -= 1,
                _ if mine(event.id()) => return Err(unwanted(&event, "connecting")),
                _ => {}
            }
        }
        endpoint.ok_or_else(|| Failure::run("no queue pairs"))
    }

    /// Accepts the connection of one queue pair.
    fn accept_lane(
        &self,
        plan: &TrafficPlan,
        workload: Workload,
        endpoint: &mut Option<Endpoint>,
        event: &CmEvent,
        keys: LaneKeys,
    ) -> Outcome<()> {
        let id = event.id().clone();
        for option in Endpoint::options(&workload) {
            id.set_option(option)?;
        }
        let end = match endpoint {
            Some(end) => end,
            none => {
                let context = id
                    .verbs()
                    .ok_or_else(|| Failure::run("a request has no device"))?;
                let events = sleeps(plan, &workload) || is_target(&workload);
                none.insert(Endpoint::new(
                    &context,
                    workload,
                    self.session,
                    false,
                    events,
                )?)
            }
        };
        let own = end.add_lane(id.clone())?;
        end.know_peer(keys)?;
        let answer = Message::LaneAccept(own).encode();
        Ok(id.accept(&ConnParam::with_private_data(answer))?)
    }

    /// What a connect request says, if it is for this client's next lane.
    fn lane_of(
        &self,
        event: &CmEvent,
        listeners: &Listeners,
        endpoint: Option<&Endpoint>,
    ) -> Option<LaneKeys> {
        let next = endpoint.map_or(0, |end| end.lanes.len());
        let at_our_door = event.listen_id().is_some_and(|id| listeners.contains(id));
        match Message::decode(event.private_data()) {
            Ok(Message::Lane(keys))
                if at_our_door
                    && keys.session == self.session
                    && usize::from(keys.index) == next
                    && next < usize::from(self.workload.qps) =>
            {
                Some(keys)
            }
            _ => None,
        }
    }

    /// Takes part in one round after the other until the client says goodbye.
    fn rounds(&mut self, plan: &TrafficPlan, end: &mut Endpoint) -> Outcome<()> {
        loop {
            let patience = end.workload.patience(plan.timeout);
            let (round, size) = match self.control.receive(patience)? {
                Message::Start { round, size } => (round, size),
                Message::Bye => return Ok(()),
                other => return Err(unexpected(&other, "Start")),
            };
            if size == 0 || size > self.workload.sizes.largest() {
                return Err(Failure::run(format!(
                    "the client wants messages of {size} octets"
                )));
            }
            end.start_round(round, size)?;
            self.control.send(&Message::Ready { round })?;
            let tally = match self.workload.metric {
                Metric::Bandwidth => bandwidth::run(end, plan.timeout, &mut Progress::hidden())?,
                Metric::Latency => latency::answer(end, plan.timeout)?,
            };
            let own = result_of(round, tally);
            self.control.send(&Message::Result(own.clone()))?;
            match self.control.receive(patience)? {
                Message::Result(peer) if peer.round == round => judge(&own, &peer)?,
                other => return Err(unexpected(&other, "Result")),
            }
        }
    }
}

/// Rejects a connect request, with the reason.
fn refuse(id: &CmId, reason: &str) {
    // The client may have gone already.
    let _ = id.reject(&Message::Refuse(reason.to_owned()).encode());
}

/// Rejects a connect request, and tells the user of this server, too.
fn send_away(id: &CmId, reason: &str) {
    refuse(id, reason);
    let peer = id
        .peer_addr()
        .map_or_else(|| "somebody".to_owned(), |peer| peer.to_string());
    complain(&format!("{peer}: {reason}"));
}

fn complain(text: &str) {
    // Whoever does not read stderr still gets the service.
    let _ = writeln!(stderr().lock(), "softverbs: {text}");
}

fn nobody(server: &ServerPlan) -> Failure {
    let seconds = server.wait.unwrap_or_default().as_secs_f64();
    Failure::run(format!("no client came within {seconds} s"))
}
