//! Attributes of a queue pair, `query` and `modify`.

use std::sync::MutexGuard;

use softverbs_proto::iwarp::stream::{CloseCause, Stream, StreamConfig};
use softverbs_proto::memory::Access;
use softverbs_proto::mutation::Mutations;
use softverbs_proto::qp_state::{QpAttrMask, QpState, QpType, check_iwarp};
use softverbs_wire::num::{Qkey, Qpn};

use super::{COPY_LIMIT, Core, Qp, QpCap, QpInner, Side};
use crate::context::Pd;
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::roce::AhAttr;
use crate::srq::Srq;

/// Attributes of a queue pair, named as in `struct ibv_qp_attr`. Addresses and sequence numbers
/// have no meaning on iWARP; they are kept and returned.
///
/// Attributes may be added: make one with `..QpAttr::default()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// State.
    pub qp_state: QpState,
    /// What the caller believes the present state to be.
    pub cur_qp_state: QpState,
    /// Path MTU (`enum ibv_mtu`: 1 is 256 octets ... 5 is 4096).
    pub path_mtu: u32,
    /// Q_Key of datagram queue pairs.
    pub qkey: u32,
    /// First PSN to be received.
    pub rq_psn: u32,
    /// First PSN to be sent.
    pub sq_psn: u32,
    /// The peer's queue pair.
    pub dest_qp_num: Qpn,
    /// Address vector: the way to the peer.
    pub ah_attr: AhAttr,
    /// Whether a drained send queue raises
    /// [`SqDrained`](crate::AsyncEventKind::SqDrained); meaningful when going to SQD.
    pub en_sqd_async_notify: bool,
    /// Whether the send queue is draining (SQD). Only returned.
    pub sq_draining: bool,
    /// What peers may do through this queue pair.
    pub qp_access_flags: Access,
    /// Index of the P_Key: 0.
    pub pkey_index: u16,
    /// Port: 1.
    pub port_num: u8,
    /// Reads and atomics that we may have outstanding.
    pub max_rd_atomic: u8,
    /// Reads and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code.
    pub min_rnr_timer: u8,
    /// Acknowledge time-out code.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            qp_state: QpState::Reset,
            cur_qp_state: QpState::Reset,
            path_mtu: 5,
            qkey: 0,
            rq_psn: 0,
            sq_psn: 0,
            dest_qp_num: Qpn::new(0),
            ah_attr: AhAttr::default(),
            en_sqd_async_notify: false,
            sq_draining: false,
            qp_access_flags: Access::REMOTE_WRITE
                .union(Access::REMOTE_READ)
                .union(Access::REMOTE_ATOMIC),
            pkey_index: 0,
            port_num: 1,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
        }
    }
}

impl Qp {
    /// The attributes as they are now.
    pub fn query(&self) -> QpAttr {
        let core = self.inner().lock();
        let mut attr = core.attr;
        attr.qp_state = core.state;
        attr.cur_qp_state = core.state;
        match &core.side {
            Side::Iwarp(iwarp) => {
                if let Some(negotiated) = iwarp.stream.negotiated() {
                    attr.max_rd_atomic = u8::try_from(negotiated.ord).unwrap_or(u8::MAX);
                    attr.max_dest_rd_atomic = u8::try_from(negotiated.ird).unwrap_or(u8::MAX);
                }
            }
            Side::Roce(roce) => attr.sq_draining = roce.queue_pair.is_draining(),
        }
        attr
    }

    /// The sizes it was created with.
    pub fn cap(&self) -> QpCap {
        self.inner().cap
    }

    /// The protection domain that it was created in.
    pub fn pd(&self) -> Pd {
        self.inner().pd.clone()
    }

    /// Where completions of send requests go.
    pub fn send_cq(&self) -> Cq {
        Cq::from_inner(self.inner().send_cq.clone())
    }

    /// Where completions of receive requests go.
    pub fn recv_cq(&self) -> Cq {
        Cq::from_inner(self.inner().recv_cq.clone())
    }

    /// The shared receive queue that it was created with.
    pub fn srq(&self) -> Option<Srq> {
        self.inner().srq.clone()
    }

    /// Whether every send request is signaled.
    pub fn sq_sig_all(&self) -> bool {
        self.inner().sq_sig_all
    }

    /// Sets the attributes in `mask`. EINVAL, with a text that names the attribute or the
    /// transition, for what the state machine does not allow.
    ///
    /// The connection manager moves its queue pairs itself. Over iWARP SQD ends the connection in
    /// good order, as [`CmId::disconnect`](crate::cm::CmId::disconnect) does. Moving to ERR flushes both queues and
    /// closes the connection; moving to RESET does so, too, and makes the queue pair as new.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        self.inner().modify(attr, mask)
    }
}

impl QpInner {
    pub(crate) fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let mut core = self.send_posted();
        if mask.contains(QpAttrMask::PORT) && attr.port_num != 1 {
            return Err(Error::invalid("port_num", "the device has one port: 1"));
        }
        if mask.contains(QpAttrMask::PKEY_INDEX) && attr.pkey_index != 0 {
            return Err(Error::invalid(
                "pkey_index",
                "the P_Key table has one entry: 0",
            ));
        }
        let to = if mask.contains(QpAttrMask::STATE) {
            attr.qp_state
        } else {
            core.state
        };
        if core.roce().is_some() {
            self.modify_roce(&mut core, attr, mask, to)
        } else {
            self.modify_iwarp(&mut core, attr, mask, to)
        }
    }

    fn modify_iwarp(
        &self,
        core: &mut MutexGuard<'_, Core>,
        attr: &QpAttr,
        mask: QpAttrMask,
        to: QpState,
    ) -> Result<()> {
        let from = core.state;
        if mask.contains(QpAttrMask::CUR_STATE) && attr.cur_qp_state != from {
            return Err(Error::invalid(
                "cur_qp_state",
                format!("the queue pair is in {from}"),
            ));
        }
        check_iwarp(from, to, mask)
            .map_err(|error| Error::invalid("qp_attr", error.to_string()))?;
        if mask.contains(QpAttrMask::RNR_RETRY) && attr.rnr_retry > 7 {
            return Err(Error::invalid("rnr_retry", "must be in 0 ..= 7"));
        }
        if mask.contains(QpAttrMask::RETRY_CNT) && attr.retry_cnt > 7 {
            return Err(Error::invalid("retry_cnt", "must be in 0 ..= 7"));
        }
        core.attr.take(attr, mask);
        match to {
            QpState::Err if from != QpState::Err => self.abort_locked(core, CloseCause::Local),
            QpState::Reset if from != QpState::Reset => {
                self.abort_locked(core, CloseCause::Local);
                self.unbind_windows();
                self.send_cq.forget(self.qp_num);
                self.recv_cq.forget(self.qp_num);
                if let Side::Iwarp(iwarp) = &mut core.side {
                    iwarp.stream = Stream::new(StreamConfig {
                        max_send_wr: self.cap.max_send_wr,
                        sq_sig_all: self.sq_sig_all,
                        copy_limit: COPY_LIMIT,
                        mutations: Mutations::NONE,
                    });
                }
                core.attr = QpAttr::default();
                self.set_state(core, QpState::Reset);
            }
            // There is no draining without an end: the stream closes when what is in the middle of
            // transmission has gone (RFC 5040 has no such state; siw does the same).
            QpState::Sqd if from != QpState::Sqd => {
                self.set_state(core, to);
                let now = self.engine.now();
                if let Some(stream) = core.stream() {
                    stream.disconnect(now);
                }
                self.transmit(core);
            }
            _ => self.set_state(core, to),
        }
        Ok(())
    }

    /// What the connection manager does in `rdma_create_qp`: receives may be posted.
    pub(crate) fn to_init(&self) -> Result<()> {
        let attr = QpAttr {
            qp_state: QpState::Init,
            qkey: Qkey::RDMA_UDP.get(),
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
        let of_type = match self.qp_type {
            QpType::Ud => QpAttrMask::QKEY,
            _ => QpAttrMask::ACCESS_FLAGS,
        };
        self.modify(&attr, mask | of_type)
    }

    /// What `connect` and `accept` do first: sends may be posted, and wait for the gate.
    pub(crate) fn to_rtr(&self) -> Result<()> {
        let state = self.state();
        match state {
            QpState::Init => {
                let attr = QpAttr {
                    qp_state: QpState::Rtr,
                    ..QpAttr::default()
                };
                self.modify(&attr, QpAttrMask::STATE)
            }
            QpState::Rtr | QpState::Rts => Ok(()),
            _ => Err(Error::invalid(
                "qp",
                format!("the queue pair is in {state}"),
            )),
        }
    }
}

impl QpAttr {
    pub(crate) fn take(&mut self, from: &Self, mask: QpAttrMask) {
        macro_rules! take {
            ($($bit:ident: $($field:ident),+;)*) => {
                $(if mask.contains(QpAttrMask::$bit) { $(self.$field = from.$field;)+ })*
            };
        }
        take! {
            ACCESS_FLAGS: qp_access_flags;
            PKEY_INDEX: pkey_index;
            PORT: port_num;
            QKEY: qkey;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_cnt;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            SQ_PSN: sq_psn;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            MIN_RNR_TIMER: min_rnr_timer;
            DEST_QPN: dest_qp_num;
            AV: ah_attr;
            EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
        }
    }
}
