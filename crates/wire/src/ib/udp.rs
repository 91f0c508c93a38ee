//! UDP below the transport (IBA annex A17).

use crate::num::{FlowLabel, Qpn};

/// The UDP destination port of every RoCEv2 datagram.
pub const ROCE_PORT: u16 = 4791;

/// Where the source ports start: they carry 14 bits of the flow.
const SOURCE_PORT_BASE: u16 = 0xc000;

/// The UDP source port that senders of the field give to a flow, so that networks spread flows by
/// it. Receivers do not look at it.
pub const fn source_port(flow: FlowLabel) -> u16 {
    let flow = flow.get();
    SOURCE_PORT_BASE | ((flow ^ (flow >> 14)) & 0x3fff) as u16
}

/// The flow label that the RDMA CM gives to a connection between two of its ports; it travels in
/// the connection request, so both sides use it.
pub const fn flow_label_of_ports(source: u16, destination: u16) -> FlowLabel {
    FlowLabel::new(source as u32 * 31 + destination as u32)
}

/// The flow label of a connection whose address names none.
pub const fn flow_label_of_qps(local: Qpn, remote: Qpn) -> FlowLabel {
    let mut flow = local.get() as u64 * remote.get() as u64;
    flow ^= flow >> 20;
    flow ^= flow >> 40;
    FlowLabel::new((flow & 0x000f_ffff) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of a captured connection: ports, the label in its request, the port of its packets.
    #[test]
    fn as_captured() {
        let flow = flow_label_of_ports(0xe3c7, 7174);
        assert_eq!(flow, FlowLabel::new(0xbb11f));
        assert_eq!(source_port(flow), 0xf131);
    }

    #[test]
    fn every_flow_has_a_dynamic_port() {
        for flow in [0, 1, 0x3fff, 0x4000, 0x000f_ffff] {
            assert!(source_port(FlowLabel::new(flow)) >= 0xc000);
        }
        assert_eq!(source_port(FlowLabel::new(0x000f_ffff)), 0xc000 | 0x3fc0);
    }

    #[test]
    fn flows_of_queue_pairs() {
        assert_eq!(flow_label_of_qps(Qpn::new(3), Qpn::new(5)).get(), 15);
        let largest = Qpn::new(0x00ff_ffff);
        let product = 0x00ff_ffff_u64 * 0x00ff_ffff;
        let folded = product ^ product >> 20;
        let expected = (folded ^ folded >> 40) & 0x000f_ffff;
        assert_eq!(
            u64::from(flow_label_of_qps(largest, largest).get()),
            expected
        );
    }
}
