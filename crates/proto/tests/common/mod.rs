//! The pair harness: two streams joined by byte pipes that split and coalesce at random, each
//! with registered memory that notices every octet out of place.
#![allow(
    dead_code,
    unused_imports,
    missing_docs,
    reason = "shared by tests that each use a part of it"
)]
#![allow(unreachable_pub, reason = "a module of several test binaries")]

pub mod memory;
pub mod pair;
pub mod raw;
pub mod requests;
pub mod strategies;

use core::time::Duration;

use smallvec::smallvec;
use softverbs_proto::iwarp::negotiate::{Negotiated, RtrKind};
use softverbs_proto::iwarp::stream::{FpduSizing, StreamConfig};
use softverbs_proto::mutation::Mutations;
use softverbs_proto::time::Time;
use softverbs_proto::wr::{Completion, Payload, SendFlags, SendOp, SendRequest, Sge, WcStatus};
use softverbs_wire::num::{Lkey, Rkey};

pub use memory::VecMemory;
pub use pair::{End, Link, Pair, RESPONDER};

pub const LARGEST: FpduSizing = FpduSizing::Largest { limit: u16::MAX };
pub const AWARE: FpduSizing = FpduSizing::MpaAware { emss: 1448 };

pub fn at(millis: u64) -> Time {
    Time::new(Duration::from_millis(millis))
}

pub fn config() -> StreamConfig {
    StreamConfig {
        max_send_wr: 64,
        sq_sig_all: false,
        copy_limit: 512,
        mutations: Mutations::NONE,
    }
}

pub fn agreed() -> Negotiated {
    Negotiated {
        crc: false,
        markers_out: false,
        markers_in: false,
        ird: 16,
        ord: 16,
        rtr: None,
        rfc7306: true,
    }
}

pub fn peer_to_peer(kind: RtrKind) -> Negotiated {
    Negotiated {
        rtr: Some(kind),
        ..agreed()
    }
}

pub fn sge(key: u32, addr: u64, len: usize) -> Sge {
    Sge {
        addr,
        length: u32::try_from(len).unwrap(),
        lkey: Lkey::new(key),
    }
}

pub fn rkey(key: u32) -> Rkey {
    Rkey::new(key)
}

/// A signaled request with one scatter/gather entry.
pub fn wr(wr_id: u64, op: SendOp, sge: Sge) -> SendRequest {
    SendRequest {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(smallvec![sge]),
    }
}

pub fn inline(wr_id: u64, op: SendOp, data: &[u8]) -> SendRequest {
    SendRequest {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        payload: Payload::Inline(data.iter().copied().collect()),
    }
}

pub fn with_flags(request: SendRequest, flags: SendFlags) -> SendRequest {
    SendRequest {
        flags: request.flags | flags,
        ..request
    }
}

pub fn unsignaled(request: SendRequest) -> SendRequest {
    SendRequest {
        flags: request.flags - SendFlags::SIGNALED,
        ..request
    }
}

pub fn statuses(completions: &[Completion]) -> Vec<(u64, WcStatus)> {
    completions
        .iter()
        .map(|completion| (completion.wr_id, completion.status))
        .collect()
}

/// Octets that differ from place to place.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let octet = |at: usize| at.to_le_bytes()[0];
    (0..len)
        .map(|at| octet(at).wrapping_mul(31) ^ octet(at >> 8) ^ seed)
        .collect()
}
