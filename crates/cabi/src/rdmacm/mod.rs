//! The entry points of librdmacm.
//!
//! `id.rs` holds identifiers and their public fields, `channel.rs` event channels, `event.rs` how
//! events reach C, `resolve.rs` addresses and routes, `connect.rs` connections, `ep.rs` the calls
//! that do several of these at once, `qp.rs` queue pairs and what they need, `multicast.rs` groups,
//! `option.rs` options, `addrinfo.rs` names, `address.rs` the structs of addresses, `devices.rs` the
//! opened devices that identifiers share.
//!
//! A synchronous identifier, one without a channel of the application's, has a channel of its own
//! here, and each call waits for its event and leaves it in the public field `event`.

mod address;
mod addrinfo;
mod channel;
mod connect;
mod devices;
mod ep;
mod event;
mod id;
mod multicast;
mod option;
mod qp;
mod resolve;

#[allow(
    unused_imports,
    reason = "the exports use them, which tests do without"
)]
pub(crate) use self::{
    addrinfo::*, channel::*, connect::*, devices::*, ep::*, event::*, id::*, multicast::*,
    option::*, qp::*, resolve::*,
};
