//! What a protocol engine wants sent: frames as gather lists of scratch and registered memory.

use softverbs_wire::num::Lkey;

/// One element of the gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Octets of the batch's own scratch buffer.
    Scratch {
        /// First octet in the scratch buffer.
        start: usize,
        /// Octets.
        len: usize,
    },
    /// Octets of registered memory, which were checked when the piece was made and are pinned
    /// by whoever sends them.
    Memory {
        /// Key of the region.
        key: Lkey,
        /// Virtual address.
        addr: u64,
        /// Octets.
        len: usize,
    },
}

impl Piece {
    /// Octets of this piece.
    pub const fn len(&self) -> usize {
        match self {
            Self::Scratch { len, .. } | Self::Memory { len, .. } => *len,
        }
    }

    /// Whether it has none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Frames in the order of the wire. Reused: `clear` keeps the capacity.
#[derive(Debug, Default)]
pub struct TxBatch {
    scratch: Vec<u8>,
    pieces: Vec<Piece>,
    /// For each frame, the octets of the batch up to its end.
    ends: Vec<usize>,
    len: usize,
}

impl TxBatch {
    /// An empty batch without any allocation.
    pub const fn new() -> Self {
        Self {
            scratch: Vec::new(),
            pieces: Vec::new(),
            ends: Vec::new(),
            len: 0,
        }
    }

    /// Octets of all frames.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to send.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The gather list.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The scratch buffer that `Piece::Scratch` refers to.
    pub fn scratch(&self) -> &[u8] {
        &self.scratch
    }

    /// For each frame, the octets of the batch up to its end.
    pub fn frame_ends(&self) -> &[usize] {
        &self.ends
    }

    /// Forgets everything, keeps the allocations.
    pub fn clear(&mut self) {
        self.scratch.clear();
        self.pieces.clear();
        self.ends.clear();
        self.len = 0;
    }

    /// Octets that the allocations hold.
    pub fn capacity(&self) -> usize {
        self.scratch.capacity()
            + self.pieces.capacity() * size_of::<Piece>()
            + self.ends.capacity() * size_of::<usize>()
    }

    /// Appends to the scratch buffer what `emit` writes; joins the piece before if that is
    /// scratch too.
    pub fn scratch_with(&mut self, emit: impl FnOnce(&mut Vec<u8>)) {
        let start = self.scratch.len();
        emit(&mut self.scratch);
        let added = self.scratch.len() - start;
        if added == 0 {
            return;
        }
        self.len += added;
        match self.pieces.last_mut() {
            Some(Piece::Scratch { start: first, len }) if *first + *len == start => *len += added,
            _ => self.pieces.push(Piece::Scratch { start, len: added }),
        }
    }

    /// Appends a reference to registered memory.
    pub fn memory(&mut self, key: Lkey, addr: u64, len: usize) {
        if len > 0 {
            self.len += len;
            self.pieces.push(Piece::Memory { key, addr, len });
        }
    }

    /// Ends a frame here.
    pub fn end_frame(&mut self) {
        self.ends.push(self.len);
    }

    /// Drops what was appended after `mark` (from [`TxBatch::mark`]): an unfinished frame.
    pub fn rewind(&mut self, mark: Mark) {
        self.scratch.truncate(mark.scratch);
        self.pieces.truncate(mark.pieces);
        self.ends.truncate(mark.ends);
        if let Some(Piece::Scratch { start, len }) = self.pieces.last_mut() {
            *len = (*len).min(mark.scratch - *start);
        }
        self.len = mark.len;
    }

    /// The present end, for [`TxBatch::rewind`].
    pub fn mark(&self) -> Mark {
        Mark {
            scratch: self.scratch.len(),
            pieces: self.pieces.len(),
            ends: self.ends.len(),
            len: self.len,
        }
    }
}

/// A position in a [`TxBatch`].
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    scratch: usize,
    pieces: usize,
    ends: usize,
    len: usize,
}
