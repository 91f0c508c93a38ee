//! What two processes write to at the same time is kept apart.

/// A cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Line<T>(pub(crate) T);
