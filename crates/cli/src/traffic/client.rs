//! The client: it says what is measured, and reports it.

use std::hash::{BuildHasher, RandomState};
use std::io::stdout;
use std::net::SocketAddr;

use softverbs::Transport;

use super::bandwidth;
use super::endpoint::Endpoint;
use super::progress::Progress;
use super::service;
use super::{check_descriptors, judge, latency, result_of, sleeps};
use crate::exchange::{CmControl, Control, Message, RoundResult, TcpControl, unexpected};
use crate::fabric::{Cm, Dial, device_address};
use crate::failure::{Failure, Outcome};
use crate::plan::{Connection, Metric, Sizes, TrafficPlan, Workload};
use crate::report::{Bandwidth, Figures, Loss, Report};

/// Measures against the server at the first of `peers` that can be reached.
pub(crate) fn run(plan: &TrafficPlan, peers: &[SocketAddr]) -> Outcome<()> {
    let mut client = Client::connect_any(plan, peers)?;
    let workload = client.workload;
    let mut report = Report::new(stdout().lock(), &workload, client.transport, plan.json);
    for (round, size) in (0..).zip(workload.sizes.each()) {
        let (figures, verdict) = client.round(round, size)?;
        report.row(size, &figures)?;
        verdict?;
    }
    client.close()
}

/// A connected client.
struct Client<'a> {
    plan: &'a TrafficPlan,
    /// What is measured, all of it known.
    workload: Workload,
    transport: Transport,
    control: Control,
    end: Endpoint,
}

impl<'a> Client<'a> {
    /// Connects to the first of `peers` that can be reached.
    fn connect_any(plan: &'a TrafficPlan, peers: &[SocketAddr]) -> Outcome<Self> {
        let cm = Cm::new(plan.timeout, plan.transport)?;
        let session = RandomState::new().hash_one(peers);
        let mut last = Failure::run("no address to connect to");
        for peer in peers {
            let greeted = settle(plan, &cm, *peer).and_then(|(workload, transport)| {
                let (control, answer) = greet(plan, &workload, &cm, *peer, session)?;
                Ok((workload, transport, control, answer))
            });
            match greeted {
                // What it said holds, whatever the other addresses may be.
                Ok((workload, transport, control, answer)) => {
                    let peer = with_port(*peer, port_of(answer, session)?);
                    let end = connect_lanes(plan, workload, &cm, peer, session)?;
                    return Ok(Self {
                        plan,
                        workload,
                        transport,
                        control,
                        end,
                    });
                }
                Err(failure @ Failure::Run(_)) => last = failure,
                Err(failure) => return Err(failure),
            }
        }
        Err(last)
    }

    /// Measures messages of one size. The verdict on the payload comes beside the figures, which
    /// are worth printing in either case.
    fn round(&mut self, round: u32, size: u32) -> Outcome<(Figures, Outcome<()>)> {
        let timeout = self.plan.timeout;
        let workload = self.workload;
        self.end.start_round(round, size)?;
        self.control.send(&Message::Start { round, size })?;
        match self.control.receive(workload.patience(timeout))? {
            Message::Ready { round: theirs } if theirs == round => {}
            other => return Err(unexpected(&other, "Ready")),
        }
        let mut progress = Progress::new(&workload, size);
        let (tally, latencies) = match workload.metric {
            Metric::Bandwidth => (bandwidth::run(&mut self.end, timeout, &mut progress)?, None),
            Metric::Latency => {
                let (latencies, tally) = latency::initiate(&mut self.end, timeout, &mut progress)?;
                (tally, Some(latencies))
            }
        };
        drop(progress);
        let own = result_of(round, tally);
        self.control.send(&Message::Result(own.clone()))?;
        let peer = match self.control.receive(workload.patience(timeout))? {
            Message::Result(peer) if peer.round == round => peer,
            other => return Err(unexpected(&other, "Result")),
        };
        let figures = match latencies {
            Some(latencies) => {
                let loss = (!workload.is_reliable()).then_some(Loss {
                    sent: own.messages,
                    arrived: own.received,
                });
                Figures::Latency(latencies.summary(), loss)
            }
            None => Figures::Bandwidth(bandwidth_of(&workload, size, &own, &peer)),
        };
        Ok((figures, judge(&own, &peer).and_then(|()| figures.judge())))
    }

    /// Says goodbye.
    fn close(mut self) -> Outcome<()> {
        self.control.send(&Message::Bye)?;
        for lane in &self.end.lanes {
            // The server may have been faster.
            let _ = lane.id.disconnect();
        }
        self.control.close();
        Ok(())
    }
}

/// Finds the way to the peer, and fills in what depends on the device that it begins at.
fn settle(plan: &TrafficPlan, cm: &Cm, peer: SocketAddr) -> Outcome<(Workload, Transport)> {
    let mut workload = plan.workload;
    let source = device_address(&plan.local, Some(peer))?;
    let dial = Dial::resolve(cm, peer, source, &[])?;
    let transport = dial.id.transport();
    workload.check_transport(transport)?;
    check_descriptors(&workload, transport)?;
    let context = dial.id.verbs();
    let context = context.ok_or_else(|| Failure::run("the route has no device"))?;
    service::check_port(&context, &workload)?;
    if !workload.is_reliable() {
        let mtu = match workload.mtu {
            Some(mtu) => mtu,
            None => service::active_mtu(&context)?,
        };
        workload.mtu = Some(mtu);
        if workload.connection == Connection::Ud {
            if let Sizes::UpTo(largest) = &mut workload.sizes {
                *largest = (*largest).min(mtu.into());
            }
            Workload::check_datagram(workload.sizes.largest(), mtu)?;
        }
        workload = workload.resolve();
    }
    Ok((workload, transport))
}

/// Opens the exchange with a server; returns its answer.
fn greet(
    plan: &TrafficPlan,
    workload: &Workload,
    cm: &Cm,
    peer: SocketAddr,
    session: u64,
) -> Outcome<(Control, Message)> {
    let hello = Message::Hello {
        session,
        workload: *workload,
    };
    if plan.tcp_exchange {
        let mut control = Control::Tcp(TcpControl::connect(peer, plan.timeout)?);
        control.send(&hello)?;
        let answer = match control.receive(plan.timeout) {
            // What listens there has no use for such a connection.
            Err(Failure::Run(why)) => Err(Failure::run(format!(
                "{why}; --tcp-exchange has to be given at both ends"
            ))),
            other => other,
        };
        return Ok((control, answer?));
    }
    let source = device_address(&plan.local, Some(peer))?;
    let dial = Dial::resolve(cm, peer, source, &[])?;
    let control = CmControl::new(dial.id.clone())?;
    let answer = dial.ask(&hello)?;
    Ok((Control::Cm(control), answer))
}

/// The port at which the server expects the queue pairs.
fn port_of(answer: Message, session: u64) -> Outcome<u16> {
    match answer {
        Message::Welcome {
            session: theirs,
            port,
        } if theirs == session => Ok(port),
        other => Err(unexpected(&other, "Welcome")),
    }
}

/// The same address (with the scope of a link-local one) and another port.
fn with_port(mut peer: SocketAddr, port: u16) -> SocketAddr {
    peer.set_port(port);
    peer
}

/// Connects the queue pairs, one after the other.
fn connect_lanes(
    plan: &TrafficPlan,
    workload: Workload,
    cm: &Cm,
    peer: SocketAddr,
    session: u64,
) -> Outcome<Endpoint> {
    let source = device_address(&plan.local, Some(peer))?;
    let options = Endpoint::options(&workload);
    let mut endpoint: Option<Endpoint> = None;
    for index in 0..workload.qps {
        let mut connect = || -> Outcome<()> {
            let dial = Dial::resolve(cm, peer, source, &options)?;
            let end = match &mut endpoint {
                Some(end) => end,
                none => {
                    let context = dial.id.verbs();
                    let context = context.ok_or_else(|| Failure::run("the route has no device"))?;
                    let events = sleeps(plan, &workload);
                    none.insert(Endpoint::new(&context, workload, session, true, events)?)
                }
            };
            let own = end.add_lane(dial.id.clone())?;
            match dial.ask(&Message::Lane(own))? {
                Message::LaneAccept(keys) if keys.session == session && keys.index == index => {
                    end.know_peer(keys)
                }
                other => Err(unexpected(&other, "LaneAccept")),
            }
        };
        connect().map_err(|failure| failure.while_doing(&format!("queue pair {index}")))?;
    }
    endpoint.ok_or_else(|| Failure::run("no queue pairs"))
}

/// The figures of one round: of both directions, if there were two.
fn bandwidth_of(
    workload: &Workload,
    size: u32,
    own: &RoundResult,
    peer: &RoundResult,
) -> Bandwidth {
    let one = |result: &RoundResult| {
        let peak = crate::stats::to_f64(result.peak);
        let seconds = result.elapsed.as_secs_f64();
        Bandwidth::new(result.messages, size, seconds, peak)
    };
    if !workload.is_reliable() {
        let there = one(own).with_loss(own.messages, peer.received);
        if workload.bidirectional {
            return there.plus(one(peer).with_loss(peer.messages, own.received));
        }
        return there;
    }
    if workload.bidirectional {
        one(own).plus(one(peer))
    } else {
        one(own)
    }
}
