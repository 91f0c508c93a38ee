//! What arrives on the connection: to its place, or through a buffer.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use softverbs_proto::memory::Access;
use softverbs_proto::qp_state::QpState;

use super::drive::{BUDGET, is_retry};
use super::memory::QpMemory;
use super::{Iwarp, QpInner};
use crate::engine::BULK;
use crate::engine::sys::{IoList, MAX_IOV};

/// Octets received at once when they cannot go straight to their place.
const STAGING: usize = 64 << 10;
/// Payload of segments from this size on goes straight to its place.
const DIRECT_MIN: usize = 4096;
/// Room behind a direct payload: its trailer and the next header, but little of the next
/// payload, which would have to be copied.
const DIRECT_TAIL: usize = 64;
/// So many receptions behind large payload fetch no more than leads to the next one. What is fetched
/// with it would have to be copied; worse, as much as a large frame again and again would end just
/// before the next header, where nothing can go straight to its place.
const STILL_LARGE: u32 = 4;

thread_local! {
    pub(super) static STAGE: RefCell<Box<[u8]>> = RefCell::new(vec![0; STAGING].into_boxed_slice());
}

/// For how many receptions large payload is to be expected.
#[derive(Debug, Default)]
pub(super) struct Expected(u32);

impl Expected {
    /// Before a reception, while `direct` octets of a segment of `len` have a place: whether they go
    /// straight to it.
    fn is_large(&mut self, direct: usize, len: usize) -> bool {
        if direct > 0 && len >= DIRECT_MIN {
            self.0 = STILL_LARGE;
        }
        self.0 > 0
    }

    /// Something came, and none of it was of a large segment.
    const fn small(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }
}

impl QpInner {
    /// Returns whether anything came.
    pub(super) fn receive(&self, core: &mut Iwarp) -> bool {
        if core.connection.as_ref().is_some_and(|of| of.edge.is_some()) {
            self.receive_disturbed(core);
            return true;
        }
        if core.connection.as_mut().is_some_and(|of| of.way.is_quiet()) {
            return false;
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
                let large = connection
                    .expected
                    .is_large(direct, core.stream.segment_len());
                let mut list = IoList::new();
                let mut placed_most = 0;
                if large && let Some(pieces) = core.stream.direct() {
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
                let room = if large && placed_most == direct {
                    DIRECT_TAIL
                } else if placed_most > 0 {
                    0
                } else {
                    STAGING
                };
                list.push_in(&mut stage[..room]);
                let asked = list.len();
                let got = connection.way.receive(&mut list, connection.socket.as_fd());
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
                        if placed_most == 0 {
                            connection.expected.small();
                        }
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
                        let receives = self.state() == QpState::Rts;
                        connection.way.done(&memory, receives);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Octets of a stream of such frames, all of which have come, that go through the buffer, of
    /// `count` receptions, the first of which begins that far before the end of a frame.
    fn copied(payload: usize, begin: usize, count: usize) -> usize {
        const AROUND: usize = 24;
        let frame = payload + AROUND;
        let mut expected = Expected::default();
        let (mut left, mut copied) = (begin, 0);
        for _ in 0..count {
            // The trailer is at the end, the header before the payload.
            let direct = if left > 4 && left <= payload + 4 {
                left - 4
            } else {
                0
            };
            let (placed, room) = if expected.is_large(direct, payload) {
                (direct, DIRECT_TAIL)
            } else {
                (0, STAGING)
            };
            if placed == 0 {
                expected.small();
            }
            copied += room;
            // At 0 the next frame begins.
            left = (left + frame - (placed + room) % frame) % frame;
        }
        copied
    }

    #[test]
    fn large_payload_is_not_copied_wherever_a_reception_begins() {
        for payload in [DIRECT_MIN, 32 << 10, 65_472] {
            for begin in (1..=payload + 24).step_by(37) {
                let copied = copied(payload, begin, 100);
                assert!(copied < 3 * STAGING, "{payload}, {begin}: {copied}");
            }
        }
    }

    #[test]
    fn small_messages_are_received_together() {
        assert_eq!(copied(1024, 500, 100), 100 * STAGING);
        let mut expected = Expected::default();
        assert!(expected.is_large(1, DIRECT_MIN));
        for _ in 0..STILL_LARGE {
            assert!(expected.is_large(8, 8));
            expected.small();
        }
        assert!(!expected.is_large(8, 8), "behind large payload soon again");
    }
}
