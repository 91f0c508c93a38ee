//! Queue pairs by their numbers: for connections that name a queue pair instead of holding it. And
//! handles that do not keep one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use softverbs_wire::num::Qpn;

use super::{Handle, Qp, QpInner};
use crate::device::Transport;

type Map = HashMap<(Transport, Qpn), Weak<QpInner>>;

static KNOWN: Mutex<Option<Map>> = Mutex::new(None);

fn with<T>(work: impl FnOnce(&mut Map) -> T) -> T {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    work(known.get_or_insert_default())
}

/// The queue pair can be found from now on.
pub(super) fn add(qp: &QpInner) {
    with(|known| known.insert((qp.transport(), qp.qp_num), qp.weak()));
}

/// The queue pair is destroyed.
pub(super) fn remove(qp: &QpInner) {
    with(|known| known.remove(&(qp.transport(), qp.qp_num)));
}

/// The queue pair of this process with this number.
pub(crate) fn find(transport: Transport, qp_num: Qpn) -> Option<Arc<QpInner>> {
    with(|known| known.get(&(transport, qp_num)).and_then(Weak::upgrade))
}

/// Leads to a queue pair as long as the application has a handle of it.
pub(crate) struct WeakQp(Weak<Handle>);

impl WeakQp {
    pub(crate) fn upgrade(&self) -> Option<Qp> {
        Some(Qp {
            handle: self.0.upgrade()?,
        })
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl Qp {
    pub(crate) fn downgrade(&self) -> WeakQp {
        WeakQp(Arc::downgrade(&self.handle))
    }
}
