//! What can go wrong, by whose fault, and the one place that maps each fault to what the peer
//! and the application are told.
//!
//! | fault | the peer is told | the application is told |
//! |---|---|---|
//! | [`Malformed`], [`PeerViolation`] | [`Fault::terminate_code`] | its requests are flushed |
//! | [`LocalFault`] | [`Fault::terminate_code`] | [`LocalFault::wc_status`] |
//! | [`Misuse`] | nothing | [`Misuse::errno`] |

use softverbs_wire::codec::Malformed;
use softverbs_wire::terminate::TerminateCode;

use crate::memory::MemoryFault;
use crate::wr::WcStatus;

/// A call that breaks the API's rules; never caused by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Misuse {
    /// The state of the queue pair does not allow it.
    #[error("not allowed in this state of the queue pair")]
    State,
    /// The queue is full.
    #[error("the queue is full")]
    QueueFull,
    /// More scatter/gather entries than the queue was created with.
    #[error("too many scatter/gather entries")]
    TooManySges,
    /// More inline data than the queue was created with.
    #[error("too much inline data")]
    TooMuchInline,
    /// The message is longer than the protocol allows.
    #[error("message too long")]
    MessageTooLong,
    /// The transport or this connection does not offer the operation.
    #[error("operation not supported on this connection")]
    NotSupported,
    /// An argument is out of its range.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// More private data than the frame can carry.
    #[error("too much private data")]
    PrivateDataTooLong,
}

impl Misuse {
    /// `ENOMEM`.
    pub const ENOMEM: i32 = 12;
    /// `EINVAL`.
    pub const EINVAL: i32 = 22;
    /// `EMSGSIZE`.
    pub const EMSGSIZE: i32 = 90;
    /// `EOPNOTSUPP`.
    pub const EOPNOTSUPP: i32 = 95;

    /// The error number that the verbs of rdma-core return for it (Linux).
    pub const fn errno(self) -> i32 {
        match self {
            Self::QueueFull => Self::ENOMEM,
            Self::State
            | Self::TooManySges
            | Self::TooMuchInline
            | Self::Invalid(_)
            | Self::PrivateDataTooLong => Self::EINVAL,
            Self::MessageTooLong => Self::EMSGSIZE,
            Self::NotSupported => Self::EOPNOTSUPP,
        }
    }
}

/// A fault, by whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    /// Bytes that are no frame.
    #[error("malformed frame: {0}")]
    Malformed(#[from] Malformed),
    /// Legal bytes, illegal behaviour of the peer.
    #[error("the peer broke the protocol: {0}")]
    Peer(#[from] PeerViolation),
    /// A local request could not be carried out.
    #[error("local request: {0}")]
    Local(#[from] LocalFault),
}

/// What the peer wanted to do with our memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemoteOperation {
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// An atomic operation.
    Atomic,
    /// Invalidation of one of our keys.
    Invalidate,
}

impl core::fmt::Display for RemoteOperation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Write => "RDMA Write",
            Self::Read => "RDMA Read",
            Self::Atomic => "atomic operation",
            Self::Invalidate => "invalidation",
        })
    }
}

/// What the peer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PeerViolation {
    /// It touched memory that it may not touch.
    #[error("{operation}: {fault}")]
    Protection {
        /// What it wanted to do there.
        operation: RemoteOperation,
        /// Why it may not.
        fault: MemoryFault,
    },
    /// DV is not 1.
    #[error("another DDP version")]
    DdpVersion {
        /// Whether in a tagged segment.
        tagged: bool,
    },
    /// RV is not 1.
    #[error("another RDMAP version")]
    RdmapVersion,
    /// An opcode that is unknown, was not negotiated, or does not belong here.
    #[error("unexpected opcode")]
    UnexpectedOpcode,
    /// A message on a queue that is not its opcode's.
    #[error("message on the wrong queue")]
    WrongQueue,
    /// A Send or Immediate Data, and no receive was posted.
    #[error("no receive posted for the message")]
    NoReceive,
    /// The sequence number is not that of the queue's next message.
    #[error("message sequence number out of order")]
    MessageSequence,
    /// The segment does not continue its untagged message.
    #[error("message offset out of order")]
    MessageOffset,
    /// The message exceeds its receive, or the size that its opcode prescribes.
    #[error("message longer than its buffer")]
    MessageTooLong,
    /// More Read Requests and Atomic Requests than it may have outstanding.
    #[error("more outstanding reads than agreed")]
    TooManyReads,
    /// A response that answers no request.
    #[error("response without a request")]
    UnexpectedResponse,
    /// A response that does not name the buffer of the oldest request.
    #[error("response to another buffer than requested")]
    ResponseStag,
    /// A Read Response that does not continue where it should, or goes on beyond its request.
    #[error("response outside of the requested buffer")]
    ResponseBounds,
    /// A Read Response that ended early.
    #[error("response shorter than requested")]
    ResponseShort,
    /// A segment that names another buffer than the segment of its message before.
    #[error("RDMA Write changed its STag in the middle")]
    WriteStag,
    /// A segment that does not continue the RDMA Write before it.
    #[error("RDMA Write changed its tagged offset in the middle")]
    WriteOffset,
    /// The address of an atomic operation is no multiple of 8.
    #[error("atomic operation on a misaligned address")]
    AtomicAlignment,
    /// A connection set-up frame of a revision that does not exist.
    #[error("unknown MPA revision {0}")]
    MpaRevision(u8),
    /// It intends more reads than we serve (RFC 6581 §9).
    #[error("not enough inbound read resources for the peer")]
    InsufficientIrd,
    /// Peer-to-peer mode without an RTR kind in common (RFC 6581 §9).
    #[error("no RTR frame kind in common")]
    NoMatchingRtr,
    /// It sent FPDUs before the connection was accepted, more than we care to keep.
    #[error("too much data before the connection was accepted")]
    EarlyData,
}

/// What was wrong with a local request, or with the receive that a message arrived for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LocalFault {
    /// It named memory that it may not touch.
    #[error(transparent)]
    Protection(#[from] MemoryFault),
    /// It was to bind a memory window that cannot be bound so.
    #[error("memory window: {0}")]
    Bind(MemoryFault),
    /// It asked for what this connection turned out not to offer, after it was posted.
    #[error("operation not supported on this connection")]
    NotSupported,
}

impl LocalFault {
    /// The status that the request completes with.
    pub const fn wc_status(self) -> WcStatus {
        match self {
            Self::Protection(_) => WcStatus::LocProtErr,
            Self::Bind(_) => WcStatus::MwBindErr,
            Self::NotSupported => WcStatus::LocQpOpErr,
        }
    }
}

/// Which headers of the offending segment a Terminate message includes (RFC 5040 §4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TerminateHeaders {
    /// None.
    None,
    /// Length and DDP header (M and D).
    Ddp,
    /// Length, DDP header and Read Request header (M, D and R).
    DdpAndRdmap,
}

impl Fault {
    /// The error that the peer is told.
    pub const fn terminate_code(&self) -> TerminateCode {
        use TerminateCode as Code;
        match self {
            Self::Malformed(malformed) => match malformed {
                Malformed::Crc => Code::MpaCrc,
                // RFC 5044 §8 has one code for a marker or a length that cannot be.
                Malformed::MarkerPointer | Malformed::Truncated => Code::MpaMarker,
                Malformed::TrailingOctets => Code::UntaggedTooLong,
                Malformed::DdpModel => Code::OperationUnexpectedOpcode,
                Malformed::MpaKey
                | Malformed::MpaPrivateDataTooLong
                | Malformed::MpaEnhancedTooShort => Code::MpaInvalidFrame,
            },
            Self::Peer(violation) => violation.terminate_code(),
            Self::Local(_) => Code::RdmapLocalCatastrophic,
        }
    }

    /// Which headers go with it.
    pub const fn terminate_headers(&self) -> TerminateHeaders {
        match self {
            Self::Malformed(Malformed::TrailingOctets) => TerminateHeaders::Ddp,
            Self::Malformed(_) | Self::Local(_) => TerminateHeaders::None,
            Self::Peer(violation) => violation.terminate_headers(),
        }
    }
}

impl PeerViolation {
    const fn terminate_code(self) -> TerminateCode {
        use TerminateCode as Code;
        match self {
            Self::Protection {
                operation: RemoteOperation::Write,
                fault,
            } => match fault {
                MemoryFault::InvalidKey => Code::TaggedInvalidStag,
                MemoryFault::Bounds => Code::TaggedBounds,
                MemoryFault::WrongPd => Code::TaggedStagNotAssociated,
                MemoryFault::Wrap => Code::TaggedToWrap,
                // DDP knows no access rights, RDMAP does.
                MemoryFault::Access => Code::ProtectionAccess,
                MemoryFault::CannotInvalidate => Code::ProtectionUnspecified,
            },
            Self::Protection {
                operation: RemoteOperation::Read | RemoteOperation::Atomic,
                fault,
            } => match fault {
                MemoryFault::InvalidKey => Code::ProtectionInvalidStag,
                MemoryFault::Bounds => Code::ProtectionBounds,
                MemoryFault::WrongPd => Code::ProtectionStagNotAssociated,
                MemoryFault::Wrap => Code::ProtectionToWrap,
                MemoryFault::Access => Code::ProtectionAccess,
                MemoryFault::CannotInvalidate => Code::ProtectionUnspecified,
            },
            Self::Protection {
                operation: RemoteOperation::Invalidate,
                ..
            } => Code::OperationCannotInvalidate,
            Self::DdpVersion { tagged: true } => Code::TaggedDdpVersion,
            Self::DdpVersion { tagged: false } => Code::UntaggedDdpVersion,
            Self::RdmapVersion => Code::OperationRdmapVersion,
            Self::UnexpectedOpcode | Self::UnexpectedResponse => Code::OperationUnexpectedOpcode,
            Self::WrongQueue => Code::UntaggedInvalidQueue,
            Self::NoReceive => Code::UntaggedNoBuffer,
            Self::MessageSequence => Code::UntaggedMsnRange,
            Self::MessageOffset => Code::UntaggedInvalidOffset,
            Self::MessageTooLong => Code::UntaggedTooLong,
            Self::TooManyReads | Self::ResponseShort | Self::AtomicAlignment => {
                Code::OperationCatastrophicStream
            }
            Self::ResponseStag | Self::WriteStag => Code::TaggedInvalidStag,
            Self::ResponseBounds | Self::WriteOffset => Code::TaggedBounds,
            Self::MpaRevision(_) => Code::MpaInvalidFrame,
            Self::InsufficientIrd => Code::MpaInsufficientIrd,
            Self::NoMatchingRtr => Code::MpaNoMatchingRtr,
            Self::EarlyData => Code::MpaLocalCatastrophic,
        }
    }

    /// RFC 5040 §4.8, Figure 10.
    const fn terminate_headers(self) -> TerminateHeaders {
        match self {
            Self::Protection {
                operation: RemoteOperation::Read,
                ..
            } => TerminateHeaders::DdpAndRdmap,
            Self::DdpVersion { .. }
            | Self::RdmapVersion
            | Self::UnexpectedOpcode
            | Self::UnexpectedResponse
            | Self::MpaRevision(_)
            | Self::InsufficientIrd
            | Self::NoMatchingRtr
            | Self::EarlyData => TerminateHeaders::None,
            _ => TerminateHeaders::Ddp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY_FAULTS: [MemoryFault; 6] = [
        MemoryFault::InvalidKey,
        MemoryFault::WrongPd,
        MemoryFault::Bounds,
        MemoryFault::Wrap,
        MemoryFault::Access,
        MemoryFault::CannotInvalidate,
    ];

    fn violations() -> Vec<PeerViolation> {
        use PeerViolation as V;
        let operations = [
            RemoteOperation::Write,
            RemoteOperation::Read,
            RemoteOperation::Atomic,
            RemoteOperation::Invalidate,
        ];
        let mut all: Vec<V> = operations
            .into_iter()
            .flat_map(|operation| MEMORY_FAULTS.map(|fault| V::Protection { operation, fault }))
            .collect();
        all.extend([
            V::DdpVersion { tagged: true },
            V::DdpVersion { tagged: false },
            V::RdmapVersion,
            V::UnexpectedOpcode,
            V::WrongQueue,
            V::NoReceive,
            V::MessageSequence,
            V::MessageOffset,
            V::MessageTooLong,
            V::TooManyReads,
            V::UnexpectedResponse,
            V::ResponseStag,
            V::ResponseBounds,
            V::ResponseShort,
            V::WriteStag,
            V::WriteOffset,
            V::AtomicAlignment,
            V::MpaRevision(3),
            V::InsufficientIrd,
            V::NoMatchingRtr,
            V::EarlyData,
        ]);
        all
    }

    /// The whole mapping as a table: a change of what peers are told is a change of this text.
    #[test]
    fn every_fault_has_its_terminate_code() {
        let mut faults: Vec<Fault> = Malformed::ALL.into_iter().map(Fault::Malformed).collect();
        faults.extend(violations().into_iter().map(Fault::Peer));
        faults.push(Fault::Local(LocalFault::Protection(MemoryFault::Bounds)));
        faults.push(Fault::Local(LocalFault::NotSupported));
        let table: String = faults
            .iter()
            .map(|fault| {
                let triple = fault.terminate_code().to_triple();
                let headers = match fault.terminate_headers() {
                    TerminateHeaders::None => "-",
                    TerminateHeaders::Ddp => "MD",
                    TerminateHeaders::DdpAndRdmap => "MDR",
                };
                let (layer, etype, code) = (triple.layer, triple.etype, triple.code);
                format!("{layer}/{etype}/{code:02x} {headers} {fault}\n")
            })
            .collect();
        assert_eq!(table, include_str!("fault_table.txt"));
    }

    #[test]
    fn local_faults_have_a_status() {
        for fault in MEMORY_FAULTS {
            assert_eq!(
                LocalFault::Protection(fault).wc_status(),
                WcStatus::LocProtErr
            );
            assert_eq!(LocalFault::Bind(fault).wc_status(), WcStatus::MwBindErr);
        }
        assert_eq!(LocalFault::NotSupported.wc_status(), WcStatus::LocQpOpErr);
    }

    #[test]
    fn misuse_has_an_errno() {
        assert_eq!(Misuse::QueueFull.errno(), 12);
        assert_eq!(Misuse::State.errno(), 22);
        assert_eq!(Misuse::TooManySges.errno(), 22);
        assert_eq!(Misuse::TooMuchInline.errno(), 22);
        assert_eq!(Misuse::MessageTooLong.errno(), 90);
        assert_eq!(Misuse::NotSupported.errno(), 95);
        assert_eq!(Misuse::Invalid("x").errno(), 22);
        assert_eq!(Misuse::PrivateDataTooLong.errno(), 22);
    }
}
