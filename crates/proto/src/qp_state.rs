//! The QP state machine as one table: which attributes a transition needs and takes.
//!
//! [`check`] is the rule behind `modify_qp` on RoCE, [`check_iwarp`] the one on iWARP, where the
//! connection manager brings up a queue pair and RTR and RTS carry nothing.

use core::fmt;

use bitflags::bitflags;

/// States of a queue pair; the values are those of `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QpState {
    /// Nothing may be posted.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained.
    Sqd = 4,
    /// Send queue error.
    Sqe = 5,
    /// Error.
    Err = 6,
}

impl QpState {
    /// All states, in the order of their values.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    /// The state with this value of `enum ibv_qp_state`.
    pub fn from_value(value: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u32 == value)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

/// Types of queue pairs; the values are those of `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Sending end of an extended reliable connection (XRC, IBA annex A14).
    XrcSend = 9,
    /// Its receiving end: what comes is for the shared receive queue that it names.
    XrcRecv = 10,
}

impl QpType {
    /// All types, in the order of their values.
    pub const ALL: [Self; 5] = [Self::Rc, Self::Uc, Self::Ud, Self::XrcSend, Self::XrcRecv];

    /// Whether what is sent is acknowledged.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcSend => "XRC_SEND",
            Self::XrcRecv => "XRC_RECV",
        })
    }
}

bitflags! {
    /// Which attributes a `modify_qp` sets; the values are those of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpAttrMask: u32 {
        /// The state to go to.
        const STATE = 1;
        /// The state that the caller believes to be the present one.
        const CUR_STATE = 1 << 1;
        /// Whether a drained send queue raises an event.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// What peers may do.
        const ACCESS_FLAGS = 1 << 3;
        /// Index in the port's table of partition keys.
        const PKEY_INDEX = 1 << 4;
        /// Port of the device.
        const PORT = 1 << 5;
        /// Key of datagrams.
        const QKEY = 1 << 6;
        /// Address of the peer.
        const AV = 1 << 7;
        /// Largest packet on the path.
        const PATH_MTU = 1 << 8;
        /// How long to wait for an acknowledgement.
        const TIMEOUT = 1 << 9;
        /// How often to retransmit.
        const RETRY_CNT = 1 << 10;
        /// How often to try again when the peer has no receive.
        const RNR_RETRY = 1 << 11;
        /// First packet sequence number of the peer.
        const RQ_PSN = 1 << 12;
        /// Reads and atomics that we may have outstanding.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Address of the peer on another path.
        const ALT_PATH = 1 << 14;
        /// How long a peer has to wait when we have no receive.
        const MIN_RNR_TIMER = 1 << 15;
        /// Our first packet sequence number.
        const SQ_PSN = 1 << 16;
        /// Reads and atomics that the peer may have outstanding.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// State of the migration to the other path.
        const PATH_MIG_STATE = 1 << 18;
        /// Sizes of the queues.
        const CAP = 1 << 19;
        /// Queue pair number of the peer.
        const DEST_QPN = 1 << 20;
        /// Upper limit of the rate.
        const RATE_LIMIT = 1 << 25;
    }
}

impl fmt::Display for QpAttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// Why a `modify_qp` is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    /// There is no such transition.
    #[error("{qp_type}: no transition from {from} to {to}")]
    Illegal {
        /// Type of the queue pair.
        qp_type: QpType,
        /// Present state.
        from: QpState,
        /// Wanted state.
        to: QpState,
    },
    /// The transition needs more attributes.
    #[error("{qp_type} {from} to {to}: missing {missing}")]
    Missing {
        /// Type of the queue pair.
        qp_type: QpType,
        /// Present state.
        from: QpState,
        /// Wanted state.
        to: QpState,
        /// What it lacks.
        missing: QpAttrMask,
    },
    /// The transition does not take some of the attributes.
    #[error("{qp_type} {from} to {to}: not allowed {excess}")]
    NotAllowed {
        /// Type of the queue pair.
        qp_type: QpType,
        /// Present state.
        from: QpState,
        /// Wanted state.
        to: QpState,
        /// What is too much.
        excess: QpAttrMask,
    },
}

/// The attributes of one transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Must be set.
    pub required: QpAttrMask,
    /// May be set.
    pub optional: QpAttrMask,
}

/// One line of the table.
struct Transition {
    qp_type: QpType,
    from: QpState,
    to: QpState,
    attributes: Attributes,
}

/// Declares the table. A line reads `types, states => state: required; optional`; a name stands
/// for the attribute of that name.
macro_rules! transitions {
    ($($types:tt, $from:ident => $to:ident: [$($required:ident)*] [$($optional:ident)*];)*) => {
        &[$(transitions!(@types $types, $from, $to,
            QpAttrMask::empty()$(.union(QpAttrMask::$required))*,
            QpAttrMask::empty()$(.union(QpAttrMask::$optional))*)),*]
    };
    (@types $qp_type:ident, $from:ident, $to:ident, $required:expr, $optional:expr) => {
        Transition {
            qp_type: QpType::$qp_type,
            from: QpState::$from,
            to: QpState::$to,
            attributes: Attributes { required: $required, optional: $optional },
        }
    };
}

/// Every transition beyond those that are possible from everywhere: to RESET, and (but from
/// RESET) to ERR. A reliable queue pair has no SQE: its errors lead to ERR.
#[rustfmt::skip]
const TABLE: &[Transition] = transitions! {
    Rc, Reset => Init: [PKEY_INDEX PORT ACCESS_FLAGS] [];
    Uc, Reset => Init: [PKEY_INDEX PORT ACCESS_FLAGS] [];
    Ud, Reset => Init: [PKEY_INDEX PORT QKEY] [];

    Rc, Init => Init: [] [PKEY_INDEX PORT ACCESS_FLAGS];
    Uc, Init => Init: [] [PKEY_INDEX PORT ACCESS_FLAGS];
    Ud, Init => Init: [] [PKEY_INDEX PORT QKEY];

    Rc, Init => Rtr: [AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER]
                     [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
    Uc, Init => Rtr: [AV PATH_MTU DEST_QPN RQ_PSN] [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
    Ud, Init => Rtr: [] [PKEY_INDEX QKEY];

    Rc, Rtr => Rts: [TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC]
                    [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
    Uc, Rtr => Rts: [SQ_PSN] [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
    Ud, Rtr => Rts: [SQ_PSN] [CUR_STATE QKEY];

    Rc, Rts => Rts: [] [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
    Uc, Rts => Rts: [] [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
    Ud, Rts => Rts: [] [CUR_STATE QKEY];

    Rc, Rts => Sqd: [] [EN_SQD_ASYNC_NOTIFY];
    Uc, Rts => Sqd: [] [EN_SQD_ASYNC_NOTIFY];
    Ud, Rts => Sqd: [] [EN_SQD_ASYNC_NOTIFY];

    Rc, Sqd => Rts: [] [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
    Uc, Sqd => Rts: [] [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
    Ud, Sqd => Rts: [] [CUR_STATE QKEY];

    Rc, Sqd => Sqd: [] [PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC
                        ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE];
    Uc, Sqd => Sqd: [] [AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE];
    Ud, Sqd => Sqd: [] [PKEY_INDEX QKEY];

    XrcSend, Reset => Init: [PKEY_INDEX PORT ACCESS_FLAGS] [];
    XrcSend, Init => Init: [] [PKEY_INDEX PORT ACCESS_FLAGS];
    XrcSend, Init => Rtr: [AV PATH_MTU DEST_QPN RQ_PSN] [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
    XrcSend, Rtr => Rts: [TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC]
                         [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
    XrcSend, Rts => Rts: [] [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
    XrcSend, Rts => Sqd: [] [EN_SQD_ASYNC_NOTIFY];
    XrcSend, Sqd => Rts: [] [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
    XrcSend, Sqd => Sqd: [] [PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ALT_PATH
                             ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE];

    XrcRecv, Reset => Init: [PKEY_INDEX PORT ACCESS_FLAGS] [];
    XrcRecv, Init => Init: [] [PKEY_INDEX PORT ACCESS_FLAGS];
    XrcRecv, Init => Rtr: [AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER]
                          [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
    XrcRecv, Rtr => Rts: [TIMEOUT SQ_PSN]
                         [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
    XrcRecv, Rts => Rts: [] [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
    XrcRecv, Rts => Sqd: [] [EN_SQD_ASYNC_NOTIFY];
    XrcRecv, Sqd => Rts: [] [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
    XrcRecv, Sqd => Sqd: [] [PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX
                             MIN_RNR_TIMER PATH_MIG_STATE];

    Uc, Sqe => Rts: [] [CUR_STATE ACCESS_FLAGS];
    Ud, Sqe => Rts: [] [CUR_STATE QKEY];
};

/// The attributes of a transition, or `None` if there is no such transition.
pub fn attributes(qp_type: QpType, from: QpState, to: QpState) -> Option<Attributes> {
    const NOTHING: Attributes = Attributes {
        required: QpAttrMask::empty(),
        optional: QpAttrMask::empty(),
    };
    match (from, to) {
        (QpState::Sqe, _) if qp_type.is_reliable() => None,
        (_, QpState::Reset) => Some(NOTHING),
        (QpState::Reset, QpState::Err) => None,
        (_, QpState::Err) => Some(NOTHING),
        _ => TABLE
            .iter()
            .find(|line| line.qp_type == qp_type && line.from == from && line.to == to)
            .map(|line| line.attributes),
    }
}

/// Whether a `modify_qp` with the attributes in `mask` may lead from `from` to `to`. Without
/// `STATE` in the mask, `to` is the present state.
pub fn check(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    mask: QpAttrMask,
) -> Result<(), TransitionError> {
    let Some(Attributes { required, optional }) = attributes(qp_type, from, to) else {
        return Err(TransitionError::Illegal { qp_type, from, to });
    };
    let missing = required - mask;
    if !missing.is_empty() {
        return Err(TransitionError::Missing {
            qp_type,
            from,
            to,
            missing,
        });
    }
    let excess = mask - required - optional - QpAttrMask::STATE;
    if !excess.is_empty() {
        return Err(TransitionError::NotAllowed {
            qp_type,
            from,
            to,
            excess,
        });
    }
    Ok(())
}

/// The same for iWARP, whose only type is RC. The states are those of InfiniBand, but what they
/// carry there means nothing here: addresses and sequence numbers belong to TCP, and depths to the
/// connection manager. So nothing is required, and everything that has a meaning somewhere is
/// tolerated.
pub fn check_iwarp(from: QpState, to: QpState, mask: QpAttrMask) -> Result<(), TransitionError> {
    let qp_type = QpType::Rc;
    if from != to && attributes(qp_type, from, to).is_none() {
        return Err(TransitionError::Illegal { qp_type, from, to });
    }
    let excess = mask - QpAttrMask::all();
    if !excess.is_empty() {
        return Err(TransitionError::NotAllowed {
            qp_type,
            from,
            to,
            excess,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_transition() -> impl Iterator<Item = (QpType, QpState, QpState)> {
        QpType::ALL.into_iter().flat_map(|qp_type| {
            QpState::ALL
                .into_iter()
                .flat_map(move |from| QpState::ALL.into_iter().map(move |to| (qp_type, from, to)))
        })
    }

    /// The whole matrix: a change of the rules is a change of this text.
    #[test]
    fn matrix() {
        let matrix: String = every_transition()
            .map(|(qp_type, from, to)| match attributes(qp_type, from, to) {
                None => format!("{qp_type} {from:5} {to:5} -\n"),
                Some(Attributes { required, optional }) => {
                    let line = format!(
                        "{qp_type} {from:5} {to:5} needs [{required}] takes [{optional}]\n"
                    );
                    line
                }
            })
            .collect();
        assert_eq!(matrix, include_str!("qp_state_matrix.txt"));
    }

    /// Checks `check` against the table by trying each single attribute on each transition.
    #[test]
    fn check_agrees_with_the_table() {
        for (qp_type, from, to) in every_transition() {
            let Some(Attributes { required, optional }) = attributes(qp_type, from, to) else {
                let error = TransitionError::Illegal { qp_type, from, to };
                for mask in [QpAttrMask::empty(), QpAttrMask::STATE, QpAttrMask::all()] {
                    assert_eq!(check(qp_type, from, to, mask), Err(error));
                }
                continue;
            };
            assert_eq!(
                check(qp_type, from, to, required | QpAttrMask::STATE),
                Ok(())
            );
            assert_eq!(check(qp_type, from, to, required | optional), Ok(()));
            for one in QpAttrMask::all().iter() {
                let without = check(qp_type, from, to, (required | optional) - one);
                if required.contains(one) {
                    let missing = one;
                    let error = TransitionError::Missing {
                        qp_type,
                        from,
                        to,
                        missing,
                    };
                    assert_eq!(without, Err(error));
                } else {
                    assert_eq!(without, Ok(()));
                }
                let with = check(qp_type, from, to, required | one);
                if (required | optional | QpAttrMask::STATE).contains(one) {
                    assert_eq!(with, Ok(()));
                } else {
                    let excess = one;
                    let error = TransitionError::NotAllowed {
                        qp_type,
                        from,
                        to,
                        excess,
                    };
                    assert_eq!(with, Err(error));
                }
            }
        }
    }

    #[test]
    fn no_line_twice_and_none_that_is_not_reached() {
        for (at, line) in TABLE.iter().enumerate() {
            let same = |other: &&Transition| {
                (other.qp_type, other.from, other.to) == (line.qp_type, line.from, line.to)
            };
            assert_eq!(TABLE.iter().filter(same).count(), 1, "line {at}");
            assert_eq!(
                attributes(line.qp_type, line.from, line.to),
                Some(line.attributes)
            );
            assert!((line.attributes.required & line.attributes.optional).is_empty());
        }
    }

    #[test]
    fn iwarp_tolerates_what_infiniband_requires() {
        let state = QpAttrMask::STATE;
        assert_eq!(check_iwarp(QpState::Init, QpState::Rtr, state), Ok(()));
        assert_eq!(check_iwarp(QpState::Rtr, QpState::Rts, state), Ok(()));
        let full = state | QpAttrMask::AV | QpAttrMask::RQ_PSN | QpAttrMask::MAX_DEST_RD_ATOMIC;
        assert_eq!(check_iwarp(QpState::Init, QpState::Rtr, full), Ok(()));
        assert!(check(QpType::Rc, QpState::Init, QpState::Rtr, state).is_err());
        assert!(matches!(
            check_iwarp(QpState::Reset, QpState::Rts, state),
            Err(TransitionError::Illegal { .. })
        ));
        assert!(matches!(
            check_iwarp(
                QpState::Init,
                QpState::Rtr,
                QpAttrMask::from_bits_retain(1 << 30)
            ),
            Err(TransitionError::NotAllowed { .. })
        ));
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let text = |result: Result<(), TransitionError>| result.unwrap_err().to_string();
        assert_eq!(
            text(check(
                QpType::Rc,
                QpState::Reset,
                QpState::Rts,
                QpAttrMask::STATE
            )),
            "RC: no transition from RESET to RTS"
        );
        assert_eq!(
            text(check(
                QpType::Uc,
                QpState::Init,
                QpState::Rtr,
                QpAttrMask::AV
            )),
            "UC INIT to RTR: missing PATH_MTU | RQ_PSN | DEST_QPN"
        );
        let mask = QpAttrMask::PORT | QpAttrMask::PKEY_INDEX | QpAttrMask::QKEY | QpAttrMask::AV;
        assert_eq!(
            text(check(QpType::Ud, QpState::Reset, QpState::Init, mask)),
            "UD RESET to INIT: not allowed AV"
        );
    }

    #[test]
    fn values_are_those_of_rdma_core() {
        for state in QpState::ALL {
            assert_eq!(QpState::from_value(state as u32), Some(state));
        }
        assert_eq!(QpState::from_value(7), None);
        assert_eq!(QpAttrMask::DEST_QPN.bits(), 0x0010_0000);
        assert_eq!(QpAttrMask::RATE_LIMIT.bits(), 0x0200_0000);
    }
}
