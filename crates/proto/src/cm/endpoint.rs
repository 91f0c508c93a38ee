//! A device's connection manager.
//!
//! # Contract
//!
//! Queries take `&self`. Everything else feeds the endpoint one thing that happened: a management
//! datagram that arrived for QP1, an event of a queue pair, the end of a peer's process, a command,
//! the time. After each of them
//!
//! 1. ask [`Endpoint::poll_event`] until it yields nothing, and do what [`CmEvent::Qp`] says, in
//!    order: a queue pair has to be ready before the peer hears that it is;
//! 2. ask [`Endpoint::poll_transmit`] until it yields nothing. Should an action on a queue pair
//!    have failed, reject or destroy the connection first: what it has not sent yet is withdrawn;
//! 3. call [`Endpoint::on_timeout`] at [`Endpoint::deadline`].
//!
//! Time never goes backwards.
//!
//! # Names
//!
//! A [`ConnectionId`] is valid from the command or event that made it until
//!
//! * [`Endpoint::reject`], [`Endpoint::drop_request`], [`Endpoint::sidr_reply`] or
//!   [`Endpoint::destroy`]: no event follows;
//! * [`CmEvent::Rejected`] or [`CmEvent::Unreachable`] before the connection was established, and
//!   [`CmEvent::SidrReply`];
//! * [`CmEvent::TimewaitExit`] otherwise.
//!
//! Destroying is always possible, also when the name is not valid any more.

use core::fmt;
use std::collections::VecDeque;

use softverbs_wire::ib::PacketError;
use softverbs_wire::ib::cm::Mad;
use softverbs_wire::num::{CommId, Guid, TimeoutCode};

use super::config::Config;
use super::connection::{Active, Connection, Role};
use super::event::{CmEvent, CmStatus, QpAction, QpEvent, RtrAttributes, RtsAttributes, Transmit};
use super::ids::IdSpace;
use super::listeners::Listeners;
use super::messages;
use super::params::{
    AcceptParams, Adapter, ConnectRequest, ConnectionId, Listen, ListenToken, PathAddress,
    RejectParams, ResolveRequest, SidrReplyParams,
};
use super::perform::Input;
use super::registry::Registry;
use super::state::{State, Trigger};
use super::timeout;
use crate::fault::Misuse;
use crate::time::Time;

/// A device's connection manager. See the module for the contract.
#[derive(Clone, Debug, Hash)]
pub struct Endpoint {
    pub(super) config: Config,
    pub(super) guid: Guid,
    ids: IdSpace,
    pub(super) listeners: Listeners,
    pub(super) registry: Registry,
    events: VecDeque<(ConnectionId, CmEvent)>,
    /// With the connection that may still withdraw it.
    transmits: VecDeque<(Option<u32>, Transmit)>,
}

impl Endpoint {
    /// The connection manager of the adapter `ca_guid`. Peers tell by the GUID which connections
    /// can be stale, so every independent allocator of queue pair numbers needs its own.
    pub fn new(config: Config, ca_guid: Guid, ids: IdSpace) -> Self {
        Self {
            config,
            guid: ca_guid,
            ids,
            listeners: Listeners::default(),
            registry: Registry::default(),
            events: VecDeque::new(),
            transmits: VecDeque::new(),
        }
    }

    // Queries.

    /// The adapter's GUID.
    pub const fn ca_guid(&self) -> Guid {
        self.guid
    }

    /// The state of a connection; [`State::Idle`] if there is none of that name.
    pub fn state(&self, id: ConnectionId) -> State {
        self.registry
            .get(id.0)
            .map_or(State::Idle, |connection| connection.state)
    }

    /// The adapter at the other end of a connection, and the peer's name for the connection, once
    /// the peer has told them.
    pub fn peer_of(&self, id: ConnectionId) -> Option<(Adapter, CommId)> {
        let connection = self.registry.get(id.0)?;
        let adapter = Adapter {
            address: connection.address.remote,
            guid: connection.remote_ca_guid,
        };
        let known = connection.remote_comm_id != CommId::NONE;
        known.then_some((adapter, connection.remote_comm_id))
    }

    /// The connections with an adapter, those that are not established yet or end included, and
    /// those in TimeWait not.
    pub fn connections_with(&self, adapter: Adapter) -> impl Iterator<Item = ConnectionId> {
        self.registry.of_adapter(adapter).map(ConnectionId)
    }

    /// Passive side: what the queue pair needs to go to RTR and RTS when it is accepted with
    /// `accept`. Nothing if there is no such request.
    pub fn passive_attributes(
        &self,
        id: ConnectionId,
        accept: &AcceptParams,
    ) -> Option<(RtrAttributes, RtsAttributes)> {
        let connection = self.registry.get(id.0)?;
        match &connection.role {
            Role::Passive(passive) => Some(passive.attributes(connection.remote_qpn, accept)),
            Role::Active(_) | Role::Asking | Role::Asked(_) => None,
        }
    }

    /// How many connections and resolutions there are, those in TimeWait included.
    pub fn connections(&self) -> usize {
        self.registry.len()
    }

    /// Whether nothing is kept, sent or said: no connections, nothing to poll.
    pub fn is_idle(&self) -> bool {
        self.registry.len() == 0
            && self.registry.index_entries() == 0
            && self.events.is_empty()
            && self.transmits.is_empty()
    }

    /// When [`on_timeout`](Self::on_timeout) has something to do.
    pub fn deadline(&self) -> Option<Time> {
        self.registry.deadline()
    }

    // What happens.

    /// A datagram arrived for QP1. `address` is where it came from (`remote`) and to (`local`).
    ///
    /// An error says that it is no message of a connection manager; it has been dropped.
    pub fn on_mad(
        &mut self,
        now: Time,
        address: PathAddress,
        octets: &[u8],
    ) -> Result<(), PacketError> {
        match Mad::parse(octets) {
            Ok(mad) => {
                self.on_message(now, address, &mad);
                Ok(())
            }
            Err(error) => {
                self.on_other_version(address, octets);
                Err(error)
            }
        }
    }

    /// Something happened on a connection's queue pair.
    pub fn on_qp_event(
        &mut self,
        now: Time,
        id: ConnectionId,
        event: QpEvent,
    ) -> Result<(), Misuse> {
        let trigger = match event {
            QpEvent::CommEst => Trigger::CommEst,
            QpEvent::PathMig => Trigger::PathMig,
        };
        self.command(now, id, trigger, Input::None)
    }

    /// The process at the other end of a connection is known to have ended, without a word perhaps.
    /// What was established is disconnected, as by its DREQ, and what waits for its DREP has waited
    /// long enough; what is not established yet waits for the end of its retries.
    pub fn on_peer_gone(&mut self, now: Time, id: ConnectionId) -> Result<(), Misuse> {
        self.command(now, id, Trigger::PeerGone, Input::None)
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Time) {
        while let Some(id) = self.registry.pop_due(now) {
            let Some(connection) = self.registry.get(id) else {
                continue;
            };
            let retry = connection.retries_left > 0 && connection.state != State::Timewait;
            let trigger = if retry {
                Trigger::Retry
            } else {
                Trigger::Timeout
            };
            self.trigger(now, id, trigger, Input::None).ok();
        }
    }

    // Commands.

    /// Requests for a service go to `token` from now on.
    pub fn listen(&mut self, token: ListenToken, listen: Listen) -> Result<(), Misuse> {
        if self.listeners.add(token, listen) {
            Ok(())
        } else {
            Err(Misuse::Invalid("somebody listens for it already"))
        }
    }

    /// Requests do not go to `token` any more. Those that it got already stay.
    pub fn unlisten(&mut self, token: ListenToken) -> Result<(), Misuse> {
        if self.listeners.remove(token) {
            Ok(())
        } else {
            Err(Misuse::Invalid("no such listener"))
        }
    }

    /// Sends a REQ. The outcome is [`CmEvent::Reply`], [`CmEvent::Rejected`] or
    /// [`CmEvent::Unreachable`].
    pub fn connect(&mut self, now: Time, request: &ConnectRequest) -> Result<ConnectionId, Misuse> {
        let id = self.allocate()?;
        let req = messages::req(&self.config, self.guid, id, request)?;
        let transaction_id = messages::transaction(self.transaction_high(), id);
        let address = request.route.address;
        let role = Role::Active(Box::new(Active::new(request)));
        let round_trip = 2 * timeout::duration(request.route.packet_lifetime);
        let mut connection = Connection::new(State::ReqSent, role, address, transaction_id);
        connection.local_qpn = request.qpn;
        connection.timewait = timeout::duration(req.primary_path.local_ack_timeout);
        connection.response_time = round_trip + timeout::duration(self.config.response_timeout);
        connection.max_retries = req.max_cm_retries;
        connection.stale_retries_left = self.config.stale_retries;
        let mad = connection.mad(req);
        self.registry.insert(id, connection);
        self.send_and_wait(now, id, &mad);
        Ok(ConnectionId(id))
    }

    /// Passive side: readies the queue pair and sends a REP. The outcome is
    /// [`CmEvent::Established`] or one of the terminal events.
    pub fn accept(
        &mut self,
        now: Time,
        id: ConnectionId,
        accept: &AcceptParams,
    ) -> Result<(), Misuse> {
        self.command(now, id, Trigger::Accept, Input::Accept(accept))
    }

    /// Active side, after [`CmEvent::Reply`]: sends an RTU. [`CmEvent::Established`] follows.
    pub fn establish(&mut self, now: Time, id: ConnectionId) -> Result<(), Misuse> {
        self.command(now, id, Trigger::Establish, Input::None)
    }

    /// Sends a REJ: passive side before or after it accepted, active side after
    /// [`CmEvent::Reply`].
    pub fn reject(
        &mut self,
        now: Time,
        id: ConnectionId,
        reject: &RejectParams,
    ) -> Result<(), Misuse> {
        self.command(now, id, Trigger::Reject, Input::Reject(reject))
    }

    /// Tells the peer at once that accepting or confirming takes as long as `service_timeout`:
    /// 4.096 µs × 2^code.
    pub fn mra(
        &mut self,
        now: Time,
        id: ConnectionId,
        service_timeout: TimeoutCode,
    ) -> Result<(), Misuse> {
        self.command(now, id, Trigger::Mra, Input::MraTimeout(service_timeout))
    }

    /// Ends a connection: sends a DREQ, or a DREP if the peer was first. [`CmEvent::Disconnected`]
    /// (unless it came already) and [`CmEvent::TimewaitExit`] follow. Disconnecting again does no
    /// harm.
    pub fn disconnect(&mut self, now: Time, id: ConnectionId) -> Result<(), Misuse> {
        self.command(now, id, Trigger::Disconnect, Input::None)
    }

    /// After [`CmEvent::Disconnected`]: sends a DREP, for which the peer waits.
    pub fn disconnect_reply(&mut self, now: Time, id: ConnectionId) -> Result<(), Misuse> {
        self.command(now, id, Trigger::DisconnectReply, Input::None)
    }

    /// Forgets a connection or resolution in whatever state. The peer is told; no event follows.
    /// Forgetting again does no harm.
    pub fn destroy(&mut self, now: Time, id: ConnectionId) {
        if self
            .trigger(now, id.0, Trigger::Destroy, Input::None)
            .is_ok()
        {
            self.abandon(id);
        }
    }

    /// Forgets a request without an answer, as Linux does when a listener's backlog is full: the
    /// peer will ask again.
    pub fn drop_request(&mut self, now: Time, id: ConnectionId) -> Result<(), Misuse> {
        self.command(now, id, Trigger::Drop, Input::None)
    }

    /// Sends a SIDR_REQ. The outcome is [`CmEvent::SidrReply`] or [`CmEvent::Unreachable`].
    pub fn resolve(&mut self, now: Time, request: &ResolveRequest) -> Result<ConnectionId, Misuse> {
        let id = self.allocate()?;
        let message = messages::sidr_req(id, request)?;
        let transaction_id = messages::transaction(self.transaction_high(), id);
        let address = request.route.address;
        let mut connection =
            Connection::new(State::SidrReqSent, Role::Asking, address, transaction_id);
        connection.response_time = timeout::duration(self.config.response_timeout);
        connection.max_retries = self.config.max_cm_retries;
        let mad = connection.mad(message);
        self.registry.insert(id, connection);
        self.send_and_wait(now, id, &mad);
        Ok(ConnectionId(id))
    }

    /// Answers a [`CmEvent::SidrRequest`].
    pub fn sidr_reply(
        &mut self,
        now: Time,
        id: ConnectionId,
        reply: &SidrReplyParams,
    ) -> Result<(), Misuse> {
        self.command(now, id, Trigger::SidrReply, Input::SidrReply(reply))
    }

    // What comes out.

    /// What the owners have to know and do, in order.
    pub fn poll_event(&mut self) -> Option<(ConnectionId, CmEvent)> {
        self.events.pop_front()
    }

    /// The next datagram to send to a peer's QP1, with the Q_Key of QP1 and 256 octets of
    /// payload.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front().map(|(_, transmit)| transmit)
    }

    // What the other modules of the connection manager use.

    fn command(
        &mut self,
        now: Time,
        id: ConnectionId,
        trigger: Trigger,
        input: Input<'_>,
    ) -> Result<(), Misuse> {
        if !self.registry.contains(id.0)
            || self.registry.get(id.0).is_some_and(|there| there.orphaned)
        {
            return Err(Misuse::Invalid("no such connection"));
        }
        self.trigger(now, id.0, trigger, input)
    }

    pub(super) fn allocate(&mut self) -> Result<u32, Misuse> {
        let Self { ids, registry, .. } = self;
        ids.allocate(registry.len(), |id| registry.contains(id))
            .ok_or(Misuse::QueueFull)
    }

    /// The half of a transaction ID that tells our transactions from those of other processes.
    pub(super) const fn transaction_high(&self) -> u32 {
        let [_, _, _, _, a, b, c, d] = self.guid.get().to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// Tells the owner, if there is one.
    pub(super) fn emit(&mut self, id: u32, event: CmEvent) {
        if self.registry.get(id).is_some_and(|there| !there.orphaned) {
            self.events.push_back((ConnectionId(id), event));
        }
    }

    pub(super) fn act(&mut self, id: u32, action: QpAction) {
        self.emit(id, CmEvent::Qp(action));
    }

    pub(super) fn disconnected(&mut self, id: u32, status: CmStatus) {
        self.emit(id, CmEvent::Disconnected(status));
    }

    /// Nobody asks for the events of this connection any more.
    pub(super) fn abandon(&mut self, id: ConnectionId) {
        self.events.retain(|(of, _)| *of != id);
    }

    /// What the connection has not sent yet is not sent.
    pub(super) fn withdraw(&mut self, id: u32) {
        self.transmits.retain(|(of, _)| *of != Some(id));
    }

    /// Sends something that is not repeated.
    pub(super) fn send(&mut self, address: PathAddress, mad: &Mad) {
        let octets = Box::new(mad.to_bytes());
        self.transmits
            .push_back((None, Transmit { address, octets }));
    }

    /// Sends a message of a connection, and keeps it.
    pub(super) fn send_and_keep(&mut self, id: u32, mad: &Mad) {
        self.keep(id, mad);
        self.resend(id);
    }

    pub(super) fn keep(&mut self, id: u32, mad: &Mad) {
        if let Some(connection) = self.registry.get_mut(id) {
            connection.saved = Some(Box::new(mad.to_bytes()));
        }
    }

    /// Sends the message again that was kept.
    pub(super) fn resend(&mut self, id: u32) {
        if let Some(connection) = self.registry.get(id)
            && let Some(octets) = connection.saved.clone()
        {
            let address = connection.address;
            self.transmits
                .push_back((Some(id), Transmit { address, octets }));
        }
    }

    /// Sends a message of a connection that the peer has to answer.
    pub(super) fn send_and_wait(&mut self, now: Time, id: u32, mad: &Mad) {
        self.send_and_keep(id, mad);
        if let Some(connection) = self.registry.get_mut(id) {
            connection.retries_left = connection.max_retries;
            connection.interval = connection.response_time;
        }
        self.wait(now, id);
    }

    /// Waits for the peer from now on.
    pub(super) fn wait(&mut self, now: Time, id: u32) {
        if let Some(connection) = self.registry.get(id) {
            let deadline = now + connection.interval;
            self.registry.set_deadline(id, Some(deadline));
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM of {}: {} connections", self.guid, self.connections())
    }
}
