//! The messages themselves; their order is told in `docs/exchange.md`.

use std::time::Duration;

use softverbs::Rkey;

use super::wire::{self, MAX_LEN, Malformed, Reader, Writer};
use crate::plan::{Amount, Metric, Sizes, Verb, Workload};

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

/// Flags of a Hello.
mod flag {
    pub(super) const CHECK: u16 = 1;
    pub(super) const CRC: u16 = 2;
    pub(super) const BIDIRECTIONAL: u16 = 4;
    pub(super) const ALL_SIZES: u16 = 8;
    pub(super) const TIMED: u16 = 16;
}

impl Message {
    const HELLO: u8 = 1;
    const WELCOME: u8 = 2;
    const REFUSE: u8 = 3;
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
            Self::Refuse(text) => Writer::new(Self::REFUSE).text(text, REFUSAL_LEN),
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
        let (kind, len) = wire::header(bytes)?;
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

fn encode_hello(session: u64, workload: &Workload) -> Writer {
    let (timed, amount) = match workload.amount {
        Amount::Iterations(count) => (0, count),
        Amount::Duration(time) => (
            flag::TIMED,
            u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        ),
    };
    let (all, size) = match workload.sizes {
        Sizes::One(size) => (0, size),
        Sizes::All => (flag::ALL_SIZES, workload.sizes.largest()),
    };
    let flags = [
        (workload.check, flag::CHECK),
        (workload.crc, flag::CRC),
        (workload.bidirectional, flag::BIDIRECTIONAL),
    ]
    .into_iter()
    .filter(|(set, _)| *set)
    .fold(timed | all, |flags, (_, bit)| flags | bit);
    Writer::new(Message::HELLO)
        .put(session.to_be_bytes())
        .put(amount.to_be_bytes())
        .put(size.to_be_bytes())
        .put(workload.tx_depth.to_be_bytes())
        .put(workload.window.to_be_bytes())
        .put(workload.slots.to_be_bytes())
        .put(workload.qps.to_be_bytes())
        .put(workload.cq_mod.to_be_bytes())
        .put(workload.inline.to_be_bytes())
        .put(workload.fpdu.unwrap_or(0).to_be_bytes())
        .put(flags.to_be_bytes())
        .put([match workload.metric {
            Metric::Bandwidth => 0,
            Metric::Latency => 1,
        }])
        .put([match workload.verb {
            Verb::Write => 0,
            Verb::Read => 1,
            Verb::Send => 2,
        }])
}

fn decode_hello(mut fields: Reader<'_>) -> Result<Message, Malformed> {
    let session = fields.u64()?;
    let amount = fields.u64()?;
    let size = fields.u32()?;
    let tx_depth = fields.u32()?;
    let window = fields.u32()?;
    let slots = fields.u32()?;
    let qps = fields.u16()?;
    let cq_mod = fields.u16()?;
    let inline = fields.u16()?;
    let fpdu = fields.u16()?;
    let flags = fields.u16()?;
    let [metric, verb] = fields.take()?;
    let has = |bit| flags & bit != 0;
    // The server makes buffers and queues of these sizes: nonsense ends here.
    let limits = [
        ("amount", amount > 0),
        ("size", (1..=1 << 30).contains(&size)),
        ("depth", (1..=8192).contains(&tx_depth)),
        ("window", (1..=4096).contains(&window)),
        ("number of slots", (1..=8192).contains(&slots)),
        ("number of queue pairs", (1..=16_384).contains(&qps)),
    ];
    if let Some((name, _)) = limits.into_iter().find(|(_, ok)| !ok) {
        return Err(Malformed::Field(name));
    }
    let workload = Workload {
        metric: match metric {
            0 => Metric::Bandwidth,
            1 => Metric::Latency,
            _ => return Err(Malformed::Field("metric")),
        },
        verb: match verb {
            0 => Verb::Write,
            1 => Verb::Read,
            2 => Verb::Send,
            _ => return Err(Malformed::Field("verb")),
        },
        sizes: if has(flag::ALL_SIZES) {
            Sizes::All
        } else {
            Sizes::One(size)
        },
        amount: if has(flag::TIMED) {
            Amount::Duration(Duration::from_millis(amount))
        } else {
            Amount::Iterations(amount)
        },
        qps,
        tx_depth,
        window,
        slots,
        cq_mod,
        inline,
        fpdu: (fpdu > 0).then_some(fpdu),
        bidirectional: has(flag::BIDIRECTIONAL),
        check: has(flag::CHECK),
        crc: has(flag::CRC),
    };
    Ok(Message::Hello { session, workload })
}

fn encode_keys(kind: u8, keys: &LaneKeys) -> Writer {
    Writer::new(kind)
        .put(keys.session.to_be_bytes())
        .put(keys.addr.to_be_bytes())
        .put(keys.rkey.get().to_be_bytes())
        .put(keys.index.to_be_bytes())
        .put([0; 2])
}

fn decode_keys(mut fields: Reader<'_>) -> Result<LaneKeys, Malformed> {
    Ok(LaneKeys {
        session: fields.u64()?,
        addr: fields.u64()?,
        rkey: Rkey::new(fields.u32()?),
        index: fields.u16()?,
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
        verified: fields.u64()?,
        wrong: fields.u64()?,
        complaint: fields.text(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::sample_workload;

    fn keys() -> LaneKeys {
        LaneKeys {
            session: 1 << 40,
            addr: 0x7f00_1234_5678_9abc,
            rkey: Rkey::new(0xdead_beef),
            index: 7,
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
                sizes: Sizes::All,
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
        let mut expect = b"SVXC\x01\x01\x00\x34".to_vec();
        expect.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        expect.extend(5000_u64.to_be_bytes());
        for word in [65_536_u32, 128, 512, 1] {
            expect.extend(word.to_be_bytes());
        }
        for half in [1_u16, 0, 0, 0, 0] {
            expect.extend(half.to_be_bytes());
        }
        expect.extend([0, 0]);
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
    }
}
