//! Regions that the peer writes into directly.

use std::sync::{Mutex, PoisonError};

use super::RSocket;
use super::stream::errno;
use super::transfer::MsgFlags;
use crate::context::Pd;
use crate::error::{Error, Result};
use crate::mr::Mr;

/// The regions of one socket, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Mappings(Vec<Mapping>);

#[derive(Debug)]
struct Mapping {
    mr: Mr,
    /// The entry in the peer's table, if the peer may write.
    index: Option<u32>,
}

impl RSocket {
    /// The protection domain in which a region has to be registered to be mapped. ENOTCONN while
    /// there is none: a stream has one from the attempt to connect on.
    pub fn pd(&self) -> Result<Pd> {
        self.as_stream()?
            .pd()
            .ok_or_else(|| errno("riomap", libc::ENOTCONN))
    }

    /// Maps a region for the peer to write into (`riomap`). It names octets of it by offsets,
    /// from `offset` on; without one, the region's address is its offset. The peer hears of it
    /// before the next data that is sent. Returns the offset.
    ///
    /// ENOMEM: the peer's table, whose size it chose by [`RSockOpt::IomapSize`], is full. EINVAL:
    /// the region is in another protection domain than [`pd`](Self::pd), or peers may not write
    /// into it.
    ///
    /// [`RSockOpt::IomapSize`]: super::RSockOpt::IomapSize
    pub fn map_region(&self, mr: &Mr, offset: Option<u64>) -> Result<u64> {
        let socket = self.as_stream()?;
        if !mr.access().contains(crate::Access::REMOTE_WRITE) {
            return Err(Error::invalid("mr", "peers may not write into it"));
        }
        let offset = offset.unwrap_or_else(|| mr.as_ptr().addr() as u64);
        let mut mappings = self.mappings.lock().unwrap_or_else(PoisonError::into_inner);
        let index = socket.map_region(mr, offset)?;
        mappings.0.push(Mapping {
            mr: mr.clone(),
            index: Some(index),
        });
        Ok(offset)
    }

    /// Keeps a region that the peer may not write into with those that are mapped: a place for
    /// what `riomap` makes without PROT_WRITE.
    pub fn keep_region(&self, mr: &Mr) -> Result<()> {
        self.as_stream()?;
        let mut mappings = self.mappings.lock().unwrap_or_else(PoisonError::into_inner);
        mappings.0.push(Mapping {
            mr: mr.clone(),
            index: None,
        });
        Ok(())
    }

    /// Takes a region back (`riounmap`), named by its first address and its octets; its key is
    /// invalid from then on. EINVAL if none is mapped there.
    pub fn unmap_region(&self, addr: usize, len: usize) -> Result<()> {
        let socket = self.as_stream()?;
        let mut mappings = self.mappings.lock().unwrap_or_else(PoisonError::into_inner);
        let found = mappings
            .0
            .iter()
            .position(|mapping| mapping.mr.as_ptr().addr() == addr && mapping.mr.len() == len)
            .ok_or_else(|| Error::invalid("buf", "no region is mapped there"))?;
        let mapping = mappings.0.remove(found);
        drop(mappings);
        mapping.mr.dereg()?;
        if let Some(index) = mapping.index {
            socket.unmap_region(index);
        }
        Ok(())
    }

    /// Writes into a region that the peer has mapped, from `offset` on (`riowrite`); it is not
    /// told. Returns how many octets are on their way. EFAULT if no region has that offset;
    /// others as for [`send`](Self::send).
    pub fn write_region(&self, data: &[u8], offset: u64, flags: MsgFlags) -> Result<usize> {
        self.as_stream()?.write_region(data, offset, flags)
    }
}

/// Takes all regions back.
pub(super) fn forget(mappings: &Mutex<Mappings>) {
    let mut mappings = mappings.lock().unwrap_or_else(PoisonError::into_inner);
    for mapping in mappings.0.drain(..) {
        let _ = mapping.mr.dereg();
    }
}
