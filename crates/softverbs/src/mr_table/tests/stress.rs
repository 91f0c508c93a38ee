//! Registered memory under attack from many threads.

use std::sync::mpsc;
use std::time::Instant;

use super::*;

/// Ends the other threads of a test, also if this one fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A region of the stress test, as its users know it.
#[derive(Default)]
struct Entry {
    key: AtomicU32,
    base: AtomicU64,
}

/// Regions come and go all the time; their pages are forbidden or unmapped as soon as `dereg` has
/// returned, so that any access after that kills the test. Each region is full of one octet, the
/// low one of its key, and users check that they find nothing else.
#[test]
fn nothing_is_touched_after_deregistration() {
    const ENTRIES: usize = 8;
    const LEN: usize = 2 * PAGE;
    let table = MrTable::new().unwrap();
    let entries = [(); ENTRIES].map(|()| Entry::default());
    let stop = AtomicBool::new(false);
    let hits = AtomicU64::new(0);

    // Uses one region the way a peer might; false if it is gone.
    let try_use = |entry: &Entry, round: u64, buffer: &mut [u8; LEN]| {
        // The two may belong to different regions: then the key decides, and it is `Bounds`.
        let key = entry.key.load(Ordering::Acquire);
        let base = entry.base.load(Ordering::Acquire);
        let [tag, ..] = key.to_le_bytes();
        let len = 1 + usize::try_from(round).unwrap().wrapping_mul(7919) % LEN;
        let result = match round % 4 {
            0 => table
                .read(lkey(key), base, &mut buffer[..len], PD)
                .map(|()| {
                    assert!(
                        buffer[..len].iter().all(|octet| *octet == tag),
                        "another's octets"
                    );
                }),
            1 => {
                buffer[..len].fill(tag);
                table.write(lkey(key), base, &buffer[..len], PD)
            }
            2 => {
                let same = u64::from_ne_bytes([tag; 8]);
                table
                    .atomic(Rkey::new(key), base + 8, PD, |word| word)
                    .map(|word| {
                        assert_eq!(word, same, "another's word");
                    })
            }
            _ => table.check(key, base, len as u64, Access::LOCAL_WRITE, PD),
        };
        result.is_ok()
    };

    thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (entries, stop, hits, try_use) = (&entries, &stop, &hits, &try_use);
            scope.spawn(move || {
                let mut buffer = [0; LEN];
                let mut round = thread;
                while !stop.load(Ordering::Relaxed) {
                    round = round
                        .wrapping_mul(0x5851_f42d_4c95_7f2d)
                        .wrapping_add(thread + 1);
                    let entry = &entries[(round >> 33) as usize % ENTRIES];
                    let used = try_use(entry, round >> 40, &mut buffer);
                    hits.fetch_add(u64::from(used), Ordering::Relaxed);
                }
            });
        }
        for half in 0..2 {
            let (table, entries, stop) = (&table, &entries, &stop);
            scope.spawn(move || {
                let mut living: [Option<(Mapping, u32)>; ENTRIES] = [const { None }; ENTRIES];
                let mut round = half;
                while !stop.load(Ordering::Relaxed) {
                    round += 2;
                    let at = round % ENTRIES;
                    if let Some((memory, key)) = living[at].take() {
                        table.dereg(key).unwrap();
                        if round % 3 == 0 {
                            memory.forbid();
                        }
                        drop(memory);
                    }
                    let memory = Mapping::new(LEN);
                    let key = memory.register(table, all_rights());
                    // Fill first, then tell: nobody knows the key before it is stored.
                    let [tag, ..] = key.to_le_bytes();
                    memory.fill(tag);
                    entries[at]
                        .base
                        .store(memory.base.addr() as u64, Ordering::Release);
                    entries[at].key.store(key, Ordering::Release);
                    living[at] = Some((memory, key));
                }
                for (memory, key) in living.into_iter().flatten() {
                    table.dereg(key).unwrap();
                    memory.forbid();
                }
            });
        }
        let _stop = Stop(&stop);
        thread::sleep(Duration::from_millis(700));
    });
    assert!(hits.load(Ordering::Relaxed) > 1000, "{hits:?}");
    assert_eq!(table.len(), 0);
    let words: Vec<u32> = entries
        .iter()
        .map(|entry| entry.key.load(Ordering::Relaxed))
        .collect();
    assert!(words.iter().all(|key| table.pin(*key).is_none()));
}

/// Failing pins of all kinds do not keep a region from being deregistered.
#[test]
fn guessing_does_not_delay_deregistration() {
    let table = MrTable::new().unwrap();
    let memory = Mapping::new(PAGE);
    let stop = AtomicBool::new(false);
    let (sender, keys) = mpsc::channel();
    thread::scope(|scope| {
        let (table, stop) = (&table, &stop);
        scope.spawn(move || {
            let mut key = 0;
            while !stop.load(Ordering::Relaxed) {
                key = keys.try_recv().unwrap_or(key);
                // Dead keys after a while, and wrong ones all the time.
                drop((table.pin(key), table.pin(key.wrapping_mul(0x9e37_79b9))));
            }
        });
        let _stop = Stop(stop);
        let begun = Instant::now();
        for _ in 0..2000 {
            let key = memory.register(table, all_rights());
            sender.send(key).unwrap();
            table.dereg(key).unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
    });
}

/// The same promise without system calls between the steps, so that they race more closely: who
/// has a pin finds the region open, and whoever deregistered finds nobody inside.
#[test]
fn a_pin_is_an_open_region() {
    let table = MrTable::new().unwrap();
    let memory = Mapping::new(PAGE);
    let key = AtomicU32::new(0);
    let (open, inside) = (AtomicBool::new(false), AtomicU32::new(0));
    let (stop, pins) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Some(pin) = table.pin(key.load(Ordering::Relaxed)) else {
                        continue;
                    };
                    inside.fetch_add(1, Ordering::Relaxed);
                    assert!(open.load(Ordering::Relaxed), "pinned after its end");
                    inside.fetch_sub(1, Ordering::Relaxed);
                    drop(pin);
                    pins.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _stop = Stop(&stop);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(400) {
            open.store(true, Ordering::Relaxed);
            let this = memory.register(&table, all_rights());
            key.store(this, Ordering::Relaxed);
            (0..begun.elapsed().subsec_nanos() % 256).for_each(|_| std::hint::spin_loop());
            table.dereg(this).unwrap();
            assert_eq!(inside.load(Ordering::Relaxed), 0, "somebody is inside");
            open.store(false, Ordering::Relaxed);
        }
    });
    assert!(pins.load(Ordering::Relaxed) > 100, "{pins:?}");
}
