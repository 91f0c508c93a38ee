//! Stream sockets: sending and receiving.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};

use bitflags::bitflags;
use softverbs_proto::rsocket::{Iomap, Stream};

use super::endpoint::Endpoint;
use super::stream::{Phase, State, StreamSocket, errno};
use crate::context::Pd;
use crate::error::{Error, Result};
use crate::mr::Mr;

bitflags! {
    /// Flags of one transfer; the values are Linux's.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MsgFlags: i32 {
        /// Leave what is received in the socket.
        const PEEK = libc::MSG_PEEK;
        /// Do not wait.
        const DONTWAIT = libc::MSG_DONTWAIT;
        /// Wait until all of the buffer is filled, the peer sends no more, or an error occurs.
        const WAITALL = libc::MSG_WAITALL;
        /// Accepted: no signal is ever raised.
        const NOSIGNAL = libc::MSG_NOSIGNAL;
    }
}

/// The first message of a call is small, so that it is under way while the next one is copied;
/// each is twice as long as the one before, up to [`LONGEST`].
const FIRST: usize = 2048;
const LONGEST: usize = 1 << 16;

/// What stands between a sender and sending.
enum Obstacle {
    /// It has to wait.
    Wait,
    Error(i32),
}

/// A position in a list of buffers.
struct Cursor<'a, 'b> {
    buffers: &'a [IoSlice<'b>],
    index: usize,
    skip: usize,
}

impl<'a> Cursor<'a, '_> {
    /// The rest of the present buffer.
    fn contiguous(&mut self) -> &'a [u8] {
        while let Some(buffer) = self.buffers.get(self.index) {
            if self.skip < buffer.len() {
                return &buffer[self.skip..];
            }
            self.index += 1;
            self.skip = 0;
        }
        &[]
    }

    /// Copies the next octets to that place of `mr`.
    fn copy_to(&mut self, mr: &Mr, place: &Range<usize>) -> Result<()> {
        let mut at = place.start;
        while at < place.end {
            let from = self.contiguous();
            let len = from.len().min(place.end - at);
            mr.copy_in(at, &from[..len])?;
            self.skip += len;
            at += len;
        }
        Ok(())
    }
}

impl StreamSocket {
    fn waits(&self, flags: MsgFlags) -> bool {
        !(self.is_nonblocking() || flags.contains(MsgFlags::DONTWAIT))
    }

    fn exclusive<'a>(lock: &'a std::sync::Mutex<()>) -> MutexGuard<'a, ()> {
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a connection that is being set up.
    fn connection(&self, flags: MsgFlags) -> Result<()> {
        let state = self.lock();
        match state.phase {
            Phase::Connected => return Ok(()),
            Phase::Connecting => {}
            Phase::Closed => return Err(errno("rsocket", libc::EBADF)),
            _ => return Err(errno("rsocket", libc::ENOTCONN)),
        }
        drop(state);
        self.wait_for(!self.waits(flags), |state| match state.phase {
            Phase::Connecting => None,
            Phase::Connected => Some(Ok(())),
            _ => Some(Err(errno(
                "rsocket",
                state.take_error().unwrap_or(libc::ENOTCONN),
            ))),
        })
    }

    pub(super) fn send(&self, buffers: &[IoSlice<'_>], flags: MsgFlags) -> Result<usize> {
        let _sending = Self::exclusive(&self.sending);
        self.connection(flags)?;
        let total = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut cursor = Cursor {
            buffers,
            index: 0,
            skip: 0,
        };
        self.send_all(total, flags, may_send, |socket, left, limit| {
            socket.send_step(&mut cursor, left, limit)
        })
    }

    /// Repeats `step`, which sends up to so many octets with at most so many in a message, and
    /// waits where it has to.
    fn send_all(
        &self,
        total: usize,
        flags: MsgFlags,
        may_go_on: fn(&Stream) -> bool,
        mut step: impl FnMut(&Self, usize, usize) -> std::result::Result<usize, Obstacle>,
    ) -> Result<usize> {
        let (mut sent, mut limit) = (0, FIRST);
        let mut result = Ok(());
        while sent < total {
            match step(self, total - sent, limit) {
                Ok(octets) => {
                    sent += octets;
                    limit = (limit * 2).min(LONGEST);
                }
                Err(Obstacle::Error(error)) => {
                    result = Err(errno("rsend", error));
                    break;
                }
                Err(Obstacle::Wait) => {
                    let ready = self.wait_for(!self.waits(flags), |state| {
                        let endpoint = state.endpoint.as_ref();
                        let go = endpoint.is_none_or(|endpoint| may_go_on(&endpoint.stream));
                        go.then_some(Ok(()))
                    });
                    if let Err(error) = ready {
                        result = Err(error);
                        break;
                    }
                }
            }
        }
        // What was left for the next poll of the completion queue leaves now.
        self.progress(&mut self.lock());
        if sent > 0 || total == 0 {
            Ok(sent)
        } else {
            result.map(|()| sent)
        }
    }

    fn send_step(
        &self,
        cursor: &mut Cursor<'_, '_>,
        left: usize,
        limit: usize,
    ) -> std::result::Result<usize, Obstacle> {
        let mut state = self.lock();
        let inline_data = state.options.sizes.inline_data as usize;
        let endpoint = state.writable_endpoint()?;
        let next = cursor.contiguous();
        if left <= inline_data
            && next.len() == left
            && let Some(post) = endpoint.stream.send_inline(left)
        {
            endpoint.post(&post, next);
            cursor.skip += left;
            return Ok(left);
        }
        let Some(reserved) = endpoint.stream.reserve(left.min(limit)) else {
            return Err(Obstacle::Wait);
        };
        let buffer = endpoint.send_buffer();
        // Copied without the lock: the peer's data may be received meanwhile.
        drop(state);
        let pieces = reserved.pieces();
        let len = pieces.len();
        let copied = cursor
            .copy_to(&buffer, &pieces.first)
            .and_then(|()| cursor.copy_to(&buffer, &pieces.second));
        let mut state = self.lock();
        let endpoint = state.writable_endpoint()?;
        copied.map_err(|error| Obstacle::Error(error.errno()))?;
        let post = endpoint.stream.commit(reserved);
        endpoint.post(&post, &[]);
        Ok(len)
    }

    pub(super) fn recv(&self, buffers: &mut [IoSliceMut<'_>], flags: MsgFlags) -> Result<usize> {
        let _receiving = Self::exclusive(&self.receiving);
        self.connection(flags)?;
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        if total == 0 {
            return Ok(0);
        }
        let peek = flags.contains(MsgFlags::PEEK);
        let whole = flags.contains(MsgFlags::WAITALL) && !peek;
        let (mut received, mut index, mut skip) = (0, 0, 0);
        loop {
            let waited = self.wait_for(!self.waits(flags), |state| {
                let endpoint = state.endpoint.as_ref()?;
                let here = endpoint.stream.available() > 0 || !endpoint.stream.is_readable();
                here.then(|| Ok((endpoint.stream.available(), endpoint.recv_buffer())))
            });
            let (available, buffer) = match waited {
                Ok(found) => found,
                Err(_) if received > 0 => return Ok(received),
                Err(error) => return Err(error),
            };
            if available == 0 {
                return self.end_of_stream(received);
            }
            let mut taken = 0;
            while let Some(into) = buffers.get_mut(index)
                && taken < available
            {
                let into = &mut into[skip..];
                let pieces = match &self.lock().endpoint {
                    Some(endpoint) => endpoint
                        .stream
                        .peek(taken, into.len().min(available - taken)),
                    None => return Err(errno("rrecv", libc::EBADF)),
                };
                let (first, second) = into[..pieces.len()].split_at_mut(pieces.first.len());
                buffer.copy_out(pieces.first.start, first)?;
                buffer.copy_out(pieces.second.start, second)?;
                taken += pieces.len();
                if pieces.len() == into.len() {
                    (index, skip) = (index + 1, 0);
                } else {
                    skip += pieces.len();
                }
            }
            received += taken;
            if peek {
                return Ok(received);
            }
            if let Some(endpoint) = &mut self.lock().endpoint {
                endpoint.consume(taken);
            }
            if received == total || !whole {
                return Ok(received);
            }
        }
    }

    /// The peer sends no more, or the connection has failed.
    fn end_of_stream(&self, received: usize) -> Result<usize> {
        if received > 0 {
            return Ok(received);
        }
        match self.lock().take_error() {
            Some(error) => Err(errno("rrecv", error)),
            None => Ok(0),
        }
    }

    /// The protection domain in which regions have to be that are mapped.
    pub(super) fn pd(&self) -> Option<Pd> {
        self.lock()
            .endpoint
            .as_ref()
            .map(|endpoint| endpoint.pd.clone())
    }

    pub(super) fn map_region(&self, mr: &Mr, offset: u64) -> Result<u32> {
        let length = u32::try_from(mr.len())
            .map_err(|_| Error::invalid("length", "a mapped region has less than 4 GiB"))?;
        let mut state = self.lock();
        let endpoint = state
            .endpoint
            .as_mut()
            .ok_or_else(|| errno("riomap", libc::ENOTCONN))?;
        let region = Iomap {
            offset,
            addr: mr.addr(),
            rkey: mr.rkey(),
            length,
        };
        endpoint
            .stream
            .map_region(&region)
            .map_err(|_| errno("riomap", libc::ENOMEM))
    }

    pub(super) fn unmap_region(&self, index: u32) {
        if let Some(endpoint) = &mut self.lock().endpoint {
            endpoint.stream.unmap_region(index);
            // Told at once if possible; the key is invalid either way.
            if endpoint.stream.is_connected()
                && let Some(post) = endpoint.stream.next_region()
            {
                endpoint.post(&post, &[]);
            }
        }
    }

    pub(super) fn write_region(&self, data: &[u8], offset: u64, flags: MsgFlags) -> Result<usize> {
        let _sending = Self::exclusive(&self.sending);
        self.connection(flags)?;
        let mut done = 0;
        self.send_all(data.len(), flags, may_write, |socket, left, limit| {
            let offset = offset.wrapping_add(done as u64);
            let next = &data[done..][..left.min(limit)];
            let octets = socket.write_step(next, offset)?;
            done += octets;
            Ok(octets)
        })
    }

    fn write_step(&self, data: &[u8], offset: u64) -> std::result::Result<usize, Obstacle> {
        let mut state = self.lock();
        let endpoint = state.writable_endpoint()?;
        if endpoint.stream.find_region(offset).is_none() {
            // Perhaps the peer's message about it has not been looked at yet.
            self.progress(&mut state);
        }
        let endpoint = state.writable_endpoint()?;
        let Some((target, room)) = endpoint.stream.find_region(offset) else {
            return Err(Obstacle::Error(libc::EFAULT));
        };
        let Some(reserved) = endpoint.stream.reserve_write(data.len().min(room)) else {
            return Err(Obstacle::Wait);
        };
        let pieces = reserved.pieces();
        let (len, buffer) = (pieces.len(), endpoint.send_buffer());
        let (first, second) = data[..len].split_at(pieces.first.len());
        buffer
            .copy_in(pieces.first.start, first)
            .and_then(|()| buffer.copy_in(pieces.second.start, second))
            .map_err(|error| Obstacle::Error(error.errno()))?;
        let post = endpoint.stream.commit_write(reserved, target);
        endpoint.post(&post, &[]);
        Ok(len)
    }
}

impl State {
    /// The endpoint, when data may follow: the peer knows of all mapped regions.
    fn writable_endpoint(&mut self) -> std::result::Result<&mut Endpoint, Obstacle> {
        let error = self.why_not_writable();
        if let Some(error) = error {
            return Err(Obstacle::Error(error));
        }
        let Some(endpoint) = &mut self.endpoint else {
            return Err(Obstacle::Error(libc::EBADF));
        };
        while endpoint.stream.has_region_news() {
            match endpoint.stream.next_region() {
                Some(post) => endpoint.post(&post, &[]),
                None => return Err(Obstacle::Wait),
            }
        }
        Ok(endpoint)
    }

    fn why_not_writable(&mut self) -> Option<i32> {
        let stream = &self.endpoint.as_ref()?.stream;
        if stream.is_writable() {
            return None;
        }
        if stream.has_shut_down_writing() {
            return Some(libc::EPIPE);
        }
        Some(self.take_error().unwrap_or(libc::ECONNRESET))
    }
}

/// Whether a sender of data has a reason to try again.
fn may_send(stream: &Stream) -> bool {
    !stream.is_writable()
        || stream.can_send()
        || (stream.has_region_news() && stream.can_tell_region())
}

/// Whether somebody who writes into mapped regions has.
fn may_write(stream: &Stream) -> bool {
    let next = if stream.has_region_news() {
        stream.can_tell_region()
    } else {
        stream.can_write()
    };
    next || !stream.is_writable()
}
