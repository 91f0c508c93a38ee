//! Identifiers whose queue pair is the application's own: it asks what the queue pair needs, moves
//! it through its states, and confirms.

use std::sync::atomic::Ordering;

use softverbs_proto::memory::Access;
use softverbs_proto::qp_state::{QpAttrMask, QpState, QpType};
use softverbs_wire::num::{Qkey, TimeoutCode};

use super::event::{ConnParam, EventChannel, EventKind};
use super::id::Phase;
use super::{CmId, PortSpace, ib, wrong_phase};
use crate::context::Context;
use crate::device::Transport;
use crate::error::{Error, Result};
use crate::qp::{Qp, QpAttr};
use crate::roce::{access_of, rtr_attr, rts_attr};
use crate::xrc::Xrcd;

impl CmId {
    /// Confirms a [`ConnectResponse`](EventKind::ConnectResponse), which the active side of an
    /// identifier without a queue pair gets: the connection is established when this returns, and
    /// no event follows. The application's queue pair has to be in RTS before, by the attributes
    /// of [`init_qp_attr`](Self::init_qp_attr). EINVAL without such an event. iWARP has none:
    /// there [`Established`](EventKind::Established) comes at once.
    pub fn establish(&self) -> Result<()> {
        let connection = {
            let mut state = self.shared().lock();
            let (Phase::IbResponded, Some(connection)) = (&state.phase, state.connection) else {
                return Err(wrong_phase(&state, "establish"));
            };
            state.phase = Phase::Established;
            connection
        };
        ib::establish(connection)
    }

    /// Creates the receiving end of an XRC connection in a domain, as
    /// [`create_qp`](Self::create_qp) does other queue pairs: for a connect request of a sending
    /// end. EINVAL if there is a queue pair, or if the domain belongs to another device.
    pub fn create_xrc_qp(&self, xrcd: &Xrcd, qp_context: u64) -> Result<Qp> {
        self.check_device(xrcd.context())?;
        let qp = xrcd.create_qp(qp_context)?;
        qp.inner().to_init()?;
        self.own(qp)
    }

    /// The identifier gets a queue pair.
    pub(super) fn own(&self, qp: Qp) -> Result<Qp> {
        let mut state = self.shared().lock();
        if state.qp.is_some() {
            drop(state);
            return Err(Error::invalid("id", "has a queue pair already"));
        }
        state.qp = Some(qp.clone());
        Ok(qp)
    }

    /// Makes a queue pair that is in RESET or INIT the one of this identifier: what
    /// [`create_qp`](Self::create_qp) does with a new one.
    pub fn attach_qp(&self, qp: &Qp) -> Result<()> {
        self.check_new_qp(qp.inner().pd.context(), qp.qp_type())?;
        if qp.state() == QpState::Reset {
            qp.inner().to_init()?;
        }
        if qp.qp_type() == QpType::Ud && qp.state() == QpState::Init {
            qp.inner().datagrams_to_rts(ib::random_u32()?)?;
        }
        self.own(qp.clone())?;
        Ok(())
    }

    pub(super) fn check_new_qp(&self, context: &Context, qp_type: QpType) -> Result<()> {
        self.check_device(context)?;
        if (self.shared().ps == PortSpace::Udp) != (qp_type == QpType::Ud) {
            return Err(Error::invalid(
                "qp_type",
                "UD goes with RDMA_PS_UDP, and with nothing else",
            ));
        }
        Ok(())
    }

    /// Whether it may get a queue pair of this device.
    pub(super) fn check_device(&self, context: &Context) -> Result<()> {
        let state = self.shared().lock();
        if state.qp.is_some() {
            return Err(Error::invalid("id", "has a queue pair already"));
        }
        match &state.verbs {
            None => Err(Error::invalid("id", "has no device yet: resolve or bind")),
            Some(verbs) if verbs.device().name() != context.device().name() => {
                Err(Error::invalid("pd", "belongs to another device"))
            }
            Some(_) => Ok(()),
        }
    }

    /// What to give to [`Qp::modify`](crate::Qp::modify) for the transition of the application's
    /// own queue pair to `to`: INIT (after the address is resolved or in a connect request), RTR
    /// and RTS (after `ConnectResponse` or in a connect request; before, EINVAL). EINVAL for other
    /// states.
    ///
    /// Over iWARP, where `connect` and `accept` move the queue pair whatever its attributes are,
    /// INIT and RTR have access flags only and RTS has nothing: an empty mask.
    pub fn init_qp_attr(&self, to: QpState) -> Result<(QpAttr, QpAttrMask)> {
        let mut state = self.shared().lock();
        let Some(verbs) = state.verbs.clone() else {
            return Err(Error::invalid("id", "has no device yet: resolve or bind"));
        };
        let attr = QpAttr {
            qp_state: to,
            qp_access_flags: Access::empty(),
            ..QpAttr::default()
        };
        let wrong = |why: &'static str| Err(Error::invalid("qp_state", why));
        if !matches!(to, QpState::Init | QpState::Rtr | QpState::Rts) {
            return wrong("must be INIT, RTR or RTS");
        }
        let init = QpAttrMask::STATE | QpAttrMask::PORT;
        if state.options.transport == Transport::Iwarp {
            if to == QpState::Rts {
                return Ok((attr, QpAttrMask::empty()));
            }
            let attr = QpAttr {
                qp_access_flags: Access::REMOTE_WRITE | Access::REMOTE_READ,
                ..attr
            };
            return Ok((attr, init | QpAttrMask::ACCESS_FLAGS));
        }
        let init = init | QpAttrMask::PKEY_INDEX;
        if self.shared().ps == PortSpace::Udp {
            let attr = QpAttr {
                qkey: Qkey::RDMA_UDP.get(),
                sq_psn: ib::starting_psn(&mut state)?.get(),
                ..attr
            };
            return Ok(match to {
                QpState::Init => (attr, init | QpAttrMask::QKEY),
                QpState::Rtr => (attr, QpAttrMask::STATE),
                _ => (attr, QpAttrMask::STATE | QpAttrMask::SQ_PSN),
            });
        }
        // Of a request that waits they are what accepting it is going to make them.
        let known = match (&state.phase, state.connection) {
            (Phase::IbRequested(incoming), Some(connection)) => {
                let incoming = *incoming;
                let psn = ib::starting_psn(&mut state)?;
                ib::attributes_of_request(connection, incoming, psn)?
            }
            _ => state.rtr.zip(state.rts),
        };
        match (to, known) {
            (QpState::Init, known) => {
                let access = known.map_or(Access::empty(), |(rtr, _)| access_of(&rtr));
                let attr = QpAttr {
                    qp_access_flags: access,
                    ..attr
                };
                Ok((attr, init | QpAttrMask::ACCESS_FLAGS))
            }
            (QpState::Rtr, Some((rtr, _))) => Ok(rtr_attr(&rtr, verbs.device())),
            (_, Some((rtr, mut rts))) => {
                if let Some(timeout) = state.options.ack_timeout {
                    rts.timeout = TimeoutCode::new(timeout);
                }
                Ok(rts_attr(&rts, rtr.qp_type))
            }
            (_, None) => Err(wrong_phase(&state, "tell the peer's attributes")),
        }
    }

    /// Takes the path records of an application that has found its route by itself
    /// (`RDMA_OPTION_IB_PATH`) for [`resolve_route`](Self::resolve_route). IP knows the way, so
    /// nothing of them is used. Ends with [`EventKind::RouteResolved`]; EINVAL unless the address
    /// was resolved.
    pub fn set_ib_path(&self) -> Result<()> {
        let mut state = self.shared().lock();
        if !matches!(state.phase, Phase::AddrResolved) {
            return Err(wrong_phase(&state, "set the path"));
        }
        state.phase = Phase::RouteResolved;
        drop(state);
        self.shared()
            .report(EventKind::RouteResolved, 0, ConnParam::default().cleared());
        self.wait_for(EventKind::RouteResolved)
    }

    /// Moves the identifier to another channel, with the events that have not been fetched. Waits
    /// until those that have been are acknowledged: acknowledge (drop) them first. A synchronous
    /// identifier is one no more.
    pub fn migrate_id(&self, channel: &EventChannel) -> Result<()> {
        self.migrate(channel, false)
    }

    /// The same to a channel of its own: its calls wait from now on, as those of
    /// [`new_sync`](Self::new_sync) do.
    pub fn migrate_sync(&self) -> Result<()> {
        self.migrate(&EventChannel::new()?, true)
    }

    fn migrate(&self, channel: &EventChannel, sync: bool) -> Result<()> {
        self.shared().migrate(channel);
        self.shared().sync.store(sync, Ordering::Relaxed);
        self.shared().unacked.wait_acked();
        Ok(())
    }
}
