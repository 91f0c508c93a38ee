//! Messages to FPDUs: length field, header, payload, PAD, CRC, markers.

use softverbs_wire::codec::Writer;
use softverbs_wire::crc32c::Crc32c;
use softverbs_wire::ddp::DdpHeader;
use softverbs_wire::mpa::fpdu::{MIN_MULPDU, Trailer, UlpduLength, mulpdu, mulpdu_with_markers};
use softverbs_wire::mpa::marker;
use softverbs_wire::num::{Lkey, Rkey};
use softverbs_wire::rdmap::AtomicRequest;
use softverbs_wire::terminate::Terminate;

use super::send_queue::parts;
use super::stream::FpduSizing;
use crate::memory::{Access, Memory, MemoryFault};
use crate::transmit::TxBatch;
use crate::wr::Sge;

/// Payload of large FPDUs is a multiple of this, so that copies at the receiver stay aligned.
const PAYLOAD_ALIGNMENT: usize = 64;

/// From this size on payload is cut at [`PAYLOAD_ALIGNMENT`].
const LARGE_PAYLOAD: usize = 4096;

/// Headers of a segment, and the body of those messages that are all header.
#[derive(Debug)]
pub(super) struct Head {
    octets: [u8; Self::MAX],
    len: usize,
}

impl Head {
    /// The longest are those of an Atomic Request and of a Terminate.
    const MAX: usize = DdpHeader::MAX_LEN
        + if AtomicRequest::LEN > Terminate::MAX_LEN {
            AtomicRequest::LEN
        } else {
            Terminate::MAX_LEN
        };

    /// What `emit` writes.
    pub(super) fn new(emit: impl FnOnce(&mut Writer<'_>)) -> Self {
        let mut octets = [0; Self::MAX];
        let mut writer = Writer::new(&mut octets);
        emit(&mut writer);
        let len = writer.written();
        Self { octets, len }
    }

    fn octets(&self) -> &[u8] {
        &self.octets[..self.len]
    }
}

/// Where the payload of a segment comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    /// There is none.
    None,
    /// Captured when the request was posted.
    Inline(&'a [u8]),
    /// Memory of a local request.
    Local {
        sges: &'a [Sge],
        offset: u64,
        len: usize,
    },
    /// Memory that the peer reads.
    Remote { key: Rkey, addr: u64, len: usize },
}

impl Source<'_> {
    const fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Inline(octets) => octets.len(),
            Self::Local { len, .. } | Self::Remote { len, .. } => *len,
        }
    }
}

/// Makes FPDUs.
#[derive(Clone, Debug, Hash)]
pub(super) struct Framer {
    crc: bool,
    markers: bool,
    copy_limit: usize,
    max_ulpdu: usize,
    /// Cut payload at [`PAYLOAD_ALIGNMENT`].
    align: bool,
    /// Octets of the stream so far, markers included.
    position: u64,
    /// An FPDU before its markers are inserted.
    unmarked: Vec<u8>,
}

impl Framer {
    pub(super) const fn new(copy_limit: u32) -> Self {
        Self {
            crc: true,
            markers: false,
            copy_limit: copy_limit as usize,
            max_ulpdu: MIN_MULPDU as usize,
            align: false,
            position: 0,
            unmarked: Vec::new(),
        }
    }

    pub(super) fn attach(&mut self, crc: bool, markers: bool, sizing: FpduSizing) {
        self.crc = crc;
        self.markers = markers;
        let max_ulpdu = match sizing {
            FpduSizing::Largest { limit } => {
                // A marker's pointer has 16 bits too.
                let most = if markers {
                    mulpdu_with_markers(0xffff)
                } else {
                    u16::MAX
                };
                limit.clamp(MIN_MULPDU, most)
            }
            FpduSizing::MpaAware { emss } if markers => mulpdu_with_markers(emss.into()),
            FpduSizing::MpaAware { emss } => mulpdu(emss.into()),
        };
        self.max_ulpdu = usize::from(max_ulpdu);
        self.align = matches!(sizing, FpduSizing::Largest { .. });
    }

    /// Octets of the stream so far.
    pub(super) const fn position(&self) -> u64 {
        self.position
    }

    /// The last so many octets are taken back.
    pub(super) const fn rewind(&mut self, octets: usize) {
        self.position = self.position.saturating_sub(octets as u64);
    }

    /// Most payload of a segment that is not its message's last, with this much header. A
    /// multiple of 4, so that only last segments have PAD.
    pub(super) const fn max_payload(&self, header_len: usize) -> usize {
        let room = self.max_ulpdu - header_len;
        if self.align && room >= LARGE_PAYLOAD {
            room - room % PAYLOAD_ALIGNMENT
        } else {
            room - room % 4
        }
    }

    /// Appends one FPDU, or nothing if the payload's memory may not be touched.
    pub(super) fn emit<M: Memory>(
        &mut self,
        memory: &M,
        out: &mut TxBatch,
        head: &Head,
        payload: Source<'_>,
    ) -> Result<(), MemoryFault> {
        let head = head.octets();
        debug_assert!(head.len() + payload.len() <= usize::from(u16::MAX));
        let ulpdu_len = u16::try_from(head.len() + payload.len()).unwrap_or(u16::MAX);
        let length = UlpduLength::new(ulpdu_len);
        let mark = out.mark();
        let before = out.len();
        let result = if self.markers {
            self.emit_marked(memory, out, length, head, payload)
        } else {
            self.emit_plain(memory, out, length, head, payload)
        };
        match result {
            Ok(()) => {
                out.end_frame();
                self.position = self.position.wrapping_add((out.len() - before) as u64);
            }
            Err(_) => out.rewind(mark),
        }
        result
    }

    fn emit_plain<M: Memory>(
        &self,
        memory: &M,
        out: &mut TxBatch,
        length: UlpduLength,
        head: &[u8],
        payload: Source<'_>,
    ) -> Result<(), MemoryFault> {
        let mut crc = Crc32c::new();
        out.scratch_with(|scratch| {
            scratch.extend_from_slice(&length.to_bytes());
            scratch.extend_from_slice(head);
        });
        if self.crc {
            crc = crc.update(&length.to_bytes()).update(head);
        }
        if self.gathers(payload) {
            Self::gather(memory, out, payload)?;
        } else {
            let mut result = Ok(());
            out.scratch_with(|scratch| {
                result = copy(memory, payload, scratch, |piece| {
                    if self.crc {
                        crc = crc.update(piece);
                    }
                });
            });
            result?;
        }
        let trailer = if self.crc {
            Trailer::with_crc(length, crc)
        } else {
            Trailer::without_crc(length)
        };
        out.scratch_with(|scratch| trailer.append_to(scratch));
        Ok(())
    }

    /// Whether the payload goes out of its own memory, without a copy.
    const fn gathers(&self, payload: Source<'_>) -> bool {
        match payload {
            Source::None | Source::Inline(_) => false,
            // Nothing keeps the owner from changing what the peer reads while we send it, and
            // applications reuse the buffers of Sends and Writes too early: the CRC has to be
            // that of the octets sent, or a harmless race costs the connection. So it needs a
            // copy.
            Source::Local { len, .. } | Source::Remote { len, .. } => {
                len > self.copy_limit && !self.crc
            }
        }
    }

    fn gather<M: Memory>(
        memory: &M,
        out: &mut TxBatch,
        payload: Source<'_>,
    ) -> Result<(), MemoryFault> {
        match payload {
            Source::None | Source::Inline(_) => {}
            Source::Local { sges, offset, len } => {
                for (lkey, addr, len) in parts(sges, offset, len) {
                    let length = u32::try_from(len).unwrap_or(u32::MAX);
                    memory.check_local(&Sge { addr, length, lkey }, Access::empty())?;
                    out.memory(lkey, addr, len);
                }
            }
            Source::Remote { key, addr, len } => {
                memory.check_remote(key, addr, len as u64, Access::REMOTE_READ)?;
                out.memory(Lkey::new(key.get()), addr, len);
            }
        }
        Ok(())
    }

    fn emit_marked<M: Memory>(
        &mut self,
        memory: &M,
        out: &mut TxBatch,
        length: UlpduLength,
        head: &[u8],
        payload: Source<'_>,
    ) -> Result<(), MemoryFault> {
        let fpdu = &mut self.unmarked;
        fpdu.clear();
        fpdu.extend_from_slice(&length.to_bytes());
        fpdu.extend_from_slice(head);
        copy(memory, payload, fpdu, |_| {})?;
        fpdu.extend_from_slice(Trailer::without_crc(length).pad());
        out.scratch_with(|scratch| marker::insert(self.position, fpdu, self.crc, scratch));
        Ok(())
    }
}

/// Octets that are copied and summed at a time, while they are in the first cache.
const PIECE: usize = 8 << 10;

/// Appends a copy of the payload, and shows what was appended, piece by piece.
fn copy<M: Memory>(
    memory: &M,
    payload: Source<'_>,
    to: &mut Vec<u8>,
    mut shown: impl FnMut(&[u8]),
) -> Result<(), MemoryFault> {
    let mut append = |key, addr: u64, len| {
        for done in (0..len).step_by(PIECE) {
            let start = to.len();
            memory.append(key, addr + done as u64, PIECE.min(len - done), to)?;
            shown(&to[start..]);
        }
        Ok(())
    };
    match payload {
        Source::None | Source::Remote { len: 0, .. } => Ok(()),
        Source::Inline(octets) => {
            to.extend_from_slice(octets);
            shown(octets);
            Ok(())
        }
        Source::Local { sges, offset, len } => {
            parts(sges, offset, len).try_for_each(|(key, addr, len)| append(key, addr, len))
        }
        Source::Remote { key, addr, len } => {
            memory.check_remote(key, addr, len as u64, Access::REMOTE_READ)?;
            append(Lkey::new(key.get()), addr, len)
        }
    }
}
