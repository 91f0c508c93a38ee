//! Memory between two pages that nobody may touch: what is read or written outside ends the process,
//! and what is written beside a region, but inside its pages, is seen.

#![allow(unsafe_code, reason = "regions in memory that is mapped by hand")]
#![allow(unreachable_pub, reason = "every file of tests is a crate of its own")]

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};
use softverbs::{Access, Mr, Pd};

const PAGE: usize = 4096;
/// Usable octets between the guard pages.
const ROOM: usize = 2 * PAGE;
const CANARY: u8 = 0xc7;

/// A region that touches a guard page with its first or its last octet.
#[derive(Debug)]
pub struct Guarded {
    pub mr: Mr,
    start: NonNull<u8>,
    offset: usize,
    len: usize,
}

impl Guarded {
    /// A region of `len` octets, all zero, at the end of its room or at its start.
    pub fn new(pd: &Pd, len: usize, at_end: bool, access: Access) -> Self {
        let whole = NonZeroUsize::new(ROOM + 2 * PAGE).unwrap();
        // SAFETY: a new mapping, which stays for the life of the process.
        let start = unsafe {
            let map = mmap_anonymous(None, whole, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE);
            let start = map.unwrap().cast::<u8>().add(PAGE);
            let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            mprotect(start.cast(), ROOM, both).unwrap();
            start
        };
        let offset = if at_end { ROOM - len } else { 0 };
        // SAFETY: inside the mapping, of which nobody else knows.
        let mr = unsafe {
            start.write_bytes(CANARY, ROOM);
            start.add(offset).write_bytes(0, len);
            pd.reg_mr(start.add(offset).as_ptr(), len, access)
        };
        Self {
            mr: mr.unwrap(),
            start,
            offset,
            len,
        }
    }

    /// An octet of the room, which a peer may be writing.
    fn octet(&self, at: usize) -> u8 {
        // SAFETY: inside the mapping.
        unsafe { self.start.add(at).read_volatile() }
    }

    /// Whether everything beside the region is as it was.
    pub fn is_intact_outside(&self) -> bool {
        let inside = self.offset..self.offset + self.len;
        (0..ROOM).all(|at| inside.contains(&at) || self.octet(at) == CANARY)
    }

    /// Whether the region has nothing but zeros.
    pub fn is_zero(&self) -> bool {
        (self.offset..self.offset + self.len).all(|at| self.octet(at) == 0)
    }

    /// The first eight octets.
    pub fn word(&self) -> u64 {
        u64::from_be_bytes(std::array::from_fn(|at| self.octet(self.offset + at)))
    }
}
