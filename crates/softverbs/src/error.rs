//! The one error type: what went wrong, by whose fault, and its `errno`.

use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, SocketAddr};

use nix::errno::Errno;
use softverbs_proto::fault::Misuse;
use softverbs_proto::memory::MemoryFault;

/// What every call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Whose fault an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The caller's: an argument or the order of the calls is wrong.
    Caller,
    /// This machine's: the operating system refused, or a limit is reached.
    System,
    /// The network's or the peer's.
    Network,
}

/// Why a call failed.
///
/// The text names the attribute or the system call that is to blame; [`errno`](Self::errno) is
/// what the C API reports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call that breaks the rules of the API.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// An argument or attribute has a value that is not allowed.
    #[error("{what}: {why}")]
    Invalid {
        /// Name of the argument or attribute.
        what: &'static str,
        /// What is wrong with it.
        why: Cow<'static, str>,
    },
    /// The device, or this version, does not offer it.
    #[error("{what}: {why}")]
    NotSupported {
        /// Name of the argument or attribute.
        what: &'static str,
        /// What is not offered.
        why: &'static str,
    },
    /// Registered memory that the call named may not be touched.
    #[error(transparent)]
    Memory(#[from] MemoryFault),
    /// The object is still in use by others.
    #[error("{what} is still in use")]
    Busy {
        /// What kind of object.
        what: &'static str,
    },
    /// Not one more of these.
    #[error("{what}: the limit of {limit} is reached")]
    Limit {
        /// Name of the limit, as in the device attributes.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// There is no memory of this size to be had.
    #[error("no memory for {len} octets")]
    NoMemory {
        /// How much was asked for.
        len: usize,
    },
    /// A system call failed.
    #[error("{call}: {}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// The system call.
        call: &'static str,
        /// Its `errno`.
        errno: i32,
    },
    /// No device belongs to this.
    #[error("no device for {what}")]
    NoDevice {
        /// The address or interface in question.
        what: String,
    },
    /// Another socket or identifier has this address.
    #[error("address {address} is in use")]
    AddrInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The address is not one of this machine's.
    #[error("address {address} is not an address of this machine")]
    AddrNotAvailable {
        /// The address.
        address: IpAddr,
    },
    /// The kernel knows no way to the destination.
    #[error("no route to {address}: {}", io::Error::from_raw_os_error(*errno))]
    Unreachable {
        /// The destination.
        address: SocketAddr,
        /// What the kernel said.
        errno: i32,
    },
    /// It took too long.
    #[error("{what} timed out")]
    Timeout {
        /// What was waited for.
        what: &'static str,
    },
    /// The peer answered and refused.
    #[error("the peer rejected the connection (status {status})")]
    Rejected {
        /// Status of the event: a negative `errno` (iWARP) or a reject reason (RoCE).
        status: i32,
    },
    /// Connecting ended in another event than the wanted one.
    #[error("{event} (status {status})")]
    Cm {
        /// Name of the event.
        event: &'static str,
        /// Its status: a negative `errno`, or a positive code of the protocol.
        status: i32,
    },
}

impl Error {
    /// An argument or attribute with a wrong value.
    pub(crate) fn invalid(what: &'static str, why: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid {
            what,
            why: why.into(),
        }
    }

    /// Something that is not offered.
    pub(crate) fn not_supported(what: &'static str, why: &'static str) -> Self {
        Self::NotSupported { what, why }
    }

    /// A system call that failed with `errno`.
    pub(crate) const fn os(call: &'static str, errno: i32) -> Self {
        Self::Os { call, errno }
    }

    /// For `map_err`: names the system call whose `nix` or `io` error this is.
    pub(crate) fn from_call<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::Os {
            call,
            errno: io_errno(&error.into()),
        }
    }

    /// Whose fault it is.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Misuse(_)
            | Self::Invalid { .. }
            | Self::NotSupported { .. }
            | Self::Memory(_)
            | Self::Busy { .. }
            | Self::AddrNotAvailable { .. } => ErrorKind::Caller,
            Self::Limit { .. }
            | Self::NoMemory { .. }
            | Self::Os { .. }
            | Self::NoDevice { .. }
            | Self::AddrInUse { .. } => ErrorKind::System,
            Self::Unreachable { .. }
            | Self::Timeout { .. }
            | Self::Rejected { .. }
            | Self::Cm { .. } => ErrorKind::Network,
        }
    }

    /// The `errno` that the C API reports for it; always positive.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Misuse(misuse) => misuse_errno(*misuse),
            Self::Memory(fault) => memory_errno(*fault),
            Self::Invalid { .. } => libc::EINVAL,
            Self::NotSupported { .. } => libc::EOPNOTSUPP,
            Self::Busy { .. } => libc::EBUSY,
            Self::Limit { .. } | Self::NoMemory { .. } => libc::ENOMEM,
            Self::Os { errno, .. } | Self::Unreachable { errno, .. } => *errno,
            Self::NoDevice { .. } => libc::ENODEV,
            Self::AddrInUse { .. } => libc::EADDRINUSE,
            Self::AddrNotAvailable { .. } => libc::EADDRNOTAVAIL,
            Self::Timeout { .. } => libc::ETIMEDOUT,
            // Whatever the reason was: librdmacm does the same for its synchronous calls.
            Self::Rejected { .. } => libc::ECONNREFUSED,
            Self::Cm { status, .. } => match *status {
                0 => libc::EIO,
                status => status.saturating_abs(),
            },
        }
    }
}

/// Checks an attribute against its limits.
pub(crate) fn in_range(what: &'static str, value: u32, least: u32, most: u32) -> Result<()> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(Error::invalid(
            what,
            format!("{value} is not in the range {least} to {most}"),
        ))
    }
}

const fn misuse_errno(misuse: Misuse) -> i32 {
    match misuse {
        Misuse::QueueFull => libc::ENOMEM,
        Misuse::MessageTooLong => libc::EMSGSIZE,
        Misuse::NotSupported => libc::EOPNOTSUPP,
        Misuse::State
        | Misuse::TooManySges
        | Misuse::TooMuchInline
        | Misuse::Invalid(_)
        | Misuse::PrivateDataTooLong => libc::EINVAL,
    }
}

const fn memory_errno(fault: MemoryFault) -> i32 {
    match fault {
        MemoryFault::Bounds | MemoryFault::Wrap => libc::EFAULT,
        MemoryFault::Access | MemoryFault::WrongPd => libc::EACCES,
        MemoryFault::InvalidKey | MemoryFault::CannotInvalidate => libc::EINVAL,
    }
}

/// The `errno` of an I/O error, also of one that std made up itself.
fn io_errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or_else(|| match error.kind() {
        io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        io::ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        io::ErrorKind::Interrupted => libc::EINTR,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        _ => libc::EIO,
    })
}

impl From<io::Error> for Error {
    /// One that was an [`Error`] before becomes the same again.
    fn from(error: io::Error) -> Self {
        let errno = io_errno(&error);
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(_) => Self::os("system call", errno),
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::os("system call", errno as i32)
    }
}

impl From<Error> for io::Error {
    /// Keeps the text and the kind; a system call's error keeps its `raw_os_error` too.
    fn from(error: Error) -> Self {
        let system = Self::from_raw_os_error(error.errno());
        match error {
            Error::Os { .. } => system,
            error => Self::new(system.kind(), error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_what_is_wrong() {
        let error = Error::invalid("max_send_sge", "64 is more than 32");
        assert_eq!(error.to_string(), "max_send_sge: 64 is more than 32");
        assert_eq!(error.errno(), libc::EINVAL);
        assert_eq!(error.kind(), ErrorKind::Caller);

        let error = Error::os("bind", libc::EACCES);
        assert!(
            error.to_string().starts_with("bind: Permission denied"),
            "{error}"
        );
        assert_eq!(error.errno(), libc::EACCES);
    }

    #[test]
    fn rejections_are_refusals_whatever_the_reason() {
        for status in [28, 8, -libc::ECONNRESET] {
            assert_eq!(Error::Rejected { status }.errno(), libc::ECONNREFUSED);
        }
        let cm = |status| Error::Cm {
            event: "UNREACHABLE",
            status,
        };
        assert_eq!(cm(-libc::ETIMEDOUT).errno(), libc::ETIMEDOUT);
        assert_eq!(cm(0).errno(), libc::EIO);
        assert_eq!(cm(i32::MIN).errno(), i32::MAX);
    }

    #[test]
    fn converts_to_and_from_io_errors() {
        let io: io::Error = Error::from(Misuse::QueueFull).into();
        assert_eq!(io.kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(io.to_string(), "the queue is full");
        assert_eq!(Error::from(io), Error::Misuse(Misuse::QueueFull));
        let io: io::Error = Error::os("bind", libc::EACCES).into();
        assert_eq!(io.raw_os_error(), Some(libc::EACCES));
        let error: Error = io::Error::from(io::ErrorKind::TimedOut).into();
        assert_eq!(error.errno(), libc::ETIMEDOUT);
        let error: Error = Errno::ENODEV.into();
        assert_eq!(error.errno(), libc::ENODEV);
        let call = Error::from_call::<Errno>("epoll_ctl")(Errno::EPERM);
        assert_eq!(call, Error::os("epoll_ctl", libc::EPERM));
    }
}
