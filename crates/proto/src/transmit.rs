//! What a protocol engine wants sent: frames as gather lists of scratch and registered memory.

use softverbs_wire::num::Lkey;

/// One element of the gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Lkey = Lkey::new(7);

    fn put(batch: &mut TxBatch, octets: &[u8]) {
        batch.scratch_with(|scratch| scratch.extend_from_slice(octets));
    }

    #[test]
    fn neighbours_in_the_scratch_buffer_are_one_piece() {
        let mut batch = TxBatch::new();
        put(&mut batch, b"abc");
        put(&mut batch, b"");
        put(&mut batch, b"de");
        batch.memory(KEY, 100, 0);
        assert_eq!(batch.pieces(), [Piece::Scratch { start: 0, len: 5 }]);
        batch.memory(KEY, 100, 9);
        put(&mut batch, b"f");
        batch.end_frame();
        put(&mut batch, b"gh");
        batch.end_frame();
        let memory = Piece::Memory {
            key: KEY,
            addr: 100,
            len: 9,
        };
        let scratch = |start, len| Piece::Scratch { start, len };
        assert_eq!(batch.pieces(), [scratch(0, 5), memory, scratch(5, 3)]);
        assert_eq!(batch.scratch(), b"abcdefgh");
        assert_eq!(batch.frame_ends(), [15, 17]);
        assert_eq!(batch.len(), 17);
        assert_eq!(batch.pieces().iter().map(Piece::len).sum::<usize>(), 17);
        assert!(!batch.is_empty() && !memory.is_empty());
    }

    #[test]
    fn rewind_drops_an_unfinished_frame() {
        let mut batch = TxBatch::new();
        let start = batch.mark();
        put(&mut batch, b"abc");
        batch.end_frame();
        let middle = batch.mark();
        // The next frame shares the piece of the frame before it.
        put(&mut batch, b"de");
        batch.memory(KEY, 100, 9);
        put(&mut batch, b"f");
        batch.end_frame();
        batch.rewind(middle);
        assert_eq!(batch.pieces(), [Piece::Scratch { start: 0, len: 3 }]);
        assert_eq!((batch.scratch(), batch.len()), (&b"abc"[..], 3));
        assert_eq!(batch.frame_ends(), [3]);
        put(&mut batch, b"xy");
        assert_eq!(batch.pieces(), [Piece::Scratch { start: 0, len: 5 }]);
        batch.rewind(start);
        assert!(batch.is_empty() && batch.pieces().is_empty() && batch.frame_ends().is_empty());
    }

    #[test]
    fn clear_keeps_the_allocations() {
        let mut batch = TxBatch::new();
        assert_eq!(batch.capacity(), 0);
        put(&mut batch, &[1; 1000]);
        batch.memory(KEY, 0, 1);
        batch.end_frame();
        let capacity = batch.capacity();
        assert!(capacity >= 1000);
        batch.clear();
        assert!(batch.is_empty() && batch.scratch().is_empty());
        assert_eq!(batch.capacity(), capacity);
    }
}
