//! RoCEv2: the InfiniBand transport over UDP.
//!
//! `port/` is the UDP side, one for each process; `qp.rs` the work on a queue pair, `modify.rs`
//! its attributes, `address.rs` the ways to peers, `multicast.rs` groups.

pub(crate) mod address;
mod modify;
mod multicast;
mod patience;
pub(crate) mod port;
mod qp;

pub use self::address::{AddressHandle, AhAttr, GlobalRoute};
pub(crate) use self::modify::{access_of, rtr_attr, rts_attr};
pub(crate) use self::qp::{ConnectionOfQp, Roce};
