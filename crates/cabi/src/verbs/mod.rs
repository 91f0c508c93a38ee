//! The entry points of libibverbs.

mod context;
mod device;
mod fork;
mod query;
mod rate;
mod strings;
mod sysfs;

#[allow(
    unused_imports,
    reason = "the exports use them, which tests do without"
)]
pub(crate) use self::{context::*, device::*, fork::*, query::*, rate::*, strings::*, sysfs::*};
