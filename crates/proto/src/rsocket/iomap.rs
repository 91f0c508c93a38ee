//! Regions that an application has mapped for its peer to write into, and those that the peer has
//! mapped for it.

use std::collections::VecDeque;

use softverbs_wire::Reader;
use softverbs_wire::num::Rkey;
use softverbs_wire::rsocket::{ByteOrder, ConnectData, IomapEntry, RemoteBuffer};

use super::{Target, TargetList};

/// A region that is to be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iomap {
    /// The offset that names its first octet.
    pub offset: u64,
    /// Where it is.
    pub addr: u64,
    /// The key to it.
    pub rkey: Rkey,
    /// Octets.
    pub length: u32,
}

/// The peer's table has no entry left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's table of mapped regions is full")]
pub struct TableFull;

#[derive(Debug, Default)]
pub(super) struct Iomaps {
    /// The peer's table, and which of its entries are in use.
    table: Target,
    used: Vec<bool>,
    /// Entries that the peer has to be told of.
    queue: VecDeque<(u32, IomapEntry)>,
    order: ByteOrder,
    /// What the peer has mapped for us.
    targets: Vec<IomapEntry>,
}

impl Iomaps {
    pub(super) fn new(entries: u16) -> Self {
        Self {
            targets: vec![IomapEntry::default(); entries.into()],
            ..Self::default()
        }
    }

    pub(super) fn connected(&mut self, peer: &ConnectData) {
        let list = &peer.target_list;
        let before = u64::from(list.length) * RemoteBuffer::LEN as u64;
        self.table = Target {
            addr: list.addr.wrapping_add(before),
            rkey: list.rkey,
        };
        let entries = if peer.has_iomap() {
            peer.iomap_size.entries()
        } else {
            0
        };
        self.used = vec![false; entries.into()];
        self.order = peer.order();
    }

    /// Maps a region, and returns the entry that it gets.
    pub(super) fn map(&mut self, region: &Iomap) -> Result<u32, TableFull> {
        let free = self.used.iter().position(|used| !used).ok_or(TableFull)?;
        self.used[free] = true;
        let index = u32::try_from(free).map_err(|_| TableFull)?;
        let entry = IomapEntry {
            offset: region.offset,
            buffer: RemoteBuffer {
                addr: region.addr,
                rkey: region.rkey,
                length: region.length,
            },
        };
        self.queue.push_back((index, entry));
        Ok(index)
    }

    /// Takes a mapping back. The peer is told, unless it has not heard of it yet.
    pub(super) fn unmap(&mut self, index: u32) {
        let known = self.queue.len();
        self.queue.retain(|(queued, _)| *queued != index);
        if self.queue.len() == known {
            self.queue.push_back((index, IomapEntry::default()));
        } else if let Some(used) = self.used.get_mut(index as usize) {
            *used = false;
        }
    }

    pub(super) fn has_news(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The next entry that the peer has to be told of: its index, its octets, its place.
    pub(super) fn next(&mut self) -> Option<(u32, [u8; IomapEntry::LEN], Target)> {
        let (index, entry) = self.queue.pop_front()?;
        if entry == IomapEntry::default()
            && let Some(used) = self.used.get_mut(index as usize)
        {
            *used = false;
        }
        let mut place = self.table;
        place.addr = place
            .addr
            .wrapping_add(u64::from(index) * IomapEntry::LEN as u64);
        Some((index, entry.to_bytes(self.order), place))
    }

    /// The peer has written an entry of our table.
    pub(super) fn on_mapped(&mut self, index: u32, list: &mut impl TargetList) {
        let Some(target) = usize::try_from(index)
            .ok()
            .and_then(|index| self.targets.get_mut(index))
        else {
            return;
        };
        let octets = list.region(index);
        if let Ok(entry) = IomapEntry::parse(&mut Reader::new(&octets), ByteOrder::Little) {
            *target = entry;
        }
    }

    /// Where `offset` is at the peer, and how many octets may be written there.
    pub(super) fn find(&self, offset: u64) -> Option<(Target, usize)> {
        self.targets.iter().find_map(|entry| {
            let skip = offset.checked_sub(entry.offset)?;
            let left = u64::from(entry.buffer.length).checked_sub(skip)?;
            let target = Target {
                addr: entry.buffer.addr.wrapping_add(skip),
                rkey: entry.buffer.rkey,
            };
            (left > 0).then(|| (target, usize::try_from(left).unwrap_or(usize::MAX)))
        })
    }
}
