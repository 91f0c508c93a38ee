//! Softverbs beside raw TCP and raw UDP on loopback: the same work between two processes,
//! alternating, and the ratio of the medians.
//!
//! `cargo run --release -p softverbs-benches` prints one line for each comparison.

mod alone;
mod ours;
mod raw;
mod stats;
mod udp;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use softverbs::Transport;

use crate::ours::Way;
use crate::stats::{Latency, median};
use crate::udp::Style;

/// What every measurement returns.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[derive(Debug, Parser)]
#[command(about = "Compares Softverbs with raw TCP and UDP on loopback and prints ratios")]
pub(crate) struct Args {
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
    /// 1 MiB writes over iWARP.
    Bandwidth,
    /// 8-octet sends over iWARP.
    Latency,
    /// 1 MiB writes over RoCEv2.
    RoceBandwidth,
    /// 8-octet sends over RoCEv2.
    RoceLatency,
    /// Both over iWARP with both ends on one thread: the processor time of it, which says something
    /// on a busy machine too.
    Cpu,
    /// The same over RoCEv2.
    RoceCpu,
}

/// The other process of a measurement; started by the first one.
#[derive(Clone, Debug, Subcommand)]
enum Role {
    /// Receives a raw stream and places it.
    #[command(hide = true)]
    RawSink { mib: usize },
    /// Answers raw messages, busy-polling.
    #[command(hide = true)]
    RawEcho { iterations: usize },
    /// Receives raw packets.
    #[command(hide = true)]
    UdpSink { mib: usize },
    /// Answers raw packets, busy-polling.
    #[command(hide = true)]
    UdpEcho {
        iterations: usize,
        #[arg(long)]
        addressed: bool,
    },
    /// A passive target of RDMA Writes.
    #[command(hide = true)]
    Target { transport: String },
    /// Answers Sends, busy-polling.
    #[command(hide = true)]
    Echo {
        transport: String,
        iterations: usize,
    },
}

impl Role {
    fn play(self) -> Outcome<()> {
        match self {
            Self::RawSink { mib } => raw::sink(mib),
            Self::RawEcho { iterations } => raw::echo(iterations),
            Self::UdpSink { mib } => udp::sink(mib),
            Self::UdpEcho {
                iterations,
                addressed: true,
            } => udp::echo(iterations, Style::Addressed),
            Self::UdpEcho { iterations, .. } => udp::echo(iterations, Style::Connected),
            Self::Target { transport } => ours::target(transport.parse()?),
            Self::Echo {
                transport,
                iterations,
            } => ours::echo(transport.parse()?, iterations),
        }
    }
}

fn main() -> Outcome<()> {
    let mut args = Args::parse();
    if let Some(role) = args.role.take() {
        return role.play();
    }
    let wanted = |what| args.only.is_empty() || args.only.contains(&what);
    let mut out = std::io::stdout().lock();
    if wanted(What::Bandwidth) {
        bandwidth(&args, &mut out)?;
    }
    if wanted(What::Latency) {
        latency(&args, &mut out)?;
    }
    if wanted(What::RoceBandwidth) {
        roce_bandwidth(&args, &mut out)?;
    }
    if wanted(What::RoceLatency) {
        roce_latency(&args, &mut out)?;
    }
    if wanted(What::Cpu) {
        alone::compare(&args, &mut out, Transport::Iwarp)?;
    }
    if wanted(What::RoceCpu) {
        alone::compare(&args, &mut out, Transport::Roce)?;
    }
    Ok(())
}

/// Whether what is sent may go past the kernel, as between processes of one host it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Yes,
    No,
}

/// Starts the other process and learns its address.
pub(crate) struct Peer {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Peer {
    fn start(role: &[&str]) -> Outcome<Self> {
        Self::start_by(role, Lane::Yes)
    }

    fn start_by(role: &[&str], lane: Lane) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(role)
            // One of the two suffices: who wants no lane gets none, and offers none.
            .envs((lane == Lane::No).then_some(("SOFTVERBS_SAME_HOST", "network")))
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

const IWARP: Way = Way {
    transport: Transport::Iwarp,
    crc: false,
};
const IWARP_CRC: Way = Way {
    transport: Transport::Iwarp,
    crc: true,
};
const ROCE: Way = Way {
    transport: Transport::Roce,
    crc: false,
};

fn rate(mib: usize, took: Duration) -> f64 {
    mib as f64 * f64::from(1 << 20) / took.as_secs_f64() / 1e9
}

/// GB/s of RDMA Writes.
fn write_rate(mib: usize, way: Way, lane: Lane) -> Outcome<f64> {
    let peer = Peer::start_by(&["target", way.transport.name()], lane)?;
    let took = ours::write(peer.address, mib, way)?;
    peer.finish()?;
    Ok(rate(mib, took))
}

/// GB/s of gathered writes to raw TCP.
fn tcp_rate(mib: usize) -> Outcome<f64> {
    let peer = Peer::start(&["raw-sink", &mib.to_string()])?;
    let took = raw::source(peer.address, mib)?;
    peer.finish()?;
    Ok(rate(mib, took))
}

/// GB/s of raw UDP.
fn udp_rate(mib: usize) -> Outcome<f64> {
    let peer = Peer::start(&["udp-sink", &mib.to_string()])?;
    let took = udp::source(peer.address, mib)?;
    peer.finish()?;
    Ok(rate(mib, took))
}

fn bandwidth(args: &Args, out: &mut impl Write) -> Outcome<()> {
    let mut results: [Vec<f64>; 5] = Default::default();
    for _ in 0..args.rounds {
        results[0].push(tcp_rate(args.mib)?);
        results[1].push(write_rate(args.mib, IWARP, Lane::No)?);
        results[2].push(write_rate(args.mib, IWARP_CRC, Lane::No)?);
        results[3].push(write_rate(args.mib, IWARP, Lane::Yes)?);
        results[4].push(write_rate(args.mib, IWARP_CRC, Lane::Yes)?);
    }
    let [raw, plain, crc, lane, lane_crc] = results.map(median);
    writeln!(
        out,
        "1 MiB writes over iWARP, GB/s (median of {} rounds):
  raw TCP, 16 x 64 KiB gathered {raw:8.2}
  RDMA Write, CRC off           {plain:8.2}   ratio {:.2}
  RDMA Write, CRC on            {crc:8.2}   ratio {:.2}
  shared memory, CRC off        {lane:8.2}   ratio {:.2}
  shared memory, CRC on         {lane_crc:8.2}   ratio {:.2}",
        args.rounds,
        plain / raw,
        crc / raw,
        lane / raw,
        lane_crc / raw
    )?;
    Ok(())
}

fn roce_bandwidth(args: &Args, out: &mut impl Write) -> Outcome<()> {
    let mut results: [Vec<f64>; 4] = Default::default();
    for _ in 0..args.rounds {
        results[0].push(udp_rate(args.mib)?);
        results[1].push(tcp_rate(args.mib)?);
        results[2].push(write_rate(args.mib, ROCE, Lane::No)?);
        results[3].push(write_rate(args.mib, ROCE, Lane::Yes)?);
    }
    let [udp, tcp, ours, lane] = results.map(median);
    writeln!(
        out,
        "1 MiB writes over RoCEv2, path MTU 4096, GB/s (median of {} rounds):
  raw UDP, offloads on          {udp:8.2}
  raw TCP, 16 x 64 KiB gathered {tcp:8.2}
  RDMA Write over UDP           {ours:8.2}   ratio {:.2} (UDP) {:.2} (TCP)
  RDMA Write, shared memory     {lane:8.2}   ratio {:.2} (UDP) {:.2} (TCP)",
        args.rounds,
        ours / udp,
        ours / tcp,
        lane / udp,
        lane / tcp
    )?;
    Ok(())
}

fn latency(args: &Args, out: &mut impl Write) -> Outcome<()> {
    let text = args.iterations.to_string();
    let mut raw = Latency::default();
    let (mut sends, mut lane) = (Latency::default(), Latency::default());
    for _ in 0..args.rounds {
        let peer = Peer::start(&["raw-echo", &text])?;
        raw.add(raw::ping(peer.address, args.iterations)?);
        peer.finish()?;
        sends.add(send_latency(args, Transport::Iwarp, Lane::No)?);
        lane.add(send_latency(args, Transport::Iwarp, Lane::Yes)?);
    }
    writeln!(
        out,
        "8-octet half round trip over iWARP, us (median of {} rounds):
  raw TCP, busy-polling   mean {:7.2}  median {:7.2}
  Send                    mean {:7.2}  median {:7.2}   ratio {:.2} (mean) {:.2} (median)
  Send, shared memory     mean {:7.2}  median {:7.2}   ratio {:.2} (mean) {:.2} (median)",
        args.rounds,
        raw.mean(),
        raw.typical(),
        sends.mean(),
        sends.typical(),
        sends.mean() / raw.mean(),
        sends.typical() / raw.typical(),
        lane.mean(),
        lane.typical(),
        lane.mean() / raw.mean(),
        lane.typical() / raw.typical()
    )?;
    Ok(())
}

fn roce_latency(args: &Args, out: &mut impl Write) -> Outcome<()> {
    let text = args.iterations.to_string();
    let (mut connected, mut addressed) = (Latency::default(), Latency::default());
    let (mut sends, mut lane) = (Latency::default(), Latency::default());
    for _ in 0..args.rounds {
        let peer = Peer::start(&["udp-echo", &text])?;
        connected.add(udp::ping(peer.address, args.iterations, Style::Connected)?);
        peer.finish()?;
        let peer = Peer::start(&["udp-echo", "--addressed", &text])?;
        addressed.add(udp::ping(peer.address, args.iterations, Style::Addressed)?);
        peer.finish()?;
        sends.add(send_latency(args, Transport::Roce, Lane::No)?);
        lane.add(send_latency(args, Transport::Roce, Lane::Yes)?);
    }
    writeln!(
        out,
        "8-octet half round trip over RoCEv2, us (median of {} rounds):
  raw UDP, connected      mean {:7.2}  median {:7.2}
  raw UDP, addressed      mean {:7.2}  median {:7.2}
  Send over UDP           mean {:7.2}  median {:7.2}   ratio of medians {:.2} (connected) {:.2} (addressed)
  Send, shared memory     mean {:7.2}  median {:7.2}   ratio of medians {:.2} (connected) {:.2} (addressed)",
        args.rounds,
        connected.mean(),
        connected.typical(),
        addressed.mean(),
        addressed.typical(),
        sends.mean(),
        sends.typical(),
        sends.typical() / connected.typical(),
        sends.typical() / addressed.typical(),
        lane.mean(),
        lane.typical(),
        lane.typical() / connected.typical(),
        lane.typical() / addressed.typical()
    )?;
    Ok(())
}

fn send_latency(args: &Args, transport: Transport, lane: Lane) -> Outcome<Vec<Duration>> {
    let iterations = args.iterations.to_string();
    let peer = Peer::start_by(&["echo", transport.name(), &iterations], lane)?;
    let took = ours::ping(peer.address, args.iterations, transport)?;
    peer.finish()?;
    Ok(took)
}

/// The child tells where it listens.
pub(crate) fn announce(address: SocketAddr) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{address}")?;
    out.flush()?;
    Ok(())
}
