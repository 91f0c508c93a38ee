//! TCP between the two sides: streams of octets that a reader may cut and join anywhere, with their
//! ends.
//!
//! A stream is what its sender wrote and its reader has not read; how much of it has arrived makes
//! no difference but in how much the next read gets, which is a step's to choose. TCP's own doings
//! (segments, acknowledges, repetition) are not modelled; what they can do to a reader is.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::world::Side;

/// A unit of the protocol above.
#[derive(Debug)]
pub(super) struct Frame {
    /// What it is, for people.
    pub(super) label: String,
    pub(super) len: usize,
    /// It is an FPDU, not a frame of the start-up.
    pub(super) is_fpdu: bool,
}

/// A frame, or some of its octets.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) frame: Arc<Frame>,
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Part {
    pub(super) fn whole(frame: Frame) -> Self {
        Self {
            from: 0,
            to: frame.len,
            frame: Arc::new(frame),
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.to - self.from
    }

    /// Whether it ends with its frame.
    pub(super) fn is_end(&self) -> bool {
        self.to == self.frame.len
    }
}

/// The parts that make up the first `octets` of some.
pub(super) fn first_parts(parts: &VecDeque<Part>, octets: usize) -> Vec<Part> {
    let mut left = octets;
    let mut first = Vec::new();
    for part in parts {
        if left == 0 {
            break;
        }
        let take = part.len().min(left);
        left -= take;
        first.push(Part {
            to: part.from + take,
            ..part.clone()
        });
    }
    first
}

/// Takes the first `octets` away.
pub(super) fn drop_first(parts: &mut VecDeque<Part>, octets: usize) {
    let mut left = octets;
    while let Some(part) = parts.front_mut() {
        if part.len() > left {
            part.from += left;
            return;
        }
        left -= part.len();
        parts.pop_front();
    }
}

/// The parts in words: a frame by its name, some of its octets with their numbers behind it.
pub(super) fn words(parts: &[Part]) -> String {
    let mut text = String::new();
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            text.push_str(" + ");
        }
        text.push_str(&part.frame.label);
        if part.len() < part.frame.len {
            // Writing to a string does not fail.
            let _ = write!(text, "[{}..{}]", part.from, part.to);
        }
    }
    text
}

/// One direction of a connection.
#[derive(Clone, Debug, Default)]
struct Pipe {
    /// Written and not read.
    octets: Vec<u8>,
    parts: VecDeque<Part>,
    /// Behind them the stream ends.
    fin: bool,
    /// A reset is on its way, which overtakes what was not read in time.
    reset: bool,
    /// All octets of a frame of the start-up were read.
    start_up_read: bool,
    /// All octets of an FPDU were read.
    fpdu_read: bool,
}

impl Hash for Pipe {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.octets.hash(state);
        let flags = [self.fin, self.reset, self.start_up_read, self.fpdu_read];
        flags.hash(state);
    }
}

/// What a socket has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    Open,
    /// The peer or the network has reset it, which its owner does not know yet.
    Dead,
    Closed,
}

/// One connection.
#[derive(Clone, Debug, Hash)]
struct Link {
    /// To each side.
    pipes: [Pipe; 2],
    ends: [End; 2],
    /// The network has forgotten it.
    cut: bool,
}

/// All connections that there were, by their numbers.
#[derive(Clone, Debug, Hash)]
pub(super) struct Tcp {
    links: Vec<Link>,
    /// Octets that a direction takes before they are read.
    room: usize,
}

/// The connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reset;

impl Tcp {
    pub(super) const fn new(room: usize) -> Self {
        Self {
            links: Vec::new(),
            room,
        }
    }

    /// A new connection's number.
    pub(super) fn connect(&mut self) -> usize {
        self.links.push(Link {
            pipes: [Pipe::default(), Pipe::default()],
            ends: [End::Open; 2],
            cut: false,
        });
        self.links.len() - 1
    }

    /// How many there were.
    pub(super) const fn count(&self) -> usize {
        self.links.len()
    }

    fn pipe(&self, link: usize, to: Side) -> &Pipe {
        &self.links[link].pipes[to.index()]
    }

    /// How many octets TCP would take from `from` now.
    pub(super) fn room(&self, link: usize, from: Side) -> usize {
        let link = &self.links[link];
        if link.cut || link.ends[from.peer().index()] != End::Open {
            return self.room;
        }
        let waiting = link.pipes[from.peer().index()].octets.len();
        self.room.saturating_sub(waiting)
    }

    /// Takes what there is room for; how much that is.
    pub(super) fn send(
        &mut self,
        link: usize,
        from: Side,
        octets: &[u8],
        parts: &VecDeque<Part>,
    ) -> Result<usize, Reset> {
        let taken = self.room(link, from).min(octets.len());
        let link = &mut self.links[link];
        let peer = from.peer().index();
        if link.ends[from.index()] != End::Open {
            return Err(Reset);
        }
        if link.cut || taken == 0 {
            return Ok(taken);
        }
        match link.ends[peer] {
            End::Open => {
                let pipe = &mut link.pipes[peer];
                pipe.octets.extend_from_slice(&octets[..taken]);
                pipe.parts.extend(first_parts(parts, taken));
            }
            // What comes to a socket that is closed is answered by a reset.
            End::Closed | End::Dead => link.pipes[from.index()].reset = true,
        }
        Ok(taken)
    }

    /// Octets on their way to `to`.
    pub(super) fn readable(&self, link: usize, to: Side) -> usize {
        if self.links[link].ends[to.index()] != End::Open {
            return 0;
        }
        self.pipe(link, to).octets.len()
    }

    /// Whether the next read finds the end.
    pub(super) fn at_end(&self, link: usize, to: Side) -> bool {
        self.links[link].ends[to.index()] == End::Open
            && self.pipe(link, to).octets.is_empty()
            && self.pipe(link, to).fin
    }

    /// The next octets in words.
    pub(super) fn name(&self, link: usize, to: Side, octets: usize) -> String {
        words(&first_parts(&self.pipe(link, to).parts, octets))
    }

    pub(super) fn read(&mut self, link: usize, to: Side, octets: usize) -> Vec<u8> {
        let pipe = &mut self.links[link].pipes[to.index()];
        let octets = octets.min(pipe.octets.len());
        for part in first_parts(&pipe.parts, octets) {
            let seen = if part.frame.is_fpdu {
                &mut pipe.fpdu_read
            } else {
                &mut pipe.start_up_read
            };
            *seen |= part.is_end();
        }
        drop_first(&mut pipe.parts, octets);
        pipe.octets.drain(..octets).collect()
    }

    /// Whether `side` has read a frame of the peer's start-up.
    pub(super) fn has_read_start_up(&self, link: usize, side: Side) -> bool {
        self.pipe(link, side).start_up_read
    }

    /// Whether `side` has read an FPDU.
    pub(super) fn has_read_fpdu(&self, link: usize, side: Side) -> bool {
        self.pipe(link, side).fpdu_read
    }

    /// No more will be sent.
    pub(super) fn shut_down(&mut self, link: usize, from: Side) {
        let link = &mut self.links[link];
        let peer = from.peer().index();
        if link.ends[from.index()] == End::Open && link.ends[peer] == End::Open && !link.cut {
            link.pipes[peer].fin = true;
        }
    }

    /// The socket is closed: with a reset if something was not read, with an end otherwise, and with
    /// both if that came in between.
    pub(super) fn close(&mut self, link: usize, side: Side) {
        self.shut_down(link, side);
        let link = &mut self.links[link];
        let unread = !link.pipes[side.index()].octets.is_empty();
        let was_open = link.ends[side.index()] == End::Open;
        link.ends[side.index()] = End::Closed;
        forget(&mut link.pipes[side.index()]);
        let peer = side.peer().index();
        if link.ends[peer] == End::Open && was_open && unread && !link.cut {
            link.pipes[peer].reset = true;
        }
    }

    /// Whether the socket is closed.
    pub(super) fn is_closed(&self, link: usize, side: Side) -> bool {
        self.links[link].ends[side.index()] == End::Closed
    }

    /// Whether a reset was received that the owner of the socket does not know of.
    pub(super) fn is_dead(&self, link: usize, side: Side) -> bool {
        self.links[link].ends[side.index()] == End::Dead
    }

    /// Whether a reset is on its way.
    pub(super) fn is_resetting(&self, link: usize, to: Side) -> bool {
        self.links[link].ends[to.index()] == End::Open && self.pipe(link, to).reset
    }

    /// It arrives.
    pub(super) fn take_reset(&mut self, link: usize, side: Side) {
        let link = &mut self.links[link];
        link.ends[side.index()] = End::Dead;
        forget(&mut link.pipes[side.index()]);
    }

    /// Connections that the network can reset.
    pub(super) fn living(&self) -> impl Iterator<Item = usize> {
        self.links
            .iter()
            .enumerate()
            .filter(|(_, link)| !link.cut && link.ends.contains(&End::Open))
            .map(|(number, _)| number)
    }

    /// The network resets a connection, towards both sides.
    pub(super) fn cut(&mut self, link: usize) {
        let link = &mut self.links[link];
        link.cut = true;
        for side in Side::BOTH {
            link.pipes[side.index()].reset |= link.ends[side.index()] == End::Open;
        }
    }
}

/// Nobody reads any more.
fn forget(pipe: &mut Pipe) {
    pipe.octets.clear();
    pipe.parts.clear();
    pipe.fin = false;
    pipe.reset = false;
}
