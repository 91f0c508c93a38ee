//! Bugs that users of software RDMA have reported, one test each where it is a question of this
//! layer. The numbers are those of the project's catalogue of reports.

mod roce_common;

use roce_common::*;
use smallvec::smallvec;
use softverbs_proto::memory::{Access, Memory, MemoryFault};
use softverbs_proto::qp_state::QpState;
use softverbs_proto::roce::queue_pair::{
    PacketBatch, PacketMeta, QpAttributes, QpEvent, QueuePair,
};
use softverbs_proto::transmit::Piece;
use softverbs_proto::wr::{
    Payload, RecvRequest, SendFlags, SendOp, SendRequest, Sge, WcOpcode, WcStatus,
};
use softverbs_wire::ib::{Opcode, Packet, Reth, Trailer};
use softverbs_wire::num::{Lkey, PathMtu, Rkey, VirtualAddress};

fn pair() -> Pair {
    let mut pair = Pair::good();
    let access = VecMemory::all_access();
    pair.a.memory.add(1, 0, access, &pattern(1, 10_000));
    pair.b.memory.add(2, 0, access, &pattern(2, 10_000));
    pair
}

#[test]
fn b37_writes_longer_than_the_mtu() {
    let mut pair = pair();
    for len in [1025, 2049, 10_000] {
        pair.a.post(wr(1, write_op(2, 0), sge(1, 0, len)));
        pair.run();
        assert_eq!(pair.b.memory.octets(2)[..len], pattern(1, len));
    }
    assert_eq!(pair.a.sent.len(), 3);
}

#[test]
fn b38_pad_aligns_every_packet() {
    let mut pair = pair();
    for len in 0..9 {
        pair.a.post(wr(1, write_op(2, 0), sge(1, 0, len)));
        let packets = pair.a.transmit_all(pair.now);
        let packet = Packet::parse(&packets[0]).unwrap();
        let pad = usize::from(packet.headers.bth.pad_count);
        assert_eq!((packet.payload.len(), (len + pad) % 4), (len, 0));
        assert!(packet.trailer.pad().iter().all(|octet| *octet == 0));
        pair.run();
    }
}

#[test]
fn b39_two_writes_with_a_bad_key() {
    let mut pair = pair();
    for wr_id in [1, 2] {
        pair.a.post(wr(wr_id, write_op(9, 0), sge(1, 0, 8)));
    }
    pair.run();
    assert_eq!(
        pair.a.statuses(),
        [(1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)]
    );
}

#[test]
fn b47_write_with_immediate_has_a_length() {
    let mut pair = pair();
    pair.b.memory.post_receive(7, []);
    let op = SendOp::WriteWithImm {
        remote_addr: 5,
        rkey: rkey(2),
        imm: 1,
    };
    pair.a.post(wr(1, op, sge(1, 0, 3000)));
    pair.run();
    let done = pair.b.received[0];
    assert_eq!(
        (done.opcode, done.byte_len),
        (WcOpcode::RecvRdmaWithImm, 3000)
    );
}

#[test]
fn b50_zero_length_operations_ignore_the_key() {
    let mut pair = pair();
    for op in [write_op(0, 0), read_op(0, 0)] {
        pair.a.post(wr(1, op, sge(0, 0, 0)));
        pair.a.post(SendRequest {
            wr_id: 2,
            op,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(smallvec![]),
        });
    }
    pair.run();
    pair.assert_connected();
    assert_eq!(pair.a.sent.len(), 4);
}

#[test]
fn b59_inline_data_is_that_of_the_post() {
    let mut pair = pair();
    pair.b.memory.post_receive(7, [sge(2, 0, 10_000)]);
    let data = pattern(9, 3000);
    pair.a.post(inline(1, SendOp::Send, &data));
    pair.network.drop = 30;
    pair.run();
    assert_eq!(pair.b.memory.octets(2)[..3000], data);
}

#[test]
fn b66_mig_req_is_set_in_every_packet() {
    let mut pair = pair();
    pair.b.memory.post_receive(7, [sge(2, 0, 10)]);
    for (wr_id, op) in (0..).zip([SendOp::Send, read_op(2, 0), fetch_add(2, 0, 1)]) {
        pair.a.post(wr(wr_id, op, sge(1, 0, 8)));
    }
    pair.run();
    let all = pair.a.record.iter().chain(&pair.b.record);
    assert!(all.clone().count() >= 6);
    assert!(all.clone().all(|(_, headers)| headers.bth.mig_req));
}

#[test]
fn b70_last_wqe_reached_is_raised() {
    let mut pair = pair();
    pair.b.memory.post_receive(7, [sge(2, 0, 4)]);
    pair.a.post(inline(1, SendOp::Send, b"too long"));
    pair.run();
    for end in [&pair.a, &pair.b] {
        assert_eq!(end.qp.state(), QpState::Err);
        assert_eq!(end.events.last(), Some(&QpEvent::LastWqeReached));
    }
}

#[test]
fn b75_sixteen_reads_at_once() {
    let mut pair = Pair::new(
        QpAttributes {
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            ..attributes()
        },
        Network::GOOD,
        1,
    );
    let access = VecMemory::all_access();
    pair.a.memory.add(1, 0, access, &[0; 4000]);
    pair.b.memory.add(2, 0, access, &pattern(2, 4000));
    for wr_id in 0..32 {
        let at = wr_id * 100;
        pair.a.post(wr(wr_id, read_op(2, at), sge(1, at, 100)));
    }
    let asked = pair.a.transmit_all(pair.now);
    assert_eq!(asked.len(), 16);
    for octets in asked {
        pair.b.feed(pair.now, &octets, &PacketMeta::default());
    }
    assert_eq!(pair.b.qp.state(), QpState::Rts);
    pair.run();
    pair.assert_connected();
    assert_eq!(pair.a.memory.octets(1)[..3200], pattern(2, 3200));
}

#[test]
fn b79_the_state_is_always_one_of_the_enumeration() {
    let mut pair = pair();
    pair.a.post(wr(1, write_op(9, 0), sge(1, 0, 8)));
    let mut seen = Vec::new();
    while pair.step(micros(1_000_000)) {
        seen.push(pair.a.qp.state());
    }
    seen.dedup();
    assert_eq!(seen, [QpState::Rts, QpState::Err]);
}

/// Memory without octets, of any size.
struct Endless {
    written: u64,
}

impl Memory for Endless {
    fn check_local(&self, _: &Sge, _: Access) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn check_remote(&self, _: Rkey, addr: u64, len: u64, _: Access) -> Result<(), MemoryFault> {
        addr.checked_add(len).map(|_| ()).ok_or(MemoryFault::Wrap)
    }

    fn invalidate(&mut self, _: Rkey) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn read(&self, _: Lkey, _: u64, _: &mut [u8]) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn write(&mut self, _: Lkey, addr: u64, data: &[u8]) -> Result<(), MemoryFault> {
        assert_eq!(addr, self.written, "in order, without gaps");
        self.written += data.len() as u64;
        Ok(())
    }

    fn atomic(
        &mut self,
        _: Rkey,
        _: u64,
        _: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, MemoryFault> {
        Ok(0)
    }

    fn take_receive(&mut self) -> Option<RecvRequest> {
        None
    }
}

/// Hands all packets of one end to the other; payload is zeros.
fn carry(from: &mut QueuePair, to: &mut QueuePair, memory: &mut Endless, batch: &mut PacketBatch) {
    batch.clear();
    from.poll_transmit(micros(0), memory, batch, 64);
    for frame in batch.frames() {
        let [Piece::Scratch { start, len }, payload @ ..] = batch.pieces(frame) else {
            panic!("no headers")
        };
        let mut octets = batch.scratch()[*start..*start + *len].to_vec();
        octets.extend_from_slice(&[0; 4]);
        let payload_len: usize = payload.iter().map(Piece::len).sum();
        let mut packet = Packet::parse(&octets).unwrap_or_else(|_| panic!("{octets:?}"));
        packet.payload = &[0; 4096][..payload_len];
        packet.trailer = Trailer::new(payload_len, [0; 4]);
        to.on_packet(micros(0), memory, &packet, &PacketMeta::default());
    }
}

/// B51: the longest message is 2³¹ octets, and it works.
#[test]
fn b51_the_longest_message() {
    let attributes = QpAttributes {
        path_mtu: PathMtu::Mtu4096,
        ..attributes()
    };
    for op in [write_op(1, 0), read_op(1, 0)] {
        let pair = Pair::new(attributes, Network::GOOD, 1);
        let (mut a, mut b) = (pair.a.qp, pair.b.qp);
        let mut memory = Endless { written: 0 };
        let mut batch = PacketBatch::new();
        a.post_send(wr(1, op, sge(1, 0, 1 << 31))).unwrap();
        while a.outstanding() > 0 {
            carry(&mut a, &mut b, &mut memory, &mut batch);
            carry(&mut b, &mut a, &mut memory, &mut batch);
        }
        let done = a.poll_send_completion().unwrap();
        assert_eq!((done.status, done.byte_len), (WcStatus::Success, 1 << 31));
        assert_eq!(memory.written, 1 << 31);
    }
}

/// At the smallest path MTU the longest message takes half of all sequence numbers.
#[test]
fn b51_the_longest_message_at_the_smallest_mtu() {
    let attributes = QpAttributes {
        path_mtu: PathMtu::Mtu256,
        ..attributes()
    };
    let pair = Pair::new(attributes, Network::GOOD, 1);
    let (mut a, mut b) = (pair.a.qp, pair.b.qp);
    let mut memory = Endless { written: 0 };
    let mut batch = PacketBatch::new();
    a.post_send(wr(1, read_op(1, 0), sge(1, 0, 1 << 31)))
        .unwrap();
    for _ in 0..10 {
        carry(&mut a, &mut b, &mut memory, &mut batch);
        carry(&mut b, &mut a, &mut memory, &mut batch);
    }
    assert!(memory.written > 64 * 256, "{}", memory.written);
    // A peer that asks for all of it at once is served as well.
    let mut end = Pair::new(attributes, Network::GOOD, 1).b.qp;
    let headers = bth(Opcode::RC_READ_REQUEST, B_QPN, A_PSN).with_reth(Reth {
        va: VirtualAddress::new(0),
        rkey: rkey(1),
        dma_len: 1 << 31,
    });
    let octets = built(headers, &[]);
    let packet = Packet::parse(&octets).unwrap();
    end.on_packet(micros(0), &mut memory, &packet, &PacketMeta::default());
    let mut count = 0u32;
    while end.wants_transmit() {
        batch.clear();
        end.poll_transmit(micros(0), &mut memory, &mut batch, 4096);
        count += u32::try_from(batch.len()).unwrap();
    }
    assert_eq!(count, 1 << 23);
    assert_eq!(end.state(), QpState::Rts);
}
