//! Options of `softverbs devices`.

use clap::Args;

/// List the RDMA devices of this machine
///
/// There is one for each network interface that is up and has an address.
#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    /// Also print the attributes, limits and GIDs of each device
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}
