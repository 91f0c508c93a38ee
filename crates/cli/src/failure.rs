//! What may go wrong, and the one place that turns it into an exit status.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use softverbs::WcStatus;

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The options do not fit together; known before anything is started.
    #[error("{0}")]
    Usage(String),
    /// The run failed: one line for the user.
    #[error("{0}")]
    Run(String),
    /// A program of the user's could not be started; the exit status is that of shells.
    #[error("{text}")]
    Exit {
        /// The exit status.
        status: u8,
        /// One line for the user.
        text: String,
    },
    /// The user pressed Ctrl-C, or asked for the end with SIGTERM.
    #[error("interrupted")]
    Interrupted,
    /// Whoever read our output has gone, as `head` does: not an error.
    #[error("nobody reads the output any more")]
    BrokenPipe,
}

/// Short for the results of this program.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure of the run, from anything that prints.
    pub(crate) fn run(text: impl Into<String>) -> Self {
        Self::Run(text.into())
    }

    /// A usage error, from anything that prints.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// Puts what was being done in front of the text of a failed run.
    pub(crate) fn while_doing(self, what: &str) -> Self {
        match self {
            Self::Run(text) => Self::Run(format!("{what}: {text}")),
            other => other,
        }
    }
}

impl From<softverbs::Error> for Failure {
    fn from(error: softverbs::Error) -> Self {
        Self::Run(error.to_string())
    }
}

/// Errors of writing the report; errors of other files are worded where they happen.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::BrokenPipe
        } else {
            Self::Run(format!("cannot write: {error}"))
        }
    }
}

/// The peer was silent for longer than the user wants to wait.
pub(crate) fn silence(limit: Duration) -> Failure {
    // Whole milliseconds say enough.
    let seconds = (limit.as_secs_f64() * 1e3).round() / 1e3;
    Failure::run(format!(
        "no answer from the peer for {seconds} s (--timeout)"
    ))
}

/// Why a work request failed, in words, and in those of libibverbs for whoever looks them up.
pub(crate) fn why(status: WcStatus) -> &'static str {
    match status {
        WcStatus::RetryExcErr => {
            "the connection to the peer was lost, it acknowledges nothing any more (transport retry \
             counter exceeded)"
        }
        WcStatus::RnrRetryExcErr => {
            "the peer had no receive posted for it (RNR retry counter exceeded)"
        }
        WcStatus::RemAccessErr => {
            "the peer does not allow this access to its memory (remote access error)"
        }
        WcStatus::RemOpErr => "the peer could not carry it out (remote operation error)",
        WcStatus::RemInvReqErr => "the peer refuses it (remote invalid request error)",
        WcStatus::LocLenErr => "a message was longer than its buffer (local length error)",
        WcStatus::LocProtErr => "its memory is not registered for this (local protection error)",
        WcStatus::LocAccessErr => "its memory may not be written (local access error)",
        WcStatus::LocQpOpErr => "this end could not carry it out (local QP operation error)",
        WcStatus::BadRespErr => "the peer's response makes no sense (bad response error)",
        WcStatus::WrFlushErr => "the connection to the peer was lost",
        WcStatus::FatalErr => "the connection broke the protocol (fatal error)",
        _ => "general error",
    }
}

/// The exit status: 0 for success and for a reader that went away, 1 for a failed run, 2 for
/// wrong usage.
pub(crate) fn exit_code(outcome: &Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) | Err(Failure::BrokenPipe) => ExitCode::SUCCESS,
        Err(Failure::Run(_) | Failure::Interrupted) => ExitCode::from(1),
        Err(Failure::Usage(_)) => ExitCode::from(2),
        Err(Failure::Exit { status, .. }) => ExitCode::from(*status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_status_by_kind() {
        let code = |outcome| format!("{:?}", exit_code(&outcome));
        let expect = |status: u8| format!("{:?}", ExitCode::from(status));
        assert_eq!(code(Ok(())), expect(0));
        assert_eq!(code(Err(Failure::BrokenPipe)), expect(0));
        assert_eq!(code(Err(Failure::run("x"))), expect(1));
        assert_eq!(code(Err(Failure::Interrupted)), expect(1));
        assert_eq!(code(Err(Failure::usage("x"))), expect(2));
    }

    #[test]
    fn a_broken_pipe_is_told_from_other_errors() {
        let pipe = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Failure::from(pipe), Failure::BrokenPipe));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(Failure::from(full), Failure::Run(_)));
    }

    #[test]
    fn context_goes_in_front_of_run_failures_only() {
        let failure = Failure::run("refused").while_doing("10.0.0.1:5");
        assert_eq!(failure.to_string(), "10.0.0.1:5: refused");
        let failure = Failure::Interrupted.while_doing("10.0.0.1:5");
        assert_eq!(failure.to_string(), "interrupted");
    }
}
