//! How the two ends agree: messages of a fixed layout (documented in `docs/exchange.md`), carried
//! by the RDMA CM and Sends, or by a plain TCP connection.

mod cm;
mod hello;
mod message;
mod tcp;
mod wire;

use std::time::Duration;

pub(crate) use cm::CmControl;
pub(crate) use message::{LaneKeys, Message, RoundResult};
pub(crate) use tcp::TcpControl;

use crate::failure::{Failure, Outcome};

/// The connection that carries the exchange.
#[derive(Debug)]
pub(crate) enum Control {
    /// Sends on a queue pair of its own.
    Cm(CmControl),
    /// A TCP connection.
    Tcp(TcpControl),
}

impl Control {
    /// Sends a message.
    pub(crate) fn send(&mut self, message: &Message) -> Outcome<()> {
        match self {
            Self::Cm(control) => control.send(message),
            Self::Tcp(control) => control.send(message),
        }
    }

    /// Waits for a message.
    pub(crate) fn receive(&mut self, timeout: Duration) -> Outcome<Message> {
        match self {
            Self::Cm(control) => control.receive(timeout),
            Self::Tcp(control) => control.receive(timeout),
        }
    }

    /// Ends the conversation in order.
    pub(crate) fn close(self) {
        match self {
            Self::Cm(control) => control.close(),
            Self::Tcp(control) => drop(control),
        }
    }
}

/// Another message came than the one that should: a refusal, or one that makes no sense now.
pub(crate) fn unexpected(message: &Message, instead_of: &str) -> Failure {
    if let Message::Refuse(reason) = message {
        return Failure::run(format!("refused by the peer: {reason}"));
    }
    Failure::run(format!(
        "the peer sent {} instead of {instead_of}",
        message.name()
    ))
}

/// The connection ended.
pub(crate) fn lost() -> Failure {
    Failure::run("the connection to the peer was lost")
}
