//! FPDUs that TCP has not taken, as octets and in words.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use softverbs_proto::memory::Memory as _;
use softverbs_proto::transmit::{Piece, TxBatch};
use softverbs_wire::ddp::{DdpHeader, UntaggedHeader};
use softverbs_wire::rdmap::Opcode;

use super::tcp::{Frame, Part, drop_first, first_parts};
use crate::inbox::Inbox;

/// Octets of frames, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Outgoing {
    pub(super) octets: Vec<u8>,
    pub(super) parts: VecDeque<Part>,
}

impl Hash for Outgoing {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.octets.hash(state);
    }
}

impl Outgoing {
    /// A frame of the start-up.
    pub(super) fn start_up(label: &str, octets: Vec<u8>) -> Self {
        let frame = Frame {
            label: label.to_owned(),
            len: octets.len(),
            is_fpdu: false,
        };
        let parts = if octets.is_empty() {
            VecDeque::new()
        } else {
            [Part::whole(frame)].into()
        };
        Self { octets, parts }
    }

    /// Appends the frames of a batch.
    pub(super) fn append(&mut self, batch: &TxBatch, memory: &Inbox) {
        let start = self.octets.len();
        for piece in batch.pieces() {
            match *piece {
                Piece::Scratch { start, len } => {
                    let octets = &batch.scratch()[start..start + len];
                    self.octets.extend_from_slice(octets);
                }
                Piece::Memory { key, addr, len } => {
                    // Nothing of the model is sent from registered memory.
                    let _ = memory.append(key, addr, len, &mut self.octets);
                }
            }
        }
        let mut from = 0;
        for &end in batch.frame_ends() {
            let frame = Frame {
                label: label(&self.octets[start + from..start + end]),
                len: end - from,
                is_fpdu: true,
            };
            self.parts.push_back(Part::whole(frame));
            from = end;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.octets.is_empty()
    }

    /// Takes the first octets away; how many Sends ended among them.
    pub(super) fn advance(&mut self, octets: usize) -> u8 {
        let taken = first_parts(&self.parts, octets);
        let sends = taken
            .iter()
            .filter(|part| part.is_end() && part.frame.label.starts_with(SEND));
        let sends = u8::try_from(sends.count()).unwrap_or(u8::MAX);
        drop_first(&mut self.parts, octets);
        self.octets.drain(..octets);
        sends
    }

    /// What is left of a frame that TCP has taken in part; the other frames are forgotten.
    pub(super) fn rest_of_frame(&mut self) -> Self {
        let started = self.parts.front().filter(|part| part.from > 0);
        let left = started.map_or(0, Part::len);
        let rest = Self {
            octets: self.octets[..left].to_vec(),
            parts: first_parts(&self.parts, left).into(),
        };
        *self = Self::default();
        rest
    }
}

const SEND: &str = "SEND";

/// What an FPDU is. One with markers begins with one, since each of them is shorter than the way to
/// the second.
fn label(fpdu: &[u8]) -> String {
    const LENGTH: usize = 2;
    const MARKER: usize = 4;
    let marked = fpdu.starts_with(&[0; MARKER]);
    let ulpdu = &fpdu[LENGTH + if marked { MARKER } else { 0 }..];
    let Ok(header) = DdpHeader::parse(&mut softverbs_wire::codec::Reader::new(ulpdu)) else {
        return "?".to_owned();
    };
    match header.control().opcode() {
        Opcode::WRITE => "WRITE".to_owned(),
        Opcode::READ_REQUEST => "READ REQUEST".to_owned(),
        Opcode::READ_RESPONSE => "READ RESPONSE".to_owned(),
        Opcode::TERMINATE => "TERMINATE".to_owned(),
        opcode if opcode.is_send() => {
            let content = ulpdu.get(UntaggedHeader::LEN).copied().unwrap_or_default();
            format!("{SEND} {content}")
        }
        opcode => opcode.to_string(),
    }
}
