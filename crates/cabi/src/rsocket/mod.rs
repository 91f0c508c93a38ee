//! Sockets over RDMA: the `r*` functions of librdmacm.
