//! Registered memory.

mod stress;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::Duration;

use super::*;

const PD: u32 = 7;
const PAGE: usize = 4096;

fn all_rights() -> Access {
    Access::all() - Access::ZERO_BASED
}

/// Memory straight from the kernel. Touching it after it is gone kills the process.
struct Mapping {
    base: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> Self {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nobody.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let base = base.cast();
        Self { base, len }
    }

    fn fill(&self, octet: u8) {
        // SAFETY: the mapping is valid for writes of its length, and nobody else knows it yet.
        unsafe { self.base.write_bytes(octet, self.len) };
    }

    fn region(&self, access: Access) -> Region {
        Region {
            base: self.base,
            len: self.len,
            iova: self.base.addr() as u64,
            access,
            pd: PD,
        }
    }

    fn register(&self, table: &MrTable, access: Access) -> u32 {
        // SAFETY: each test keeps its mappings until it has deregistered them, or to its end.
        unsafe { table.register(&self.region(access)) }.unwrap()
    }

    /// Takes all rights to the pages away, but keeps the addresses from being used again.
    fn forbid(&self) {
        // SAFETY: it is our own mapping; whoever still used it would break this test's rules.
        let result = unsafe { libc::mprotect(self.base.cast(), self.len, libc::PROT_NONE) };
        assert_eq!(result, 0);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is our own mapping, and nothing uses it any more.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

fn lkey(key: u32) -> Lkey {
    Lkey::new(key)
}

#[test]
fn checks_in_the_order_of_the_rfc() {
    let table = MrTable::new().unwrap();
    let memory = Mapping::new(PAGE);
    let key = memory.register(&table, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let base = memory.base.addr() as u64;
    let len = PAGE as u64;
    let check = |addr, len, need| table.check(key, addr, len, need, PD);
    let read = Access::REMOTE_READ;

    assert_eq!(check(base, len, read), Ok(()));
    assert_eq!(check(base + len - 1, 1, read), Ok(()));
    assert_eq!(check(base, 1, Access::LOCAL_WRITE), Ok(()));
    assert_eq!(check(base, 1, Access::empty()), Ok(()));
    for (addr, len) in [
        (base - 1, 1),
        (base - 1, 2),
        (base, len + 1),
        (base + 1, len),
        (base + len, 1),
        (0, 1),
        (base, u64::MAX - base),
        // The last octet of the address space: far outside, but nothing wraps.
        (u64::MAX, 1),
    ] {
        assert_eq!(
            check(addr, len, read),
            Err(MemoryFault::Bounds),
            "{addr:#x} {len}"
        );
    }
    for (addr, len) in [
        (u64::MAX, 2),
        (base, u64::MAX),
        (base + 1, u64::MAX - base + 1),
    ] {
        assert_eq!(
            check(addr, len, read),
            Err(MemoryFault::Wrap),
            "{addr:#x} {len}"
        );
    }
    // No octets lie nowhere.
    assert_eq!(check(0, 0, read), Ok(()));
    assert_eq!(check(u64::MAX, 0, read), Ok(()));

    assert_eq!(check(0, 1, Access::REMOTE_WRITE), Err(MemoryFault::Access));
    assert_eq!(check(0, 1, Access::REMOTE_ATOMIC), Err(MemoryFault::Access));
    let other = table.check(key, 0, 1, Access::REMOTE_WRITE, PD + 1);
    assert_eq!(other, Err(MemoryFault::WrongPd));
    table.dereg(key).unwrap();
    let gone = table.check(key, 0, 1, Access::REMOTE_WRITE, PD + 1);
    assert_eq!(gone, Err(MemoryFault::InvalidKey));
    assert_eq!(table.dereg(key), Err(MemoryFault::InvalidKey));
}

#[test]
fn copies_exactly_and_touches_nothing_on_an_error() {
    let table = MrTable::new().unwrap();
    let memory = Mapping::new(3 * PAGE);
    memory.fill(0xee);
    // Neither end is on any boundary.
    let region = Region {
        base: memory.base.wrapping_add(PAGE + 3),
        len: 100,
        iova: 5,
        ..memory.region(Access::LOCAL_WRITE)
    };
    // SAFETY: inside of the mapping, which lives longer than the table's use of it.
    let key = lkey(unsafe { table.register(&region) }.unwrap());

    table.write(key, 5, &[1; 100], PD).unwrap();
    table.write(key, 7, &[2, 3], PD).unwrap();
    let mut out = [0; 4];
    table.read(key, 6, &mut out, PD).unwrap();
    assert_eq!(out, [1, 2, 3, 1]);

    assert_eq!(table.write(key, 4, &[9; 100], PD), Err(MemoryFault::Bounds));
    assert_eq!(table.write(key, 6, &[9; 100], PD), Err(MemoryFault::Bounds));
    assert_eq!(
        table.write(key, 5, &[9; 100], PD + 1),
        Err(MemoryFault::WrongPd)
    );
    assert_eq!(table.read(key, 103, &mut out, PD), Err(MemoryFault::Bounds));
    assert_eq!(out, [1, 2, 3, 1]);
    // Nothing to copy, nothing to check.
    table.read(lkey(0), 0, &mut [], 0).unwrap();
    table.write(lkey(0), 0, &[], 0).unwrap();

    let whole = memory.register(&table, Access::empty());
    let mut octets = vec![0; 3 * PAGE];
    let base = memory.base.addr() as u64;
    table.read(lkey(whole), base, &mut octets, PD).unwrap();
    let mut expected = vec![0xee; 3 * PAGE];
    expected[PAGE + 3..PAGE + 103].fill(1);
    expected[PAGE + 5..PAGE + 7].copy_from_slice(&[2, 3]);
    assert_eq!(octets, expected);
    let refused = table.write(lkey(whole), base, &[0], PD);
    assert_eq!(refused, Err(MemoryFault::Access));

    let (pin, start) = table.iovec(key, 15, 90, Access::LOCAL_WRITE, PD).unwrap();
    assert_eq!(start, region.base.wrapping_add(10));
    assert_eq!((pin.addr(), pin.len(), pin.pd()), (5, 100, PD));
}

#[test]
fn atomics_are_atomic_for_everybody() {
    let table = MrTable::new().unwrap();
    let memory = Mapping::new(PAGE);
    let key = Rkey::new(memory.register(&table, all_rights()));
    let base = memory.base.addr() as u64;
    // SAFETY: aligned, and mapped until the end of the test.
    let word = unsafe { AtomicU64::from_ptr(memory.base.wrapping_add(8).cast()) };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    table.atomic(key, base + 8, PD, |word| word + 1).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..10_000 {
                word.fetch_add(1 << 32, Ordering::Relaxed);
            }
        });
    });
    let before = table.atomic(key, base + 8, PD, |_| 5).unwrap();
    assert_eq!(before, 30_000 + (10_000 << 32));
    assert_eq!(word.load(Ordering::Relaxed), 5);

    let at = |addr| table.atomic(key, addr, PD, |word| word);
    assert_eq!(at(base + 4), Err(MemoryFault::Access));
    assert_eq!(at(base + PAGE as u64), Err(MemoryFault::Bounds));
    assert_eq!(at(base + PAGE as u64 - 7), Err(MemoryFault::Bounds));
    let plain = Rkey::new(memory.register(&table, Access::LOCAL_WRITE));
    let refused = table.atomic(plain, base, PD, |word| word);
    assert_eq!(refused, Err(MemoryFault::Access));
}

#[test]
fn an_invalidated_key_is_closed_to_peers_only() {
    let table = MrTable::new().unwrap();
    let memory = Mapping::new(PAGE);
    let key = memory.register(&table, all_rights());
    let base = memory.base.addr() as u64;
    let check = |need| table.check(key, base, 1, need, PD);
    let rkey = Rkey::new(key);
    assert_eq!(table.invalidate(rkey, PD + 1), Err(MemoryFault::WrongPd));
    assert_eq!(check(Access::REMOTE_WRITE), Ok(()));

    table.invalidate(rkey, PD).unwrap();
    table.invalidate(rkey, PD).unwrap();
    for remote in [
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
    ] {
        assert_eq!(check(remote), Err(MemoryFault::InvalidKey));
    }
    assert_eq!(check(Access::LOCAL_WRITE), Ok(()));
    assert_eq!(check(Access::empty()), Ok(()));
    table.dereg(key).unwrap();
    assert_eq!(table.invalidate(rkey, PD), Err(MemoryFault::InvalidKey));
}

#[test]
fn refuses_nonsense() {
    let table = MrTable::new().unwrap();
    let memory = Mapping::new(PAGE);
    let fine = memory.region(Access::LOCAL_WRITE);
    let wrong = |region: Region| {
        // SAFETY: it must be refused.
        let error = unsafe { table.register(&region) }.unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        error.to_string()
    };
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        assert!(wrong(Region { access, ..fine }).contains("need LOCAL_WRITE"));
    }
    for bit in [6, 7, 8, 9, 19, 30, 31] {
        let access = Access::from_bits_retain(1 << bit);
        assert!(wrong(Region { access, ..fine }).starts_with("access: unknown flags 0x"));
    }
    let len = usize::MAX / 2 + 1;
    assert!(wrong(Region { len, ..fine }).contains("max_mr_size"));
    let len = usize::MAX / 2;
    let base = std::ptr::without_provenance_mut(usize::MAX - 4);
    assert!(
        wrong(Region {
            base,
            len: 6,
            ..fine
        })
        .contains("address space")
    );
    assert!(
        wrong(Region {
            iova: u64::MAX - 4,
            ..fine
        })
        .contains("address space")
    );
    let base = std::ptr::null_mut();
    assert!(
        wrong(Region {
            base,
            len,
            iova: 0,
            ..fine
        })
        .contains("null")
    );
    assert_eq!(table.len(), 0);

    // Hints to the hardware are accepted, as is a region without octets.
    let access = Access::from_bits_retain(Access::LOCAL_WRITE.bits() | 1 << 20);
    // SAFETY: the mapping lives to the end of the test.
    let key = unsafe {
        table.register(&Region {
            access,
            len: 0,
            ..fine
        })
    }
    .unwrap();
    assert_eq!(
        table.check(key, fine.iova, 0, Access::LOCAL_WRITE, PD),
        Ok(())
    );
    let outside = table.check(key, fine.iova, 1, Access::LOCAL_WRITE, PD);
    assert_eq!(outside, Err(MemoryFault::Bounds));
    assert_eq!(table.len(), 1);
}

#[test]
fn keys_are_unique_and_do_not_come_back() {
    let table = MrTable::new().unwrap();
    let memory = Mapping::new(PAGE);
    let mut seen = HashSet::new();
    let mut previous = 0;
    for _ in 0..50_000 {
        let key = memory.register(&table, Access::empty());
        assert_ne!(key, 0);
        assert!(seen.insert(key), "{key:#x} came back");
        assert!(table.pin(key).is_some());
        assert!(table.pin(previous).is_none());
        table.dereg(key).unwrap();
        previous = key;
    }
}

#[test]
fn neighbours_of_a_key_are_no_keys() {
    // 4 × 64 keys of 2^32: that one of their neighbours is valid by chance is unlikely.
    for _ in 0..4 {
        let table = MrTable::new().unwrap();
        let memory = Mapping::new(PAGE);
        let keys: Vec<u32> = (0..64)
            .map(|_| memory.register(&table, all_rights()))
            .collect();
        let mut hits = 0;
        for key in &keys {
            for bit in 0..u32::BITS {
                hits += u32::from(table.pin(key ^ 1 << bit).is_some());
            }
            hits += u32::from(table.pin(key.wrapping_add(1)).is_some());
            hits += u32::from(table.pin(key.wrapping_sub(1)).is_some());
        }
        assert!(hits <= 1, "{hits} of about 2000 guesses were right");
        assert!(table.pin(0).is_none());
        // Nor do the keys show where their slots are.
        let ordered = keys.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((8..56).contains(&ordered), "{ordered}");
    }
}

#[test]
fn the_advertised_number_of_regions_can_be_had() {
    let table = MrTable::new().unwrap();
    let memory = Mapping::new(PAGE);
    let mut keys: Vec<u32> = (0..MAX_MR)
        .map(|_| memory.register(&table, Access::empty()))
        .collect();
    // SAFETY: it must be refused.
    let full = unsafe { table.register(&memory.region(Access::empty())) }.unwrap_err();
    assert_eq!(full.errno(), libc::ENOMEM);
    assert_eq!(
        full,
        Error::Limit {
            what: "max_mr",
            limit: MAX_MR.into()
        }
    );
    assert!(keys.iter().all(|key| table.pin(*key).is_some()));
    table.dereg(keys[4711]).unwrap();
    keys[4711] = memory.register(&table, Access::empty());
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), MAX_MR as usize);
    assert_eq!(table.len(), keys.len());
}

#[test]
fn deregistering_waits_for_pins() {
    let table = MrTable::new().unwrap();
    let memory = Mapping::new(PAGE);
    let key = memory.register(&table, all_rights());
    let pin = table.pin(key).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            table.dereg(key).unwrap();
            done.store(true, Ordering::SeqCst);
        });
        // It is closed to new users as soon as the wait has begun.
        while table.pin(key).is_some() {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(20));
        assert!(!done.load(Ordering::SeqCst));
        let base = memory.base.addr() as u64;
        pin.copy_in(base, &[1], Access::LOCAL_WRITE, PD).unwrap();
        // What asks for the remote rights anew learns that they are gone.
        let remote = pin.check(base, 1, Access::REMOTE_WRITE, PD);
        assert_eq!(remote, Err(MemoryFault::InvalidKey));
        drop(pin);
        waiter.join().unwrap();
    });
    assert!(done.load(Ordering::SeqCst));
}

#[test]
fn a_pin_that_comes_late_goes_without_a_trace() {
    let memory = Mapping::new(PAGE);
    let slot = Slot::new(0);
    let region = memory.region(all_rights());
    slot.publish(1, &region);
    // Another thread has seen key 1 here and is about to pin it when the region goes,
    assert!(slot.revoke(1));
    assert!(Pin::enter(&slot, 1).is_none());
    // and perhaps another one comes.
    slot.publish(2, &region);
    assert!(Pin::enter(&slot, 1).is_none());
    let pin = Pin::enter(&slot, 2).unwrap();
    assert!(Pin::enter(&slot, 1).is_none());
    assert_eq!(pin.pd(), PD);
    drop(pin);
    // Had any of them left a trace, this would wait for ever.
    assert!(slot.revoke(2));
    assert!(!slot.revoke(2));
}

#[test]
fn only_one_of_many_deregisters() {
    let table = MrTable::new().unwrap();
    let memory = Mapping::new(PAGE);
    for _ in 0..200 {
        let key = memory.register(&table, all_rights());
        let successes: usize = thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(|| table.dereg(key).is_ok()));
            threads
                .into_iter()
                .map(|thread| usize::from(thread.join().unwrap()))
                .sum()
        });
        assert_eq!(successes, 1);
    }
    assert_eq!(table.len(), 0);
}

#[test]
fn more_than_four_gigabytes() {
    const LEN: usize = (4 << 30) + 3 * PAGE;
    let table = MrTable::new().unwrap();
    let memory = Mapping::new(LEN);
    let key = lkey(memory.register(&table, all_rights()));
    let base = memory.base.addr() as u64;
    let far = base + (4 << 30) + 5;
    table.write(key, far, b"beyond", PD).unwrap();
    let mut out = [0; 8];
    table.read(key, far - 1, &mut out, PD).unwrap();
    assert_eq!(&out, b"\0beyond\0");
    // 32 bits of the offset or of the length alone would say otherwise.
    table.read(key, base + 5, &mut out, PD).unwrap();
    assert_eq!(out, [0; 8]);
    let check = |addr, len| table.check(key.get(), addr, len, Access::REMOTE_WRITE, PD);
    assert_eq!(check(base, LEN as u64), Ok(()));
    assert_eq!(check(base, LEN as u64 + 1), Err(MemoryFault::Bounds));
    assert_eq!(check(base, u64::from(u32::MAX)), Ok(()));
    assert_eq!(check(base + LEN as u64, 1), Err(MemoryFault::Bounds));
    assert_eq!(
        check(base + (4 << 30), 4 * PAGE as u64),
        Err(MemoryFault::Bounds)
    );
}
