//! RDMA Writes that the sender places itself, in the memory of another process of this host.
//!
//! A target that waits by reading its memory never calls the library, and its engine's thread has to
//! find a core for each write, against the very threads that wait; and one copy is less than two. So a
//! receiver grants the sender what it keeps writing to ([`grants`]), and a write that nothing is under
//! way before is one system call of the sender (`same_host::placing`). Without a grant, or without the
//! right to do that, it goes by the lane.
//!
//! A write that was placed so takes no packet number: nothing is under way before it, and it is over
//! before anything behind it begins.

use std::sync::Arc;

use softverbs_wire::num::{Qpn, Rkey};

use super::super::Port;
use super::super::border::SendPath;
use super::super::counters::add;
use super::inward::InLane;
use super::outward::OutLane;
use crate::engine::sys::IoList;
use crate::mr_table::{Domain, MrTable};
use crate::same_host::bell::has_ended;
use crate::same_host::board::{Board, Process};
use crate::same_host::grants::{self, Granting};

impl Granting for InLane {
    fn board(&self) -> &Board {
        self.ring.board()
    }

    fn writer_has_gone(&self) -> bool {
        self.sender_has_gone()
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
        let lane: Arc<dyn Granting> = Arc::clone(self.0) as _;
        grants::grant(&lane, regions, domain, [qpn.get(), peer.get()], rkey)
    }
}

impl OutLane {
    /// Places octets in the receiver's memory, if it has granted that.
    fn place(&self, qpns: [u32; 2], rkey: u32, addr: u64, octets: &IoList<'_>) -> bool {
        let Ok(mut reach) = self.reach.try_lock() else {
            return false;
        };
        let gone = || has_ended(&self.bell, None);
        reach.place(self.ring.board(), gone, qpns, (rkey, addr), octets)
    }
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
    use std::time::Duration;

    use softverbs_proto::memory::Access;

    use super::super::super::tests::{self, Octets};
    use super::*;
    use crate::same_host::grants::{end_grants, end_grants_to};
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
