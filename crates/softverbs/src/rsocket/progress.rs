//! Stream sockets: doing the work of a connection, and waiting for it.

use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use softverbs_proto::rsocket::Stream;

use super::stream::{Phase, State, StreamSocket, errno};
use super::wait;
use crate::cm::{CmEvent, EventKind};
use crate::error::Result;

impl StreamSocket {
    /// Does what there is to do: takes completions and events, drives the connection.
    pub(super) fn progress(&self, state: &mut State) {
        let mut used = false;
        if matches!(state.phase, Phase::Connecting | Phase::Connected) {
            while let Ok(Some(event)) = state.channel.get_event(Some(Duration::ZERO)) {
                used = true;
                state.on_event(&event);
            }
        }
        // Not before: messages mean something only when the peer's connection data is known.
        if state.phase == Phase::Connected
            && let Some(endpoint) = &mut state.endpoint
        {
            used |= endpoint.progress();
            state.note_failure();
        }
        if used {
            self.waiters.wake();
        }
    }

    /// Runs `attempt` until it has a result, between steps of progress; EAGAIN if it has none
    /// and `nonblocking`.
    pub(super) fn wait_for<T>(
        &self,
        nonblocking: bool,
        attempt: impl FnMut(&mut State) -> Option<Result<T>>,
    ) -> Result<T> {
        self.wait_until(nonblocking, None, attempt)?
            .ok_or_else(|| errno("rsocket", libc::EAGAIN))
    }

    /// As [`wait_for`](Self::wait_for); `None` if there was no result by the `deadline`, or at
    /// once.
    pub(super) fn wait_until<T>(
        &self,
        nonblocking: bool,
        deadline: Option<Instant>,
        mut attempt: impl FnMut(&mut State) -> Option<Result<T>>,
    ) -> Result<Option<T>> {
        wait::until(&self.waiters, self.fd(), nonblocking, deadline, |arm| {
            let mut state = self.lock();
            self.progress(&mut state);
            if arm {
                self.arm(&mut state)?;
            }
            if state.phase == Phase::Closed {
                return Err(errno("rsocket", libc::EBADF));
            }
            attempt(&mut state).transpose()
        })
    }

    /// Sees to it that what completes from now on is announced.
    pub(super) fn arm(&self, state: &mut State) -> Result<()> {
        // Until nothing was announced between arming and looking.
        while let Some(endpoint) = &mut state.endpoint
            && endpoint.arm()?
        {
            self.progress(state);
        }
        Ok(())
    }

    /// What `poll` reports of it.
    pub(super) fn events(&self, state: &State, wanted: PollFlags) -> PollFlags {
        let both = PollFlags::POLLIN | PollFlags::POLLOUT;
        match (state.phase, &state.endpoint) {
            (Phase::Listening, _) => {
                let mut fds = [PollFd::new(state.channel.fd(), PollFlags::POLLIN)];
                let _ = nix::poll::poll(&mut fds, PollTimeout::ZERO);
                wanted & fds[0].revents().unwrap_or(PollFlags::empty())
            }
            (Phase::Failed, _) => (wanted & both) | PollFlags::POLLERR | PollFlags::POLLHUP,
            (Phase::Closed, _) => PollFlags::POLLNVAL,
            (Phase::Connected, Some(endpoint)) => {
                let stream = &endpoint.stream;
                let mut events = PollFlags::empty();
                if stream.available() > 0 || !stream.is_readable() {
                    events |= PollFlags::POLLIN;
                }
                if !stream.is_readable() {
                    events |= PollFlags::from_bits_retain(libc::POLLRDHUP);
                }
                if stream.can_send() {
                    events |= PollFlags::POLLOUT;
                }
                events &= wanted;
                // Programs take these for the end of everything: not before the last octet is read.
                if stream.available() == 0 {
                    if stream.is_disconnected() {
                        events |= PollFlags::POLLHUP;
                    }
                    if stream.failure().is_some() {
                        events |= PollFlags::POLLERR;
                    }
                }
                events
            }
            _ => PollFlags::empty(),
        }
    }
}

impl State {
    fn on_event(&mut self, event: &CmEvent) {
        let connecting = self.phase == Phase::Connecting;
        match event.kind() {
            EventKind::Established if connecting => {
                let peer = Stream::parse_connect_data(event.private_data());
                match (peer, &mut self.endpoint) {
                    (Ok(peer), Some(endpoint)) => {
                        endpoint.connected(&peer);
                        self.phase = Phase::Connected;
                        self.unreported = true;
                    }
                    _ => {
                        let _ = event.id().disconnect();
                        self.fail(libc::EPROTO);
                    }
                }
            }
            EventKind::Rejected if connecting => self.fail(libc::ECONNREFUSED),
            EventKind::Unreachable | EventKind::ConnectError if connecting => {
                self.fail(match event.status() {
                    status if status < 0 => status.saturating_neg(),
                    _ => libc::ECONNREFUSED,
                });
            }
            EventKind::Rejected
            | EventKind::Unreachable
            | EventKind::ConnectError
            | EventKind::Disconnected
            | EventKind::DeviceRemoval => {
                if let Some(endpoint) = &mut self.endpoint {
                    endpoint.on_disconnected();
                }
            }
            _ => {}
        }
    }

    fn fail(&mut self, error: i32) {
        self.phase = Phase::Failed;
        self.error = Some(error);
    }

    /// A connection that has failed is an error, once.
    fn note_failure(&mut self) {
        if let Some(endpoint) = &mut self.endpoint
            && self.phase == Phase::Connected
            && endpoint.take_new_failure()
        {
            self.error = Some(libc::ECONNRESET);
        }
    }

    /// The error that has not been reported.
    pub(super) fn take_error(&mut self) -> Option<i32> {
        self.error.take()
    }
}
