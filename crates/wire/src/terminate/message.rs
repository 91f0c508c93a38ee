//! The body of a Terminate message, after its untagged header (RFC 5040 §4.8).
//!
//! ```text
//!   0       4       8          16 17 18           32           48
//! | layer | EType | error code | M | D | R | rsvd | [DDP segment length | DDP header | RDMAP header]
//! ```
//!
//! M, D, R say which of the last three are meaningful or there. All three describe the segment
//! that caused the error.

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ddp::DdpHeader;
use crate::rdmap::ReadRequest;
use crate::terminate::{TerminateCode, TerminateTriple};

const LENGTH_VALID: u16 = 0x8000;
const DDP_HEADER: u16 = 0x4000;
const RDMAP_HEADER: u16 = 0x2000;
const RESERVED: u16 = 0x1fff;

/// Why the sender ends the stream, and which segment was the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terminate {
    /// The error.
    pub code: TerminateCode,
    /// The 13 reserved bits.
    pub reserved: u16,
    length_valid: bool,
    /// There if M or D is set.
    length: u16,
    ddp: Option<DdpHeader>,
    rdmap: Option<ReadRequest>,
}

/// How the sender of a Terminate message laid out its first octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TerminateLayout {
    /// As RFC 5040 says.
    Rfc,
    /// As Linux siw does: layer and type swapped in the first octet, M, D and R in the lowest
    /// bits of the third, last one first.
    Siw,
}

impl Terminate {
    /// Length of the part that is always there.
    pub const LEN: usize = 4;

    /// Length of the longest message.
    pub const MAX_LEN: usize = Self::LEN + 2 + DdpHeader::MAX_LEN + ReadRequest::LEN;

    /// A message that tells the error alone.
    pub const fn new(code: TerminateCode) -> Self {
        Self {
            code,
            reserved: 0,
            length_valid: false,
            length: 0,
            ddp: None,
            rdmap: None,
        }
    }

    /// Adds the segment that caused the error: the length of its ULPDU, and its header (M and D).
    #[must_use]
    pub const fn with_segment(self, ulpdu_len: u16, header: DdpHeader) -> Self {
        Self {
            length_valid: true,
            length: ulpdu_len,
            ddp: Some(header),
            ..self
        }
    }

    /// Adds the read request that caused the error (R).
    #[must_use]
    pub const fn with_read_request(self, request: ReadRequest) -> Self {
        Self {
            rdmap: Some(request),
            ..self
        }
    }

    /// Length of the ULPDU that caused the error, if the sender vouches for it (M).
    pub const fn segment_len(&self) -> Option<u16> {
        if self.length_valid {
            Some(self.length)
        } else {
            None
        }
    }

    /// DDP header of the segment that caused the error.
    pub const fn ddp_header(&self) -> Option<DdpHeader> {
        self.ddp
    }

    /// The read request that caused the error.
    pub const fn read_request(&self) -> Option<ReadRequest> {
        self.rdmap
    }

    /// Length of this message on the wire.
    pub const fn message_len(&self) -> usize {
        let mut len = Self::LEN;
        if self.has_length_field() {
            len += 2;
        }
        if let Some(header) = self.ddp {
            len += header.header_len();
        }
        if self.rdmap.is_some() {
            len += ReadRequest::LEN;
        }
        len
    }

    /// Reads a message in the layout of the RFC.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut ahead = reader.clone();
        let [first, code] = ahead.array()?;
        let flags = ahead.u16()?;
        let triple = TerminateTriple::new(first >> 4, first, code);
        let message = Self::parse_segment(triple, flags, &mut ahead)?;
        *reader = ahead;
        Ok(message)
    }

    /// Reads a message in whichever layout it is. For a siw layout the value is what the sender
    /// meant, not what a reader of the RFC would see, and the reserved bits are dropped.
    ///
    /// The third octet tells the layouts apart when it has any of M, D and R. Without, only the
    /// error itself is left to go by, and an error that makes sense both ways is taken as the RFC
    /// defines it: good enough for the diagnostics that a received Terminate is for.
    pub fn parse_any(reader: &mut Reader<'_>) -> Result<(Self, TerminateLayout), Malformed> {
        let mut ahead = reader.clone();
        let [first, code, siw_flags, _] = ahead.array()?;
        let rfc = TerminateTriple::new(first >> 4, first, code);
        let swapped = TerminateTriple::new(first, first >> 4, code);
        let layout = if siw_flags & 0xe0 != 0 {
            TerminateLayout::Rfc
        } else if siw_flags & 0x07 != 0 {
            TerminateLayout::Siw
        } else if is_known(rfc) || !is_known(swapped) {
            TerminateLayout::Rfc
        } else {
            TerminateLayout::Siw
        };
        if layout == TerminateLayout::Rfc {
            return Self::parse(reader).map(|message| (message, layout));
        }
        let flag = |siw: u8, ours: u16| if siw_flags & siw != 0 { ours } else { 0 };
        let flags = flag(0x01, LENGTH_VALID) | flag(0x02, DDP_HEADER) | flag(0x04, RDMAP_HEADER);
        let message = Self::parse_segment(swapped, flags, &mut ahead)?;
        *reader = ahead;
        Ok((message, layout))
    }

    /// What follows the fixed part; the two layouts agree on it.
    fn parse_segment(
        triple: TerminateTriple,
        flags: u16,
        reader: &mut Reader<'_>,
    ) -> Result<Self, Malformed> {
        let length_valid = flags & LENGTH_VALID != 0;
        let has_ddp = flags & DDP_HEADER != 0;
        // The length field is there with D even if M says that its content is not valid.
        let length = if length_valid || has_ddp {
            reader.u16()?
        } else {
            0
        };
        let ddp = if has_ddp {
            Some(DdpHeader::parse(reader)?)
        } else {
            None
        };
        let rdmap = if flags & RDMAP_HEADER != 0 {
            Some(ReadRequest::parse(reader)?)
        } else {
            None
        };
        let code = TerminateCode::from_triple(triple);
        Ok(Self {
            code,
            reserved: flags & RESERVED,
            length_valid,
            length,
            ddp,
            rdmap,
        })
    }

    /// Writes the message, in the layout of the RFC.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        let triple = self.code.to_triple();
        writer.u8(triple.layer << 4 | triple.etype & 0x0f);
        writer.u8(triple.code);
        let flag = |set: bool, bit: u16| if set { bit } else { 0 };
        writer.u16(
            flag(self.length_valid, LENGTH_VALID)
                | flag(self.ddp.is_some(), DDP_HEADER)
                | flag(self.rdmap.is_some(), RDMAP_HEADER)
                | (self.reserved & RESERVED),
        );
        if self.has_length_field() {
            writer.u16(self.length);
        }
        if let Some(header) = self.ddp {
            header.emit(writer);
        }
        if let Some(request) = self.rdmap {
            request.emit(writer);
        }
    }

    /// Appends the message to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        codec::append(out, self.message_len(), |writer| self.emit(writer));
    }

    const fn has_length_field(&self) -> bool {
        self.length_valid || self.ddp.is_some()
    }
}

const fn is_known(triple: TerminateTriple) -> bool {
    !matches!(
        TerminateCode::from_triple(triple),
        TerminateCode::Unknown(_)
    )
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        if let Some(len) = self.segment_len() {
            write!(f, ", segment of {len} octets")?;
        }
        if let Some(header) = self.ddp {
            write!(f, ", {header}")?;
        }
        if let Some(request) = self.rdmap {
            write!(f, ", {request}")?;
        }
        Ok(())
    }
}
