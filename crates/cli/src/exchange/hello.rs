//! Hello: the measurement that a client wants.

use std::time::Duration;

use super::message::Message;
use super::wire::{Malformed, Reader, Writer};
use crate::plan::{Amount, AtomicOp, Connection, Metric, Sizes, Verb, Workload};

/// Flags of a Hello.
mod flag {
    pub(super) const CHECK: u16 = 1;
    pub(super) const CRC: u16 = 2;
    pub(super) const BIDIRECTIONAL: u16 = 4;
    pub(super) const ALL_SIZES: u16 = 8;
    pub(super) const TIMED: u16 = 16;
    pub(super) const IMM: u16 = 32;
}

/// The fields of a Hello.
pub(super) fn encode_hello(session: u64, workload: &Workload) -> Writer {
    let (timed, amount) = match workload.amount {
        Amount::Iterations(count) => (0, count),
        Amount::Duration(time) => (
            flag::TIMED,
            u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        ),
    };
    let (all, size) = match workload.sizes {
        Sizes::One(size) => (0, size),
        Sizes::UpTo(largest) => (flag::ALL_SIZES, largest),
    };
    let flags = [
        (workload.check, flag::CHECK),
        (workload.crc, flag::CRC),
        (workload.bidirectional, flag::BIDIRECTIONAL),
        (workload.imm, flag::IMM),
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
            Verb::Atomic => match workload.atomic {
                AtomicOp::FetchAdd => 3,
                AtomicOp::CompareSwap => 4,
            },
        }])
        .put([match workload.connection {
            Connection::Rc => 0,
            Connection::Uc => 1,
            Connection::Ud => 2,
        }])
        .put([0])
        .put(workload.mtu.unwrap_or(0).to_be_bytes())
}

/// Reads the fields of a Hello: nonsense ends here.
pub(super) fn decode_hello(mut fields: Reader<'_>) -> Result<Message, Malformed> {
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
    let [metric, verb, connection, _] = fields.take()?;
    let mtu = fields.u16()?;
    let has = |bit| flags & bit != 0;
    // The server makes buffers and queues of these sizes: nonsense ends here.
    let limits = [
        ("amount", amount > 0),
        ("size", (1..=1 << 30).contains(&size)),
        ("depth", (1..=8192).contains(&tx_depth)),
        ("window", (1..=4096).contains(&window)),
        ("number of slots", (1..=8192).contains(&slots)),
        ("number of queue pairs", (1..=16_384).contains(&qps)),
        (
            "path MTU",
            matches!(mtu, 0 | 256 | 512 | 1024 | 2048 | 4096),
        ),
        ("path MTU", connection == 0 || mtu > 0),
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
            3 | 4 => Verb::Atomic,
            _ => return Err(Malformed::Field("verb")),
        },
        atomic: if verb == 4 {
            AtomicOp::CompareSwap
        } else {
            AtomicOp::FetchAdd
        },
        connection: match connection {
            0 => Connection::Rc,
            1 => Connection::Uc,
            2 => Connection::Ud,
            _ => return Err(Malformed::Field("connection")),
        },
        mtu: (mtu > 0).then_some(mtu),
        imm: has(flag::IMM),
        sizes: if has(flag::ALL_SIZES) {
            Sizes::UpTo(size)
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
    let possible = match workload.connection {
        Connection::Rc => workload.verb != Verb::Atomic || size == 8,
        Connection::Uc => matches!(workload.verb, Verb::Write | Verb::Send),
        Connection::Ud => workload.verb == Verb::Send && size <= mtu.into(),
    };
    if !possible {
        return Err(Malformed::Field("combination of options"));
    }
    Ok(Message::Hello { session, workload })
}
