//! The header of an untagged segment (RFC 5041 §4.3).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ddp::Control;
use crate::num::{MessageOffset, Msn, QueueNumber, Stag};
use crate::rdmap::Opcode;

/// Header of a segment that goes to the buffer whose turn it is on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UntaggedHeader {
    /// The control word; its T is clear.
    pub control: Control,
    /// The tag that a Send with Invalidate revokes; reserved in every other message (RFC 5040
    /// §4.1), where it is zero when sent and ignored when received.
    pub invalidate_stag: Stag,
    /// The queue.
    pub queue: QueueNumber,
    /// Which message of the queue.
    pub msn: Msn,
    /// Where in the message this segment's payload starts.
    pub mo: MessageOffset,
}

impl UntaggedHeader {
    /// Length of the header, control word included.
    pub const LEN: usize = Control::LEN + 16;

    /// A header of the current versions that invalidates nothing.
    pub const fn new(
        opcode: Opcode,
        last: bool,
        queue: QueueNumber,
        msn: Msn,
        mo: MessageOffset,
    ) -> Self {
        let control = Control::untagged(opcode, last);
        Self {
            control,
            invalidate_stag: Stag::new(0),
            queue,
            msn,
            mo,
        }
    }

    /// Reads the header; one with T set is refused.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        let control = Control::parse(&mut header)?;
        if control.is_tagged() {
            return Err(Malformed::DdpModel);
        }
        Ok(Self {
            control,
            invalidate_stag: Stag::new(header.u32()?),
            queue: QueueNumber::new(header.u32()?),
            msn: Msn::new(header.u32()?),
            mo: MessageOffset::new(header.u32()?),
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        debug_assert!(!self.control.is_tagged());
        self.control.emit(writer);
        writer.u32(self.invalidate_stag.get());
        writer.u32(self.queue.get());
        writer.u32(self.msn.get());
        writer.u32(self.mo.get());
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for UntaggedHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, QN {} MSN {} MO {}",
            self.control, self.queue, self.msn, self.mo
        )?;
        if self.control.opcode().invalidates() {
            write!(f, " invalidates {}", self.invalidate_stag)?;
        }
        Ok(())
    }
}
