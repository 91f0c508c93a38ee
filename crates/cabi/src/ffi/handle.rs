//! Objects that C holds a pointer to. C's struct comes first, ours behind it, in one allocation: from a
//! pointer to the object is no more than an addition, and needs no table and no lock.

use std::ptr;

use super::{Fault, Result};

/// A struct of C that starts an object of ours.
///
/// # Safety
/// `Storage` is `Self`, or a `repr(C)` struct that begins with it; and every pointer to a `Self` that C
/// gets comes from [`create`].
pub(crate) unsafe trait Object: Sized {
    /// The struct that is really there: the newest and largest that begins with this one.
    type Storage;
    /// What we keep with it.
    type Rust;
}

/// Says of one of C's structs what is behind it: `c_object!(ibv_cq, ibv_cq_ex => Cq)`.
macro_rules! c_object {
    ($c:ty, $storage:ty => $rust:ty) => {
        const _: () = assert!(size_of::<$storage>() >= size_of::<$c>());
        // SAFETY: rdma-core's headers let the one begin with the other, and `abi` is compared with
        // them; only `create` makes such objects here.
        unsafe impl $crate::ffi::Object for $c {
            type Storage = $storage;
            type Rust = $rust;
        }
    };
}
pub(crate) use c_object;

#[repr(C)]
struct Pair<C: Object> {
    c: C::Storage,
    rust: C::Rust,
}

/// Makes an object. `fill` is told where it will be, to remember, not to use.
pub(crate) fn create<C: Object>(
    fill: impl FnOnce(*mut C) -> Result<(C::Storage, C::Rust)>,
) -> Result<*mut C> {
    let mut place = Box::<Pair<C>>::new_uninit();
    let (c, rust) = fill(place.as_mut_ptr().cast())?;
    Ok(Box::into_raw(Box::write(place, Pair { c, rust })).cast())
}

/// What we keep with an object. A null pointer is EINVAL.
///
/// # Safety
/// `pointer` is null or was made by [`create`] and not destroyed, nor is it before the reference is gone.
pub(crate) unsafe fn object<'a, C: Object>(pointer: *const C) -> Result<&'a C::Rust> {
    let pair = pointer.cast::<Pair<C>>();
    if pair.is_null() {
        return Err(Fault::INVALID);
    }
    // SAFETY: the pointer is to a `Pair`, which `create` made. Only its `rust` is borrowed: C may write to
    // its own part meanwhile.
    Ok(unsafe { &*ptr::addr_of!((*pair).rust) })
}

/// Gives an object something else to keep, and returns what we kept with it.
///
/// # Safety
/// `pointer` was made by [`create`] and not destroyed, and nobody uses what is kept with it at this moment.
pub(crate) unsafe fn replace<C: Object>(pointer: *mut C, rust: C::Rust) -> C::Rust {
    // SAFETY: the pointer is to a `Pair`, and the caller's promise makes it ours.
    unsafe { ptr::addr_of_mut!((*pointer.cast::<Pair<C>>()).rust).replace(rust) }
}

/// Ends an object, and returns what we kept with it.
///
/// # Safety
/// `pointer` was made by [`create`], and nobody uses the object any more.
pub(crate) unsafe fn destroy<C: Object>(pointer: *mut C) -> C::Rust {
    // SAFETY: made by `create` from a box of this type, and the caller gives it up.
    let pair = unsafe { Box::from_raw(pointer.cast::<Pair<C>>()) };
    pair.rust
}
