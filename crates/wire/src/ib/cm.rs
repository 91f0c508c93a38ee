//! Connection management: the messages of two connection managers (IBA vol 1 ch 12).
//!
//! Each is the 232 octets after a [`MadHeader`](crate::ib::mad::MadHeader), and has a name in the
//! header's attribute. [`Message`] is any of them, [`Mad`] one with its header.
//!
//! | from active to passive side | from passive to active side | from either |
//! |---|---|---|
//! | [`Req`], [`Rtu`] | [`Rep`] | [`Mra`], [`Rej`], [`Dreq`], [`Drep`], [`Lap`], [`Apr`] |
//! | [`SidrReq`] | [`SidrRep`] | |
//!
//! What the RDMA CM puts into them is in [`rdma_cm`](crate::ib::rdma_cm).

mod alternate;
pub mod attribute;
mod code;
mod disconnect;
mod message;
mod mra;
mod path;
mod private_data;
mod rej;
mod rep;
mod req;
mod rtu;
mod sidr;

pub use alternate::{Apr, Lap};
pub use code::{ApStatus, MessageKind, RejReason, SidrStatus, TransportService};
pub use disconnect::{Drep, Dreq};
pub use message::{Mad, Message};
pub use mra::Mra;
pub use path::Path;
pub use private_data::PrivateData;
pub use rej::Rej;
pub use rep::Rep;
pub use req::Req;
pub use rtu::Rtu;
pub use sidr::{SidrRep, SidrReq};

#[cfg(test)]
mod tests;
