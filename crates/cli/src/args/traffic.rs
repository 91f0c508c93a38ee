//! Options of `softverbs bw` and `softverbs lat`.
//!
//! Everything that both ends must agree on is an `Option` here, because a server has to know
//! whether its user asked for a value or took what the client brings.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use softverbs::Transport;
use softverbs::fault::Plan as Faults;

use super::{parse_fault, parse_seconds, parse_size};
use crate::plan::{AtomicOp, Connection};

/// Measure bandwidth between two machines, or on this one
///
/// Without an address both ends run here, over loopback. `--server` waits for a client, an
/// ADDRESS is the server to measure against. The client's options rule; an option that is also
/// given to the server must be the same there.
#[derive(Debug, Args)]
#[command(after_help = BW_EXAMPLES, override_usage = "softverbs bw [OPTIONS] [write|read|send|atomic]\n       \
    softverbs bw [OPTIONS] [write|read|send|atomic] ADDRESS\n       \
    softverbs bw [OPTIONS] --server [write|read|send|atomic]")]
pub(crate) struct BwArgs {
    /// What bw and lat share.
    #[command(flatten)]
    pub(crate) common: TrafficArgs,

    /// Messages that one queue pair may have under way [default: 128; above 8 MiB a message so many
    /// as are 1 GiB, 2 at least]
    #[arg(short, long, value_name = "DEPTH", value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) tx_depth: Option<u32>,

    /// Queue pairs [default: 1]
    #[arg(short, long, alias = "qp", value_parser = clap::value_parser!(u16).range(1..=16384))]
    pub(crate) qps: Option<u16>,

    /// Transfer both ways at once and report the sum
    #[arg(short, long)]
    pub(crate) bidirectional: bool,

    /// Ask for one completion every COUNT messages [default: by size]
    #[arg(short = 'Q', long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) cq_mod: Option<u16>,
}

/// Measure latency between two machines, or on this one
///
/// write and send: half of the round trip of a ping-pong. read and atomic: the whole of it, as
/// ib_read_lat reports it. Without an address both ends run here, over loopback. `--server` waits for a
/// client, an ADDRESS is the server to measure against.
#[derive(Debug, Args)]
#[command(after_help = LAT_EXAMPLES,
    mut_arg("words", |arg| arg.help("The verb (write, read, send or atomic; default: send) and the server")),
    mut_arg("size", |arg| arg.help("Octets of a message, up to 1G; K, M and G are powers of 1024 [default: 8]")),
    mut_arg("iters", |arg| arg.help("Messages, each size [default: 1000]")),
    mut_arg("events", |arg| arg.help("Sleep until a completion instead of polling (not for `lat write` without --imm)")),
    mut_arg("inline", |arg| arg.help("Hand messages up to this size over inline, 1K at most [default: 64]")),
    override_usage = "softverbs lat [OPTIONS] [write|read|send|atomic]\n       \
    softverbs lat [OPTIONS] [write|read|send|atomic] ADDRESS\n       \
    softverbs lat [OPTIONS] --server [write|read|send|atomic]")]
pub(crate) struct LatArgs {
    /// What bw and lat share.
    #[command(flatten)]
    pub(crate) common: TrafficArgs,
}

/// Options that `bw` and `lat` share.
#[derive(Debug, Args)]
pub(crate) struct TrafficArgs {
    /// The verb (write, read, send or atomic; default: write, over UD send) and the server
    #[arg(value_name = "VERB] [ADDRESS", num_args = 0..=2)]
    pub(crate) words: Vec<String>,

    /// Octets of a message, up to 1G; K, M and G are powers of 1024 [default: 64K; atomic 8; over UD
    /// 1K or the path MTU]
    #[arg(short, long, value_parser = parse_size, conflicts_with = "all")]
    pub(crate) size: Option<u64>,

    /// Every power of two from 2 octets to 8 MiB (UD: to the path MTU)
    #[arg(short, long)]
    pub(crate) all: bool,

    /// Service of the queue pairs; UC (write, send) and UD (send) are RoCE's, and may lose messages
    /// [default: RC]
    #[arg(short, long, value_enum, ignore_case = true)]
    pub(crate) connection: Option<ConnectionArg>,

    /// Path MTU (RoCE): 256, 512, 1024, 2048 or 4096 [default: that of the port]
    #[arg(long, value_name = "OCTETS", value_parser = parse_mtu)]
    pub(crate) mtu: Option<u16>,

    /// Send the number of each message along as immediate data, and verify it
    #[arg(long)]
    pub(crate) imm: bool,

    /// Operation of the verb atomic [default: fetch-add]
    #[arg(short = 'A', long, value_name = "OPERATION", value_enum)]
    pub(crate) atomic_type: Option<AtomicArg>,

    /// Messages a queue pair, each size [default: 5000]
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "duration",
          value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) iters: Option<u64>,

    /// Run for this long instead, each size
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) duration: Option<Duration>,

    /// Sleep until a completion instead of polling
    #[arg(short, long)]
    pub(crate) events: bool,

    /// Hand messages up to this size over inline, 1K at most [default: 0]
    #[arg(short = 'I', long, value_name = "SIZE", value_parser = parse_inline)]
    pub(crate) inline: Option<u16>,

    /// Longest DDP segment to send, and so the length of an FPDU (iWARP) [default: 65535]
    #[arg(short = 'm', long, value_name = "OCTETS", value_parser = clap::value_parser!(u16).range(128..))]
    pub(crate) fpdu: Option<u16>,

    /// Ask for CRC32C on every FPDU (iWARP)
    #[arg(long)]
    pub(crate) crc: bool,

    /// Fill every message with a pattern and verify it where it arrives
    #[arg(long)]
    pub(crate) check: bool,

    /// Port; 0 lets a server take any that is free and print it
    #[arg(short, long, default_value_t = 18515)]
    pub(crate) port: u16,

    /// Transport [default: that of the device; roce with -c UC, -c UD and --mtu; else
    /// $SOFTVERBS_TRANSPORT, or iwarp]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<TransportArg>,

    /// Use this device (see `softverbs devices`)
    #[arg(short, long, conflicts_with = "bind")]
    pub(crate) device: Option<String>,

    /// Use this local address
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) bind: Option<IpAddr>,

    /// Wait for a client, serve it, exit
    #[arg(long)]
    pub(crate) server: bool,

    /// Server: serve one client after the other until interrupted
    #[arg(long, alias = "serve-forever", requires = "server")]
    pub(crate) persistent: bool,

    /// Server: give up if no client came in this time
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, requires = "server",
          conflicts_with = "persistent")]
    pub(crate) wait: Option<Duration>,

    /// Server: also write the port to this file
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(crate) port_file: Option<PathBuf>,

    /// Server: end with this process
    #[arg(long, value_name = "PID", requires = "server", hide = true)]
    pub(crate) parent: Option<i32>,

    /// Exchange parameters over a plain TCP connection instead of the RDMA CM (both ends)
    #[arg(long)]
    pub(crate) tcp_exchange: bool,

    /// Seconds without an answer after which the other end counts as dead; what large messages take
    /// (1 s for 100 MB under way) comes on top
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub(crate) timeout: Duration,

    /// Disturb the traffic of this process, for example `out:rtu:first=drop` or
    /// `packet:1%=drop,seed=7`; see docs/faults.md
    #[arg(long, value_name = "SPEC", value_parser = parse_fault)]
    pub(crate) fault: Option<Faults>,

    /// Print one JSON object a line instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

/// What queue pairs hold of inline data, in octets.
const MOST_INLINE: u64 = 1024;

fn parse_inline(text: &str) -> Result<u16, String> {
    match parse_size(text)? {
        size @ ..=MOST_INLINE => Ok(u16::try_from(size).unwrap_or(u16::MAX)),
        _ => Err(format!("inline messages have {MOST_INLINE} octets at most")),
    }
}

/// The path MTUs that there are.
fn parse_mtu(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(mtu @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(mtu),
        _ => Err("a path MTU is 256, 512, 1024, 2048 or 4096".into()),
    }
}

/// The services that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConnectionArg {
    /// Reliable connection
    #[value(name = "RC")]
    Rc,
    /// Unreliable connection
    #[value(name = "UC")]
    Uc,
    /// Unreliable datagram
    #[value(name = "UD")]
    Ud,
}

impl From<ConnectionArg> for Connection {
    fn from(arg: ConnectionArg) -> Self {
        match arg {
            ConnectionArg::Rc => Self::Rc,
            ConnectionArg::Uc => Self::Uc,
            ConnectionArg::Ud => Self::Ud,
        }
    }
}

/// The atomic operations that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AtomicArg {
    /// Every operation adds one to a word that all queue pairs share
    FetchAdd,
    /// Every operation replaces the word of its queue pair
    CmpSwap,
}

impl From<AtomicArg> for AtomicOp {
    fn from(arg: AtomicArg) -> Self {
        match arg {
            AtomicArg::FetchAdd => Self::FetchAdd,
            AtomicArg::CmpSwap => Self::CompareSwap,
        }
    }
}

/// The transports that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportArg {
    /// iWARP over TCP
    Iwarp,
    /// RoCEv2 over UDP
    Roce,
}

impl From<TransportArg> for Transport {
    fn from(arg: TransportArg) -> Self {
        match arg {
            TransportArg::Iwarp => Self::Iwarp,
            TransportArg::Roce => Self::Roce,
        }
    }
}

const BW_EXAMPLES: &str = "\
Examples:
  softverbs bw                         64 KiB writes over loopback
  softverbs bw -a                      all sizes
  softverbs bw send -s 4K -q 8 -b      sends both ways on eight queue pairs
  softverbs bw --server --persistent   serve clients until Ctrl-C ...
  softverbs bw read 192.0.2.7 -D 10    ... and read from there for ten seconds
  softverbs bw --check --json          verify the payload, print JSON
  softverbs bw atomic -q 4             fetch-and-add on one word from four queue pairs
  softverbs bw -c UD -s 1K --mtu 1024  datagrams over RoCE, losses counted

Exit status: 0 success, 1 the run failed, 2 wrong usage.";

const LAT_EXAMPLES: &str = "\
Examples:
  softverbs lat                        8-octet sends over loopback
  softverbs lat write -s 64            64-octet writes
  softverbs lat atomic -A cmp-swap     compare-and-swap
  softverbs lat --server               wait for one client ...
  softverbs lat read 192.0.2.7         ... and measure reads from another machine

Exit status: 0 success, 1 the run failed, 2 wrong usage.";
