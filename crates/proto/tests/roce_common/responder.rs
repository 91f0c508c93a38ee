//! A responder with regions of every kind, and requests to it.

use softverbs_proto::memory::Access;
use softverbs_proto::roce::queue_pair::QpAttributes;
use softverbs_wire::ib::{AtomicEth, Headers, Opcode, Reth};
use softverbs_wire::num::{PathMtu, VirtualAddress};

use super::*;

pub const MTU: usize = 256;
pub const READABLE: u32 = 1;
pub const WRITABLE: u32 = 2;
pub const OTHER_PD: u32 = 3;
pub const ATOMIC: u32 = 4;

pub fn small(access: Access) -> QpAttributes {
    QpAttributes {
        path_mtu: PathMtu::Mtu256,
        access,
        ..attributes()
    }
}

/// A responder in RTS, with regions.
pub fn responder_with(attributes: QpAttributes) -> End {
    let mut end = Pair::new(attributes, Network::GOOD, 1).b;
    let local = Access::LOCAL_WRITE;
    let memory = &mut end.memory;
    memory.add(READABLE, 0, Access::REMOTE_READ, &pattern(1, 2000));
    memory.add(WRITABLE, 0, local | Access::REMOTE_WRITE, &[0; 2000]);
    memory.add(OTHER_PD, 0, VecMemory::all_access(), &[0; 2000]);
    memory.region_mut(OTHER_PD).our_pd = false;
    memory.add(ATOMIC, 0, local | Access::REMOTE_ATOMIC, &[0; 64]);
    end
}

pub fn responder() -> End {
    responder_with(small(attributes().access))
}

pub fn request(opcode: Opcode, index: u32) -> Headers {
    let mut headers = bth(opcode, B_QPN, A_PSN.advance(index));
    headers.bth.ack_req = true;
    headers
}

pub fn reth(key: u32, va: u64, dma_len: u32) -> Reth {
    Reth {
        va: VirtualAddress::new(va),
        rkey: rkey(key),
        dma_len,
    }
}

pub fn atomic_eth(key: u32, va: u64) -> AtomicEth {
    AtomicEth {
        va: VirtualAddress::new(va),
        rkey: rkey(key),
        swap_or_add: 1,
        compare: 0,
    }
}

pub fn write_only(index: u32, key: u32, va: u64, len: u32) -> Headers {
    request(Opcode::RC_WRITE_ONLY, index).with_reth(reth(key, va, len))
}

pub fn read(index: u32, key: u32, va: u64, len: u32) -> Headers {
    request(Opcode::RC_READ_REQUEST, index).with_reth(reth(key, va, len))
}
