//! MPA: the layer that turns a TCP stream into frames (RFC 5044, RFC 6581).
//!
//! A connection begins with one [`negotiation`] frame in each direction; after those, each
//! direction is a sequence of [`fpdu`]s, interspersed with [`marker`]s if its receiver asked for
//! them.

pub mod fpdu;
pub mod marker;
pub mod negotiation;

pub use fpdu::{Fpdu, Trailer, UlpduLength};
pub use marker::Marker;
pub use negotiation::{Enhanced, MpaFrame, MpaKind};
