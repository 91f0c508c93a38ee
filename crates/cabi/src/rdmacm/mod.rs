//! The entry points of librdmacm.
