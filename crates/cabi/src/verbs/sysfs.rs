//! What old programs read from sysfs through libibverbs. There is a sysfs, but none of our devices in it.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::ffi::{self, Fault, Result, c_str};

pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file into a string of C, without the newline at its end; how many octets.
fn read(folder: &CStr, file: &CStr, buf: *mut c_char, size: usize) -> Result<c_int> {
    let path = |text: &CStr| OsStr::from_bytes(text.to_bytes()).to_owned();
    let path = Path::new(&path(folder)).join(path(file));
    let fault = |error: std::io::Error| Fault::new(error.raw_os_error().unwrap_or(libc::EIO));
    let mut text = Vec::new();
    let limit = u64::try_from(size).unwrap_or(u64::MAX);
    std::fs::File::open(path)
        .and_then(|file| file.take(limit).read_to_end(&mut text))
        .map_err(fault)?;
    if text.last() == Some(&b'\n') || text.len() == size {
        text.pop();
    }
    if buf.is_null() || size == 0 {
        return Err(Fault::INVALID);
    }
    // SAFETY: C says that there are `size` octets at `buf`; the text and a zero byte are no more.
    unsafe {
        buf.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        buf.add(text.len()).write(0);
    }
    c_int::try_from(text.len()).map_err(|_| Fault::INVALID)
}

pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's strings.
        let (folder, file) = unsafe { (c_str(folder)?, c_str(file)?) };
        read(folder, file, buf, size)
    })
}
