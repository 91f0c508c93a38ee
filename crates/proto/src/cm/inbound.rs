//! What arrives: to whom it belongs, and the answers to what belongs to nobody.

use softverbs_wire::codec::Reader;
use softverbs_wire::ib::cm::{
    ApStatus, Drep, Dreq, Lap, Mad, Message, MessageKind, Mra, Rej, RejReason, Rep, Rtu, SidrRep,
    SidrStatus, attribute,
};
use softverbs_wire::ib::mad::{MadHeader, Method, MgmtClass};
use softverbs_wire::num::{CommId, Guid, Qpn, TransactionId};

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::messages;
use super::params::PathAddress;
use super::perform::Input;
use super::state::{State, Trigger};
use crate::time::Time;

impl Endpoint {
    pub(super) fn on_message(&mut self, now: Time, address: PathAddress, mad: &Mad) {
        let transaction_id = mad.header.transaction_id;
        match &mad.message {
            Message::Req(req) => self.on_req(now, address, transaction_id, req),
            Message::Mra(mra) => self.on_mra(now, address, mra),
            Message::Rej(rej) => self.on_rej(now, address, rej),
            Message::Rep(rep) => self.on_rep(now, address, transaction_id, rep),
            Message::Rtu(rtu) => self.on_rtu(now, address, transaction_id, rtu),
            Message::Dreq(dreq) => self.on_dreq(now, address, transaction_id, dreq),
            Message::Drep(drep) => self.on_drep(now, address, drep),
            Message::Lap(lap) => self.on_lap(now, address, transaction_id, lap),
            // We never send what it answers.
            Message::Apr(_) => {}
            Message::SidrReq(sidr) => self.on_sidr_req(now, address, transaction_id, sidr),
            Message::SidrRep(reply) => self.on_sidr_rep(now, address, reply),
        }
    }

    /// A peer did something to a connection. Nobody is there to be told of a failure.
    pub(super) fn peer(&mut self, now: Time, id: u32, trigger: Trigger, input: Input<'_>) {
        self.trigger(now, id, trigger, input).ok();
    }

    /// Requests of other versions are rejected rather than ignored (IBA vol 1 ch 12, REJ reason
    /// codes). The first field is the sender's name in all of them.
    pub(super) fn on_other_version(&mut self, address: PathAddress, octets: &[u8]) {
        let mut reader = Reader::new(octets);
        let (Ok(header), Ok(name)) = (MadHeader::parse(&mut reader), reader.u32()) else {
            return;
        };
        if header.base_version != MadHeader::BASE_VERSION
            || header.class != MgmtClass::COMM_MGT
            || header.class_version == Mad::CLASS_VERSION
            || header.method != Method::SEND
        {
            return;
        }
        let name = CommId::new(name);
        let message: Message = match header.attribute {
            attribute::REQ => messages::stranger_rej(
                CommId::NONE,
                name,
                MessageKind::REQ,
                RejReason::INVALID_CLASS_VERSION,
            )
            .into(),
            attribute::SIDR_REQ => SidrRep {
                request_id: name,
                status: SidrStatus::UNSUPPORTED_VERSION,
                ..SidrRep::default()
            }
            .into(),
            _ => return,
        };
        self.send(address, &Mad::new(header.transaction_id, message));
    }

    /// An MRA of a REQ comes from a peer whose name we do not know yet.
    fn on_mra(&mut self, now: Time, address: PathAddress, mra: &Mra) {
        let (found, trigger) = match mra.message {
            MessageKind::REQ => (
                self.registry.of_peer(mra.remote_comm_id, address),
                Trigger::MraReq,
            ),
            MessageKind::REP => (
                self.registry
                    .by_both(mra.remote_comm_id, mra.local_comm_id, address),
                Trigger::MraRep,
            ),
            _ => return,
        };
        if let Some((id, _)) = found {
            self.peer(now, id, trigger, Input::Mra(mra));
        }
    }

    fn on_rej(&mut self, now: Time, address: PathAddress, rej: &Rej) {
        let Some(id) = self.rejected_connection(address, rej) else {
            return;
        };
        let again = rej.reason == RejReason::STALE_CONNECTION
            && self.registry.get(id).is_some_and(may_try_again);
        let trigger = if again {
            Trigger::StaleRej
        } else {
            Trigger::Rej
        };
        self.peer(now, id, trigger, Input::Rej(rej));
    }

    /// Which connection a REJ is about. While we do not know the peer's name, our own is enough;
    /// a peer that timed out may not know ours, but its own name and its adapter.
    fn rejected_connection(&self, address: PathAddress, rej: &Rej) -> Option<u32> {
        if let Some((id, connection)) = self.registry.of_peer(rej.remote_comm_id, address)
            && (connection.remote_comm_id == rej.local_comm_id || is_waiting_for_rep(connection))
        {
            return Some(id);
        }
        if rej.reason != RejReason::TIMEOUT || rej.info_len < 8 {
            return None;
        }
        let guid: [u8; 8] = *rej.info.as_array().first_chunk()?;
        let guid = Guid::new(u64::from_be_bytes(guid));
        self.registry.by_remote_id(address, guid, rej.local_comm_id)
    }

    fn on_rep(
        &mut self,
        now: Time,
        address: PathAddress,
        transaction_id: TransactionId,
        rep: &Rep,
    ) {
        let known = self
            .registry
            .of_peer(rep.remote_comm_id, address)
            .filter(|(_, connection)| {
                connection.remote_comm_id == rep.local_comm_id || is_waiting_for_rep(connection)
            });
        let Some((id, connection)) = known else {
            // Its sender would repeat it for a minute, and believe in a connection meanwhile.
            let rej = messages::stranger_rej(
                rep.remote_comm_id,
                rep.local_comm_id,
                MessageKind::REP,
                RejReason::INVALID_COMM_ID,
            );
            self.send(address, &Mad::new(transaction_id, rej));
            return;
        };
        let first = is_waiting_for_rep(connection);
        let qpn = connection.role.peer_of(rep);
        let (guid, comm_id) = (rep.local_ca_guid, rep.local_comm_id);
        if first && self.clean_up(now, address, guid, comm_id, qpn) {
            self.on_stale_rep(now, address, transaction_id, id, rep);
            return;
        }
        self.peer(now, id, Trigger::Rep, Input::Rep(rep));
        if first && self.config.delayed_mra.is_some() {
            self.peer(now, id, Trigger::DelayedMra, Input::None);
        }
    }

    /// The REP names a queue pair, or a communication ID, of a connection that we still have.
    fn on_stale_rep(
        &mut self,
        now: Time,
        address: PathAddress,
        transaction_id: TransactionId,
        id: u32,
        rep: &Rep,
    ) {
        let rej = messages::stranger_rej(
            rep.remote_comm_id,
            rep.local_comm_id,
            MessageKind::REP,
            RejReason::STALE_CONNECTION,
        );
        self.send(address, &Mad::new(transaction_id, rej));
        if self.registry.get(id).is_some_and(may_try_again) {
            self.peer(now, id, Trigger::StaleRep, Input::None);
        } else {
            self.peer(now, id, Trigger::Rej, Input::Rej(&rej));
        }
    }

    /// Whether one of the names that a REQ or REP brings belongs to a connection that we still
    /// have: then the peer has lost it (IBA vol 1 ch 12, stale connection). Ends it, and frees its
    /// names at once so that the peer's next attempt succeeds.
    ///
    /// A connection in TimeWait is over on both sides; its names just give way.
    pub(super) fn clean_up(
        &mut self,
        now: Time,
        address: PathAddress,
        guid: Guid,
        comm_id: CommId,
        qpn: Qpn,
    ) -> bool {
        let mut stale = false;
        while let Some(old) = self
            .registry
            .by_remote_qp(address, guid, qpn)
            .or_else(|| self.registry.by_remote_id(address, guid, comm_id))
        {
            stale |= self
                .registry
                .get(old)
                .is_some_and(|connection| connection.state != State::Timewait);
            self.peer(now, old, Trigger::Stale, Input::None);
            self.registry.forget_names(old);
        }
        stale
    }

    fn on_rtu(
        &mut self,
        now: Time,
        address: PathAddress,
        transaction_id: TransactionId,
        rtu: &Rtu,
    ) {
        let found = self
            .registry
            .by_both(rtu.remote_comm_id, rtu.local_comm_id, address);
        match found {
            Some((id, _)) => self.peer(now, id, Trigger::Rtu, Input::None),
            // Its sender believes in a connection, and nothing else would tell it before it sends.
            None => {
                let rej = messages::stranger_rej(
                    rtu.remote_comm_id,
                    rtu.local_comm_id,
                    MessageKind::OTHER,
                    RejReason::INVALID_COMM_ID,
                );
                self.send(address, &Mad::new(transaction_id, rej));
            }
        }
    }

    fn on_dreq(
        &mut self,
        now: Time,
        address: PathAddress,
        transaction_id: TransactionId,
        dreq: &Dreq,
    ) {
        let found = self
            .registry
            .by_both(dreq.remote_comm_id, dreq.local_comm_id, address);
        match found {
            Some((id, connection)) => {
                if dreq.remote_qpn == connection.local_qpn {
                    self.peer(now, id, Trigger::Dreq, Input::Dreq(transaction_id));
                }
            }
            None if self.is_too_early(address, dreq) => {}
            // The connection is gone, which is what the peer wants (IBA vol 1 ch 12, DREP).
            None => {
                let drep = messages::drep(dreq.remote_comm_id, dreq.local_comm_id);
                self.send(address, &Mad::new(transaction_id, drep));
            }
        }
    }

    /// Whether a DREQ may have overtaken the REP of a connection that we asked for. Answered now, its
    /// sender would forget the connection, and the REP would make one of it here. It comes again.
    fn is_too_early(&self, address: PathAddress, dreq: &Dreq) -> bool {
        self.registry
            .of_peer(dreq.remote_comm_id, address)
            .is_some_and(|(_, ours)| is_waiting_for_rep(ours) && ours.local_qpn == dreq.remote_qpn)
    }

    fn on_drep(&mut self, now: Time, address: PathAddress, drep: &Drep) {
        if let Some((id, _)) =
            self.registry
                .by_both(drep.remote_comm_id, drep.local_comm_id, address)
        {
            self.peer(now, id, Trigger::Drep, Input::None);
        }
    }

    fn on_lap(
        &mut self,
        now: Time,
        address: PathAddress,
        transaction_id: TransactionId,
        lap: &Lap,
    ) {
        let found = self
            .registry
            .by_both(lap.remote_comm_id, lap.local_comm_id, address);
        match found {
            Some((id, _)) => self.peer(now, id, Trigger::Lap, Input::Lap(transaction_id, lap)),
            None => {
                let apr = messages::apr(lap, ApStatus::INVALID_COMM_ID);
                self.send(address, &Mad::new(transaction_id, apr));
            }
        }
    }
}

fn is_waiting_for_rep(connection: &Connection) -> bool {
    matches!(connection.state, State::ReqSent | State::MraReqRcvd)
}

fn may_try_again(connection: &Connection) -> bool {
    is_waiting_for_rep(connection) && connection.stale_retries_left > 0
}
