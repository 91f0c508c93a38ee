//! The send queue: requests in the order of posting, each completed exactly once and in that
//! order.
//!
//! A request stays until it has completed, for what is lost is sent again from it. A cursor names
//! the request whose turn it is; going back puts it on the oldest again.

use std::collections::VecDeque;

use softverbs_wire::num::Psn;

use super::queue_pair::UdDestination;
use crate::wr::{Completion, SendFlags, SendOp, SendRequest, WcOpcode, WcStatus};

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Progress {
    /// It has no packets yet.
    Queued,
    /// It has its packet sequence numbers, and some of them were sent.
    Begun,
    /// It completes with this status as soon as those before it have, and stops the queue.
    Failed(WcStatus),
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Entry {
    pub(super) request: SendRequest,
    pub(super) destination: UdDestination,
    pub(super) progress: Progress,
    /// It may go past the wire, when all before it have completed: then it takes no sequence number.
    pub(super) past: bool,
    /// The sequence number of its first packet, once begun.
    pub(super) first: Psn,
    /// How many sequence numbers it takes.
    pub(super) packets: u32,
}

impl Entry {
    /// The sequence number after its last.
    pub(super) const fn end(&self) -> Psn {
        self.first.advance(self.packets)
    }

    /// How many packets after its first `psn` is.
    pub(super) fn index_of(&self, psn: Psn) -> u32 {
        u32::try_from(psn.distance_from(self.first)).unwrap_or(0)
    }

    fn contains(&self, psn: Psn) -> bool {
        self.progress == Progress::Begun
            && !psn.is_before(self.first)
            && self.index_of(psn) < self.packets
    }
}

#[derive(Clone, Debug, Hash)]
pub(super) struct SendQueue {
    max: usize,
    all_signaled: bool,
    entries: VecDeque<Entry>,
    /// Which entry's turn it is.
    cursor: usize,
    completions: VecDeque<Completion>,
}

impl SendQueue {
    pub(super) fn new(max: u32, all_signaled: bool) -> Self {
        Self {
            max: max as usize,
            all_signaled,
            entries: VecDeque::new(),
            cursor: 0,
            completions: VecDeque::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= self.max
    }

    pub(super) fn push(&mut self, request: SendRequest, destination: UdDestination) {
        self.entries.push_back(Entry {
            request,
            destination,
            progress: Progress::Queued,
            past: false,
            first: Psn::new(0),
            packets: 0,
        });
    }

    /// The newest request may go past the wire.
    pub(super) fn let_newest_past(&mut self) {
        if let Some(entry) = self.entries.back_mut() {
            entry.past = true;
        }
    }

    /// The request whose turn it is goes by the wire.
    pub(super) fn keep_current(&mut self) {
        if let Some(entry) = self.entries.get_mut(self.cursor) {
            entry.past = false;
        }
    }

    /// A request that is posted to a queue that only flushes.
    pub(super) fn push_flushed(&mut self, request: &SendRequest) {
        self.completions
            .push_back(completion(request, WcStatus::WrFlushErr));
    }

    pub(super) fn pop_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    pub(super) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// The request whose turn it is.
    pub(super) fn current(&self) -> Option<&Entry> {
        self.entries.get(self.cursor)
    }

    pub(super) const fn current_is_oldest(&self) -> bool {
        self.cursor == 0
    }

    /// The request whose turn it is gets its sequence numbers.
    pub(super) fn begin_current(&mut self, first: Psn, packets: u32) {
        if let Some(entry) = self.entries.get_mut(self.cursor) {
            entry.progress = Progress::Begun;
            entry.first = first;
            entry.packets = packets;
        }
    }

    /// The request whose turn it is cannot go on, nor can those behind it.
    pub(super) fn fail_current(&mut self, status: WcStatus) {
        if let Some(entry) = self.entries.get_mut(self.cursor) {
            entry.progress = Progress::Failed(status);
        }
    }

    /// All packets of the request whose turn it is were yielded.
    pub(super) const fn advance(&mut self) {
        self.cursor += 1;
    }

    /// It is the oldest request's turn again.
    pub(super) const fn go_back(&mut self) {
        self.cursor = 0;
    }

    /// It is the turn of the request with the packet `psn`, or of the first that has not begun.
    pub(super) fn seek(&mut self, psn: Psn) {
        self.cursor = self
            .entries
            .iter()
            .position(|entry| entry.progress != Progress::Begun || psn.is_before(entry.end()))
            .unwrap_or(self.entries.len());
    }

    pub(super) fn oldest(&self) -> Option<&Entry> {
        self.entries.front()
    }

    pub(super) fn fail_oldest(&mut self, status: WcStatus) {
        if let Some(entry) = self.entries.front_mut() {
            entry.progress = Progress::Failed(status);
        }
    }

    /// The status of the oldest request, if it has failed.
    pub(super) fn failure(&self) -> Option<WcStatus> {
        match self.entries.front()?.progress {
            Progress::Failed(status) => Some(status),
            Progress::Queued | Progress::Begun => None,
        }
    }

    /// Whether a request has begun and not completed.
    pub(super) fn has_begun(&self) -> bool {
        self.entries
            .front()
            .is_some_and(|entry| entry.progress != Progress::Queued)
    }

    /// The oldest request has completed.
    pub(super) fn complete_oldest(&mut self, status: WcStatus) {
        let Some(entry) = self.entries.pop_front() else {
            return;
        };
        self.cursor = self.cursor.saturating_sub(1);
        let signaled = self.all_signaled || entry.request.flags.contains(SendFlags::SIGNALED);
        if signaled || status != WcStatus::Success {
            self.completions
                .push_back(completion(&entry.request, status));
        }
    }

    /// Flushes everything. The oldest request gets its own status if it has failed; the one with
    /// the packet `psn`, if any is named, the status there. The first that fails ends the queue
    /// (IBA vol 1 ch 10): what is behind it is flushed, though it may have failed meanwhile, too.
    pub(super) fn flush(&mut self, blamed: Option<(Psn, WcStatus)>) {
        let mut blamed = match self.failure() {
            Some(status) => {
                self.complete_oldest(status);
                None
            }
            None => blamed,
        };
        while let Some(entry) = self.entries.front() {
            let status = blamed
                .take_if(|(psn, _)| entry.contains(*psn))
                .map_or(WcStatus::WrFlushErr, |(_, status)| status);
            self.complete_oldest(status);
        }
    }

    /// Forgets everything without a completion.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.cursor = 0;
    }
}

fn completion(request: &SendRequest, status: WcStatus) -> Completion {
    let opcode = match request.op {
        SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_) => WcOpcode::Send,
        SendOp::Write { .. } | SendOp::WriteWithImm { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
        SendOp::LocalInvalidate(_) => WcOpcode::LocalInv,
        SendOp::BindMw(_) => WcOpcode::BindMw,
    };
    let byte_len = if status == WcStatus::Success {
        u32::try_from(request.payload.len()).unwrap_or(u32::MAX)
    } else {
        0
    };
    Completion {
        wr_id: request.wr_id,
        status,
        opcode,
        byte_len,
        imm: None,
        invalidated: None,
        solicited: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr::{Payload, SgeList};

    fn send(wr_id: u64, flags: SendFlags) -> SendRequest {
        SendRequest {
            wr_id,
            op: SendOp::Send,
            flags,
            payload: Payload::Sges(SgeList::new()),
        }
    }

    fn queue(count: u64) -> SendQueue {
        let mut queue = SendQueue::new(8, false);
        for wr_id in 0..count {
            queue.push(send(wr_id, SendFlags::SIGNALED), UdDestination::default());
        }
        queue
    }

    fn completed(queue: &mut SendQueue) -> Vec<(u64, WcStatus)> {
        core::iter::from_fn(|| queue.pop_completion())
            .map(|c| (c.wr_id, c.status))
            .collect()
    }

    #[test]
    fn the_cursor_stays_on_its_request_when_older_ones_complete() {
        let mut queue = queue(3);
        queue.begin_current(Psn::new(0), 1);
        queue.advance();
        queue.begin_current(Psn::new(1), 1);
        queue.complete_oldest(WcStatus::Success);
        assert_eq!(queue.current().map(|entry| entry.request.wr_id), Some(1));
        assert!(queue.current_is_oldest());
        queue.advance();
        queue.go_back();
        assert_eq!(queue.current().map(|entry| entry.request.wr_id), Some(1));
        assert_eq!(completed(&mut queue), [(0, WcStatus::Success)]);
    }

    #[test]
    fn unsignaled_success_is_silent_and_failure_is_not() {
        let mut queue = queue(0);
        for wr_id in [1, 2] {
            queue.push(send(wr_id, SendFlags::empty()), UdDestination::default());
        }
        queue.complete_oldest(WcStatus::Success);
        queue.flush(None);
        assert_eq!(completed(&mut queue), [(2, WcStatus::WrFlushErr)]);
        let mut queue = SendQueue::new(1, true);
        queue.push(send(1, SendFlags::empty()), UdDestination::default());
        assert!(queue.is_full());
        queue.complete_oldest(WcStatus::Success);
        assert_eq!(completed(&mut queue), [(1, WcStatus::Success)]);
    }

    #[test]
    fn a_flush_blames_the_request_with_the_packet() {
        let mut queue = queue(4);
        let last = Psn::new(0x00ff_ffff);
        queue.begin_current(last, 3);
        queue.advance();
        queue.begin_current(Psn::new(2), 1);
        queue.advance();
        queue.fail_current(WcStatus::LocProtErr);
        queue.flush(Some((Psn::new(1), WcStatus::RemAccessErr)));
        assert_eq!(
            completed(&mut queue),
            [
                (0, WcStatus::RemAccessErr),
                (1, WcStatus::WrFlushErr),
                (2, WcStatus::WrFlushErr),
                (3, WcStatus::WrFlushErr)
            ]
        );
    }

    #[test]
    fn of_several_that_fail_the_oldest_says_why() {
        let failing = |oldest_fails: bool| {
            let mut queue = queue(4);
            queue.begin_current(Psn::new(0), 1);
            queue.advance();
            queue.fail_current(WcStatus::LocQpOpErr);
            if oldest_fails {
                queue.fail_oldest(WcStatus::BadRespErr);
            }
            queue
        };
        let flushed = (1..4).map(|wr_id| (wr_id, WcStatus::WrFlushErr));
        let after = |first| {
            std::iter::once((0, first))
                .chain(flushed.clone())
                .collect::<Vec<_>>()
        };
        let mut told = failing(true);
        told.flush(None);
        assert_eq!(completed(&mut told), after(WcStatus::BadRespErr));
        // The peer refuses the older one before the newer one's turn to complete.
        let mut refused = failing(false);
        refused.flush(Some((Psn::new(0), WcStatus::RemAccessErr)));
        assert_eq!(completed(&mut refused), after(WcStatus::RemAccessErr));
        // The application ends the queue: none has failed before it did.
        let mut aborted = failing(false);
        aborted.flush(None);
        assert_eq!(completed(&mut aborted), after(WcStatus::WrFlushErr));
    }
}
