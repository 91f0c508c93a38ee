//! What hand-made concurrent pieces synchronise with. `crates/models` has the same names from a model
//! checker, and takes the files that use them through every interleaving.

pub(crate) use std::sync::{Mutex, atomic};
use std::time::Duration;
use std::{hint, thread};

/// A turn of a loop that waits for another thread, which will not be long.
pub(crate) fn wait(turns: &mut u64) {
    *turns += 1;
    match *turns {
        0..64 => hint::spin_loop(),
        64..128 => thread::yield_now(),
        _ => thread::sleep(Duration::from_micros((*turns).min(1000))),
    }
}
