//! What the command will do: every option resolved, every default filled in, nothing changed
//! afterwards. Made from the arguments by pure functions, so that all rules about which options
//! fit together are in here and can be tested without a network.

mod demands;
mod ping;
mod traffic;
mod workload;

use crate::args::{Args, Command, DoctorArgs, EnvArgs, RacesArgs, RunArgs};
use crate::failure::Outcome;

pub(crate) use demands::Demands;
pub(crate) use ping::{PingPlan, PingRole};
pub(crate) use traffic::{Local, Role, ServerPlan, TrafficPlan};
#[cfg(test)]
pub(crate) use workload::tests::sample as sample_workload;
pub(crate) use workload::{Amount, AtomicOp, Connection, Metric, Sizes, Verb, Workload};

/// One of the things that this program does.
#[derive(Debug)]
pub(crate) enum Plan {
    /// List devices.
    Devices {
        /// With attributes and GIDs.
        verbose: bool,
        /// As JSON.
        json: bool,
    },
    /// Measure.
    Traffic(TrafficPlan),
    /// Ping.
    Ping(PingPlan),
    /// Become another program.
    Run(RunArgs),
    /// Print its environment.
    Env(EnvArgs),
    /// Look for obstacles.
    Doctor(DoctorArgs),
    /// Explore.
    Races(RacesArgs),
}

impl Plan {
    /// Resolves the arguments, or says why they do not fit together.
    pub(crate) fn new(args: Args) -> Outcome<Self> {
        match args.command {
            Command::Devices(args) => Ok(Self::Devices {
                verbose: args.verbose,
                json: args.json,
            }),
            Command::Bw(args) => TrafficPlan::bandwidth(args).map(Self::Traffic),
            Command::Lat(args) => TrafficPlan::latency(args).map(Self::Traffic),
            Command::Ping(args) => PingPlan::new(args).map(Self::Ping),
            Command::Run(args) => Ok(Self::Run(args)),
            Command::Env(args) => Ok(Self::Env(args)),
            Command::Doctor(args) => Ok(Self::Doctor(args)),
            Command::Races(args) => Ok(Self::Races(args)),
        }
    }
}
