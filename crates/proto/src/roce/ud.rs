//! Unreliable datagrams: each request is one packet with an address of its own.

use softverbs_wire::ib::{Deth, GrhArea, Headers, Packet, Position, Service};

use super::batch::{Destination, PacketBatch};
use super::inbound::{check_receive, failed_receive, immediate, octets};
use super::packets::{self, Source, scatter};
use super::queue_pair::{
    NetworkHeader, PacketMeta, QpFailure, QueuePair, RecvCompletion, UdSource,
};
use super::requester::message_headers;
use crate::memory::Memory;
use crate::qp_state::QpState;
use crate::wr::{Completion, Payload, WcOpcode, WcStatus};

impl QueuePair {
    /// The oldest request, as a datagram.
    pub(super) fn transmit_datagram<M: Memory>(&mut self, memory: &M, out: &mut PacketBatch) {
        let Some(entry) = self.sq.current() else {
            return;
        };
        let total = entry.request.payload.len();
        let mtu = self.config.port_mtu.octets();
        let Some(len) = usize::try_from(total).ok().filter(|len| *len <= mtu) else {
            return self.sq.fail_current(WcStatus::LocLenErr);
        };
        if let Err(status) = self.check_request(memory, &entry.request) {
            return self.sq.fail_current(status);
        }
        let to = entry.destination;
        let qkey = if to.remote_qkey.is_controlled() {
            self.attributes.qkey
        } else {
            to.remote_qkey
        };
        let mut headers: Headers =
            message_headers(&entry.request, Service::Ud, Position::Only, total);
        headers.bth.dest_qp = to.remote_qpn;
        headers.bth.psn = self.requester.next;
        headers = headers.with_deth(Deth::new(qkey, self.config.qpn));
        let source = match &entry.request.payload {
            Payload::Sges(sges) => Source::Local {
                sges,
                offset: 0,
                len,
            },
            Payload::Inline(data) => Source::Inline(data),
        };
        let destination = Destination::Address(to.address);
        let limit = self.config.copy_limit;
        if packets::emit(memory, out, limit, destination, headers, source).is_err() {
            return self.sq.fail_current(WcStatus::LocProtErr);
        }
        self.requester.next = self.requester.next.next();
        self.sq.advance();
        self.message_yielded();
    }

    /// A datagram. One that is not meant for us, or too long for the receive, leaves no trace: the
    /// next datagram gets the same receive.
    pub(super) fn on_datagram<M: Memory>(
        &mut self,
        memory: &mut M,
        packet: &Packet<'_>,
        meta: &PacketMeta,
    ) {
        let receives = matches!(
            self.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        );
        let source = packet
            .headers
            .deth
            .filter(|deth| receives && deth.qkey == self.attributes.qkey)
            .filter(|_| packet.payload.len() <= self.config.port_mtu.octets());
        let Some((source, receive)) = source.and_then(|deth| {
            let receive = self.take_receive(memory)?;
            Some((deth.src_qp, receive))
        }) else {
            self.counters.dropped += 1;
            return;
        };
        let capacity: u64 = receive.sges.iter().map(|sge| u64::from(sge.length)).sum();
        let len = (GrhArea::LEN + packet.payload.len()) as u64;
        if len > capacity {
            self.counters.dropped += 1;
            self.responder.spare = Some(receive);
            return;
        }
        let placed = check_receive(memory, &receive).and_then(|()| {
            if let Some(grh) = &meta.grh {
                scatter(memory, &receive.sges, 0, grh)?;
            }
            let after = GrhArea::LEN as u64;
            scatter(memory, &receive.sges, after, packet.payload)
        });
        if placed.is_err() {
            self.received(failed_receive(&receive, WcStatus::LocProtErr));
            return self.fail(QpFailure::Local, None);
        }
        self.recv_completions.push_back(RecvCompletion {
            completion: Completion {
                wr_id: receive.wr_id,
                status: WcStatus::Success,
                opcode: WcOpcode::Recv,
                byte_len: octets(len),
                imm: immediate(packet),
                invalidated: None,
                solicited: packet.headers.bth.solicited,
            },
            source: Some(UdSource {
                qpn: source,
                grh: meta.grh.as_ref().map(NetworkHeader::of),
            }),
            srq: None,
        });
    }
}
