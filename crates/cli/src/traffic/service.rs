//! Unreliable queue pairs. They are connected by hand, with the numbers that travel in the requests
//! of the reliable connection beside them; what may be lost is nothing but messages.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use softverbs::{
    Access, AhAttr, Context, Gid, IbMtu, Pd, Qp, QpAttr, QpAttrMask, QpInitAttr, QpState, QpType,
    Qpn,
};

use super::lane::Lane;
use crate::exchange::LaneKeys;
use crate::failure::{Failure, Outcome};
use crate::plan::{Connection, Workload};

/// The key of all datagram queue pairs of this program.
pub(crate) const QKEY: u32 = 0x5356_4543;

/// The only port of a device.
const PORT: u8 = 1;

/// Refuses a path MTU that the port has not got.
pub(crate) fn check_port(context: &Context, workload: &Workload) -> Outcome<()> {
    let Some(mtu) = workload.mtu else {
        return Ok(());
    };
    let most = active_mtu(context)?;
    if mtu <= most {
        return Ok(());
    }
    Err(Failure::run(format!(
        "--mtu {mtu} is more than the port of {} has: {most}",
        context.device().name()
    )))
}

/// The path MTU of the port, in octets.
pub(crate) fn active_mtu(context: &Context) -> Outcome<u16> {
    let octets = context.query_port(PORT)?.active_mtu.octets();
    Ok(u16::try_from(octets).unwrap_or(u16::MAX))
}

/// A number of 24 bits.
pub(crate) fn random_psn() -> u32 {
    (RandomState::new().hash_one(0) >> 40) as u32
}

/// An unreliable queue pair that takes receives.
pub(crate) fn create(pd: &Pd, attr: &QpInitAttr<'_>, workload: &Workload) -> Outcome<Qp> {
    let (qp_type, own) = match workload.connection {
        Connection::Ud => (QpType::Ud, QpAttrMask::QKEY),
        Connection::Uc | Connection::Rc => (QpType::Uc, QpAttrMask::ACCESS_FLAGS),
    };
    let qp = pd.create_qp(&QpInitAttr { qp_type, ..*attr })?;
    let init = QpAttr {
        qp_state: QpState::Init,
        qkey: QKEY,
        qp_access_flags: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
    qp.modify(&init, mask | own)?;
    Ok(qp)
}

/// Gets an unreliable queue pair ready to send to its peer, along the way of the connection
/// beside it.
pub(crate) fn connect(
    lane: &mut Lane,
    pd: &Pd,
    workload: &Workload,
    peer: &LaneKeys,
) -> Outcome<()> {
    let (Some(local), Some(remote)) = (lane.id.local_addr(), lane.id.peer_addr()) else {
        return Err(Failure::run("the connection has no addresses"));
    };
    let remote = remote.ip().to_canonical();
    let ah_attr = AhAttr::new(remote.into(), gid_index(pd.context(), local.ip())?);
    let mut attr = QpAttr {
        qp_state: QpState::Rtr,
        ah_attr,
        path_mtu: IbMtu::at_most(workload.mtu.unwrap_or_default().into()) as u32,
        dest_qp_num: Qpn::new(peer.qpn),
        rq_psn: peer.psn,
        sq_psn: lane.psn,
        ..QpAttr::default()
    };
    let connected = match workload.connection {
        Connection::Ud => {
            lane.ah = Some(pd.create_ah(&ah_attr)?);
            QpAttrMask::empty()
        }
        Connection::Uc | Connection::Rc => {
            QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN
        }
    };
    lane.qp.modify(&attr, QpAttrMask::STATE | connected)?;
    attr.qp_state = QpState::Rts;
    lane.qp
        .modify(&attr, QpAttrMask::STATE | QpAttrMask::SQ_PSN)?;
    Ok(())
}

/// Where the GID table has an own address.
fn gid_index(context: &Context, address: IpAddr) -> Outcome<u8> {
    let gid = Gid::from(address.to_canonical());
    for index in 0..context.query_port(PORT)?.gid_tbl_len {
        if context.query_gid(PORT, index)? == gid {
            return Ok(u8::try_from(index).unwrap_or(u8::MAX));
        }
    }
    Err(Failure::run(format!(
        "{} has no GID of {address}",
        context.device().name()
    )))
}
