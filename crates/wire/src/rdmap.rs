//! RDMAP: the operations (RFC 5040), with those of RFC 7306.
//!
//! The opcode travels in DDP's control word. Most operations have no header beyond DDP's own;
//! those that do are here, and the terminate message has [a module of its own](crate::terminate).

mod atomic_request;
mod atomic_response;
mod immediate;
mod opcode;
mod read_request;

pub use atomic_request::{AtomicOp, AtomicRequest};
pub use atomic_response::AtomicResponse;
pub use immediate::ImmediateData;
pub use opcode::Opcode;
pub use read_request::ReadRequest;

#[cfg(test)]
mod tests;
