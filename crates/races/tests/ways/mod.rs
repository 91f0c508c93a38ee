//! Explorations' ways, taken again.

use softverbs_races::replay::Then;
use softverbs_races::scenario::Scenario;

/// Takes the steps, then lets everything end; nothing may be wrong.
#[allow(unreachable_pub, reason = "a module of several test binaries")]
pub fn ends_well(scenario: &str, steps: &str) -> String {
    let scenario = Scenario::find(scenario).expect("there is such a scenario");
    let replay = scenario
        .replay(scenario.bounds, steps, Then::RunOut)
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(replay.violation, None, "{}", replay.summary);
    replay.summary
}
