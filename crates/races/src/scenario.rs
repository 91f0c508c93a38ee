//! The scenarios that are explored by name.

use softverbs_proto::mutation::Mutations;

use crate::app::Plan;
use crate::bounds::Bounds;
use crate::explore::{Limits, Report, explore};
use crate::ib::{IbScenario, IbWorld};
use crate::iwarp::{IwarpScenario, IwarpSetup, IwarpWorld};
use crate::replay::{NoSuchStep, Replay, Then, replay};

/// What a scenario is made of.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Ib { plans: [Plan; 2] },
    Iwarp { plans: [Plan; 2], setup: IwarpSetup },
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
        aborts: false,
        confirms: false,
    }
}

const fn bounds(drops: u8, duplicates: u8, timers: u8) -> Bounds {
    Bounds {
        drops,
        duplicates,
        reorders: None,
        timers,
        ..Bounds::NONE
    }
}

const fn tcp_bounds(resets: u8, splits: Option<u8>, timers: u8) -> Bounds {
    Bounds {
        resets,
        splits,
        timers,
        ..Bounds::NONE
    }
}

/// As the library does unless told otherwise, but without an RTR frame.
const PLAIN: IwarpSetup = IwarpSetup {
    revision: 2,
    peer_to_peer: false,
    rtr_write: false,
    crc: false,
    markers: false,
    room: 1 << 16,
};

/// As the library does unless told otherwise.
const PEER_TO_PEER: IwarpSetup = IwarpSetup {
    peer_to_peer: true,
    ..PLAIN
};

const SENDS: [Plan; 2] = [plan(1, 1), plan(1, 1)];

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
    Scenario {
        name: "iwarp-data",
        about: "iWARP: MPA request and reply with the first data of both sides",
        bounds: tcp_bounds(0, None, 1),
        mutations: Mutations::NONE,
        kind: Kind::Iwarp {
            plans: SENDS,
            setup: PLAIN,
        },
    },
    Scenario {
        name: "iwarp-rtr",
        about: "iWARP: the same in peer-to-peer mode",
        bounds: tcp_bounds(0, None, 1),
        mutations: Mutations::NONE,
        kind: Kind::Iwarp {
            plans: SENDS,
            setup: PEER_TO_PEER,
        },
    },
    Scenario {
        name: "iwarp-rtr-write",
        about: "iWARP: the same with a responder that wants an RDMA Write as the first FPDU",
        bounds: tcp_bounds(0, None, 0),
        mutations: Mutations::NONE,
        kind: Kind::Iwarp {
            plans: SENDS,
            setup: IwarpSetup {
                rtr_write: true,
                ..PEER_TO_PEER
            },
        },
    },
    Scenario {
        name: "iwarp-old",
        about: "iWARP: the first data with MPA revision 1, CRC and markers",
        bounds: tcp_bounds(0, None, 1),
        mutations: Mutations::NONE,
        kind: Kind::Iwarp {
            plans: SENDS,
            setup: IwarpSetup {
                revision: 1,
                crc: true,
                markers: true,
                ..PLAIN
            },
        },
    },
    Scenario {
        name: "iwarp-reset",
        about: "iWARP: the network resets the connection at any moment",
        bounds: tcp_bounds(1, Some(1), 1),
        mutations: Mutations::NONE,
        kind: Kind::Iwarp {
            plans: SENDS,
            setup: PEER_TO_PEER,
        },
    },
    Scenario {
        name: "iwarp-posts",
        about: "iWARP: several sends, TCP has little room, a poll transmits what posting left",
        bounds: tcp_bounds(0, Some(1), 0),
        mutations: Mutations::NONE,
        kind: Kind::Iwarp {
            plans: [
                Plan {
                    disconnects: true,
                    ..plan(2, 2)
                },
                plan(2, 2),
            ],
            setup: IwarpSetup {
                crc: true,
                room: 40,
                ..PEER_TO_PEER
            },
        },
    },
    Scenario {
        name: "iwarp-reject",
        about: "iWARP: the passive side may reject, the active one may not wait for it",
        bounds: tcp_bounds(1, Some(1), 1),
        mutations: Mutations::NONE,
        kind: Kind::Iwarp {
            plans: [
                Plan {
                    destroys: true,
                    ..plan(1, 0)
                },
                Plan {
                    rejects: true,
                    ..plan(0, 1)
                },
            ],
            setup: PEER_TO_PEER,
        },
    },
    Scenario {
        name: "iwarp-disconnect",
        about: "iWARP: either side or both disconnect at any moment",
        bounds: tcp_bounds(1, Some(1), 0),
        mutations: Mutations::NONE,
        kind: Kind::Iwarp {
            plans: [
                Plan {
                    disconnects: true,
                    ..plan(1, 1)
                },
                Plan {
                    disconnects: true,
                    ..plan(1, 1)
                },
            ],
            setup: PEER_TO_PEER,
        },
    },
    Scenario {
        name: "iwarp-destroy",
        about: "iWARP: either side or both destroy their identifier, or end the queue pair, at any moment",
        bounds: tcp_bounds(1, Some(1), 0),
        mutations: Mutations::NONE,
        kind: Kind::Iwarp {
            plans: [
                Plan {
                    destroys: true,
                    aborts: true,
                    ..plan(1, 1)
                },
                Plan {
                    destroys: true,
                    aborts: true,
                    ..plan(1, 1)
                },
            ],
            setup: PEER_TO_PEER,
        },
    },
];

impl Scenario {
    /// The scenario of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|scenario| scenario.name == name)
    }

    /// Bounds of this scenario, in words.
    pub fn words(&self, bounds: &Bounds) -> String {
        match self.kind {
            Kind::Ib { .. } => bounds.of_datagrams(),
            Kind::Iwarp { .. } => bounds.of_streams(),
        }
    }

    /// Whether its network is one of streams, and has the bounds of streams.
    pub const fn is_of_streams(&self) -> bool {
        matches!(self.kind, Kind::Iwarp { .. })
    }

    /// Explores it.
    pub fn explore(&self, bounds: Bounds, limits: &Limits) -> Report {
        match self.kind {
            Kind::Ib { plans } => explore(self.ib_world(plans, bounds), limits),
            Kind::Iwarp { plans, setup } => explore(self.iwarp_world(plans, setup, bounds), limits),
        }
    }

    /// Takes the steps of a list.
    pub fn replay(&self, bounds: Bounds, list: &str, then: Then) -> Result<Replay, NoSuchStep> {
        match self.kind {
            Kind::Ib { plans } => replay(self.ib_world(plans, bounds), list, then),
            Kind::Iwarp { plans, setup } => {
                replay(self.iwarp_world(plans, setup, bounds), list, then)
            }
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

    fn iwarp_world(&self, plans: [Plan; 2], setup: IwarpSetup, bounds: Bounds) -> IwarpWorld {
        IwarpWorld::new(IwarpScenario {
            plans,
            setup,
            bounds,
            mutations: self.mutations,
        })
    }
}
