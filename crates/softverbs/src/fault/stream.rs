//! One direction of a TCP stream of iWARP: finds its frames, has each judged, and holds octets
//! back, always in order. No sockets, no clock.

use std::collections::VecDeque;
use std::fmt;

use softverbs_proto::time::Time;
use softverbs_wire::mpa::fpdu::fpdu_len;
use softverbs_wire::mpa::{Marker, MpaFrame, MpaKind, marker};

use super::judge::{Bit, Verdict};
use super::kind::{Kind, Kinds};

const FRAME: Kinds = Kinds::of(&[Kind::Any, Kind::Frame]);
/// Where a start-up frame says whether its sender wants markers.
const FLAGS: usize = 16;
const WANTS_MARKERS: u8 = 0x80;
/// Of an FPDU: length field and control octets of DDP and RDMAP.
const HEAD: usize = 4;
/// RDMAP's opcode of a Terminate (RFC 5040 §4.1), in the low bits of its octet.
const TERMINATE: u8 = 7;

/// Octets on their way.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// When they go on; never, if none.
    at: Option<Time>,
    octets: Vec<u8>,
    /// How many of them have gone.
    pub(crate) gone: usize,
    /// Written in pieces of so many.
    pub(crate) split: Option<usize>,
    /// Instead of them, the connection is reset.
    pub(crate) reset: bool,
}

impl Chunk {
    /// What is left of it.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.octets[self.gone..]
    }
}

/// What the octets at hand are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    StartUp,
    /// FPDUs, from this stream position on.
    Fpdus(u64),
    /// Nothing that is known here.
    Other,
}

/// A frame, as the judge is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) kinds: Kinds,
    pub(crate) len: usize,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} octets", self.len)
    }
}

/// One direction of a stream.
#[derive(Debug)]
pub(crate) struct Lane {
    phase: Phase,
    /// The beginning of a frame that is not known yet.
    head: Vec<u8>,
    /// Octets to come of the frame that is known.
    left: usize,
    /// Octets of it that have come.
    come: usize,
    flip: Option<Bit>,
    /// What its sender said of the other direction.
    pub(crate) wants_markers: bool,
    queue: VecDeque<Chunk>,
    octets: usize,
}

impl Lane {
    pub(crate) const fn new() -> Self {
        Self {
            phase: Phase::StartUp,
            head: Vec::new(),
            left: 0,
            come: 0,
            flip: None,
            wants_markers: false,
            queue: VecDeque::new(),
            octets: 0,
        }
    }

    /// Takes octets of the stream. `markers`: whether its FPDUs have markers, as far as is known.
    pub(crate) fn push(
        &mut self,
        now: Time,
        mut octets: &[u8],
        markers: bool,
        mut judge: impl FnMut(&Found) -> Verdict,
    ) {
        while !octets.is_empty() {
            if self.left > 0 {
                let (now, rest) = octets.split_at(self.left.min(octets.len()));
                self.append(now);
                octets = rest;
                continue;
            }
            if self.phase == Phase::Other {
                let found = Found {
                    kinds: FRAME,
                    len: octets.len(),
                };
                self.begin(now, found, judge(&found), octets);
                return;
            }
            let need = self.head_len(markers) - self.head.len();
            let (more, rest) = octets.split_at(need.min(octets.len()));
            self.head.extend_from_slice(more);
            octets = rest;
            match self.recognise(markers) {
                Some(found) => {
                    let head = std::mem::take(&mut self.head);
                    let verdict = judge(&found);
                    self.begin(now, found, verdict, &head);
                }
                None if self.phase == Phase::Other => {
                    // The octets that were no frame after all go on as they are.
                    let head = std::mem::take(&mut self.head);
                    let found = Found {
                        kinds: FRAME,
                        len: head.len(),
                    };
                    self.begin(now, found, Verdict::Pass, &head);
                }
                None => return,
            }
        }
    }

    /// Octets that tell what a frame is.
    fn head_len(&self, markers: bool) -> usize {
        match self.phase {
            Phase::StartUp => MpaFrame::LEN,
            Phase::Fpdus(position) if markers && marker::until_next(position) == 0 => {
                Marker::LEN + HEAD
            }
            Phase::Fpdus(position) if markers => {
                // The control octets may be behind a marker.
                HEAD + if marker::until_next(position) < HEAD {
                    Marker::LEN
                } else {
                    0
                }
            }
            _ => HEAD,
        }
    }

    /// What frame begins with the head, once enough of it is there.
    fn recognise(&mut self, markers: bool) -> Option<Found> {
        let need = self.head_len(markers);
        let head = &self.head;
        match self.phase {
            Phase::StartUp => {
                let kind = [MpaKind::Request, MpaKind::Reply].into_iter().find(|kind| {
                    let key = kind.key();
                    let compared = head.len().min(key.len());
                    head[..compared] == key[..compared]
                });
                let Some(kind) = kind else {
                    self.phase = Phase::Other;
                    return None;
                };
                let &[.., high, low] = head.get(..need)? else {
                    return None;
                };
                self.wants_markers = head[FLAGS] & WANTS_MARKERS != 0;
                self.phase = Phase::Fpdus(0);
                let kind = match kind {
                    MpaKind::Request => Kind::MpaRequest,
                    MpaKind::Reply => Kind::MpaReply,
                };
                Some(Found {
                    kinds: FRAME.with(kind),
                    len: need + usize::from(u16::from_be_bytes([high, low])),
                })
            }
            Phase::Fpdus(position) => {
                let head = head.get(..need)?;
                let until = if markers {
                    marker::until_next(position)
                } else {
                    HEAD
                };
                let skip = |at: usize| if at >= until { at + Marker::LEN } else { at };
                let octet = |at: usize| head.get(skip(at)).copied();
                let length = u16::from_be_bytes([octet(0)?, octet(1)?]);
                let opcode = octet(3)? & 0x0f;
                let len = fpdu_len(length);
                let len = if markers {
                    marker::marked_len(position, len)
                } else {
                    len
                };
                self.phase = Phase::Fpdus(position + len as u64);
                let kinds = FRAME.with(Kind::Fpdu);
                Some(Found {
                    kinds: if opcode == TERMINATE {
                        kinds.with(Kind::Terminate)
                    } else {
                        kinds
                    },
                    len,
                })
            }
            Phase::Other => None,
        }
    }

    /// A frame begins with these octets.
    fn begin(&mut self, now: Time, found: Found, verdict: Verdict, octets: &[u8]) {
        let mut chunk = Chunk {
            at: Some(now),
            octets: Vec::new(),
            gone: 0,
            split: None,
            reset: false,
        };
        self.flip = None;
        match verdict {
            Verdict::Delay(time) => chunk.at = Some(now + time),
            Verdict::Hold(time) => chunk.at = time.map(|time| now + time),
            Verdict::Corrupt(bit) => self.flip = Some(bit),
            Verdict::Reset => chunk.reset = true,
            Verdict::Split(octets) => chunk.split = Some(octets as usize),
            // The others cannot happen to a stream.
            _ => {}
        }
        // Nothing overtakes in a stream.
        if let Some(before) = self.queue.back() {
            chunk.at = match (before.at, chunk.at) {
                (Some(before), Some(at)) => Some(before.max(at)),
                _ => None,
            };
        }
        self.queue.push_back(chunk);
        self.come = 0;
        self.left = found.len;
        self.append(octets);
    }

    /// More octets of the frame that has begun.
    fn append(&mut self, octets: &[u8]) {
        let mut octets = octets.to_vec();
        if let Some(bit) = self.flip
            && let Some(at) = bit.octet.checked_sub(self.come)
        {
            let bit = Bit { octet: at, ..bit };
            bit.flip(&mut octets);
        }
        self.come += octets.len();
        self.left = self.left.saturating_sub(octets.len());
        self.octets += octets.len();
        // All of a frame that has gone already: the rest follows it.
        match self.queue.back_mut() {
            Some(chunk) => chunk.octets.append(&mut octets),
            None => self.queue.push_back(Chunk {
                at: Some(Time::ZERO),
                octets,
                gone: 0,
                split: None,
                reset: false,
            }),
        }
    }

    /// The first octets, if their time has come.
    pub(crate) fn due(&mut self, now: Time) -> Option<&mut Chunk> {
        self.queue
            .front_mut()
            .filter(|chunk| chunk.at.is_some_and(|at| at <= now))
    }

    /// Whether there are such octets.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        let at = self.queue.front().and_then(|chunk| chunk.at);
        at.is_some_and(|at| at <= now)
    }

    /// So many of the first chunk's octets have gone.
    pub(crate) fn went(&mut self, octets: usize) {
        self.octets -= octets;
        if let Some(chunk) = self.queue.front_mut() {
            chunk.gone += octets;
            if chunk.rest().is_empty() {
                self.queue.pop_front();
            }
        }
    }

    /// When the first octets go on, if they do.
    pub(crate) fn next(&self) -> Option<Time> {
        self.queue.front()?.at
    }

    /// Octets that wait.
    pub(crate) const fn waiting(&self) -> usize {
        self.octets + self.head.len()
    }

    /// All that waits, at once: the stream ends. Nothing if it is held for ever.
    pub(crate) fn end(&mut self) -> Option<Vec<u8>> {
        let mut rest = Vec::new();
        for chunk in self.queue.drain(..) {
            chunk.at?;
            rest.extend_from_slice(chunk.rest());
        }
        rest.append(&mut self.head);
        Some(rest)
    }
}
