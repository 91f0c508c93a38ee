//! Explorations that are small enough for every run of the tests. The large ones are in
//! docs/reliability.md.

use softverbs_races::bounds::Bounds;
use softverbs_races::explore::Limits;
use softverbs_races::ladder::Ladder;
use softverbs_races::scenario::ALL;

const LIMITS: Limits = Limits {
    threads: 2,
    depth: None,
    states: None,
    time: None,
};

/// Everything that one fault can do.
#[test]
fn one_fault_of_each_kind_violates_nothing() {
    let (drops, duplicates, resets, splits, timers) = (1, 1, 1, Some(1), 1);
    for scenario in ALL {
        let none = Bounds {
            reorders: scenario.bounds.reorders,
            ..Bounds::NONE
        };
        let faults = if scenario.is_of_streams() {
            [
                Bounds { resets, ..none },
                Bounds { splits, ..none },
                Bounds { timers, ..none },
            ]
        } else {
            [
                Bounds { drops, ..none },
                Bounds { duplicates, ..none },
                Bounds { timers, ..none },
            ]
        };
        for bounds in faults {
            let report = scenario.explore(bounds, &LIMITS);
            let words = scenario.words(&bounds);
            if let Some(found) = &report.counterexample {
                panic!("{} ({words}):\n{}", scenario.name, Ladder(&found.replay));
            }
            assert!(report.complete);
            assert!(
                report.unique > 50,
                "{} ({words}): {report:?}",
                scenario.name
            );
        }
    }
}
