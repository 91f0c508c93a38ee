//! Reading and writing octets in network order.

use thiserror::Error;

/// Why octets are not the frame that they should be.
///
/// A variant is a reason, not a place: each makes sense as a counter of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Malformed {
    /// The input ends before the header does.
    #[error("input ends inside a header")]
    Truncated,
    /// The input goes on where the message has ended.
    #[error("octets follow the end of the message")]
    TrailingOctets,
    /// A connection set-up frame starts with another key than the expected one.
    #[error("MPA key is not the expected one")]
    MpaKey,
    /// An MPA request or reply announces more private data than RFC 5044 §7.1.1 allows.
    #[error("MPA private data is longer than 512 octets")]
    MpaPrivateDataTooLong,
    /// An MPA frame says that it is enhanced (RFC 6581 §9) and has no room for the two words.
    #[error("enhanced MPA frame without room for its IRD and ORD words")]
    MpaEnhancedTooShort,
    /// A marker does not point to the length field of its FPDU.
    #[error("MPA marker and ULPDU length disagree")]
    MarkerPointer,
    /// The CRC32C of an FPDU does not match its octets.
    #[error("MPA CRC mismatch")]
    Crc,
    /// A tagged segment stands where an untagged one is expected, or the reverse.
    #[error("DDP tagged flag does not match the header expected here")]
    DdpModel,
}

impl Malformed {
    /// All reasons, for tables of counters.
    pub const ALL: [Self; 8] = [
        Self::Truncated,
        Self::TrailingOctets,
        Self::MpaKey,
        Self::MpaPrivateDataTooLong,
        Self::MpaEnhancedTooShort,
        Self::MarkerPointer,
        Self::Crc,
        Self::DdpModel,
    ];
}

/// What a parser found at the front of a stream that may still be growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// The frame is complete; it took the first `len` octets.
    Complete {
        /// The frame.
        value: T,
        /// How many octets of the stream it occupied.
        len: usize,
    },
    /// So far nothing is wrong, but at least this many more octets are needed. Never zero.
    NeedMore(usize),
}

impl<T> Parsed<T> {
    /// The frame and its length, or nothing while octets are missing.
    pub fn complete(self) -> Option<(T, usize)> {
        match self {
            Self::Complete { value, len } => Some((value, len)),
            Self::NeedMore(_) => None,
        }
    }
}

/// A cursor over received octets. A failed read leaves it where it was.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `octets`.
    pub const fn new(octets: &'a [u8]) -> Self {
        Self { rest: octets }
    }

    /// Runs `parse` over `octets`, which it must consume completely.
    pub fn all<T>(
        octets: &'a [u8],
        parse: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<T, Malformed> {
        let mut reader = Self::new(octets);
        let value = parse(&mut reader)?;
        if reader.is_empty() {
            Ok(value)
        } else {
            Err(Malformed::TrailingOctets)
        }
    }

    /// How many octets are left.
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Whether everything was read.
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `len` octets.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Everything that is left.
    pub const fn rest(&mut self) -> &'a [u8] {
        let rest = self.rest;
        self.rest = &[];
        rest
    }

    /// The next `N` octets by value.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(*array)
    }

    /// The next octet.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_be_bytes)
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 24 bits.
    pub fn u24(&mut self) -> Result<u32, Malformed> {
        self.array()
            .map(|[high, middle, low]| u32::from_be_bytes([0, high, middle, low]))
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }
}

/// A cursor over a buffer that is filled from its start.
///
/// The buffer is the caller's and its old content does not matter: every `emit` writes each octet
/// of its frame. Writing past the end is a mistake of the caller, who knows the length of what is
/// being emitted, and panics as slice indexing does.
#[derive(Debug)]
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    written: usize,
}

impl<'a> Writer<'a> {
    /// Writes from the start of `buffer`.
    pub const fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, written: 0 }
    }

    /// How many octets were written.
    pub const fn written(&self) -> usize {
        self.written
    }

    /// Writes `octets`.
    ///
    /// # Panics
    /// If the buffer has no room for them.
    pub fn bytes(&mut self, octets: &[u8]) {
        let end = self.written + octets.len();
        self.buffer[self.written..end].copy_from_slice(octets);
        self.written = end;
    }

    /// Writes one octet.
    pub fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    /// Writes 16 bits.
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    /// Writes the low 24 bits of `value`.
    pub fn u24(&mut self, value: u32) {
        let [_, octets @ ..] = value.to_be_bytes();
        self.bytes(&octets);
    }

    /// Writes 32 bits.
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    /// Writes 64 bits.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }
}

/// The octets that `emit` writes, as an array: the common part of every fixed-size `to_bytes`.
pub(crate) fn emitted<const N: usize>(emit: impl FnOnce(&mut Writer<'_>)) -> [u8; N] {
    let mut octets = [0; N];
    let mut writer = Writer::new(&mut octets);
    emit(&mut writer);
    debug_assert_eq!(writer.written(), N, "LEN and emit disagree");
    octets
}

/// Appends the `len` octets that `emit` writes to `out`.
pub(crate) fn append(out: &mut Vec<u8>, len: usize, emit: impl FnOnce(&mut Writer<'_>)) {
    let start = out.len();
    out.resize(start + len, 0);
    let mut writer = Writer::new(&mut out[start..]);
    emit(&mut writer);
    debug_assert_eq!(writer.written(), len, "length and emit disagree");
}

/// The octets that `emit` writes into a buffer full of noise: an octet that it skips shows.
#[cfg(test)]
pub(crate) fn emitted_over_noise(len: usize, emit: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut buffer = vec![0xa5; len + 4];
    let mut writer = Writer::new(&mut buffer);
    emit(&mut writer);
    assert_eq!(writer.written(), len);
    assert_eq!(buffer.split_off(len), [0xa5; 4], "written past the end");
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_network_order_and_ends() {
        let octets = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let mut reader = Reader::new(&octets);
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.u16(), Ok(0x0203));
        assert_eq!(reader.u32(), Ok(0x0405_0607));
        assert_eq!(reader.u64(), Ok(0x0809_0a0b_0c0d_0e0f));
        assert!(reader.is_empty());
        assert_eq!(reader.u8(), Err(Malformed::Truncated));
    }

    #[test]
    fn a_failed_read_consumes_nothing() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert_eq!(reader.u32(), Err(Malformed::Truncated));
        assert_eq!(reader.take(4), Err(Malformed::Truncated));
        assert_eq!(reader.rest(), [1, 2, 3]);
        assert_eq!(reader.remaining(), 0);
    }

    #[test]
    fn all_refuses_trailing_octets() {
        assert_eq!(Reader::all(&[0, 1], Reader::u16), Ok(1));
        assert_eq!(
            Reader::all(&[0, 1, 2], Reader::u16),
            Err(Malformed::TrailingOctets)
        );
        assert_eq!(Reader::all(&[0], Reader::u16), Err(Malformed::Truncated));
    }

    #[test]
    fn writes_network_order() {
        let mut buffer = [0xa5; 16];
        let mut writer = Writer::new(&mut buffer);
        writer.u8(1);
        writer.u16(0x0203);
        writer.u32(0x0405_0607);
        writer.u64(0x0809_0a0b_0c0d_0e0f);
        assert_eq!(writer.written(), 15);
        assert_eq!(
            buffer,
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0xa5]
        );
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn writing_past_the_end_panics() {
        Writer::new(&mut [0; 3]).u32(0);
    }

    #[test]
    fn reasons_read_differently() {
        let texts: std::collections::HashSet<String> =
            Malformed::ALL.iter().map(Malformed::to_string).collect();
        assert_eq!(texts.len(), Malformed::ALL.len());
    }
}
