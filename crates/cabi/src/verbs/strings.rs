//! Names of values, for people.

use std::ffi::{CStr, c_char, c_int};

fn name(names: &[&'static CStr], value: c_int, unknown: &'static CStr) -> *const c_char {
    usize::try_from(value)
        .ok()
        .and_then(|value| names.get(value))
        .unwrap_or(&unknown)
        .as_ptr()
}

pub(crate) extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(NAMES, node_type, c"unknown")
}

pub(crate) extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"no state change (NOP)",
        c"down",
        c"init",
        c"armed",
        c"active",
        c"active defer",
    ];
    name(NAMES, state, c"unknown")
}

pub(crate) extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
        c"device speed change",
    ];
    name(NAMES, event, c"unknown")
}

pub(crate) extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(NAMES, status, c"unknown")
}

pub(crate) extern "C" fn ibv_wr_opcode_str(opcode: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"rdma_write",
        c"rdma_write_with_imm",
        c"send",
        c"send_with_imm",
        c"rdma_read",
        c"atomic_cmp_and_swp",
        c"atomic_fetch_and_add",
        c"local_inv",
        c"bind_mw",
        c"send_with_inv",
        c"tso",
        c"driver1",
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic_write",
    ];
    name(NAMES, opcode, c"unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_name() {
        for (call, known) in [
            (
                ibv_node_type_str as extern "C" fn(c_int) -> *const c_char,
                1..8,
            ),
            (ibv_port_state_str, 0..6),
            (ibv_event_type_str, 0..21),
            (ibv_wc_status_str, 0..24),
            (ibv_wr_opcode_str, 0..12),
        ] {
            // SAFETY: all are constants.
            let text = |value| unsafe { CStr::from_ptr(call(value)) };
            for value in known.clone() {
                assert_ne!(text(value), c"unknown", "{value}");
            }
            for value in [-1, c_int::MIN, c_int::MAX, 100] {
                assert_eq!(text(value), c"unknown");
            }
        }
    }
}
