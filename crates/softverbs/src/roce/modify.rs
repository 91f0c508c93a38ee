//! `modify_qp` of queue pairs over RoCE, by hand and by the connection manager.

use std::sync::MutexGuard;

use softverbs_proto::cm::event::{QpPath, RtrAttributes, RtsAttributes};
use softverbs_proto::memory::Access;
use softverbs_proto::qp_state::{QpAttrMask, QpState, QpType};
use softverbs_proto::roce::queue_pair::QpAttributes;
use softverbs_wire::num::{PathMtu, Psn, Qkey};

use super::address::{AhAttr, Way};
use super::qp::ConnectionOfQp;
use crate::device::{Device, IbMtu};
use crate::error::{Error, Result};
use crate::qp::{Core, QpAttr, QpInner};

impl QpInner {
    pub(crate) fn modify_roce(
        &self,
        core: &mut MutexGuard<'_, Core>,
        attr: &QpAttr,
        mask: QpAttrMask,
        to: QpState,
    ) -> Result<()> {
        let device = self.pd.context().device();
        let way = mask
            .contains(QpAttrMask::AV)
            .then(|| Way::of(device, &attr.ah_attr))
            .transpose()?;
        self.apply(core, attr, mask, to, way)
    }

    fn apply(
        &self,
        core: &mut MutexGuard<'_, Core>,
        attr: &QpAttr,
        mask: QpAttrMask,
        to: QpState,
        way: Option<Way>,
    ) -> Result<()> {
        let attributes = attributes(attr, mask)?;
        let now = self.engine.now();
        let from = core.state;
        let Some(roce) = core.roce() else {
            return Err(Error::invalid("qp", "is not for RoCE"));
        };
        roce.queue_pair
            .modify(now, &attributes, mask, to)
            .map_err(|error| Error::invalid("qp_attr", error.to_string()))?;
        if let Some(way) = way {
            roce.set_way(way);
        }
        roce.set_path();
        if matches!(to, QpState::Rtr | QpState::Err) {
            roce.post_early();
        }
        core.attr.take(attr, mask);
        if to == QpState::Reset {
            if let Some(roce) = core.roce() {
                roce.reset();
            }
            core.attr = QpAttr::default();
            self.set_state(core, QpState::Reset);
            self.forget_receives();
            if from != QpState::Reset {
                self.unbind_windows();
                self.send_cq.forget(self.qp_num);
                self.recv_cq.forget(self.qp_num);
            }
            return Ok(());
        }
        // The rights of the peer may be others now, in the same state.
        self.set_state(core, to);
        if to == QpState::Err {
            self.flush_receives(core);
        }
        self.transmit(core);
        Ok(())
    }

    /// What `connect` does first: requests may be posted, and wait for the peer's answer.
    pub(crate) fn cm_expect_answer(&self) {
        let mut core = self.lock();
        if core.state == QpState::Init
            && let Some(roce) = core.roce()
        {
            roce.expect_answer();
        }
    }

    /// What the connection manager does before it answers or confirms. The gate of a passive side
    /// is closed until the peer is known to listen.
    pub(crate) fn cm_to_rtr(
        &self,
        attributes: &RtrAttributes,
        passive: bool,
        connection: ConnectionOfQp,
    ) -> Result<()> {
        let mut core = self.lock();
        if attributes.qp_type != self.qp_type {
            return Err(Error::invalid("qp_type", "is not what the peer has"));
        }
        let Some(roce) = core.roce() else {
            return Err(Error::invalid("qp", "is not for RoCE"));
        };
        roce.connection = Some(connection);
        if passive {
            roce.queue_pair.hold_gate();
        }
        let device = self.pd.context().device();
        let (mut attr, mask) = rtr_attr(attributes, device);
        attr.qp_access_flags = access_of(attributes);
        let mask = mask | QpAttrMask::ACCESS_FLAGS;
        let way = Way::new(
            device,
            attributes.path.local_gid.to_ip(),
            attributes.path.remote_gid.to_ip(),
            &attr.ah_attr.grh,
        );
        self.apply(&mut core, &attr, mask, QpState::Rtr, Some(way))
    }

    /// Before the application's own queue pair is accepted on a connection: its gate is closed
    /// until the peer is known to listen.
    pub(crate) fn cm_watch(&self, connection: ConnectionOfQp) {
        let mut core = self.lock();
        let connected = self.qp_type != QpType::Ud;
        if let Some(roce) = core.roce()
            && connected
        {
            roce.connection = Some(connection);
            roce.queue_pair.hold_gate();
        }
    }

    /// RTR to RTS, the gate as it is.
    pub(crate) fn cm_to_rts(&self, attributes: &RtsAttributes) -> Result<()> {
        let mut core = self.lock();
        let (attr, mask) = rts_attr(attributes, self.qp_type);
        self.apply(&mut core, &attr, mask, QpState::Rts, None)
    }

    /// The peer is known to listen.
    pub(crate) fn cm_open_gate(&self) {
        let mut core = self.lock();
        if let Some(roce) = core.roce() {
            roce.queue_pair.open_gate();
        }
        self.transmit(&mut core);
    }

    /// Datagrams: INIT to RTS at once.
    pub(crate) fn datagrams_to_rts(&self, sq_psn: u32) -> Result<()> {
        let mut core = self.lock();
        let attr = QpAttr {
            sq_psn,
            ..QpAttr::default()
        };
        let rtr = QpAttrMask::STATE;
        self.apply(&mut core, &attr, rtr, QpState::Rtr, None)?;
        let rts = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
        self.apply(&mut core, &attr, rts, QpState::Rts, None)
    }
}

/// What the connection manager moves a queue pair to RTR with, but for its access flags.
pub(crate) fn rtr_attr(attributes: &RtrAttributes, device: &Device) -> (QpAttr, QpAttrMask) {
    let attr = QpAttr {
        qp_state: QpState::Rtr,
        ah_attr: ah_attr(&attributes.path, device),
        path_mtu: mtu_code(attributes.path_mtu),
        dest_qp_num: attributes.dest_qpn,
        rq_psn: attributes.rq_psn.get(),
        max_dest_rd_atomic: attributes.max_dest_rd_atomic,
        min_rnr_timer: attributes.min_rnr_timer.get(),
        ..QpAttr::default()
    };
    let mut mask = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN;
    if matches!(attributes.qp_type, QpType::Rc | QpType::XrcRecv) {
        mask |= QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
    }
    (attr, mask)
}

/// What peers may do on a connection: write always, the rest if anything is to be answered.
pub(crate) fn access_of(attributes: &RtrAttributes) -> Access {
    let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    match attributes.max_dest_rd_atomic {
        0 => write,
        _ => write | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
    }
}

/// What the connection manager moves a queue pair to RTS with.
pub(crate) fn rts_attr(attributes: &RtsAttributes, qp_type: QpType) -> (QpAttr, QpAttrMask) {
    let attr = QpAttr {
        qp_state: QpState::Rts,
        sq_psn: attributes.sq_psn.get(),
        timeout: attributes.timeout.get(),
        retry_cnt: attributes.retry_count.get(),
        rnr_retry: attributes.rnr_retry_count.get(),
        max_rd_atomic: attributes.max_rd_atomic,
        ..QpAttr::default()
    };
    let mut mask = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
    if matches!(qp_type, QpType::Rc | QpType::XrcSend) {
        mask |= QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC;
    }
    if qp_type.is_reliable() {
        mask |= QpAttrMask::TIMEOUT;
    }
    (attr, mask)
}

fn ah_attr(path: &QpPath, device: &Device) -> AhAttr {
    let own = path.local_gid.to_ip();
    let index = device
        .addresses()
        .iter()
        .position(|address| *address == own);
    // An address of 127.0.0.0/8 is no entry of its own.
    let index = index.and_then(|index| u8::try_from(index).ok());
    let mut attr = AhAttr::new(path.remote_gid, index.unwrap_or(0));
    attr.grh.flow_label = path.flow_label.get();
    attr.grh.hop_limit = path.hop_limit;
    attr.grh.traffic_class = path.traffic_class;
    attr.sl = path.sl;
    attr
}

const fn mtu_code(mtu: PathMtu) -> u32 {
    (match mtu {
        PathMtu::Mtu256 => IbMtu::Mtu256,
        PathMtu::Mtu512 => IbMtu::Mtu512,
        PathMtu::Mtu1024 => IbMtu::Mtu1024,
        PathMtu::Mtu2048 => IbMtu::Mtu2048,
        PathMtu::Mtu4096 => IbMtu::Mtu4096,
    }) as u32
}

/// The attributes as proto knows them; a value that it could not hold is refused if it counts.
fn attributes(attr: &QpAttr, mask: QpAttrMask) -> Result<QpAttributes> {
    let path_mtu = match attr.path_mtu {
        code @ 1..=5 => PathMtu::ALL[code as usize - 1],
        _ if mask.contains(QpAttrMask::PATH_MTU) => {
            return Err(Error::invalid("path_mtu", "must be in 1 ..= 5"));
        }
        _ => PathMtu::Mtu256,
    };
    Ok(QpAttributes {
        cur_state: attr.cur_qp_state,
        access: attr.qp_access_flags,
        qkey: Qkey::new(attr.qkey),
        path_mtu,
        dest_qpn: attr.dest_qp_num,
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        min_rnr_timer: attr.min_rnr_timer,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        en_sqd_async_notify: attr.en_sqd_async_notify,
    })
}
