//! Work requests and completions, as proto sees them: values, no pointers.

use bitflags::bitflags;
use smallvec::SmallVec;
use softverbs_wire::num::{Lkey, Rkey};

use crate::memory::Access;

/// A piece of local registered memory, laid out as `struct ibv_sge`: a list of C's is a list of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Sge {
    /// Virtual address of the first octet.
    pub addr: u64,
    /// Octets.
    pub length: u32,
    /// Key of the memory region that holds it.
    pub lkey: Lkey,
}

/// The scatter/gather list of one work request; up to four entries without an allocation.
pub type SgeList = SmallVec<[Sge; 4]>;

/// Payload that was captured when the request was posted; up to 64 octets without an allocation.
pub type InlineData = SmallVec<[u8; 64]>;

bitflags! {
    /// Flags of a send work request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Start only after earlier RDMA Reads and Atomics of this queue have completed.
        const FENCE = 1;
        /// Report success with a completion (failure always is).
        const SIGNALED = 2;
        /// Raise a solicited event at the receiver.
        const SOLICITED = 4;
    }
}

/// What a send work request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendOp {
    /// A message into the peer's next receive.
    Send,
    /// A message that carries 32 bits of immediate data (RoCE only).
    SendWithImm(u32),
    /// A message that invalidates one of the peer's keys.
    SendWithInvalidate(Rkey),
    /// A transfer into the peer's memory.
    Write {
        /// Virtual address at the peer.
        remote_addr: u64,
        /// Key that the peer handed out.
        rkey: Rkey,
    },
    /// A transfer into the peer's memory that then consumes a receive and reports `imm`.
    WriteWithImm {
        /// Virtual address at the peer.
        remote_addr: u64,
        /// Key that the peer handed out.
        rkey: Rkey,
        /// Immediate data.
        imm: u32,
    },
    /// A transfer from the peer's memory.
    Read {
        /// Virtual address at the peer.
        remote_addr: u64,
        /// Key that the peer handed out.
        rkey: Rkey,
    },
    /// Add to the 64-bit word at the peer, return what was there.
    FetchAdd {
        /// Virtual address at the peer, a multiple of 8.
        remote_addr: u64,
        /// Key that the peer handed out.
        rkey: Rkey,
        /// The addend.
        add: u64,
    },
    /// Replace the 64-bit word at the peer if it equals `compare`, return what was there.
    CompareSwap {
        /// Virtual address at the peer, a multiple of 8.
        remote_addr: u64,
        /// Key that the peer handed out.
        rkey: Rkey,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Make one of our own keys invalid, in the order of the queue.
    LocalInvalidate(Rkey),
    /// Bind a memory window of ours, in the order of the queue.
    BindMw(BindMw),
}

/// A memory window and what it is to show (`struct ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BindMw {
    /// Any key that the window has had: all but its lowest octet stays.
    pub window: Rkey,
    /// The key that it gets: the same but for the lowest octet.
    pub rkey: Rkey,
    /// The memory region to which it is a window. `None` unbinds.
    pub region: Option<Lkey>,
    /// First address, as the region has it.
    pub addr: u64,
    /// Octets. 0 unbinds.
    pub length: u64,
    /// What peers may do. With `ZERO_BASED` they count from the start of the window.
    pub access: Access,
}

/// Where the payload of a send work request comes from (or goes to, for reads and atomics).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// Registered memory.
    Sges(SgeList),
    /// Octets captured at post time.
    Inline(InlineData),
}

impl Payload {
    /// Octets in all.
    pub fn len(&self) -> u64 {
        match self {
            Self::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
            Self::Inline(data) => data.len() as u64,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A send work request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SendRequest {
    /// The application's name for it.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Modifiers.
    pub flags: SendFlags,
    /// Source (Send, Write) or sink (Read, Atomics).
    pub payload: Payload,
}

/// A receive work request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecvRequest {
    /// The application's name for it.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: SgeList,
}

/// How a work request ended; the values are those of `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names of rdma-core")]
pub enum WcStatus {
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    LocRddViolErr = 14,
    RemInvRdReqErr = 15,
    RemAbortErr = 16,
    InvEecnErr = 17,
    InvEecStateErr = 18,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
}

/// What completed; the values are those of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names of rdma-core")]
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

impl WcOpcode {
    /// Whether a receive completed, not a send.
    pub const fn is_recv(self) -> bool {
        self as u32 & 128 != 0
    }
}

/// The end of one work request. Proto reports unsignaled successes to nobody, so each value is
/// one entry for a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Completion {
    /// The application's name for the request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Octets received, read or written (meaningful on success).
    pub byte_len: u32,
    /// Immediate data that came with it.
    pub imm: Option<u32>,
    /// Our key that the peer's message invalidated.
    pub invalidated: Option<Rkey>,
    /// The peer asked for a solicited event.
    pub solicited: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_counted_beyond_32_bits() {
        let sge = Sge {
            addr: 0,
            length: u32::MAX,
            lkey: Lkey::new(1),
        };
        let payload = Payload::Sges([sge; 3].into_iter().collect());
        assert_eq!(payload.len(), 3 * u64::from(u32::MAX));
        assert!(!payload.is_empty());
        assert!(Payload::Sges(SgeList::new()).is_empty());
        assert_eq!(Payload::Inline(InlineData::from_slice(b"abc")).len(), 3);
    }

    #[test]
    fn values_are_those_of_rdma_core() {
        assert_eq!(WcStatus::WrFlushErr as u32, 5);
        assert_eq!(WcStatus::RemAccessErr as u32, 10);
        assert_eq!(WcStatus::GeneralErr as u32, 21);
        assert_eq!(WcOpcode::LocalInv as u32, 6);
        assert!(WcOpcode::Recv.is_recv() && WcOpcode::RecvRdmaWithImm.is_recv());
        assert!(!WcOpcode::RdmaRead.is_recv() && !WcOpcode::LocalInv.is_recv());
    }
}
