//! One data queue pair: its connection, and how far its messages are.

use std::collections::VecDeque;

use std::time::Duration;

use softverbs::cm::CmId;
use softverbs::{AddressHandle, Qp, Qpn, Rkey, SendWr, UdAddress};

use super::note::Note;
use super::seen::Seen;
use super::service::QKEY;
use crate::exchange::LaneKeys;
use crate::failure::Outcome;

/// A data queue pair.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Keeps the connection.
    pub(crate) id: CmId,
    /// The queue pair that is measured: that of `id`, if it is reliable.
    pub(crate) qp: Qp,
    /// The queue pair of `id` beside an unreliable one, for the notes.
    pub(crate) beside: Option<Qp>,
    /// The way to the peer, for datagrams.
    pub(crate) ah: Option<AddressHandle>,
    /// The first PSN of an unreliable queue pair.
    pub(crate) psn: u32,
    /// The peer's region; known once connected.
    pub(crate) peer: Option<LaneKeys>,
    /// What is sent from here.
    pub(crate) sending: Sending,
    /// What is received here.
    pub(crate) receiving: Receiving,
    /// Notes whose Sends have not completed.
    pub(crate) notes_out: u32,
    /// Notes that wait for that, with their numbers.
    pub(crate) notes_due: VecDeque<(Note, u32)>,
}

/// Progress of the messages that this end sends (writes, reads).
#[derive(Debug, Default)]
pub(crate) struct Sending {
    /// Posted in this round.
    pub(crate) posted: u64,
    /// Completed in this round.
    pub(crate) done: u64,
    /// Messages that the peer has receives for, on a reliable lane. Outlives the round.
    pub(crate) credits: u32,
    /// Messages that may be sent in this round before another Credit, on an unreliable lane.
    pub(crate) limit: u64,
    /// A Probe is under way, with this number.
    pub(crate) probe: Option<u64>,
    /// When this lane last got on.
    pub(crate) moved: Duration,
    /// Posted since the last one that asked for a completion.
    pub(crate) unsignaled: u32,
    /// The End has been sent.
    pub(crate) ended: bool,
    /// The peer has confirmed it.
    pub(crate) acked: bool,
}

/// Progress of the messages that this end receives.
#[derive(Debug, Default)]
pub(crate) struct Receiving {
    /// Messages that came in this round, those that show at their target.
    pub(crate) messages: u64,
    /// The number after the highest one that came or is given up, on an unreliable lane.
    pub(crate) next: u64,
    /// Which numbers came, on an unreliable lane.
    pub(crate) seen: Seen,
    /// The number of the last Credit, on an unreliable lane.
    pub(crate) credited: u64,
    /// A Probe with this number that waits for its answer.
    pub(crate) probed: Option<u64>,
    /// When the last message came, or what is waiting for more.
    pub(crate) last: Duration,
    /// Received since the last Credit. Outlives the round.
    pub(crate) uncredited: u32,
    /// The peer's End has come.
    pub(crate) ended: bool,
    /// It has been answered.
    pub(crate) acked: bool,
}

impl Lane {
    /// Of a new connection.
    pub(crate) fn new(id: CmId, qp: Qp, beside: Option<Qp>, credits: u32) -> Self {
        Self {
            id,
            qp,
            beside,
            ah: None,
            psn: 0,
            peer: None,
            sending: Sending {
                credits,
                ..Sending::default()
            },
            receiving: Receiving::default(),
            notes_out: 0,
            notes_due: VecDeque::new(),
        }
    }

    /// Forgets the last round. The credits stay: the receives do, too.
    pub(crate) fn start_round(&mut self, window: u32) {
        self.sending = Sending {
            credits: self.sending.credits,
            limit: window.into(),
            ..Sending::default()
        };
        self.receiving = Receiving {
            uncredited: self.receiving.uncredited,
            seen: Seen::with_gaps(2 * window as usize),
            ..Receiving::default()
        };
    }

    /// The queue pair of the notes.
    pub(crate) fn note_qp(&self) -> &Qp {
        self.beside.as_ref().unwrap_or(&self.qp)
    }

    /// Where `offset` of the peer's region is.
    ///
    /// # Panics
    /// Before the connection is up.
    pub(crate) fn remote(&self, offset: usize) -> (u64, Rkey) {
        let peer = self
            .peer
            .expect("messages are posted on connected lanes only");
        (peer.addr.wrapping_add(offset as u64), peer.rkey)
    }

    /// Posts a message.
    pub(crate) fn post(&self, wr: &SendWr<'_>) -> Outcome<()> {
        match (&self.ah, &self.peer) {
            (Some(ah), Some(peer)) => {
                let to = UdAddress {
                    ah,
                    remote_qpn: Qpn::new(peer.qpn),
                    remote_qkey: QKEY,
                };
                self.qp.post_send(&wr.to(to))?;
            }
            _ => self.qp.post_send(wr)?,
        }
        Ok(())
    }

    /// Nothing of ours is under way or waits to be.
    pub(crate) fn is_quiet(&self) -> bool {
        self.sending.done == self.sending.posted && self.notes_out == 0 && self.notes_due.is_empty()
    }
}

/// What a work request was; travels in its `wr_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    /// A measured message: so many of this round were posted, this one included.
    Message(u64),
    /// A note that was sent.
    Note,
    /// The note that ends the messages of a round.
    End,
    /// A receive; the number of its buffer.
    Receive(u32),
    /// A receive of the queue pair beside an unreliable one.
    NoteReceive(u32),
}

/// Bits of the number in a `wr_id`; above them the kind, above that the lane.
const NUMBER_BITS: u32 = 44;
const KIND_BITS: u32 = 3;

impl Tag {
    /// As a `wr_id`.
    pub(crate) fn pack(self, lane: u16) -> u64 {
        let (kind, number) = match self {
            Self::Message(posted) => (0, posted & ((1 << NUMBER_BITS) - 1)),
            Self::Note => (1, 0),
            Self::End => (2, 0),
            Self::Receive(slot) => (3, u64::from(slot)),
            Self::NoteReceive(slot) => (4, u64::from(slot)),
        };
        u64::from(lane) << (NUMBER_BITS + KIND_BITS) | kind << NUMBER_BITS | number
    }

    /// From a `wr_id`.
    pub(crate) fn unpack(wr_id: u64) -> (u16, Self) {
        let lane = u16::try_from(wr_id >> (NUMBER_BITS + KIND_BITS)).unwrap_or(u16::MAX);
        let number = wr_id & ((1 << NUMBER_BITS) - 1);
        let slot = u32::try_from(number).unwrap_or(u32::MAX);
        let tag = match wr_id >> NUMBER_BITS & ((1 << KIND_BITS) - 1) {
            0 => Self::Message(number),
            1 => Self::Note,
            2 => Self::End,
            3 => Self::Receive(slot),
            _ => Self::NoteReceive(slot),
        };
        (lane, tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_survive_the_trip() {
        for lane in [0, 1, 16_383, u16::MAX] {
            for tag in [
                Tag::Message(0),
                Tag::Message(1 << 40),
                Tag::Note,
                Tag::End,
                Tag::Receive(0),
                Tag::Receive(4103),
                Tag::NoteReceive(7),
            ] {
                assert_eq!(Tag::unpack(tag.pack(lane)), (lane, tag));
            }
        }
    }
}
