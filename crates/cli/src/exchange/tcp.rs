//! The exchange over a plain TCP connection: one message after the other, each with its length.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::wire::{self, HEADER_LEN};
use super::{Message, lost};
use crate::deadline::Deadline;
use crate::failure::{Failure, Outcome, silence};
use crate::interrupt;

/// How long a message that has begun may take to be complete, at least.
const REST_OF_MESSAGE: Duration = Duration::from_secs(1);

/// A TCP connection that carries the exchange.
#[derive(Debug)]
pub(crate) struct TcpControl {
    stream: TcpStream,
    /// Received and not yet a whole message.
    received: Vec<u8>,
}

impl TcpControl {
    /// Over a connection.
    fn new(stream: TcpStream) -> Outcome<Self> {
        let prepare = || {
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(interrupt::SLICE))
        };
        prepare()
            .map_err(|error| Failure::run(format!("cannot set up the connection: {error}")))?;
        Ok(Self {
            stream,
            received: Vec::new(),
        })
    }

    /// Connects to a server.
    pub(crate) fn connect(peer: SocketAddr, timeout: Duration) -> Outcome<Self> {
        // In a thread of its own, so that Ctrl-C is heard meanwhile.
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let _ = sender.send(TcpStream::connect_timeout(&peer, timeout));
        });
        let stream = loop {
            interrupt::check()?;
            match receiver.recv_timeout(interrupt::SLICE) {
                Ok(stream) => break stream,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(lost()),
            }
        };
        let stream = stream.map_err(|error| {
            Failure::run(match error.kind() {
                ErrorKind::ConnectionRefused => {
                    "connection refused: does a server with --tcp-exchange listen there?".to_owned()
                }
                ErrorKind::TimedOut => "no answer from the peer while connecting".to_owned(),
                _ => format!("cannot connect: {error}"),
            })
        })?;
        Self::new(stream)
    }

    /// Waits for a client.
    pub(crate) fn accept(
        listener: &TcpListener,
        deadline: Deadline,
    ) -> Outcome<Option<(Self, SocketAddr)>> {
        loop {
            interrupt::check()?;
            match listener.accept() {
                Ok((stream, peer)) => return Ok(Some((Self::new(stream)?, peer))),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // accept() has no time limit; waiting for a client is not what is measured.
                    thread::sleep(deadline.slice().min(Duration::from_millis(10)));
                }
                // The client has gone again, or this was a signal.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(Failure::run(format!("accept: {error}"))),
            }
            if deadline.passed() {
                return Ok(None);
            }
        }
    }

    pub(super) fn send(&mut self, message: &Message) -> Outcome<()> {
        self.stream.write_all(&message.encode()).map_err(|_| lost())
    }

    pub(super) fn receive(&mut self, timeout: Duration) -> Outcome<Message> {
        let deadline = Deadline::after(timeout);
        // Who has begun a message may finish it, even for a caller that only wants to look; but
        // not without end.
        let rest = Deadline::after(timeout.max(REST_OF_MESSAGE));
        let mut buffer = [0; 512];
        loop {
            if let Some(message) = self.whole_message()? {
                return Ok(message);
            }
            interrupt::check()?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(lost()),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(_) => return Err(lost()),
            }
            if deadline.passed() && (self.received.is_empty() || rest.passed()) {
                return Err(silence(timeout));
            }
        }
    }

    /// Takes a message out of what was received.
    fn whole_message(&mut self) -> Outcome<Option<Message>> {
        // A stranger is told from a slow friend as soon as the first octets differ.
        let known = self.received.len().min(wire::MAGIC.len());
        if self.received[..known] != wire::MAGIC[..known] {
            return Err(Failure::run(wire::Malformed::Magic.to_string()));
        }
        if self.received.len() < HEADER_LEN {
            return Ok(None);
        }
        let malformed = |error: wire::Malformed| Failure::run(error.to_string());
        let (_, len) = wire::header(&self.received, Message::REFUSE).map_err(malformed)?;
        if self.received.len() < len {
            return Ok(None);
        }
        let message = Message::decode(&self.received[..len]).map_err(malformed)?;
        self.received.drain(..len);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (TcpControl, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpControl::connect(address, Duration::from_secs(5)).unwrap();
        (client, listener.accept().unwrap().0)
    }

    const SHORT: Duration = Duration::from_millis(300);

    #[test]
    fn messages_cross_whatever_their_segments() {
        let (mut control, mut peer) = pair();
        let first = Message::Ready { round: 1 };
        let mut octets = first.encode();
        octets.extend(Message::Bye.encode());
        for octet in octets {
            peer.write_all(&[octet]).unwrap();
        }
        assert_eq!(control.receive(SHORT).unwrap(), first);
        assert_eq!(control.receive(SHORT).unwrap(), Message::Bye);
        control.send(&Message::Bye).unwrap();
        let mut answer = [0; HEADER_LEN];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(Message::decode(&answer), Ok(Message::Bye));
    }

    #[test]
    fn silence_strangers_and_the_end_are_told_apart() {
        let text = |control: &mut TcpControl| control.receive(SHORT).unwrap_err().to_string();
        let (mut control, _peer) = pair();
        assert!(text(&mut control).contains("no answer"));
        let (mut control, mut peer) = pair();
        peer.write_all(b"GET / HTTP/1.1").unwrap();
        assert!(text(&mut control).contains("does not speak"));
        let (mut control, peer) = pair();
        drop(peer);
        assert!(text(&mut control).contains("lost"));
    }

    #[test]
    fn nobody_listens() {
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let failure = TcpControl::connect(address, Duration::from_secs(5)).unwrap_err();
        assert!(failure.to_string().contains("refused"), "{failure}");
    }
}
