//! Where a receiver says which of its memory the sender of a lane may write to itself, as an adapter
//! does, without waiting for one of the receiver's threads.
//!
//! A grant is for one queue pair and one key, and is found anew for each write: it names a part of the
//! receiver's memory as its own process addresses it. The receiver ends its grants behind whatever ends
//! the right to them, before that returns to the application, and waits for a write that has begun. Both sides write down what they do
//! before they look at what the other does (as in a hazard pointer): either the sender sees that a grant
//! has ended, or the receiver sees that it writes. `crates/models` takes this file through every
//! interleaving.

use super::line::Line;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Grants of a lane at most.
pub(crate) const GRANTS: usize = 4;

/// The receiver, by its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Where in its memory `proof` stands. Only the right process has it there.
    pub(crate) proof_at: u64,
    pub(crate) proof: u64,
}

/// What the sender may write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    /// The receiver's queue pair.
    pub(crate) qpn: u32,
    /// That of the sender which it is connected with.
    pub(crate) peer: u32,
    pub(crate) rkey: u32,
    /// The first address, as requests name it.
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// The same in the receiver's process.
    pub(crate) base: u64,
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
    peer: AtomicU32,
    rkey: AtomicU32,
    addr: AtomicU64,
    len: AtomicU64,
    base: AtomicU64,
}

#[cfg(test)]
impl Found {
    #[allow(dead_code, reason = "for the models")]
    pub(crate) const fn serial(&self) -> u64 {
        self.serial
    }
}

/// A part of a lane's first page.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Board {
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
pub(crate) struct Found {
    index: usize,
    serial: u64,
    rkey: u32,
    /// Where to write, in the receiver's process.
    pub(crate) place: u64,
}

impl Board {
    /// An empty one, as a new file of zeros has it.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        let entry = |_| {
            Line(Entry {
                serial: AtomicU64::new(0),
                qpn: AtomicU32::new(0),
                peer: AtomicU32::new(0),
                rkey: AtomicU32::new(0),
                addr: AtomicU64::new(0),
                len: AtomicU64::new(0),
                base: AtomicU64::new(0),
            })
        };
        Self {
            pid: Line(AtomicU32::new(0)),
            proof_at: Line(AtomicU64::new(0)),
            proof: Line(AtomicU64::new(0)),
            count: Line(AtomicU32::new(0)),
            writer: Line(AtomicU64::new(0)),
            writes_to: Line(AtomicU32::new(0)),
            grants: std::array::from_fn(entry),
        }
    }
}

/// The receiver's side.
impl Board {
    pub(crate) fn introduce(&self, process: Process) {
        self.pid.0.store(process.pid, Ordering::Relaxed);
        self.proof_at.0.store(process.proof_at, Ordering::Relaxed);
        self.proof.0.store(process.proof, Ordering::Relaxed);
    }

    /// Grants something under a new serial. False if there are enough grants.
    pub(crate) fn grant(&self, serial: u64, granted: &Granted) -> bool {
        let free = |entry: &&Line<Entry>| entry.0.serial.load(Ordering::Relaxed) == 0;
        let Some(Line(entry)) = self.grants.iter().find(free) else {
            return false;
        };
        entry.qpn.store(granted.qpn, Ordering::Relaxed);
        entry.peer.store(granted.peer, Ordering::Relaxed);
        entry.rkey.store(granted.rkey, Ordering::Relaxed);
        entry.addr.store(granted.addr, Ordering::Relaxed);
        entry.len.store(granted.len, Ordering::Relaxed);
        entry.base.store(granted.base, Ordering::Relaxed);
        entry.serial.store(serial, Ordering::SeqCst);
        self.count.0.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Whether this very thing is granted.
    pub(crate) fn has(&self, granted: &Granted) -> bool {
        self.read(|known| known == granted).is_some()
    }

    /// Ends all grants. A write that has begun may still go on: see [`written`](Self::written).
    pub(crate) fn end(&self) {
        self.count.0.store(0, Ordering::SeqCst);
        for Line(entry) in &self.grants {
            entry.serial.store(0, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// The key of the region that the sender is writing to, if it is.
    pub(crate) fn written(&self) -> Option<u32> {
        let writes = self.writer.0.load(Ordering::SeqCst) != 0;
        writes.then(|| self.writes_to.0.load(Ordering::Relaxed))
    }
}

/// The sender's side: one thread at a time.
impl Board {
    pub(crate) fn process(&self) -> Process {
        Process {
            pid: self.pid.0.load(Ordering::Relaxed),
            proof_at: self.proof_at.0.load(Ordering::Relaxed),
            proof: self.proof.0.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn has_any(&self) -> bool {
        self.count.0.load(Ordering::Relaxed) != 0
    }

    /// The grant for a write from one queue pair to another one.
    pub(crate) fn find(
        &self,
        [qpn, peer]: [u32; 2],
        rkey: u32,
        addr: u64,
        len: u64,
    ) -> Option<Found> {
        let (index, serial, granted) = self.read(|granted| {
            (granted.qpn, granted.peer) == (qpn, peer)
                && granted.rkey == rkey
                && granted.place(addr, len).is_some()
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
                peer: entry.peer.load(Ordering::Relaxed),
                rkey: entry.rkey.load(Ordering::Relaxed),
                addr: entry.addr.load(Ordering::Relaxed),
                len: entry.len.load(Ordering::Relaxed),
                base: entry.base.load(Ordering::Relaxed),
            };
            (serial != 0 && wanted(&granted)).then_some((index, serial, granted))
        })
    }

    /// Begins a write. False if the grant has ended since it was found.
    pub(crate) fn enter(&self, found: &Found) -> bool {
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
    pub(crate) fn leave(&self) {
        self.writer.0.store(0, Ordering::SeqCst);
    }
}
