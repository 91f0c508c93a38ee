//! Fork support: nothing is pinned and no page is shared with a device, so there is nothing to do.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::IBV_FORK_UNNEEDED;

pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_uint {
    IBV_FORK_UNNEEDED
}

pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
