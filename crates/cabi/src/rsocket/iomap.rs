//! `riomap` and its relatives: memory that the peer writes into directly.

use std::ffi::{c_int, c_void};

use libc::{off_t, size_t};
use softverbs::Access;
use softverbs::rsocket::MsgFlags;

use super::table;
use crate::ffi::{Fault, minus_one, or, slice};

/// What C gives for "at its address".
const NO_OFFSET: off_t = -1;

pub(crate) unsafe extern "C" fn riomap(
    socket: c_int,
    buf: *mut c_void,
    len: size_t,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    or(-1, || {
        let socket = table::socket(socket)?;
        if prot & !(libc::PROT_WRITE | libc::PROT_NONE) != 0 || buf.is_null() {
            return Err(Fault::INVALID);
        }
        let remote = if prot & libc::PROT_WRITE != 0 {
            Access::REMOTE_WRITE
        } else {
            Access::empty()
        };
        let pd = socket.pd()?;
        // SAFETY: C's promise: the memory is there until `riounmap` or `rclose`.
        let mr = unsafe { pd.reg_mr(buf.cast(), len, Access::LOCAL_WRITE | remote) }?;
        let own = off_t::try_from(buf.addr()).map_err(|_| Fault::INVALID)?;
        let offset = if offset == NO_OFFSET { own } else { offset };
        if remote.is_empty() {
            socket.keep_region(&mr)?;
        } else {
            let at = u64::try_from(offset).map_err(|_| Fault::INVALID)?;
            socket.map_region(&mr, Some(at))?;
        }
        Ok(offset)
    })
}

pub(crate) extern "C" fn riounmap(socket: c_int, buf: *mut c_void, len: size_t) -> c_int {
    minus_one(|| {
        table::socket(socket)?.unmap_region(buf.addr(), len)?;
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    count: size_t,
    offset: off_t,
    how: c_int,
) -> size_t {
    or(usize::MAX, || {
        let socket = table::socket(socket)?;
        // SAFETY: C's promise.
        let data = unsafe { slice(buf.cast::<u8>(), count) }?;
        let offset = u64::try_from(offset).map_err(|_| Fault::INVALID)?;
        let flags = MsgFlags::from_bits_truncate(how);
        Ok(socket.write_region(data, offset, flags)?)
    })
}
