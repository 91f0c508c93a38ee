//! The system calls of the data path that name memory by raw address. `unsafe` lives here so that
//! the rest of the engine needs none.
//!
//! Those of each message are made directly. The functions of libc are cancellation points, where another
//! thread may end this one, and to be that takes them longer.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::mr_table::Pin;

/// Most elements of one gather list (Linux's IOV_MAX).
pub(crate) const MAX_IOV: usize = 1024;

/// A gather or scatter list whose elements stay valid for `'a`: slices, or pieces of pinned
/// memory regions.
pub(crate) struct IoList<'a> {
    iov: smallvec::SmallVec<[libc::iovec; 8]>,
    pins: smallvec::SmallVec<[Pin<'a>; 4]>,
    len: usize,
}

impl<'a> IoList<'a> {
    pub(crate) fn new() -> Self {
        Self {
            iov: smallvec::SmallVec::new(),
            pins: smallvec::SmallVec::new(),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn elements(&self) -> usize {
        self.iov.len()
    }

    /// Adds octets to be sent.
    pub(crate) fn push_out(&mut self, octets: &'a [u8]) {
        self.push(octets.as_ptr().cast_mut(), octets.len());
    }

    /// Adds room to receive into.
    pub(crate) fn push_in(&mut self, room: &'a mut [u8]) {
        self.push(room.as_mut_ptr(), room.len());
    }

    /// Adds `len` octets at `addr` of a pinned region; the pin is held as long as the list.
    /// The caller has checked that the range lies in the region (`Pin::range` did).
    pub(crate) fn push_pinned(&mut self, pin: Pin<'a>, start: *mut u8, len: usize) {
        self.pins.push(pin);
        self.push(start, len);
    }

    fn push(&mut self, base: *mut u8, len: usize) {
        if len > 0 {
            self.iov.push(libc::iovec {
                iov_base: base.cast(),
                iov_len: len,
            });
            self.len += len;
        }
    }

    /// Where its elements begin, and their lengths, none of which is 0. They are valid as long as the list,
    /// to be read if they were pushed as slices to be sent.
    pub(crate) fn places(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        let elements = self.iov.iter();
        elements.map(|element| (element.iov_base.cast(), element.iov_len))
    }

    /// Writes the list to the memory of another process, at an address there. Whether all of it was
    /// written.
    pub(crate) fn write_to_process(&self, pid: libc::pid_t, place: usize) -> bool {
        let there = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(place),
            iov_len: self.len,
        };
        let count = self.iov.len() as libc::c_ulong;
        // SAFETY: our elements come from slices borrowed for 'a or from ranges that `Pin::range` checked,
        // whose pins are held by `self`; the kernel only reads them. The other one is of another process
        // (or of this one, of a region that its grant keeps), and EFAULT where there is nothing.
        let written = unsafe {
            libc::process_vm_writev(pid, self.iov.as_ptr(), count, &raw const there, 1, 0)
        };
        usize::try_from(written) == Ok(self.len)
    }

    /// Gathers the list into the socket without blocking. Returns how many octets it took.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>, end_of_record: bool) -> io::Result<usize> {
        let mut flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        if end_of_record {
            flags |= libc::MSG_EOR;
        }
        let nobody: *const libc::sockaddr = std::ptr::null();
        let sent = if let [only] = self.iov.as_slice() {
            // SAFETY: the element comes from a slice borrowed for 'a or from a range that
            // `Pin::range` checked, and its pin is held by `self`; the kernel only reads it and
            // reports EFAULT for pages that are gone.
            unsafe {
                libc::syscall(
                    libc::SYS_sendto,
                    fd.as_raw_fd(),
                    only.iov_base,
                    only.iov_len,
                    flags,
                    nobody,
                    0,
                )
            }
        } else {
            // SAFETY: an all-zero msghdr is a valid value of this plain C struct.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = self.iov.as_mut_ptr();
            message.msg_iovlen = self.iov.len().min(MAX_IOV) as _;
            // SAFETY: as above, for each element; msg_iovlen does not exceed the list.
            unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const message, flags) }
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives into the list without blocking. Returns how many octets came; 0 is the end of
    /// the stream.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let nobody: *mut libc::sockaddr = std::ptr::null_mut();
        let got = if let [only] = self.iov.as_slice() {
            // SAFETY: the element comes from an exclusive slice borrowed for 'a or from a range
            // that `Pin::range` checked in a region whose pin `self` holds; memory of regions is
            // only ever accessed through raw pointers, so no reference is invalidated.
            unsafe {
                libc::syscall(
                    libc::SYS_recvfrom,
                    fd.as_raw_fd(),
                    only.iov_base,
                    only.iov_len,
                    libc::MSG_DONTWAIT,
                    nobody,
                    nobody,
                )
            }
        } else {
            // SAFETY: an all-zero msghdr is a valid value of this plain C struct.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = self.iov.as_mut_ptr();
            message.msg_iovlen = self.iov.len().min(MAX_IOV) as _;
            // SAFETY: as above, for each element.
            unsafe {
                let flags = libc::MSG_DONTWAIT;
                libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut message, flags)
            }
        };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }
}

impl std::fmt::Debug for IoList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoList")
            .field("elements", &self.iov.len())
            .field("len", &self.len)
            .finish()
    }
}

/// A socket of the kernel's, closed in other programs, whatever `socket` is in this process: a
/// library that makes sockets over RDMA of a program's sockets (librspreload) would make them of
/// those underneath, too.
pub(crate) fn socket(domain: Domain, kind: Type, protocol: Option<Protocol>) -> io::Result<Socket> {
    let kind = libc::c_int::from(kind) | libc::SOCK_CLOEXEC;
    let protocol = protocol.map_or(0, libc::c_int::from);
    // SAFETY: three numbers; nothing of ours is touched.
    let fd = unsafe { libc::syscall(libc::SYS_socket, libc::c_int::from(domain), kind, protocol) };
    match libc::c_int::try_from(fd) {
        // SAFETY: the kernel has just made it, and nobody else has it.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One ready source: its token and its readiness.
pub(crate) type Ready = (u64, u32);

/// Waits for events of an epoll instance, with a timeout in nanoseconds (`None`: for ever).
/// An interrupted wait counts as an empty one.
pub(crate) fn epoll_wait(
    epoll: BorrowedFd<'_>,
    out: &mut smallvec::SmallVec<[Ready; 64]>,
    timeout: Option<Duration>,
) -> io::Result<()> {
    const EVENTS: usize = 64;
    // Not filled beforehand: most looks find nothing.
    let mut events = [const { MaybeUninit::<libc::epoll_event>::uninit() }; EVENTS];
    let place: *mut libc::epoll_event = events.as_mut_ptr().cast();
    let capacity = libc::c_int::try_from(EVENTS).expect("a small constant");
    let got = match timeout {
        Some(Duration::ZERO) | None => {
            let ms = if timeout.is_none() { -1 } else { 0 };
            // SAFETY: there is room for `capacity` entries at `place`, and a null signal mask leaves
            // the mask alone.
            unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait,
                    epoll.as_raw_fd(),
                    place,
                    capacity,
                    ms,
                    std::ptr::null::<libc::sigset_t>(),
                    0_usize,
                )
                .try_into()
                .unwrap_or(-1)
            }
        }
        Some(limit) => {
            let spec = libc::timespec {
                tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: limit.subsec_nanos().into(),
            };
            // SAFETY: as above; `spec` outlives the call.
            unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    epoll.as_raw_fd(),
                    place,
                    capacity,
                    &raw const spec,
                    std::ptr::null::<libc::sigset_t>(),
                    0_usize,
                )
                .try_into()
                .unwrap_or(-1)
            }
        }
    };
    let mut told = |got: usize| {
        let events = events[..got].iter();
        // SAFETY: the kernel has said that it has written so many.
        out.extend(
            events
                .map(|event| unsafe { event.assume_init() })
                .map(|event| (event.u64, event.events)),
        );
    };
    let Ok(got) = usize::try_from(got) else {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::EINTR) => Ok(()),
            // A kernel before 5.11 has no epoll_pwait2: whole milliseconds, rounded up.
            Some(libc::ENOSYS) => {
                let limit = timeout.unwrap_or_default();
                let ms = i32::try_from(limit.as_millis() + 1).unwrap_or(i32::MAX);
                // SAFETY: as above.
                let got = unsafe { libc::epoll_wait(epoll.as_raw_fd(), place, capacity, ms) };
                told(usize::try_from(got).unwrap_or(0));
                Ok(())
            }
            _ => Err(error),
        };
    };
    told(got);
    Ok(())
}

/// Gives the calling thread a short scheduling slice (`sched_setattr`, SCHED_OTHER, kernel 6.12):
/// it then preempts threads that spin instead of waiting for the end of theirs. Best effort.
pub(crate) fn shorten_slice(slice: Duration) {
    #[repr(C)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let attr = SchedAttr {
        size: 48,
        policy: 0,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime: u64::try_from(slice.as_nanos()).unwrap_or(0),
        deadline: 0,
        period: 0,
    };
    // SAFETY: `attr` is laid out as version 0 of `struct sched_attr`, whose size it carries; the
    // kernel only reads it.
    unsafe {
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
    }
}

/// Makes timed waits of the calling thread exact to about a microsecond instead of 50.
pub(crate) fn exact_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_usize);
    }
}

/// Has `handler` called when the process ends by `exit`, or by the end of `main`.
pub(crate) fn at_exit(handler: extern "C" fn()) {
    // SAFETY: atexit keeps the pointer of a function that lives as long as the program's code.
    unsafe {
        libc::atexit(handler);
    }
}

/// The dynamic linker calls it behind all handlers of `atexit`, and at no other time: the shared
/// library is never unloaded.
// SAFETY: the section is an array of such pointers, and the function lives as long as the code.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = super::exit::on_end;
