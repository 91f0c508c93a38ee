//! Packets that came for a queue pair.

use softverbs_proto::qp_state::QpType;
use softverbs_proto::roce::queue_pair::PacketMeta as ProtoMeta;
use softverbs_proto::time::Time;
use softverbs_wire::ib::Packet;

use super::at_once::written_by;
use crate::qp::{QpInner, QpMemory};
use crate::roce::address::grh_area;
use crate::roce::port::{Grantor, PacketMeta, PacketSink, ReceivedFrom, Run};

impl QpInner {
    /// Packets that came together.
    fn receive_packets<'p>(
        &self,
        now: Time,
        from: &ReceivedFrom,
        grantor: Option<Grantor<'_>>,
        mut next: impl FnMut() -> Option<(Packet<'p>, PacketMeta)>,
    ) {
        let mut core = self.lock();
        let Some(roce) = core.roce() else { return };
        let is_from_peer = roce.is_from_peer(from);
        let datagram = roce.queue_pair.config().qp_type == QpType::Ud;
        let before = roce.queue_pair.counters().dropped;
        let mut memory = QpMemory::new(self);
        let mut last_write = None;
        while let Some((packet, meta)) = next() {
            if !is_from_peer {
                roce.port.note_not_from_peer();
                continue;
            }
            let meta = ProtoMeta {
                packets: meta.packets,
                ecn_ce: meta.congested(),
                grh: datagram.then(|| grh_area(&meta, from)),
            };
            roce.queue_pair.on_packet(now, &mut memory, &packet, &meta);
            last_write = written_by(&packet).or(last_write);
        }
        drop(memory);
        if let Some(grantor) = grantor.filter(|_| !datagram) {
            self.note_write(roce, &grantor, last_write);
        }
        let dropped = roce.queue_pair.counters().dropped - before;
        roce.port.note_no_use(dropped);
    }
}

impl PacketSink for QpInner {
    fn packet(&self, now: Time, packet: &Packet<'_>, meta: &PacketMeta, from: &ReceivedFrom) {
        let mut one = Some((*packet, *meta));
        self.receive_packets(now, from, None, || one.take());
    }

    fn packets(&self, now: Time, run: &mut Run<'_>, from: &ReceivedFrom) {
        self.receive_packets(now, from, run.grantor(), || run.next());
    }

    fn burst_end(&self) {
        let mut core = self.lock();
        let Some(roce) = core.roce() else { return };
        let connection = roce.connection;
        if self.acknowledges_later(roce) {
            // What was answered may have set another deadline.
            roce.set_timer(self.engine);
            self.settle_packets(&mut core);
            self.acknowledge_later();
        } else {
            self.transmit(&mut core);
        }
        drop(core);
        if let Some(connection) = connection {
            connection.manager.pump_noted();
        }
    }

    fn room(&self) {
        let mut core = self.lock();
        if let Some(roce) = core.roce() {
            roce.waiting = false;
        }
        self.transmit(&mut core);
    }
}
