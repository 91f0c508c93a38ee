//! A ring of packets in memory that two processes share: one puts packets in, from any of its threads;
//! the other takes them out, one thread at a time.
//!
//! The first page of the memory holds what the two tell each other, and behind it are the slots, each
//! for one packet. A slot's turn says whose it is: an even number, the sender's; an odd one, the
//! receiver's; each passes it on by adding one. In new memory, all zeros, every slot is the sender's.
//!
//! The two trust each other as far as one user's processes do, which may read and write each other's
//! memory anyway. What a receiver finds is checked as if it came from a network, but for the ICRC.

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
const LAYOUT: u64 = 0x0001_736f_6674_7662;

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
    /// Octets of the packet; 0: there is none.
    pub(super) len: u16,
    /// 4 or 6.
    pub(super) family: u8,
    pub(super) traffic_class: u8,
    pub(super) source_port: u16,
    /// See [`AFTER_SOCKETS`].
    pub(super) flags: u16,
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
        && MAX_PACKET <= u16::MAX as usize
);

/// The turn of a place, before its sender has used it.
const fn turn_of(place: u64) -> u64 {
    place / SLOTS * 2
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

/// What became of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Put<E> {
    Done,
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

    /// Puts in a packet of `meta.len` octets, of [`MAX_PACKET`] at most, which `write` fills in.
    pub(super) fn put<E>(
        &self,
        mut meta: Meta,
        write: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Put<E> {
        let mut place = self.tail.load(Ordering::Relaxed);
        loop {
            let turn = self.head(place).turn.load(Ordering::Acquire);
            if turn == turn_of(place) {
                let next = place.wrapping_add(1);
                let moved = self.tail.compare_exchange_weak(
                    place,
                    next,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                match moved {
                    Ok(_) => break,
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
        }
        let len = usize::from(meta.len).min(MAX_PACKET);
        // SAFETY: the slot is the sender's by its turn, and of the sender's threads this one's, which has
        // moved the tail over it. It is long enough for its head and `len` octets.
        let octets =
            unsafe { slice::from_raw_parts_mut(self.slot(place).add(HEAD_LEN).as_ptr(), len) };
        let written = write(octets);
        if written.is_err() {
            meta.len = 0;
        }
        let head = self.head(place);
        // SAFETY: as above.
        unsafe { head.meta.get().write(meta) };
        head.turn.store(turn_of(place) + 1, Ordering::Release);
        match written {
            Ok(()) => Put::Done,
            Err(error) => Put::Failed(error),
        }
    }

    /// After packets were put in: whether the receiver is to be woken.
    pub(super) fn must_wake(&self) -> bool {
        self.front().asleep.0.take()
    }

    /// The receiver is about to sleep until it is woken. Whether it may: otherwise there are packets.
    pub(super) fn sleep(&self, place: u64) -> bool {
        self.front().asleep.0.make();
        !self.is_ready(place)
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

    /// The packets at the receiver's place and behind it, `most` at most. They are the receiver's
    /// until what this returns is dropped; then the place is behind them.
    pub(super) fn take<'a>(&'a self, place: &'a mut u64, most: u64) -> Taken<'a> {
        let ready = (0..most.min(SLOTS)).take_while(|n| self.is_ready(place.wrapping_add(*n)));
        let count = ready.count() as u64;
        Taken {
            ring: self,
            place,
            count,
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

/// Packets that the receiver has taken.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    ring: &'a Ring,
    place: &'a mut u64,
    count: u64,
}

impl Taken<'_> {
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// A packet by its number.
    pub(super) fn get(&self, index: u64) -> Option<(Meta, &[u8])> {
        if index >= self.count {
            return None;
        }
        let place = self.place.wrapping_add(index);
        // SAFETY: the slot is the receiver's by its turn, and has been since `take`, which has borrowed
        // the receiver's place: no other thread takes it, and the sender leaves it alone until `drop`.
        // Any octets are a Meta.
        let meta = unsafe { self.ring.head(place).meta.get().read() };
        let len = usize::from(meta.len).min(MAX_PACKET);
        // SAFETY: as above; the length is not more than that of the slot. A sender that did not keep to
        // it could write to this process's memory in other ways, too; see the top of the file.
        let octets =
            unsafe { slice::from_raw_parts(self.ring.slot(place).add(HEAD_LEN).as_ptr(), len) };
        Some((meta, octets))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for place in *self.place..*self.place + self.count {
            let turn = &self.ring.head(place).turn;
            turn.store(turn_of(place) + 2, Ordering::Release);
        }
        *self.place += self.count;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::os::fd::AsFd;
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn meta(len: usize) -> Meta {
        Meta {
            len: u16::try_from(len).unwrap(),
            family: 4,
            ..Meta::default()
        }
    }

    fn put(ring: &Ring, octets: &[u8]) -> Put<Infallible> {
        ring.put(meta(octets.len()), |room| {
            room.copy_from_slice(octets);
            Ok(())
        })
    }

    /// Both ends, as two processes have them.
    fn pair() -> (Ring, Ring) {
        let (sender, file) = Ring::create().unwrap();
        let receiver = Ring::open(file.as_fd()).unwrap();
        (sender, receiver)
    }

    fn all(receiver: &Ring, place: &mut u64) -> Vec<Vec<u8>> {
        let taken = receiver.take(place, SLOTS);
        (0..taken.count())
            .map(|index| taken.get(index).unwrap().1.to_vec())
            .collect()
    }

    #[test]
    fn packets_come_out_in_their_order() {
        let (sender, receiver) = pair();
        let mut place = 0;
        assert!(!receiver.is_ready(place));
        for round in 0..300_u64 {
            let long = vec![7; MAX_PACKET];
            assert_eq!(put(&sender, &round.to_ne_bytes()), Put::Done);
            assert_eq!(put(&sender, &long), Put::Done);
            assert!(receiver.is_ready(place));
            let got = all(&receiver, &mut place);
            assert_eq!(got, [round.to_ne_bytes().to_vec(), long]);
        }
        assert_eq!(place, 600);
    }

    #[test]
    fn a_full_ring_takes_no_more() {
        let (sender, receiver) = pair();
        let mut place = 0;
        for _ in 0..3 {
            for octet in 0..SLOTS {
                assert!(sender.has_room());
                assert_eq!(put(&sender, &octet.to_ne_bytes()), Put::Done);
            }
            assert!(!sender.has_room());
            assert_eq!(put(&sender, b"one more"), Put::Full);
            drop(receiver.take(&mut place, 1));
            assert_eq!(put(&sender, b"one more"), Put::Done);
            assert_eq!(put(&sender, b"two more"), Put::Full);
            let got = all(&receiver, &mut place);
            assert_eq!(got.len() as u64, SLOTS);
            assert_eq!(got.last().unwrap(), b"one more");
        }
    }

    #[test]
    fn what_cannot_be_written_is_no_packet() {
        let (sender, receiver) = pair();
        assert_eq!(sender.put(meta(5), |_| Err("gone")), Put::Failed("gone"));
        assert_eq!(put(&sender, b"behind"), Put::Done);
        let got = all(&receiver, &mut 0);
        assert_eq!(got, [b"".to_vec(), b"behind".to_vec()]);
    }

    #[test]
    fn who_sleeps_is_woken_once() {
        let (sender, receiver) = pair();
        assert!(!sender.must_wake());
        assert!(receiver.sleep(0));
        assert!(sender.must_wake());
        assert!(!sender.must_wake());
        assert_eq!(put(&sender, b"x"), Put::Done);
        assert!(!receiver.sleep(0), "there is a packet");
        assert!(!sender.want_room(), "there is room");
        assert!(receiver.must_offer_room());
        assert!(!receiver.must_offer_room());
    }

    #[test]
    fn nothing_but_a_ring_is_opened() {
        let (_memory, other) = Shared::create(RING_LEN).unwrap();
        assert!(Ring::open(other.as_fd()).is_err(), "another layout");
        let (_memory, short) = Shared::create(RING_LEN - 1).unwrap();
        assert!(Ring::open(short.as_fd()).is_err(), "too short");
    }

    /// Several threads put in, one takes out: everything once, that of each thread in its order.
    #[test]
    fn threads() {
        const EACH: u64 = 20_000;
        const THREADS: u64 = 3;
        let (sender, receiver) = pair();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (sender, done) = (&sender, &done);
                scope.spawn(move || {
                    let mut number = 0;
                    while number < EACH && !done.load(Ordering::Relaxed) {
                        let octets = (thread << 32 | number).to_ne_bytes().repeat(1 + 20);
                        match put(sender, &octets) {
                            Put::Done => number += 1,
                            _ => std::thread::yield_now(),
                        }
                    }
                });
            }
            let mut next = [0; 3];
            let mut place = 0;
            while place < THREADS * EACH {
                let taken = receiver.take(&mut place, 32);
                for index in 0..taken.count() {
                    let (_, octets) = taken.get(index).unwrap();
                    let word = octets.first_chunk().unwrap();
                    assert_eq!(octets, word.repeat(1 + 20));
                    let word = u64::from_ne_bytes(*word);
                    let thread = usize::try_from(word >> 32).unwrap();
                    // Ends the threads when it fails.
                    let expected = next[thread];
                    done.store(word & 0xffff_ffff != expected, Ordering::Relaxed);
                    assert_eq!(word & 0xffff_ffff, expected);
                    next[thread] += 1;
                }
                if taken.count() == 0 {
                    drop(taken);
                    std::thread::yield_now();
                }
            }
        });
    }
}
