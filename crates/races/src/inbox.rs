//! The registered memory of a queue pair: receives of one octet each, in the order of posting.

use std::collections::VecDeque;

use smallvec::smallvec;
use softverbs_proto::memory::{Access, Memory, MemoryFault};
use softverbs_proto::wr::{RecvRequest, Sge};
use softverbs_wire::num::{Lkey, Rkey};

const KEY: Lkey = Lkey::new(1);

/// One octet of memory for each receive.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Inbox {
    octets: Vec<u8>,
    receives: VecDeque<RecvRequest>,
}

/// What was there before a message.
const EMPTY: u8 = 0xff;

impl Inbox {
    /// With so many receives posted.
    pub(crate) fn new(receives: u8) -> Self {
        let request = |at: u8| RecvRequest {
            wr_id: at.into(),
            sges: smallvec![Sge {
                addr: at.into(),
                length: 1,
                lkey: KEY,
            }],
        };
        Self {
            octets: vec![EMPTY; receives.into()],
            receives: (0..receives).map(request).collect(),
        }
    }

    /// What the receive of this number holds.
    pub(crate) fn content(&self, wr_id: u64) -> u8 {
        let at = usize::try_from(wr_id).unwrap_or(usize::MAX);
        self.octets.get(at).copied().unwrap_or(EMPTY)
    }

    fn range(&self, addr: u64, len: usize) -> Result<std::ops::Range<usize>, MemoryFault> {
        let start = usize::try_from(addr).map_err(|_| MemoryFault::Bounds)?;
        let end = start.checked_add(len).ok_or(MemoryFault::Wrap)?;
        if end > self.octets.len() {
            return Err(MemoryFault::Bounds);
        }
        Ok(start..end)
    }
}

impl Memory for Inbox {
    fn check_local(&self, sge: &Sge, _: Access) -> Result<(), MemoryFault> {
        if sge.lkey != KEY {
            return Err(MemoryFault::InvalidKey);
        }
        self.range(sge.addr, sge.length as usize).map(|_| ())
    }

    fn check_remote(&self, _: Rkey, _: u64, _: u64, _: Access) -> Result<(), MemoryFault> {
        Err(MemoryFault::InvalidKey)
    }

    fn invalidate(&mut self, _: Rkey) -> Result<(), MemoryFault> {
        Err(MemoryFault::InvalidKey)
    }

    fn read(&self, _: Lkey, addr: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        let range = self.range(addr, out.len())?;
        out.copy_from_slice(&self.octets[range]);
        Ok(())
    }

    fn write(&mut self, _: Lkey, addr: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let range = self.range(addr, data.len())?;
        self.octets[range].copy_from_slice(data);
        Ok(())
    }

    fn atomic(
        &mut self,
        _: Rkey,
        _: u64,
        _: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, MemoryFault> {
        Err(MemoryFault::InvalidKey)
    }

    fn take_receive(&mut self) -> Option<RecvRequest> {
        self.receives.pop_front()
    }
}
