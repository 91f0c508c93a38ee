//! What the user typed, and nothing else: which option exists, under which names, with which help.
//! What it all means together is decided in [`crate::plan`].

mod devices;
mod dropin;
mod fault;
mod ping;
mod races;
mod size;
mod traffic;

use clap::{Parser, Subcommand};

pub(crate) use devices::DevicesArgs;
pub(crate) use dropin::{ChoiceArgs, DoctorArgs, DropInTransport, EnvArgs, RunArgs, ShellArg};
pub(crate) use fault::parse_fault;
pub(crate) use ping::PingArgs;
pub(crate) use races::RacesArgs;
pub(crate) use size::{parse_seconds, parse_size};
pub(crate) use traffic::{BwArgs, LatArgs, TrafficArgs, TransportArg};

/// RDMA verbs in software: list devices, measure, test reachability, run programs.
///
/// Needs no RDMA hardware, no kernel module and no privilege: every network interface that has an
/// address is an RDMA device here, two in fact: one speaks iWARP over TCP, one RoCEv2 over UDP, to
/// this software and to Linux's own drivers (siw, rxe) on this and on other machines.
#[derive(Debug, Parser)]
#[command(name = "softverbs", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  softverbs devices                    which devices there are
  softverbs bw                         write bandwidth over loopback, both ends started here
  softverbs lat write                  write latency over loopback
  softverbs bw --server                wait for one client on port 18515 ...
  softverbs bw read 192.0.2.7          ... and measure from another machine
  softverbs ping --server              wait for pings ...
  softverbs ping 192.0.2.7 -C 3 -v     ... and ping that, or an `rping -s` on iWARP
  softverbs run -- ibv_devinfo         run a program that uses libibverbs or librdmacm
  softverbs doctor ibv_devinfo         what would keep it from running
  softverbs races ib-data              every order in which a connection can be made

Exit status: 0 success, 1 the run failed, 2 wrong usage; of `run`: that of the program.";

/// The subcommands; what they are for is told where their options are.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Devices(DevicesArgs),
    Bw(BwArgs),
    Lat(LatArgs),
    Ping(PingArgs),
    Run(RunArgs),
    Env(EnvArgs),
    Doctor(DoctorArgs),
    Races(RacesArgs),
}
