//! What can be wrong with a request of the peer, and the one place that maps each fault to what
//! each side is told.
//!
//! | fault | the peer is told | our receive ends with | the queue pair |
//! |---|---|---|---|
//! | [`RequestFault::NotReady`] | RNR NAK | - | stays |
//! | a rule broken | NAK invalid request | flushed; `LOC_LEN_ERR` if it was too short | error |
//! | [`RequestFault::Protection`] | NAK remote access error | flushed | error |
//! | [`RequestFault::Receive`] | NAK remote operational error | `LOC_PROT_ERR` | error |
//! | [`RequestFault::Invalidate`] | nothing: its time-out says it | `REM_INV_REQ_ERR` | error |

use softverbs_wire::ib::{NakCode, Syndrome};
use softverbs_wire::num::RnrTimer;

use super::queue_pair::QpFailure;
use crate::fault::RemoteOperation;
use crate::memory::MemoryFault;
use crate::wr::WcStatus;

/// Why a request that is in its order is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub(super) enum RequestFault {
    #[error("no receive posted for the message")]
    NotReady,
    #[error("packet does not continue the message before it")]
    UnexpectedOpcode,
    #[error("operation not supported")]
    Unsupported,
    #[error("no such shared receive queue")]
    NoSrq,
    #[error("payload of another length than its place in the message demands")]
    PayloadLength,
    #[error("message of another length than announced")]
    MessageLength,
    #[error("message longer than its receive")]
    ReceiveTooShort,
    #[error("the access flags of the queue pair forbid it")]
    NotPermitted,
    #[error("atomic operation on a misaligned address")]
    Misaligned,
    #[error("more outstanding reads and atomics than agreed")]
    TooManyReads,
    #[error("{operation}: {fault}")]
    Protection {
        operation: RemoteOperation,
        fault: MemoryFault,
    },
    #[error("the receive: {0}")]
    Receive(MemoryFault),
    #[error("invalidation: {0}")]
    Invalidate(MemoryFault),
}

impl RequestFault {
    /// What the peer of a reliable connection is told.
    pub(super) const fn syndrome(self, rnr_timer: RnrTimer) -> Option<Syndrome> {
        Some(match self {
            Self::NotReady => Syndrome::rnr_nak(rnr_timer),
            Self::UnexpectedOpcode
            | Self::Unsupported
            | Self::NoSrq
            | Self::PayloadLength
            | Self::MessageLength
            | Self::ReceiveTooShort
            | Self::NotPermitted
            | Self::Misaligned
            | Self::TooManyReads => Syndrome::nak(NakCode::INVALID_REQUEST),
            Self::Protection { .. } => Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR),
            Self::Receive(_) => Syndrome::nak(NakCode::REMOTE_OPERATIONAL_ERROR),
            Self::Invalidate(_) => return None,
        })
    }

    /// What becomes of a reliable connection; nothing if it stays.
    pub(super) const fn failure(self) -> Option<QpFailure> {
        Some(match self {
            Self::NotReady => return None,
            Self::UnexpectedOpcode
            | Self::Unsupported
            | Self::NoSrq
            | Self::PayloadLength
            | Self::MessageLength
            | Self::ReceiveTooShort
            | Self::NotPermitted
            | Self::Misaligned
            | Self::TooManyReads => QpFailure::InvalidRequest,
            Self::Protection { .. } | Self::Invalidate(_) => QpFailure::RemoteAccess,
            Self::Receive(_) => QpFailure::Local,
        })
    }

    /// How the receive of the message in the middle ends.
    pub(super) const fn receive_status(self) -> WcStatus {
        match self {
            Self::ReceiveTooShort => WcStatus::LocLenErr,
            Self::Receive(_) => WcStatus::LocProtErr,
            Self::Invalidate(_) => WcStatus::RemInvReqErr,
            _ => WcStatus::WrFlushErr,
        }
    }
}

/// The status of a request that the peer refused for good; nothing for a code that only asks for
/// a repetition, or that means nothing.
pub(super) const fn refused_status(code: NakCode) -> Option<WcStatus> {
    Some(match code {
        NakCode::INVALID_REQUEST => WcStatus::RemInvReqErr,
        NakCode::REMOTE_ACCESS_ERROR => WcStatus::RemAccessErr,
        NakCode::REMOTE_OPERATIONAL_ERROR => WcStatus::RemOpErr,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole mapping as a table: a change of what peers are told is a change of this text.
    #[test]
    fn every_fault_has_its_answer() {
        let fault = MemoryFault::Bounds;
        let protection = |operation| RequestFault::Protection { operation, fault };
        let table: String = [
            RequestFault::NotReady,
            RequestFault::UnexpectedOpcode,
            RequestFault::Unsupported,
            RequestFault::NoSrq,
            RequestFault::PayloadLength,
            RequestFault::MessageLength,
            RequestFault::ReceiveTooShort,
            RequestFault::NotPermitted,
            RequestFault::Misaligned,
            RequestFault::TooManyReads,
            protection(RemoteOperation::Write),
            protection(RemoteOperation::Read),
            protection(RemoteOperation::Atomic),
            RequestFault::Receive(fault),
            RequestFault::Invalidate(fault),
        ]
        .into_iter()
        .map(|fault| {
            let syndrome = fault
                .syndrome(RnrTimer::new(12))
                .map_or_else(|| "-".into(), |syndrome| format!("{:02x}", syndrome.bits()));
            let failure = fault
                .failure()
                .map_or_else(|| "stays".into(), |failure| format!("{failure:?}"));
            let status = fault.receive_status();
            format!("{syndrome} {failure} {status:?} | {fault}\n")
        })
        .collect();
        assert_eq!(table, include_str!("nak_table.txt"));
    }

    #[test]
    fn refusals_are_statuses_and_sequence_errors_are_not() {
        let statuses: Vec<_> = (0..6)
            .map(|code| refused_status(NakCode::new(code)))
            .collect();
        assert_eq!(
            statuses,
            [
                None,
                Some(WcStatus::RemInvReqErr),
                Some(WcStatus::RemAccessErr),
                Some(WcStatus::RemOpErr),
                None,
                None
            ]
        );
    }
}
