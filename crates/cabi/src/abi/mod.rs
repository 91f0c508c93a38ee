//! The structs and constants of rdma-core's headers, `infiniband/verbs.h` and `rdma/rdma_cma.h`, under
//! their names, in the layout of release 64. Older programs see a prefix of it, or, of `verbs_context`,
//! the end.
//!
//! Enumerations are plain integers: what C passes may be any. `tests` compares every size and offset with
//! the headers that are installed.

pub mod attr;
pub mod cma;
pub mod context;
pub mod device;
pub mod object;
pub mod object_ex;
pub mod work;

#[cfg(test)]
mod tests;

pub use self::attr::*;
pub use self::cma::*;
pub use self::context::*;
pub use self::device::*;
pub use self::object::*;
pub use self::object_ex::*;
pub use self::work::*;

/// What a struct looks like, for those who compare.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Name of the struct in C.
    pub name: &'static str,
    /// Octets.
    pub size: usize,
    /// Name and offset of each field.
    pub fields: &'static [(&'static str, usize)],
}

/// Declares a struct of C, with its size where pointers have 64 bits and pthread's types are those of
/// glibc for x86-64, and notes its layout.
macro_rules! c_struct {
    ($(#[$meta:meta])* $name:ident = $size:literal { $($(#[$fmeta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        #[allow(missing_docs, missing_debug_implementations, reason = "rdma-core's manual pages have it")]
        pub struct $name { $($(#[$fmeta])* pub $field: $type,)* }

        #[cfg(target_arch = "x86_64")]
        const _: () = assert!(size_of::<$name>() == $size);

        impl $name {
            #[allow(missing_docs)]
            pub const LAYOUT: $crate::abi::Layout = $crate::abi::Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: &[$((stringify!($field), std::mem::offset_of!($name, $field))),*],
            };
        }
    };
}
use c_struct;

/// `enum` constants of C, which are integers.
macro_rules! c_enum {
    ($($(#[$meta:meta])* $name:ident = $value:expr,)*) => {
        $($(#[$meta])* #[allow(missing_docs, reason = "rdma-core's manual pages have it")]
        pub const $name: u32 = $value;)*
    };
}
use c_enum;
