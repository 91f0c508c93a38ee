//! `bw` and `lat`.
//!
//! `client.rs` and `server.rs` are the two ends, `both.rs` starts the other one on this machine.
//! `endpoint.rs`, `atomic.rs`, `lane.rs` and `layout.rs` hold the verbs objects, `bandwidth.rs` and
//! `latency.rs` the two loops, `lossy.rs` the first one where messages may be lost, `note.rs` what
//! the ends tell each other meanwhile, `pattern.rs` the payload that is verified. `service.rs` makes
//! the unreliable queue pairs.

mod atomic;
mod bandwidth;
mod both;
mod client;
mod endpoint;
mod lane;
mod latency;
mod layout;
mod lossy;
mod note;
mod pattern;
mod progress;
mod seen;
mod server;
mod service;
mod waiter;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use softverbs::Transport;

use crate::exchange::RoundResult;
use crate::failure::{Failure, Outcome};
use crate::plan::{Metric, Role, TrafficPlan, Verb, Workload};

use self::bandwidth::Tally;

/// Descriptors that an end needs besides those of its queue pairs.
const OTHER_DESCRIPTORS: u64 = 24;

/// Carries out the plan.
pub(crate) fn run(plan: &TrafficPlan) -> Outcome<()> {
    raise_descriptors();
    match &plan.role {
        Role::BothEnds => both::run(plan),
        Role::Server(server) => server::run(plan, server),
        Role::Client { host, port } => {
            let peers =
                crate::fabric::resolve(host, *port).map_err(|failure| no_verb(failure, host))?;
            client::run(plan, &peers).map_err(|failure| failure.while_doing(host))
        }
    }
}

/// As many open files as this process may have: the usual limit is for programs that use `select`.
fn raise_descriptors() {
    // Without it, fewer queue pairs are possible.
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Refuses more connections than this process may have open.
fn check_descriptors(workload: &Workload, transport: Transport) -> Outcome<()> {
    let needed = u64::from(workload.qps) + OTHER_DESCRIPTORS;
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((most, _)) if transport == Transport::Iwarp && needed > most => {
            Err(Failure::run(format!(
                "-q {}: over iWARP each queue pair takes a file descriptor, and {most} may be open \
                 (ulimit -n)",
                workload.qps
            )))
        }
        _ => Ok(()),
    }
}

/// A word that is no verb is taken for a host; if it is none either, it may be a mistyped verb.
fn no_verb(failure: Failure, word: &str) -> Failure {
    match failure {
        Failure::Run(text) if word.bytes().all(|octet| octet.is_ascii_alphabetic()) => {
            Failure::Run(format!(
                "{text}; nor is it a verb: write, read, send or atomic"
            ))
        }
        other => other,
    }
}

/// Whether an end may sleep on events: not when it has to watch memory.
fn sleeps(plan: &TrafficPlan, workload: &Workload) -> bool {
    let watches = workload.verb == Verb::Write && !workload.takes_receives();
    plan.events && !(workload.metric == Metric::Latency && watches)
}

/// Whether the server's memory is written or read without its doing anything. It then always
/// sleeps: polling would only take a core from those who work.
fn is_target(workload: &Workload) -> bool {
    workload.metric == Metric::Bandwidth && !workload.takes_receives() && !workload.bidirectional
}

/// What an end says about its round.
fn result_of(round: u32, tally: Tally) -> RoundResult {
    RoundResult {
        round,
        messages: tally.messages,
        elapsed: tally.elapsed,
        peak: tally.peak_octets(),
        received: tally.received,
        verified: tally.findings.verified,
        wrong: tally.findings.wrong,
        complaint: tally.findings.complaint,
    }
}

/// Fails if either end has found wrong payload.
fn judge(own: &RoundResult, peer: &RoundResult) -> Outcome<()> {
    for (result, who) in [(own, "here"), (peer, "at the peer")] {
        if result.wrong > 0 {
            return Err(Failure::run(format!(
                "{} of {} verified messages are wrong {who}; the first: {}",
                result.wrong, result.verified, result.complaint
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
