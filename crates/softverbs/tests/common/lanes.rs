//! What tests of iWARP past the kernel have in common.

use std::sync::{Mutex, MutexGuard, PoisonError};

use softverbs::iwarp_status;

use super::{End, Setup, pattern};

/// Octets of each place for a message.
pub const SLOT: usize = 128 << 10;
/// Messages under way in each direction at most.
pub const SLOTS: usize = 8;
/// Where the messages that are sent lie, behind those that are received.
pub const SENT: usize = SLOTS * SLOT;
/// The counters are of the whole process.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lanes that were made; of these, those that went over to sending, and to receiving.
pub fn lanes() -> [u64; 3] {
    let counters = iwarp_status().counters;
    assert_eq!(counters.len(), 4);
    [counters[0].1, counters[1].1, counters[2].1]
}

/// Whether there are so many more.
pub fn more(before: [u64; 3], count: u64) -> bool {
    let now = lanes();
    (0..3).all(|which| now[which] == before[which] + count)
}

/// Whether the environment of the tests says that there are none.
pub fn none() -> bool {
    std::env::var("SOFTVERBS_SAME_HOST").is_ok_and(|way| way == "network")
}

pub fn setup(address: &str) -> Setup {
    Setup {
        address: address.parse().unwrap(),
        len: 2 * SENT,
        ..Setup::default()
    }
}

/// The length of a message by its number: of all sizes, most of them small.
pub fn len_of(number: u64, seed: u64) -> usize {
    let random = pattern(8, number ^ seed << 32 | 1);
    let random =
        usize::from(random[3]) << 16 | usize::from(random[5]) << 8 | usize::from(random[7]);
    let bits = u32::try_from(random % 17).unwrap();
    (random >> 4 & ((1 << bits) - 1)) + random % 5
}

pub fn content(number: u64, seed: u64) -> Vec<u8> {
    pattern(len_of(number, seed), number + seed)
}

/// Receives that messages find.
pub fn prepare(end: &End) {
    for slot in 0..SLOTS {
        end.recv(slot as u64, slot * SLOT, SLOT);
    }
}
