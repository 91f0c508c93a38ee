//! The receive queue: posted receives that wait for a message.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use softverbs_proto::fault::Misuse;
use softverbs_proto::wr::RecvRequest;

use crate::wr::RecvWr;

/// Receives in the order in which they were posted; of one queue pair, or shared by many.
///
/// Its room is set aside when it is made. Posting allocates only for receives of more than four
/// scatter/gather entries.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    max_sge: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    max_wr: u32,
    receives: VecDeque<RecvRequest>,
    /// Low watermark; 0: not armed.
    limit: u32,
}

/// A receive that was taken out of a queue.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The receive.
    pub(crate) request: RecvRequest,
    /// This made the queue shorter than its limit, which is thereby disarmed.
    pub(crate) limit_reached: bool,
}

impl RecvQueue {
    /// An empty queue for `max_wr` receives of `max_sge` entries each.
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Self {
        let state = State {
            max_wr,
            receives: VecDeque::with_capacity(max_wr as usize),
            limit: 0,
        };
        Self {
            max_sge,
            state: Mutex::new(state),
        }
    }

    /// How many receives it holds at most.
    pub(crate) fn max_wr(&self) -> u32 {
        self.lock().max_wr
    }

    /// Makes room for so many receives; `false`, and nothing changed, if there are more.
    pub(crate) fn resize(&self, max_wr: u32) -> bool {
        let mut state = self.lock();
        let used = state.receives.len();
        if used > max_wr as usize {
            return false;
        }
        state.max_wr = max_wr;
        state.receives.reserve_exact(max_wr as usize - used);
        state.limit = state.limit.min(max_wr);
        true
    }

    /// How many entries a receive has at most.
    pub(crate) const fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Appends a receive.
    pub(crate) fn post(&self, wr: &RecvWr<'_>) -> Result<(), Misuse> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(Misuse::TooManySges);
        }
        let request = RecvRequest {
            wr_id: wr.wr_id,
            sges: SmallVec::from_slice(wr.sges),
        };
        let mut state = self.lock();
        if state.receives.len() >= state.max_wr as usize {
            return Err(Misuse::QueueFull);
        }
        state.receives.push_back(request);
        Ok(())
    }

    /// Takes the oldest receive.
    pub(crate) fn take(&self) -> Option<Taken> {
        let mut state = self.lock();
        let request = state.receives.pop_front()?;
        let limit_reached = state.receives.len() < state.limit as usize;
        if limit_reached {
            state.limit = 0;
        }
        Some(Taken {
            request,
            limit_reached,
        })
    }

    /// Arms the low watermark: the first [`take`](Self::take) after which fewer than `limit`
    /// receives are left says so. 0 disarms.
    pub(crate) fn arm(&self, limit: u32) {
        self.lock().limit = limit;
    }

    /// The low watermark, 0 if it is not armed.
    pub(crate) fn limit(&self) -> u32 {
        self.lock().limit
    }

    /// Takes all receives, the oldest first, to be flushed.
    pub(crate) fn drain(&self) -> Vec<RecvRequest> {
        self.lock().receives.drain(..).collect()
    }

    /// How many receives there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().receives.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use softverbs_proto::wr::Sge;

    use super::*;

    fn post(queue: &RecvQueue, wr_id: u64) -> Result<(), Misuse> {
        queue.post(&RecvWr {
            wr_id,
            sges: &[Sge::default()],
        })
    }

    #[test]
    fn keeps_order_and_limits() {
        let queue = RecvQueue::new(3, 2);
        for wr_id in 1..=3 {
            post(&queue, wr_id).unwrap();
        }
        assert_eq!(post(&queue, 4), Err(Misuse::QueueFull));
        assert_eq!(queue.take().unwrap().request.wr_id, 1);
        post(&queue, 4).unwrap();
        let too_many = RecvWr {
            wr_id: 5,
            sges: &[Sge::default(); 3],
        };
        assert_eq!(queue.post(&too_many), Err(Misuse::TooManySges));
        let rest: Vec<u64> = queue.drain().iter().map(|request| request.wr_id).collect();
        assert_eq!(rest, [2, 3, 4]);
        assert!(queue.take().is_none());
    }

    #[test]
    fn accepts_receives_without_entries() {
        let queue = RecvQueue::new(1, 0);
        queue
            .post(&RecvWr {
                wr_id: 1,
                sges: &[],
            })
            .unwrap();
        assert!(queue.take().unwrap().request.sges.is_empty());
    }

    #[test]
    fn does_not_allocate_once_it_is_made() {
        let queue = RecvQueue::new(8, 4);
        let capacity = queue.lock().receives.capacity();
        for round in 0..100 {
            for wr_id in 0..8 {
                let wr = RecvWr {
                    wr_id,
                    sges: &[Sge::default(); 4],
                };
                queue.post(&wr).unwrap();
            }
            assert_eq!(queue.lock().receives.capacity(), capacity, "round {round}");
            while let Some(taken) = queue.take() {
                assert!(!taken.request.sges.spilled());
            }
        }
    }

    #[test]
    fn the_limit_fires_once_per_arming() {
        let queue = RecvQueue::new(8, 1);
        for wr_id in 0..8 {
            post(&queue, wr_id).unwrap();
        }
        queue.arm(6);
        let fired: Vec<bool> = (0..4)
            .map(|_| queue.take().unwrap().limit_reached)
            .collect();
        assert_eq!(fired, [false, false, true, false]);
        assert_eq!(queue.limit(), 0);

        // Armed when the queue is already shorter: the next take says so.
        queue.arm(6);
        assert_eq!(queue.limit(), 6);
        assert!(queue.take().unwrap().limit_reached);
    }
}
