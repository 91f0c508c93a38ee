//! Softverbs beside raw TCP on loopback: the same work between two processes, alternating, and
//! the ratio of the medians.
//!
//! `cargo run --release -p softverbs-benches` prints one line for each comparison.

mod ours;
mod raw;
mod stats;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use crate::stats::{Latency, median};

/// What every measurement returns.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[derive(Debug, Parser)]
#[command(about = "Compares Softverbs with raw TCP on loopback and prints ratios")]
struct Args {
    /// Rounds; each measures every way once.
    #[arg(short, long, default_value_t = 7)]
    rounds: usize,
    /// Octets moved by one bandwidth measurement, in MiB.
    #[arg(short, long, default_value_t = 2048)]
    mib: usize,
    /// Messages of one latency measurement.
    #[arg(short, long, default_value_t = 50_000)]
    iterations: usize,
    /// Only these comparisons.
    #[arg(long, value_enum)]
    only: Vec<What>,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    Bandwidth,
    Latency,
}

/// The other process of a measurement; started by the first one.
#[derive(Clone, Copy, Debug, Subcommand)]
enum Role {
    /// Receives a raw stream and places it.
    #[command(hide = true)]
    RawSink { mib: usize },
    /// Answers raw messages, busy-polling.
    #[command(hide = true)]
    RawEcho { iterations: usize },
    /// A passive target of RDMA Writes.
    #[command(hide = true)]
    Target,
    /// Answers Sends, busy-polling.
    #[command(hide = true)]
    Echo { iterations: usize },
}

fn main() -> Outcome<()> {
    let args = Args::parse();
    match args.role {
        Some(Role::RawSink { mib }) => return raw::sink(mib),
        Some(Role::RawEcho { iterations }) => return raw::echo(iterations),
        Some(Role::Target) => return ours::target(),
        Some(Role::Echo { iterations }) => return ours::echo(iterations),
        None => {}
    }
    let wanted = |what| args.only.is_empty() || args.only.contains(&what);
    let mut out = std::io::stdout().lock();
    if wanted(What::Bandwidth) {
        bandwidth(&args, &mut out)?;
    }
    if wanted(What::Latency) {
        latency(&args, &mut out)?;
    }
    Ok(())
}

/// Starts the other process and learns its address.
pub(crate) struct Peer {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Peer {
    fn start(role: &[&str]) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(role)
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("no stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().parse()?;
        Ok(Self { child, address })
    }

    fn finish(mut self) -> Outcome<()> {
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the peer ended with {status}").into())
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bandwidth(args: &Args, out: &mut impl Write) -> Outcome<()> {
    let mib = args.mib;
    let rate = |took: Duration| mib as f64 * f64::from(1 << 20) / took.as_secs_f64() / 1e9;
    let text = mib.to_string();
    let mut results = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..args.rounds {
        let peer = Peer::start(&["raw-sink", &text])?;
        results[0].push(rate(raw::source(peer.address, mib)?));
        peer.finish()?;
        for (index, crc) in [(1, false), (2, true)] {
            let peer = Peer::start(&["target"])?;
            results[index].push(rate(ours::write(peer.address, mib, crc)?));
            peer.finish()?;
        }
    }
    let [raw, plain, crc] = results.map(median);
    writeln!(
        out,
        "1 MiB writes, GB/s (median of {} rounds):",
        args.rounds
    )?;
    writeln!(out, "  raw TCP, 16 x 64 KiB gathered {raw:8.2}")?;
    writeln!(
        out,
        "  RDMA Write, CRC off           {plain:8.2}   ratio {:.2}",
        plain / raw
    )?;
    writeln!(
        out,
        "  RDMA Write, CRC on            {crc:8.2}   ratio {:.2}",
        crc / raw
    )?;
    Ok(())
}

fn latency(args: &Args, out: &mut impl Write) -> Outcome<()> {
    let text = args.iterations.to_string();
    let mut raw = Latency::default();
    let mut sends = Latency::default();
    for _ in 0..args.rounds {
        let peer = Peer::start(&["raw-echo", &text])?;
        raw.add(raw::ping(peer.address, args.iterations)?);
        peer.finish()?;
        let peer = Peer::start(&["echo", &text])?;
        sends.add(ours::ping(peer.address, args.iterations)?);
        peer.finish()?;
    }
    writeln!(
        out,
        "8-octet half round trip, us (median of {} rounds):",
        args.rounds
    )?;
    writeln!(
        out,
        "  raw TCP, busy-polling   mean {:7.2}  median {:7.2}",
        raw.mean(),
        raw.typical()
    )?;
    writeln!(
        out,
        "  Send                    mean {:7.2}  median {:7.2}   ratio {:.2} (mean) {:.2} (median)",
        sends.mean(),
        sends.typical(),
        sends.mean() / raw.mean(),
        sends.typical() / raw.typical()
    )?;
    Ok(())
}

/// The child tells where it listens.
pub(crate) fn announce(address: SocketAddr) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{address}")?;
    out.flush()?;
    Ok(())
}
