//! What passes between the port and those who use it.

use std::net::IpAddr;
use std::sync::atomic::AtomicU64;

use softverbs_proto::memory::MemoryFault;
use softverbs_proto::time::Time;
use softverbs_wire::ib::Packet;
use softverbs_wire::ib::mad::MAD_LEN;
use softverbs_wire::num::Qpn;

use super::lane::PathLane;
use super::run::Run;

/// Whom packets are for: a queue pair.
///
/// Called on whichever thread receives, packets of one sender in their order. A queue pair may
/// send from within; it must not [poll](super::Port::poll).
pub(crate) trait PacketSink: Send + Sync {
    /// A packet whose ICRC was right.
    fn packet(&self, now: Time, packet: &Packet<'_>, meta: &PacketMeta, from: &ReceivedFrom);

    /// Several packets that came together.
    fn packets(&self, now: Time, run: &mut Run<'_>, from: &ReceivedFrom) {
        while let Some((packet, meta)) = run.next() {
            self.packet(now, &packet, &meta, from);
        }
    }

    /// There are no more packets for now: the moment to answer them all at once.
    fn burst_end(&self);

    /// After [`Sent::Blocked`] and [`Port::wait_for_room`](super::Port::wait_for_room): there is
    /// room again.
    fn room(&self) {}
}

/// Whom management datagrams are for: the connection manager.
pub(crate) trait GsiSink: Send + Sync {
    /// A datagram to QP1 whose packet was well formed.
    fn mad(&self, now: Time, from: &ReceivedFrom, mad: &[u8; MAD_LEN]);
}

/// What a packet's IP header says besides the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketMeta {
    /// Octets of the datagram: BTH to ICRC.
    pub(crate) len: usize,
    /// How many packets it is: more than one if it is a train, which has come by shared memory.
    pub(crate) packets: u32,
    /// Type of service or traffic class; its low two bits are the ECN field.
    pub(crate) traffic_class: u8,
}

impl PacketMeta {
    /// The packet has met congestion (ECN: CE).
    pub(crate) const fn congested(&self) -> bool {
        self.traffic_class & 3 == 3
    }
}

/// The addresses of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReceivedFrom {
    /// Its destination: an address of this host, or a multicast group.
    pub(crate) local: IpAddr,
    /// Its source.
    pub(crate) remote: IpAddr,
    /// Its UDP source port.
    pub(crate) source_port: u16,
    /// The interface that it came in by; what a link-local address needs to be answered.
    pub(crate) interface: u32,
}

/// An address between processes: its octets, behind which those of IPv4 have zeros.
pub(super) fn octets_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            octets
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// The address with these octets; of IPv6 unless the family is 4.
pub(super) fn address_of(family: u8, octets: [u8; 16]) -> IpAddr {
    let [a, b, c, d, ..] = octets;
    match family {
        4 => IpAddr::from([a, b, c, d]),
        _ => IpAddr::from(octets),
    }
}

/// Where packets go.
#[derive(Debug)]
pub(crate) struct SendPath {
    /// Source address, one of this host's.
    pub(crate) local: IpAddr,
    /// Destination address, or a multicast group.
    pub(crate) remote: IpAddr,
    /// The interface, for link-local addresses and groups; otherwise 0.
    pub(crate) interface: u32,
    /// Type of service or traffic class, the ECN field included.
    pub(crate) traffic_class: u8,
    /// Time to live or hop limit; 0 is the default, 64.
    pub(crate) hop_limit: u8,
    /// Who sends by it hears of what is lost, and sends it again: a receiver that is slow is waited for.
    pub(crate) reliable: bool,
    /// The queue pair there: decides between this host's processes.
    pub(crate) dest_qpn: Qpn,
    /// The UDP port there and how long that is believed; see `route`.
    pub(super) route: AtomicU64,
    /// Past the kernel, to a process of this host.
    pub(super) lane: PathLane,
}

impl SendPath {
    /// A path with the default traffic class and hop limit.
    pub(crate) const fn new(local: IpAddr, remote: IpAddr, dest_qpn: Qpn) -> Self {
        Self {
            local,
            remote,
            interface: 0,
            traffic_class: 0,
            hop_limit: 0,
            reliable: false,
            dest_qpn,
            route: AtomicU64::new(0),
            lane: PathLane::new(),
        }
    }

    /// The way back to where a packet came from.
    #[cfg(test)]
    pub(super) const fn reply(from: &ReceivedFrom, dest_qpn: Qpn) -> Self {
        let mut path = Self::new(from.local, from.remote, dest_qpn);
        if let IpAddr::V6(remote) = from.remote
            && remote.is_unicast_link_local()
        {
            path.interface = from.interface;
        }
        path
    }
}

/// What became of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// So many are on their way, or lost as on a wire; the others were left because the kernel
    /// has no room now.
    Took(usize),
    /// None: the kernel has no room. See [`Port::wait_for_room`](super::Port::wait_for_room).
    Blocked,
    /// None: the kernel refuses packets of this path, for example because there is no route. As
    /// if the wire had lost them all: they need not be tried again before the time-out.
    Lost {
        /// What the kernel said.
        errno: i32,
    },
    /// So many are on their way; memory of the next one has gone.
    Gone {
        /// Packets before it.
        took: usize,
        /// What is wrong.
        fault: MemoryFault,
    },
}
