//! The states of a connection and the one table of its transitions.
//!
//! ```text
//!  active    REQ Sent -- REP --> REP Rcvd -- establish --> Established
//!            REQ Sent -- MRA --> REP Wait -- REP --> REP Rcvd
//!  passive   REQ Rcvd -- accept --> REP Sent -- RTU or first packet --> Established
//!  either    Established -- disconnect --> DREQ Sent -- DREP --> TimeWait
//!            Established -- DREQ --> DREQ Rcvd -- disconnect --> TimeWait
//!            Established -- the peer's process is gone --> TimeWait
//! ```

use core::fmt;

/// States of a connection (IBA vol 1 ch 12, communication establishment and release), and of a
/// resolution of a service ID. The names are those of Linux; they print as IBA spells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Active: the REQ is on its way.
    ReqSent,
    /// Active: the passive side has it, and takes its time.
    MraReqRcvd,
    /// Active: accepted by the passive side, our application has not confirmed.
    RepRcvd,
    /// Active: the same, and the passive side may be told so.
    MraRepSent,
    /// Passive: the application has not decided.
    ReqRcvd,
    /// Passive: the same, and the active side may be told so.
    MraReqSent,
    /// Passive: the REP is on its way. The queue pair is ready already.
    RepSent,
    /// Passive: the active side has it, and takes its time.
    MraRepRcvd,
    /// Connected.
    Established,
    /// Our DREQ is on its way.
    DreqSent,
    /// The peer disconnects, our application has not confirmed.
    DreqRcvd,
    /// Over, but packets of it may still be under way.
    Timewait,
    /// Our SIDR_REQ is on its way.
    SidrReqSent,
    /// The application has not answered a SIDR_REQ.
    SidrReqRcvd,
    /// No connection: its name is free.
    Idle,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::ReqSent,
        Self::MraReqRcvd,
        Self::RepRcvd,
        Self::MraRepSent,
        Self::ReqRcvd,
        Self::MraReqSent,
        Self::RepSent,
        Self::MraRepRcvd,
        Self::Established,
        Self::DreqSent,
        Self::DreqRcvd,
        Self::Timewait,
        Self::SidrReqSent,
        Self::SidrReqRcvd,
        Self::Idle,
    ];

    /// Whether a stranger's message made it, and nothing has shown yet that the stranger is there.
    pub const fn is_half_open(self) -> bool {
        matches!(
            self,
            Self::ReqRcvd | Self::MraReqSent | Self::RepSent | Self::MraRepRcvd | Self::SidrReqRcvd
        )
    }

    /// Whether the peer's queue pair belongs to this connection and to no other.
    pub const fn holds_remote_qp(self) -> bool {
        !matches!(
            self,
            Self::ReqSent
                | Self::MraReqRcvd
                | Self::Timewait
                | Self::SidrReqSent
                | Self::SidrReqRcvd
                | Self::Idle
        )
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ReqSent => "REQ Sent",
            Self::MraReqRcvd => "REP Wait",
            Self::RepRcvd => "REP Rcvd",
            Self::MraRepSent => "MRA(REP) Sent",
            Self::ReqRcvd => "REQ Rcvd",
            Self::MraReqSent => "MRA(REQ) Sent",
            Self::RepSent => "REP Sent",
            Self::MraRepRcvd => "MRA(REP) Rcvd",
            Self::Established => "Established",
            Self::DreqSent => "DREQ Sent",
            Self::DreqRcvd => "DREQ Rcvd",
            Self::Timewait => "TimeWait",
            Self::SidrReqSent => "SIDR_REQ Sent",
            Self::SidrReqRcvd => "SIDR_REQ Rcvd",
            Self::Idle => "Idle",
        })
    }
}

/// What can happen to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// The same REQ or SIDR_REQ once more.
    Req,
    /// An MRA of our REQ.
    MraReq,
    /// An MRA of our REP.
    MraRep,
    /// A REP, the first or the same once more.
    Rep,
    /// A REP that names a queue pair of another connection.
    StaleRep,
    /// An RTU.
    Rtu,
    /// A REJ.
    Rej,
    /// A REJ because of a stale connection, and we may try again.
    StaleRej,
    /// A DREQ.
    Dreq,
    /// A DREP.
    Drep,
    /// A LAP.
    Lap,
    /// A SIDR_REP.
    SidrRep,
    /// The first valid packet on the queue pair.
    CommEst,
    /// The queue pair migrated to another path.
    PathMig,
    /// The deadline has passed, and there are retries left.
    Retry,
    /// The deadline has passed.
    Timeout,
    /// The peer uses one of the connection's names for a new one: it has forgotten this one.
    Stale,
    /// The peer's process has ended: nobody sends or answers any more.
    PeerGone,
    /// Command: accept.
    Accept,
    /// Command: confirm a REP.
    Establish,
    /// Command: reject.
    Reject,
    /// Command: tell the peer that it takes longer.
    Mra,
    /// The endpoint's own wish to tell so, should the peer ask again.
    DelayedMra,
    /// Command: disconnect.
    Disconnect,
    /// Command: confirm a DREQ.
    DisconnectReply,
    /// Command: answer a SIDR_REQ.
    SidrReply,
    /// Command: forget a request without an answer.
    Drop,
    /// Command: forget the connection.
    Destroy,
}

impl Trigger {
    /// All of them.
    pub const ALL: [Self; 28] = [
        Self::Req,
        Self::MraReq,
        Self::MraRep,
        Self::Rep,
        Self::StaleRep,
        Self::Rtu,
        Self::Rej,
        Self::StaleRej,
        Self::Dreq,
        Self::Drep,
        Self::Lap,
        Self::SidrRep,
        Self::CommEst,
        Self::PathMig,
        Self::Retry,
        Self::Timeout,
        Self::Stale,
        Self::PeerGone,
        Self::Accept,
        Self::Establish,
        Self::Reject,
        Self::Mra,
        Self::DelayedMra,
        Self::Disconnect,
        Self::DisconnectReply,
        Self::SidrReply,
        Self::Drop,
        Self::Destroy,
    ];

    /// Whether the application did it: what does not fit is its mistake, not to be ignored.
    const fn is_command(self) -> bool {
        matches!(
            self,
            Self::PathMig
                | Self::Accept
                | Self::Establish
                | Self::Reject
                | Self::Mra
                | Self::Disconnect
                | Self::DisconnectReply
                | Self::SidrReply
                | Self::Drop
                | Self::Destroy
        )
    }
}

/// What is done in a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Nothing.
    Ignore,
    /// Tell the caller that this is not the moment.
    Refuse,
    /// Tell the caller that there is no alternate path to migrate to.
    RefuseMigration,
    /// Send the last message again.
    Resend,
    /// Wait as long as the MRA says.
    Extend,
    /// Keep an MRA for the case that the peer's message comes again.
    KeepMra,
    /// Send an MRA.
    SendMra,
    /// Take what the REP says, make the queue pair ready, tell the application.
    TakeRep,
    /// Open the gate, send the RTU, tell the application.
    SendRtu,
    /// Make the queue pair ready, its gate closed, then send the REP.
    SendRep,
    /// Open the gate, tell the application.
    Establish,
    /// Send a REJ with the application's reason.
    SendRej,
    /// Send a REJ: consumer reject, of the REQ or the REP.
    SendConsumerRej,
    /// Send a REJ: timeout of the REQ.
    SendTimeoutRej,
    /// Send a REJ: stale connection, of the REQ.
    RejectStaleReq,
    /// Send the REJ again that ended the connection, or one that says that it is over.
    RejectOver,
    /// Tell the application that it was rejected.
    Rejected,
    /// Tell the application that it was rejected: the connection is stale.
    RejectedStale,
    /// Send the REQ again, after a while.
    TryAgain,
    /// Send a REJ: timeout; tell the application.
    Unreachable,
    /// Tell the application that nobody answered.
    Unanswered,
    /// Flush the queue pair and send a DREQ.
    SendDreq,
    /// Tell the application that the peer disconnects.
    PeerDisconnects,
    /// Flush the queue pair, tell the application that the connection is over.
    EndAlone,
    /// Flush the queue pair and send a DREP.
    SendDrep,
    /// Send a DREP, tell the application that the connection is over.
    CrossDrep,
    /// Send a DREP.
    AnswerDreq,
    /// Tell the application that the connection is over, by the peer's answer.
    Disconnected,
    /// Tell the application that the connection is over, without an answer.
    DisconnectTimeout,
    /// Tell the application that the queue pair may be used again.
    TimewaitExit,
    /// Send an APR: alternate paths are not supported.
    RejectPath,
    /// Send a SIDR_REP with the application's answer.
    SendSidrRep,
    /// Send a SIDR_REP: rejected.
    RefuseSidr,
    /// Tell the application the answer.
    TakeSidrRep,
    /// Nobody wants to know the rest.
    Orphan,
}

/// What follows from a trigger in a state: what to do, and the next state.
///
/// What is not in the table is ignored if the peer did it or time did, and refused if the
/// application did it.
pub const fn transition(state: State, trigger: Trigger) -> (Action, State) {
    use Action as A;
    use State as S;
    use Trigger as T;
    match (state, trigger) {
        // Establishment, active side.
        (S::ReqSent, T::MraReq) => (A::Extend, S::MraReqRcvd),
        (S::ReqSent | S::MraReqRcvd, T::Rep) => (A::TakeRep, S::RepRcvd),
        (S::RepRcvd, T::DelayedMra) => (A::KeepMra, S::MraRepSent),
        (S::RepRcvd | S::MraRepSent, T::Mra) => (A::SendMra, S::MraRepSent),
        (S::RepRcvd | S::MraRepSent, T::Establish) => (A::SendRtu, S::Established),
        // The REP again: our MRA or RTU was lost. An RTU has no timer, this is its retry.
        (S::MraRepSent | S::Established, T::Rep) => (A::Resend, state),

        // Establishment, passive side.
        (S::ReqRcvd, T::DelayedMra) => (A::KeepMra, S::MraReqSent),
        (S::ReqRcvd | S::MraReqSent, T::Mra) => (A::SendMra, S::MraReqSent),
        (S::MraReqSent, T::Req) => (A::Resend, state),
        (S::ReqRcvd | S::MraReqSent, T::Accept) => (A::SendRep, S::RepSent),
        (S::RepSent, T::MraRep) => (A::Extend, S::MraRepRcvd),
        // The RTU and the first packet say the same; the later of them finds nothing to do.
        (S::RepSent | S::MraRepRcvd, T::Rtu | T::CommEst) => (A::Establish, S::Established),

        // Rejection by the peer.
        (S::ReqSent | S::MraReqRcvd, T::StaleRej | T::StaleRep) => (A::TryAgain, S::ReqSent),
        (
            S::ReqSent | S::MraReqRcvd | S::ReqRcvd | S::MraReqSent | S::RepSent | S::MraRepRcvd,
            T::Rej,
        ) => (A::Rejected, S::Idle),
        (S::RepRcvd | S::MraRepSent | S::Established, T::Rej) => (A::Rejected, S::Timewait),
        (S::DreqSent, T::Rej) => (A::Disconnected, S::Timewait),

        // Rejection by us.
        (S::ReqRcvd | S::MraReqSent, T::Reject) => (A::SendRej, S::Idle),
        (S::RepSent | S::MraRepRcvd | S::RepRcvd | S::MraRepSent, T::Reject) => {
            (A::SendRej, S::Timewait)
        }
        (S::ReqRcvd | S::MraReqSent | S::SidrReqRcvd, T::Drop) => (A::Orphan, S::Idle),

        // Release. A peer whose RTU was lost may disconnect, and so may we before it came.
        (S::Established | S::RepSent | S::MraRepRcvd, T::Disconnect) => (A::SendDreq, S::DreqSent),
        (S::Established | S::RepSent | S::MraRepRcvd, T::Dreq) => (A::PeerDisconnects, S::DreqRcvd),
        (S::DreqRcvd, T::Disconnect | T::DisconnectReply) => (A::SendDrep, S::Timewait),
        (S::DreqSent | S::Timewait, T::Disconnect) => (A::Ignore, state),
        (S::Timewait, T::DisconnectReply) => (A::Ignore, state),
        (S::DreqSent, T::Drep) => (A::Disconnected, S::Timewait),
        (S::DreqSent, T::Dreq) => (A::CrossDrep, S::Timewait),
        // Our DREP was lost, or crossed the peer's DREQ.
        (S::Timewait, T::Dreq) => (A::AnswerDreq, state),
        // The peer has not heard of the end, and believes in the connection: our REJ was lost, or
        // our DREQ overtook the REP. No timer of its own would tell it.
        (S::Timewait, T::Rep | T::Rtu) => (A::RejectOver, state),
        // A REQ of this connection that lived longer than the connection.
        (S::Timewait, T::Req) => (A::RejectStaleReq, state),

        // The peer has forgotten the connection.
        (S::Established, T::Stale) => (A::SendDreq, S::DreqSent),
        (S::ReqRcvd | S::MraReqSent | S::RepSent | S::MraRepRcvd, T::Stale) => {
            (A::RejectedStale, S::Idle)
        }
        (S::RepRcvd | S::MraRepSent, T::Stale) => (A::RejectedStale, S::Timewait),

        // The peer has died, which is as good as a DREQ and its answer to ours. What is not
        // established yet ends by its retries.
        (S::Established, T::PeerGone) => (A::EndAlone, S::Timewait),
        (S::DreqSent, T::PeerGone) => (A::Disconnected, S::Timewait),

        // Alternate paths.
        (S::Established, T::Lap) => (A::RejectPath, state),
        (S::Established, T::PathMig) => (A::RefuseMigration, state),

        // Time.
        (
            S::ReqSent | S::MraReqRcvd | S::RepSent | S::MraRepRcvd | S::DreqSent | S::SidrReqSent,
            T::Retry,
        ) => (A::Resend, state),
        (S::ReqSent | S::MraReqRcvd | S::RepSent | S::MraRepRcvd, T::Timeout) => {
            (A::Unreachable, S::Idle)
        }
        (S::DreqSent, T::Timeout) => (A::DisconnectTimeout, S::Timewait),
        (S::SidrReqSent, T::Timeout) => (A::Unanswered, S::Idle),
        (S::Timewait, T::Timeout) => (A::TimewaitExit, S::Idle),

        // Resolution of service IDs.
        (S::SidrReqSent, T::SidrRep) => (A::TakeSidrRep, S::Idle),
        (S::SidrReqRcvd, T::SidrReply) => (A::SendSidrRep, S::Idle),
        (S::SidrReqRcvd, T::Destroy) => (A::RefuseSidr, S::Idle),
        (S::SidrReqSent, T::Destroy) => (A::Orphan, S::Idle),

        // The application forgets the connection; the peer must learn of it.
        (S::ReqSent | S::MraReqRcvd, T::Destroy) => (A::SendTimeoutRej, S::Idle),
        (S::ReqRcvd | S::MraReqSent, T::Destroy) => (A::SendConsumerRej, S::Idle),
        (S::RepSent | S::MraRepRcvd | S::RepRcvd | S::MraRepSent, T::Destroy) => {
            (A::SendConsumerRej, S::Timewait)
        }
        (S::Established, T::Destroy) => (A::SendDreq, S::DreqSent),
        (S::DreqRcvd, T::Destroy) => (A::SendDrep, S::Timewait),
        (S::DreqSent | S::Timewait, T::Destroy) => (A::Orphan, state),
        (S::Idle, T::Destroy) => (A::Ignore, state),

        _ if trigger.is_command() => (A::Refuse, state),
        _ => (A::Ignore, state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole matrix: a change of the behaviour is a change of this text.
    #[test]
    fn matrix() {
        let mut matrix = String::new();
        for state in State::ALL {
            matrix.push_str(&format!("{state}\n"));
            for trigger in Trigger::ALL {
                let line = match transition(state, trigger) {
                    (Action::Ignore, next) if next == state => continue,
                    (Action::Refuse, next) if next == state => {
                        format!("    {:16}refused\n", format!("{trigger:?}"))
                    }
                    (action, next) => {
                        let (trigger, action) = (format!("{trigger:?}"), format!("{action:?}"));
                        format!("    {trigger:16}{action:18}-> {next}\n")
                    }
                };
                matrix.push_str(&line);
            }
        }
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cm/state_matrix.txt");
            std::fs::write(path, &matrix).expect("the snapshot is written");
        }
        assert_eq!(matrix, include_str!("state_matrix.txt"));
    }

    #[test]
    fn nothing_leaves_idle() {
        for trigger in Trigger::ALL {
            let (action, next) = transition(State::Idle, trigger);
            assert!(matches!(action, Action::Ignore | Action::Refuse));
            assert_eq!(next, State::Idle);
        }
    }

    /// Whatever a peer or an application does in it, a state that waits for the peer can end by
    /// time alone.
    #[test]
    fn waiting_for_the_peer_ends() {
        for state in State::ALL {
            let waits = transition(state, Trigger::Retry).0 == Action::Resend;
            let (action, next) = transition(state, Trigger::Timeout);
            assert_eq!(
                action != Action::Ignore,
                waits || state == State::Timewait,
                "{state}"
            );
            assert!(action == Action::Ignore || next == State::Idle || next == State::Timewait);
        }
    }

    /// Destroying is possible everywhere, and leads to the end without the application.
    #[test]
    fn destroying_ends_every_state() {
        for state in State::ALL {
            let (_, next) = transition(state, Trigger::Destroy);
            assert!(
                matches!(next, State::Idle | State::Timewait | State::DreqSent),
                "{state}"
            );
        }
    }
}
