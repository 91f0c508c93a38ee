//! DDP: segments that say where their payload goes (RFC 5041).
//!
//! A tagged segment names a buffer of the receiver and an offset in it; an untagged one takes the
//! next buffer of a queue. The control word that both start with tells which it is.

mod control;
mod header;
mod tagged;
mod untagged;

pub use control::Control;
pub use header::DdpHeader;
pub use tagged::TaggedHeader;
pub use untagged::UntaggedHeader;

#[cfg(test)]
mod tests;
