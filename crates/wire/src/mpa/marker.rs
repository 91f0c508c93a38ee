//! Markers: pointers that a receiver may ask to have in its stream (RFC 5044 §4.3).
//!
//! One stands at every multiple of 512 octets of the TCP stream, counted from the first octet of
//! the first FPDU and counting the markers themselves. It tells how far back the current FPDU
//! began, so that a receiver that lost track finds its place again. A marker that is due between
//! two FPDUs belongs to the second; the CRC covers markers, a marker just before the CRC included.
//!
//! Positions here are in that stream. They are multiples of 4 wherever an FPDU begins, since
//! FPDUs and markers are; therefore a marker never splits the length field or the CRC.

use std::fmt;
use std::ops::Range;

use crate::codec::{self, Malformed, Parsed, Reader, Writer};
use crate::crc32c::Crc32c;
use crate::mpa::fpdu::UlpduLength;

/// Octets of stream from the start of one marker to the start of the next.
pub const SPACING: u32 = 512;

/// The low bits of a pointer, which a receiver takes as zero whatever they are.
const POINTER_IGNORED: u16 = 0b11;

/// One marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Zero when sent, ignored when received.
    pub reserved: u16,
    /// FPDUPTR: octets of stream from the length field of the FPDU to this marker.
    pub pointer: u16,
}

impl Marker {
    /// Length of a marker.
    pub const LEN: usize = 4;

    /// A marker this far behind the length field of its FPDU.
    pub const fn new(pointer: u16) -> Self {
        Self {
            reserved: 0,
            pointer,
        }
    }

    /// Reads a marker.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut marker = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            reserved: marker.u16()?,
            pointer: marker.u16()?,
        })
    }

    /// Writes the marker.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u16(self.reserved);
        writer.u16(self.pointer);
    }

    /// The octets of the marker.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }

    /// Whether this marker can stand where `expected` is due.
    pub const fn agrees_with(self, expected: Self) -> bool {
        self.pointer & !POINTER_IGNORED == expected.pointer & !POINTER_IGNORED
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "marker, FPDU began {} octets before", self.pointer)
    }
}

/// Octets from `position` to the next marker; 0 where one is due.
#[expect(clippy::cast_possible_truncation, reason = "less than SPACING")]
pub const fn until_next(position: u64) -> usize {
    (position.wrapping_neg() % SPACING as u64) as usize
}

/// How long the FPDU that begins at `position` becomes by its markers. `fpdu_len` is its length
/// without them.
pub fn marked_len(position: u64, fpdu_len: usize) -> usize {
    Pieces::new(position, fpdu_len)
        .map(|piece| piece.len())
        .sum()
}

/// A part of an FPDU with markers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A marker.
    Marker(Marker),
    /// These octets of the FPDU without markers.
    Octets(Range<usize>),
}

impl Piece {
    /// How many octets of stream the part takes.
    pub fn len(&self) -> usize {
        match self {
            Self::Marker(_) => Marker::LEN,
            Self::Octets(range) => range.len(),
        }
    }

    /// Never: an FPDU has no empty parts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The parts of an FPDU with markers, in order. Knows positions and lengths only, so that a sender
/// can gather an FPDU from wherever its octets are.
#[derive(Clone, Debug)]
pub struct Pieces {
    /// Stream position of the next part.
    position: u64,
    /// Stream position of the length field.
    length_field: u64,
    /// Octets of the FPDU that are behind us.
    done: usize,
    fpdu_len: usize,
}

impl Pieces {
    /// The parts of an FPDU whose first octet, or the marker before it, is at `position`, and
    /// which is `fpdu_len` octets long without markers.
    pub const fn new(position: u64, fpdu_len: usize) -> Self {
        let before = if until_next(position) == 0 {
            Marker::LEN as u64
        } else {
            0
        };
        Self {
            position,
            length_field: position.wrapping_add(before),
            done: 0,
            fpdu_len,
        }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.done == self.fpdu_len {
            return None;
        }
        let until_marker = until_next(self.position);
        let piece = if until_marker == 0 {
            // Saturating: the marker in front of the length field counts as at distance 0.
            let distance = self.position.saturating_sub(self.length_field);
            // A pointer has 16 bits. No FPDU made for `mulpdu_with_markers` outgrows them.
            Piece::Marker(Marker::new((distance & 0xffff) as u16))
        } else {
            let end = self.fpdu_len.min(self.done + until_marker);
            let octets = self.done..end;
            self.done = end;
            Piece::Octets(octets)
        };
        self.position = self.position.wrapping_add(piece.len() as u64);
        Some(piece)
    }
}

/// Appends an FPDU with markers to `out`.
///
/// `covered` is the FPDU from the length field to the end of PAD; `position` is where in the
/// stream the first appended octet will be. The CRC field is computed, or zero without `crc`.
pub fn insert(position: u64, covered: &[u8], crc: bool, out: &mut Vec<u8>) {
    let start = out.len();
    for piece in Pieces::new(position, covered.len() + Crc32c::LEN) {
        match piece {
            Piece::Marker(marker) => out.extend_from_slice(&marker.to_bytes()),
            // The last piece with covered octets may reach into the CRC, or be nothing else.
            Piece::Octets(range) => {
                let end = range.end.min(covered.len());
                out.extend_from_slice(&covered[range.start.min(end)..end]);
            }
        }
    }
    let crc = if crc {
        Crc32c::new().update(&out[start..])
    } else {
        Crc32c::new()
    };
    out.extend_from_slice(&crc.to_wire());
}

/// An FPDU that [`strip`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripped {
    /// The CRC of what the CRC field covers, markers included.
    pub computed: Crc32c,
    /// The CRC field.
    pub received: [u8; Crc32c::LEN],
}

impl Stripped {
    /// Compares the two CRCs.
    pub fn check_crc(&self) -> Result<(), Malformed> {
        if self.computed.to_wire() == self.received {
            Ok(())
        } else {
            Err(Malformed::Crc)
        }
    }
}

/// Looks for an FPDU with markers at the front of a stream, and appends it without them to `out`.
///
/// `position` is the stream position of the first octet of `stream`, where an FPDU begins. A
/// marker that does not point to the length field is refused. While octets are missing, `out` stays
/// as it is. The CRC is left to the caller, who knows whether CRCs are in use.
pub fn strip(
    position: u64,
    stream: &[u8],
    out: &mut Vec<u8>,
) -> Result<Parsed<Stripped>, Malformed> {
    let length_at = if until_next(position) == 0 {
        Marker::LEN
    } else {
        0
    };
    let head = length_at + UlpduLength::LEN;
    if stream.len() < head {
        return Ok(Parsed::NeedMore(head - stream.len()));
    }
    let length = UlpduLength::parse(&mut Reader::new(&stream[length_at..]))?;
    let len = marked_len(position, length.fpdu_len());
    // Markers that are there already are looked at before the rest is waited for.
    check_markers(position, stream, length)?;
    if stream.len() < len {
        return Ok(Parsed::NeedMore(len - stream.len()));
    }
    let mut reader = Reader::new(&stream[..len]);
    for piece in Pieces::new(position, length.fpdu_len()) {
        let octets = reader.take(piece.len())?;
        if matches!(piece, Piece::Octets(_)) {
            out.extend_from_slice(octets);
        }
    }
    let (covered, received) = stream[..len]
        .split_last_chunk()
        .ok_or(Malformed::Truncated)?;
    let computed = Crc32c::new().update(covered);
    Ok(Parsed::Complete {
        value: Stripped {
            computed,
            received: *received,
        },
        len,
    })
}

/// Checks those markers of an FPDU that have arrived.
fn check_markers(position: u64, stream: &[u8], length: UlpduLength) -> Result<(), Malformed> {
    let mut reader = Reader::new(stream);
    for piece in Pieces::new(position, length.fpdu_len()) {
        let Ok(octets) = reader.take(piece.len()) else {
            break;
        };
        if let Piece::Marker(expected) = piece
            && !Marker::parse(&mut Reader::new(octets))?.agrees_with(expected)
        {
            return Err(Malformed::MarkerPointer);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
