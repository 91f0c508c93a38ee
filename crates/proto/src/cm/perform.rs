//! The actions of the transition table.

use softverbs_wire::ib::cm::{ApStatus, Lap, Mad, MessageKind, Mra, Rej, RejReason, Rep, SidrRep};
use softverbs_wire::num::{CommId, Qpn, TimeoutCode, TransactionId};

use super::connection::{Connection, Role};
use super::endpoint::Endpoint;
use super::event::{CmEvent, CmStatus, QpAction, Rejected, Reply};
use super::messages;
use super::params::{AcceptParams, ConnectionId, RejectParams, SidrReplyParams};
use super::state::{Action, State, Trigger, transition};
use super::timeout;
use crate::fault::Misuse;
use crate::mutation::Mutation;
use crate::send_gate::Opener;
use crate::time::Time;

/// What came with a trigger.
#[derive(Clone, Copy, Debug)]
pub(super) enum Input<'a> {
    None,
    Mra(&'a Mra),
    Rep(&'a Rep),
    Rej(&'a Rej),
    /// A DREQ, of which only the transaction matters.
    Dreq(TransactionId),
    Lap(TransactionId, &'a Lap),
    SidrRep(&'a SidrRep),
    Accept(&'a AcceptParams),
    Reject(&'a RejectParams),
    MraTimeout(TimeoutCode),
    SidrReply(&'a SidrReplyParams),
}

impl Endpoint {
    /// Looks a trigger up in the transition table and does what it says.
    ///
    /// A refusal, or an input that is not what it should be, changes nothing.
    pub(super) fn trigger(
        &mut self,
        now: Time,
        id: u32,
        trigger: Trigger,
        input: Input<'_>,
    ) -> Result<(), Misuse> {
        let Some(connection) = self.registry.get(id) else {
            return Ok(());
        };
        let before = connection.state;
        let (action, next) = transition(before, trigger);
        self.perform(now, id, trigger, action, input)?;
        // Whoever rejects, drops or destroys does not want to hear of it again.
        if matches!(
            trigger,
            Trigger::Reject | Trigger::Drop | Trigger::Destroy | Trigger::SidrReply
        ) {
            if let Some(connection) = self.registry.get_mut(id) {
                connection.orphaned = true;
                connection.retries_left = connection.retries_left.min(self.config.destroy_retries);
            }
            self.abandon(ConnectionId(id));
        }
        if next != before {
            let rejected = matches!(action, Action::SendRej | Action::SendConsumerRej);
            self.enter(now, id, next, rejected);
        }
        Ok(())
    }

    /// A rejection is kept in TimeWait, for a peer that shows that it was lost.
    fn enter(&mut self, now: Time, id: u32, next: State, rejected: bool) {
        match next {
            State::Timewait => {
                if let Some(connection) = self.registry.get_mut(id) {
                    if !rejected {
                        connection.saved = None;
                    }
                    let wait = connection.timewait.min(self.config.max_timewait);
                    self.registry.set_deadline(id, Some(now + wait));
                }
            }
            // The next move is the application's.
            State::ReqRcvd
            | State::MraReqSent
            | State::RepRcvd
            | State::MraRepSent
            | State::Established
            | State::DreqRcvd
            | State::SidrReqRcvd => self.registry.set_deadline(id, None),
            // The action has set the deadline.
            State::ReqSent
            | State::MraReqRcvd
            | State::RepSent
            | State::MraRepRcvd
            | State::DreqSent
            | State::SidrReqSent
            | State::Idle => {}
        }
        self.registry.set_state(id, next);
    }

    fn perform(
        &mut self,
        now: Time,
        id: u32,
        trigger: Trigger,
        action: Action,
        input: Input<'_>,
    ) -> Result<(), Misuse> {
        match action {
            Action::Ignore | Action::Orphan => {}
            Action::Refuse => return Err(Misuse::State),
            Action::RefuseMigration => return Err(Misuse::NotSupported),

            Action::Resend if trigger == Trigger::Retry => self.retry(now, id),
            Action::Resend
                if trigger == Trigger::Rep && self.config.mutations.has(Mutation::NoRepAnswer) => {}
            Action::Resend => self.resend(id),
            Action::Extend => self.extend(now, id, input),
            Action::KeepMra => self.mra_later(id, self.config.delayed_mra, Self::keep),
            Action::SendMra => {
                let timeout = match input {
                    Input::MraTimeout(timeout) => Some(timeout),
                    _ => None,
                };
                self.mra_later(id, timeout, Self::send_and_keep);
            }

            Action::TakeRep => self.take_rep(id, input),
            Action::SendRtu => self.send_rtu(id),
            Action::SendRep => return self.send_rep(now, id, input),
            Action::Establish => {
                let opener = match trigger {
                    Trigger::CommEst => Opener::FirstFrame,
                    _ => Opener::ReadyToUse,
                };
                self.established(id, opener);
                if let Some(connection) = self.registry.get_mut(id) {
                    connection.saved = None;
                }
            }

            Action::SendRej => {
                if let Input::Reject(reject) = input {
                    return self.send_rej(id, reject);
                }
            }
            Action::SendConsumerRej => {
                return self.send_rej(id, &RejectParams::consumer(Vec::new()));
            }
            Action::SendTimeoutRej => self.send_timeout_rej(id),
            Action::RejectStaleReq => self.reject_stale_req(id),
            Action::RejectOver => self.reject_over(id, trigger),
            Action::Rejected => {
                if let Input::Rej(rej) = input {
                    self.rejected(id, rejected(rej));
                }
            }
            Action::RejectedStale => self.rejected(
                id,
                Rejected {
                    reason: RejReason::STALE_CONNECTION,
                    info: Vec::new(),
                    private_data: vec![0; Rej::PRIVATE_DATA_LEN],
                },
            ),
            Action::TryAgain => self.try_again(now, id),
            Action::Unreachable => {
                self.send_timeout_rej(id);
                self.flush(id);
                self.emit(id, CmEvent::Unreachable(CmStatus::TimedOut));
            }
            Action::Unanswered => self.emit(id, CmEvent::Unreachable(CmStatus::TimedOut)),

            Action::SendDreq => self.send_dreq(now, id),
            Action::PeerDisconnects => {
                // The DREP repeats the DREQ's, whenever it is sent.
                if let Input::Dreq(transaction_id) = input
                    && let Some(connection) = self.registry.get_mut(id)
                {
                    connection.transaction_id = transaction_id;
                }
                self.disconnected(id, CmStatus::Success);
            }
            Action::EndAlone => {
                self.flush(id);
                self.disconnected(id, CmStatus::Success);
            }
            Action::SendDrep => {
                self.flush(id);
                self.send_drep(id, None);
            }
            Action::CrossDrep => {
                self.answer_dreq(id, input);
                self.disconnected(id, CmStatus::Success);
            }
            Action::AnswerDreq => self.answer_dreq(id, input),
            Action::Disconnected => self.disconnected(id, CmStatus::Success),
            Action::DisconnectTimeout => self.disconnected(id, CmStatus::TimedOut),
            Action::TimewaitExit => self.emit(id, CmEvent::TimewaitExit),

            Action::RejectPath => {
                if let Input::Lap(transaction_id, lap) = input {
                    self.answer_lap(id, transaction_id, lap);
                }
            }

            Action::SendSidrRep => {
                if let Input::SidrReply(reply) = input {
                    return self.send_sidr_rep(id, reply);
                }
            }
            Action::RefuseSidr => return self.refuse_sidr(id),
            Action::TakeSidrRep => {
                if let Input::SidrRep(reply) = input {
                    self.take_sidr_rep(id, reply);
                }
            }
        }
        Ok(())
    }

    // Waiting.

    fn retry(&mut self, now: Time, id: u32) {
        if let Some(connection) = self.registry.get_mut(id) {
            connection.retries_left = connection.retries_left.saturating_sub(1);
        }
        self.resend(id);
        self.wait(now, id);
    }

    /// The peer wants more time: what it says and the way there and back, of which our path's
    /// timeout is made.
    fn extend(&mut self, now: Time, id: u32, input: Input<'_>) {
        if let Input::Mra(mra) = input
            && let Some(connection) = self.registry.get_mut(id)
        {
            let interval = timeout::duration(mra.service_timeout) + connection.timewait;
            connection.interval = interval.min(self.config.max_wait);
            self.wait(now, id);
        }
    }

    /// Builds an MRA, if there is a service timeout for it, and gives it to `then`.
    fn mra_later(&mut self, id: u32, timeout: Option<TimeoutCode>, then: fn(&mut Self, u32, &Mad)) {
        if let Some(timeout) = timeout
            && let Some(connection) = self.registry.get(id)
        {
            let mad = connection.mad(connection.mra(id, timeout));
            then(self, id, &mad);
        }
    }

    /// The peer found an old connection of ours in the way and removes it. The REQ needs no new
    /// name: the old connection had another one.
    fn try_again(&mut self, now: Time, id: u32) {
        let Some(connection) = self.registry.get_mut(id) else {
            return;
        };
        connection.stale_retries_left = connection.stale_retries_left.saturating_sub(1);
        let tried = self
            .config
            .stale_retries
            .saturating_sub(connection.stale_retries_left + 1);
        // The repetition itself is no retry: nothing was lost.
        connection.retries_left = connection.max_retries.saturating_add(1);
        connection.interval = connection.response_time;
        let delay = self.config.stale_delay * (1 << tried.min(10));
        self.registry.set_deadline(id, Some(now + delay));
    }

    // Establishment.

    fn take_rep(&mut self, id: u32, input: Input<'_>) {
        let Input::Rep(rep) = input else {
            return;
        };
        let remote_qpn = self
            .registry
            .get(id)
            .map_or(rep.local_qpn, |connection| connection.role.peer_of(rep));
        self.registry
            .identify(id, rep.local_comm_id, rep.local_ca_guid, remote_qpn);
        let Some(connection) = self.registry.get_mut(id) else {
            return;
        };
        let Role::Active(active) = &connection.role else {
            return;
        };
        let (rtr, rts) = active.attributes(rep);
        connection.timewait = timeout::duration(rts.timeout);
        connection.saved = None;
        let reply = Reply {
            remote_qpn,
            remote_comm_id: rep.local_comm_id,
            remote_ca_guid: rep.local_ca_guid,
            starting_psn: rep.starting_psn,
            responder_resources: rtr.max_dest_rd_atomic,
            initiator_depth: rts.max_rd_atomic,
            flow_control: rep.end_to_end_flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            target_ack_delay: rep.target_ack_delay,
            private_data: rep.private_data.as_array().to_vec(),
        };
        self.act(id, QpAction::ToRtr(rtr));
        self.act(id, QpAction::ToRts(rts));
        self.emit(id, CmEvent::Reply(Box::new(reply)));
    }

    fn send_rtu(&mut self, id: u32) {
        if let Some(connection) = self.registry.get(id) {
            let mad = connection.mad(connection.rtu(id));
            self.established(id, Opener::Role);
            self.send_and_keep(id, &mad);
        }
    }

    fn send_rep(&mut self, now: Time, id: u32, input: Input<'_>) -> Result<(), Misuse> {
        let (Input::Accept(accept), Some(connection)) = (input, self.registry.get_mut(id)) else {
            return Ok(());
        };
        let rep = connection.rep(&self.config, self.guid, id, accept)?;
        let mad = connection.mad(rep);
        let Role::Passive(passive) = &connection.role else {
            return Ok(());
        };
        let (rtr, rts) = passive.attributes(connection.remote_qpn, accept);
        connection.local_qpn = accept.qpn;
        self.act(id, QpAction::ToRtr(rtr));
        self.act(id, QpAction::ToRts(rts));
        self.send_and_wait(now, id, &mad);
        Ok(())
    }

    fn established(&mut self, id: u32, opener: Opener) {
        self.act(id, QpAction::OpenGate(opener));
        self.emit(id, CmEvent::Established);
    }

    /// A request that was not accepted yet has no queue pair.
    fn flush(&mut self, id: u32) {
        let has_qp = |connection: &Connection| connection.local_qpn != Qpn::default();
        if self.registry.get(id).is_some_and(has_qp) {
            self.act(id, QpAction::ToErr);
        }
    }

    // Rejection.

    fn send_rej(&mut self, id: u32, reject: &RejectParams) -> Result<(), Misuse> {
        if let Some(connection) = self.registry.get(id) {
            let (address, mad) = (
                connection.address,
                connection.mad(connection.rej(id, reject)?),
            );
            self.withdraw(id);
            self.send(address, &mad);
            self.keep(id, &mad);
        }
        Ok(())
    }

    fn send_timeout_rej(&mut self, id: u32) {
        if let Some(connection) = self.registry.get(id) {
            let mad = connection.mad(connection.timeout_rej(self.guid, id));
            let address = connection.address;
            self.withdraw(id);
            self.send(address, &mad);
        }
    }

    fn reject_stale_req(&mut self, id: u32) {
        if let Some(connection) = self.registry.get(id) {
            let rej = messages::stranger_rej(
                CommId::NONE,
                connection.remote_comm_id,
                MessageKind::REQ,
                RejReason::STALE_CONNECTION,
            );
            let (address, mad) = (connection.address, connection.mad(rej));
            self.send(address, &mad);
        }
    }

    fn reject_over(&mut self, id: u32, trigger: Trigger) {
        if let Some(connection) = self.registry.get(id)
            && connection.saved.is_none()
        {
            let kind = match trigger {
                Trigger::Rep => MessageKind::REP,
                _ => MessageKind::OTHER,
            };
            let rej = messages::stranger_rej(
                CommId::new(id),
                connection.remote_comm_id,
                kind,
                RejReason::INVALID_COMM_ID,
            );
            let (address, mad) = (connection.address, connection.mad(rej));
            self.send(address, &mad);
        }
        self.resend(id);
    }

    fn rejected(&mut self, id: u32, rejected: Rejected) {
        self.withdraw(id);
        self.flush(id);
        self.emit(id, CmEvent::Rejected(Box::new(rejected)));
    }

    // Release.

    fn send_dreq(&mut self, now: Time, id: u32) {
        self.flush(id);
        if let Some(connection) = self.registry.get(id) {
            let transaction_id = messages::transaction(self.transaction_high(), id);
            let mad = Mad::new(transaction_id, connection.dreq(id));
            self.send_and_wait(now, id, &mad);
        }
    }

    fn send_drep(&mut self, id: u32, transaction_id: Option<TransactionId>) {
        if let Some(connection) = self.registry.get(id) {
            let drep = messages::drep(CommId::new(id), connection.remote_comm_id);
            let transaction_id = transaction_id.unwrap_or(connection.transaction_id);
            let address = connection.address;
            self.send(address, &Mad::new(transaction_id, drep));
        }
    }

    fn answer_dreq(&mut self, id: u32, input: Input<'_>) {
        if let Input::Dreq(transaction_id) = input {
            self.send_drep(id, Some(transaction_id));
        }
    }

    // Alternate paths.

    fn answer_lap(&mut self, id: u32, transaction_id: TransactionId, lap: &Lap) {
        if let Some(connection) = self.registry.get(id) {
            let status = if lap.remote_qpn == connection.local_qpn {
                ApStatus::UNSUPPORTED
            } else {
                ApStatus::QPN_EECN_MISMATCH
            };
            let address = connection.address;
            self.send(
                address,
                &Mad::new(transaction_id, messages::apr(lap, status)),
            );
        }
    }
}

fn rejected(rej: &Rej) -> Rejected {
    let info = rej.info.as_array();
    let meant = usize::from(rej.info_len).min(info.len());
    Rejected {
        reason: rej.reason,
        info: info[..meant].to_vec(),
        private_data: rej.private_data.as_array().to_vec(),
    }
}
