//! Whether another process of this host is still there, however it ended.
//!
//! Each process has a file of its first slot, which says the GUID of its adapter, and holds a record
//! lock on it (`fcntl`), not a `flock` as on all other files: the kernel takes it away when the process
//! ends or becomes another program, whatever children it has, and others can ask for it without taking
//! it for a moment. A process that is stopped is there.
//!
//! The lock goes with the first descriptor of the file that the process closes, so this process opens
//! its own file once.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use nix::fcntl::{FcntlArg, fcntl};
use softverbs_wire::num::{CommId, Guid};

use super::folder::{open, read_text, rewrite};
use super::{COMM_ID_BITS, Port};
use crate::error::{Error, Result};

/// This process is there.
#[derive(Debug)]
pub(super) struct Presence(File);

/// What became of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// It is there.
    Here,
    /// It has ended.
    Gone,
    /// Another one has its place, or has always had it: the process may not be of this folder.
    Replaced,
    /// There is nothing to judge by.
    Unknown,
}

#[allow(clippy::cast_possible_truncation, reason = "small constants")]
const fn whole_file(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

impl Presence {
    /// Tells others that the process with this adapter is there from now on.
    pub(super) fn show(path: &Path, guid: Guid) -> Result<Self> {
        let mut file = open(path).map_err(Error::from_call("open"))?;
        let lock = whole_file(libc::F_WRLCK);
        fcntl(&file, FcntlArg::F_SETLK(&lock)).map_err(|errno| Error::os("fcntl", errno as i32))?;
        // Not before it is locked: whoever reads it would take us for dead.
        rewrite(&mut file, &format!("{:016x}\n", guid.get()))?;
        Ok(Self(file))
    }

    /// See [`Lock::touch`](super::folder::Lock::touch).
    pub(super) fn touch(&self) {
        let _ = self.0.set_modified(SystemTime::now());
    }
}

/// What became of the process that showed this adapter in this file.
fn look(path: &Path, guid: Guid) -> io::Result<Whereabouts> {
    let mut file = File::open(path)?;
    let mut lock = whole_file(libc::F_WRLCK);
    // Before the text: whoever has it locked then has not written it for somebody else since.
    fcntl(&file, FcntlArg::F_GETLK(&mut lock))?;
    let is_locked = i32::from(lock.l_type) != libc::F_UNLCK;
    let text = read_text(&mut file)?;
    Ok(match u64::from_str_radix(text.trim(), 16) {
        Ok(shown) if shown != guid.get() => Whereabouts::Replaced,
        Ok(_) if is_locked => Whereabouts::Here,
        Ok(_) => Whereabouts::Gone,
        // Somebody is about to write it.
        Err(_) => Whereabouts::Unknown,
    })
}

impl Port {
    /// What became of the process of this host that has given a connection this id, and whose adapter
    /// has this GUID.
    pub(crate) fn whereabouts(&self, comm_id: CommId, guid: Guid) -> Whereabouts {
        let Ok(home) = u16::try_from(comm_id.get() >> COMM_ID_BITS) else {
            return Whereabouts::Unknown;
        };
        if home == self.home {
            // Its file is ours, which is not to be opened again.
            return Whereabouts::Unknown;
        }
        look(&self.folder.presence(home), guid).unwrap_or(Whereabouts::Unknown)
    }
}
