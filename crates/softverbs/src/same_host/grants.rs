//! What the senders of lanes may write to themselves, in this process's memory ([`board`](super::board)).
//!
//! A receiver grants what a sender keeps writing to. All grants of all lanes end behind whatever ends the
//! right to one of them: they are soon given again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use softverbs_proto::memory::Access;
use softverbs_wire::num::Rkey;

use super::board::{Board, Granted};
use crate::engine::Engine;
use crate::error::Result;
use crate::mr_table::{Domain, MrTable};
use crate::per_process::PerProcess;

/// A write that has begun is over soon: so often it is looked at before others get the core.
const SPINS: u32 = 1000;
/// A write takes no longer, unless its thread has lost its core: so long the engine's thread waits.
const MOMENT: Duration = Duration::from_millis(1);
/// Nor longer than this, unless its process is stopped: so long the application's threads wait.
const LONG_MOMENT: Duration = Duration::from_millis(100);
const NAP: Duration = Duration::from_micros(50);

/// So many writes to one region in a row, and the peer may go on alone.
const MANY: u8 = 8;

/// What the peer of a queue pair keeps writing to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passive {
    rkey: Option<Rkey>,
    /// Writes in a row.
    score: u8,
    /// Something was granted.
    granted: bool,
}

impl Passive {
    /// Another write. Whether the peer is to be granted that it goes on alone.
    pub(crate) fn note(&mut self, rkey: Rkey) -> bool {
        if self.rkey != Some(rkey) {
            self.rkey = Some(rkey);
            self.score = 0;
        }
        self.score += 1;
        if self.score < MANY {
            return false;
        }
        self.score = 0;
        // A grant that is not ended by what this queue pair does is ended with the region.
        self.granted = true;
        true
    }

    /// A write that does not count.
    pub(crate) const fn disregard(&mut self) {
        self.score = 0;
    }

    /// Begins anew. Whether there may be grants, which are to be ended.
    pub(crate) fn take(&mut self) -> bool {
        std::mem::take(self).granted
    }
}

/// A lane, for its receiver.
pub(crate) trait Granting: Send + Sync {
    /// Where it says what it grants.
    fn board(&self) -> &Board;

    /// The sender's process has ended, or is another program: it does not write.
    fn writer_has_gone(&self) -> bool;
}

/// The lanes of this process whose senders have grants, or are still writing by one that has ended.
#[derive(Default)]
struct Grantors(Mutex<Vec<Arc<dyn Granting>>>);

static GRANTING: PerProcess<Grantors> = PerProcess::new();

impl Grantors {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn Granting>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all grants, and returns the lanes whose senders are still writing.
    fn end(&self) -> Vec<Arc<dyn Granting>> {
        let mut lanes = self.lock();
        lanes.retain(|lane| {
            lane.board().end();
            lane.board().written().is_some()
        });
        lanes.clone()
    }
}

/// Ends all grants: no write begins any more by one that there was. To be called behind what ends the
/// right to it. What has begun is finished a moment later, which is waited for unless it is long.
pub(crate) fn end_grants() {
    if let Some(granting) = GRANTING.existing() {
        let writing = granting.end();
        let patience = if Engine::is_own_thread() {
            MOMENT
        } else {
            LONG_MOMENT
        };
        wait(writing, |_| true, patience);
    }
}

/// The same, and waits until nobody writes to the region with this key. False if that takes longer than
/// `patience`: a write takes no longer than a copy, but somebody may have stopped the writing process in
/// the middle of one.
pub(crate) fn end_grants_to(key: u32, patience: Duration) -> bool {
    let Some(granting) = GRANTING.existing() else {
        return true;
    };
    wait(granting.end(), |written| written == key, patience)
}

/// Waits for those that write to such keys. Whether they have finished.
fn wait(
    mut writing: Vec<Arc<dyn Granting>>,
    counts: impl Fn(u32) -> bool,
    patience: Duration,
) -> bool {
    let mut spins = 0_u32;
    let begin = Instant::now();
    loop {
        writing.retain(|lane| {
            let written = lane.board().written();
            written.is_some_and(&counts) && !lane.writer_has_gone()
        });
        if writing.is_empty() {
            return true;
        }
        spins += 1;
        if spins < SPINS {
            std::hint::spin_loop();
        } else if begin.elapsed() < patience {
            std::thread::sleep(NAP);
        } else {
            return false;
        }
    }
}

/// From now on the sender of a lane may write to the region with this key itself, from the second of these
/// queue pairs to the first one, which is locked and may receive. Whether that is so.
pub(crate) fn grant(
    to: &Arc<dyn Granting>,
    regions: &MrTable,
    domain: Domain,
    [qpn, peer]: [u32; 2],
    rkey: Rkey,
) -> bool {
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    let found = || -> Option<Granted> {
        let pin = regions.pin(rkey.get()).filter(|pin| !pin.is_window())?;
        let (addr, len) = (pin.addr(), pin.len());
        let base = pin.range(addr, len, Access::REMOTE_WRITE, domain).ok()?;
        Some(Granted {
            qpn,
            peer,
            rkey: rkey.get(),
            addr,
            len: len as u64,
            base: base.addr() as u64,
        })
    };
    let Ok(granting) = GRANTING.get_or_try(|| Result::Ok(Box::leak(Box::default()))) else {
        return false;
    };
    let board = to.board();
    let mut lanes = granting.lock();
    // Behind the lock, which whoever ends the region takes when the region is not valid any more.
    let Some(granted) = found() else { return false };
    if board.has(&granted) {
        return true;
    }
    if !board.grant(SERIAL.fetch_add(1, Ordering::Relaxed), &granted) {
        return false;
    }
    if !lanes.iter().any(|lane| is_same(lane, to)) {
        lanes.push(Arc::clone(to));
    }
    drop(lanes);
    // Whoever has ended the region meanwhile has seen this grant, or it is seen here.
    if found() == Some(granted) {
        return true;
    }
    end_grants();
    false
}

/// A lane goes.
pub(crate) fn forget(lane: &Arc<dyn Granting>) {
    if let Some(granting) = GRANTING.existing() {
        let mut lanes = granting.lock();
        lanes.retain(|known| !is_same(known, lane));
    }
}

fn is_same(one: &Arc<dyn Granting>, other: &Arc<dyn Granting>) -> bool {
    Arc::as_ptr(one).addr() == Arc::as_ptr(other).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_writing_to_one_region_gets_a_grant() {
        let (one, other) = (Rkey::new(1), Rkey::new(2));
        let mut passive = Passive::default();
        for _ in 0..100 {
            assert!(!passive.note(one) && !passive.note(other));
        }
        for _ in 1..MANY - 1 {
            assert!(!passive.note(other));
        }
        assert!(passive.note(other));
        for _ in 0..100 {
            assert!(!passive.note(one));
            passive.disregard();
        }
    }
}
