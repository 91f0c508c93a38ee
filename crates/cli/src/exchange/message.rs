//! The messages themselves; their order is told in `docs/exchange.md`.

use std::time::Duration;

use softverbs::Rkey;

use super::hello::{decode_hello, encode_hello};
use super::wire::{self, MAX_LEN, Malformed, Reader, Writer};
use crate::plan::Workload;

/// Longest text of a refusal: the private data of a reject has 148 octets where it has fewest.
const REFUSAL_LEN: usize = 148;

/// Where the buffers of one end lie, as far as its peer needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneKeys {
    /// Which measurement the connection belongs to.
    pub(crate) session: u64,
    /// Virtual address of this lane's buffers.
    pub(crate) addr: u64,
    /// Key of the memory region.
    pub(crate) rkey: Rkey,
    /// Number of the lane, from 0.
    pub(crate) index: u16,
    /// The queue pair of an unreliable lane, which is not the connection's; else 0.
    pub(crate) qpn: u32,
    /// The first PSN that it sends; else 0.
    pub(crate) psn: u32,
}

/// What one end saw of one round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoundResult {
    /// Which round.
    pub(crate) round: u32,
    /// Messages that this end sent (wrote, read).
    pub(crate) messages: u64,
    /// The time that took.
    pub(crate) elapsed: Duration,
    /// Highest rate, in octets a second.
    pub(crate) peak: u64,
    /// Messages that this end received, if it saw them.
    pub(crate) received: u64,
    /// Messages whose payload this end verified.
    pub(crate) verified: u64,
    /// Those among them that were wrong.
    pub(crate) wrong: u64,
    /// What was wrong with the first of them.
    pub(crate) complaint: String,
}

/// A message of the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Client: the measurement that it wants.
    Hello {
        /// A number of the client's choice that its other connections will carry.
        session: u64,
        /// What to measure.
        workload: Workload,
    },
    /// Server: agreed; connect the queue pairs at this port.
    Welcome {
        /// The session of the Hello.
        session: u64,
        /// Port of the RDMA CM.
        port: u16,
    },
    /// Either: no, and why.
    Refuse(String),
    /// Client, with the request of each queue pair: its buffers.
    Lane(LaneKeys),
    /// Server, with the accept of each queue pair: its buffers.
    LaneAccept(LaneKeys),
    /// Client: the next round has messages of this size.
    Start {
        /// Number of the round, from 0.
        round: u32,
        /// Octets of a message.
        size: u32,
    },
    /// Server: ready for that round.
    Ready {
        /// Number of the round.
        round: u32,
    },
    /// Both, after a round.
    Result(RoundResult),
    /// Client: that was all.
    Bye,
}

impl Message {
    pub(super) const HELLO: u8 = 1;
    const WELCOME: u8 = 2;
    pub(super) const REFUSE: u8 = 3;
    const LANE: u8 = 4;
    const LANE_ACCEPT: u8 = 5;
    const START: u8 = 6;
    const READY: u8 = 7;
    const RESULT: u8 = 8;
    const BYE: u8 = 9;

    /// The octets of the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { session, workload } => encode_hello(*session, workload),
            Self::Welcome { session, port } => Writer::new(Self::WELCOME)
                .put(session.to_be_bytes())
                .put(port.to_be_bytes())
                .put([0; 6]),
            Self::Refuse(text) => Writer::common(Self::REFUSE).text(text, REFUSAL_LEN),
            Self::Lane(keys) => encode_keys(Self::LANE, keys),
            Self::LaneAccept(keys) => encode_keys(Self::LANE_ACCEPT, keys),
            Self::Start { round, size } => Writer::new(Self::START)
                .put(round.to_be_bytes())
                .put(size.to_be_bytes()),
            Self::Ready { round } => Writer::new(Self::READY)
                .put(round.to_be_bytes())
                .put([0; 4]),
            Self::Result(result) => encode_result(result),
            Self::Bye => Writer::new(Self::BYE),
        }
        .finish()
    }

    /// Reads a message; octets behind the length that it states are ignored.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, len) = wire::header(bytes, Self::REFUSE)?;
        let mut fields = Reader::new(bytes, len)?;
        Ok(match kind {
            Self::HELLO => decode_hello(fields)?,
            Self::WELCOME => Self::Welcome {
                session: fields.u64()?,
                port: fields.u16()?,
            },
            Self::REFUSE => Self::Refuse(fields.text()),
            Self::LANE => Self::Lane(decode_keys(fields)?),
            Self::LANE_ACCEPT => Self::LaneAccept(decode_keys(fields)?),
            Self::START => Self::Start {
                round: fields.u32()?,
                size: fields.u32()?,
            },
            Self::READY => Self::Ready {
                round: fields.u32()?,
            },
            Self::RESULT => decode_result(fields)?,
            Self::BYE => Self::Bye,
            other => return Err(Malformed::Kind(other)),
        })
    }

    /// The name of the message, for errors.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "Hello",
            Self::Welcome { .. } => "Welcome",
            Self::Refuse(_) => "Refuse",
            Self::Lane(_) => "Lane",
            Self::LaneAccept(_) => "LaneAccept",
            Self::Start { .. } => "Start",
            Self::Ready { .. } => "Ready",
            Self::Result(_) => "Result",
            Self::Bye => "Bye",
        }
    }
}

fn encode_keys(kind: u8, keys: &LaneKeys) -> Writer {
    Writer::new(kind)
        .put(keys.session.to_be_bytes())
        .put(keys.addr.to_be_bytes())
        .put(keys.rkey.get().to_be_bytes())
        .put(keys.index.to_be_bytes())
        .put([0; 2])
        .put(keys.qpn.to_be_bytes())
        .put(keys.psn.to_be_bytes())
}

fn decode_keys(mut fields: Reader<'_>) -> Result<LaneKeys, Malformed> {
    let session = fields.u64()?;
    let addr = fields.u64()?;
    let rkey = Rkey::new(fields.u32()?);
    let index = fields.u16()?;
    fields.u16()?;
    Ok(LaneKeys {
        session,
        addr,
        rkey,
        index,
        qpn: fields.u32()?,
        psn: fields.u32()?,
    })
}

fn encode_result(result: &RoundResult) -> Writer {
    let nanos = u64::try_from(result.elapsed.as_nanos()).unwrap_or(u64::MAX);
    Writer::new(Message::RESULT)
        .put(result.round.to_be_bytes())
        .put([0; 4])
        .put(result.messages.to_be_bytes())
        .put(nanos.to_be_bytes())
        .put(result.peak.to_be_bytes())
        .put(result.received.to_be_bytes())
        .put(result.verified.to_be_bytes())
        .put(result.wrong.to_be_bytes())
        .text(&result.complaint, MAX_LEN)
}

fn decode_result(mut fields: Reader<'_>) -> Result<Message, Malformed> {
    let round = fields.u32()?;
    fields.u32()?;
    Ok(Message::Result(RoundResult {
        round,
        messages: fields.u64()?,
        elapsed: Duration::from_nanos(fields.u64()?),
        peak: fields.u64()?,
        received: fields.u64()?,
        verified: fields.u64()?,
        wrong: fields.u64()?,
        complaint: fields.text(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Amount, AtomicOp, Connection, Metric, Sizes, Verb, sample_workload};

    fn keys() -> LaneKeys {
        LaneKeys {
            session: 1 << 40,
            addr: 0x7f00_1234_5678_9abc,
            rkey: Rkey::new(0xdead_beef),
            index: 7,
            qpn: 0xab_cdef,
            psn: 0x12_3456,
        }
    }

    fn samples() -> Vec<Message> {
        vec![
            Message::Hello {
                session: u64::MAX - 1,
                workload: sample_workload(),
            },
            Message::Welcome {
                session: 5,
                port: 18515,
            },
            Message::Refuse("no".into()),
            Message::Lane(keys()),
            Message::LaneAccept(keys()),
            Message::Start {
                round: 3,
                size: 65_536,
            },
            Message::Ready { round: 3 },
            Message::Result(RoundResult {
                round: 2,
                messages: 10,
                elapsed: Duration::from_nanos(123_456_789),
                peak: 5_000_000_000,
                received: 8,
                verified: 9,
                wrong: 1,
                complaint: "lane 0, message 3".into(),
            }),
            Message::Bye,
        ]
    }

    #[test]
    fn every_message_survives_the_trip() {
        for message in samples() {
            let bytes = message.encode();
            assert_eq!(
                Message::decode(&bytes),
                Ok(message.clone()),
                "{}",
                message.name()
            );
            let mut padded = bytes.clone();
            padded.resize(MAX_LEN, 0);
            assert_eq!(
                Message::decode(&padded),
                Ok(message.clone()),
                "{} padded",
                message.name()
            );
            for cut in 0..bytes.len() {
                assert!(
                    Message::decode(&bytes[..cut]).is_err(),
                    "{} cut at {cut}",
                    message.name()
                );
            }
        }
    }

    #[test]
    fn every_field_of_a_workload_survives_the_trip() {
        let base = sample_workload();
        for workload in [
            Workload {
                metric: Metric::Latency,
                verb: Verb::Send,
                ..base
            },
            Workload {
                verb: Verb::Read,
                sizes: Sizes::ALL,
                ..base
            },
            Workload {
                amount: Amount::Duration(Duration::from_millis(1500)),
                qps: 16_384,
                ..base
            },
            Workload {
                tx_depth: 8192,
                window: 4096,
                slots: 8192,
                ..base
            },
            Workload {
                cq_mod: 100,
                inline: 512,
                fpdu: Some(1408),
                ..base
            },
            Workload {
                bidirectional: true,
                ..base
            },
            Workload {
                check: true,
                ..base
            },
            Workload { crc: true, ..base },
            Workload { imm: true, ..base },
            Workload {
                verb: Verb::Atomic,
                atomic: AtomicOp::FetchAdd,
                sizes: Sizes::One(8),
                ..base
            },
            Workload {
                verb: Verb::Atomic,
                atomic: AtomicOp::CompareSwap,
                sizes: Sizes::One(8),
                ..base
            },
            Workload {
                connection: Connection::Uc,
                mtu: Some(4096),
                ..base
            },
            Workload {
                verb: Verb::Send,
                connection: Connection::Ud,
                mtu: Some(1024),
                sizes: Sizes::UpTo(512),
                ..base
            },
        ] {
            let hello = Message::Hello {
                session: 1,
                workload,
            };
            assert_eq!(Message::decode(&hello.encode()), Ok(hello));
        }
    }

    #[test]
    fn what_travels_as_private_data_is_short_enough_for_every_transport() {
        for message in samples() {
            let len = message.encode().len();
            match message {
                Message::Hello { .. } | Message::Lane(_) => assert!(len <= 56, "{len}"),
                Message::Welcome { .. } | Message::LaneAccept(_) => assert!(len <= 196, "{len}"),
                _ => assert!(len <= MAX_LEN),
            }
        }
        assert_eq!(Message::Refuse("x".repeat(500)).encode().len(), 148);
    }

    #[test]
    fn layout_of_hello() {
        let bytes = Message::Hello {
            session: 0x0102_0304_0506_0708,
            workload: sample_workload(),
        }
        .encode();
        let mut expect = b"SVXC\x02\x01\x00\x38".to_vec();
        expect.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        expect.extend(5000_u64.to_be_bytes());
        for word in [65_536_u32, 128, 512, 1] {
            expect.extend(word.to_be_bytes());
        }
        for half in [1_u16, 0, 0, 0, 0] {
            expect.extend(half.to_be_bytes());
        }
        expect.extend([0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes, expect);
    }

    #[test]
    fn nonsense_is_refused() {
        let good = Message::Hello {
            session: 1,
            workload: sample_workload(),
        }
        .encode();
        let with = |at: usize, field: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + field.len()].copy_from_slice(field);
            Message::decode(&bytes)
        };
        assert_eq!(with(5, &[77]), Err(Malformed::Kind(77)));
        assert_eq!(with(16, &[0; 8]), Err(Malformed::Field("amount")));
        assert_eq!(with(24, &[0; 4]), Err(Malformed::Field("size")));
        assert_eq!(with(24, &[0xff; 4]), Err(Malformed::Field("size")));
        assert_eq!(with(28, &[0xff; 4]), Err(Malformed::Field("depth")));
        assert_eq!(with(32, &[0; 4]), Err(Malformed::Field("window")));
        assert_eq!(
            with(36, &[0xff; 4]),
            Err(Malformed::Field("number of slots"))
        );
        assert_eq!(
            with(40, &[0; 2]),
            Err(Malformed::Field("number of queue pairs"))
        );
        assert_eq!(with(50, &[9]), Err(Malformed::Field("metric")));
        assert_eq!(with(51, &[9]), Err(Malformed::Field("verb")));
        assert_eq!(with(52, &[1]), Err(Malformed::Field("path MTU")));
        assert_eq!(with(54, &[0, 1]), Err(Malformed::Field("path MTU")));
        let nonsense = Err(Malformed::Field("combination of options"));
        assert_eq!(with(51, &[3]), nonsense, "atomics of 64 KiB");
        assert_eq!(with(51, &[0, 2, 0, 4, 0]), nonsense, "written datagrams");
        assert_eq!(with(51, &[2, 2, 0, 4, 0]), nonsense, "long datagrams");
        assert_eq!(with(51, &[1, 1, 0, 4, 0]), nonsense, "unreliable reads");
    }

    #[test]
    fn refusals_are_read_in_every_version() {
        let refusal = Message::Refuse("no".into());
        let mut bytes = refusal.encode();
        assert_eq!(bytes[4], 1, "as the first version sent it");
        bytes[4] = 77;
        assert_eq!(Message::decode(&bytes), Ok(refusal));
        bytes[5] = 9;
        assert_eq!(Message::decode(&bytes), Err(Malformed::Version(77)));
    }
}
