//! Registered memory as one queue pair sees it.

use softverbs_proto::memory::{Access, Memory, MemoryFault};
use softverbs_proto::wr::{RecvRequest, Sge};
use softverbs_wire::num::{Lkey, Rkey};

use super::QpInner;
use crate::mr_table::MrTable;

/// The upward trait of proto for one queue pair.
pub(crate) struct QpMemory<'a> {
    qp: &'a QpInner,
    regions: &'a MrTable,
    pd: u32,
}

impl<'a> QpMemory<'a> {
    pub(crate) fn new(qp: &'a QpInner) -> Self {
        Self {
            qp,
            regions: &qp.pd.context().inner().regions,
            pd: qp.pd.id(),
        }
    }

    pub(super) fn regions(&self) -> &'a MrTable {
        self.regions
    }

    pub(super) fn pd(&self) -> u32 {
        self.pd
    }
}

impl Memory for QpMemory<'_> {
    fn check_local(&self, sge: &Sge, need: Access) -> Result<(), MemoryFault> {
        if sge.length == 0 {
            return Ok(());
        }
        self.regions
            .check(sge.lkey.get(), sge.addr, sge.length.into(), need, self.pd)
    }

    fn check_remote(
        &self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), MemoryFault> {
        self.regions.check(rkey.get(), addr, len, need, self.pd)
    }

    fn invalidate(&mut self, rkey: Rkey) -> Result<(), MemoryFault> {
        self.regions.invalidate(rkey, self.pd)
    }

    fn read(&self, key: Lkey, addr: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        self.regions.read(key, addr, out, self.pd)
    }

    fn write(&mut self, key: Lkey, addr: u64, data: &[u8]) -> Result<(), MemoryFault> {
        self.regions.write(key, addr, data, self.pd)
    }

    fn atomic(
        &mut self,
        rkey: Rkey,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, MemoryFault> {
        self.regions.atomic(rkey, addr, self.pd, update)
    }

    fn take_receive(&mut self) -> Option<RecvRequest> {
        match &self.qp.srq {
            Some(srq) => srq.take(),
            None => Some(self.qp.rq.take()?.request),
        }
    }
}
