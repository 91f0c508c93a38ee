//! Who uses an object: what others were made with may not be destroyed before them.

use std::sync::Arc;

use super::{Fault, Result};

/// Part of an object that others are made with.
#[derive(Debug, Default)]
pub(crate) struct Users(Arc<()>);

/// Part of an object that was made with another one.
#[derive(Debug)]
pub(crate) struct Use(#[allow(dead_code, reason = "it is counted")] Arc<()>);

impl Users {
    /// One more.
    pub(crate) fn add(&self) -> Use {
        Use(self.0.clone())
    }

    /// EBUSY as long as there are any.
    pub(crate) fn none(&self) -> Result<()> {
        if Arc::strong_count(&self.0) == 1 {
            Ok(())
        } else {
            Err(Fault::new(libc::EBUSY))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_while_used() {
        let users = Users::default();
        users.none().unwrap();
        let (one, two) = (users.add(), users.add());
        drop(one);
        assert_eq!(users.none(), Err(Fault::new(libc::EBUSY)));
        drop(two);
        users.none().unwrap();
    }
}
