//! Writes that a sender places itself in the memory of the receiver, another process of this host: one
//! system call, `process_vm_writev`, which needs the right to trace the receiver.

use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use super::board::{Board, Process};
use crate::engine::sys::IoList;

/// Up to so many octets a write is small: what one packet of the largest path MTU takes.
pub(crate) const SMALL: u64 = 4096;

/// Whether a write is small, and whoever reads what it writes to sees all of it or nothing: some kernels
/// copy fewer than eight octets one by one.
pub(crate) fn is_small(len: u64) -> bool {
    len == 1 || (8..=SMALL).contains(&len)
}

/// Whether a sender may place writes itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Not known yet.
    #[default]
    Unknown,
    Yes,
    /// Not allowed, or not the process that it says.
    No,
}

impl Reach {
    /// Places octets at an address of the region with a key, in the memory of the process of a board, if
    /// it has granted that to the second of these queue pairs, for the first one. `gone` tells whether that
    /// process has ended, or is another program.
    pub(crate) fn place(
        &mut self,
        board: &Board,
        gone: impl FnOnce() -> bool,
        qpns: [u32; 2],
        (rkey, addr): (u32, u64),
        octets: &IoList<'_>,
    ) -> bool {
        if *self == Self::Unknown {
            *self = prove(board.process());
        }
        if *self == Self::No {
            return false;
        }
        let Some(found) = board.find(qpns, rkey, addr, octets.len() as u64) else {
            return false;
        };
        if !board.enter(&found) {
            return false;
        }
        // Its number may be another process's soon, or it may be another program. Behind `enter`: the
        // moment between this look and the write is short.
        if gone() {
            board.leave();
            return false;
        }
        let written = write(board.process().pid, found.place, octets);
        board.leave();
        if !written {
            *self = Self::No;
        }
        written
    }
}

fn pid_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid)
        .ok()
        .filter(|pid| *pid > 0)
        .map(Pid::from_raw)
}

fn remote(place: u64, len: usize) -> Option<[RemoteIoVec; 1]> {
    let base = usize::try_from(place).ok()?;
    Some([RemoteIoVec { base, len }])
}

/// Whether a process is the one that it says: in another namespace of processes its number is another
/// one's.
fn prove(process: Process) -> Reach {
    let mut octets = [0; 8];
    let (Some(pid), Some(from)) = (pid_of(process.pid), remote(process.proof_at, octets.len()))
    else {
        return Reach::No;
    };
    let read = process_vm_readv(pid, &mut [IoSliceMut::new(&mut octets)], &from);
    if read == Ok(octets.len()) && u64::from_ne_bytes(octets) == process.proof {
        Reach::Yes
    } else {
        Reach::No
    }
}

fn write(pid: u32, place: u64, octets: &IoList<'_>) -> bool {
    let (Some(pid), Ok(place)) = (pid_of(pid), usize::try_from(place)) else {
        return false;
    };
    octets.write_to_process(pid.as_raw(), place)
}
