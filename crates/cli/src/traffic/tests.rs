//! Both ends in one process: what verification finds when there is something to find.

use std::thread;
use std::time::Duration;

use softverbs::Transport;
use softverbs::cm::{ConnParam, EventKind};

use super::bandwidth::{self, Tally};
use super::endpoint::{Endpoint, Findings};
use super::progress::Progress;
use super::{judge, latency, result_of};
use crate::exchange::RoundResult;
use crate::fabric::{Cm, Dial, Listeners, Wanted};
use crate::plan::{Amount, AtomicOp, Connection, Metric, Sizes, Verb, Workload, sample_workload};

const TIMEOUT: Duration = Duration::from_secs(30);
const MESSAGES: u64 = 40;

/// Two ends with one lane, connected over loopback.
fn connected(client: Workload, server: Workload) -> (Endpoint, Endpoint) {
    let transport = client.mtu.map(|_| Transport::Roce);
    let cm = Cm::new(TIMEOUT, transport).unwrap();
    let server_cm = Cm::new(TIMEOUT, transport).unwrap();
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
        target.know_peer(client_keys).unwrap();
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
    initiator.know_peer(server_keys).unwrap();
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

/// Over RoCE, with messages that carry numbers.
fn numbered(metric: Metric, verb: Verb, connection: Connection) -> Workload {
    Workload {
        connection,
        mtu: Some(1024),
        imm: true,
        check: false,
        ..checked(metric, verb)
    }
    .resolve()
}

#[test]
fn numbers_are_verified() {
    for metric in [Metric::Bandwidth, Metric::Latency] {
        for verb in [Verb::Write, Verb::Send] {
            for connection in [Connection::Rc, Connection::Uc, Connection::Ud] {
                if (verb, connection) == (Verb::Write, Connection::Ud) {
                    continue;
                }
                for check in [false, true] {
                    let workload = Workload {
                        check,
                        ..numbered(metric, verb, connection)
                    }
                    .resolve();
                    let (client, server) = round(workload, workload);
                    assert_eq!(server.received, MESSAGES, "{workload}");
                    assert_eq!(server.findings.verified, MESSAGES, "{workload}");
                    assert_eq!(
                        client.findings.wrong + server.findings.wrong,
                        0,
                        "{workload}: {:?} {:?}",
                        client.findings,
                        server.findings
                    );
                }
            }
        }
    }
}

#[test]
fn wrong_payload_is_found_wrong_where_messages_may_be_lost() {
    for connection in [Connection::Uc, Connection::Ud] {
        for metric in [Metric::Bandwidth, Metric::Latency] {
            let checks = Workload {
                check: true,
                ..numbered(metric, Verb::Send, connection)
            }
            .resolve();
            let careless = Workload {
                check: false,
                ..checks
            };
            let (_, server) = round(careless, checks);
            assert_eq!(server.findings.wrong, MESSAGES, "{:?}", server.findings);
        }
    }
}

#[test]
fn messages_without_receives_are_lost_and_counted() {
    for (verb, connection) in [
        (Verb::Send, Connection::Ud),
        (Verb::Send, Connection::Uc),
        (Verb::Write, Connection::Uc),
    ] {
        for amount in [
            Amount::Iterations(5000),
            Amount::Duration(Duration::from_millis(200)),
        ] {
            let fast = Workload {
                amount,
                sizes: Sizes::One(1000),
                tx_depth: 1024,
                ..numbered(Metric::Bandwidth, verb, connection)
            }
            .resolve();
            // It takes far less than the sender believes, and gives no credit for the rest.
            let slow = Workload { window: 16, ..fast };
            let (client, server) = round(fast, slow);
            let what = format!("{fast}: {} of {}", server.received, client.messages);
            assert!(0 < server.received, "{what}");
            assert!(server.received < client.messages, "{what}");
            assert_eq!(server.findings.wrong, 0, "{what}: {:?}", server.findings);
        }
    }
}

#[test]
fn atomic_operations_add_up() {
    for transport in [None, Some(1024)] {
        for atomic in [AtomicOp::FetchAdd, AtomicOp::CompareSwap] {
            for metric in [Metric::Bandwidth, Metric::Latency] {
                let workload = Workload {
                    atomic,
                    mtu: transport,
                    sizes: Sizes::One(8),
                    check: false,
                    ..checked(metric, Verb::Atomic)
                }
                .resolve();
                let (client, server) = round(workload, workload);
                assert_eq!(client.findings.verified, MESSAGES, "{workload}");
                assert_eq!(server.findings.verified, 1, "{workload}");
                assert_eq!(client.findings.wrong + server.findings.wrong, 0);
            }
        }
    }
}

#[test]
fn atomic_operations_that_do_not_add_up_are_found() {
    for atomic in [AtomicOp::FetchAdd, AtomicOp::CompareSwap] {
        let workload = Workload {
            atomic,
            sizes: Sizes::One(8),
            check: false,
            ..checked(Metric::Bandwidth, Verb::Atomic)
        }
        .resolve();
        let (mut initiator, mut target) = connected(workload, workload);
        initiator.start_round(0, 8).unwrap();
        target.start_round(0, 8).unwrap();
        // Somebody else has been there.
        let word = target.layout.atomic(0);
        target.mr.copy_in(word, &1000_u64.to_ne_bytes()).unwrap();
        let serving = thread::spawn(move || {
            let tally = bandwidth::run(&mut target, TIMEOUT, &mut Progress::hidden());
            (tally.unwrap(), target)
        });
        let tally = bandwidth::run(&mut initiator, TIMEOUT, &mut Progress::hidden()).unwrap();
        let (served, _target) = serving.join().unwrap();
        assert!(tally.findings.wrong > 0, "{atomic}: {:?}", tally.findings);
        assert!(served.findings.complaint.contains("word 0"), "{atomic}");
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
            received: 0,
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
