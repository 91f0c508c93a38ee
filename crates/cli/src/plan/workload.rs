//! The part of a plan that both ends must agree on.

use std::fmt;
use std::time::Duration;

use softverbs::Transport;

use crate::failure::{Failure, Outcome};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Octets a second, with many messages under way.
    Bandwidth,
    /// Time of one message at a time.
    Latency,
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bandwidth => "bw",
            Self::Latency => "lat",
        })
    }
}

/// The operation that moves the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// Send into a posted receive.
    Send,
    /// An atomic operation on a word of the peer's.
    Atomic,
}

impl Verb {
    /// The verb of this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "write" => Some(Self::Write),
            "read" => Some(Self::Read),
            "send" => Some(Self::Send),
            "atomic" => Some(Self::Atomic),
            _ => None,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::Atomic => "atomic",
        })
    }
}

/// The atomic operation of [`Verb::Atomic`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    /// Add one to a word that all queue pairs share.
    #[default]
    FetchAdd,
    /// Replace a word of the queue pair's own by the number that follows.
    CompareSwap,
}

impl fmt::Display for AtomicOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FetchAdd => "fetch-add",
            Self::CompareSwap => "cmp-swap",
        })
    }
}

/// The service of the data queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Connection {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection: messages may be lost, Writes and Sends.
    Uc,
    /// Unreliable datagrams: messages may be lost, Sends of one packet.
    Ud,
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        })
    }
}

/// Octets in front of a datagram, for the network header.
const GRH: u32 = 40;

/// Which message sizes are measured, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// This one.
    One(u32),
    /// Every power of two from 2 to this one.
    UpTo(u32),
}

impl Sizes {
    /// All sizes, where nothing limits them: up to 8 Mi.
    pub(crate) const ALL: Self = Self::UpTo(1 << 23);

    /// Each size in turn.
    pub(crate) fn each(self) -> Vec<u32> {
        match self {
            Self::One(size) => vec![size],
            Self::UpTo(largest) => (1..31)
                .map(|log| 1 << log)
                .take_while(|size| *size <= largest)
                .collect(),
        }
    }

    /// The largest: buffers are made for it.
    pub(crate) fn largest(self) -> u32 {
        match self {
            Self::One(size) | Self::UpTo(size) => size,
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(size) => write!(f, "-s {size}"),
            Self::UpTo(_) => f.write_str("-a"),
        }
    }
}

/// How long one size is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// So many messages on each queue pair.
    Iterations(u64),
    /// So long.
    Duration(Duration),
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iterations(count) => write!(f, "-n {count}"),
            Self::Duration(time) => write!(f, "-D {}", time.as_secs_f64()),
        }
    }
}

/// What is measured and how, as the client decides and the server follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    /// Bandwidth or latency.
    pub(crate) metric: Metric,
    /// Write, read, send or atomic.
    pub(crate) verb: Verb,
    /// Which atomic operation, with that verb.
    pub(crate) atomic: AtomicOp,
    /// The service of the queue pairs.
    pub(crate) connection: Connection,
    /// Path MTU in octets, if not the library's choice; unreliable services always have one.
    pub(crate) mtu: Option<u16>,
    /// Every message carries its number as immediate data, and that is verified. Unreliable
    /// services do so in any case.
    pub(crate) imm: bool,
    /// Message sizes.
    pub(crate) sizes: Sizes,
    /// Length of the run for each size.
    pub(crate) amount: Amount,
    /// Data queue pairs.
    pub(crate) qps: u16,
    /// Messages that one queue pair may have under way at the sender.
    pub(crate) tx_depth: u32,
    /// Receives for messages that one queue pair has posted at the receiver, if they take any.
    pub(crate) window: u32,
    /// Buffers a queue pair and direction; 1 if all messages share one.
    pub(crate) slots: u32,
    /// One completion for so many messages; 0 leaves it to the size.
    pub(crate) cq_mod: u16,
    /// Messages up to this size are handed over inline.
    pub(crate) inline: u16,
    /// Longest DDP segment to send, if not the library's choice.
    pub(crate) fpdu: Option<u16>,
    /// Both ends send at once.
    pub(crate) bidirectional: bool,
    /// The payload is a pattern, and verified.
    pub(crate) check: bool,
    /// CRC32C is asked for.
    pub(crate) crc: bool,
}

impl Workload {
    /// Registered memory that the payload of one end may take when every message has a buffer of
    /// its own. More depth than fits is not used.
    const CHECKED_MEMORY: u64 = 64 << 20;

    /// Octets that one queue pair has under way at most, if nobody asks for another depth: what the
    /// ends tell each other waits behind them.
    const UNDER_WAY: u64 = 1 << 30;
    /// Octets that both ends together move in a second at least, as far as waiting for them goes.
    const SLOWEST: u64 = 100_000_000;

    /// Messages that one queue pair has under way, if nobody says.
    pub(crate) fn usual_depth(largest: u32) -> u32 {
        let fit = u32::try_from(Self::UNDER_WAY / u64::from(largest.max(1))).unwrap_or(u32::MAX);
        fit.clamp(2, 128)
    }

    /// How long the peer may be silent: `timeout`, and what everything that is under way takes,
    /// since only the end of a message is heard.
    pub(crate) fn patience(&self, timeout: Duration) -> Duration {
        let depth = match self.metric {
            Metric::Bandwidth => u64::from(self.tx_depth),
            Metric::Latency => 1,
        };
        let ways = if self.bidirectional { 2 } else { 1 };
        let octets = ways * depth * u64::from(self.qps) * u64::from(self.sizes.largest());
        timeout + Duration::from_secs(octets / Self::SLOWEST)
    }

    /// Fills in `window` and `slots`, and limits the depths to what they allow.
    pub(crate) fn resolve(mut self) -> Self {
        if self.metric == Metric::Latency {
            // One message at a time; the rest is room for completions that come late.
            self.tx_depth = 16;
            self.window = 16;
        } else {
            self.window = (4 * self.tx_depth).clamp(16, 4096);
        }
        self.slots = 1;
        if self.check {
            let both_ways = 2 * u64::from(self.qps) * u64::from(self.sizes.largest());
            let fit = u32::try_from(Self::CHECKED_MEMORY / both_ways).unwrap_or(u32::MAX);
            self.slots = fit.clamp(1, self.window.max(self.tx_depth));
            self.tx_depth = self.tx_depth.min(self.slots);
            self.window = self.window.min(self.slots);
        }
        if self.verb == Verb::Atomic {
            // Every old value is looked at.
            self.slots = self.tx_depth;
        }
        self
    }

    /// Refuses what the transport has not got.
    pub(crate) fn check_transport(&self, transport: Transport) -> Outcome<()> {
        let refuse = |text: &str| Err(Failure::usage(text));
        match transport {
            Transport::Roce if self.crc || self.fpdu.is_some() => {
                refuse("--crc and --fpdu are options of iWARP, not of RoCE")
            }
            Transport::Iwarp if !self.is_reliable() => {
                refuse("-c UC and -c UD are services of RoCE: iWARP has RC only")
            }
            Transport::Iwarp if self.mtu.is_some() => {
                refuse("--mtu is an option of RoCE; iWARP has --fpdu")
            }
            Transport::Iwarp if self.imm && self.verb == Verb::Send => {
                refuse("a Send carries immediate data on RoCE only: use --transport roce")
            }
            Transport::Roce | Transport::Iwarp => Ok(()),
        }
    }

    /// Refuses a datagram that does not fit into one packet.
    pub(crate) fn check_datagram(size: u32, mtu: u16) -> Outcome<()> {
        if size <= mtu.into() {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "a datagram of {size} octets does not fit into the path MTU, {mtu}: -s {mtu} at most"
        )))
    }

    /// What is lost is sent again.
    pub(crate) fn is_reliable(&self) -> bool {
        self.connection == Connection::Rc
    }

    /// Messages carry immediate data.
    pub(crate) fn carries_imm(&self) -> bool {
        self.imm || !self.is_reliable()
    }

    /// The receiver sees each message, since it takes a receive.
    pub(crate) fn takes_receives(&self) -> bool {
        self.verb == Verb::Send || self.carries_imm()
    }

    /// The peer answers each message by itself.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self.verb, Verb::Read | Verb::Atomic)
    }

    /// Every message in flight has a buffer of its own, in which it is looked at.
    pub(crate) fn has_own_buffers(&self) -> bool {
        self.check || self.verb == Verb::Atomic
    }

    /// A received message lies in the buffer of its own receive.
    pub(crate) fn is_checked_in_receives(&self) -> bool {
        self.check && self.verb == Verb::Send
    }

    /// Octets in front of a received message.
    pub(crate) fn headroom(&self) -> u32 {
        if self.connection == Connection::Ud {
            GRH
        } else {
            0
        }
    }

    /// How many messages of `size` share one completion: small messages profit from few
    /// completions, large ones do not notice them. Never more than may be under way.
    pub(crate) fn signal_every(&self, size: u32) -> u32 {
        let timed = matches!(self.amount, Amount::Duration(_));
        let wanted = match self.cq_mod {
            // Nothing follows on the same queue pair that would tell of the last ones.
            _ if timed && !self.is_reliable() => 1,
            0 if self.metric == Metric::Latency || size > 8192 => 1,
            0 => (self.tx_depth / 8).min(32),
            count => u32::from(count),
        };
        wanted.clamp(1, self.tx_depth)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.metric, self.verb)?;
        if self.verb == Verb::Atomic {
            write!(f, " -A {}", self.atomic)?;
        }
        write!(f, " {} {} -q {}", self.sizes, self.amount, self.qps)?;
        if !self.is_reliable() {
            write!(f, " -c {}", self.connection)?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, " --mtu {mtu}")?;
        }
        for (set, option) in [
            (self.imm, " --imm"),
            (self.bidirectional, " -b"),
            (self.check, " --check"),
            (self.crc, " --crc"),
        ] {
            if set {
                f.write_str(option)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A workload for tests of other modules.
    pub(crate) fn sample() -> Workload {
        Workload {
            metric: Metric::Bandwidth,
            verb: Verb::Write,
            atomic: AtomicOp::FetchAdd,
            connection: Connection::Rc,
            mtu: None,
            imm: false,
            sizes: Sizes::One(65_536),
            amount: Amount::Iterations(5000),
            qps: 1,
            tx_depth: 128,
            window: 0,
            slots: 0,
            cq_mod: 0,
            inline: 0,
            fpdu: None,
            bidirectional: false,
            check: false,
            crc: false,
        }
        .resolve()
    }

    #[test]
    fn all_sizes_are_the_powers_of_two() {
        let sizes = Sizes::ALL.each();
        assert_eq!(sizes.len(), 23);
        assert_eq!(sizes.first(), Some(&2));
        assert_eq!(sizes.last(), Some(&(8 << 20)));
        assert_eq!(Sizes::ALL.largest(), 8 << 20);
        assert_eq!(Sizes::One(7).each(), [7]);
        assert_eq!(Sizes::UpTo(16).each(), [2, 4, 8, 16]);
    }

    #[test]
    fn what_is_large_takes_its_time() {
        let second = Duration::from_secs(1);
        assert_eq!(sample().patience(second), second);
        let large = Workload {
            sizes: Sizes::One(1 << 30),
            qps: 16,
            tx_depth: 2,
            ..sample()
        };
        let long = large.patience(second);
        assert_eq!(long.as_secs(), 1 + 343);
        assert_eq!(
            [2, 8 << 20, 1 << 30].map(Workload::usual_depth),
            [128, 128, 2]
        );
        assert_eq!(Workload::usual_depth(64 << 20), 16);
    }

    #[test]
    fn unchecked_messages_share_one_buffer() {
        let workload = sample();
        assert_eq!(
            (workload.slots, workload.tx_depth, workload.window),
            (1, 128, 512)
        );
    }

    #[test]
    fn checked_messages_have_buffers_and_bounded_memory() {
        let workload = Workload {
            check: true,
            ..sample()
        }
        .resolve();
        assert_eq!(
            (workload.slots, workload.tx_depth, workload.window),
            (512, 128, 512)
        );
        for qps in [1, 8, 1000] {
            for size in [1, 64, 65_536, 8 << 20, 1 << 30] {
                let workload = Workload {
                    check: true,
                    qps,
                    sizes: Sizes::One(size),
                    ..sample()
                }
                .resolve();
                assert!(workload.slots >= 1 && workload.tx_depth >= 1 && workload.window >= 1);
                assert!(workload.tx_depth <= workload.slots && workload.window <= workload.slots);
                assert!(workload.signal_every(size) <= workload.tx_depth);
            }
        }
    }

    #[test]
    fn completions_are_rare_only_for_small_messages() {
        let every = |tx_depth, cq_mod, size| {
            Workload {
                tx_depth,
                cq_mod,
                ..sample()
            }
            .signal_every(size)
        };
        assert_eq!(every(128, 0, 64), 16);
        assert_eq!(every(1, 0, 64), 1);
        assert_eq!(every(8192, 0, 64), 32);
        assert_eq!(every(128, 0, 65_536), 1);
        assert_eq!(every(128, 100, 65_536), 100);
        assert_eq!(every(8, 100, 64), 8);
        let latency = Workload {
            metric: Metric::Latency,
            ..sample()
        };
        assert_eq!(latency.signal_every(2), 1);
    }
}
