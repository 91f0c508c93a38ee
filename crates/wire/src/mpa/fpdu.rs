//! The FPDU: one DDP segment framed for a TCP stream (RFC 5044 §4).
//!
//! ```text
//! | ULPDU length (2) | ULPDU | PAD (0 to 3) | CRC32C (4) |
//! ```
//!
//! The length counts the ULPDU alone. PAD aligns the CRC to 4 octets. Markers, where a receiver
//! wants them, are inserted into this form: see [`marker`].

use std::fmt;

use crate::codec::{self, Malformed, Parsed, Reader, Writer};
use crate::crc32c::Crc32c;
use crate::mpa::marker;

/// Smallest MULPDU that the layer above may be given (RFC 5044 §4.5): room for a DDP header
/// however small the TCP segments are.
pub const MIN_MULPDU: u16 = 128;

/// How many PAD octets follow a ULPDU of this length.
pub const fn pad_len(ulpdu_len: u16) -> usize {
    (2 + (ulpdu_len as usize)).wrapping_neg() % 4
}

/// How long the FPDU of a ULPDU of this length is, without markers.
pub const fn fpdu_len(ulpdu_len: u16) -> usize {
    UlpduLength::LEN + (ulpdu_len as usize) + pad_len(ulpdu_len) + Crc32c::LEN
}

/// The longest ULPDU whose FPDU fits one TCP segment of `emss` octets, on a stream without
/// markers (RFC 5044 §4.5).
pub const fn mulpdu(emss: u32) -> u16 {
    clamp_mulpdu(emss, 6 + emss % 4)
}

/// The longest ULPDU whose FPDU fits one TCP segment of `emss` octets, wherever the markers of
/// the stream fall in it (RFC 5044 §4.5).
pub const fn mulpdu_with_markers(emss: u32) -> u16 {
    let markers = emss.div_ceil(marker::SPACING);
    clamp_mulpdu(emss, 6 + 4 * markers + emss % 4)
}

const fn clamp_mulpdu(emss: u32, overhead: u32) -> u16 {
    let room = emss.saturating_sub(overhead);
    if room < MIN_MULPDU as u32 {
        MIN_MULPDU
    } else if room > u16::MAX as u32 {
        u16::MAX
    } else {
        (room & 0xffff) as u16
    }
}

/// The length field at the start of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UlpduLength(u16);

impl UlpduLength {
    /// Length of the field.
    pub const LEN: usize = 2;

    /// For a ULPDU of this many octets.
    pub const fn new(ulpdu_len: u16) -> Self {
        Self(ulpdu_len)
    }

    /// The octets of the ULPDU.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Reads the field.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.u16().map(Self)
    }

    /// Writes the field.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u16(self.0);
    }

    /// The octets of the field.
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        self.0.to_be_bytes()
    }

    /// How many PAD octets follow the ULPDU.
    pub const fn pad_len(self) -> usize {
        pad_len(self.0)
    }

    /// How long the whole FPDU is, without markers.
    pub const fn fpdu_len(self) -> usize {
        fpdu_len(self.0)
    }
}

impl fmt::Display for UlpduLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ULPDU of {} octets", self.0)
    }
}

/// What follows the ULPDU: PAD and CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// PAD octets; those from `pad_len` on are not part of the frame and zero.
    pad: [u8; 3],
    pad_len: usize,
    /// The CRC field as it is on the wire. Without CRCs its content is not specified.
    pub crc: [u8; Crc32c::LEN],
}

impl Trailer {
    /// Length of the longest trailer.
    pub const MAX_LEN: usize = 3 + Crc32c::LEN;

    /// The trailer of an FPDU without CRC: zeros, as other implementations send.
    pub const fn without_crc(length: UlpduLength) -> Self {
        Self {
            pad: [0; 3],
            pad_len: length.pad_len(),
            crc: [0; 4],
        }
    }

    /// The trailer of an FPDU whose length field and ULPDU have the CRC `crc`.
    pub fn with_crc(length: UlpduLength, crc: Crc32c) -> Self {
        let without = Self::without_crc(length);
        Self {
            crc: crc.update(without.pad()).to_wire(),
            ..without
        }
    }

    /// Reads the trailer of an FPDU with this length field.
    pub fn parse(length: UlpduLength, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let without = Self::without_crc(length);
        // One read, so that a trailer cut short is not half consumed.
        let octets = reader.take(without.trailer_len())?;
        let (received_pad, crc) = octets.split_last_chunk().ok_or(Malformed::Truncated)?;
        let mut pad = [0; 3];
        pad[..received_pad.len()].copy_from_slice(received_pad);
        Ok(Self {
            pad,
            crc: *crc,
            ..without
        })
    }

    /// Writes the trailer.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.bytes(self.pad());
        writer.bytes(&self.crc);
    }

    /// Appends the trailer to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        codec::append(out, self.trailer_len(), |writer| self.emit(writer));
    }

    /// Length of this trailer on the wire.
    pub const fn trailer_len(&self) -> usize {
        self.pad_len + Crc32c::LEN
    }

    /// The PAD octets. A sender sets them to zero, a receiver ignores them (RFC 5044 §4.1).
    pub fn pad(&self) -> &[u8] {
        &self.pad[..self.pad_len]
    }

    /// Checks the CRC, given that of everything from the length field (or the marker before it)
    /// to the end of the ULPDU.
    pub fn check(&self, crc: Crc32c) -> Result<(), Malformed> {
        if crc.update(self.pad()).to_wire() == self.crc {
            Ok(())
        } else {
            Err(Malformed::Crc)
        }
    }
}

impl fmt::Display for Trailer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.crc;
        write!(f, "PAD {}, CRC {a:02x}{b:02x}{c:02x}{d:02x}", self.pad_len)
    }
}

/// A whole FPDU of a stream without markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fpdu<'a> {
    /// The length field.
    pub length: UlpduLength,
    /// The DDP segment: as many octets as `length` says.
    pub ulpdu: &'a [u8],
    /// PAD and CRC.
    pub trailer: Trailer,
}

impl<'a> Fpdu<'a> {
    /// Longest FPDU without markers.
    pub const MAX_LEN: usize = fpdu_len(u16::MAX);

    /// Looks for an FPDU at the front of a stream. Does not check the CRC.
    pub fn parse(stream: &'a [u8]) -> Result<Parsed<Self>, Malformed> {
        if stream.len() < UlpduLength::LEN {
            return Ok(Parsed::NeedMore(UlpduLength::LEN - stream.len()));
        }
        let mut reader = Reader::new(stream);
        let length = UlpduLength::parse(&mut reader)?;
        let len = length.fpdu_len();
        if stream.len() < len {
            return Ok(Parsed::NeedMore(len - stream.len()));
        }
        let ulpdu = reader.take(usize::from(length.get()))?;
        let trailer = Trailer::parse(length, &mut reader)?;
        Ok(Parsed::Complete {
            value: Self {
                length,
                ulpdu,
                trailer,
            },
            len,
        })
    }

    /// Writes the FPDU.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        self.length.emit(writer);
        writer.bytes(self.ulpdu);
        self.trailer.emit(writer);
    }

    /// Appends the FPDU to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let len = UlpduLength::LEN + self.ulpdu.len() + self.trailer.trailer_len();
        codec::append(out, len, |writer| self.emit(writer));
    }

    /// Checks the CRC.
    pub fn check_crc(&self) -> Result<(), Malformed> {
        self.trailer.check(
            Crc32c::new()
                .update(&self.length.to_bytes())
                .update(self.ulpdu),
        )
    }
}

impl fmt::Display for Fpdu<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FPDU: {}, {}", self.length, self.trailer)
    }
}

#[cfg(test)]
mod tests;
