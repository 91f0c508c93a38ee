//! A connection whose stream is disturbed: the same work as in `drive.rs`, by way of the edge.

use std::os::fd::AsFd;

use softverbs_proto::time::Time;

use super::close::copy_range;
use super::drive::{Connection, Sent, is_retry};
use super::memory::QpMemory;
use super::receive::STAGE;
use super::{Iwarp, QpInner};

/// Octets that the edge takes at a time.
const SLICE: usize = 64 << 10;

impl QpInner {
    /// Receives by way of the edge: everything is copied.
    #[cold]
    pub(super) fn receive_disturbed(&self, core: &mut Iwarp) {
        let mut memory = QpMemory::new(self);
        STAGE.with_borrow_mut(|stage| {
            let now = self.engine.now();
            let deaf = core.connection.as_ref().is_some_and(Connection::is_deaf);
            loop {
                let Some(connection) = &mut core.connection else {
                    return;
                };
                let Connection { edge, socket, .. } = connection;
                let Some(edge) = edge else { return };
                if !edge.fill(now, socket.as_fd(), stage) {
                    break;
                }
            }
            loop {
                let Some(connection) = &mut core.connection else {
                    return;
                };
                let Connection { edge, socket, .. } = connection;
                let Some(edge) = edge else { return };
                match edge.give(now, socket.as_fd(), stage) {
                    Ok(0) => return core.stream.on_eof(now, false),
                    Ok(got) => core.stream.on_bytes(now, &mut memory, &stage[..got]),
                    Err(error) if is_retry(&error) => break,
                    Err(_) => return core.stream.on_eof(now, true),
                }
            }
            if let Some(connection) = &core.connection
                && connection.is_deaf() != deaf
            {
                connection.listen_again(self.engine);
            }
            self.set_timer(core);
        });
    }
}

impl Connection {
    /// Sends what the edge has and is due. `None`: go on.
    #[cold]
    pub(super) fn flush_edge(&mut self, now: Time) -> Option<Sent> {
        let Self { edge, socket, .. } = self;
        match edge.as_mut()?.flush(now, socket.as_fd()) {
            Ok(()) => None,
            Err(error) if is_retry(&error) => Some(Sent::Blocked),
            Err(_) => Some(Sent::Lost),
        }
    }

    /// Gives the edge a part of the batch, and sends what is due.
    #[cold]
    pub(super) fn send_disturbed(&mut self, memory: &QpMemory<'_>, now: Time) -> Sent {
        let Some(edge) = &mut self.edge else {
            return Sent::Took(0);
        };
        if edge.is_full() {
            return Sent::Held;
        }
        let end = self.batch.len().min(self.sent + SLICE);
        let mut octets = Vec::with_capacity(end - self.sent);
        if let Err(fault) = copy_range(memory, &self.batch, self.sent..end, &mut octets) {
            return Sent::Gone(fault);
        }
        edge.take(now, &octets);
        let octets = end - self.sent;
        self.sent = end;
        if self.sent == self.batch.len() {
            self.batch.clear();
            self.sent = 0;
        }
        match self.flush_edge(now) {
            Some(Sent::Lost) => Sent::Lost,
            // What TCP has no room for now is the edge's.
            _ => Sent::Took(octets),
        }
    }
}
