//! Options of `softverbs ping`: the letters are those of `rping`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use softverbs::fault::Plan as Faults;

use super::{TransportArg, parse_fault, parse_seconds, parse_size};

/// Exchange data with an `rping` of rdma-core, or with another `softverbs ping`
///
/// The client offers a buffer; the server reads it (RDMA Read) and writes it back to another
/// buffer of the client (RDMA Write); every step is announced with a Send. The options have the
/// letters of rping, and either end may be the real rping.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "softverbs ping [OPTIONS] ADDRESS\n       \
    softverbs ping --server [OPTIONS] [-a ADDRESS]")]
pub(crate) struct PingArgs {
    /// The server to ping: an address or a host name
    #[arg(value_name = "ADDRESS", conflicts_with = "server")]
    pub(crate) host: Option<String>,

    /// Be the server
    #[arg(short = 's', long, conflicts_with = "client")]
    pub(crate) server: bool,

    /// Be the client (the default)
    #[arg(short = 'c', long)]
    pub(crate) client: bool,

    /// Server: listen at this address only; client: the server to ping
    #[arg(short = 'a', long, value_name = "ADDRESS")]
    pub(crate) address: Option<String>,

    /// Client: source address
    #[arg(short = 'I', long, value_name = "ADDRESS", conflicts_with = "server")]
    pub(crate) source: Option<String>,

    /// Port; 0 lets a server take any that is free and print it
    #[arg(short, long, default_value_t = 7174)]
    pub(crate) port: u16,

    /// Octets of one ping, 1 to 64K
    #[arg(short = 'S', long, value_name = "SIZE", default_value = "64", value_parser = parse_size)]
    pub(crate) size: u64,

    /// Pings; 0 means until interrupted. A server serves as many as the client sends
    #[arg(short = 'C', long, default_value_t = 0)]
    pub(crate) count: u64,

    /// Compare what came back with what was sent
    #[arg(short = 'V', long)]
    pub(crate) verify: bool,

    /// Print the data of each ping
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Print every step to stderr
    #[arg(short, long)]
    pub(crate) debug: bool,

    /// Transport [default: $SOFTVERBS_TRANSPORT, or iwarp; `softverbs run -- rping` is on roce if not
    /// told otherwise]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<TransportArg>,

    /// Server: serve one client after the other until interrupted
    #[arg(short = 'P', long, requires = "server")]
    pub(crate) persistent: bool,

    /// Server: also write the port to this file
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(crate) port_file: Option<PathBuf>,

    /// Seconds without an answer after which the other end counts as dead
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub(crate) timeout: Duration,

    /// Disturb the traffic of this process, for example `out:rtu:first=drop` or
    /// `packet:1%=drop,seed=7`; see docs/faults.md
    #[arg(long, value_name = "SPEC", value_parser = parse_fault)]
    pub(crate) fault: Option<Faults>,
}

const EXAMPLES: &str = "\
Examples:
  softverbs ping --server              serve one client on port 7174, like `rping -s`
  softverbs ping 192.0.2.7 -C 10 -V    ten pings, verified
  softverbs ping 2001:db8::7 -C 1 -v   over IPv6, data printed
  softverbs ping 192.0.2.7 --transport roce -C 3
                                       over RoCEv2
  softverbs run --transport iwarp -- rping -c -a 192.0.2.7 -C 3 -v
                                       the first one's server, pinged by rdma-core's rping

Exit status: 0 success, 1 the run failed, 2 wrong usage.";
