//! Work requests and work completions.

use softverbs_proto::wr::{Completion, SendFlags, SendOp, Sge, WcOpcode, WcStatus};
use softverbs_wire::num::{Qpn, Rkey};

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
}

impl<'a> SendWr<'a> {
    /// A signaled request.
    pub const fn new(wr_id: u64, op: SendOp, data: SendData<'a>) -> Self {
        Self {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            data,
        }
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
            vendor_err: 0,
        }
    }
}
