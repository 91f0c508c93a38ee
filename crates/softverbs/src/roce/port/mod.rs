//! The UDP side of RoCEv2: one port for each process.
mod border;

use std::net::IpAddr;
use std::ops::Range;
use std::sync::{Arc, Weak};

use softverbs_proto::roce::batch::PacketBatch;
use softverbs_wire::ib::mad::MAD_LEN;
use softverbs_wire::num::{Qpn, ServiceId};

pub(crate) use self::border::{GsiSink, PacketMeta, PacketSink, ReceivedFrom, SendPath, Sent};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::mr_table::MrTable;

/// Skeleton; being filled in.
#[derive(Debug)]
pub(crate) struct Port {}

#[allow(unused_variables, dead_code, clippy::unused_self, reason = "skeleton")]
impl Port {
    /// The port of this process; made at the first call.
    pub(crate) fn get(engine: &'static Engine) -> Result<&'static Self> {
        Err(Error::not_supported("port", "not yet"))
    }
    /// A queue pair number of this process. It leads peers here.
    pub(crate) fn alloc_qpn(&self) -> Result<Qpn> {
        Err(Error::not_supported("port", "not yet"))
    }
    /// Gives a number back; it rests before it is used again.
    pub(crate) fn free_qpn(&self, qpn: Qpn) {}
    /// The slot of this process among those of this user on this host: the high 12 bits of its
    /// queue pair numbers.
    pub(crate) fn slot(&self) -> u16 {
        1
    }
    /// What the communication ids of this process must start with: the slot in the high 12 bits;
    /// the low 20 are free.
    pub(crate) fn comm_id_prefix(&self) -> u32 {
        u32::from(self.slot()) << 20
    }
    /// Unique for each instance of this port.
    pub(crate) fn ca_guid(&self) -> u64 {
        1
    }
    /// Packets for `qpn` go to `sink` from now on.
    pub(crate) fn register(&self, qpn: Qpn, sink: Weak<dyn PacketSink>) {}
    /// No packets for `qpn` any more, but for one that is being delivered right now.
    pub(crate) fn unregister(&self, qpn: Qpn) {}
    /// Who takes datagrams to QP1.
    pub(crate) fn set_gsi(&self, sink: Arc<dyn GsiSink>) {}
    /// `qpn` takes packets to a multicast group too.
    pub(crate) fn join(&self, group: IpAddr, interface: u32, qpn: Qpn) -> Result<()> {
        Ok(())
    }
    /// Ends [`join`](Self::join).
    pub(crate) fn leave(&self, group: IpAddr, interface: u32, qpn: Qpn) {}
    /// Requests for a service at `address` (or any, if unspecified) are for this process.
    /// `AddrInUse` if another process has it.
    pub(crate) fn publish_service(&self, service: ServiceId, address: IpAddr) -> Result<()> {
        Ok(())
    }
    /// Ends [`publish_service`](Self::publish_service).
    pub(crate) fn withdraw_service(&self, service: ServiceId, address: IpAddr) {}
    /// Whether packets from `remote` can come here: an error if it is another host and UDP port
    /// 4791 belongs to somebody else. To be asked before connecting.
    pub(crate) fn check_reachable(&self, remote: IpAddr) -> Result<()> {
        Ok(())
    }
    /// Sends packets of a batch, all to one destination, as far as the kernel takes them.
    pub(crate) fn send(
        &self,
        regions: &MrTable,
        pd: u32,
        batch: &PacketBatch,
        frames: Range<usize>,
        path: &SendPath,
    ) -> Sent {
        Sent::Blocked
    }
    /// After [`Sent::Blocked`]: `sink` is told once, when there is room.
    pub(crate) fn wait_for_room(&self, sink: Weak<dyn PacketSink>) {}
    /// Sends a management datagram. What the kernel has no room for is lost.
    pub(crate) fn send_mad(&self, path: &SendPath, mad: &[u8; MAD_LEN]) -> Result<()> {
        Ok(())
    }
    /// Receives what has come, on this thread, unless another one is at it. Returns the number of
    /// packets.
    pub(crate) fn poll(&self, engine: &Engine) -> usize {
        0
    }
}
