//! RoCEv2: the InfiniBand transport over UDP.

pub(crate) mod port;
