//! What processes of one user on one host share, whatever the transport: memory, and ways to wake each
//! other.

pub(crate) mod bell;
pub(crate) mod board;
mod choice;
mod flow;
pub(crate) mod grants;
pub(crate) mod line;
#[allow(unsafe_code, reason = "memory that two processes share")]
pub(crate) mod memory;
#[allow(unsafe_code, reason = "memory that two processes share")]
pub(crate) mod pipe;
pub(crate) mod placing;
#[allow(unsafe_code, reason = "system calls that take descriptors")]
pub(crate) mod sys;
#[cfg(test)]
mod tests;
pub(crate) mod wake;

pub use self::choice::SameHost;
