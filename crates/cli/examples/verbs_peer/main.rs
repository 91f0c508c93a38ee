//! Every operation of RC, UC and UD queue pairs with another program, in both directions, with the
//! data checked at both ends. The counterpart of `lab/verbs-peer.c`, which runs over the Linux
//! kernel's rxe; both do the same, step by step, and two of this program go together, too.
//!
//! ```text
//! verbs_peer -b ADDRESS [-c HOST] [-p PORT] [-t rc|uc|ud] [-m MTU] [-s SIZE,...] [-e] [-w | -k]
//! ```
//!
//! Queue pairs are connected by hand, by an exchange of lines over TCP, which also keeps the two
//! ends in step. Exit status 0 if all is well.

mod ends;
mod faults;
mod operations;
#[path = "../support/mod.rs"]
mod support;

use std::io::{Write, stdout};
use std::net::IpAddr;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use ends::Test;
use faults::Fault;
use support::{GRH, Outcome, PATIENCE, complete, complete_well, exit, expect, gid_index, to_gid};

/// Exchange every kind of operation with lab/verbs-peer.c or with another one of this program.
#[derive(Debug, Parser)]
struct Args {
    /// The end to connect to; without it, wait for one
    #[arg(short = 'c', long, value_name = "HOST")]
    connect: Option<IpAddr>,

    /// The own address
    #[arg(short, long, value_name = "ADDRESS")]
    bind: IpAddr,

    /// Port of the exchange
    #[arg(short, long, default_value_t = 18600)]
    port: u16,

    /// Service of the queue pairs
    #[arg(short = 't', long, value_enum, default_value_t = Service::Rc)]
    service: Service,

    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, default_value_t = 1024)]
    mtu: u32,

    /// Octets of the messages
    #[arg(
        short,
        long,
        value_delimiter = ',',
        default_value = "0,1,1024,1025,4097,1048579"
    )]
    sizes: Vec<usize>,

    /// Provoke errors instead
    #[arg(short, long)]
    errors: bool,

    /// Write until it fails; the other end is killed meanwhile
    #[arg(short, long)]
    write: bool,

    /// Wait to be killed, as the target of the other end's writes
    #[arg(short, long)]
    killed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Service {
    Rc,
    Uc,
    Ud,
}

const LARGEST: usize = 8 << 20;
const CHUNKS: usize = 16;
const QKEY: u32 = 0x1111_1111;
/// What memory holds where nobody should write.
const BLANK: u8 = 0xee;

fn main() -> ExitCode {
    exit("verbs_peer", run(&Args::parse()))
}

fn run(args: &Args) -> Outcome<()> {
    let mut test = Test::open(args)?;
    if args.write || args.killed {
        test.writes(args.write)?;
    } else if args.errors {
        for direction in 0..2 {
            for fault in Fault::ALL {
                test.fault(fault, (direction == 0) == args.connect.is_some())?;
            }
        }
    } else {
        test.operations()?;
    }
    writeln!(stdout().lock(), "all well")?;
    Ok(())
}

/// Octet `i` of the data of step `seed`.
fn octet(seed: u32, i: usize) -> u8 {
    (seed as usize * 131 + i * 7 + (i >> 8) * 13).to_le_bytes()[0]
}
