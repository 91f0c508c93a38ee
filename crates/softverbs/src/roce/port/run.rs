//! Packets that came together.

use softverbs_wire::ib::Packet;

use super::Port;
use super::border::PacketMeta;
use super::lane::{Grantor, LaneRun};
use super::receive::Arrival;

/// Packets that came together, for one queue pair. Each is checked when it is asked for.
pub(crate) struct Run<'a> {
    pub(super) port: &'a Port,
    pub(super) arrival: Arrival,
    pub(super) packets: Together<'a>,
}

/// How packets come together.
pub(super) enum Together<'a> {
    /// As datagrams that the kernel has put together: each of so many octets but the last.
    Datagrams { octets: &'a [u8], segment: usize },
    /// By a lane.
    Lane(LaneRun<'a>),
}

impl<'a> Together<'a> {
    /// The octets of the next packet or train, and how many packets it is.
    fn next(&mut self) -> Option<(&'a [u8], usize)> {
        match self {
            Self::Datagrams { octets, segment } => {
                let (first, rest) = octets.split_at((*segment).min(octets.len()));
                *octets = rest;
                (!first.is_empty()).then_some((first, 1))
            }
            Self::Lane(run) => run.next(),
        }
    }
}

impl<'a> Run<'a> {
    /// The lane that they have come by.
    pub(crate) const fn grantor(&self) -> Option<Grantor<'a>> {
        match &self.packets {
            Together::Datagrams { .. } => None,
            Together::Lane(run) => Some(run.grantor()),
        }
    }

    /// The next one, or the next train, whose ICRC is right.
    pub(crate) fn next(&mut self) -> Option<(Packet<'a>, PacketMeta)> {
        while let Some((octets, packets)) = self.packets.next() {
            let checked = self.port.check(&self.arrival, octets);
            self.arrival.ident = self.arrival.ident.wrapping_add(1);
            if let Some(packet) = checked {
                let len = octets.len();
                let traffic_class = self.arrival.traffic_class;
                let packets = u32::try_from(packets).unwrap_or(u32::MAX);
                let meta = PacketMeta {
                    len,
                    packets,
                    traffic_class,
                };
                return Some((packet, meta));
            }
        }
        None
    }
}
