//! Calls of identifiers over iWARP: MPA start-up on a TCP connection.

use std::sync::Arc;
use std::time::Duration;

use softverbs_proto::iwarp::negotiate::Wishes;
use softverbs_proto::iwarp::stream::{CloseCause, Role};
use softverbs_proto::mutation::Mutations;

use super::event::{ConnParam, MAX_DEPTH};
use super::id::Phase;
use super::options::Options;
use super::{CmId, active, wrong_phase};
use crate::device::limits;
use crate::engine::Engine;
use crate::error::{Error, Result};

/// Most private data that an MPA frame of revision 2 carries to every known peer.
const MAX_PRIVATE_DATA: usize = 251;
/// How long a peer that asked for peer-to-peer mode may take to send its first frame.
const RTR_TIMEOUT: Duration = Duration::from_secs(10);

impl CmId {
    pub(super) fn connect_tcp(&self, param: &ConnParam) -> Result<()> {
        let (attempt, socket, source, qp) = {
            let mut state = self.shared().lock();
            if !matches!(state.phase, Phase::RouteResolved) {
                return Err(wrong_phase(&state, "connect"));
            }
            let Some(peer) = state.peer else {
                return Err(wrong_phase(&state, "connect"));
            };
            let Some(qp) = state.qp_to_connect(param.qp_num) else {
                return Err(no_queue_pair());
            };
            let wishes = wishes(param, &state.options)?;
            let attempt = active::Attempt::new(
                self.shared(),
                peer,
                state.options,
                wishes,
                param.private_data.clone(),
            );
            (attempt, state.socket.is_some(), state.local, qp)
        };
        qp.to_rtr()?;
        let socket = {
            let mut state = self.shared().lock();
            if !matches!(state.phase, Phase::RouteResolved) {
                return Err(wrong_phase(&state, "connect"));
            }
            state.phase = Phase::Connecting(attempt.clone());
            if socket { state.socket.take() } else { None }
        };
        let started = attempt.start(Engine::get()?, socket, source);
        {
            let mut state = self.shared().lock();
            match started {
                Ok(local) => state.local = local.or(state.local),
                Err(error) => {
                    // Not if it was destroyed meanwhile.
                    if matches!(state.phase, Phase::Connecting(_)) {
                        state.phase = Phase::RouteResolved;
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    pub(super) fn accept_tcp(&self, param: &ConnParam) -> Result<()> {
        let (request, qp, wishes, options) = {
            let mut state = self.shared().lock();
            let Phase::Requested(request) = &state.phase else {
                return Err(wrong_phase(&state, "accept"));
            };
            let request = request.clone();
            let Some(qp) = state.qp_to_connect(param.qp_num) else {
                return Err(no_queue_pair());
            };
            (request, qp, wishes(param, &state.options)?, state.options)
        };
        qp.to_rtr()?;
        let accepted = request.accept(&wishes, &param.private_data);
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if error.errno() != libc::EINVAL {
                    self.shared().lock().fail();
                    qp.abort(CloseCause::Lost);
                }
                return Err(error);
            }
        };
        let negotiated = accepted.negotiated;
        let established = ConnParam {
            initiator_depth: active::depth(negotiated.ird),
            responder_resources: active::depth(negotiated.ord),
            ..ConnParam::default().cleared()
        };
        let before = {
            let mut state = self.shared().lock();
            if !matches!(state.phase, Phase::Requested(_)) {
                // Destroyed meanwhile; the peer sees the connection close.
                return Err(wrong_phase(&state, "accept"));
            }
            std::mem::replace(&mut state.phase, Phase::Establishing(established))
        };
        drop(before);
        let sizing = options.sizing(&(&accepted.socket).into());
        let role = Role::Responder {
            grace: options.grace,
            rtr_timeout: RTR_TIMEOUT,
        };
        let attached = qp.attach(
            accepted.socket,
            role,
            negotiated,
            sizing,
            &accepted.early,
            accepted.edge,
            Arc::downgrade(self.shared()),
        );
        if attached.is_err() {
            self.shared().lock().fail();
        }
        attached
    }
}

fn no_queue_pair() -> Error {
    Error::invalid(
        "id",
        "has no queue pair, and qp_num names none of this process",
    )
}

pub(super) fn check_private_data(private_data: &[u8]) -> Result<()> {
    if private_data.len() > MAX_PRIVATE_DATA {
        return Err(Error::invalid(
            "private_data",
            "iWARP carries up to 251 octets",
        ));
    }
    Ok(())
}

fn wishes(param: &ConnParam, options: &Options) -> Result<Wishes> {
    check_private_data(&param.private_data)?;
    let depth = |what, asked: u8| match asked {
        MAX_DEPTH => Ok(u16::from(limits::MAX_QP_RD_ATOM)),
        asked if asked <= limits::MAX_QP_RD_ATOM => Ok(asked.into()),
        _ => Err(Error::invalid(what, "exceeds max_qp_rd_atom")),
    };
    let ird = depth("responder_resources", param.responder_resources)?;
    let ord = depth("initiator_depth", param.initiator_depth)?;
    Ok(Wishes {
        crc: options.crc,
        markers: options.markers,
        ird,
        ord,
        peer_to_peer: options.peer_to_peer,
        rfc7306: true,
        revision: options.revision,
        timeout: options.reply_timeout,
        mutations: Mutations::NONE,
    })
}
