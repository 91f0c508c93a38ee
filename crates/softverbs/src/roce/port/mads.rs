//! Management datagrams that wait for what was sent before them.
//!
//! They come over UDP, and packets of queue pairs by lanes: a DREQ must not overtake the last messages
//! of its connection. While there are lanes, datagrams are delivered when the thread that has received
//! them holds no socket any more, and all lanes have been looked at.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use softverbs_proto::time::Time;
use softverbs_wire::ib::mad::MAD_LEN;

use super::Port;
use super::border::ReceivedFrom;
use super::counters::add;

/// A datagram to QP1, and when it came.
#[derive(Debug)]
struct Waiting {
    now: Time,
    from: ReceivedFrom,
    mad: [u8; MAD_LEN],
}

/// Datagrams in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Mads {
    queue: Mutex<VecDeque<Waiting>>,
    any: AtomicBool,
    /// Whose thread delivers them: one, so that they keep their order.
    delivering: Mutex<()>,
}

impl Mads {
    fn push(&self, waiting: Waiting) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(waiting);
        self.any.store(true, Ordering::SeqCst);
    }

    fn pop(&self) -> Option<Waiting> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let first = queue.pop_front();
        self.any.store(!queue.is_empty(), Ordering::SeqCst);
        first
    }

    fn is_any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }
}

impl Port {
    /// A datagram has come, and a socket is still held.
    pub(super) fn take_mad(&self, now: Time, from: &ReceivedFrom, mad: &[u8; MAD_LEN]) {
        if self.has_lanes() || self.mads.is_any() {
            let (from, mad) = (*from, *mad);
            self.mads.push(Waiting { now, from, mad });
        } else {
            self.hand_over_mad(now, from, mad);
        }
    }

    /// No socket is held any more, nor a lane.
    pub(super) fn deliver_mads(&self) {
        while self.mads.is_any() {
            let delivering = self.mads.delivering.try_lock();
            if matches!(delivering, Err(TryLockError::WouldBlock)) {
                // That thread looks again when it is done.
                return;
            }
            self.deliver_waiting();
        }
    }

    /// The same, and waits for another thread that is at it.
    pub(super) fn deliver_all_mads(&self) {
        let delivering = self.mads.delivering.lock();
        let delivering = delivering.unwrap_or_else(PoisonError::into_inner);
        self.deliver_waiting();
        drop(delivering);
        // Whoever has found it locked relies on that.
        self.deliver_mads();
    }

    fn deliver_waiting(&self) {
        while self.mads.is_any() {
            // What was in a lane when the datagram came is there now.
            self.receive_all_lanes();
            if let Some(Waiting { now, from, mad }) = self.mads.pop() {
                self.hand_over_mad(now, &from, &mad);
            }
        }
    }

    fn hand_over_mad(&self, now: Time, from: &ReceivedFrom, mad: &[u8; MAD_LEN]) {
        add(&self.counters.mads_in, 1);
        if let Some(gsi) = self.gsi() {
            gsi.mad(now, from, mad);
        }
    }
}
