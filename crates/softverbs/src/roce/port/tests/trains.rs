//! Several packets of one message as one: together by a lane, apart everywhere else.

use std::ops::Range;

use softverbs_proto::roce::train;
use softverbs_wire::codec::Writer;

use super::super::receive::{Arrival, Burst};
use super::traffic::two_ports;
use super::*;

const MTU: usize = 1024;

/// A train of UC, whose last packet is not full.
struct Train {
    headers: Headers,
    count: u32,
    len: usize,
}

impl Train {
    fn new(to: Qpn, psn: u32, count: u32) -> Self {
        let mut headers = Headers::new(Bth::new(Opcode::UC_SEND_ONLY, to, Psn::new(psn)));
        headers.bth.pad_count = 3;
        Self {
            headers,
            count,
            len: count as usize * MTU - 103,
        }
    }

    fn part(&self, packets: &Range<u32>) -> (Headers, Vec<u8>) {
        let headers = train::part(&self.headers, self.count, packets);
        let payload = train::payload_of(self.len, MTU, packets);
        let payload = payload.map(|at| payload_octet(9, at)).collect();
        (headers, payload)
    }
}

impl Packets for Train {
    fn count(&self) -> usize {
        self.count as usize
    }

    fn together(&self, index: usize) -> u32 {
        self.count - u32::try_from(index).unwrap()
    }

    fn len_of(&self, index: usize, count: u32) -> usize {
        let first = u32::try_from(index).unwrap();
        let (headers, payload) = self.part(&(first..first + count));
        headers.header_len() + payload.len() + usize::from(headers.bth.pad_count)
    }

    fn write(
        &self,
        index: usize,
        count: u32,
        place: &mut [u8],
    ) -> std::result::Result<(), MemoryFault> {
        let first = u32::try_from(index).unwrap();
        let (headers, payload) = self.part(&(first..first + count));
        let (front, rest) = place.split_at_mut(headers.header_len());
        headers.emit(&mut Writer::new(front));
        let (middle, pad) = rest.split_at_mut(payload.len());
        middle.copy_from_slice(&payload);
        pad.fill(0);
        Ok(())
    }
}

/// Opcode, number, count and payload.
type Unit = (Opcode, u32, u32, Vec<u8>);

/// What came.
#[derive(Default)]
struct Came(Mutex<Vec<Unit>>);

impl PacketSink for Came {
    fn packet(&self, _: Time, packet: &Packet<'_>, meta: &PacketMeta, _: &ReceivedFrom) {
        let bth = &packet.headers.bth;
        let came = (
            bth.opcode,
            bth.psn.get(),
            meta.packets,
            packet.payload.to_vec(),
        );
        self.0.lock().unwrap().push(came);
    }

    fn burst_end(&self) {}
}

fn sink(port: &Port) -> (Qpn, Arc<Came>) {
    let came = Arc::new(Came::default());
    let qpn = port.alloc_qpn().unwrap();
    let sink: Weak<Came> = Arc::downgrade(&came);
    port.register(qpn, sink);
    (qpn, came)
}

/// All packets are there, each alone.
fn are_apart(came: &Came, psn: u32, train: &Train) {
    let came = came.0.lock().unwrap();
    assert_eq!(came.len(), train.count as usize);
    for (index, (opcode, number, packets, payload)) in (0..).zip(&*came) {
        let expected = match index {
            0 => Opcode::UC_SEND_FIRST,
            _ if index + 1 == train.count => Opcode::UC_SEND_LAST,
            _ => Opcode::UC_SEND_MIDDLE,
        };
        assert_eq!((*opcode, *number, *packets), (expected, psn + index, 1));
        assert!(*payload == train.part(&(index..index + 1)).1);
    }
}

#[test]
fn over_udp_each_packet_is_alone() {
    for address in [V4, V6] {
        let (_folder, one, other) = two_ports();
        let (qpn, came) = sink(other);
        let train = Train::new(qpn, 5, 16);
        let path = SendPath::new(address, address, qpn);
        assert_eq!(one.send_packets(&train, &path), Sent::Took(16));
        wait_until("all packets", || came.0.lock().unwrap().len() == 16);
        are_apart(&came, 5, &train);
    }
}

#[test]
fn by_a_lane_they_stay_together() {
    let (_folder, one, other) = two_ports();
    let (qpn, came) = sink(other);
    let path = SendPath::new(V4, V4, qpn);
    let mut psn = 0;
    wait_until("a lane", || {
        let packets = Octets(vec![packet(qpn, psn, 8)]);
        assert_eq!(one.send_packets(&packets, &path), Sent::Took(1));
        psn += 1;
        one.counters().lane_out > 0
    });
    wait_until("all packets", || {
        came.0.lock().unwrap().len() == psn as usize
    });
    came.0.lock().unwrap().clear();
    let train = Train::new(qpn, psn, 16);
    let before = other.counters();
    assert_eq!(one.send_packets(&train, &path), Sent::Took(16));
    wait_until("all packets", || {
        other.counters().packets_in == before.packets_in + 16
    });
    assert_eq!(other.counters().lane_in, before.lane_in + 16);
    let came = came.0.lock().unwrap();
    let whole = (Opcode::UC_SEND_ONLY, psn, 16, train.part(&(0..16)).1);
    assert!(*came == [whole]);
}

/// Where it is not for a queue pair of this process, or packets are disturbed.
#[test]
fn a_train_is_taken_apart() {
    let (_folder, _, other) = two_ports();
    let (qpn, came) = sink(other);
    let arrival = Arrival {
        from: ReceivedFrom {
            local: V4,
            remote: V4,
            source_port: 7,
            interface: 0,
        },
        traffic_class: 0,
        to_port: 8,
        ident: 0,
        by_lane: true,
    };
    let train = Train::new(qpn, 70, 7);
    let mut octets = vec![0; train.len_of(0, 7) + 4];
    train
        .write(0, 7, &mut octets[..train.len_of(0, 7)])
        .unwrap();
    let mut burst = Burst::new(other, false);
    burst.take_apart(&arrival, &octets, 7);
    are_apart(&came, 70, &train);
    // The count is wrong.
    for count in [3, 6, 8, 100, usize::MAX] {
        burst.take_apart(&arrival, &octets, count);
    }
    assert_eq!(other.counters().malformed, 5);
    burst.end();
    assert_eq!(came.0.lock().unwrap().len(), 7);
}
