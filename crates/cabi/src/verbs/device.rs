//! The list of devices, and what can be asked of one without opening it.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use softverbs::{Device, Transport};

use crate::abi::*;
use crate::ffi::{self, Fault, Result, c_object, c_string_into, object, or};

/// What C sees of a device, and behind it the rest of `struct verbs_device`, which rdma-core's drivers
/// look into to find out that a device is not theirs.
#[repr(C)]
pub(crate) struct DeviceStorage {
    device: ibv_device,
    verbs_device: [u64; 16],
}

/// The newest that is known of a device.
pub(crate) struct DeviceState(Mutex<Device>);

c_object!(ibv_device, DeviceStorage => DeviceState);

impl DeviceState {
    fn lock(&self) -> MutexGuard<'_, Device> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn device(&self) -> Device {
        self.lock().clone()
    }
}

/// Every device that C has been told of. They stay: programs compare their addresses, and some use them
/// after the list is freed.
struct Known(Vec<*mut ibv_device>);

// SAFETY: the pointers are to objects that live for ever, and whose Rust part may be used by any thread; C's
// part is not written to after it is made.
unsafe impl Send for Known {}

static KNOWN: Mutex<Known> = Mutex::new(Known(Vec::new()));

/// The devices of this moment, of those that the environment chooses.
pub(crate) fn present() -> Result<Vec<*mut ibv_device>> {
    let devices = softverbs::chosen_devices()?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    devices.iter().map(|device| known.find(device)).collect()
}

/// What C knows a device by.
pub(crate) fn c_device(device: &Device) -> Result<*mut ibv_device> {
    KNOWN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .find(device)
}

impl Known {
    fn find(&mut self, device: &Device) -> Result<*mut ibv_device> {
        for &pointer in &self.0 {
            // SAFETY: made below, and never destroyed.
            let state = unsafe { object(pointer) }?;
            let mut known = state.lock();
            if known.name() == device.name() {
                known.clone_from(device);
                return Ok(pointer);
            }
        }
        let number = self.0.len();
        let pointer = ffi::create::<ibv_device>(|_| {
            let storage = DeviceStorage {
                device: describe(device, number),
                verbs_device: [0; 16],
            };
            Ok((storage, DeviceState(Mutex::new(device.clone()))))
        })?;
        self.0.push(pointer);
        Ok(pointer)
    }
}

fn describe(device: &Device, number: usize) -> ibv_device {
    let (node_type, transport_type) = match device.transport() {
        Transport::Roce => (IBV_NODE_CA, IBV_TRANSPORT_IB),
        Transport::Iwarp => (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP),
    };
    let mut c = ibv_device {
        _ops: [ptr::null_mut(); 2],
        node_type: node_type.cast_signed(),
        transport_type: transport_type.cast_signed(),
        name: [0; IBV_SYSFS_NAME_MAX],
        dev_name: [0; IBV_SYSFS_NAME_MAX],
        dev_path: [0; IBV_SYSFS_PATH_MAX],
        ibdev_path: [0; IBV_SYSFS_PATH_MAX],
    };
    c_string_into(device.name(), &mut c.name);
    c_string_into(&format!("uverbs{number}"), &mut c.dev_name);
    c_string_into(
        &format!("/sys/class/infiniband_verbs/uverbs{number}"),
        &mut c.dev_path,
    );
    c_string_into(
        &format!("/sys/class/infiniband/{}", device.name()),
        &mut c.ibdev_path,
    );
    c
}

pub(crate) unsafe extern "C" fn ibv_get_device_list(
    num_devices: *mut c_int,
) -> *mut *mut ibv_device {
    ffi::null(|| {
        let devices = present()?;
        if !num_devices.is_null() {
            // SAFETY: not null, so C's to be filled in.
            unsafe { num_devices.write(c_int::try_from(devices.len()).unwrap_or(c_int::MAX)) };
        }
        // SAFETY: plain allocation; zeroed, so that the last entry is a null pointer.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) };
        let list = list.cast::<*mut ibv_device>();
        if list.is_null() {
            return Err(Fault::new(libc::ENOMEM));
        }
        // SAFETY: room for one more than there are.
        unsafe { ptr::copy_nonoverlapping(devices.as_ptr(), list, devices.len()) };
        Ok(list)
    })
}

pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: from `ibv_get_device_list`, or null.
    unsafe { libc::free(list.cast::<c_void>()) };
}

pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return ptr::null();
    }
    // SAFETY: one of ours, which stays.
    unsafe { ptr::addr_of!((*device).name) }.cast()
}

pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    ffi::minus_one(|| {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let index = known.0.iter().position(|known| *known == device);
        index
            .and_then(|index| c_int::try_from(index).ok())
            .ok_or(Fault::INVALID)
    })
}

pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    or(0, || {
        // SAFETY: one of ours, which stays, or null.
        let state = unsafe { object(device) }?;
        Ok(state.device().node_guid().to_be())
    })
}
