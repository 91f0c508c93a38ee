//! RDMA Writes that the sender places itself, in the memory of another process of this host.
//!
//! A target that waits by reading its memory never calls the library, and its engine's thread has to
//! find a core for each write, against the very threads that wait; and one copy is less than two. So a
//! receiver grants the sender what it keeps writing to ([`board`](super::board)), and a write that
//! nothing is under way before is one system call of the sender, `process_vm_writev`, which needs the
//! right to trace the receiver. Without it, or without a grant, it goes by the lane.
//!
//! A write that was placed so takes no packet number: nothing is under way before it, and it is over
//! before anything behind it begins.

use std::io::IoSliceMut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use softverbs_proto::memory::Access;
use softverbs_wire::num::{Qpn, Rkey};

use super::super::Port;
use super::super::border::SendPath;
use super::super::counters::add;
use super::inward::InLane;
use super::outward::OutLane;
use crate::engine::Engine;
use crate::engine::sys::IoList;
use crate::error::Result;
use crate::mr_table::{Domain, MrTable};
use crate::per_process::PerProcess;
use crate::same_host::bell::has_ended;
use crate::same_host::board::{Granted, Process};

/// A write that has begun is over soon: so often it is looked at before others get the core.
const SPINS: u32 = 1000;
/// A write takes no longer, unless its thread has lost its core: so long the engine's thread waits.
const MOMENT: Duration = Duration::from_millis(1);
/// Nor longer than this, unless its process is stopped: so long the application's threads wait.
const LONG_MOMENT: Duration = Duration::from_millis(100);
const NAP: Duration = Duration::from_micros(50);

/// Whether a sender may place writes itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reach {
    /// Not known yet.
    #[default]
    Unknown,
    Yes,
    /// Not allowed, or not the process that it says.
    No,
}

/// The lanes of this process whose senders have grants, or are still writing by one that has ended.
#[derive(Default)]
struct Granting(Mutex<Vec<Arc<InLane>>>);

static GRANTING: PerProcess<Granting> = PerProcess::new();

impl Granting {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<InLane>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all grants, and returns the lanes whose senders are still writing.
    fn end(&self) -> Vec<Arc<InLane>> {
        let mut lanes = self.lock();
        lanes.retain(|lane| {
            lane.ring.board().end();
            lane.ring.board().written().is_some()
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
fn wait(mut writing: Vec<Arc<InLane>>, counts: impl Fn(u32) -> bool, patience: Duration) -> bool {
    let mut spins = 0_u32;
    let begin = Instant::now();
    loop {
        writing.retain(|lane| {
            let written = lane.ring.board().written();
            written.is_some_and(&counts) && !lane.sender_has_gone()
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

impl InLane {
    /// The sender's process has ended, or is another program: it does not write.
    pub(super) fn sender_has_gone(&self) -> bool {
        has_ended(&self.bell, self.sender.as_ref())
    }

    /// Tells the sender how to reach this process.
    pub(super) fn introduce(&self) {
        self.ring.board().introduce(Process {
            pid: std::process::id(),
            proof_at: std::ptr::from_ref(&self.proof).addr() as u64,
            proof: self.proof,
        });
    }
}

/// A lane that brought packets, for whom they are for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grantor<'a>(pub(super) &'a Arc<InLane>);

impl Grantor<'_> {
    /// From now on the sender may write to the region with this key itself, with the second of these queue
    /// pairs, the peer of the first, which is locked and may receive. Whether that is so.
    pub(crate) fn grant(
        &self,
        regions: &MrTable,
        domain: Domain,
        [qpn, peer]: [Qpn; 2],
        rkey: Rkey,
    ) -> bool {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let found = || -> Option<Granted> {
            let pin = regions.pin(rkey.get()).filter(|pin| !pin.is_window())?;
            let (addr, len) = (pin.addr(), pin.len());
            let base = pin.range(addr, len, Access::REMOTE_WRITE, domain).ok()?;
            Some(Granted {
                qpn: qpn.get(),
                peer: peer.get(),
                rkey: rkey.get(),
                addr,
                len: len as u64,
                base: base.addr() as u64,
            })
        };
        let Ok(granting) = GRANTING.get_or_try(|| Result::Ok(Box::leak(Box::default()))) else {
            return false;
        };
        let board = self.0.ring.board();
        let mut lanes = granting.lock();
        // Behind the lock, which whoever ends the region takes when the region is not valid any more.
        let Some(granted) = found() else { return false };
        if board.has(&granted) {
            return true;
        }
        if !board.grant(SERIAL.fetch_add(1, Ordering::Relaxed), &granted) {
            return false;
        }
        if !lanes.iter().any(|lane| Arc::ptr_eq(lane, self.0)) {
            lanes.push(Arc::clone(self.0));
        }
        drop(lanes);
        // Whoever has ended the region meanwhile has seen this grant, or it is seen here.
        if found() == Some(granted) {
            return true;
        }
        end_grants();
        false
    }
}

/// A lane goes.
pub(super) fn forget(lane: &Arc<InLane>) {
    if let Some(granting) = GRANTING.existing() {
        let mut lanes = granting.lock();
        lanes.retain(|known| !Arc::ptr_eq(known, lane));
    }
}

impl OutLane {
    fn receiver_has_gone(&self) -> bool {
        has_ended(&self.bell, None)
    }

    /// Places octets in the receiver's memory, if it has granted that.
    fn place(&self, qpns: [u32; 2], rkey: u32, addr: u64, octets: &IoList<'_>) -> bool {
        let board = self.ring.board();
        let Ok(mut reach) = self.reach.try_lock() else {
            return false;
        };
        if *reach == Reach::Unknown {
            *reach = prove(board.process());
        }
        if *reach == Reach::No {
            return false;
        }
        let Some(found) = board.find(qpns, rkey, addr, octets.len() as u64) else {
            return false;
        };
        if !board.enter(&found) {
            return false;
        }
        // Its number may be another process's soon, or it may be another program. Behind `enter`: the
        // moment between this look and the write is short.
        if self.receiver_has_gone() {
            board.leave();
            return false;
        }
        let written = write(board.process().pid, found.place, octets);
        board.leave();
        if !written {
            *reach = Reach::No;
        }
        written
    }
}

fn pid_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid)
        .ok()
        .filter(|pid| *pid > 0)
        .map(Pid::from_raw)
}

fn remote(place: u64, len: usize) -> Option<[RemoteIoVec; 1]> {
    let base = usize::try_from(place).ok()?;
    Some([RemoteIoVec { base, len }])
}

/// Whether a process is the one that it says: in another namespace of processes its number is another
/// one's.
fn prove(process: Process) -> Reach {
    let mut octets = [0; 8];
    let (Some(pid), Some(from)) = (pid_of(process.pid), remote(process.proof_at, octets.len()))
    else {
        return Reach::No;
    };
    let read = process_vm_readv(pid, &mut [IoSliceMut::new(&mut octets)], &from);
    if read == Ok(octets.len()) && u64::from_ne_bytes(octets) == process.proof {
        Reach::Yes
    } else {
        Reach::No
    }
}

fn write(pid: u32, place: u64, octets: &IoList<'_>) -> bool {
    let (Some(pid), Ok(place)) = (pid_of(pid), usize::try_from(place)) else {
        return false;
    };
    octets.write_to_process(pid.as_raw(), place)
}

impl Port {
    /// Whether the other end of a path has granted a write of so many octets.
    pub(crate) fn is_granted(
        &self,
        path: &SendPath,
        from: Qpn,
        rkey: Rkey,
        addr: u64,
        len: u64,
    ) -> bool {
        let qpns = [path.dest_qpn.get(), from.get()];
        path.lane.get().is_some_and(|lane| {
            let board = lane.ring.board();
            board.has_any() && board.find(qpns, rkey.get(), addr, len).is_some()
        })
    }

    /// Places an RDMA Write in the memory of the process at the end of a path. False if it may not, or
    /// cannot: then it is to be sent. Nothing else may be under way on the queue pair.
    pub(crate) fn write_at_once(
        &self,
        path: &SendPath,
        from: Qpn,
        rkey: Rkey,
        addr: u64,
        octets: &IoList<'_>,
    ) -> bool {
        let to_port = self.route(path);
        let lane = path
            .lane
            .get()
            .filter(|lane| self.lanes.allowed() && lane.is_open() && lane.leads_to(path, to_port));
        let qpns = [path.dest_qpn.get(), from.get()];
        let placed = lane.is_some_and(|lane| lane.place(qpns, rkey.get(), addr, octets));
        if placed {
            add(&self.counters.at_once, 1);
        }
        placed
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::{self, Octets};
    use super::*;
    use crate::{Context, Transport};

    const LEN: usize = 64;

    #[test]
    fn who_has_a_grant_writes_and_who_ends_it_waits() {
        let (_folder, one, other) = tests::traffic::two_ports();
        let (qpn, _got) = tests::queue_pair(other);
        let path = SendPath::new(tests::V4, tests::V4, qpn);
        tests::wait_until("a lane", || {
            let packets = Octets(vec![tests::packet(qpn, 1, 8)]);
            one.send_packets(&packets, &path);
            one.counters().lane_out > 0
        });
        let inward = Arc::clone(&other.lanes.inward.read().unwrap()[0]);
        let outward = one.lanes.outward().pop().unwrap();
        let devices = crate::devices().unwrap();
        let device = devices.iter().find(|of| of.transport() == Transport::Roce);
        let context = Context::shared(device.unwrap()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let both = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.alloc_mr(LEN, both).unwrap();
        let (key, addr) = (mr.rkey().get(), mr.addr());
        let regions = &context.inner().regions;
        let domain = Domain {
            pd: pd.id(),
            qp: qpn.get(),
        };
        let grantor = Grantor(&inward);
        let peer = Qpn::new(0x77_7777);
        let qpns = [qpn.get(), peer.get()];
        let grant = |key, domain| grantor.grant(regions, domain, [qpn, peer], Rkey::new(key));
        let place = |qpns, key, addr, octets: &[u8]| {
            let mut list = IoList::new();
            list.push_out(octets);
            outward.place(qpns, key, addr, &list)
        };
        // Other tests of this process end grants, too.
        tests::wait_until("a write", || {
            grant(key, domain) && place(qpns, key, addr + 8, &7_u64.to_ne_bytes())
        });
        let read = || {
            let mut octets = [0; LEN];
            mr.copy_out(0, &mut octets).unwrap();
            octets
        };
        let mut wanted = [0; LEN];
        wanted[8..16].copy_from_slice(&7_u64.to_ne_bytes());
        assert_eq!(read(), wanted);
        assert!(!place(qpns, key, addr + 60, &[1; 8]), "beyond");
        let others = [qpns[0] + 1, qpns[1]];
        assert!(!place(others, key, addr, &[1; 8]), "another");
        let former = [qpns[0], qpns[1] + 1];
        assert!(!place(former, key, addr, &[1; 8]), "a former peer");
        assert!(!place(qpns, key + 1, addr, &[1; 8]), "another");
        let others = Domain {
            pd: domain.pd + 1,
            ..domain
        };
        assert!(!grant(key, others), "another domain");
        let unwritable = pd.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
        let other_key = unwritable.rkey().get();
        assert!(!grant(other_key, domain), "no right to write");

        // A writer that is stopped between its look at the grant and the end of its write.
        let board = outward.ring.board();
        tests::wait_until("a writer", || {
            let found = board.find(qpns, key, addr, 8);
            grant(key, domain) && found.is_some_and(|found| board.enter(&found))
        });
        assert!(!end_grants_to(key, Duration::from_millis(10)));
        assert!(end_grants_to(other_key, Duration::from_millis(10)));
        end_grants();
        assert!(mr.dereg().is_err(), "it is being written to");
        assert_eq!(read(), wanted, "nothing has changed");
        board.leave();
        mr.dereg().unwrap();
        assert!(!grant(key, domain), "it has gone");
        assert!(!place(qpns, key, addr, &[1; 8]));
    }
}
