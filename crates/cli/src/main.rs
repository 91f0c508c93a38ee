//! The `softverbs` command.
//!
//! The arguments ([`args`]) become an immutable [`plan`], which is carried out ([`devices`],
//! [`traffic`], [`ping`], [`dropin`], [`doctor`], [`races`]) and leaves one [`report`]. The exit status is decided in [`failure`].

mod args;
mod deadline;
mod devices;
mod doctor;
mod dropin;
mod exchange;
mod fabric;
mod failure;
mod interrupt;
mod ping;
mod plan;
mod races;
mod report;
mod stats;
mod traffic;

use std::io::{Write, stderr};
use std::process::ExitCode;

use clap::Parser;
use softverbs::{Transport, fault};

use crate::args::Args;
use crate::failure::{Failure, Outcome};
use crate::plan::Plan;

fn main() -> ExitCode {
    // Wrong options, --help and --version end here: status 2 or 0.
    let args = Args::parse();
    let outcome = Plan::new(args).and_then(|plan| run(&plan));
    match &outcome {
        Ok(()) | Err(Failure::BrokenPipe) => {}
        Err(failure) => {
            // If stderr is gone, the exit status still tells.
            let _ = writeln!(stderr().lock(), "softverbs: {failure}");
        }
    }
    failure::exit_code(&outcome)
}

fn run(plan: &Plan) -> Outcome<()> {
    match plan {
        Plan::Devices { verbose, json } => devices::run(*verbose, *json),
        Plan::Traffic(plan) => {
            interrupt::install()?;
            disturbed(plan.fault.as_ref(), plan.transport, || traffic::run(plan))
        }
        Plan::Ping(plan) => {
            interrupt::install()?;
            disturbed(plan.fault.as_ref(), plan.transport, || ping::run(plan))
        }
        Plan::Run(args) => dropin::run(args),
        Plan::Env(args) => dropin::env(args),
        Plan::Doctor(args) => doctor::run(args),
        Plan::Races(args) => races::run(args),
    }
}

/// Runs with faults, and tells on stderr how many there were.
fn disturbed(
    faults: Option<&fault::Plan>,
    transport: Option<Transport>,
    run: impl FnOnce() -> Outcome<()>,
) -> Outcome<()> {
    if let Some(faults) = faults {
        let transport = match transport {
            Some(transport) => transport,
            None => softverbs::transport_of_environment()?.unwrap_or(Transport::Iwarp),
        };
        plan::check_fault(faults, transport, "--fault")?;
        fault::install(faults).map_err(|error| Failure::usage(error.to_string()))?;
    }
    let outcome = run();
    for rule in fault::report().iter().flat_map(|report| &report.rules) {
        let fault::RuleReport {
            rule,
            matched,
            done,
            ..
        } = rule;
        // If stderr is gone, the exit status still tells.
        let _ = writeln!(stderr().lock(), "fault: {rule}: {done} of {matched} frames");
    }
    outcome
}
