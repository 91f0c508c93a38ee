//! Two rings of octets in memory that two processes share, one for each direction of a connection.
//!
//! The first page holds what the two tell each other ([`Flow`]). Who puts in or takes out much says so in
//! steps, so that the other one is at work meanwhile.
//!
//! The two trust each other as far as one user's processes do, which may read and write each other's
//! memory anyway. What is taken out is copied before anybody looks at it, and then is checked as if it
//! came from a network.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::board::Board;
use super::flow::Flow;
use super::line::Line;
use super::memory::Shared;
use crate::engine::sys::IoList;

/// Octets of a ring; a power of two. More would not stay in the caches of the two.
pub(crate) const LEN: usize = 256 << 10;
/// So many octets are passed on together.
const STEP: usize = 32 << 10;
const FRONT_LEN: usize = 4096;
const ALL_LEN: usize = FRONT_LEN + 2 * LEN;
/// Says how the memory is laid out, and that somebody has made it.
const LAYOUT: u64 = 0x0001_6977_6172_7062;

/// The other one has not said anything yet.
const OFFERED: u32 = 0;
/// Both have them.
const ACCEPTED: u32 = 1;
/// Too late.
const WITHDRAWN: u32 = 2;

/// The first page.
#[repr(C)]
#[derive(Debug)]
struct FirstPage {
    /// Written once, by who has made it.
    layout: Line<AtomicU64>,
    /// What has become of the offer.
    state: Line<AtomicU32>,
    /// From who has made it, to it.
    flows: [Flow; 2],
    /// What the receivers grant, in the same order.
    boards: [Board; 2],
}

const _: () = assert!(LEN.is_power_of_two() && size_of::<FirstPage>() <= FRONT_LEN);

/// The memory, as one of the two sees it.
#[derive(Debug)]
pub(crate) struct Pipes {
    memory: Shared,
    /// Which of the directions leads away from this process.
    outward: usize,
}

/// Where the octets of one direction go in. One thread at a time.
#[derive(Debug)]
pub(crate) struct Outlet {
    pipes: Arc<Pipes>,
    /// Octets put in, and of those that were taken out as far as is known.
    tail: u64,
    head: u64,
}

/// Where those of the other direction come out. One thread at a time.
#[derive(Debug)]
pub(crate) struct Inlet {
    pipes: Arc<Pipes>,
    head: u64,
}

/// What a process has of the memory.
pub(crate) type Ends = (Arc<Pipes>, Outlet, Inlet);

impl Pipes {
    /// New ones, and the file that leads the other process to them.
    pub(crate) fn create() -> io::Result<(Ends, OwnedFd)> {
        let (memory, file) = Shared::create(ALL_LEN)?;
        let pipes = Self { memory, outward: 0 };
        pipes.page().layout.0.store(LAYOUT, Ordering::Release);
        Ok((pipes.ends(), file))
    }

    /// Those that another process has made.
    pub(crate) fn open(file: BorrowedFd<'_>) -> io::Result<Ends> {
        let memory = Shared::open(file, ALL_LEN)?;
        let pipes = Self { memory, outward: 1 };
        if pipes.page().layout.0.load(Ordering::Acquire) != LAYOUT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(pipes.ends())
    }

    /// The only ones of this process.
    fn ends(self) -> Ends {
        let pipes = Arc::new(self);
        let outlet = Outlet {
            pipes: Arc::clone(&pipes),
            tail: 0,
            head: 0,
        };
        let inlet = Inlet {
            pipes: Arc::clone(&pipes),
            head: 0,
        };
        (pipes, outlet, inlet)
    }

    fn page(&self) -> &FirstPage {
        // SAFETY: the memory begins with a page, is longer than `FirstPage`, lives as long as `self`, and
        // has atomics there only.
        unsafe { self.memory.start().cast::<FirstPage>().as_ref() }
    }

    fn outward(&self) -> &Flow {
        &self.page().flows[self.outward]
    }

    fn inward(&self) -> &Flow {
        &self.page().flows[1 - self.outward]
    }

    /// The place of an octet by its number, and how many follow it up to the end of the ring.
    #[allow(clippy::cast_possible_truncation, reason = "less than LEN")]
    fn place(&self, direction: usize, number: u64) -> (NonNull<u8>, usize) {
        let offset = (number % LEN as u64) as usize;
        // SAFETY: `direction` is 0 or 1 and `offset` less than LEN, so that this is inside the memory.
        let place = unsafe {
            self.memory
                .start()
                .add(FRONT_LEN + direction * LEN + offset)
        };
        (place, LEN - offset)
    }

    /// Says that this process, which did not make them, has them, too. Whether it is in time.
    pub(crate) fn accept(&self) -> bool {
        self.settle(ACCEPTED)
    }

    /// Says that this process, which has made them, does not wait for the other one any more. Whether it
    /// is in time.
    pub(crate) fn withdraw(&self) -> bool {
        self.settle(WITHDRAWN)
    }

    fn settle(&self, to: u32) -> bool {
        let state = &self.page().state.0;
        state
            .compare_exchange(OFFERED, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Whether both have them.
    pub(crate) fn are_accepted(&self) -> bool {
        self.page().state.0.load(Ordering::Acquire) == ACCEPTED
    }

    /// What this process grants the other one.
    pub(crate) fn granted(&self) -> &Board {
        &self.page().boards[1 - self.outward]
    }

    /// What the other one grants this process.
    pub(crate) fn granting(&self) -> &Board {
        &self.page().boards[self.outward]
    }

    /// Whether the receiver has everything in its place.
    pub(crate) fn is_done(&self) -> bool {
        self.outward().is_done()
    }

    /// Whether there is something to take out.
    pub(crate) fn is_ready(&self) -> bool {
        self.inward().is_ready()
    }

    /// Octets that the receiver has taken out.
    pub(crate) fn taken(&self) -> u64 {
        self.outward().head()
    }

    /// Whether there is enough room for who waits for it.
    pub(crate) fn has_room(&self) -> bool {
        self.outward().has_room(LEN as u64)
    }

    /// See [`Flow::sleep`].
    pub(crate) fn sleep(&self) -> bool {
        self.inward().sleep()
    }

    /// See [`Flow::want_room`].
    pub(crate) fn want_room(&self) -> bool {
        self.outward().want_room(LEN as u64)
    }

    /// How many octets the other one has sent another way before it went over to the ring, if it has.
    pub(crate) fn sent_before(&self) -> Option<u64> {
        self.inward().sent_before()
    }
}

impl Outlet {
    /// From here on everything goes by the ring, behind so many octets that went another way.
    pub(crate) fn begin(&self, before: u64) {
        self.pipes.outward().begin(before);
    }

    /// Puts in what there is room for, from the beginning of a list. How many octets it was. `wake` if the
    /// receiver is to be woken.
    pub(crate) fn put(&mut self, list: &IoList<'_>, wake: impl Fn()) -> usize {
        let Self { pipes, tail, head } = self;
        let flow = pipes.outward();
        if room(*tail, *head) < list.len() {
            *head = flow.head();
        }
        let total = room(*tail, *head).min(list.len());
        let pass_on = |tail| {
            if flow.pass_on(tail) {
                wake();
            }
        };
        let (mut left, mut step) = (total, 0);
        for (start, len) in list.places() {
            let (mut from, mut part) = (start.cast_const(), len.min(left));
            left -= part;
            while part > 0 {
                let (place, space) = pipes.place(pipes.outward, *tail);
                let count = part.min(space).min(STEP - step);
                // SAFETY: the list is of memory that stays valid as long as it does, `count` octets of
                // this element are left, and so many fit in up to the end of the ring. The receiver reads
                // none of them before `tail` is behind them, and has taken what was there, as `room` says.
                unsafe { ptr::copy_nonoverlapping(from, place.as_ptr(), count) };
                from = from.wrapping_add(count);
                *tail = tail.wrapping_add(count as u64);
                part -= count;
                step += count;
                if step == STEP {
                    step = 0;
                    pass_on(*tail);
                }
            }
            if left == 0 {
                break;
            }
        }
        if step > 0 {
            pass_on(*tail);
        }
        total
    }
}

/// Octets that fit in. A receiver that says what cannot be gets nothing.
#[allow(clippy::cast_possible_truncation, reason = "LEN at most")]
const fn room(tail: u64, head: u64) -> usize {
    (LEN as u64).saturating_sub(tail.wrapping_sub(head)) as usize
}

impl Inlet {
    /// What has been taken out is in its place.
    pub(crate) fn finish(&self) {
        self.pipes.inward().finish(self.head);
    }

    /// Takes out what there is, into the rooms of a list, from the first one on. How many octets it was.
    /// `wake` if the sender is to be woken. Fails when the sender says what cannot be.
    pub(crate) fn take(&mut self, list: &mut IoList<'_>, wake: impl Fn()) -> io::Result<usize> {
        let Self { pipes, head } = self;
        let flow = pipes.inward();
        let ready = flow.tail().wrapping_sub(*head);
        let ready = usize::try_from(ready)
            .ok()
            .filter(|ready| *ready <= LEN)
            .ok_or(io::ErrorKind::InvalidData)?;
        let total = ready.min(list.len());
        let give_back = |head| {
            if flow.give_back(head, LEN as u64) {
                wake();
            }
        };
        let (mut left, mut step) = (total, 0);
        for (start, len) in list.places() {
            let (mut to, mut part) = (start, len.min(left));
            left -= part;
            while part > 0 {
                let (place, space) = pipes.place(1 - pipes.outward, *head);
                let count = part.min(space).min(STEP - step);
                // SAFETY: the list is of memory that stays valid as long as it does, `count` octets of
                // this element are left, and so many are in the ring up to its end. The sender has passed
                // them on, and leaves them alone until `head` is behind them; one that does not changes
                // what is copied, as it might have done before.
                unsafe { ptr::copy_nonoverlapping(place.as_ptr(), to, count) };
                to = to.wrapping_add(count);
                *head = head.wrapping_add(count as u64);
                part -= count;
                step += count;
                if step == STEP {
                    step = 0;
                    give_back(*head);
                }
            }
            if left == 0 {
                break;
            }
        }
        if step > 0 {
            give_back(*head);
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::AsFd;

    use super::*;

    fn pair() -> (Ends, Ends) {
        let (one, file) = Pipes::create().unwrap();
        let other = Pipes::open(file.as_fd()).unwrap();
        (one, other)
    }

    /// Octets of a stream by their number.
    fn octets(from: usize, len: usize) -> Vec<u8> {
        (from..from + len)
            .map(|n| u8::try_from((n ^ n >> 8 ^ n >> 16) & 0xff).unwrap())
            .collect()
    }

    fn put(outlet: &mut Outlet, parts: &[&[u8]]) -> usize {
        let mut list = IoList::new();
        parts.iter().for_each(|part| list.push_out(part));
        outlet.put(&list, || {})
    }

    fn take(inlet: &mut Inlet, lens: &[usize]) -> Vec<u8> {
        let mut rooms: Vec<_> = lens.iter().map(|len| vec![0; *len]).collect();
        let mut list = IoList::new();
        rooms.iter_mut().for_each(|room| list.push_in(room));
        let got = inlet.take(&mut list, || {}).unwrap();
        drop(list);
        let mut all = rooms.concat();
        all.truncate(got);
        all
    }

    #[test]
    fn octets_come_out_in_their_order_wherever_the_ring_ends() {
        let ((_, mut outlet, mut back), (_, mut other, mut inlet)) = pair();
        let (mut sent, mut got) = (0, 0);
        for round in 1..400_usize {
            let len = round * 7919 % 70_000;
            let all = octets(sent, len);
            let (first, rest) = all.split_at(len / 3);
            sent += put(&mut outlet, &[first, &[], rest]);
            let came = take(&mut inlet, &[round % 5, round * 104_729 % 90_000]);
            assert_eq!(came, octets(got, came.len()), "{round}");
            got += came.len();
            // The other direction knows nothing of it.
            assert_eq!(put(&mut other, &[b"back"]), 4);
            assert_eq!(take(&mut back, &[9]), b"back");
        }
        assert!(sent > 10 * LEN);
        while got < sent {
            let came = take(&mut inlet, &[LEN]);
            assert!(!came.is_empty() && came == octets(got, came.len()));
            got += came.len();
        }
        assert!(take(&mut inlet, &[LEN]).is_empty());
    }

    #[test]
    fn a_full_ring_takes_a_part_and_then_nothing() {
        let ((pipes, mut outlet, _), (_, _, mut inlet)) = pair();
        let all = octets(0, LEN + 100);
        assert!(pipes.has_room());
        assert_eq!(put(&mut outlet, &[&all[..LEN - 5]]), LEN - 5);
        assert!(!pipes.has_room());
        assert_eq!(put(&mut outlet, &[&all[LEN - 5..]]), 5);
        assert_eq!(put(&mut outlet, &[&all[LEN..]]), 0);
        assert_eq!(take(&mut inlet, &[3]), all[..3]);
        assert_eq!(put(&mut outlet, &[&all[LEN..]]), 3);
        assert_eq!(take(&mut inlet, &[2 * LEN]), all[3..LEN + 3]);
        assert!(pipes.has_room());
    }

    #[test]
    fn who_sleeps_is_woken_once() {
        let ((sender, mut outlet, _), (receiver, _, mut inlet)) = pair();
        let woken = Cell::new(0);
        let mut put = |octets: &[u8]| {
            let mut list = IoList::new();
            list.push_out(octets);
            outlet.put(&list, || woken.set(woken.get() + 1));
            woken.take()
        };
        assert_eq!(put(b"x"), 0, "nobody sleeps");
        assert!(!receiver.sleep(), "there is something");
        assert_eq!(take(&mut inlet, &[9]), b"x");
        assert_eq!(put(b"x"), 1, "he said so before");
        assert_eq!(take(&mut inlet, &[9]), b"x");
        assert!(receiver.sleep());
        assert_eq!(put(&[0; LEN]), 1);
        assert_eq!(put(b"x"), 0);
        assert!(sender.want_room());
        let mut taken = |len: usize| {
            let mut room = vec![0; len];
            let mut list = IoList::new();
            list.push_in(&mut room);
            let got = inlet.take(&mut list, || woken.set(woken.get() + 1));
            assert_eq!(got.unwrap(), len);
            woken.take()
        };
        assert_eq!(taken(LEN / 4 - 1), 0, "not enough room");
        assert!(sender.want_room());
        assert_eq!(taken(LEN / 2), 1);
        assert!(!sender.want_room(), "there is room");
    }

    #[test]
    fn one_says_when_it_goes_over() {
        let ((one, outlet, _), (other, ..)) = pair();
        assert!(!one.are_accepted() && other.sent_before().is_none());
        assert!(other.accept());
        assert!(one.are_accepted() && !one.withdraw() && one.are_accepted());
        outlet.begin(0);
        assert_eq!((other.sent_before(), one.sent_before()), (Some(0), None));
        let ((one, ..), (other, ..)) = pair();
        assert!(one.withdraw() && !other.accept() && !one.are_accepted());
    }

    #[test]
    fn one_says_when_all_is_in_its_place() {
        let ((one, mut outlet, _), (_, _, mut inlet)) = pair();
        assert!(!one.is_done(), "nobody has come to the ring yet");
        inlet.finish();
        assert!(one.is_done());
        put(&mut outlet, &[b"some"]);
        assert!(!one.is_done());
        take(&mut inlet, &[9]);
        assert!(!one.is_done(), "taken out only");
        inlet.finish();
        assert!(one.is_done());
    }

    #[test]
    fn a_count_that_cannot_be_ends_it() {
        let ((_, mut outlet, _), (receiver, _, mut inlet)) = pair();
        put(&mut outlet, &[b"some"]);
        let flow = receiver.inward();
        flow.pass_on(LEN as u64 + 1);
        let mut room = [0; 8];
        let mut list = IoList::new();
        list.push_in(&mut room);
        assert!(inlet.take(&mut list, || {}).is_err());
        flow.give_back(9, LEN as u64);
        assert_eq!(put(&mut outlet, &[&[0; LEN]]), 0, "more taken than put in");
    }

    #[test]
    fn nothing_but_such_memory_is_opened() {
        let (_memory, other) = Shared::create(ALL_LEN).unwrap();
        assert!(Pipes::open(other.as_fd()).is_err(), "another layout");
        let (_memory, short) = Shared::create(ALL_LEN - 1).unwrap();
        assert!(Pipes::open(short.as_fd()).is_err(), "too short");
    }

    /// Both at work at the same time.
    #[test]
    fn two_threads() {
        const ALL: usize = 16 * LEN;
        let ((_, mut outlet, _), (_, _, mut inlet)) = pair();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut sent = 0;
                while sent < ALL {
                    let len = (1 + sent * 31 % 50_000).min(ALL - sent);
                    match put(&mut outlet, &[&octets(sent, len)]) {
                        0 => std::thread::yield_now(),
                        took => sent += took,
                    }
                }
            });
            let mut got = 0;
            while got < ALL {
                let came = take(&mut inlet, &[1 + got * 17 % 40_000]);
                assert_eq!(came, octets(got, came.len()));
                got += came.len();
                if came.is_empty() {
                    std::thread::yield_now();
                }
            }
        });
    }
}
