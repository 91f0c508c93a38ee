//! Sockets over RDMA: the `r*` functions of librdmacm.
//!
//! A socket's number is a descriptor that the `softverbs` crate keeps open for it; `table.rs` finds
//! the socket by it.

mod address;
mod iomap;
mod life;
mod option;
mod poll;
mod table;
mod transfer;

pub(crate) use self::{iomap::*, life::*, option::*, poll::*, transfer::*};
