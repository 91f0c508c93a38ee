//! What consumers send along.

use std::fmt;

use crate::codec::{Malformed, Reader, Writer};

/// A field of fixed length whose content is not the connection manager's: private data, and
/// additional information of rejections.
///
/// The field does not tell how much of it was meant; what is shorter is filled up with zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const N: usize>([u8; N]);

impl<const N: usize> PrivateData<N> {
    /// Length of the field.
    pub const LEN: usize = N;

    /// The field that starts with `octets`, if it has room for them.
    pub fn new(octets: &[u8]) -> Option<Self> {
        let mut data = [0; N];
        data.get_mut(..octets.len())?.copy_from_slice(octets);
        Some(Self(data))
    }

    /// From the whole field.
    pub const fn from_array(octets: [u8; N]) -> Self {
        Self(octets)
    }

    /// The whole field.
    pub const fn as_array(&self) -> &[u8; N] {
        &self.0
    }

    /// Reads the field.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.array().map(Self)
    }

    /// Writes the field.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.bytes(&self.0);
    }

    /// The field without the zeros at its end.
    fn trimmed(&self) -> &[u8] {
        let end = self.0.iter().rposition(|octet| *octet != 0);
        &self.0[..end.map_or(0, |last| last + 1)]
    }
}

/// Nothing but zeros.
impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Display for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trimmed = self.trimmed();
        if trimmed.is_empty() {
            return f.write_str("empty");
        }
        trimmed
            .iter()
            .try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData<{N}>({self})")
    }
}
