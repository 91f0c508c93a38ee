//! Headers, payload and pad to frames.

use softverbs_wire::ib::{Bth, Headers, Opcode, pad_count};
use softverbs_wire::num::{Lkey, Psn, Qpn, Rkey};

use super::batch::{Destination, PacketBatch};
use crate::memory::{Access, Memory, MemoryFault};
use crate::wr::Sge;

/// Where the payload of a packet comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    /// There is none.
    None,
    /// Captured when the request was posted.
    Inline(&'a [u8]),
    /// A part of a scatter/gather list of a local request.
    Local {
        sges: &'a [Sge],
        offset: u64,
        len: usize,
    },
    /// Memory that the peer reads.
    Remote { key: Rkey, addr: u64, len: usize },
}

impl Source<'_> {
    const fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Inline(octets) => octets.len(),
            Self::Local { len, .. } | Self::Remote { len, .. } => *len,
        }
    }
}

/// A BTH as every packet of ours has it. MigReq says that no migration to another path is under
/// way: adapters that know path migration expect it set, everyone else ignores it.
pub(super) const fn bth(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Bth {
    let mut bth = Bth::new(opcode, dest_qp, psn);
    bth.mig_req = true;
    bth
}

/// Appends one packet, or nothing if the payload's memory may not be touched.
pub(super) fn emit<M: Memory>(
    memory: &M,
    out: &mut PacketBatch,
    copy_limit: u32,
    destination: Destination,
    headers: Headers,
    source: Source<'_>,
) -> Result<(), MemoryFault> {
    emit_train(
        memory,
        out,
        copy_limit,
        destination,
        headers,
        source,
        (1, 0),
    )
}

/// The same with a train of so many packets of that MTU.
pub(super) fn emit_train<M: Memory>(
    memory: &M,
    out: &mut PacketBatch,
    copy_limit: u32,
    destination: Destination,
    mut headers: Headers,
    source: Source<'_>,
    (packets, mtu): (u32, usize),
) -> Result<(), MemoryFault> {
    let len = source.len();
    let pad = pad_count(len);
    headers.bth.pad_count = pad;
    let scratch_len = out.scratch().len();
    out.scratch_with(|scratch| headers.append_to(scratch));
    let large = packets > 1 || len > copy_limit as usize;
    let gathers = large && !matches!(source, Source::Inline(_));
    let payload = if gathers {
        gather(memory, out, source)
    } else {
        let mut result = Ok(());
        out.scratch_with(|scratch| result = copy(memory, source, scratch));
        result
    };
    if let Err(fault) = payload {
        out.abandon(scratch_len);
        return Err(fault);
    }
    out.scratch_with(|scratch| scratch.extend_from_slice(&[0; 3][..usize::from(pad)]));
    let volatile = gathers && matches!(source, Source::Remote { .. });
    if packets > 1 {
        out.end_train(destination, volatile, (packets, mtu), headers, len);
    } else {
        out.end_frame(destination, volatile);
    }
    Ok(())
}

fn gather<M: Memory>(
    memory: &M,
    out: &mut PacketBatch,
    source: Source<'_>,
) -> Result<(), MemoryFault> {
    match source {
        Source::None | Source::Inline(_) => {}
        Source::Local { sges, offset, len } => {
            for (lkey, addr, len) in parts(sges, offset, len) {
                let length = u32::try_from(len).unwrap_or(u32::MAX);
                memory.check_local(&Sge { addr, length, lkey }, Access::empty())?;
                out.memory(lkey, addr, len);
            }
        }
        Source::Remote { key, addr, len } => {
            memory.check_remote(key, addr, len as u64, Access::REMOTE_READ)?;
            out.memory(Lkey::new(key.get()), addr, len);
        }
    }
    Ok(())
}

fn copy<M: Memory>(memory: &M, source: Source<'_>, to: &mut Vec<u8>) -> Result<(), MemoryFault> {
    let mut read = |key, addr, len| {
        let start = to.len();
        to.resize(start + len, 0);
        memory.read(key, addr, &mut to[start..])
    };
    match source {
        Source::None | Source::Remote { len: 0, .. } => Ok(()),
        Source::Inline(octets) => {
            to.extend_from_slice(octets);
            Ok(())
        }
        Source::Local { sges, offset, len } => {
            parts(sges, offset, len).try_for_each(|(key, addr, len)| read(key, addr, len))
        }
        Source::Remote { key, addr, len } => {
            memory.check_remote(key, addr, len as u64, Access::REMOTE_READ)?;
            read(Lkey::new(key.get()), addr, len)
        }
    }
}

/// The pieces of memory that hold `len` octets of a scatter/gather list, from `offset` on.
pub(super) fn parts(
    sges: &[Sge],
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (Lkey, u64, usize)> {
    let mut skip = offset;
    let mut left = len;
    sges.iter().filter_map(move |sge| {
        let length = u64::from(sge.length);
        if skip >= length {
            skip -= length;
            return None;
        }
        let here = usize::try_from(length - skip)
            .unwrap_or(usize::MAX)
            .min(left);
        let part = (sge.lkey, sge.addr.wrapping_add(skip), here);
        skip = 0;
        left -= here;
        (here > 0).then_some(part)
    })
}

/// Scatters `data` over a scatter/gather list, from `offset` on.
pub(super) fn scatter<M: Memory>(
    memory: &mut M,
    sges: &[Sge],
    offset: u64,
    data: &[u8],
) -> Result<(), MemoryFault> {
    let mut rest = data;
    for (key, addr, len) in parts(sges, offset, data.len()) {
        let (here, after) = rest.split_at(len);
        memory.write(key, addr, here)?;
        rest = after;
    }
    debug_assert!(rest.is_empty(), "the list is shorter than the data");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_walk_the_list() {
        let lkey = Lkey::new(7);
        let sge = |addr, length| Sge { addr, length, lkey };
        let sges = [sge(100, 3), sge(0, 0), sge(200, 1), sge(300, 5)];
        let walk = |offset, len| -> Vec<(u64, usize)> {
            parts(&sges, offset, len)
                .map(|(_, addr, len)| (addr, len))
                .collect()
        };
        assert_eq!(walk(0, 9), [(100, 3), (200, 1), (300, 5)]);
        assert_eq!(walk(2, 3), [(102, 1), (200, 1), (300, 1)]);
        assert_eq!(walk(4, 4), [(300, 4)]);
        assert_eq!(walk(9, 1), []);
        assert_eq!(walk(5, 0), []);
    }
}
