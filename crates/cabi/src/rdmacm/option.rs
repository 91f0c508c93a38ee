//! Options of identifiers.

use std::ffi::{c_int, c_void};

use softverbs::cm::{CmId, CmOption};

use super::event;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, object, slice};

const RDMA_OPTION_ID: c_int = 0;
const RDMA_OPTION_IB: c_int = 1;
const RDMA_OPTION_ID_TOS: c_int = 0;
const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
const RDMA_OPTION_ID_AFONLY: c_int = 2;
const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
const RDMA_OPTION_IB_PATH: c_int = 1;

pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier and value.
        let (state, value) = unsafe { (object(id)?, slice(optval.cast::<u8>(), optlen)?) };
        set(&state.id, level, optname, value)?;
        Ok(0)
    })
}

fn set(id: &CmId, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    let option = match (level, name) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => CmOption::Tos(octet(value)?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => CmOption::ReuseAddr(truth(value)?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => CmOption::Afonly(truth(value)?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => CmOption::AckTimeout(octet(value)?),
        (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => {
            if value.is_empty() || !value.len().is_multiple_of(PATH_DATA) {
                return Err(Fault::INVALID);
            }
            return Ok(id.set_ib_path()?);
        }
        _ => return Err(Fault::new(libc::ENOSYS)),
    };
    Ok(id.set_option(option)?)
}

fn octet(value: &[u8]) -> Result<u8> {
    match value {
        [octet] => Ok(*octet),
        _ => Err(Fault::INVALID),
    }
}

fn truth(value: &[u8]) -> Result<bool> {
    let value: [u8; size_of::<c_int>()] = value.try_into().map_err(|_| Fault::INVALID)?;
    Ok(c_int::from_ne_bytes(value) != 0)
}

/// Sets the path of a route that an endpoint's addresses came with; ends as resolving it does.
///
/// # Safety
/// `id` is one of C's.
pub(super) unsafe fn set_path(id: *mut rdma_cm_id, path: &[u8]) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        set(&object(id)?.id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path)?;
        event::complete(id)
    }
}
