//! `softverbs ping`: the conversation of rdma-core's `rping`, in either role.
//!
//! ```text
//! client                                server
//! Send {address, key, size of source} →
//!                                       RDMA Read of the source
//!                                       ← Send "go ahead" (16 octets that mean nothing)
//! Send {address, key, size of sink}   →
//!                                       RDMA Write of what was read into the sink
//!                                       ← Send "go ahead"
//! ```
//! and so on until the client disconnects. The data are a C string: the server writes back as
//! much as there is before the first NUL, and the NUL.

mod client;
mod connection;
mod server;
mod wire;

pub(crate) use wire::MAX_SIZE;

use std::io::{Write, stderr};

use crate::failure::Outcome;
use crate::plan::{PingPlan, PingRole};

/// Carries out the plan.
pub(crate) fn run(plan: &PingPlan) -> Outcome<()> {
    match &plan.role {
        PingRole::Server {
            bind,
            persistent,
            port_file,
        } => server::run(plan, bind.as_deref(), *persistent, port_file.as_deref()),
        PingRole::Client { host, source } => client::run(plan, host, source.as_deref()),
    }
}

/// Prints a step if the user wants to see the steps.
fn step(plan: &PingPlan, text: &str) {
    if plan.debug {
        // A step that nobody can read is no reason to stop.
        let _ = writeln!(stderr().lock(), "{text}");
    }
}
