//! `libibverbs.so.1` and `librdmacm.so.1` in one library: C programs that were linked with rdma-core's
//! run on Softverbs unchanged.
//!
//! Entry points only: they convert, call the `softverbs` crate, and map errors. `abi` holds the
//! structs of rdma-core's headers, in their newest layout; `ffi` what every entry point needs;
//! `verbs`, `rdmacm` and `rsocket` the entry points, in files of one kind of object each.
//! `symbols.txt` lists the exports with their versions, and build.rs turns it into jumps to the
//! functions of the same names.
//!
//! The functions are not for Rust programs: those use `softverbs`.

// Names are those of C.
#![allow(non_camel_case_types, non_snake_case)]
// The contract of each function is its manual page in rdma-core; of pointers that it is given, that
// they point to what their type says.
#![allow(clippy::missing_safety_doc)]
// Entry points have no callers but the exports, which the tests' program cannot have.
#![cfg_attr(test, allow(dead_code, unused_imports))]

pub mod abi;
#[cfg(not(test))]
mod exports;
mod ffi;
mod rdmacm;
mod refused;
mod rsocket;
mod verbs;
