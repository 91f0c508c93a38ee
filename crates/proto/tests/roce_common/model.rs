//! A reliable responder as simple as it can be: a few variables, no packets of its own, nothing
//! waits. What it makes of a packet is what a real one has to make of it.

use std::collections::VecDeque;

use softverbs_wire::ib::{
    Aeth, AtomicAckEth, Headers, NakCode, Opcode, Operation, Packet, Position, Syndrome,
};
use softverbs_wire::num::{Msn24, Psn, Qpn, RnrTimer};

use super::responder::MTU;
use super::{attributes, bth};

/// READs and atomics that are remembered.
const DEPTH: usize = 4;

/// What it answers.
pub type Answer = (Headers, Vec<u8>);

enum Message {
    Send(Vec<u8>),
    Write { at: usize },
}

enum Kept {
    Read {
        first: Psn,
        packets: u32,
        from: usize,
        len: usize,
        msn: u32,
    },
    Atomic {
        psn: Psn,
        original: u64,
        msn: u32,
    },
}

/// The responder.
pub struct Model {
    peer: Qpn,
    pub next: Psn,
    pub msn: u32,
    pub readable: Vec<u8>,
    pub writable: Vec<u8>,
    pub word: u64,
    /// Receives that were posted.
    pub receives: usize,
    /// Messages that were received.
    pub received: Vec<Vec<u8>>,
    /// Packets that came again, and such that came too early.
    pub duplicates: usize,
    pub gaps: usize,
    message: Option<Message>,
    kept: VecDeque<Kept>,
    /// The last request was a READ or an atomic.
    answered_otherwise: bool,
    /// The peer knows that it has to repeat.
    told: bool,
}

impl Model {
    pub fn new(peer: Qpn, next: Psn, readable: Vec<u8>, writable: usize) -> Self {
        Self {
            peer,
            next,
            msn: 0,
            readable,
            writable: vec![0; writable],
            word: 0,
            receives: 0,
            received: Vec::new(),
            duplicates: 0,
            gaps: 0,
            message: None,
            kept: VecDeque::new(),
            answered_otherwise: false,
            told: false,
        }
    }

    fn acknowledge(&self, psn: Psn, syndrome: Syndrome) -> Vec<Answer> {
        let aeth = Aeth::new(syndrome, Msn24::new(self.msn));
        vec![(
            bth(Opcode::RC_ACKNOWLEDGE, self.peer, psn).with_aeth(aeth),
            Vec::new(),
        )]
    }

    pub fn packet(&mut self, packet: &Packet<'_>) -> Vec<Answer> {
        let psn = packet.headers.bth.psn;
        match psn.distance_from(self.next) {
            0 => self.execute(packet),
            1.. => {
                self.gaps += 1;
                if core::mem::replace(&mut self.told, true) {
                    return Vec::new();
                }
                self.acknowledge(self.next, Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR))
            }
            _ => {
                self.duplicates += 1;
                self.repeat(packet)
            }
        }
    }

    fn execute(&mut self, packet: &Packet<'_>) -> Vec<Answer> {
        let headers = &packet.headers;
        let info = headers.bth.opcode.info().unwrap();
        let psn = headers.bth.psn;
        let starts = matches!(info.position, Position::First | Position::Only);
        let ends = matches!(info.position, Position::Last | Position::Only);
        match info.operation {
            Operation::Send => {
                if starts {
                    if self.received.len() == self.receives {
                        self.told = true;
                        let timer = RnrTimer::new(attributes().min_rnr_timer);
                        return self.acknowledge(psn, Syndrome::rnr_nak(timer));
                    }
                    self.message = Some(Message::Send(Vec::new()));
                }
                let Some(Message::Send(octets)) = &mut self.message else {
                    panic!("no Send is in the middle");
                };
                octets.extend_from_slice(packet.payload);
                if ends && let Some(Message::Send(octets)) = self.message.take() {
                    self.received.push(octets);
                }
            }
            Operation::Write => {
                if let Some(reth) = headers.reth {
                    let at = usize::try_from(reth.va.get()).unwrap();
                    self.message = Some(Message::Write { at });
                }
                let Some(Message::Write { at }) = &mut self.message else {
                    panic!("no Write is in the middle");
                };
                let end = *at + packet.payload.len();
                self.writable[*at..end].copy_from_slice(packet.payload);
                *at = end;
                if ends {
                    self.message = None;
                }
            }
            Operation::ReadRequest => {
                let reth = headers.reth.unwrap();
                let len = usize::try_from(reth.dma_len).unwrap();
                let packets = u32::try_from(len.div_ceil(MTU).max(1)).unwrap();
                self.msn += 1;
                self.keep(Kept::Read {
                    first: psn,
                    packets,
                    from: usize::try_from(reth.va.get()).unwrap(),
                    len,
                    msn: self.msn,
                });
                self.next = psn.advance(packets);
                return self.repeat(packet);
            }
            Operation::CmpSwap | Operation::FetchAdd => {
                let request = headers.atomic_eth.unwrap();
                let original = self.word;
                self.word = match info.operation {
                    Operation::FetchAdd => original.wrapping_add(request.swap_or_add),
                    _ if original == request.compare => request.swap_or_add,
                    _ => original,
                };
                self.msn += 1;
                self.keep(Kept::Atomic {
                    psn,
                    original,
                    msn: self.msn,
                });
                self.next = psn.next();
                return self.repeat(packet);
            }
            other => panic!("{other:?} is no request"),
        }
        self.told = false;
        self.answered_otherwise = false;
        self.next = psn.next();
        self.msn += u32::from(ends);
        if headers.bth.ack_req {
            self.acknowledge(psn, Syndrome::ACK)
        } else {
            Vec::new()
        }
    }

    fn keep(&mut self, kept: Kept) {
        if self.kept.len() == DEPTH {
            self.kept.pop_front();
        }
        self.kept.push_back(kept);
        self.told = false;
        self.answered_otherwise = true;
    }

    /// The answer to what was carried out.
    fn repeat(&self, packet: &Packet<'_>) -> Vec<Answer> {
        let headers = &packet.headers;
        let psn = headers.bth.psn;
        if let Some(reth) = headers.reth
            && headers.bth.opcode == Opcode::RC_READ_REQUEST
        {
            let at = usize::try_from(reth.va.get()).unwrap();
            let len = usize::try_from(reth.dma_len).unwrap();
            return self.read_again(psn, at, len).unwrap_or_default();
        }
        if headers.atomic_eth.is_some() {
            return self.result_again(psn).unwrap_or_default();
        }
        // Never with the number of a READ or an atomic.
        let last = if self.answered_otherwise {
            psn
        } else {
            self.next.advance(u32::MAX)
        };
        self.acknowledge(last, Syndrome::ACK)
    }

    /// A READ, from one of its packets on.
    fn read_again(&self, psn: Psn, at: usize, asked: usize) -> Option<Vec<Answer>> {
        let msn = self.kept.iter().find_map(|kept| match *kept {
            Kept::Read {
                first,
                packets,
                from,
                len,
                msn,
            } => {
                let index = u32::try_from(psn.distance_from(first)).ok()?;
                let offset = usize::try_from(index).ok()? * MTU;
                let fits = index < packets && at == from + offset && offset + asked <= len;
                fits.then_some(msn)
            }
            Kept::Atomic { .. } => None,
        })?;
        let count = asked.div_ceil(MTU).max(1);
        let response = |number: usize| {
            let (starts, ends) = (number == 0, number + 1 == count);
            let opcode = match Position::new(starts, ends) {
                Position::First => Opcode::RC_READ_RESPONSE_FIRST,
                Position::Middle => Opcode::RC_READ_RESPONSE_MIDDLE,
                Position::Last => Opcode::RC_READ_RESPONSE_LAST,
                Position::Only => Opcode::RC_READ_RESPONSE_ONLY,
            };
            let mut headers = bth(
                opcode,
                self.peer,
                psn.advance(u32::try_from(number).unwrap()),
            );
            if starts || ends {
                headers = headers.with_aeth(Aeth::new(Syndrome::ACK, Msn24::new(msn)));
            }
            let from = at + number * MTU;
            let to = (from + MTU).min(at + asked);
            (headers, self.readable[from..to].to_vec())
        };
        Some((0..count).map(response).collect())
    }

    fn result_again(&self, psn: Psn) -> Option<Vec<Answer>> {
        self.kept.iter().find_map(|kept| match *kept {
            Kept::Atomic {
                psn: of,
                original,
                msn,
            } if of == psn => {
                let headers = bth(Opcode::RC_ATOMIC_ACKNOWLEDGE, self.peer, psn)
                    .with_aeth(Aeth::new(Syndrome::ACK, Msn24::new(msn)))
                    .with_atomic_ack_eth(AtomicAckEth { original });
                Some(vec![(headers, Vec::new())])
            }
            _ => None,
        })
    }
}
