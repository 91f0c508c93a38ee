//! CRC32C (Castagnoli), the check of MPA (RFC 5044 §4.4).

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};

/// A CRC32C over the octets seen so far.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Length of the CRC on the wire.
    pub const LEN: usize = 4;

    /// The CRC of nothing.
    pub const fn new() -> Self {
        Self(0)
    }

    /// The CRC after `octets` too.
    #[must_use]
    pub fn update(self, octets: &[u8]) -> Self {
        // crc-fast keeps its state without the final inversion.
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!self.0));
        digest.update(octets);
        #[expect(clippy::cast_possible_truncation, reason = "the state of a 32-bit CRC")]
        Self(digest.finalize() as u32)
    }

    /// The CRC as a number.
    pub const fn finish(self) -> u32 {
        self.0
    }

    /// The CRC as it is sent: least significant octet first, unlike every other field, because
    /// the polynomial's highest coefficient goes first (RFC 5044 §4.4).
    pub const fn to_wire(self) -> [u8; Self::LEN] {
        self.0.to_le_bytes()
    }
}

impl fmt::Display for Crc32c {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crc32c({self})")
    }
}
