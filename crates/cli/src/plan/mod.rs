//! What the command will do: every option resolved, every default filled in, nothing changed
//! afterwards. Made from the arguments by pure functions, so that all rules about which options
//! fit together are in here and can be tested without a network.

mod demands;
mod ping;
mod traffic;
mod workload;

use softverbs::Transport;
use softverbs::fault;

use crate::args::{Args, Command, DoctorArgs, EnvArgs, RacesArgs, RunArgs};
use crate::failure::{Failure, Outcome};

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

/// Refuses a fault plan with a rule that never acts over the transport: whoever wrote it believes
/// that something is disturbed. `source` is where the plan comes from.
pub(crate) fn check_fault(plan: &fault::Plan, transport: Transport, source: &str) -> Outcome<()> {
    let Some(rule) = plan.idle_over(transport) else {
        return Ok(());
    };
    let (frames, other, over) = match transport {
        Transport::Iwarp => ("RoCE packets", Transport::Roce, "iWARP"),
        Transport::Roce => ("iWARP frames", Transport::Iwarp, "RoCE"),
    };
    Err(Failure::usage(format!(
        "{source}: `{rule}` is about {frames}, and this runs over {over}: --transport {other}, or \
         frames of the kind `any`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_the_other_transport_are_refused() {
        let plan = fault::Plan::parse("any=delay:1ms,rtu=drop").unwrap();
        assert!(check_fault(&plan, Transport::Roce, "--fault").is_ok());
        let failure = check_fault(&plan, Transport::Iwarp, "--fault").unwrap_err();
        let text = failure.to_string();
        assert!(
            text.starts_with("--fault: `rtu=drop` is about RoCE"),
            "{text}"
        );
        assert!(matches!(failure, Failure::Usage(_)));
    }
}
