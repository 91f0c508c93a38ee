//! Two streams and the pipes between them.

use core::time::Duration;
use std::collections::VecDeque;

use softverbs_proto::iwarp::negotiate::Negotiated;
use softverbs_proto::iwarp::stream::{FpduSizing, Role, Stream, StreamConfig, StreamEvent};
use softverbs_proto::time::Time;
use softverbs_proto::transmit::TxBatch;
use softverbs_proto::wr::{Completion, SendRequest};

use super::{VecMemory, at, config};

/// A small generator of numbers that are random enough (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }
}

/// How octets get from one end to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// All that there is, at once.
    Whole,
    /// Pieces of random sizes, small ones and large ones; now and then placed directly.
    Random,
    /// One octet at a time.
    Octets,
}

/// One end.
#[derive(Debug)]
pub struct End {
    pub stream: Stream,
    pub memory: VecMemory,
    pub events: Vec<StreamEvent>,
    pub sent: Vec<Completion>,
    pub received: Vec<Completion>,
    /// Events and completions in the order in which an owner sees them.
    pub log: Vec<String>,
    /// Octets on their way from this end.
    pub wire: VecDeque<u8>,
    /// Everything that this end ever sent.
    pub record: Vec<u8>,
    /// Octets of the record at the end of each frame.
    pub frames: Vec<usize>,
    pub direct: usize,
    batch: TxBatch,
}

impl End {
    pub fn new(config: StreamConfig) -> Self {
        Self {
            stream: Stream::new(config),
            memory: VecMemory::default(),
            events: Vec::new(),
            sent: Vec::new(),
            received: Vec::new(),
            log: Vec::new(),
            wire: VecDeque::new(),
            record: Vec::new(),
            frames: Vec::new(),
            direct: 0,
            batch: TxBatch::new(),
        }
    }

    pub fn post(&mut self, request: SendRequest) {
        self.stream.post_send(request).unwrap();
    }

    /// Lets the stream transmit once; true if it did.
    pub fn transmit(&mut self, now: Time, max_len: usize, max_pieces: usize) -> bool {
        let wanted = self.stream.wants_transmit();
        self.batch.clear();
        let before = self.stream.outstanding();
        self.stream
            .poll_transmit(now, &mut self.memory, &mut self.batch, max_len, max_pieces);
        let octets = self.memory.flatten(&self.batch);
        let base = self.record.len();
        self.frames
            .extend(self.batch.frame_ends().iter().map(|end| base + end));
        self.record.extend_from_slice(&octets);
        self.wire.extend(octets.iter());
        let moved = !octets.is_empty() || self.stream.outstanding() != before;
        assert!(
            wanted || octets.is_empty(),
            "transmits though it did not want to"
        );
        self.stream.on_transmitted(octets.len());
        self.drain();
        moved
    }

    /// Gives the stream octets of the peer.
    pub fn feed(&mut self, now: Time, octets: &[u8]) {
        self.stream.on_bytes(now, &mut self.memory, octets);
        self.drain();
    }

    /// Gives the stream octets as an owner does who places payload itself where that is possible.
    pub fn feed_directly(&mut self, now: Time, mut octets: &[u8]) {
        use softverbs_proto::memory::Memory as _;
        while !octets.is_empty() {
            let Some(pieces) = self.stream.direct().cloned() else {
                // As much as a header, so that payload is left for the next round.
                let len = octets.len().min(20);
                self.feed(now, &octets[..len]);
                octets = &octets[len..];
                continue;
            };
            let mut placed = 0;
            for (key, addr, len) in pieces {
                let len = len.min(octets.len() - placed);
                if len > 0 {
                    let data = &octets[placed..placed + len];
                    self.memory.write(key, addr, data).unwrap();
                    placed += len;
                }
            }
            assert!(placed > 0, "direct pieces without octets");
            self.direct += placed;
            self.stream.on_direct(now, &mut self.memory, placed);
            self.drain();
            octets = &octets[placed..];
        }
    }

    pub fn eof(&mut self, reset: bool) {
        self.stream.on_eof(at(0), reset);
        self.drain();
    }

    /// Fetches everything the stream has to tell, in the order of its contract.
    pub fn drain(&mut self) {
        while let Some(event) = self.stream.poll_event() {
            self.log.push(match &event {
                StreamEvent::Established => "established".into(),
                StreamEvent::Closed { cause } => format!("closed {cause:?}"),
            });
            self.events.push(event);
        }
        while let Some(completion) = self.stream.poll_recv_completion() {
            self.log
                .push(format!("recv {} {:?}", completion.wr_id, completion.status));
            self.received.push(completion);
        }
        while let Some(completion) = self.stream.poll_send_completion() {
            self.log
                .push(format!("send {} {:?}", completion.wr_id, completion.status));
            self.sent.push(completion);
        }
        self.memory.assert_canaries();
    }

    pub fn is_closed(&self) -> bool {
        self.events
            .iter()
            .any(|event| matches!(event, StreamEvent::Closed { .. }))
    }

    pub fn closed_for(&self) -> String {
        let causes: Vec<_> = self
            .events
            .iter()
            .filter_map(|event| match event {
                StreamEvent::Closed { cause } => Some(format!("{cause:?}")),
                StreamEvent::Established => None,
            })
            .collect();
        assert!(causes.len() <= 1, "closed twice: {causes:?}");
        causes.into_iter().next().unwrap_or_else(|| "open".into())
    }

    pub fn times_established(&self) -> usize {
        self.events
            .iter()
            .filter(|event| matches!(event, StreamEvent::Established))
            .count()
    }
}

/// Two ends: `a` is the initiator.
#[derive(Debug)]
pub struct Pair {
    pub a: End,
    pub b: End,
    pub now: Time,
    pub random: Random,
    pub link: Link,
}

pub const GRACE: Duration = Duration::from_millis(20);
pub const RTR_TIMEOUT: Duration = Duration::from_secs(5);

pub const RESPONDER: Role = Role::Responder {
    grace: GRACE,
    rtr_timeout: RTR_TIMEOUT,
};

impl Pair {
    /// Two queue pairs without a connection.
    pub fn detached(config: StreamConfig, link: Link, seed: u64) -> Self {
        Self {
            a: End::new(config),
            b: End::new(config),
            now: at(0),
            random: Random(seed),
            link,
        }
    }

    pub fn new(negotiated: Negotiated, sizing: FpduSizing, link: Link, seed: u64) -> Self {
        let mut pair = Self::detached(config(), link, seed);
        pair.attach(negotiated, sizing);
        pair
    }

    /// Connects them; `negotiated` is what `a` agreed on.
    pub fn attach(&mut self, negotiated: Negotiated, sizing: FpduSizing) {
        let mirrored = Negotiated {
            markers_in: negotiated.markers_out,
            markers_out: negotiated.markers_in,
            ird: negotiated.ord,
            ord: negotiated.ird,
            ..negotiated.clone()
        };
        self.b.stream.attach(self.now, RESPONDER, mirrored, sizing);
        self.a
            .stream
            .attach(self.now, Role::Initiator, negotiated, sizing);
        self.a.drain();
        self.b.drain();
    }

    /// Moves some octets; true if anything happened.
    pub fn step(&mut self) -> bool {
        let (max_len, max_pieces) = match self.link {
            Link::Random => (1 + self.random.below(100_000), 1 + self.random.below(64)),
            Link::Whole | Link::Octets => (1 << 20, 1024),
        };
        let a_first = self.random.below(2) == 0;
        let mut moved = false;
        for a in [a_first, !a_first] {
            let (from, to) = if a {
                (&mut self.a, &mut self.b)
            } else {
                (&mut self.b, &mut self.a)
            };
            moved |= from.transmit(self.now, max_len, max_pieces);
            moved |= deliver(from, to, self.link, &mut self.random, self.now);
        }
        moved
    }

    /// Runs until nothing happens any more.
    pub fn run(&mut self) {
        let mut rounds = 0;
        while self.step() {
            rounds += 1;
            assert!(rounds < 10_000_000, "never comes to rest");
        }
    }

    /// Lets time pass up to the next deadline of either end, and runs.
    pub fn pass_deadline(&mut self) {
        let next = [&self.a, &self.b]
            .into_iter()
            .filter_map(|end| end.stream.deadline())
            .min();
        if let Some(deadline) = next {
            self.now = self.now.max(deadline);
            for end in [&mut self.a, &mut self.b] {
                end.stream.on_timeout(self.now);
                end.drain();
            }
        }
        self.run();
    }

    /// Nothing has gone wrong.
    pub fn assert_open(&self) {
        assert_eq!(self.a.closed_for(), "open");
        assert_eq!(self.b.closed_for(), "open");
    }
}

/// Moves octets from one end's wire to the other end.
fn deliver(from: &mut End, to: &mut End, link: Link, random: &mut Random, now: Time) -> bool {
    if from.wire.is_empty() {
        return false;
    }
    let most = from.wire.len();
    let len = match link {
        Link::Whole => most,
        Link::Octets => 1,
        Link::Random => match random.below(8) {
            0 => 1 + random.below(4),
            1 | 2 => 1 + random.below(64),
            3 | 4 => 1 + random.below(3000),
            _ => 1 + random.below(200_000),
        },
    };
    let octets: Vec<u8> = from.wire.drain(..len.min(most)).collect();
    if link == Link::Random && random.below(2) == 0 {
        to.feed_directly(now, &octets);
    } else {
        to.feed(now, &octets);
    }
    true
}
