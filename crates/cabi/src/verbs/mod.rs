//! The entry points of libibverbs.

mod ah;
mod async_event;
mod comp_channel;
mod context;
mod cq;
mod cq_ex;
mod device;
mod fork;
mod mr;
mod mw;
mod pd;
mod post;
pub(crate) mod qp;
mod qp_attr;
mod qp_ex;
mod query;
mod rate;
pub(crate) mod srq;
mod strings;
mod sysfs;
pub(crate) mod xrc;

pub(crate) use self::{
    ah::*, async_event::*, comp_channel::*, context::*, cq::*, device::*, fork::*, mr::*, pd::*,
    qp::*, qp_attr::*, query::*, rate::*, srq::*, strings::*, sysfs::*,
};
