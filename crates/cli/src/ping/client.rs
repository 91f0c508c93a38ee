//! The client: it says what is pinged, and compares.

use std::io::{Write, stdout};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use softverbs::cm::ConnParam;

use super::connection::{Area, Connection, Heard};
use super::{step, wire};
use crate::fabric::{Cm, Dial, resolve};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::plan::PingPlan;

/// Pings the first address of `host` that answers.
pub(super) fn run(plan: &PingPlan, host: &str, source: Option<&str>) -> Outcome<()> {
    let source = match source {
        Some(source) => resolve(source, 0)?.into_iter().next(),
        None => None,
    };
    let cm = Cm::new(plan.timeout, plan.transport)?;
    let mut last = Failure::run("no address to ping");
    for peer in resolve(host, plan.port)? {
        match connect(plan, &cm, peer, source) {
            Ok(connection) => return pings(plan, connection, peer),
            Err(failure @ Failure::Run(_)) => last = failure,
            Err(failure) => return Err(failure),
        }
    }
    Err(last.while_doing(host))
}

fn connect(
    plan: &PingPlan,
    cm: &Cm,
    peer: SocketAddr,
    source: Option<SocketAddr>,
) -> Outcome<Connection> {
    let dial = Dial::resolve(cm, peer, source, &[])?;
    step(plan, "address and route resolved");
    let connection = Connection::new(dial.id.clone(), plan.size, plan.timeout, false)?;
    // The depths of rping: one Read at a time.
    let param = ConnParam {
        responder_resources: 1,
        initiator_depth: 1,
        ..ConnParam::default()
    };
    dial.connect(&param)?;
    step(plan, "connected");
    Ok(connection)
}

fn pings(plan: &PingPlan, mut connection: Connection, peer: SocketAddr) -> Outcome<()> {
    let start = Instant::now();
    let mut done = 0;
    let outcome = loop {
        if plan.count == Some(done) {
            break Ok(());
        }
        match interrupt::check().and_then(|()| ping(plan, &mut connection, done)) {
            Ok(()) => done += 1,
            Err(failure) => break Err(failure),
        }
    };
    let elapsed = start.elapsed();
    // The server may have been faster.
    let _ = connection.id.disconnect();
    step(plan, "disconnected");
    match outcome {
        // Ctrl-C is how pings without a count end.
        Err(Failure::Interrupted) if plan.count.is_none() => {}
        outcome => outcome.map_err(|failure| failure.while_doing(&peer.to_string()))?,
    }
    summary(plan, peer, done, elapsed)
}

fn ping(plan: &PingPlan, connection: &mut Connection, number: u64) -> Outcome<()> {
    let data = wire::payload(number, plan.size);
    connection.put(Area::Source, &data)?;
    if plan.verify {
        // What an earlier ping left must not pass for an answer.
        connection.put(Area::Sink, &vec![0xff; data.len()])?;
    }
    connection.announce(Area::Source)?;
    step(plan, "source announced");
    await_go_ahead(connection)?;
    connection.announce(Area::Sink)?;
    step(plan, "source was read, sink announced");
    await_go_ahead(connection)?;
    step(plan, "sink was written");
    let back = connection.get(Area::Sink, data.len())?;
    if plan.verify
        && let Some(at) = data.iter().zip(&back).position(|(sent, back)| sent != back)
    {
        return Err(Failure::run(format!(
            "ping {number} came back with other data: octet {at}"
        )));
    }
    if plan.verbose {
        let mut out = stdout().lock();
        writeln!(out, "ping data: {}", wire::text(&back))?;
        out.flush()?;
    }
    Ok(())
}

fn await_go_ahead(connection: &mut Connection) -> Outcome<()> {
    match connection.hear()? {
        Heard::Announcement(_) => Ok(()),
        Heard::Closed => Err(Failure::run(
            "the peer disconnected in the middle of a ping",
        )),
    }
}

fn summary(plan: &PingPlan, peer: SocketAddr, done: u64, elapsed: Duration) -> Outcome<()> {
    let each = elapsed.as_secs_f64() * 1e6 / crate::stats::to_f64(done.max(1));
    let verified = if plan.verify { ", verified" } else { "" };
    let mut out = stdout().lock();
    writeln!(
        out,
        "{done} pings of {} bytes to {peer}{verified}: {each:.1} usec each",
        plan.size
    )?;
    out.flush()?;
    Ok(())
}
