//! The scenarios that are explored by name.

use softverbs_proto::mutation::Mutations;

use crate::bounds::Bounds;
use crate::explore::{Limits, Report, explore};
use crate::ib::{IbScenario, IbWorld, Plan};
use crate::replay::{NoSuchStep, Replay, Then, replay};

/// What a scenario is made of.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Ib { plans: [Plan; 2] },
}

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// How far it goes unless told otherwise.
    pub bounds: Bounds,
    /// Defects on demand; none in a release.
    pub mutations: Mutations,
    kind: Kind,
}

/// How often a message or packet is repeated after a timeout: more often than the bounds can make
/// necessary, so that no loss explains a failure.
const RETRIES: u8 = 3;

const fn plan(sends: u8, receives: u8) -> Plan {
    Plan {
        sends,
        receives,
        rejects: false,
        delays: false,
        disconnects: false,
        destroys: false,
        confirms: false,
    }
}

const fn bounds(drops: u8, duplicates: u8, timers: u8) -> Bounds {
    Bounds {
        drops,
        duplicates,
        reorders: None,
        timers,
    }
}

/// All scenarios.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "ib-data",
        about: "RoCE: REQ, REP and RTU with the first data of both sides",
        bounds: bounds(1, 1, 1),
        mutations: Mutations::NONE,
        kind: Kind::Ib {
            plans: [plan(1, 1), plan(1, 1)],
        },
    },
    Scenario {
        name: "ib-confirm",
        about: "RoCE: the active application confirms the reply when it likes, both sides may say that they take longer",
        bounds: bounds(1, 1, 1),
        mutations: Mutations::NONE,
        kind: Kind::Ib {
            plans: [
                Plan {
                    confirms: true,
                    delays: true,
                    ..plan(1, 0)
                },
                Plan {
                    delays: true,
                    ..plan(0, 1)
                },
            ],
        },
    },
    Scenario {
        name: "ib-reject",
        about: "RoCE: either side rejects, before and after it accepted",
        bounds: bounds(1, 1, 1),
        mutations: Mutations::NONE,
        kind: Kind::Ib {
            plans: [
                Plan {
                    confirms: true,
                    rejects: true,
                    ..plan(1, 0)
                },
                Plan {
                    rejects: true,
                    ..plan(0, 1)
                },
            ],
        },
    },
    Scenario {
        name: "ib-disconnect",
        about: "RoCE: either side or both disconnect at any moment",
        bounds: bounds(1, 1, 1),
        mutations: Mutations::NONE,
        kind: Kind::Ib {
            plans: [
                Plan {
                    disconnects: true,
                    ..plan(1, 0)
                },
                Plan {
                    disconnects: true,
                    ..plan(0, 1)
                },
            ],
        },
    },
    Scenario {
        name: "ib-destroy",
        about: "RoCE: either side or both destroy their identifier at any moment",
        bounds: bounds(1, 1, 1),
        mutations: Mutations::NONE,
        kind: Kind::Ib {
            plans: [
                Plan {
                    destroys: true,
                    ..plan(1, 0)
                },
                Plan {
                    destroys: true,
                    ..plan(0, 1)
                },
            ],
        },
    },
];

impl Scenario {
    /// The scenario of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|scenario| scenario.name == name)
    }

    /// Explores it.
    pub fn explore(&self, bounds: Bounds, limits: &Limits) -> Report {
        match self.kind {
            Kind::Ib { plans } => explore(self.ib_world(plans, bounds), limits),
        }
    }

    /// Takes the steps of a list.
    pub fn replay(&self, bounds: Bounds, list: &str, then: Then) -> Result<Replay, NoSuchStep> {
        match self.kind {
            Kind::Ib { plans } => replay(self.ib_world(plans, bounds), list, then),
        }
    }

    fn ib_world(&self, plans: [Plan; 2], bounds: Bounds) -> IbWorld {
        IbWorld::new(IbScenario {
            plans,
            bounds,
            retries: RETRIES,
            mutations: self.mutations,
        })
    }
}
