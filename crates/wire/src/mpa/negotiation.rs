//! MPA request and reply frames (RFC 5044 §7.1), with the words of RFC 6581 §9.
//!
//! ```text
//!  0                16      17      18            20
//! | key (16 octets) | flags | rev   | PD length   | [IRD word | ORD word] private data
//!                     M C R S res                    present if S, part of PD length
//! ```

use std::fmt;

use crate::codec::{self, Malformed, Parsed, Reader, Writer};

/// Most private data that a frame may carry, enhanced words included (RFC 5044 §7.1.1).
pub const MAX_PRIVATE_DATA: usize = 512;

/// Most private data that Linux accepts, enhanced words included (`MPA_MAX_PRIVDATA`).
pub const MAX_PRIVATE_DATA_LINUX: usize = 256;

/// Most private data of the application's that any known peer can take in an enhanced frame:
/// Linux siw keeps the length that it sends, words included, in 8 bits.
pub const MAX_PRIVATE_DATA_PORTABLE: usize = 251;

/// IRD or ORD value of a sender that leaves its negotiation to the application (RFC 6581 §9).
pub const IRD_ORD_NOT_NEGOTIATED: u16 = 0x3fff;

/// Highest IRD or ORD that is a number of outstanding reads.
pub const IRD_ORD_MAX: u16 = IRD_ORD_NOT_NEGOTIATED - 1;

/// Length of the key.
const KEY_LEN: usize = 16;

const FLAG_MARKERS: u8 = 0x80;
const FLAG_CRC: u8 = 0x40;
const FLAG_REJECT: u8 = 0x20;
const FLAG_ENHANCED: u8 = 0x10;

/// Which of the two frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MpaKind {
    /// The initiator's frame.
    Request,
    /// The responder's frame.
    Reply,
}

impl MpaKind {
    /// The octets that a frame of this kind starts with.
    pub const fn key(self) -> &'static [u8; KEY_LEN] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

impl fmt::Display for MpaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "MPA request",
            Self::Reply => "MPA reply",
        })
    }
}

/// An MPA request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpaFrame<'a> {
    /// Request or reply.
    pub kind: MpaKind,
    /// M: the sender wants markers in what it *receives*.
    pub markers: bool,
    /// C: the sender wants CRCs; they are used in both directions if either side wants them.
    pub crc: bool,
    /// R: the connection is refused. Means nothing in a request.
    pub rejected: bool,
    /// The remaining flag bits (0x1f), which have no meaning for us. The bit of S (0x10) is
    /// among them only in a frame of revision 0 or 1.
    pub reserved: u8,
    /// Protocol revision: 0 before RFC 5044, 1 by it, 2 since RFC 6581.
    pub revision: u8,
    /// The words that S announces; only since revision 2.
    pub enhanced: Option<Enhanced>,
    /// What the application sends along, without the enhanced words.
    pub private_data: &'a [u8],
}

impl<'a> MpaFrame<'a> {
    /// Length of the fixed part, up to and including the private data's length.
    pub const LEN: usize = 20;

    /// Longest frame.
    pub const MAX_LEN: usize = Self::LEN + MAX_PRIVATE_DATA;

    /// The revision of RFC 6581, the first whose frames may be enhanced.
    pub const REVISION: u8 = 2;

    /// A frame of RFC 6581 that asks for neither markers nor CRCs and has no private data.
    pub const fn new(kind: MpaKind, enhanced: Enhanced) -> Self {
        Self {
            kind,
            markers: false,
            crc: false,
            rejected: false,
            reserved: 0,
            revision: Self::REVISION,
            enhanced: Some(enhanced),
            private_data: &[],
        }
    }

    /// Looks for a frame of the `expected` kind at the front of a stream.
    ///
    /// Octets that can no longer become the expected key are refused at once, however few there
    /// are: a peer that speaks another protocol may never send 16 of them.
    pub fn parse(expected: MpaKind, stream: &'a [u8]) -> Result<Parsed<Self>, Malformed> {
        let key = expected.key();
        let compared = stream.len().min(KEY_LEN);
        if stream[..compared] != key[..compared] {
            return Err(Malformed::MpaKey);
        }
        let mut reader = Reader::new(&stream[compared..]);
        if stream.len() < Self::LEN {
            return Ok(Parsed::NeedMore(Self::LEN - stream.len()));
        }
        let flags = reader.u8()?;
        let revision = reader.u8()?;
        let private_data_len = usize::from(reader.u16()?);
        if private_data_len > MAX_PRIVATE_DATA {
            return Err(Malformed::MpaPrivateDataTooLong);
        }
        let is_enhanced = flags & FLAG_ENHANCED != 0 && revision >= Self::REVISION;
        if is_enhanced && private_data_len < Enhanced::LEN {
            return Err(Malformed::MpaEnhancedTooShort);
        }
        let missing = private_data_len.saturating_sub(reader.remaining());
        if missing > 0 {
            return Ok(Parsed::NeedMore(missing));
        }
        let mut body = Reader::new(reader.take(private_data_len)?);
        let enhanced = if is_enhanced {
            Some(Enhanced::parse(&mut body)?)
        } else {
            None
        };
        let known = FLAG_MARKERS | FLAG_CRC | FLAG_REJECT;
        let frame = Self {
            kind: expected,
            markers: flags & FLAG_MARKERS != 0,
            crc: flags & FLAG_CRC != 0,
            rejected: flags & FLAG_REJECT != 0,
            reserved: flags & !known & !if is_enhanced { FLAG_ENHANCED } else { 0 },
            revision,
            enhanced,
            private_data: body.rest(),
        };
        Ok(Parsed::Complete {
            value: frame,
            len: Self::LEN + private_data_len,
        })
    }

    /// Writes the frame.
    ///
    /// # Panics
    /// If the private data exceeds [`MAX_PRIVATE_DATA`], enhanced words included.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        let private_data_len = self.private_data_len();
        assert!(
            private_data_len <= MAX_PRIVATE_DATA,
            "{private_data_len} octets of private data"
        );
        writer.bytes(self.kind.key());
        writer.u8(self.flags());
        writer.u8(self.revision);
        writer.u16(u16::try_from(private_data_len).unwrap_or(u16::MAX));
        if let Some(enhanced) = self.enhanced {
            enhanced.emit(writer);
        }
        writer.bytes(self.private_data);
    }

    /// Appends the frame to `out`.
    ///
    /// # Panics
    /// As [`emit`](Self::emit).
    pub fn append_to(&self, out: &mut Vec<u8>) {
        codec::append(out, self.frame_len(), |writer| self.emit(writer));
    }

    /// Length of this frame on the wire.
    pub const fn frame_len(&self) -> usize {
        Self::LEN + self.private_data_len()
    }

    /// What the frame's length field counts.
    const fn private_data_len(&self) -> usize {
        let words = if self.enhanced.is_some() {
            Enhanced::LEN
        } else {
            0
        };
        words + self.private_data.len()
    }

    fn flags(&self) -> u8 {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        flag(self.markers, FLAG_MARKERS)
            | flag(self.crc, FLAG_CRC)
            | flag(self.rejected, FLAG_REJECT)
            | flag(self.enhanced.is_some(), FLAG_ENHANCED)
            | (self.reserved & !(FLAG_MARKERS | FLAG_CRC | FLAG_REJECT))
    }
}

impl fmt::Display for MpaFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rev {}", self.kind, self.revision)?;
        for (set, name) in [
            (self.markers, "markers"),
            (self.crc, "CRC"),
            (self.rejected, "rejected"),
        ] {
            if set {
                write!(f, " {name}")?;
            }
        }
        if self.reserved != 0 {
            write!(f, " reserved {:#04x}", self.reserved)?;
        }
        if let Some(enhanced) = self.enhanced {
            write!(f, " {enhanced}")?;
        }
        write!(f, ", {} octets of private data", self.private_data.len())
    }
}

/// The two words of RFC 6581 §9: depths for RDMA Reads, and how the initiator tells that it is
/// ready to receive (RTR) in the peer-to-peer model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Enhanced {
    /// Inbound reads that the sender of the frame can serve at a time. 14 bits.
    pub ird: u16,
    /// Outbound reads that the sender of the frame will have outstanding. 14 bits.
    pub ord: u16,
    /// A: the connection follows the peer-to-peer model, the initiator sends an RTR indication.
    pub peer_to_peer: bool,
    /// B: a zero-length Send can be that indication.
    pub rtr_send: bool,
    /// C: a zero-length RDMA Write can be that indication.
    pub rtr_write: bool,
    /// D: a zero-length RDMA Read can be that indication.
    pub rtr_read: bool,
}

impl Enhanced {
    /// Length of the words.
    pub const LEN: usize = 4;

    /// Reads the words.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (peer_to_peer, rtr_send, ird) = split_word(reader.u16()?);
        let (rtr_write, rtr_read, ord) = split_word(reader.u16()?);
        Ok(Self {
            ird,
            ord,
            peer_to_peer,
            rtr_send,
            rtr_write,
            rtr_read,
        })
    }

    /// Writes the words. A depth that does not fit its 14 bits becomes [`IRD_ORD_MAX`].
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u16(join_word(self.peer_to_peer, self.rtr_send, self.ird));
        writer.u16(join_word(self.rtr_write, self.rtr_read, self.ord));
    }

    /// The octets of the words.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Enhanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, depth) in [("IRD", self.ird), (" ORD", self.ord)] {
            if depth == IRD_ORD_NOT_NEGOTIATED {
                write!(f, "{name} not negotiated")?;
            } else {
                write!(f, "{name} {depth}")?;
            }
        }
        for (set, name) in [
            (self.peer_to_peer, "peer-to-peer"),
            (self.rtr_send, "RTR-Send"),
            (self.rtr_write, "RTR-Write"),
            (self.rtr_read, "RTR-Read"),
        ] {
            if set {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

/// The two flags and the depth of one word.
const fn split_word(word: u16) -> (bool, bool, u16) {
    (word & 0x8000 != 0, word & 0x4000 != 0, word & 0x3fff)
}

const fn join_word(high: bool, low: bool, depth: u16) -> u16 {
    let depth = if depth > IRD_ORD_NOT_NEGOTIATED {
        IRD_ORD_MAX
    } else {
        depth
    };
    (if high { 0x8000 } else { 0 }) | (if low { 0x4000 } else { 0 }) | depth
}

#[cfg(test)]
mod tests;
