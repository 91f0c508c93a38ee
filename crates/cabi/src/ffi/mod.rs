//! What every entry point needs: nothing unwinds into C, errors become `errno` in one place, pointers
//! from C become references in small functions, and objects know who uses them.

mod guard;
mod handle;
mod ptr;
mod sockaddr;
mod users;
mod wait;

pub(crate) use self::guard::{Fault, Result, errno, minus_one, null, or, quietly, set_errno};
pub(crate) use self::handle::{Object, c_object, create, destroy, object, replace};
#[allow(unused_imports, reason = "for entry points to come")]
pub(crate) use self::ptr::{c_str, c_string_into, in_ref, out_mut, slice};
pub(crate) use self::sockaddr::{c_socket_addr, family, socket_addr, socklen};
pub(crate) use self::users::{Use, Users};
pub(crate) use self::wait::{Events, event, next};
