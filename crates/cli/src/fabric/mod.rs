//! The RDMA CM as this program uses it: with time limits, Ctrl-C, and errors that a user
//! understands.

mod address;
mod cm;
mod listen;

pub(crate) use address::{device_address, resolve, show, show_peer};
pub(crate) use cm::{Cm, Dial, Wanted, unwanted};
pub(crate) use listen::{Listeners, announce};
