//! The Terminate message: why a stream ends (RFC 5040 §4.8).

mod code;
mod message;

pub use code::{TerminateCode, TerminateTriple};
pub use message::{Terminate, TerminateLayout};

#[cfg(test)]
mod tests;
