//! From numbers to sockets.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use softverbs::rsocket::RSocket;

use crate::ffi::{Fault, Result};

static TABLE: LazyLock<RwLock<HashMap<c_int, Arc<RSocket>>>> = LazyLock::new(RwLock::default);

/// The socket with this number, if there is one.
pub(super) fn find(number: c_int) -> Option<Arc<RSocket>> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.get(&number).cloned()
}

/// The socket with this number, else EBADF.
pub(super) fn socket(number: c_int) -> Result<Arc<RSocket>> {
    find(number).ok_or(Fault::new(libc::EBADF))
}

/// Enters a socket, and returns its number.
pub(super) fn enter(socket: RSocket) -> c_int {
    let number = socket.as_raw_fd();
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.insert(number, Arc::new(socket));
    number
}

/// Takes a socket out. Its number is taken until the last call that uses it has ended.
pub(super) fn remove(number: c_int) -> Result<Arc<RSocket>> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.remove(&number).ok_or(Fault::new(libc::EBADF))
}
