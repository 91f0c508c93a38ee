//! What an application may do with a connection, and what it has seen of it.

use std::fmt;

/// What the application of one side may do, in any order and at any moment that allows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Sends that it posts on a connection.
    pub sends: u8,
    /// Receives that it has posted on each queue pair.
    pub receives: u8,
    /// It may reject: a request, its own acceptance, a reply.
    pub rejects: bool,
    /// RoCE: it may say that its answer takes longer.
    pub delays: bool,
    /// It may disconnect.
    pub disconnects: bool,
    /// It may destroy the identifier together with its queue pair.
    pub destroys: bool,
    /// iWARP: it may move the queue pair to the error state.
    pub aborts: bool,
    /// RoCE, active side: the queue pair is the application's own, which it moves to RTS and
    /// confirms the reply some time later.
    pub confirms: bool,
}

/// One thing that an application does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AppStep {
    /// Posts the next send.
    Post,
    /// Posts the next send, which is left for the next poll to transmit.
    PostLater,
    /// Polls a completion queue, or the engine does it instead: what was left is transmitted.
    Poll,
    /// Accepts a request.
    Accept,
    /// Moves its own queue pair to RTS.
    Ready,
    /// Confirms a reply.
    Establish,
    /// Says that it takes longer.
    Delay,
    /// Rejects.
    Reject,
    /// Disconnects.
    Disconnect,
    /// Moves the queue pair to the error state.
    Abort,
    /// Destroys identifier and queue pair.
    Destroy,
}

impl fmt::Display for AppStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Post => "post send",
            Self::PostLater => "post send for later",
            Self::Poll => "poll",
            Self::Accept => "accept",
            Self::Ready => "move queue pair to RTS",
            Self::Establish => "establish",
            Self::Delay => "send MRA",
            Self::Reject => "reject",
            Self::Disconnect => "disconnect",
            Self::Abort => "move queue pair to ERR",
            Self::Destroy => "destroy",
        })
    }
}

/// How far a connection has come, as its application sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// Passive, iWARP: its request is not complete, and the application has not heard of it.
    Unseen,
    /// Active: no answer yet.
    Connecting,
    /// Active: there is a reply that the application has not confirmed.
    Replied,
    /// Passive: there is a request that the application has not decided.
    Requested,
    /// Confirmed or accepted, and not established.
    Establishing,
    /// Both sides are connected.
    Established,
    /// It is over.
    Over,
}

/// What the application has done with one connection, and what it has seen.
#[derive(Clone, Debug, Hash)]
pub(crate) struct App {
    pub(crate) phase: Phase,
    /// Sends posted.
    pub(crate) posted: u8,
    /// Completions of sends.
    pub(crate) completed: u8,
    /// Those of them without an error.
    pub(crate) succeeded: u8,
    /// Messages received.
    pub(crate) received: u8,
    /// It ended the connection itself.
    pub(crate) ended_it: bool,
    /// It has rejected or destroyed it: it does not want to hear of it again.
    pub(crate) forgotten: bool,
    /// It has said that it takes longer.
    pub(crate) delayed: bool,
    /// The connection manager has said how it ended.
    pub(crate) told_end: bool,
    /// And that the queue pair may be used again.
    pub(crate) exited: bool,
}

impl App {
    pub(crate) const fn new(phase: Phase) -> Self {
        Self {
            phase,
            posted: 0,
            completed: 0,
            succeeded: 0,
            received: 0,
            ended_it: false,
            forgotten: false,
            delayed: false,
            told_end: false,
            exited: false,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }
}
