//! Requests between the regions of a pair that has everything.

use softverbs_proto::iwarp::negotiate::Negotiated;
use softverbs_proto::wr::{SendOp, SendRequest, WcStatus};

use super::*;

pub const OK: WcStatus = WcStatus::Success;

/// Source of `a` and target of `b` in region 1, sink of `a` in region 2, receives of `b` in
/// region 9.
pub fn loaded(negotiated: Negotiated) -> Pair {
    let mut pair = Pair::new(negotiated, LARGEST, Link::Whole, 5);
    for end in [&mut pair.a, &mut pair.b] {
        end.memory
            .add(1, 0, VecMemory::all_access(), &pattern(1, 300_000));
        end.memory
            .add(2, 0, VecMemory::all_access(), &vec![0; 300_000]);
        end.memory.add(9, 0, VecMemory::all_access(), &[0; 4096]);
        for wr_id in 0..64 {
            end.memory.post_receive(wr_id, [sge(9, 64 * wr_id, 64)]);
        }
    }
    pair
}

/// Region 1 of the peer to region 2.
pub fn read(wr_id: u64, len: usize) -> SendRequest {
    wr(
        wr_id,
        SendOp::Read {
            remote_addr: 0,
            rkey: rkey(1),
        },
        sge(2, 0, len),
    )
}

/// Region 1 to region 2 of the peer.
pub fn write(wr_id: u64, len: usize) -> SendRequest {
    wr(
        wr_id,
        SendOp::Write {
            remote_addr: 0,
            rkey: rkey(2),
        },
        sge(1, 0, len),
    )
}

/// 16 octets.
pub fn send(wr_id: u64) -> SendRequest {
    inline(wr_id, SendOp::Send, &[7; 16])
}
