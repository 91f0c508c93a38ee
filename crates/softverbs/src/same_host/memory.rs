//! Memory that two processes share: a file without a name, sealed so that nobody can make it shorter. A
//! new one is all zeros, and no page takes memory before its first use.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

/// The memory, as one of the two sees it.
#[derive(Debug)]
pub(crate) struct Shared {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a place and its length. Whoever refers to what is there says why he may.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; whoever refers to it has borrowed `self`.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}

fn seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

impl Shared {
    /// New memory of `len` octets, all zeros, and the file that leads another process to it.
    pub(crate) fn create(len: usize) -> io::Result<(Self, OwnedFd)> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"softverbs", flags)?;
        let size = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        ftruncate(&file, size)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals()))?;
        Ok((Self::map(file.as_fd(), len)?, file))
    }

    /// What another process has made with this length.
    pub(crate) fn open(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        // A shorter file, or one that gets shorter, would end this process when it is read.
        let have = SealFlag::from_bits_truncate(fcntl(file, FcntlArg::F_GET_SEALS)?);
        if !have.contains(seals()) || usize::try_from(fstat(file)?.st_size) != Ok(len) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::map(file, len)
    }

    fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let size = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, at a place of the kernel's choice, of a file that is as long and stays
        // so.
        let start = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Self {
            start: start.cast(),
            len,
        })
    }

    /// Where it begins, at the beginning of a page.
    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 8192;

    #[test]
    fn nothing_but_such_memory_is_opened() {
        let (_memory, file) = Shared::create(LEN).unwrap();
        assert!(Shared::open(file.as_fd(), LEN).is_ok());
        assert!(Shared::open(file.as_fd(), LEN - 1).is_err(), "longer");
        assert!(ftruncate(&file, 0).is_err(), "it stays as long");
        let file = memfd_create(c"other", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&file, 8192).unwrap();
        assert!(Shared::open(file.as_fd(), LEN).is_err(), "not sealed");
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals())).unwrap();
        assert!(Shared::open(file.as_fd(), LEN).is_ok());
        let short = memfd_create(c"short", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&short, 8191).unwrap();
        fcntl(&short, FcntlArg::F_ADD_SEALS(seals())).unwrap();
        assert!(Shared::open(short.as_fd(), LEN).is_err(), "too short");
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(Shared::open(null.as_fd(), LEN).is_err(), "cannot be sealed");
    }
}
