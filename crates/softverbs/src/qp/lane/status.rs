//! What lanes tell a person who asks.

use std::sync::atomic::{AtomicU64, Ordering};

/// How iWARP of this process gets on with this host.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct IwarpStatus {
    /// What has happened since the process began: names and numbers.
    pub counters: Vec<(&'static str, u64)>,
}

/// The counters, while they count.
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) lanes: AtomicU64,
    pub(super) outward: AtomicU64,
    pub(super) inward: AtomicU64,
    pub(super) placed: AtomicU64,
}

pub(super) static COUNTERS: Counters = Counters {
    lanes: AtomicU64::new(0),
    outward: AtomicU64::new(0),
    inward: AtomicU64::new(0),
    placed: AtomicU64::new(0),
};

/// Counts one more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The state of iWARP in this process.
pub fn iwarp_status() -> IwarpStatus {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let Counters {
        lanes,
        outward,
        inward,
        placed,
    } = &COUNTERS;
    IwarpStatus {
        counters: vec![
            ("connections whose ends share memory", of(lanes)),
            ("connections that went over to sending by it", of(outward)),
            ("connections that went over to receiving by it", of(inward)),
            ("writes placed in another process's memory", of(placed)),
        ],
    }
}
