//! The explorer can fail: with a defect in the machines, it finds a way that shows it. The same
//! bounds without the defect violate nothing.

#![cfg(debug_assertions)]

use softverbs_proto::mutation::{Mutation, Mutations};
use softverbs_races::bounds::Bounds;
use softverbs_races::explore::{Counterexample, Limits, Report};
use softverbs_races::replay::Then;
use softverbs_races::scenario::Scenario;
use softverbs_races::world::Property;

const LIMITS: Limits = Limits {
    threads: 2,
    depth: None,
    states: None,
    time: None,
};

const LOSSES: Bounds = Bounds {
    drops: 1,
    reorders: None,
    ..Bounds::NONE
};

/// A read may end anywhere, and a timer come early.
const SPLITS: Bounds = Bounds {
    splits: Some(1),
    timers: 1,
    ..Bounds::NONE
};

fn explore(name: &str, bounds: Bounds, mutations: Mutations) -> (Scenario, Report) {
    let mut scenario = *Scenario::find(name).expect("there is such a scenario");
    scenario.mutations = mutations;
    (scenario, scenario.explore(bounds, &LIMITS))
}

fn found(name: &str, bounds: Bounds, mutation: Mutation) -> Counterexample {
    let (scenario, report) = explore(name, bounds, Mutations::only(mutation));
    let found = report.counterexample.expect("it is found");
    // What is printed leads there again.
    let steps: Vec<&str> = found.replay.steps.iter().map(|(step, _)| &**step).collect();
    let again = scenario.replay(bounds, &steps.join("\n"), Then::Stop);
    assert_eq!(again.as_ref(), Ok(&found.replay));
    found
}

#[test]
fn without_a_defect_nothing_is_found() {
    for (name, bounds) in [
        ("ib-data", LOSSES),
        ("iwarp-data", SPLITS),
        ("iwarp-rtr", SPLITS),
    ] {
        let (_, report) = explore(name, bounds, Mutations::NONE);
        assert!(report.complete && report.counterexample.is_none(), "{name}");
    }
}

#[test]
fn a_missing_gate_is_found() {
    for (name, bounds) in [
        ("ib-data", LOSSES),
        ("iwarp-data", Bounds::NONE),
        ("iwarp-rtr", Bounds::NONE),
    ] {
        let found = found(name, bounds, Mutation::NoGate);
        assert_eq!(found.violation.property, Property::Early, "{name}");
    }
}

#[test]
fn a_first_packet_that_tells_nobody_is_found() {
    for (name, bounds) in [("ib-data", LOSSES), ("iwarp-rtr", Bounds::NONE)] {
        let found = found(name, bounds, Mutation::NoCommEst);
        assert_eq!(found.violation.property, Property::Told, "{name}");
    }
}

#[test]
fn a_repeated_rep_without_an_answer_is_found() {
    let found = found("ib-data", LOSSES, Mutation::NoRepAnswer);
    assert_eq!(found.violation.property, Property::DeadEnd);
}

/// The responder's grace ends, and its first FPDU is read together with the reply, in whole or in
/// part.
#[test]
fn octets_behind_the_reply_that_are_lost_are_found() {
    let found = found("iwarp-data", SPLITS, Mutation::LosesBehindReply);
    let last_read = found.replay.steps.iter().rev();
    assert!(
        last_read
            .map(|(step, _)| step)
            .any(|step| step.starts_with("active reads MPA reply + SEND 0")),
        "{:?}",
        found.replay.steps
    );
}
