//! The `softverbs` command.
//!
//! The arguments ([`args`]) become an immutable [`plan`], which is carried out ([`devices`],
//! [`traffic`], [`ping`]) and leaves one [`report`]. The exit status is decided in [`failure`].

mod args;
mod deadline;
mod devices;
mod exchange;
mod fabric;
mod failure;
mod interrupt;
mod ping;
mod plan;
mod report;
mod stats;
mod traffic;

use std::io::{Write, stderr};
use std::process::ExitCode;

use clap::Parser;

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
            traffic::run(plan)
        }
        Plan::Ping(plan) => {
            interrupt::install()?;
            ping::run(plan)
        }
    }
}
