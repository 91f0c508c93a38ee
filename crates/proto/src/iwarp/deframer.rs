//! Octets to FPDUs, in any split (RFC 5044 §4).
//!
//! An FPDU that lies whole in the input is checked first and placed then. Of one that does not,
//! the header is collected; it is checked before the first octet of payload is placed, and the
//! payload then goes to its place as it comes. Nothing else is buffered, but with markers, where
//! each FPDU is collected and stripped.

use softverbs_wire::codec::{Malformed, Parsed, Reader};
use softverbs_wire::crc32c::Crc32c;
use softverbs_wire::ddp::{Control, DdpHeader};
use softverbs_wire::mpa::fpdu::{Fpdu, Trailer, UlpduLength};
use softverbs_wire::mpa::marker::{self, Marker};
use softverbs_wire::num::Lkey;
use softverbs_wire::terminate::Terminate;

use super::inbound::Shape;
use super::stream::{DirectPieces, Stream};
use super::terminate::Offender;
use crate::fault::{Fault, PeerViolation};
use crate::memory::Memory;

/// Octets that are summed and copied at a time.
const PIECE: usize = 8 << 10;

/// Longest FPDU that is collected: that of a Terminate (an Atomic Request is as long).
const HEAD_MAX: usize =
    UlpduLength::LEN + DdpHeader::MAX_LEN + Terminate::MAX_LEN + Trailer::MAX_LEN;

/// Length field and control word: enough to know what is to be collected.
const FIRST: usize = UlpduLength::LEN + Control::LEN;

/// Where in an FPDU the next octet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// In what is collected, of which there will be `need` octets.
    Head { need: usize },
    /// In payload of which `left` octets are to come.
    Payload { left: usize },
    /// In payload that nobody wants: `deferred` ends the stream if the CRC is right.
    Skip { left: usize },
    /// In PAD and CRC, of which there will be `need` octets.
    Trailer { need: usize },
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Deframer {
    crc: bool,
    markers: bool,
    state: State,
    /// The head, and later the trailer, of the current FPDU.
    head: [u8; HEAD_MAX],
    filled: usize,
    length: UlpduLength,
    running: Crc32c,
    deferred: Option<Fault>,
    direct: DirectPieces,
    /// With markers: octets of the current FPDU, how many there have to be before the next look,
    /// and the FPDU without markers.
    marked: Vec<u8>,
    marked_need: usize,
    unmarked: Vec<u8>,
    position: u64,
}

impl Deframer {
    pub(super) fn new() -> Self {
        Self {
            crc: true,
            markers: false,
            state: State::Head { need: FIRST },
            head: [0; HEAD_MAX],
            filled: 0,
            length: UlpduLength::new(0),
            running: Crc32c::new(),
            deferred: None,
            direct: DirectPieces::new(),
            marked: Vec::new(),
            marked_need: 0,
            unmarked: Vec::new(),
            position: 0,
        }
    }

    pub(super) const fn attach(&mut self, crc: bool, markers: bool) {
        self.crc = crc;
        self.markers = markers;
    }

    /// Whether the octets so far end between two FPDUs.
    pub(super) fn at_boundary(&self) -> bool {
        matches!(self.state, State::Head { .. }) && self.filled == 0 && self.marked.is_empty()
    }

    /// The memory of the next octets, all of which are payload.
    pub(super) fn direct(&self) -> Option<&DirectPieces> {
        (!self.direct.is_empty()).then_some(&self.direct)
    }

    /// The stream has ended: nothing is placed any more.
    pub(super) fn stop(&mut self) {
        self.direct.clear();
    }

    /// Moves up to `need` octets in all to `head`; true once they are there.
    fn fill(&mut self, need: usize, rest: &mut &[u8]) -> bool {
        let take = (need - self.filled).min(rest.len());
        let (taken, after) = rest.split_at(take);
        self.head[self.filled..self.filled + take].copy_from_slice(taken);
        self.filled += take;
        *rest = after;
        self.filled == need
    }

    /// The payload of this FPDU goes on, or its trailer follows.
    const fn payload_left(&mut self, left: usize, skip: bool) {
        self.state = if left == 0 {
            self.filled = 0;
            State::Trailer {
                need: self.length.pad_len() + Crc32c::LEN,
            }
        } else if skip {
            State::Skip { left }
        } else {
            State::Payload { left }
        };
    }

    const fn next_fpdu(&mut self) {
        self.filled = 0;
        self.state = State::Head { need: FIRST };
        self.running = Crc32c::new();
    }
}

impl Stream {
    /// Takes octets; an error ends the stream.
    pub(super) fn receive<M: Memory>(&mut self, memory: &mut M, bytes: &[u8]) -> Result<(), Fault> {
        if self.rx.markers {
            return self.receive_marked(memory, bytes);
        }
        let mut rest = bytes;
        while !rest.is_empty() && self.is_receiving() {
            if self.rx.at_boundary()
                && let Parsed::Complete { value, len } = Fpdu::parse(rest)?
            {
                rest = &rest[len..];
                if self.rx.crc {
                    value.check_crc()?;
                }
                self.ulpdu(memory, value.length, value.ulpdu)?;
            } else {
                self.advance(memory, &mut rest)?;
            }
        }
        Ok(())
    }

    /// Takes octets of an FPDU that does not lie whole in the input, up to a change of state.
    fn advance<M: Memory>(&mut self, memory: &mut M, rest: &mut &[u8]) -> Result<(), Fault> {
        match self.rx.state {
            State::Head { need } => {
                if !self.rx.fill(need, rest) {
                    return Ok(());
                }
                if need == FIRST {
                    self.first_octets()
                } else {
                    self.head_complete(memory)
                }
            }
            State::Payload { left } => {
                let (payload, after) = rest.split_at(left.min(rest.len()));
                *rest = after;
                if self.rx.crc {
                    // Summed and copied piece by piece, while a piece is in the first cache.
                    for piece in payload.chunks(PIECE) {
                        self.rx.running = self.rx.running.update(piece);
                        self.place(memory, piece)?;
                    }
                } else {
                    self.place(memory, payload)?;
                }
                self.rx.payload_left(left - payload.len(), false);
                Ok(())
            }
            State::Skip { left } => {
                let (payload, after) = rest.split_at(left.min(rest.len()));
                *rest = after;
                self.rx.running = self.rx.running.update(payload);
                self.rx.payload_left(left - payload.len(), true);
                Ok(())
            }
            State::Trailer { need } => {
                if !self.rx.fill(need, rest) {
                    return Ok(());
                }
                if self.rx.crc {
                    let mut trailer = Reader::new(&self.rx.head[..need]);
                    Trailer::parse(self.rx.length, &mut trailer)?.check(self.rx.running)?;
                }
                self.rx.next_fpdu();
                match self.rx.deferred.take() {
                    Some(fault) => Err(fault),
                    None => self.finish(memory),
                }
            }
        }
    }

    /// Length field and control word are there: how much is to be collected?
    fn first_octets(&mut self) -> Result<(), Fault> {
        let mut reader = Reader::new(&self.rx.head[..FIRST]);
        self.rx.length = UlpduLength::parse(&mut reader)?;
        let ulpdu_len = self.rx.length.get();
        self.offender = Offender {
            ulpdu_len,
            ..Offender::default()
        };
        if usize::from(ulpdu_len) < Control::LEN {
            // Too short for any header, but if its CRC is wrong, that is the error.
            let need = self.rx.length.fpdu_len();
            self.rx.state = State::Head { need };
            return Ok(());
        }
        let control = Control::parse(&mut reader)?;
        let need = match self.shape(control, self.rx.length.get()) {
            Ok(Shape::Control) => self.rx.length.fpdu_len(),
            Ok(Shape::Data | Shape::TooLong) => UlpduLength::LEN + DdpHeader::len_of(control),
            Err(fault) => {
                // With what is known the header has no length; take it all as payload.
                self.rx.running = Crc32c::new().update(&self.rx.head[..FIRST]);
                let left = usize::from(self.rx.length.get()) - Control::LEN;
                return self.defer(fault, left);
            }
        };
        self.rx.state = State::Head { need };
        Ok(())
    }

    /// The header of a segment with payload, or a whole FPDU of another kind, is there.
    fn head_complete<M: Memory>(&mut self, memory: &mut M) -> Result<(), Fault> {
        let head = self.rx.head;
        let head = &head[..self.rx.filled];
        if let Ok(Parsed::Complete { value, .. }) = Fpdu::parse(head) {
            self.rx.next_fpdu();
            if self.rx.crc {
                value.check_crc()?;
            }
            return self.ulpdu(memory, value.length, value.ulpdu);
        }
        if self.rx.crc {
            self.rx.running = Crc32c::new().update(head);
        }
        let header = DdpHeader::parse(&mut Reader::new(&head[UlpduLength::LEN..]))?;
        let left = usize::from(self.rx.length.get()) - header.header_len();
        self.offender.header = Some(header);
        let result = match self.shape(header.control(), self.rx.length.get())? {
            Shape::Data => self.begin(memory, header, left),
            Shape::Control | Shape::TooLong => Err(PeerViolation::MessageTooLong.into()),
        };
        match result {
            Ok(()) => {
                self.rx.payload_left(left, false);
                Ok(())
            }
            Err(fault) => self.defer(fault, left),
        }
    }

    /// A fault in octets whose CRC is yet to come: if that is wrong too, it is the error.
    fn defer(&mut self, fault: Fault, left: usize) -> Result<(), Fault> {
        if !self.rx.crc {
            return Err(fault);
        }
        self.rx.deferred = Some(fault);
        self.rx.payload_left(left, true);
        Ok(())
    }

    fn receive_marked<M: Memory>(&mut self, memory: &mut M, bytes: &[u8]) -> Result<(), Fault> {
        // Taken out, since placing borrows the whole stream.
        let mut marked = core::mem::take(&mut self.rx.marked);
        let mut unmarked = core::mem::take(&mut self.rx.unmarked);
        marked.extend_from_slice(bytes);
        let mut used = 0;
        let mut result = Ok(());
        while result.is_ok() && self.is_receiving() && marked.len() - used >= self.rx.marked_need {
            unmarked.clear();
            match marker::strip(self.rx.position, &marked[used..], &mut unmarked) {
                Ok(Parsed::Complete { value, len }) => {
                    used += len;
                    self.rx.position = self.rx.position.wrapping_add(len as u64);
                    self.rx.marked_need = 1;
                    result = if self.rx.crc {
                        value.check_crc()
                    } else {
                        Ok(())
                    }
                    .and_then(|()| Fpdu::parse(&unmarked))
                    .map_err(Fault::from)
                    .and_then(|fpdu| match fpdu {
                        Parsed::Complete { value, .. } => {
                            self.ulpdu(memory, value.length, value.ulpdu)
                        }
                        Parsed::NeedMore(_) => Err(Malformed::Truncated.into()),
                    });
                }
                Ok(Parsed::NeedMore(more)) => {
                    // A wrong length is found by the next marker, not by waiting for its end.
                    let there = marked.len() - used;
                    let marker = to_end_of_marker(self.rx.position.wrapping_add(there as u64));
                    self.rx.marked_need = there + more.min(marker);
                }
                Err(malformed) => result = Err(malformed.into()),
            }
        }
        marked.drain(..used);
        self.rx.marked = marked;
        self.rx.unmarked = unmarked;
        result
    }

    /// Octets of payload were placed where `direct` said.
    pub(super) fn placed_directly(&mut self, octets: usize) {
        let State::Payload { left } = self.rx.state else {
            return;
        };
        let octets = octets.min(left);
        self.advance_placed(octets);
        self.rx.payload_left(left - octets, false);
    }

    /// Recomputes what `direct` answers. With CRC nothing goes straight to its place: the sum has
    /// to be that of the octets that came, whatever others write there at the same time.
    pub(super) fn update_direct(&mut self) {
        let mut pieces = core::mem::take(&mut self.rx.direct);
        pieces.clear();
        if let State::Payload { left } = self.rx.state
            && self.is_receiving()
            && !self.rx.crc
        {
            self.for_each_place(left, |key: Lkey, addr, len| {
                pieces.push((key, addr, len));
                Ok::<(), Fault>(())
            })
            .ok();
        }
        self.rx.direct = pieces;
    }
}

/// Octets from `position` to the end of the next marker, or of the one that it is in.
fn to_end_of_marker(position: u64) -> usize {
    let spacing = u64::from(marker::SPACING);
    let len = Marker::LEN as u64;
    let behind = position % spacing;
    let left = if behind < len {
        len - behind
    } else {
        spacing - behind + len
    };
    usize::try_from(left).unwrap_or(usize::MAX)
}
