//! The explorer can fail: with a defect in the machines, it finds a way that shows it. The same
//! bounds without the defect violate nothing.

#![cfg(debug_assertions)]

use softverbs_proto::mutation::{Mutation, Mutations};
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

fn explore(mutations: Mutations) -> (Scenario, Report) {
    let mut scenario = *Scenario::find("ib-data").expect("there is such a scenario");
    scenario.mutations = mutations;
    scenario.bounds.duplicates = 0;
    scenario.bounds.timers = 0;
    (scenario, scenario.explore(scenario.bounds, &LIMITS))
}

fn found(mutation: Mutation) -> Counterexample {
    let (scenario, report) = explore(Mutations::only(mutation));
    let found = report.counterexample.expect("it is found");
    // What is printed leads there again.
    let steps: Vec<&str> = found.replay.steps.iter().map(|(step, _)| &**step).collect();
    let again = scenario.replay(scenario.bounds, &steps.join("\n"), Then::Stop);
    assert_eq!(again.as_ref(), Ok(&found.replay));
    found
}

#[test]
fn without_a_defect_nothing_is_found() {
    let (_, report) = explore(Mutations::NONE);
    assert!(report.complete && report.counterexample.is_none());
}

#[test]
fn a_missing_gate_is_found() {
    assert_eq!(found(Mutation::NoGate).violation.property, Property::Early);
}

#[test]
fn a_first_packet_that_tells_nobody_is_found() {
    assert_eq!(
        found(Mutation::NoCommEst).violation.property,
        Property::Told
    );
}

#[test]
fn a_repeated_rep_without_an_answer_is_found() {
    let found = found(Mutation::NoRepAnswer);
    assert_eq!(found.violation.property, Property::DeadEnd);
}
