//! A ring of packets in memory that two processes share: one puts packets in, from any of its threads;
//! the other takes them out, one thread at a time.
//!
//! The first page of the memory holds what the two tell each other, and behind it are the slots, each
//! for one packet. A slot's turn says whose it is: an even number, the sender's; an odd one, the
//! receiver's; each passes it on by adding one. In new memory, all zeros, every slot is the sender's.
//!
//! A train has several slots that follow each other in the memory, of which the first one's head speaks
//! for all; the receiver passes them all on.
//!
//! The two trust each other as far as one user's processes do, which may read and write each other's
//! memory anyway. What a receiver finds is checked as if it came from a network, but for the ICRC.

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::same_host::board::Board;
use crate::same_host::line::Line;
use crate::same_host::memory::Shared;
use crate::same_host::wake::Wish;

/// Packets that are under way at most; a power of two.
pub(in super::super) const SLOTS: u64 = 128;
/// Octets of a slot. Not a power of two: the heads of the slots would all want the same lines of a
/// cache.
const SLOT_LEN: usize = 4096 + 256;
/// Octets of a slot before the packet.
const HEAD_LEN: usize = 64;
/// The longest packet: the payload of the largest path MTU and every header.
pub(in super::super) const MAX_PACKET: usize = SLOT_LEN - HEAD_LEN;
const FIRST_SLOT: usize = 4096;
#[allow(clippy::cast_possible_truncation, reason = "a small constant")]
const RING_LEN: usize = FIRST_SLOT + SLOTS as usize * SLOT_LEN;
/// Says how the memory is laid out, and that the sender has made it.
const LAYOUT: u64 = 0x0002_736f_6674_7662;

/// The sender waits for an answer.
const OFFERED: u32 = 0;
/// The receiver looks.
const ACCEPTED: u32 = 1;
/// The receiver does not look, or not any more.
const CLOSED: u32 = 2;

/// The first page.
#[repr(C)]
#[derive(Debug)]
struct Front {
    /// Written by the sender once.
    layout: Line<AtomicU64>,
    /// What the receiver has made of the offer.
    state: Line<AtomicU32>,
    /// The receiver sleeps: the next packet is to wake it.
    asleep: Line<Wish>,
    /// The sender waits until there is room.
    wants_room: Line<Wish>,
    board: Board,
}

/// What this sender has sent over UDP goes before this packet.
pub(super) const AFTER_SOCKETS: u16 = 1;

/// What a network would tell of a packet. Any octets are a value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Meta {
    /// Octets of the packet or train; 0: there is none.
    pub(super) len: u32,
    /// 4 or 6.
    pub(super) family: u8,
    pub(super) traffic_class: u8,
    pub(super) source_port: u16,
    /// See [`AFTER_SOCKETS`].
    pub(super) flags: u16,
    /// Packets of the train.
    pub(super) packets: u16,
    /// Slots of the train.
    pub(super) slots: u16,
    pub(super) interface: u32,
    pub(super) local: [u8; 16],
    pub(super) remote: [u8; 16],
}

#[repr(C, align(64))]
struct SlotHead {
    turn: AtomicU64,
    meta: UnsafeCell<Meta>,
}

const _: () = assert!(
    size_of::<SlotHead>() == HEAD_LEN
        && SLOT_LEN.is_multiple_of(align_of::<SlotHead>())
        && size_of::<Front>() <= FIRST_SLOT
        && SLOTS.is_power_of_two()
        && RING_LEN <= u32::MAX as usize
);

/// The turn of a place, before its sender has used it.
const fn turn_of(place: u64) -> u64 {
    place / SLOTS * 2
}

impl Meta {
    /// How many packets it is.
    pub(super) fn packets(&self) -> usize {
        usize::from(self.packets.max(1))
    }
}

/// Octets that so many slots have room for.
#[allow(clippy::cast_possible_truncation, reason = "no more than SLOTS")]
const fn room_of(slots: u64) -> usize {
    slots as usize * SLOT_LEN - HEAD_LEN
}

/// Slots that so many octets take.
const fn slots_of(len: usize) -> u64 {
    (len + HEAD_LEN).div_ceil(SLOT_LEN) as u64
}

/// The memory, as one of the two sees it.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Shared,
    /// The sender's next place. Only the sender's process counts.
    tail: AtomicU64,
}

// SAFETY: the memory is reached through atomics, and through slots that belong to one thread at a time:
// who has moved `tail` over one, or who has the receiver's place (`&mut u64` of `take`).
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

/// What became of packets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Put<E> {
    /// So many are in the ring.
    Done(u32),
    /// There is no room.
    Full,
    /// It could not be written.
    Failed(E),
}

impl Ring {
    /// A new ring and the file that leads its receiver to it.
    pub(super) fn create() -> io::Result<(Self, OwnedFd)> {
        let (memory, file) = Shared::create(RING_LEN)?;
        let ring = Self::new(memory);
        ring.front().layout.0.store(LAYOUT, Ordering::Release);
        Ok((ring, file))
    }

    /// The ring that another process has made.
    pub(super) fn open(file: BorrowedFd<'_>) -> io::Result<Self> {
        let ring = Self::new(Shared::open(file, RING_LEN)?);
        if ring.front().layout.0.load(Ordering::Acquire) != LAYOUT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(ring)
    }

    const fn new(memory: Shared) -> Self {
        Self {
            memory,
            tail: AtomicU64::new(0),
        }
    }

    fn front(&self) -> &Front {
        // SAFETY: the mapping is a page-aligned one, longer than `Front`, lives as long as `self`, and
        // has atomics there only.
        unsafe { self.memory.start().cast::<Front>().as_ref() }
    }

    pub(super) fn board(&self) -> &Board {
        &self.front().board
    }

    /// Where a slot begins.
    #[allow(clippy::cast_possible_truncation, reason = "less than SLOTS")]
    fn slot(&self, place: u64) -> NonNull<u8> {
        let index = (place % SLOTS) as usize;
        // SAFETY: `index` is below SLOTS, so that the slot is inside the mapping.
        unsafe { self.memory.start().add(FIRST_SLOT + index * SLOT_LEN) }
    }

    fn head(&self, place: u64) -> &SlotHead {
        // SAFETY: every slot begins with such a head, aligned as the assertion above says; of what is
        // in it one part is atomic and the other in a cell.
        unsafe { self.slot(place).cast::<SlotHead>().as_ref() }
    }

    /// Whether a packet can be put in now.
    pub(super) fn has_room(&self) -> bool {
        let place = self.tail.load(Ordering::Relaxed);
        self.head(place).turn.load(Ordering::Acquire) == turn_of(place)
    }

    /// How many slots from this place on, up to `most`, follow each other in the memory and are free.
    fn free_from(&self, place: u64, most: u32) -> u32 {
        let is_free = |place| self.head(place).turn.load(Ordering::Acquire) == turn_of(place);
        let most = u64::from(most).clamp(1, SLOTS - place % SLOTS);
        // The receiver passes them on in their order.
        let free = if is_free(place + most - 1) {
            most
        } else {
            (place..place + most)
                .take_while(|place| is_free(*place))
                .count() as u64
        };
        u32::try_from(free).unwrap_or(0)
    }

    /// Puts in a packet, or a train that has `most` slots at most. `fit` says of how many packets and octets,
    /// if there are so many slots, and `write` fills them in.
    pub(super) fn put<E>(
        &self,
        mut meta: Meta,
        most: u32,
        fit: impl Fn(u32) -> (u32, usize),
        write: impl FnOnce(u32, &mut [u8]) -> Result<(), E>,
    ) -> Put<E> {
        let mut place = self.tail.load(Ordering::Relaxed);
        let (slots, packets, len) = loop {
            let free = self.free_from(place, most);
            if free > 0 {
                let (packets, len) = fit(free);
                let slots = slots_of(len);
                debug_assert!(slots <= u64::from(free), "{len} octets in {free} slots");
                let slots = slots.min(u64::from(free));
                let moved = self.tail.compare_exchange_weak(
                    place,
                    place.wrapping_add(slots),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                match moved {
                    Ok(_) => break (slots, packets, len),
                    Err(other) => place = other,
                }
            } else {
                // Another thread was faster, or the receiver has not come so far.
                let now = self.tail.load(Ordering::Relaxed);
                if now == place {
                    return Put::Full;
                }
                place = now;
            }
        };
        let len = len.min(room_of(slots));
        // SAFETY: the slots are the sender's by their turns, and of the sender's threads this one's, which
        // has moved the tail over them. They follow each other in the memory, and are long enough for the
        // first one's head and `len` octets.
        let octets =
            unsafe { slice::from_raw_parts_mut(self.slot(place).add(HEAD_LEN).as_ptr(), len) };
        let written = write(packets, octets);
        let of = |number: u64| u16::try_from(number).unwrap_or(u16::MAX);
        (meta.slots, meta.packets) = (of(slots), of(packets.into()));
        meta.len = match written {
            Ok(()) => u32::try_from(len).unwrap_or(0),
            Err(_) => 0,
        };
        let head = self.head(place);
        // SAFETY: as above.
        unsafe { head.meta.get().write(meta) };
        head.turn.store(turn_of(place) + 1, Ordering::Release);
        match written {
            Ok(()) => Put::Done(packets),
            Err(error) => Put::Failed(error),
        }
    }

    /// Puts in whatever a sender may write, which passes on as many slots as it says. False if there is no
    /// room.
    #[cfg(test)]
    pub(super) fn put_anything(&self, meta: Meta, fill: impl FnOnce(&mut [u8])) -> bool {
        let place = self.tail.load(Ordering::Relaxed);
        let slots = u64::from(meta.slots).clamp(1, SLOTS - place % SLOTS);
        let most = u32::try_from(slots).unwrap();
        if self.free_from(place, most) < most {
            return false;
        }
        let len = room_of(slots).min(meta.len as usize);
        // SAFETY: the slots are free, and this is the only thread.
        fill(unsafe { slice::from_raw_parts_mut(self.slot(place).add(HEAD_LEN).as_ptr(), len) });
        self.tail.store(place + slots, Ordering::Relaxed);
        let head = self.head(place);
        // SAFETY: as above.
        unsafe { head.meta.get().write(meta) };
        head.turn.store(turn_of(place) + 1, Ordering::Release);
        true
    }

    /// After packets were put in: whether the receiver is to be woken.
    pub(super) fn must_wake(&self) -> bool {
        self.front().asleep.0.take()
    }

    /// Whether the receiver sleeps until it is woken.
    #[cfg(test)]
    pub(super) fn is_asleep(&self) -> bool {
        self.front().asleep.0.is_made()
    }

    /// The receiver is about to sleep until it is woken. Whether it may: otherwise there are packets.
    /// `place` is asked behind the wish: another thread may have moved it.
    pub(super) fn sleep(&self, place: impl FnOnce() -> u64) -> bool {
        self.front().asleep.0.make();
        !self.is_ready(place())
    }

    /// The sender waits until it is woken. Whether it may: otherwise there is room.
    pub(super) fn want_room(&self) -> bool {
        self.front().wants_room.0.make();
        !self.has_room()
    }

    /// After packets were taken out: whether the sender is to be woken.
    pub(super) fn must_offer_room(&self) -> bool {
        self.front().wants_room.0.take()
    }

    /// Whether there is a packet at the receiver's place.
    pub(super) fn is_ready(&self, place: u64) -> bool {
        self.head(place).turn.load(Ordering::Acquire) == turn_of(place) + 1
    }

    /// The packets and trains at the receiver's place and behind it, which have `most` slots and one train
    /// more at most. They are the receiver's until what this returns is dropped; then the place is behind
    /// them.
    pub(super) fn take<'a>(&'a self, place: &'a mut u64, most: u64) -> Taken<'a> {
        let mut metas = SmallVec::new();
        let begin = *place;
        let mut next = begin;
        while next - begin < most.min(SLOTS) && self.is_ready(next) {
            // SAFETY: the slot is the receiver's by its turn, and this thread's, which has the receiver's
            // place; the sender leaves it alone until `Taken` is dropped. Any octets are a Meta.
            let mut meta = unsafe { self.head(next).meta.get().read() };
            // Whatever the sender has written there.
            let slots = u64::from(meta.slots).clamp(1, SLOTS - next % SLOTS);
            let len = (meta.len as usize).min(room_of(slots));
            meta.len = u32::try_from(len).unwrap_or(0);
            metas.push((meta, next));
            next += slots;
        }
        Taken {
            ring: self,
            place,
            metas,
            next,
        }
    }

    /// The receiver looks from now on.
    pub(super) fn accept(&self) {
        self.front().state.0.store(ACCEPTED, Ordering::Release);
    }

    /// The receiver does not look.
    pub(super) fn close(&self) {
        self.front().state.0.store(CLOSED, Ordering::Release);
    }

    pub(super) fn is_accepted(&self) -> bool {
        self.front().state.0.load(Ordering::Acquire) == ACCEPTED
    }

    pub(super) fn is_closed(&self) -> bool {
        self.front().state.0.load(Ordering::Acquire) == CLOSED
    }

    pub(super) fn is_offered(&self) -> bool {
        self.front().state.0.load(Ordering::Acquire) == OFFERED
    }
}

/// Packets and trains that the receiver has taken.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    ring: &'a Ring,
    place: &'a mut u64,
    /// Their heads, and where they begin.
    metas: SmallVec<[(Meta, u64); 32]>,
    /// The place behind them.
    next: u64,
}

impl Taken<'_> {
    /// How many slots they have.
    pub(super) const fn slots(&self) -> u64 {
        self.next - *self.place
    }

    /// How many packets they are, those of trains counted each.
    pub(super) fn packets(&self) -> usize {
        self.metas.iter().map(|(meta, _)| meta.packets()).sum()
    }

    /// A packet or train by its number.
    pub(super) fn get(&self, index: usize) -> Option<(&Meta, &[u8])> {
        let (meta, place) = self.metas.get(index)?;
        let start = self.ring.slot(*place);
        // SAFETY: the slots are the receiver's since `take`, which has borrowed the receiver's place, and
        // has seen to it that the length is not more than that of slots inside the memory. A sender that did
        // not keep to it could write to this process's memory in other ways, too; see the top of the file.
        let octets =
            unsafe { slice::from_raw_parts(start.add(HEAD_LEN).as_ptr(), meta.len as usize) };
        Some((meta, octets))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for place in *self.place..self.next {
            let turn = &self.ring.head(place).turn;
            turn.store(turn_of(place) + 2, Ordering::Release);
        }
        *self.place = self.next;
    }
}

#[cfg(test)]
mod tests;
