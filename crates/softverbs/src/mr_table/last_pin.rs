//! The region that was used last, which mostly is the next one too.

use std::cell::RefCell;
use std::fmt;

use softverbs_proto::memory::MemoryFault;

use super::{MrTable, Pin};

/// Finds regions, and keeps the last one pinned for one piece of work: the packets of a burst, say.
///
/// Besides the look-up this saves the wait for a copy to reach the memory: taking a pin away is an
/// atomic operation, and nothing behind such a one begins before all that was stored is there.
///
/// What a pin must not be held for holds for this, too.
pub(crate) struct LastPin<'a> {
    regions: &'a MrTable,
    held: RefCell<Option<(u32, Pin<'a>)>>,
}

impl fmt::Debug for LastPin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LastPin").field(&self.held).finish()
    }
}

impl<'a> LastPin<'a> {
    /// Nothing is pinned yet.
    pub(crate) const fn new(regions: &'a MrTable) -> Self {
        Self {
            regions,
            held: RefCell::new(None),
        }
    }

    /// Does something with the region or window of a key. A region whose registration is about to end,
    /// or was changed, is found as it was as long as it stays pinned.
    pub(crate) fn with<T>(
        &self,
        key: u32,
        work: impl FnOnce(&Pin<'a>) -> Result<T, MemoryFault>,
    ) -> Result<T, MemoryFault> {
        let mut held = self.held.borrow_mut();
        if let Some((of, pin)) = &*held
            && *of == key
        {
            return work(pin);
        }
        *held = None;
        let pin = self.regions.pin(key).ok_or(MemoryFault::InvalidKey)?;
        work(&held.insert((key, pin)).1)
    }

    /// Nothing is pinned any more.
    pub(crate) fn release(&self) {
        *self.held.borrow_mut() = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use softverbs_proto::memory::Access;

    use super::*;
    use crate::context::Context;
    use crate::device::Device;

    fn context() -> Context {
        let device = Device::for_address("127.0.0.1".parse().unwrap(), None).unwrap();
        device.open().unwrap()
    }

    /// Whoever ends a registration waits for the last pin, and for that only.
    #[test]
    fn one_region_is_held_until_another_one_or_the_end() {
        let context = context();
        let pd = context.alloc_pd().unwrap();
        let [one, other] = [(); 2].map(|()| pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap());
        let (first, second) = (one.lkey().get(), other.lkey().get());
        let last = LastPin::new(&context.inner().regions);
        let len = |key| last.with(key, |pin| Ok(pin.len()));
        assert_eq!(len(first), Ok(64));
        let (ended, has_ended) = mpsc::channel();
        let dereg = std::thread::spawn(move || {
            drop(one);
            ended.send(()).unwrap();
        });
        let wait = Duration::from_millis(100);
        assert!(has_ended.recv_timeout(wait).is_err(), "it is pinned");
        assert_eq!(len(first), Ok(64), "and usable");
        assert_eq!(len(second), Ok(64));
        dereg.join().unwrap();
        assert_eq!(len(first), Err(MemoryFault::InvalidKey));
        last.release();
        drop(other);
        assert_eq!(len(second), Err(MemoryFault::InvalidKey));
    }
}
