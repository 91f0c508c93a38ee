//! The border: panics stop here, and errors become what the kind of call returns.
//!
//! rdma-core has three kinds. Most functions that return `int` return an `errno` value; those that
//! create something return a null pointer; a few, and all of librdmacm, return -1. `errno` is set
//! in every case.
//!
//! Within an entry point the thread is not cancelled: the end that `pthread_cancel` puts a thread to
//! unwinds, which would be taken for a panic. What waits for events does so outside (`wait`).

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Why an entry point fails: an `errno` value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault(c_int);

/// What entry points are written with.
pub(crate) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    /// A value or a combination that is not allowed.
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    /// Nothing that this device does.
    #[allow(dead_code, reason = "for entry points to come")]
    pub(crate) const NOT_SUPPORTED: Self = Self(libc::EOPNOTSUPP);

    pub(crate) const fn new(errno: c_int) -> Self {
        Self(errno)
    }

    pub(crate) const fn errno(self) -> c_int {
        self.0
    }
}

impl From<softverbs::Error> for Fault {
    fn from(error: softverbs::Error) -> Self {
        Self(error.errno())
    }
}

/// Sets this thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    nix::errno::Errno::from_raw(errno).set();
}

/// What this thread's last call in C failed with.
pub(crate) fn last_errno() -> Fault {
    Fault(nix::errno::Errno::last_raw())
}

/// While there is one, `pthread_cancel` waits.
struct NotCancelled {
    before: c_int,
}

impl NotCancelled {
    fn new() -> Self {
        let mut before = 0;
        // SAFETY: the state is one of the two, and there is a place for the one before.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for NotCancelled {
    fn drop(&mut self) {
        let mut now = 0;
        // SAFETY: as above; it is what it was before.
        unsafe { pthread_setcancelstate(self.before, &raw mut now) };
    }
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Runs the body of an entry point. A panic is a defect of ours; C hears of it as EIO.
fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let _not_cancelled = NotCancelled::new();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Fault(libc::EIO)))
}

/// The same, and sets `errno`: what succeeds leaves it as it was, whatever happened on the way, since
/// programs print it later (rstream: that of `rconnect` after `rpoll`).
fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = last_errno();
    let result = caught(body);
    set_errno(result.as_ref().err().unwrap_or(&before).errno());
    result
}

/// An entry point that returns 0 or an `errno` value, often one that is no error, and sets nothing.
pub(crate) fn quietly(body: impl FnOnce() -> Result<()>) -> c_int {
    caught(body).map_or_else(Fault::errno, |()| 0)
}

/// An entry point that returns 0 or an `errno` value.
pub(crate) fn errno(body: impl FnOnce() -> Result<()>) -> c_int {
    match guarded(body) {
        Ok(()) => 0,
        Err(fault) => fault.errno(),
    }
}

/// An entry point that returns a number or -1.
pub(crate) fn minus_one(body: impl FnOnce() -> Result<c_int>) -> c_int {
    guarded(body).unwrap_or(-1)
}

/// An entry point that returns a pointer.
pub(crate) fn null<T>(body: impl FnOnce() -> Result<*mut T>) -> *mut T {
    guarded(body).unwrap_or(ptr::null_mut())
}

/// An entry point that returns something else, and `other` on an error.
pub(crate) fn or<T>(other: T, body: impl FnOnce() -> Result<T>) -> T {
    guarded(body).unwrap_or(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_reports_in_its_way() {
        let succeeds = || {
            set_errno(libc::EAGAIN);
            Ok(())
        };
        set_errno(libc::EINPROGRESS);
        assert_eq!(errno(succeeds), 0);
        assert_eq!(nix::errno::Errno::last_raw(), libc::EINPROGRESS);
        let fails = || Err(Fault::INVALID);
        assert_eq!(errno(fails), libc::EINVAL);
        assert_eq!(nix::errno::Errno::last_raw(), libc::EINVAL);
        assert_eq!(minus_one(|| Err(Fault::NOT_SUPPORTED)), -1);
        assert_eq!(nix::errno::Errno::last_raw(), libc::EOPNOTSUPP);
        assert!(null::<u8>(|| Err(Fault::new(libc::ENOMEM))).is_null());
        assert_eq!(nix::errno::Errno::last_raw(), libc::ENOMEM);
        assert_eq!(or(7, || Err(Fault::INVALID)), 7);
    }

    #[test]
    fn nothing_unwinds() {
        assert_eq!(errno(|| panic!("on purpose")), libc::EIO);
        assert_eq!(quietly(|| panic!("on purpose")), libc::EIO);
    }
}
