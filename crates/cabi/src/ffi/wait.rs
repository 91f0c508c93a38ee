//! Waiting for events, in which a thread may be interrupted and cancelled.
//!
//! What waits is a read of the descriptor, as in rdma-core: so O_NONBLOCK, signal handlers with and
//! without SA_RESTART, `pthread_cancel` and a descriptor that is none do what they do there. A
//! cancelled thread unwinds C's way, which no frame of Rust with something to drop, or with a
//! `catch_unwind`, may be part of. Hence the read stands outside of both, and what has to live until
//! it returns is the thread's meanwhile, whose end drops it.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use super::guard::{self, Result};

/// What events come from.
pub(crate) trait Events: Send + Sync + 'static {
    /// A read of it takes the announcement of an event.
    fn fd(&self) -> BorrowedFd<'_>;
}

unsafe extern "C-unwind" {
    /// Unlike the declaration in `libc`, this one may unwind.
    fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize;
}

thread_local! {
    /// What the reads of this thread need: one, and more only in signal handlers.
    static KEPT: RefCell<Vec<Arc<dyn Any + Send + Sync>>> = const { RefCell::new(Vec::new()) };
}

/// Leaves `source` to the thread.
fn keep<S: Events>(source: Arc<S>) -> *const S {
    let pointer = Arc::as_ptr(&source);
    let again = source.clone();
    if KEPT.try_with(|kept| kept.borrow_mut().push(again)).is_err() {
        // The thread is at its end, and has nowhere to leave it: it stays for ever.
        mem::forget(source);
    }
    pointer
}

/// Takes back what was left last.
fn let_go() {
    let last = KEPT.try_with(|kept| kept.borrow_mut().pop());
    drop(last);
}

/// Reads one announcement. `false`, with `errno`: there is none.
fn announced(fd: c_int) -> bool {
    let mut one = 0_u64;
    // SAFETY: eight octets of ours; and nothing in this frame needs to be dropped.
    unsafe { read(fd, (&raw mut one).cast(), size_of::<u64>()) > 0 }
}

/// The body of an entry point that waits for an event and returns 0 or -1. `find` says where it
/// comes from; `take` fetches it once it is announced: `false` if it was taken back meanwhile.
///
/// Both closures own nothing that needs to be dropped, see above.
pub(crate) fn event<S, F, T>(find: F, take: T) -> c_int
where
    S: Events,
    F: FnOnce() -> Result<Arc<S>>,
    T: Fn(&S) -> Result<bool>,
{
    const { assert!(!mem::needs_drop::<F>() && !mem::needs_drop::<T>()) };
    let found = guard::or(None, || {
        let source = find()?;
        let fd = source.fd().as_raw_fd();
        Ok(Some((keep(source), fd)))
    });
    let Some((source, fd)) = found else {
        return -1;
    };
    let result = loop {
        if !announced(fd) {
            break -1;
        }
        // SAFETY: kept by this thread.
        let taken = guard::or(-1, || Ok(c_int::from(take(unsafe { &*source })?)));
        match taken {
            0 => (),
            1 => break 0,
            _ => break -1,
        }
    };
    guard::or((), || {
        let_go();
        Ok(())
    });
    result
}

/// Waits within an entry point, where the thread is not cancelled.
pub(crate) fn next<S: Events, T>(source: &S, take: impl Fn(&S) -> Result<Option<T>>) -> Result<T> {
    loop {
        if !announced(source.fd().as_raw_fd()) {
            return Err(guard::last_errno());
        }
        if let Some(taken) = take(source)? {
            return Ok(taken);
        }
    }
}
