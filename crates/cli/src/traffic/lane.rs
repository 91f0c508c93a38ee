//! One data queue pair: its connection, and how far its messages are.

use std::collections::VecDeque;

use softverbs::cm::CmId;
use softverbs::{Qp, Rkey};

use super::note::Note;
use crate::exchange::LaneKeys;

/// A data queue pair.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Keeps the connection.
    pub(crate) id: CmId,
    /// The queue pair of `id`.
    pub(crate) qp: Qp,
    /// The peer's region; known once connected.
    pub(crate) peer: Option<LaneKeys>,
    /// What is sent from here.
    pub(crate) sending: Sending,
    /// What is received here.
    pub(crate) receiving: Receiving,
    /// Notes whose Sends have not completed.
    pub(crate) notes_out: u32,
    /// Notes that wait for that.
    pub(crate) notes_due: VecDeque<Note>,
}

/// Progress of the messages that this end sends (writes, reads).
#[derive(Debug, Default)]
pub(crate) struct Sending {
    /// Posted in this round.
    pub(crate) posted: u64,
    /// Completed in this round.
    pub(crate) done: u64,
    /// Sends that the peer has receives for. Outlives the round.
    pub(crate) credits: u32,
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
    /// Messages in this round (send only: the other verbs do not show at their target).
    pub(crate) messages: u64,
    /// Received since the last Credit. Outlives the round.
    pub(crate) uncredited: u32,
    /// The peer's End has come.
    pub(crate) ended: bool,
}

impl Lane {
    /// Of a new connection.
    pub(crate) fn new(id: CmId, qp: Qp, credits: u32) -> Self {
        Self {
            id,
            qp,
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
    pub(crate) fn start_round(&mut self) {
        self.sending = Sending {
            credits: self.sending.credits,
            ..Sending::default()
        };
        self.receiving = Receiving {
            uncredited: self.receiving.uncredited,
            ..Receiving::default()
        };
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
}

/// Bits of the number in a `wr_id`; above them the kind, above that the lane.
const NUMBER_BITS: u32 = 44;
const KIND_BITS: u32 = 2;

impl Tag {
    /// As a `wr_id`.
    pub(crate) fn pack(self, lane: u16) -> u64 {
        let (kind, number) = match self {
            Self::Message(posted) => (0, posted & ((1 << NUMBER_BITS) - 1)),
            Self::Note => (1, 0),
            Self::End => (2, 0),
            Self::Receive(slot) => (3, u64::from(slot)),
        };
        u64::from(lane) << (NUMBER_BITS + KIND_BITS) | kind << NUMBER_BITS | number
    }

    /// From a `wr_id`.
    pub(crate) fn unpack(wr_id: u64) -> (u16, Self) {
        let lane = u16::try_from(wr_id >> (NUMBER_BITS + KIND_BITS)).unwrap_or(u16::MAX);
        let number = wr_id & ((1 << NUMBER_BITS) - 1);
        let tag = match wr_id >> NUMBER_BITS & ((1 << KIND_BITS) - 1) {
            0 => Self::Message(number),
            1 => Self::Note,
            2 => Self::End,
            _ => Self::Receive(u32::try_from(number).unwrap_or(u32::MAX)),
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
            ] {
                assert_eq!(Tag::unpack(tag.pack(lane)), (lane, tag));
            }
        }
    }
}
