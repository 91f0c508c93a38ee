//! Registered memory in vectors, with protection domains, access flags, bounds, and canaries
//! around each region.

use std::collections::{BTreeMap, VecDeque};

use softverbs_proto::memory::{Access, Memory, MemoryFault};
use softverbs_proto::transmit::{Piece, TxBatch};
use softverbs_proto::wr::{RecvRequest, Sge};
use softverbs_wire::num::{Lkey, Qpn, Rkey};

const CANARY: u8 = 0xc5;
const CANARY_LEN: usize = 64;

#[derive(Debug, Clone)]
pub struct Region {
    pub base: u64,
    pub access: Access,
    pub our_pd: bool,
    pub can_invalidate: bool,
    pub valid: bool,
    /// The region between canaries.
    octets: Vec<u8>,
}

impl Region {
    fn len(&self) -> usize {
        self.octets.len() - 2 * CANARY_LEN
    }

    pub fn octets(&self) -> &[u8] {
        &self.octets[CANARY_LEN..self.octets.len() - CANARY_LEN]
    }

    pub fn octets_mut(&mut self) -> &mut [u8] {
        let end = self.octets.len() - CANARY_LEN;
        &mut self.octets[CANARY_LEN..end]
    }

    fn range(&self, addr: u64, len: u64) -> Result<core::ops::Range<usize>, MemoryFault> {
        let end = addr.checked_add(len).ok_or(MemoryFault::Wrap)?;
        if addr < self.base || end > self.base + self.len() as u64 {
            return Err(MemoryFault::Bounds);
        }
        let start = usize::try_from(addr - self.base).unwrap();
        Ok(start..start + usize::try_from(len).unwrap())
    }
}

#[derive(Debug, Default, Clone)]
pub struct VecMemory {
    regions: BTreeMap<u32, Region>,
    pub receives: VecDeque<RecvRequest>,
    /// Calls of `write`: where the payload of incoming messages went.
    pub writes: usize,
    pub checks: core::cell::Cell<usize>,
}

impl VecMemory {
    pub fn all_access() -> Access {
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
    }

    pub fn add(&mut self, key: u32, base: u64, access: Access, content: &[u8]) {
        let mut octets = vec![CANARY; CANARY_LEN];
        octets.extend_from_slice(content);
        octets.extend_from_slice(&[CANARY; CANARY_LEN]);
        let region = Region {
            base,
            access,
            our_pd: true,
            can_invalidate: true,
            valid: true,
            octets,
        };
        assert!(
            self.regions.insert(key, region).is_none(),
            "key {key} twice"
        );
    }

    pub fn region(&self, key: u32) -> &Region {
        &self.regions[&key]
    }

    pub fn region_mut(&mut self, key: u32) -> &mut Region {
        self.regions.get_mut(&key).unwrap()
    }

    pub fn octets(&self, key: u32) -> &[u8] {
        self.region(key).octets()
    }

    pub fn post_receive(&mut self, wr_id: u64, sges: impl IntoIterator<Item = Sge>) {
        self.receives.push_back(RecvRequest {
            wr_id,
            sges: sges.into_iter().collect(),
        });
    }

    pub fn assert_canaries(&self) {
        for (key, region) in &self.regions {
            let end = region.octets.len() - CANARY_LEN;
            let intact = |octets: &[u8]| octets.iter().all(|octet| *octet == CANARY);
            assert!(intact(&region.octets[..CANARY_LEN]), "before region {key}");
            assert!(intact(&region.octets[end..]), "after region {key}");
        }
    }

    fn find(&self, key: u32) -> Result<&Region, MemoryFault> {
        self.regions
            .get(&key)
            .filter(|region| region.valid)
            .ok_or(MemoryFault::InvalidKey)
    }

    fn find_mut(&mut self, key: u32) -> Result<&mut Region, MemoryFault> {
        self.regions
            .get_mut(&key)
            .filter(|region| region.valid)
            .ok_or(MemoryFault::InvalidKey)
    }

    fn check(&self, key: u32, addr: u64, len: u64, need: Access) -> Result<(), MemoryFault> {
        self.checks.set(self.checks.get() + 1);
        let region = self.find(key)?;
        if !region.our_pd {
            return Err(MemoryFault::WrongPd);
        }
        region.range(addr, len)?;
        if !region.access.contains(need) {
            return Err(MemoryFault::Access);
        }
        Ok(())
    }

    /// The octets that a batch stands for, as a socket would take them.
    pub fn flatten(&self, batch: &TxBatch) -> Vec<u8> {
        let mut octets = Vec::new();
        for piece in batch.pieces() {
            match *piece {
                Piece::Scratch { start, len } => {
                    octets.extend_from_slice(&batch.scratch()[start..start + len]);
                }
                Piece::Memory { key, addr, len } => {
                    let region = &self.regions[&key.get()];
                    let range = region.range(addr, len as u64).unwrap();
                    octets.extend_from_slice(&region.octets()[range]);
                }
            }
        }
        assert_eq!(octets.len(), batch.len());
        octets
    }
}

impl Memory for VecMemory {
    fn check_local(&self, sge: &Sge, need: Access) -> Result<(), MemoryFault> {
        assert!(sge.length > 0, "zero-length entries are never checked");
        self.check(sge.lkey.get(), sge.addr, sge.length.into(), need)
    }

    fn check_remote(
        &self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), MemoryFault> {
        assert!(len > 0, "zero-length operations are never checked");
        self.check(rkey.get(), addr, len, need)
    }

    fn invalidate(&mut self, rkey: Rkey) -> Result<(), MemoryFault> {
        let region = self.find_mut(rkey.get())?;
        if !region.our_pd {
            return Err(MemoryFault::WrongPd);
        }
        if !region.can_invalidate {
            return Err(MemoryFault::CannotInvalidate);
        }
        region.valid = false;
        Ok(())
    }

    fn read(&self, key: Lkey, addr: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        let region = self.find(key.get())?;
        let range = region.range(addr, out.len() as u64)?;
        out.copy_from_slice(&region.octets()[range]);
        Ok(())
    }

    fn write(&mut self, key: Lkey, addr: u64, data: &[u8]) -> Result<(), MemoryFault> {
        assert!(!data.is_empty(), "nothing to write");
        self.writes += 1;
        let region = self.find_mut(key.get())?;
        let range = region.range(addr, data.len() as u64)?;
        region.octets_mut()[range].copy_from_slice(data);
        Ok(())
    }

    fn atomic(
        &mut self,
        rkey: Rkey,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, MemoryFault> {
        let region = self.find_mut(rkey.get())?;
        let range = region.range(addr, 8)?;
        let word = &mut region.octets_mut()[range];
        let before = u64::from_ne_bytes(word.try_into().unwrap());
        word.copy_from_slice(&update(before).to_ne_bytes());
        Ok(before)
    }

    /// There is one, and its memory and receives are those that there are.
    fn select_srq(&mut self, srq: Qpn) -> bool {
        srq.get() == 9
    }

    fn take_receive(&mut self) -> Option<RecvRequest> {
        self.receives.pop_front()
    }
}
