//! A connection whose stream is disturbed: the same work as in `drive.rs`, by way of the edge.

use std::os::fd::AsFd;

use softverbs_proto::memory::{Access, MemoryFault};
use softverbs_proto::time::Time;
use softverbs_proto::transmit::{Piece, TxBatch};

use super::drive::{Connection, STAGE, Sent, is_retry};
use super::memory::QpMemory;
use super::{Iwarp, QpInner};
use crate::engine::edge::StreamEdge;

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
        if let Err(fault) = take(edge, now, memory, &self.batch, self.sent..end) {
            return Sent::Gone(fault);
        }
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

fn take(
    edge: &mut StreamEdge,
    now: Time,
    memory: &QpMemory<'_>,
    batch: &TxBatch,
    range: std::ops::Range<usize>,
) -> Result<(), MemoryFault> {
    let mut octets = Vec::with_capacity(range.len());
    let mut position = 0;
    for piece in batch.pieces() {
        let from = range.start.max(position);
        let to = range.end.min(position + piece.len());
        if from < to {
            let (skip, len) = (from - position, to - from);
            match *piece {
                Piece::Scratch { start, .. } => {
                    octets.extend_from_slice(&batch.scratch()[start + skip..start + skip + len]);
                }
                Piece::Memory { key, addr, .. } => {
                    let (addr, pd) = (addr + skip as u64, memory.pd());
                    // The rights were checked with the request; the region may have gone since.
                    memory
                        .regions()
                        .iovec(key, addr, len, Access::empty(), pd)?;
                    let at = octets.len();
                    octets.resize(at + len, 0);
                    memory.regions().read(key, addr, &mut octets[at..], pd)?;
                }
            }
        }
        position += piece.len();
    }
    edge.take(now, &octets);
    Ok(())
}
