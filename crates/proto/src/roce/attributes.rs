//! What `modify_qp` sets, and which values it takes.

use core::time::Duration;

use softverbs_wire::num::{PathMtu, Psn, Qkey, Qpn, RnrTimer, TimeoutCode};

use crate::memory::Access;
use crate::qp_state::{self, QpAttrMask, QpState, QpType, TransitionError};

/// Most READs and atomics that either side may have outstanding.
pub const MAX_RD_ATOMIC: u8 = 128;

/// The attributes of a queue pair. Codes and counts are those of `struct ibv_qp_attr`, so that
/// [`QueuePair::modify`](super::queue_pair::QueuePair::modify) is the one place that refuses
/// values out of their range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpAttributes {
    /// The state that the caller believes to be the present one (`CUR_STATE`).
    pub cur_state: QpState,
    /// What the peer may do (`ACCESS_FLAGS`); the `REMOTE_*` flags count.
    pub access: Access,
    /// Key of datagrams (`QKEY`).
    pub qkey: Qkey,
    /// Largest payload of a packet (`PATH_MTU`).
    pub path_mtu: PathMtu,
    /// Queue pair number of the peer (`DEST_QPN`).
    pub dest_qpn: Qpn,
    /// The peer's first packet sequence number (`RQ_PSN`).
    pub rq_psn: Psn,
    /// Our first packet sequence number (`SQ_PSN`).
    pub sq_psn: Psn,
    /// How long to wait for an acknowledge: 4.096 µs · 2ⁿ, 0 to 31, 0 without end (`TIMEOUT`).
    pub timeout: u8,
    /// How often to try again after a timeout, 0 to 7; 7 is seven times (`RETRY_CNT`).
    pub retry_cnt: u8,
    /// How often to try again when the peer has no receive, 0 to 7; 7 is without end
    /// (`RNR_RETRY`).
    pub rnr_retry: u8,
    /// How long the peer has to wait when we have no receive: a code of the table of RNR timers,
    /// 0 to 31, where 0 is the longest (`MIN_RNR_TIMER`).
    pub min_rnr_timer: u8,
    /// READs and atomics that we may have outstanding, 0 to 128 (`MAX_QP_RD_ATOMIC`).
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding, 0 to 128 (`MAX_DEST_RD_ATOMIC`).
    pub max_dest_rd_atomic: u8,
    /// Whether the drained send queue raises an event (`EN_SQD_ASYNC_NOTIFY`).
    pub en_sqd_async_notify: bool,
}

impl Default for QpAttributes {
    fn default() -> Self {
        Self {
            cur_state: QpState::Reset,
            access: Access::empty(),
            qkey: Qkey::new(0),
            path_mtu: PathMtu::Mtu256,
            dest_qpn: Qpn::new(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            en_sqd_async_notify: false,
        }
    }
}

/// Why a `modify_qp` is refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// The transition does not exist, or not with these attributes.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// A value is out of its range.
    #[error("{0} is out of its range")]
    Range(&'static str),
    /// The caller is wrong about the present state.
    #[error("the queue pair is in {actual}, not in {believed}")]
    CurrentState {
        /// What the caller believed.
        believed: QpState,
        /// What it is.
        actual: QpState,
    },
}

impl QpAttributes {
    /// How long to wait for an acknowledge, if not without end.
    pub(super) fn ack_timeout(&self) -> Option<Duration> {
        (self.timeout != 0).then(|| TimeoutCode::new(self.timeout).duration())
    }

    /// What a RNR NAK says.
    pub(super) const fn rnr_timer(&self) -> RnrTimer {
        RnrTimer::new(self.min_rnr_timer)
    }

    /// How many more RNR NAKs are bearable after `seen`.
    pub(super) const fn bears_rnr(&self, seen: u32) -> bool {
        self.rnr_retry == 7 || seen <= self.rnr_retry as u32
    }

    pub(super) const fn mtu(&self) -> usize {
        self.path_mtu.octets()
    }

    /// Checks a transition and takes over the attributes in `mask`.
    pub(super) fn apply(
        &mut self,
        qp_type: QpType,
        (from, to): (QpState, QpState),
        new: &Self,
        mask: QpAttrMask,
    ) -> Result<(), ModifyError> {
        if mask.contains(QpAttrMask::CUR_STATE) && new.cur_state != from {
            return Err(ModifyError::CurrentState {
                believed: new.cur_state,
                actual: from,
            });
        }
        qp_state::check(qp_type, from, to, mask)?;
        for (bit, value, most, name) in [
            (QpAttrMask::TIMEOUT, new.timeout, 31, "timeout"),
            (QpAttrMask::RETRY_CNT, new.retry_cnt, 7, "retry_cnt"),
            (QpAttrMask::RNR_RETRY, new.rnr_retry, 7, "rnr_retry"),
            (
                QpAttrMask::MIN_RNR_TIMER,
                new.min_rnr_timer,
                31,
                "min_rnr_timer",
            ),
            (
                QpAttrMask::MAX_QP_RD_ATOMIC,
                new.max_rd_atomic,
                MAX_RD_ATOMIC,
                "max_rd_atomic",
            ),
            (
                QpAttrMask::MAX_DEST_RD_ATOMIC,
                new.max_dest_rd_atomic,
                MAX_RD_ATOMIC,
                "max_dest_rd_atomic",
            ),
        ] {
            if mask.contains(bit) && value > most {
                return Err(ModifyError::Range(name));
            }
        }
        macro_rules! take {
            ($($bit:ident $field:ident)*) => {
                $(if mask.contains(QpAttrMask::$bit) { self.$field = new.$field; })*
            };
        }
        take! {
            ACCESS_FLAGS access
            QKEY qkey
            PATH_MTU path_mtu
            DEST_QPN dest_qpn
            RQ_PSN rq_psn
            SQ_PSN sq_psn
            TIMEOUT timeout
            RETRY_CNT retry_cnt
            RNR_RETRY rnr_retry
            MIN_RNR_TIMER min_rnr_timer
            MAX_QP_RD_ATOMIC max_rd_atomic
            MAX_DEST_RD_ATOMIC max_dest_rd_atomic
        }
        if from != to {
            self.en_sqd_async_notify =
                mask.contains(QpAttrMask::EN_SQD_ASYNC_NOTIFY) && new.en_sqd_async_notify;
        }
        Ok(())
    }
}
