//! Where everything lies in the registered memory of one end. Both ends compute the same layout
//! from the same workload, so that only the address and the key of the region travel.

use softverbs::Mr;

use super::note;
use crate::failure::Outcome;
use crate::plan::{Verb, Workload};

/// Offsets into the region of one end.
///
/// At its start, two words for each lane: the number of messages that the peer says it has sent
/// (written by the peer), and the number that this end has sent (the source of that write). For
/// atomic operations a third one, that the peer operates on. Then a place for the content of
/// notes, and the buffers of each lane, outgoing and incoming; without `--check` all lanes and all
/// messages share one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    lanes: usize,
    words: usize,
    stride: usize,
    out_slots: usize,
    in_slots: usize,
    /// Every lane has buffers of its own.
    own_buffers: bool,
}

/// Octets of a counter.
pub(crate) const WORD: usize = 8;

/// Octets for the content of notes.
const NOTES: usize = 64;

impl Layout {
    /// For this workload.
    pub(crate) fn new(workload: &Workload) -> Self {
        let octets = workload.sizes.largest().max(note::LONGEST);
        let slots = workload.slots as usize;
        // A checked message lies in the buffer of its own receive, and a receive that was meant
        // for a note may get a message.
        let every_receive = workload.is_checked_in_receives();
        let stride = octets as usize + workload.headroom() as usize;
        Self {
            lanes: usize::from(workload.qps),
            words: if workload.verb == Verb::Atomic { 3 } else { 2 },
            stride: stride.next_multiple_of(64),
            out_slots: slots,
            in_slots: if every_receive {
                (workload.window + note::RECEIVES) as usize
            } else {
                slots
            },
            own_buffers: workload.has_own_buffers(),
        }
    }

    /// Octets of the region, or `None` if they are more than a machine can address.
    pub(crate) fn len(&self) -> Option<usize> {
        let lanes = if self.own_buffers { self.lanes } else { 1 };
        (self.out_slots + self.in_slots)
            .checked_mul(lanes)?
            .checked_mul(self.stride)?
            .checked_add(self.header())
    }

    /// Buffers for incoming messages, each lane.
    pub(crate) fn in_slots(&self) -> usize {
        self.in_slots
    }

    /// Where the peer writes how many messages it has sent on this lane.
    pub(crate) fn count_in(&self, lane: u16) -> usize {
        WORD * usize::from(lane)
    }

    /// Where this end keeps that number for its peer.
    pub(crate) fn count_out(&self, lane: u16) -> usize {
        WORD * (self.lanes + usize::from(lane))
    }

    /// The word that the peer's atomic operations on this lane work on.
    pub(crate) fn atomic(&self, lane: u16) -> usize {
        WORD * (2 * self.lanes + usize::from(lane))
    }

    /// Where the content of notes goes, which means nothing.
    pub(crate) fn notes(&self) -> usize {
        self.words()
    }

    /// A buffer for outgoing messages.
    pub(crate) fn outgoing(&self, lane: u16, slot: usize) -> usize {
        debug_assert!(slot < self.out_slots, "slot {slot} of {}", self.out_slots);
        self.lane(lane) + slot * self.stride
    }

    /// A buffer for incoming messages.
    pub(crate) fn incoming(&self, lane: u16, slot: usize) -> usize {
        debug_assert!(slot < self.in_slots, "slot {slot} of {}", self.in_slots);
        self.lane(lane) + (self.out_slots + slot) * self.stride
    }

    fn header(&self) -> usize {
        self.words() + NOTES
    }

    fn words(&self) -> usize {
        (self.words * WORD * self.lanes).next_multiple_of(64)
    }

    fn lane(&self, lane: u16) -> usize {
        let lane = if self.own_buffers {
            usize::from(lane)
        } else {
            0
        };
        self.header() + lane * (self.out_slots + self.in_slots) * self.stride
    }
}

/// Gives a region pages of its own: one that nobody has written to is read from a page of zeros that it
/// has many times, which is faster than any program's data. Not one that a peer has asked to be huge.
pub(super) fn touch(mr: &Mr) -> Outcome<()> {
    const PAGE: usize = 4096;
    const MOST: usize = 1 << 30;
    for at in (0..mr.len().min(MOST)).step_by(PAGE) {
        mr.copy_in(at, &[0])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::{Connection, Sizes, sample_workload};

    /// Every place of the layout with its length, by what it is.
    fn places(workload: &Workload) -> BTreeSet<(usize, usize)> {
        let layout = Layout::new(workload);
        let size = workload.sizes.largest() as usize;
        let mut places = BTreeSet::from([(layout.notes(), note::LONGEST as usize)]);
        for lane in 0..workload.qps {
            places.insert((layout.count_in(lane), WORD));
            places.insert((layout.count_out(lane), WORD));
            if workload.verb == Verb::Atomic {
                places.insert((layout.atomic(lane), WORD));
            }
            for slot in 0..layout.out_slots {
                places.insert((layout.outgoing(lane, slot), size));
            }
            for slot in 0..layout.in_slots {
                let len = size + workload.headroom() as usize;
                places.insert((layout.incoming(lane, slot), len));
            }
        }
        places
    }

    #[test]
    fn places_do_not_overlap_and_lie_inside() {
        for verb in [Verb::Write, Verb::Read, Verb::Send, Verb::Atomic] {
            for check in [false, true] {
                for (qps, size) in [(1, 1), (3, 4096), (8, 100_000)] {
                    let workload = Workload {
                        verb,
                        check,
                        qps,
                        sizes: Sizes::One(size),
                        ..sample_workload()
                    }
                    .resolve();
                    let places: Vec<_> = places(&workload).into_iter().collect();
                    assert!(places.iter().all(|(at, _)| at % WORD == 0), "{workload}");
                    for pair in places.windows(2) {
                        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{workload} {pair:?}");
                    }
                    let (start, len) = *places.last().unwrap();
                    assert!(start + len <= Layout::new(&workload).len().unwrap());
                }
            }
        }
    }

    #[test]
    fn unchecked_lanes_share_their_buffers() {
        let layout = Layout::new(&Workload {
            qps: 4,
            ..sample_workload()
        });
        assert_eq!(layout.outgoing(0, 0), layout.outgoing(3, 0));
        assert_ne!(layout.outgoing(0, 0), layout.incoming(0, 0));
        assert_ne!(layout.count_in(0), layout.count_in(3));
    }

    #[test]
    fn datagrams_have_room_for_the_network_header() {
        let workload = Workload {
            verb: Verb::Send,
            connection: Connection::Ud,
            mtu: Some(1024),
            sizes: Sizes::One(1024),
            check: true,
            ..sample_workload()
        }
        .resolve();
        let places: Vec<_> = places(&workload).into_iter().collect();
        assert!(places.iter().any(|(_, len)| *len == 1064));
        for pair in places.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
    }

    #[test]
    fn every_checked_receive_has_a_buffer() {
        let workload = Workload {
            verb: Verb::Send,
            check: true,
            ..sample_workload()
        }
        .resolve();
        assert_eq!(
            Layout::new(&workload).in_slots(),
            workload.window as usize + 8
        );
    }

    #[test]
    fn nonsense_from_a_peer_does_not_wrap() {
        let workload = Workload {
            slots: u32::MAX,
            qps: u16::MAX,
            check: true,
            sizes: Sizes::One(1 << 31),
            ..sample_workload()
        };
        assert_eq!(Layout::new(&workload).len(), None);
    }
}
