//! The send queue: requests in the order of posting, each completed exactly once and in that
//! order.

use std::collections::VecDeque;

use softverbs_wire::num::Lkey;

use crate::wr::{Completion, SendFlags, SendOp, SendRequest, Sge, WcOpcode, WcStatus};

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Nothing of it was yielded yet.
    Queued,
    /// Some of its octets were yielded.
    Started,
    /// All of its octets were yielded; TCP has the last one when it took `end` octets.
    Yielded {
        /// Octets of the stream.
        end: u64,
    },
    /// A read or atomic whose answer is awaited.
    Awaiting,
    /// It completes with this status as soon as those before it have.
    Done(WcStatus),
}

#[derive(Clone, Debug, Hash)]
struct Entry {
    request: SendRequest,
    state: State,
}

/// Names a request of the queue as long as it has not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket(usize);

/// Requests by the kind of message that a Terminate of the peer can be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Sends, and the immediate data of a Write.
    Send,
    /// RDMA Writes.
    Write,
    /// RDMA Reads and atomics.
    Read,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct SendQueue {
    max: usize,
    all_signaled: bool,
    entries: VecDeque<Entry>,
    /// Number of the front entry; numbers go up by one for each request.
    first: usize,
    /// Number of the first request that is not fully yielded.
    next: usize,
    /// Number of the first request that may wait for TCP to take its octets.
    untransmitted: usize,
    completions: VecDeque<Completion>,
    failed: bool,
    /// One has failed for a reason of its own: it ends the queue.
    broken: bool,
}

impl SendQueue {
    pub(super) fn new(max: u32, all_signaled: bool) -> Self {
        Self {
            max: max as usize,
            all_signaled,
            entries: VecDeque::new(),
            first: 0,
            next: 0,
            untransmitted: 0,
            completions: VecDeque::new(),
            failed: false,
            broken: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= self.max
    }

    pub(super) fn push(&mut self, request: SendRequest) {
        self.entries.push_back(Entry {
            request,
            state: State::Queued,
        });
    }

    /// A request that is posted to a queue that only flushes.
    pub(super) fn push_flushed(&mut self, request: SendRequest) {
        self.entries.push_back(Entry {
            request,
            state: State::Done(WcStatus::WrFlushErr),
        });
        self.retire();
    }

    pub(super) fn pop_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// The request whose turn it is, if it is not fully yielded.
    pub(super) fn next(&self) -> Option<&SendRequest> {
        self.entries
            .get(self.next.wrapping_sub(self.first))
            .map(|entry| &entry.request)
    }

    pub(super) fn next_ticket(&self) -> Ticket {
        Ticket(self.next)
    }

    /// The request that `ticket` names, if it has not completed.
    pub(super) fn get(&self, ticket: Ticket) -> Option<&SendRequest> {
        self.entries
            .get(ticket.0.wrapping_sub(self.first))
            .map(|entry| &entry.request)
    }

    /// The first octets of the next request were yielded.
    pub(super) fn start_next(&mut self) {
        self.set_next(State::Started);
    }

    /// All octets of the next request were yielded; the last is octet `end` of the stream.
    pub(super) fn next_yielded(&mut self, end: u64) {
        self.set_next(State::Yielded { end });
        self.next = self.next.wrapping_add(1);
    }

    /// The next request was yielded and is answered later.
    pub(super) fn next_awaits(&mut self) {
        self.set_next(State::Awaiting);
        self.next = self.next.wrapping_add(1);
    }

    /// The next request came to its end without the network.
    pub(super) fn next_done(&mut self, status: WcStatus) {
        self.set_next(State::Done(status));
        self.next = self.next.wrapping_add(1);
        self.retire();
    }

    fn set_next(&mut self, state: State) {
        if let Some(entry) = self.entries.get_mut(self.next.wrapping_sub(self.first)) {
            entry.state = state;
        }
    }

    /// An awaited answer is complete, or the request has failed.
    pub(super) fn complete(&mut self, ticket: Ticket, status: WcStatus) {
        if let Some(entry) = self.entries.get_mut(ticket.0.wrapping_sub(self.first)) {
            entry.state = State::Done(status);
            self.retire();
        }
    }

    /// TCP has taken `done` octets of the stream.
    pub(super) fn transmitted(&mut self, done: u64) {
        while self.untransmitted != self.next {
            let at = self.untransmitted.wrapping_sub(self.first);
            let Some(entry) = self.entries.get_mut(at) else {
                break;
            };
            match entry.state {
                State::Yielded { end } if end <= done => {
                    entry.state = State::Done(WcStatus::Success);
                }
                State::Awaiting | State::Done(_) => {}
                State::Yielded { .. } | State::Queued | State::Started => break,
            }
            self.untransmitted = self.untransmitted.wrapping_add(1);
        }
        self.retire();
    }

    /// Whether a request has failed: then the stream has to end.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether something was yielded whose octets TCP may not have taken, or that is answered
    /// later.
    pub(super) fn has_unfinished(&self) -> bool {
        self.entries.iter().any(|entry| {
            matches!(
                entry.state,
                State::Started | State::Yielded { .. } | State::Awaiting
            )
        })
    }

    /// Flushes what has not started, and what waits for an answer; requests whose octets are on
    /// their way may still complete.
    pub(super) fn flush_waiting(&mut self) {
        for entry in &mut self.entries {
            if matches!(entry.state, State::Queued | State::Awaiting) {
                entry.state = State::Done(WcStatus::WrFlushErr);
            }
        }
        self.retire();
    }

    /// Flushes everything. The oldest started request of the class in `blamed` gets the status
    /// there instead.
    pub(super) fn flush(&mut self, mut blamed: Option<(Class, WcStatus)>) {
        for entry in &mut self.entries {
            if matches!(entry.state, State::Done(_)) {
                continue;
            }
            let status = match blamed {
                Some((class, status))
                    if entry.state != State::Queued && class_of(entry.request.op, class) =>
                {
                    blamed = None;
                    status
                }
                _ => WcStatus::WrFlushErr,
            };
            entry.state = State::Done(status);
        }
        self.retire();
    }

    /// Completes the requests at the front that are done.
    fn retire(&mut self) {
        while let Some(Entry {
            state: State::Done(status),
            ..
        }) = self.entries.front()
        {
            // The first that fails says why; what is behind it is flushed, though it may have failed
            // meanwhile, too.
            let status = if self.broken {
                WcStatus::WrFlushErr
            } else {
                *status
            };
            let Some(entry) = self.entries.pop_front() else {
                return;
            };
            // Counters never lag behind the front: what they point at has completed.
            for counter in [&mut self.next, &mut self.untransmitted] {
                if *counter == self.first {
                    *counter = counter.wrapping_add(1);
                }
            }
            self.first = self.first.wrapping_add(1);
            let success = status == WcStatus::Success;
            self.failed |= !success;
            self.broken |= !matches!(status, WcStatus::Success | WcStatus::WrFlushErr);
            let signaled = self.all_signaled || entry.request.flags.contains(SendFlags::SIGNALED);
            if signaled || !success {
                self.completions
                    .push_back(completion(&entry.request, status));
            }
        }
    }
}

fn class_of(op: SendOp, class: Class) -> bool {
    match op {
        SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_) => {
            class == Class::Send
        }
        SendOp::Write { .. } => class == Class::Write,
        SendOp::WriteWithImm { .. } => matches!(class, Class::Write | Class::Send),
        SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => {
            class == Class::Read
        }
        SendOp::LocalInvalidate(_) | SendOp::BindMw(_) => false,
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

/// The pieces of memory that hold `len` octets of a scatter/gather list, from `offset` on.
pub(super) fn parts(
    sges: &[Sge],
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (Lkey, u64, usize)> {
    let mut skip = offset;
    let mut left = len;
    sges.iter().filter_map(move |sge| {
        let length = u64::from(sge.length);
        if skip >= length {
            skip -= length;
            return None;
        }
        let here = usize::try_from(length - skip)
            .unwrap_or(usize::MAX)
            .min(left);
        let part = (sge.lkey, sge.addr.wrapping_add(skip), here);
        skip = 0;
        left -= here;
        (here > 0).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::wr::Payload;

    fn request(wr_id: u64, op: SendOp, flags: SendFlags) -> SendRequest {
        let sge = Sge {
            addr: 0x1000,
            length: 7,
            lkey: Lkey::new(1),
        };
        SendRequest {
            wr_id,
            op,
            flags,
            payload: Payload::Sges(smallvec![sge]),
        }
    }

    fn send(wr_id: u64) -> SendRequest {
        request(wr_id, SendOp::Send, SendFlags::SIGNALED)
    }

    fn read(wr_id: u64) -> SendRequest {
        let op = SendOp::Read {
            remote_addr: 0,
            rkey: softverbs_wire::num::Rkey::new(9),
        };
        request(wr_id, op, SendFlags::SIGNALED)
    }

    fn completed(queue: &mut SendQueue) -> Vec<(u64, WcStatus)> {
        core::iter::from_fn(|| queue.pop_completion())
            .map(|c| (c.wr_id, c.status))
            .collect()
    }

    #[test]
    fn completes_in_order_though_the_answer_is_late() {
        let mut queue = SendQueue::new(4, false);
        queue.push(read(1));
        queue.push(send(2));
        let ticket = queue.next_ticket();
        queue.next_awaits();
        queue.start_next();
        queue.next_yielded(100);
        queue.transmitted(99);
        queue.transmitted(100);
        assert_eq!(completed(&mut queue), []);
        assert_eq!(queue.len(), 2);
        queue.complete(ticket, WcStatus::Success);
        assert_eq!(
            completed(&mut queue),
            [(1, WcStatus::Success), (2, WcStatus::Success)]
        );
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn an_answer_before_the_account_of_tcp_loses_nothing() {
        let mut queue = SendQueue::new(4, false);
        queue.push(read(1));
        queue.push(send(2));
        let ticket = queue.next_ticket();
        queue.next_awaits();
        queue.complete(ticket, WcStatus::Success);
        queue.next_yielded(10);
        queue.transmitted(10);
        assert_eq!(
            completed(&mut queue),
            [(1, WcStatus::Success), (2, WcStatus::Success)]
        );
        queue.push(send(3));
        assert_eq!(queue.next().map(|request| request.wr_id), Some(3));
        queue.next_yielded(20);
        queue.transmitted(20);
        assert_eq!(completed(&mut queue), [(3, WcStatus::Success)]);
    }

    #[test]
    fn unsignaled_success_is_silent_and_failure_is_not() {
        let mut queue = SendQueue::new(4, false);
        queue.push(request(1, SendOp::Send, SendFlags::empty()));
        queue.push(request(2, SendOp::Send, SendFlags::empty()));
        queue.next_yielded(10);
        queue.transmitted(10);
        assert_eq!(completed(&mut queue), []);
        assert!(!queue.has_failed());
        queue.flush(None);
        assert_eq!(completed(&mut queue), [(2, WcStatus::WrFlushErr)]);
        assert!(queue.has_failed());
        let mut queue = SendQueue::new(4, true);
        queue.push(request(1, SendOp::Send, SendFlags::empty()));
        queue.next_yielded(10);
        queue.transmitted(10);
        assert_eq!(completed(&mut queue), [(1, WcStatus::Success)]);
    }

    #[test]
    fn flush_blames_the_oldest_started_request_of_the_class() {
        let mut queue = SendQueue::new(8, false);
        for request in [send(1), read(2), read(3), send(4)] {
            queue.push(request);
        }
        queue.next_yielded(10);
        queue.next_awaits();
        queue.next_awaits();
        queue.flush(Some((Class::Read, WcStatus::RemAccessErr)));
        assert_eq!(
            completed(&mut queue),
            [
                (1, WcStatus::WrFlushErr),
                (2, WcStatus::RemAccessErr),
                (3, WcStatus::WrFlushErr),
                (4, WcStatus::WrFlushErr)
            ]
        );
        queue.push(send(5));
        queue.flush(Some((Class::Send, WcStatus::RemAccessErr)));
        assert_eq!(
            completed(&mut queue),
            [(5, WcStatus::WrFlushErr)],
            "it had not started"
        );
    }

    #[test]
    fn of_several_that_fail_the_oldest_says_why() {
        let mut queue = SendQueue::new(8, false);
        for request in [read(1), send(2), send(3), send(4)] {
            queue.push(request);
        }
        queue.next_awaits();
        queue.next_yielded(10);
        queue.transmitted(10);
        queue.next_done(WcStatus::LocProtErr);
        assert_eq!(completed(&mut queue), []);
        queue.flush(Some((Class::Read, WcStatus::RemAccessErr)));
        assert_eq!(
            completed(&mut queue),
            [
                (1, WcStatus::RemAccessErr),
                (2, WcStatus::WrFlushErr),
                (3, WcStatus::WrFlushErr),
                (4, WcStatus::WrFlushErr)
            ]
        );
    }

    #[test]
    fn flush_waiting_spares_what_is_on_its_way() {
        let mut queue = SendQueue::new(8, false);
        for request in [read(1), send(2), send(3), send(4)] {
            queue.push(request);
        }
        queue.next_awaits();
        queue.next_yielded(10);
        queue.start_next();
        queue.flush_waiting();
        assert_eq!(completed(&mut queue), [(1, WcStatus::WrFlushErr)]);
        queue.push_flushed(send(5));
        assert_eq!(completed(&mut queue), []);
        queue.next_yielded(20);
        queue.transmitted(20);
        assert_eq!(
            completed(&mut queue),
            [
                (2, WcStatus::Success),
                (3, WcStatus::Success),
                (4, WcStatus::WrFlushErr),
                (5, WcStatus::WrFlushErr)
            ]
        );
    }

    #[test]
    fn parts_walk_the_list() {
        let key = Lkey::new(7);
        let sge = |addr, length| Sge {
            addr,
            length,
            lkey: key,
        };
        let sges = [sge(100, 3), sge(0, 0), sge(200, 1), sge(300, 5)];
        let walk = |offset, len| -> Vec<(u64, usize)> {
            parts(&sges, offset, len)
                .map(|(_, addr, len)| (addr, len))
                .collect()
        };
        assert_eq!(walk(0, 9), [(100, 3), (200, 1), (300, 5)]);
        assert_eq!(walk(2, 3), [(102, 1), (200, 1), (300, 1)]);
        assert_eq!(walk(3, 1), [(200, 1)]);
        assert_eq!(walk(4, 4), [(300, 4)]);
        assert_eq!(walk(9, 1), []);
        assert_eq!(walk(5, 0), []);
    }
}
