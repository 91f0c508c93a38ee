//! Address handles, and the address vectors that they are made from.

use std::ffi::c_int;

use softverbs::{AddressHandle, AhAttr, Context, Gid, GlobalRoute, Wc};

use super::context::state;
use super::pd::next_handle;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, Use, c_object, in_ref, object, out_mut};

/// What we keep of an address handle.
pub(crate) struct AhState {
    ah: AddressHandle,
    _pd: Use,
}

c_object!(ibv_ah, ibv_ah => AhState);

impl AhState {
    pub(super) fn ah(&self) -> &AddressHandle {
        &self.ah
    }
}

/// Octets of a GID.
pub(crate) fn gid_of(gid: &ibv_gid) -> Gid {
    // SAFETY: every octet of the union belongs to `raw`.
    Gid::new(unsafe { gid.raw })
}

/// An address vector of C's.
pub(crate) fn ah_attr_of(attr: &ibv_ah_attr) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: gid_of(&attr.grh.dgid),
            flow_label: attr.grh.flow_label,
            sgid_index: attr.grh.sgid_index,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global != 0,
        port_num: attr.port_num,
    }
}

/// An address vector for C.
pub(crate) fn c_ah_attr(attr: &AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid {
                raw: attr.grh.dgid.get(),
            },
            flow_label: attr.grh.flow_label,
            sgid_index: attr.grh.sgid_index,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global.into(),
        port_num: attr.port_num,
    }
}

/// Makes a handle.
///
/// # Safety
/// `pd` is C's, or null.
unsafe fn create(pd: *mut ibv_pd, attr: &AhAttr) -> Result<*mut ibv_ah> {
    // SAFETY: the caller's promise.
    let (domain, context) = unsafe { (object(pd)?, in_ref(pd)?.context) };
    let ah = domain.pd().create_ah(attr)?;
    ffi::create(|_| {
        let c = ibv_ah {
            context,
            pd,
            handle: next_handle(),
        };
        Ok((
            c,
            AhState {
                ah,
                _pd: domain.users.add(),
            },
        ))
    })
}

pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: C's domain and attributes.
    ffi::null(|| unsafe { create(pd, &ah_attr_of(in_ref(attr)?)) })
}

pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's handle, or null.
        unsafe { object(ah) }?;
        // SAFETY: C gives it up.
        drop(unsafe { ffi::destroy(ah) });
        Ok(())
    })
}

/// The way back to where a datagram came from.
///
/// # Safety
/// `grh` is C's header, if the completion says that there is one.
unsafe fn way_back(
    context: &Context,
    port: u8,
    wc: &ibv_wc,
    grh: *const ibv_grh,
) -> Result<AhAttr> {
    context.query_port(port)?;
    if wc.wc_flags & IBV_WC_GRH == 0 {
        // Over RoCE there is no way without.
        return Err(Fault::INVALID);
    }
    // SAFETY: the caller's promise; 40 octets, whatever they are.
    let area = unsafe { in_ref(grh.cast::<[u8; 40]>()) }?;
    let received = Wc {
        grh: true,
        ..Wc::default()
    };
    let mut attr = context.init_ah_from_wc(&received, area)?;
    attr.sl = wc.sl;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.dlid = wc.slid;
    Ok(attr)
}

pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's opened device and completion, and a struct to be filled in.
        let (opened, wc, attr) = unsafe { (state(context)?, in_ref(wc)?, out_mut(attr)?) };
        // SAFETY: C's header.
        *attr = c_ah_attr(&unsafe { way_back(opened.context(), port_num, wc, grh) }?);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    ffi::null(|| {
        // SAFETY: C's domain and completion.
        let (domain, wc) = unsafe { (object(pd)?, in_ref(wc)?) };
        // SAFETY: C's header and domain.
        unsafe {
            let attr = way_back(domain.pd().context(), port_num, wc, grh)?;
            create(pd, &attr)
        }
    })
}
