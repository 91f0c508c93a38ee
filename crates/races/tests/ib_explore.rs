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
    for scenario in ALL {
        for (drops, duplicates, timers) in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
            let bounds = Bounds {
                drops,
                duplicates,
                timers,
                ..scenario.bounds
            };
            let report = scenario.explore(bounds, &LIMITS);
            if let Some(found) = &report.counterexample {
                panic!("{} ({bounds}):\n{}", scenario.name, Ladder(&found.replay));
            }
            assert!(report.complete);
            assert!(report.unique > 100, "{}: {report:?}", scenario.name);
        }
    }
}
