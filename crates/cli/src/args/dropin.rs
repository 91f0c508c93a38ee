//! Options of `softverbs run`, `softverbs env` and `softverbs doctor`.

use std::ffi::OsString;
use std::net::IpAddr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use softverbs::fault::Plan;
use softverbs::{Identity, SameHost, Transport};

use super::parse_fault;

/// Run a program that uses libibverbs and librdmacm on this software
///
/// The program finds this software's library in the place of rdma-core's. It needs no RDMA
/// hardware, no kernel module and no privilege, and no rdma-core need be installed. It replaces
/// this command, so its exit status, its signals and its terminal are its own.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) choice: ChoiceArgs,

    /// Show the devices under /sys/class/infiniband and /dev/infiniband, in a view of the file
    /// system that only the program has (UCX looks there)
    #[arg(long)]
    pub(crate) sysfs: bool,

    /// The program and its arguments. Its name does not begin with a dash: what does is an option
    /// (./-NAME is a file)
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) program: Vec<OsString>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  softverbs run -- ibv_devinfo -v
  softverbs run -- rping -s -a 127.0.0.1            in one terminal, and in another:
  softverbs run -- rping -c -a 127.0.0.1 -C 3 -v
  softverbs run --transport iwarp -- ib_write_bw -R
  softverbs run --sysfs -- ucx_info -d
  mpirun $(softverbs env --mpirun) ...      see softverbs env

Exit status: that of the program; 126 it cannot be run, 127 it is not found, 1 this software's
library is not found or the view cannot be made, 2 wrong usage.";

/// Print the environment in which programs run on this software
///
/// For shells: `eval "$(softverbs env)"`. For Open MPI: `mpirun $(softverbs env --mpirun) ...`.
#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    pub(crate) choice: ChoiceArgs,

    /// For which reader
    #[arg(long, value_enum, default_value_t = ShellArg::Sh, conflicts_with = "mpirun")]
    pub(crate) shell: ShellArg,

    /// As options of Open MPI's mpirun: -x NAME=VALUE
    #[arg(long)]
    pub(crate) mpirun: bool,
}

/// Explain what on this machine would keep programs from running on this software
///
/// Looks, and changes nothing. Given a program, looks whether `softverbs run` can reach it.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// A program, by path or by name
    #[arg(value_name = "PROGRAM")]
    pub(crate) program: Option<OsString>,

    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// What the program is to see. What is not given is as in the environment, if it says something
/// there: SOFTVERBS_TRANSPORT, SOFTVERBS_ADDR, SOFTVERBS_AS, SOFTVERBS_SAME_HOST,
/// SOFTVERBS_FAULT.
#[derive(Debug, Args)]
pub(crate) struct ChoiceArgs {
    /// Which devices there are, and what the RDMA CM uses: `both` lists the devices of both
    /// transports, and leaves the RDMA CM with iWARP [default: $SOFTVERBS_TRANSPORT, or roce]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<DropInTransport>,

    /// Only the devices of interfaces that own one of these addresses, in this order
    /// [default: $SOFTVERBS_ADDR, or all]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) addr: Vec<IpAddr>,

    /// Vendor and part number that the devices report, for programs that choose their features
    /// by them [default: $SOFTVERBS_AS, or softverbs]
    #[arg(long = "as", value_name = "NAME", value_parser = identity())]
    pub(crate) identity: Option<Identity>,

    /// What goes between processes of this host goes by: `memory` that they share, or the `network`,
    /// where others can see it [default: $SOFTVERBS_SAME_HOST, or memory]
    #[arg(long, value_name = "WAY", value_parser = same_host())]
    pub(crate) same_host: Option<SameHost>,

    /// Disturb the traffic: for example `rtu:first=drop` or `packet:1%=drop,seed=7`; see
    /// docs/faults.md [default: $SOFTVERBS_FAULT, or nothing]
    #[arg(long, value_name = "PLAN", value_parser = parse_fault)]
    pub(crate) fault: Option<Plan>,
}

/// Transports that a program may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DropInTransport {
    /// RoCEv2 over UDP
    Roce,
    /// iWARP over TCP
    Iwarp,
    /// Both
    Both,
}

impl From<Transport> for DropInTransport {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Roce => Self::Roce,
            Transport::Iwarp => Self::Iwarp,
        }
    }
}

impl DropInTransport {
    /// As in `SOFTVERBS_TRANSPORT`.
    pub(crate) const fn name(self) -> &'static str {
        match self.only() {
            Some(transport) => transport.name(),
            None => "both",
        }
    }

    /// The transport, if it is one.
    pub(crate) const fn only(self) -> Option<Transport> {
        match self {
            Self::Roce => Some(Transport::Roce),
            Self::Iwarp => Some(Transport::Iwarp),
            Self::Both => None,
        }
    }
}

fn identity() -> impl TypedValueParser<Value = Identity> {
    PossibleValuesParser::new(Identity::ALL.map(Identity::name))
        .map(|name| name.parse().unwrap_or_default())
}

fn same_host() -> impl TypedValueParser<Value = SameHost> {
    PossibleValuesParser::new(SameHost::ALL.map(SameHost::name))
        .map(|name| name.parse().unwrap_or_default())
}

/// Who reads what `softverbs env` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShellArg {
    /// sh, bash, zsh, ksh, dash
    Sh,
    /// fish
    Fish,
    /// csh, tcsh
    Csh,
    /// NAME=VALUE lines, as for env files and GITHUB_ENV
    Plain,
}
