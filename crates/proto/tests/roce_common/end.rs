//! One end of the pair: a queue pair and its memory.

use core::ops::Range;

use softverbs_proto::memory::Memory as _;
use softverbs_proto::qp_state::{QpAttrMask, QpState};
use softverbs_proto::roce::queue_pair::{
    Destination, PacketBatch, PacketFrame, PacketMeta, QpAttributes, QpConfig, QpEvent, QueuePair,
    RecvCompletion,
};
use softverbs_proto::time::Time;
use softverbs_proto::transmit::Piece;
use softverbs_proto::wr::{Completion, SendRequest, WcStatus};
use softverbs_wire::ib::{Headers, Opcode, Packet};
use softverbs_wire::num::Pkey;

use super::{Random, VecMemory, built, masks, statuses};

#[derive(Debug)]
pub struct End {
    pub qp: QueuePair,
    pub memory: VecMemory,
    pub events: Vec<QpEvent>,
    pub sent: Vec<Completion>,
    pub received: Vec<Completion>,
    pub sources: Vec<RecvCompletion>,
    /// Headers of everything that this end sent, and when.
    pub record: Vec<(Time, Headers)>,
    pub max_packets: usize,
    /// Trains stay together, in parts of these random lengths; otherwise they are taken apart.
    pub parts: Option<Random>,
    batch: PacketBatch,
}

impl End {
    pub fn new(config: QpConfig) -> Self {
        Self {
            qp: QueuePair::new(config),
            memory: VecMemory::default(),
            events: Vec::new(),
            sent: Vec::new(),
            received: Vec::new(),
            sources: Vec::new(),
            record: Vec::new(),
            max_packets: 64,
            parts: None,
            batch: PacketBatch::new(),
        }
    }

    pub fn post(&mut self, request: SendRequest) {
        self.qp.post_send(request).unwrap();
    }

    pub fn to(&mut self, state: QpState, attributes: &QpAttributes) {
        let [init, rtr, rts] = masks(self.qp.config().qp_type);
        let mask = match state {
            QpState::Init => init,
            QpState::Rtr => rtr,
            QpState::Rts => rts,
            _ => QpAttrMask::STATE,
        };
        self.qp.modify(Time::ZERO, attributes, mask, state).unwrap();
        self.drain();
    }

    /// Transmits once; the packets with room for an ICRC.
    pub fn transmit(&mut self, now: Time) -> Vec<(Destination, Vec<u8>)> {
        let wanted = self.qp.wants_transmit();
        self.batch.clear();
        self.qp
            .poll_transmit(now, &mut self.memory, &mut self.batch, self.max_packets);
        assert!(
            self.batch.packets() <= self.max_packets,
            "more than asked for"
        );
        assert!(
            wanted || self.batch.is_empty(),
            "transmits though it did not want to"
        );
        let mut packets = Vec::new();
        for frame in self.batch.frames() {
            assert!(frame.packets <= self.qp.config().max_train);
            let mut first = 0;
            while first < frame.packets {
                let left = frame.packets - first;
                let count = self.parts.as_mut().map_or(1, |random| {
                    // Half of them whole.
                    let most = random.below(2 * left as usize) + 1;
                    u32::try_from(most).unwrap().min(left)
                });
                let mut octets = self.octets_of(frame, first..first + count);
                assert_eq!(octets.len() % 4, 0);
                octets.extend_from_slice(&[0; 4]);
                let packet = Packet::parse(&octets).expect("we sent a packet");
                assert!(packet.headers.bth.mig_req);
                assert_eq!(packet.headers.bth.pkey, Pkey::DEFAULT);
                self.record.push((now, packet.headers));
                packets.push((frame.destination, octets));
                first += count;
            }
        }
        self.drain();
        packets
    }

    /// A frame, or some packets of a train as one.
    fn octets_of(&self, frame: &PacketFrame, packets: Range<u32>) -> Vec<u8> {
        let mut octets = Vec::new();
        let read = |key, addr, len, octets: &mut Vec<u8>| {
            let at = octets.len();
            octets.resize(at + len, 0);
            self.memory.read(key, addr, &mut octets[at..]).unwrap();
        };
        if packets != (0..frame.packets) {
            let part = self.batch.part(frame, &packets).expect("a train");
            part.headers.append_to(&mut octets);
            for (key, addr, len) in part.payload() {
                read(key, addr, len, &mut octets);
            }
            octets.extend_from_slice(&[0; 3][..usize::from(part.headers.bth.pad_count)]);
            assert_eq!(octets.len(), part.frame_len());
            return octets;
        }
        for piece in self.batch.pieces(frame) {
            match *piece {
                Piece::Scratch { start, len } => {
                    octets.extend_from_slice(&self.batch.scratch()[start..start + len]);
                }
                Piece::Memory { key, addr, len } => read(key, addr, len, &mut octets),
            }
        }
        assert_eq!(octets.len(), frame.len);
        octets
    }

    /// All that it wants to send now.
    pub fn transmit_all(&mut self, now: Time) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut rounds = 0;
        while self.qp.wants_transmit() {
            all.extend(self.transmit(now).into_iter().map(|(_, octets)| octets));
            rounds += 1;
            assert!(rounds < 100_000, "wants to transmit for ever");
        }
        all
    }

    /// Headers of all that it wants to send now.
    pub fn answers(&mut self, now: Time) -> Vec<Headers> {
        self.transmit_all(now)
            .iter()
            .map(|octets| Packet::parse(octets).unwrap().headers)
            .collect()
    }

    pub fn feed(&mut self, now: Time, octets: &[u8], meta: &PacketMeta) {
        let Ok(packet) = Packet::parse(octets) else {
            return;
        };
        let mtu = self.qp.attributes().path_mtu;
        let packets = match &self.parts {
            Some(_) => mtu.packets(u32::try_from(packet.payload.len()).unwrap()),
            None => meta.packets,
        };
        let meta = PacketMeta { packets, ..*meta };
        self.qp.on_packet(now, &mut self.memory, &packet, &meta);
        self.drain();
    }

    /// A packet made up by a test, without a network.
    pub fn inject(&mut self, now: Time, headers: Headers, payload: &[u8]) {
        let packet = built(headers, payload);
        self.feed(now, &packet, &PacketMeta::default());
    }

    /// Fetches everything that there is to tell, in the order of the contract.
    pub fn drain(&mut self) {
        while let Some(event) = self.qp.poll_event() {
            self.events.push(event);
        }
        while let Some(received) = self.qp.poll_recv_completion() {
            self.received.push(received.completion);
            self.sources.push(received);
        }
        while let Some(completion) = self.qp.poll_send_completion() {
            self.sent.push(completion);
        }
    }

    pub fn statuses(&self) -> Vec<(u64, WcStatus)> {
        statuses(&self.sent)
    }

    pub fn opcodes(&self) -> Vec<Opcode> {
        self.record
            .iter()
            .map(|(_, headers)| headers.bth.opcode)
            .collect()
    }

    pub fn clear_record(&mut self) {
        self.record.clear();
    }
}
