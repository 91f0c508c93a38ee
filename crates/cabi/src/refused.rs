//! What stands behind exports that are not implemented: the answers of a device that does not support the
//! call, in the way that each kind of call reports an error. All ignore their arguments.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::ffi::set_errno;

/// Of functions that return an `errno` value.
pub(crate) extern "C" fn errno() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// Of functions that return -1 and set `errno`.
pub(crate) extern "C" fn minus_one() -> isize {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// Of functions that return a pointer.
pub(crate) extern "C" fn null() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// Of functions that return a number.
pub(crate) extern "C" fn zero() -> u64 {
    0
}

/// Of functions that return nothing.
pub(crate) extern "C" fn void() {}
