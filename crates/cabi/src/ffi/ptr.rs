//! Pointers from C. A null pointer where there must be something is EINVAL rather than a crash.

use std::ffi::{CStr, c_char};
use std::slice as rust_slice;

use super::{Fault, Result};

/// What C passes to be read.
///
/// # Safety
/// `pointer` is null or valid for reads of a `T` as long as the reference lives, and nobody writes there
/// meanwhile.
pub(crate) unsafe fn in_ref<'a, T>(pointer: *const T) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(Fault::INVALID)
}

/// What C passes to be filled in.
///
/// # Safety
/// `pointer` is null or valid for reads and writes of a `T` as long as the reference lives, and nobody else
/// uses it meanwhile. Its content may be anything: `T` is one of C's structs, whose every bit pattern is valid.
pub(crate) unsafe fn out_mut<'a, T>(pointer: *mut T) -> Result<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or(Fault::INVALID)
}

/// An array with a count. An empty one may be null.
///
/// # Safety
/// As for [`in_ref`], of `count` values.
#[allow(dead_code, reason = "for entry points to come")]
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, count: usize) -> Result<&'a [T]> {
    match count {
        0 => Ok(&[]),
        _ if pointer.is_null() => Err(Fault::INVALID),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { rust_slice::from_raw_parts(pointer, count) }),
    }
}

/// A string.
///
/// # Safety
/// `pointer` is null or points to a string that ends with a zero byte and stays as it is meanwhile.
pub(crate) unsafe fn c_str<'a>(pointer: *const c_char) -> Result<&'a CStr> {
    if pointer.is_null() {
        return Err(Fault::INVALID);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// Puts a string into a fixed field: cut to fit, and ended by a zero byte.
pub(crate) fn c_string_into(text: &str, field: &mut [c_char]) {
    field.fill(0);
    let room = field.len().saturating_sub(1);
    for (to, from) in field.iter_mut().zip(text.bytes().take(room)) {
        *to = c_char::from_ne_bytes([from]);
    }
}
