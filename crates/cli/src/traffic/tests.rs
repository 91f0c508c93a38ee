//! Both ends in one process: what verification finds when there is something to find.

use std::thread;
use std::time::Duration;

use softverbs::cm::{ConnParam, EventKind};

use super::bandwidth::{self, Tally};
use super::endpoint::{Endpoint, Findings};
use super::progress::Progress;
use super::{judge, latency, result_of};
use crate::exchange::RoundResult;
use crate::fabric::{Cm, Dial, Listeners, Wanted};
use crate::plan::{Amount, Metric, Sizes, Verb, Workload, sample_workload};

const TIMEOUT: Duration = Duration::from_secs(30);
const MESSAGES: u64 = 40;

/// Two ends with one lane, connected over loopback.
fn connected(client: Workload, server: Workload) -> (Endpoint, Endpoint) {
    let cm = Cm::new(TIMEOUT, None).unwrap();
    let server_cm = Cm::new(TIMEOUT, None).unwrap();
    let local = "127.0.0.1:0".parse().unwrap();
    let listeners = Listeners::new(&server_cm, Some(local), 0, &[]).unwrap();
    let dial = Dial::resolve(&cm, listeners.address, None, &[]).unwrap();
    let context = dial.id.verbs().unwrap();
    let mut initiator = Endpoint::new(&context, client, 1, true, false).unwrap();
    let mut target = Endpoint::new(&context, server, 1, false, false).unwrap();
    let client_keys = initiator.add_lane(dial.id.clone()).unwrap();
    let accepting = thread::spawn(move || {
        let deadline = crate::deadline::Deadline::after(TIMEOUT);
        let event = server_cm.next(deadline).unwrap().unwrap();
        assert_eq!(event.kind(), EventKind::ConnectRequest);
        let server_keys = target.add_lane(event.id().clone()).unwrap();
        target.lanes[0].peer = Some(client_keys);
        event.id().accept(&ConnParam::default()).unwrap();
        let established = Wanted {
            kind: EventKind::Established,
            doing: "accepting",
        };
        server_cm.wait(event.id(), established).unwrap();
        drop(listeners);
        (target, server_keys)
    });
    dial.connect(&ConnParam::default()).unwrap();
    let (target, server_keys) = accepting.join().unwrap();
    initiator.lanes[0].peer = Some(server_keys);
    (initiator, target)
}

/// One round of bandwidth or latency; what the client and the server saw.
fn round(client: Workload, server: Workload) -> (Tally, Tally) {
    let (mut initiator, mut target) = connected(client, server);
    let size = client.sizes.largest();
    initiator.start_round(0, size).unwrap();
    target.start_round(0, size).unwrap();
    let metric = client.metric;
    let serving = thread::spawn(move || {
        let tally = match metric {
            Metric::Bandwidth => bandwidth::run(&mut target, TIMEOUT, &mut Progress::hidden()),
            Metric::Latency => latency::answer(&mut target, TIMEOUT),
        };
        (tally.unwrap(), target)
    });
    let progress = &mut Progress::hidden();
    let tally = match metric {
        Metric::Bandwidth => bandwidth::run(&mut initiator, TIMEOUT, progress).unwrap(),
        Metric::Latency => {
            latency::initiate(&mut initiator, TIMEOUT, progress)
                .unwrap()
                .1
        }
    };
    let (served, _target) = serving.join().unwrap();
    (tally, served)
}

fn checked(metric: Metric, verb: Verb) -> Workload {
    let amount = Amount::Iterations(MESSAGES);
    Workload {
        metric,
        verb,
        amount,
        sizes: Sizes::One(100),
        check: true,
        ..sample_workload()
    }
    .resolve()
}

#[test]
fn right_payload_is_found_right() {
    for metric in [Metric::Bandwidth, Metric::Latency] {
        for verb in [Verb::Write, Verb::Read, Verb::Send] {
            let workload = checked(metric, verb);
            let (client, server) = round(workload, workload);
            let verified = client.findings.verified + server.findings.verified;
            assert!(
                verified >= MESSAGES.min(u64::from(workload.slots)),
                "{workload}: {verified}"
            );
            assert_eq!(
                client.findings.wrong + server.findings.wrong,
                0,
                "{workload}"
            );
            assert_eq!(client.messages, MESSAGES);
        }
    }
}

#[test]
fn wrong_payload_is_found_wrong() {
    for metric in [Metric::Bandwidth, Metric::Latency] {
        for verb in [Verb::Write, Verb::Read, Verb::Send] {
            let checks = checked(metric, verb);
            // The other end sends zeros instead of the pattern, from and to the same places.
            let careless = Workload {
                check: false,
                ..checks
            };
            let (client, server) = match verb {
                Verb::Read => round(checks, careless),
                _ => round(careless, checks),
            };
            let findings = if verb == Verb::Read {
                client.findings
            } else {
                server.findings
            };
            assert_eq!(findings.wrong, MESSAGES, "{checks}: {findings:?}");
            assert_eq!(findings.verified, MESSAGES);
            assert!(
                findings.complaint.contains("queue pair 0, message 0"),
                "{findings:?}"
            );
        }
    }
}

#[test]
fn wrong_payload_at_either_end_is_a_failure() {
    let good = RoundResult {
        verified: 10,
        ..RoundResult::default()
    };
    let mut findings = Findings {
        verified: 10,
        ..Findings::default()
    };
    findings.blame(|| "octet 3".into());
    findings.blame(|| "octet 4".into());
    let bad = result_of(
        0,
        Tally {
            messages: 10,
            elapsed: Duration::ZERO,
            peak: 0.0,
            findings,
        },
    );
    assert!(judge(&good, &good).is_ok());
    assert_eq!(
        judge(&bad, &good).unwrap_err().to_string(),
        "2 of 10 verified messages are wrong here; the first: octet 3"
    );
    assert!(
        judge(&good, &bad)
            .unwrap_err()
            .to_string()
            .contains("at the peer")
    );
}
