use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;

const PD: u32 = 3;

fn table() -> Arc<MrTable> {
    Arc::new(MrTable::new().unwrap())
}

fn owned(table: &Arc<MrTable>, len: usize, access: Access) -> Mr {
    Mr::register_owned(table, PD, Arc::new(()), len, access).unwrap()
}

#[test]
fn owned_memory_is_zeroed_and_on_a_page_boundary() {
    let table = table();
    for len in [0, 1, 4095, 4096, 400_000] {
        let mr = owned(&table, len, Access::LOCAL_WRITE);
        assert_eq!(mr.len(), len);
        assert_eq!(mr.as_ptr().addr() % 4096, 0);
        assert_eq!(mr.addr(), mr.as_ptr().addr() as u64);
        let mut out = vec![1; len];
        mr.copy_out(0, &mut out).unwrap();
        assert!(out.iter().all(|octet| *octet == 0));
    }
    assert_eq!(table.len(), 0);
}

#[test]
fn copies_within_bounds() {
    let mr = owned(&table(), 10, Access::empty());
    // The owner may always write its own memory, whatever work requests may do.
    mr.copy_in(7, &[1, 2, 3]).unwrap();
    let mut out = [9; 4];
    mr.copy_out(6, &mut out).unwrap();
    assert_eq!(out, [0, 1, 2, 3]);
    for offset in [8, 11, usize::MAX] {
        let error = mr.copy_in(offset, &[1, 2, 3]).unwrap_err();
        assert_eq!(error, Error::Memory(MemoryFault::Bounds));
        assert!(mr.copy_out(offset, &mut [0; 3]).is_err());
    }
    mr.copy_in(10, &[]).unwrap();
    assert!(mr.copy_in(11, &[]).is_err());
}

#[test]
fn borrowed_memory_is_written_only_if_registered_for_it() {
    let table = table();
    let mut memory = [5_u8; 100];
    let base = memory.as_mut_ptr();
    let register = |access| {
        // SAFETY: the array outlives the regions, and is not used otherwise meanwhile.
        unsafe { Mr::register_raw(&table, PD, Arc::new(()), base, 100, access) }.unwrap()
    };
    let read_only = register(Access::REMOTE_READ);
    let error = read_only.copy_in(0, &[1]).unwrap_err();
    assert_eq!(error.errno(), libc::EACCES);
    let mut out = [0; 2];
    read_only.copy_out(98, &mut out).unwrap();
    assert_eq!(out, [5, 5]);

    let writable = register(Access::LOCAL_WRITE | Access::ZERO_BASED);
    assert_eq!(writable.addr(), 0);
    assert_eq!(writable.as_ptr(), base);
    writable.copy_in(99, &[7]).unwrap();
    let sge = writable.sge(98, 2);
    assert_eq!((sge.addr, sge.length), (98, 2));
    let mut out = [0; 2];
    table.read(sge.lkey, sge.addr, &mut out, PD).unwrap();
    assert_eq!(out, [5, 7]);

    // SAFETY: as above.
    let elsewhere = unsafe {
        let access = Access::LOCAL_WRITE;
        Mr::register_raw_iova(&table, PD, Arc::new(()), base, 100, 0x1000, access).unwrap()
    };
    assert_eq!(elsewhere.sge(1, 1).addr, 0x1001);
    elsewhere.copy_in(0, &[8]).unwrap();
    drop((read_only, writable, elsewhere));
    assert_eq!((memory[0], memory[99]), (8, 7));
}

#[test]
fn sges_name_what_is_inside() {
    let mr = owned(&table(), 10, Access::LOCAL_WRITE);
    let sge = mr.sge(4, 6);
    assert_eq!(
        sge,
        Sge {
            addr: mr.addr() + 4,
            length: 6,
            lkey: mr.lkey()
        }
    );
    assert_eq!(mr.sge(10, 0).length, 0);
}

#[test]
#[should_panic(expected = "outside of the region")]
fn sges_outside_panic() {
    owned(&table(), 10, Access::LOCAL_WRITE).sge(4, 7);
}

#[test]
fn deregistered_with_the_last_handle_or_by_hand() {
    let table = table();
    let mr = owned(&table, 10, Access::LOCAL_WRITE);
    assert_eq!(mr.lkey().get(), mr.rkey().get());
    let key = mr.lkey().get();
    let other = mr.clone();
    assert!(mr.same_as(&other));
    drop(mr);
    assert!(table.pin(key).is_some());
    drop(other);
    assert!(table.pin(key).is_none());

    let mr = owned(&table, 10, Access::LOCAL_WRITE);
    let other = mr.clone();
    mr.dereg().unwrap();
    other.dereg().unwrap();
    let error = other.copy_in(0, &[1]).unwrap_err();
    assert_eq!(error, Error::Memory(MemoryFault::InvalidKey));
    assert_eq!(table.len(), 0);
}

#[test]
fn the_parent_lives_as_long_as_the_region() {
    struct Parent<'a>(&'a MrTable, &'a AtomicBool);
    impl Drop for Parent<'_> {
        fn drop(&mut self) {
            assert_eq!(self.0.len(), 0, "the region must go first");
            self.1.store(true, Ordering::SeqCst);
        }
    }
    let table = table();
    let gone: &AtomicBool = Box::leak(Box::default());
    let for_parent: &MrTable = {
        let leaked: &Arc<MrTable> = Box::leak(Box::new(table.clone()));
        leaked
    };
    let parent: Arc<dyn Any + Send + Sync> = Arc::new(Parent(for_parent, gone));
    let mr = Mr::register_owned(&table, PD, parent, 10, Access::empty()).unwrap();
    assert!(!gone.load(Ordering::SeqCst));
    drop(mr);
    assert!(gone.load(Ordering::SeqCst));
}

#[test]
fn every_dereg_returns_only_when_the_region_is_gone() {
    let table = table();
    for _ in 0..50 {
        let mr = owned(&table, 10, Access::LOCAL_WRITE);
        let key = mr.lkey().get();
        let pin = table.pin(key).unwrap();
        let released = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    mr.dereg().unwrap();
                    assert!(released.load(Ordering::SeqCst));
                });
            }
            while table.pin(key).is_some() {
                thread::yield_now();
            }
            released.store(true, Ordering::SeqCst);
            drop(pin);
        });
    }
}

#[test]
fn large_regions_cost_only_what_is_touched() {
    // Where the kernel does not promise that much, this is as right an answer.
    let len = 6 << 30;
    let mr = match Mr::register_owned(&table(), PD, Arc::new(()), len, Access::LOCAL_WRITE) {
        Err(error) => return assert_eq!(error, Error::NoMemory { len }),
        Ok(mr) => mr,
    };
    mr.copy_in(len - 3, &[1, 2, 3]).unwrap();
    let sge = mr.sge(len - 4, 4);
    let mut out = [9; 4];
    mr.inner
        .table
        .read(sge.lkey, sge.addr, &mut out, PD)
        .unwrap();
    assert_eq!(out, [0, 1, 2, 3]);
    assert_eq!(mr.sge(1, u32::MAX as usize).length, u32::MAX);
}

#[test]
fn absurd_lengths_are_errors() {
    for len in [usize::MAX, usize::MAX / 2, usize::MAX / 2 - 5000] {
        let error = Mr::register_owned(&table(), PD, Arc::new(()), len, Access::empty());
        let errno = error.unwrap_err().errno();
        assert!([libc::EINVAL, libc::ENOMEM].contains(&errno), "{len}");
    }
}
