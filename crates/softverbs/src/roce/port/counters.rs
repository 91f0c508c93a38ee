//! What the port has done and what it has dropped.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident, $words:literal;)*) => {
        /// The counters, while they count.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(#[doc = $words] pub(super) $name: AtomicU64,)*
        }

        impl Counters {
            pub(super) fn snapshot(&self) -> CounterValues {
                CounterValues {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                }
            }
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(super) struct CounterValues {
            $(#[doc = $words] pub(super) $name: u64,)*
        }

        impl CounterValues {
            /// Their names in words, and their values.
            pub(super) const fn list(&self) -> [(&'static str, u64); COUNTERS] {
                [$(($words, self.$name),)*]
            }
        }

        const COUNTERS: usize = [$($words,)*].len();
    };
}

counters! {
    packets_out, "packets sent";
    gathers_out, "sent by segmentation offload, calls";
    gathered_out, "sent by segmentation offload, packets";
    fallbacks, "segmentation offload refused by the kernel";
    lane_out, "packets sent by shared memory";
    at_once, "writes placed in another process's memory";
    lane_lost, "lost: shared memory that nobody reads";
    blocked, "no room in the socket, or in shared memory";
    too_big, "packets longer than the MTU of the path";
    refused, "packets that the kernel refused";
    packets_in, "packets received";
    coalesced_in, "received by coalescing, packets";
    lane_in, "packets received by shared memory";
    mads_in, "management datagrams received";
    forwarded_in, "packets received by way of another process";
    forwarded, "packets forwarded to other processes";
    forward_lost, "packets lost on the way to other processes";
    idents_guessed, "IPv4 identifications not as expected";
    no_room, "dropped: no room in the socket";
    bad_icrc, "dropped: wrong ICRC";
    malformed, "dropped: not a packet";
    no_queue_pair, "dropped: no such queue pair";
    not_from_peer, "dropped: not from the peer of the queue pair";
    no_use, "dropped: no use to the queue pair (no receive, wrong key, not expected)";
    not_ours, "dropped: queue pair of no process here";
}

/// Counts.
pub(super) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

impl fmt::Display for CounterValues {
    /// Those that are not 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (words, value) in self.list() {
            if value > 0 {
                write!(f, "{separator}{words}: {value}")?;
                separator = "; ";
            }
        }
        Ok(())
    }
}
