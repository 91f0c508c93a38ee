//! What arrives on the connection: to its place, or through a buffer.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use softverbs_proto::memory::Access;

use super::drive::{BUDGET, is_retry};
use super::memory::QpMemory;
use super::{Iwarp, QpInner};
use crate::engine::sys::{IoList, MAX_IOV};

/// Octets received at once when they cannot go straight to their place.
const STAGING: usize = 64 << 10;
/// Payload from this size on goes straight to its place.
const DIRECT_MIN: usize = 4096;
/// Room behind a direct payload: its trailer and the next header, but little of the next
/// payload, which would have to be copied.
const DIRECT_TAIL: usize = 64;
/// So many receptions behind large payload fetch no more than leads to the next one. What is fetched
/// with it would have to be copied; worse, as much as a large frame again and again would end just
/// before the next header, where nothing can go straight to its place.
const STILL_LARGE: u32 = 4;
/// Octets in one system call that make a stream of it.
const BULK: usize = 16 << 10;

thread_local! {
    pub(super) static STAGE: RefCell<Box<[u8]>> = RefCell::new(vec![0; STAGING].into_boxed_slice());
}

impl QpInner {
    /// Returns whether anything came.
    pub(super) fn receive(&self, core: &mut Iwarp) -> bool {
        if core.connection.as_ref().is_some_and(|of| of.edge.is_some()) {
            self.receive_disturbed(core);
            return true;
        }
        let mut memory = QpMemory::new(self);
        let mut any = false;
        STAGE.with_borrow_mut(|stage| {
            for _ in 0..BUDGET {
                let Some(connection) = &mut core.connection else {
                    return;
                };
                let direct: usize = core
                    .stream
                    .direct()
                    .map_or(0, |d| d.iter().map(|&(_, _, len)| len).sum());
                let is_large = direct >= DIRECT_MIN;
                let large = if is_large {
                    STILL_LARGE
                } else {
                    connection.large
                };
                let mut list = IoList::new();
                let mut placed_most = 0;
                if large > 0
                    && let Some(pieces) = core.stream.direct()
                {
                    for &(key, addr, len) in pieces {
                        let Ok((pin, start)) = memory.regions().iovec(
                            key,
                            addr,
                            len,
                            Access::LOCAL_WRITE,
                            memory.domain(),
                        ) else {
                            // Deregistered in the middle of a message: let the stream find out.
                            break;
                        };
                        list.push_pinned(pin, start, len);
                        placed_most += len;
                        if list.elements() == MAX_IOV - 1 {
                            break;
                        }
                    }
                }
                let room = if large > 0 && placed_most == direct {
                    DIRECT_TAIL
                } else if placed_most > 0 {
                    0
                } else {
                    STAGING
                };
                list.push_in(&mut stage[..room]);
                let asked = list.len();
                let got = list.receive(connection.socket.as_fd());
                drop(list);
                match got {
                    Ok(0) => {
                        any = true;
                        core.stream.on_eof(self.engine.coarse_now(), false);
                        return;
                    }
                    Ok(got) => {
                        any = true;
                        let now = self.engine.coarse_now();
                        connection.large = if is_large {
                            large
                        } else {
                            large.saturating_sub(1)
                        };
                        if got >= BULK {
                            self.engine.bulk.store(true, Ordering::Relaxed);
                        }
                        let placed = got.min(placed_most);
                        if placed > 0 {
                            core.stream.on_direct(now, &mut memory, placed);
                        }
                        if got > placed {
                            core.stream
                                .on_bytes(now, &mut memory, &stage[..got - placed]);
                        }
                        if got < asked {
                            return;
                        }
                    }
                    Err(error) if is_retry(&error) => return,
                    Err(_) => {
                        any = true;
                        core.stream.on_eof(self.engine.coarse_now(), true);
                        return;
                    }
                }
            }
        });
        any
    }
}
