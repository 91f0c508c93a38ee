//! Where a receiver says which of its memory the sender of a lane may write to itself, as an adapter
//! does, without waiting for one of the receiver's threads.
//!
//! A grant is for one queue pair and one key, and is found anew for each write: it names a part of the
//! receiver's memory as its own process addresses it. The receiver ends its grants before anything
//! that they rest on changes, and waits for a write that has begun. Both sides write down what they do
//! before they look at what the other does (as in a hazard pointer): either the sender sees that a grant
//! has ended, or the receiver sees that it writes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::ring::Line;

/// Grants of a lane at most.
const GRANTS: usize = 4;

/// The receiver, by its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Where in its memory `proof` stands. Only the right process has it there.
    pub(super) proof_at: u64,
    pub(super) proof: u64,
}

/// What the sender may write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    pub(super) qpn: u32,
    pub(super) rkey: u32,
    /// The first address, as requests name it.
    pub(super) addr: u64,
    pub(super) len: u64,
    /// The same in the receiver's process.
    pub(super) base: u64,
}

impl Granted {
    /// Where in the receiver's process `len` octets at `addr` are, if all of them are granted.
    fn place(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.addr)?;
        (offset.checked_add(len)? <= self.len).then(|| self.base.wrapping_add(offset))
    }
}

#[repr(C)]
#[derive(Debug)]
struct Entry {
    /// Of this grant alone; 0: there is none.
    serial: AtomicU64,
    qpn: AtomicU32,
    rkey: AtomicU32,
    addr: AtomicU64,
    len: AtomicU64,
    base: AtomicU64,
}

/// A part of a lane's first page.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Board {
    pid: Line<AtomicU32>,
    proof_at: Line<AtomicU64>,
    proof: Line<AtomicU64>,
    /// How many grants there are.
    count: Line<AtomicU32>,
    /// The serial of the grant that the sender writes by; 0: it does not write.
    writer: Line<AtomicU64>,
    /// The key of it.
    writes_to: Line<AtomicU32>,
    grants: [Line<Entry>; GRANTS],
}

/// A grant that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    index: usize,
    serial: u64,
    rkey: u32,
    /// Where to write, in the receiver's process.
    pub(super) place: u64,
}

/// The receiver's side.
impl Board {
    pub(super) fn introduce(&self, process: Process) {
        self.pid.0.store(process.pid, Ordering::Relaxed);
        self.proof_at.0.store(process.proof_at, Ordering::Relaxed);
        self.proof.0.store(process.proof, Ordering::Relaxed);
    }

    /// Grants something under a new serial. False if there are enough grants.
    pub(super) fn grant(&self, serial: u64, granted: &Granted) -> bool {
        let free = |entry: &&Line<Entry>| entry.0.serial.load(Ordering::Relaxed) == 0;
        let Some(Line(entry)) = self.grants.iter().find(free) else {
            return false;
        };
        entry.qpn.store(granted.qpn, Ordering::Relaxed);
        entry.rkey.store(granted.rkey, Ordering::Relaxed);
        entry.addr.store(granted.addr, Ordering::Relaxed);
        entry.len.store(granted.len, Ordering::Relaxed);
        entry.base.store(granted.base, Ordering::Relaxed);
        entry.serial.store(serial, Ordering::SeqCst);
        self.count.0.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Whether this very thing is granted.
    pub(super) fn has(&self, granted: &Granted) -> bool {
        self.read(|known| known == granted).is_some()
    }

    /// Ends all grants. A write that has begun may still go on: see [`written`](Self::written).
    pub(super) fn end(&self) {
        self.count.0.store(0, Ordering::SeqCst);
        for Line(entry) in &self.grants {
            entry.serial.store(0, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// The key of the region that the sender is writing to, if it is.
    pub(super) fn written(&self) -> Option<u32> {
        let writes = self.writer.0.load(Ordering::SeqCst) != 0;
        writes.then(|| self.writes_to.0.load(Ordering::Relaxed))
    }
}

/// The sender's side: one thread at a time.
impl Board {
    pub(super) fn process(&self) -> Process {
        Process {
            pid: self.pid.0.load(Ordering::Relaxed),
            proof_at: self.proof_at.0.load(Ordering::Relaxed),
            proof: self.proof.0.load(Ordering::Relaxed),
        }
    }

    pub(super) fn has_any(&self) -> bool {
        self.count.0.load(Ordering::Relaxed) != 0
    }

    /// The grant for a write.
    pub(super) fn find(&self, qpn: u32, rkey: u32, addr: u64, len: u64) -> Option<Found> {
        let (index, serial, granted) = self.read(|granted| {
            granted.qpn == qpn && granted.rkey == rkey && granted.place(addr, len).is_some()
        })?;
        let place = granted.place(addr, len)?;
        Some(Found {
            index,
            serial,
            rkey,
            place,
        })
    }

    fn read(&self, wanted: impl Fn(&Granted) -> bool) -> Option<(usize, u64, Granted)> {
        self.grants.iter().enumerate().find_map(|(index, entry)| {
            let entry = &entry.0;
            let serial = entry.serial.load(Ordering::Acquire);
            let granted = Granted {
                qpn: entry.qpn.load(Ordering::Relaxed),
                rkey: entry.rkey.load(Ordering::Relaxed),
                addr: entry.addr.load(Ordering::Relaxed),
                len: entry.len.load(Ordering::Relaxed),
                base: entry.base.load(Ordering::Relaxed),
            };
            (serial != 0 && wanted(&granted)).then_some((index, serial, granted))
        })
    }

    /// Begins a write. False if the grant has ended since it was found.
    pub(super) fn enter(&self, found: &Found) -> bool {
        self.writes_to.0.store(found.rkey, Ordering::Relaxed);
        self.writer.0.store(found.serial, Ordering::SeqCst);
        // The other side: `end`, then `written`. What was read of the grant is of this serial, too.
        fence(Ordering::SeqCst);
        let serial = &self.grants[found.index].0.serial;
        let still = serial.load(Ordering::SeqCst) == found.serial;
        if !still {
            self.leave();
        }
        still
    }

    /// The write is over.
    pub(super) fn leave(&self) {
        self.writer.0.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn board() -> Board {
        let entry = || {
            Line(Entry {
                serial: AtomicU64::new(0),
                qpn: AtomicU32::new(0),
                rkey: AtomicU32::new(0),
                addr: AtomicU64::new(0),
                len: AtomicU64::new(0),
                base: AtomicU64::new(0),
            })
        };
        Board {
            pid: Line(AtomicU32::new(0)),
            proof_at: Line(AtomicU64::new(0)),
            proof: Line(AtomicU64::new(0)),
            count: Line(AtomicU32::new(0)),
            writer: Line(AtomicU64::new(0)),
            writes_to: Line(AtomicU32::new(0)),
            grants: [entry(), entry(), entry(), entry()],
        }
    }

    const GRANTED: Granted = Granted {
        qpn: 7,
        rkey: 0x1234,
        addr: 1000,
        len: 100,
        base: 0x5000,
    };

    #[test]
    fn only_what_is_granted_is_found() {
        let board = board();
        assert!(!board.has_any() && board.find(7, 0x1234, 1000, 8).is_none());
        assert!(board.grant(1, &GRANTED));
        assert!(board.has_any() && board.has(&GRANTED));
        let place = |qpn, rkey, addr, len| {
            let found = board.find(qpn, rkey, addr, len);
            found.map(|found| found.place)
        };
        assert_eq!(place(7, 0x1234, 1000, 100), Some(0x5000));
        assert_eq!(place(7, 0x1234, 1099, 1), Some(0x5000 + 99));
        for (qpn, rkey, addr, len) in [
            (8, 0x1234, 1000, 8),
            (7, 0x1235, 1000, 8),
            (7, 0x1234, 999, 8),
            (7, 0x1234, 1000, 101),
            (7, 0x1234, 1099, 2),
            (7, 0x1234, 1101, 0),
            (7, 0x1234, u64::MAX, 1),
            (7, 0x1234, 1000, u64::MAX),
        ] {
            assert_eq!(
                place(qpn, rkey, addr, len),
                None,
                "{qpn} {rkey} {addr} {len}"
            );
        }
    }

    #[test]
    fn there_are_enough_grants_some_time() {
        let board = board();
        for serial in 1..=GRANTS as u64 {
            assert!(board.grant(serial, &GRANTED));
        }
        assert!(!board.grant(99, &GRANTED));
        board.end();
        assert!(!board.has_any() && board.find(7, 0x1234, 1000, 8).is_none());
        assert!(board.grant(100, &GRANTED));
    }

    #[test]
    fn what_has_ended_is_not_entered() {
        let board = board();
        assert!(board.grant(1, &GRANTED));
        let found = board.find(7, 0x1234, 1000, 8).unwrap();
        assert!(board.enter(&found));
        assert_eq!(board.written(), Some(0x1234));
        board.leave();
        assert_eq!(board.written(), None);
        board.end();
        assert!(!board.enter(&found) && board.written().is_none());
        // The same place again, but another grant.
        assert!(board.grant(2, &GRANTED));
        assert!(!board.enter(&found));
    }

    /// After `end`, and when nobody writes, nobody will.
    #[test]
    fn who_ends_grants_is_safe() {
        let (board, valid, done) = (board(), AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if let Some(found) = board.find(7, 0x1234, 1000, 8)
                        && board.enter(&found)
                    {
                        let is_valid = valid.load(Ordering::SeqCst);
                        done.fetch_or(!is_valid, Ordering::Relaxed);
                        board.leave();
                        assert!(is_valid, "written after the end");
                    }
                }
            });
            for serial in 1..50_000 {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                valid.store(true, Ordering::SeqCst);
                assert!(board.grant(serial, &GRANTED));
                board.end();
                while board.written().is_some() {
                    std::hint::spin_loop();
                }
                valid.store(false, Ordering::SeqCst);
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
