//! What epoll is asked to tell of a connection.

use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::EpollFlags;

use super::drive::Connection;
use crate::engine::{Engine, Set};

impl Connection {
    /// What the socket is ready for, or a lane.
    pub(super) fn readiness(&self) -> PollFlags {
        let interest = PollFlags::POLLIN | PollFlags::POLLOUT;
        if self.way.leads_out() {
            return if self.way.has_room() {
                interest
            } else {
                PollFlags::POLLIN
            };
        }
        if self.way.has_lane() {
            return self.socket_readiness(interest) | PollFlags::POLLIN;
        }
        self.socket_readiness(interest)
    }

    fn socket_readiness(&self, interest: PollFlags) -> PollFlags {
        let mut fds = [PollFd::new(self.socket.as_fd(), interest)];
        match poll(&mut fds, PollTimeout::ZERO) {
            Ok(_) => fds[0].revents().unwrap_or(interest),
            Err(_) => interest,
        }
    }

    /// Whether there is nothing to send but what the stream may yet yield.
    pub(super) fn is_idle(&self) -> bool {
        !self.waiting_for_room && self.batch.is_empty() && self.edge.is_none()
    }

    pub(super) fn wait_for_room(&mut self, engine: &Engine, wait: bool) {
        if self.wait_for_lane(engine, wait) {
            return;
        }
        if self.waiting_for_room != wait {
            self.waiting_for_room = wait;
            if !self.hot {
                engine.rewatch(Set::Data, self.token, self.socket.as_fd(), self.interest());
            }
        }
    }

    pub(super) fn interest(&self) -> EpollFlags {
        let mut interest = EpollFlags::empty();
        interest.set(EpollFlags::EPOLLIN, !self.is_deaf());
        interest.set(EpollFlags::EPOLLOUT, self.waiting_for_room);
        interest
    }

    pub(super) fn cool(&mut self, engine: &Engine) {
        if self.hot {
            self.hot = false;
            engine.unmute(self.token, self.socket.as_fd(), self.interest());
        }
    }
}

impl Connection {
    /// Nothing is read for now: the edge holds enough back, or the end of the stream.
    pub(super) fn is_deaf(&self) -> bool {
        self.edge.as_ref().is_some_and(|edge| edge.is_deaf())
    }

    /// After `is_deaf` has changed.
    pub(super) fn listen_again(&self, engine: &Engine) {
        if !self.hot {
            engine.rewatch(Set::Data, self.token, self.socket.as_fd(), self.interest());
        }
    }
}
