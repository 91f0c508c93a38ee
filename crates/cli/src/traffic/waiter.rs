//! What a loop does when a poll found nothing: go on polling, or sleep until an event; and in
//! either case notice that the peer is silent for too long, or that the user pressed Ctrl-C.

use std::time::{Duration, Instant};

use softverbs::{CompChannel, Cq};

use crate::failure::{Outcome, silence};
use crate::interrupt;

/// Decides how to wait for completions.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Sleep on this channel; without one, poll.
    channel: Option<CompChannel>,
    armed: bool,
    empty_polls: u32,
    heard: Instant,
    timeout: Duration,
    /// The longest sleep.
    slice: Duration,
}

/// Empty polls between two looks at the clock.
const LOOK_EVERY: u32 = 256;

impl Waiter {
    /// For the queue of `channel`, or for polling. A peer that is silent for `timeout` is dead.
    pub(crate) fn new(channel: Option<CompChannel>, timeout: Duration) -> Self {
        Self {
            channel,
            armed: false,
            empty_polls: 0,
            heard: Instant::now(),
            timeout,
            slice: interrupt::SLICE,
        }
    }

    /// Sleeps for moments only, for a loop that has the time to look at.
    pub(crate) fn look_often(&mut self) {
        self.slice = Duration::from_millis(2);
    }

    /// Something came from the peer, or went out to it.
    pub(crate) fn heard(&mut self) {
        self.empty_polls = 0;
        self.heard = Instant::now();
    }

    /// A poll of `cq` found nothing, and nothing else is to be done.
    ///
    /// The queue is armed first and polled once more by the caller before this sleeps: what came
    /// between the poll and the arming raises no event.
    pub(crate) fn idle(&mut self, cq: &Cq) -> Outcome<()> {
        if let Some(channel) = &self.channel {
            if self.armed {
                if let Some(ready) = channel.get_event(Some(self.slice))? {
                    ready.ack_events(1);
                    self.armed = false;
                }
            } else {
                cq.req_notify(false)?;
                self.armed = true;
                return Ok(());
            }
        } else {
            self.empty_polls = self.empty_polls.wrapping_add(1);
            if !self.empty_polls.is_multiple_of(LOOK_EVERY) {
                return Ok(());
            }
        }
        interrupt::check()?;
        if self.heard.elapsed() > self.timeout {
            return Err(silence(self.timeout));
        }
        Ok(())
    }
}
