//! Work requests and work completions.

use softverbs_proto::wr::{Completion, SendFlags, SendOp, Sge, WcOpcode, WcStatus};
use softverbs_wire::num::{Qpn, Rkey};

use crate::roce::AddressHandle;

/// Where the payload of a [`SendWr`] comes from (or goes to, for reads and atomics).
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Registered memory. It belongs to the request until the request has completed.
    Sges(&'a [Sge]),
    /// Copied when the request is posted; up to `max_inline_data` octets.
    Inline(&'a [u8]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Modifiers.
    pub flags: SendFlags,
    /// Source, or sink for reads and atomics.
    pub data: SendData<'a>,
    /// Where a datagram goes (UD only).
    pub ud: Option<UdAddress<'a>>,
    /// The peer's shared receive queue that it is for (XRC only).
    pub remote_srqn: Option<Qpn>,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct UdAddress<'a> {
    /// The way to the peer's port.
    pub ah: &'a AddressHandle,
    /// The queue pair there.
    pub remote_qpn: Qpn,
    /// The key that it wants to see. With the highest bit set, the own queue pair's is sent
    /// instead.
    pub remote_qkey: u32,
}

impl<'a> SendWr<'a> {
    /// A signaled request.
    pub const fn new(wr_id: u64, op: SendOp, data: SendData<'a>) -> Self {
        Self {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            data,
            ud: None,
            remote_srqn: None,
        }
    }

    /// The same request to a datagram's destination.
    #[must_use]
    pub const fn to(mut self, destination: UdAddress<'a>) -> Self {
        self.ud = Some(destination);
        self
    }

    /// The same request for a shared receive queue of the peer (XRC).
    #[must_use]
    pub const fn for_srq(mut self, number: Qpn) -> Self {
        self.remote_srqn = Some(number);
        self
    }

    /// The same request with other flags.
    #[must_use]
    pub const fn with_flags(mut self, flags: SendFlags) -> Self {
        self.flags = flags;
        self
    }
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes. It belongs to the request until the request has completed.
    pub sges: &'a [Sge],
}

/// A work completion (`struct ibv_wc`).
#[derive(Clone, Copy, Debug)]
pub struct Wc {
    /// From the request.
    pub wr_id: u64,
    /// How the request ended.
    pub status: WcStatus,
    /// What completed. Meaningful on success only.
    pub opcode: WcOpcode,
    /// Octets received, read or written. Meaningful on success only.
    pub byte_len: u32,
    /// Immediate data of a received message.
    pub imm: Option<u32>,
    /// Our key that the received message made invalid.
    pub invalidated_rkey: Option<Rkey>,
    /// The local queue pair.
    pub qp_num: Qpn,
    /// Who sent a datagram (UD).
    pub src_qp: Option<Qpn>,
    /// The first 40 octets of the receive hold the network header (UD).
    pub grh: bool,
    /// Service level (UD). RoCE has none; what stands here is, as with adapters of mlx5, which
    /// programs rely on, the kind of that header: 1 for IPv6, 2 for IPv4.
    pub sl: u8,
    /// More about an error, for people: 0 here.
    pub vendor_err: u32,
}

impl Default for Wc {
    fn default() -> Self {
        Self {
            wr_id: 0,
            status: WcStatus::GeneralErr,
            opcode: WcOpcode::Send,
            byte_len: 0,
            imm: None,
            invalidated_rkey: None,
            qp_num: Qpn::new(0),
            src_qp: None,
            grh: false,
            sl: 0,
            vendor_err: 0,
        }
    }
}

impl Wc {
    /// Whether the request succeeded.
    pub fn is_success(&self) -> bool {
        self.status == WcStatus::Success
    }

    pub(crate) fn new(completion: &Completion, qp_num: Qpn) -> Self {
        Self {
            wr_id: completion.wr_id,
            status: completion.status,
            opcode: completion.opcode,
            byte_len: completion.byte_len,
            imm: completion.imm,
            invalidated_rkey: completion.invalidated,
            qp_num,
            src_qp: None,
            grh: false,
            sl: 0,
            vendor_err: 0,
        }
    }
}
