//! Every RoCEv2 packet that real Linux peers sent parses into typed values, comes out as the same
//! octets again and carries the ICRC that is computed here; its fields say what the protocol wants
//! there.

#[path = "support/datagram.rs"]
mod datagram;
#[path = "support/pcap.rs"]
mod pcap;

use std::collections::{BTreeMap, BTreeSet};

use softverbs_wire::Writer;
use softverbs_wire::ib::cm::{Mad, Message, MessageKind, Path, RejReason, Req, TransportService};
use softverbs_wire::ib::mad::{MadHeader, gsi_headers};
use softverbs_wire::ib::rdma_cm::{CmaHeader, PortSpace, ServicePort};
use softverbs_wire::ib::{
    AethKind, Icrc, Ipv4Ident, Opcode, Operation, Packet, Service, Syndrome, flow_label_of_ports,
    source_port,
};
use softverbs_wire::num::{
    Eecn, Gid, Lid, PathMtu, Pkey, Qkey, Qpn, RetryCount, TimeoutCode, VirtualAddress,
};

use datagram::{Datagram, Ends, roce_datagram};

/// The counts of a capture were taken with another program (tshark): packets by opcode, and
/// management datagrams by the name of their message.
fn check(capture: &str, opcodes: &[(Opcode, usize)], messages: &[(&str, usize)]) -> Vec<Message> {
    let file = pcap::read(capture);
    let mut seen = Seen::default();
    for datagram in pcap::frames(&file).into_iter().filter_map(roce_datagram) {
        seen.datagram(&datagram);
    }
    let expected: BTreeMap<u8, usize> = opcodes
        .iter()
        .map(|(opcode, count)| (opcode.get(), *count))
        .collect();
    assert_eq!(seen.opcodes, expected);
    let mut names = BTreeMap::new();
    for message in &seen.messages {
        *names.entry(message.name()).or_insert(0) += 1;
    }
    assert_eq!(names, messages.iter().copied().collect());
    seen.messages
}

/// The opcodes and messages of a connection or two that `rdma_cm` sets up and takes down.
const fn connections(count: usize) -> [(&'static str, usize); 5] {
    [
        ("REQ", count),
        ("REP", count),
        ("RTU", count),
        ("DREQ", count),
        ("DREP", count),
    ]
}

#[test]
fn rping() {
    let opcodes = [
        (Opcode::RC_SEND_ONLY, 12),
        (Opcode::RC_WRITE_ONLY, 3),
        (Opcode::RC_READ_REQUEST, 3),
        (Opcode::RC_READ_RESPONSE_ONLY, 3),
        (Opcode::RC_ACKNOWLEDGE, 15),
        (Opcode::UD_SEND_ONLY, 5),
    ];
    check("rxe-rping.pcap", &opcodes, &connections(1));
    check("rxe-rping-ipv6.pcap", &opcodes, &connections(1));
}

#[test]
fn ib_write_bw() {
    check(
        "rxe-write.pcap",
        &[
            (Opcode::RC_SEND_ONLY, 32),
            (Opcode::RC_WRITE_FIRST, 5),
            (Opcode::RC_WRITE_MIDDLE, 10),
            (Opcode::RC_WRITE_LAST, 5),
            (Opcode::RC_ACKNOWLEDGE, 37),
            (Opcode::UD_SEND_ONLY, 10),
        ],
        &connections(2),
    );
}

#[test]
fn ib_read_bw() {
    check(
        "rxe-read.pcap",
        &[
            (Opcode::RC_SEND_ONLY, 32),
            (Opcode::RC_READ_REQUEST, 5),
            (Opcode::RC_READ_RESPONSE_FIRST, 5),
            (Opcode::RC_READ_RESPONSE_MIDDLE, 10),
            (Opcode::RC_READ_RESPONSE_LAST, 5),
            (Opcode::RC_ACKNOWLEDGE, 32),
            (Opcode::UD_SEND_ONLY, 10),
        ],
        &connections(2),
    );
}

#[test]
fn ib_send_bw() {
    check(
        "rxe-send.pcap",
        &[
            (Opcode::RC_SEND_FIRST, 5),
            (Opcode::RC_SEND_MIDDLE, 10),
            (Opcode::RC_SEND_LAST, 5),
            (Opcode::RC_SEND_ONLY, 22),
            (Opcode::RC_ACKNOWLEDGE, 27),
            (Opcode::UD_SEND_ONLY, 11),
        ],
        &[("REQ", 2), ("REP", 2), ("RTU", 2), ("DREQ", 3), ("DREP", 2)],
    );
}

#[test]
fn ib_atomic_bw() {
    check(
        "rxe-atomic.pcap",
        &[
            (Opcode::RC_SEND_ONLY, 32),
            (Opcode::RC_ACKNOWLEDGE, 32),
            (Opcode::RC_ATOMIC_ACKNOWLEDGE, 5),
            (Opcode::RC_FETCH_ADD, 5),
            (Opcode::UD_SEND_ONLY, 12),
        ],
        &[("REQ", 2), ("REP", 2), ("RTU", 2), ("DREQ", 3), ("DREP", 3)],
    );
}

#[test]
fn rstream() {
    check(
        "rxe-rstream.pcap",
        &[
            (Opcode::RC_WRITE_ONLY_IMMEDIATE, 15),
            (Opcode::RC_ACKNOWLEDGE, 15),
            (Opcode::UD_SEND_ONLY, 5),
        ],
        &connections(1),
    );
}

#[test]
fn ucmatose() {
    check(
        "rxe-ucmatose.pcap",
        &[
            (Opcode::RC_SEND_ONLY, 6),
            (Opcode::RC_ACKNOWLEDGE, 6),
            (Opcode::UD_SEND_ONLY, 5),
        ],
        &connections(1),
    );
}

#[test]
fn cmtime() {
    let opcodes = [(Opcode::UD_SEND_ONLY, 50)];
    check("rxe-cmtime.pcap", &opcodes, &connections(10));
}

#[test]
fn no_server() {
    let opcodes = [(Opcode::UD_SEND_ONLY, 2)];
    let messages = [("REQ", 1), ("REJ", 1)];
    let messages = check("rxe-noserver.pcap", &opcodes, &messages);
    let Message::Rej(rej) = messages[1] else {
        panic!("{}", messages[1]);
    };
    assert_eq!(rej.reason, RejReason::INVALID_SERVICE_ID);
    assert_eq!(rej.message, MessageKind::REQ);
    assert_eq!(rej.local_comm_id.get(), 0);
}

#[test]
fn lost_rtu() {
    let messages = check(
        "rxe-lost-rtu.pcap",
        &[
            (Opcode::RC_SEND_ONLY, 1),
            (Opcode::RC_ACKNOWLEDGE, 1),
            (Opcode::UD_SEND_ONLY, 8),
        ],
        &[("REQ", 1), ("REP", 6), ("REJ", 1)],
    );
    let Some(Message::Rej(rej)) = messages.last() else {
        panic!("the last message is no REJ");
    };
    assert_eq!(rej.reason, RejReason::CONSUMER);
}

/// Datagrams of the application, behind one exchange that finds the queue pair.
#[test]
fn udaddy() {
    let messages = check(
        "rxe-ud.pcap",
        &[
            (Opcode::UD_SEND_ONLY, 2),
            (Opcode::UD_SEND_ONLY_IMMEDIATE, 20),
        ],
        &[("SIDR_REQ", 1), ("SIDR_REP", 1)],
    );
    let [Message::SidrReq(request), Message::SidrRep(reply)] = messages[..] else {
        panic!("{messages:?}");
    };
    assert_eq!(reply.request_id, request.request_id);
    assert_eq!(reply.service_id, request.service_id);
    assert_eq!(reply.qkey, Qkey::RDMA_UDP);
    assert_ne!(reply.qpn, Qpn::default());
}

/// Without connection manager.
#[test]
fn ibv_rc_pingpong() {
    check(
        "rxe-rcpp.pcap",
        &[
            (Opcode::RC_SEND_FIRST, 6),
            (Opcode::RC_SEND_MIDDLE, 12),
            (Opcode::RC_SEND_LAST, 6),
            (Opcode::RC_ACKNOWLEDGE, 6),
        ],
        &[],
    );
}

#[test]
fn ibv_srq_pingpong() {
    let opcodes = [(Opcode::RC_SEND_ONLY, 8), (Opcode::RC_ACKNOWLEDGE, 8)];
    check("rxe-srq.pcap", &opcodes, &[]);
}

#[test]
fn ibv_uc_pingpong() {
    check(
        "rxe-uc.pcap",
        &[
            (Opcode::UC_SEND_FIRST, 6),
            (Opcode::UC_SEND_MIDDLE, 6),
            (Opcode::UC_SEND_LAST, 6),
        ],
        &[],
    );
}

/// No capture is left out.
#[test]
fn every_capture_has_its_test() {
    assert_eq!(pcap::count_of("rxe-"), 15);
}

/// What a capture has shown so far.
#[derive(Default)]
struct Seen {
    opcodes: BTreeMap<u8, usize>,
    messages: Vec<Message>,
    /// Queue pairs that connection management told of.
    queue_pairs: BTreeSet<u32>,
    /// UDP source ports that the requests' flow labels stand for.
    source_ports: BTreeSet<u16>,
}

impl Seen {
    fn datagram(&mut self, datagram: &Datagram<'_>) {
        let packet = Packet::parse(datagram.payload).unwrap();
        check_encoding(&packet, datagram.payload);
        check_icrc(&packet, datagram);
        check_headers(&packet);
        *self
            .opcodes
            .entry(packet.headers.bth.opcode.get())
            .or_default() += 1;
        let dest_qp = packet.headers.bth.dest_qp;
        if dest_qp == Qpn::GSI {
            self.management(&packet, datagram);
        } else if !self.queue_pairs.is_empty() {
            assert!(self.queue_pairs.contains(&dest_qp.get()), "{packet}");
        }
        if packet.headers.deth.is_none() && !self.source_ports.is_empty() {
            assert!(self.source_ports.contains(&datagram.source_port()));
        }
    }

    fn management(&mut self, packet: &Packet<'_>, datagram: &Datagram<'_>) {
        let mut expected = gsi_headers(packet.headers.bth.psn);
        // rxe asks for an acknowledge that datagrams do not have.
        expected.bth.ack_req = true;
        assert_eq!(packet.headers, expected);
        let mad = Mad::parse(packet.payload).unwrap();
        let mut again = [0xa5; Mad::LEN];
        mad.emit(&mut Writer::new(&mut again));
        assert_eq!(again, packet.payload, "{mad}");
        assert_eq!(mad.to_bytes(), packet.payload, "{mad}");
        let expected = Mad::new(mad.header.transaction_id, mad.message);
        assert_eq!(mad, expected, "a header with other values than ours");
        assert_eq!(packet.payload[..MadHeader::LEN], mad.header.to_bytes());

        if let Some(remote) = mad.message.remote_comm_id() {
            let known = |message: &Message| message.local_comm_id() == Some(remote);
            assert!(self.messages.iter().any(known), "{mad}");
        }
        match &mad.message {
            Message::Req(req) => {
                self.queue_pairs.insert(req.local_qpn.get());
                let flow = req.primary_path.flow_label;
                self.source_ports.insert(source_port(flow));
                check_req(req, datagram);
            }
            Message::Rep(rep) => {
                self.queue_pairs.insert(rep.local_qpn.get());
                assert_eq!(rep.vendor_id, 0);
                assert_eq!(rep.local_eecn, Eecn::default());
                assert_eq!(rep.target_ack_delay, TimeoutCode::new(15));
                assert_eq!((rep.failover_accepted, rep.reserved), (0, 0));
                let [high, middle, low, ..] = rep.local_ca_guid.get().to_be_bytes();
                assert_eq!([high, middle, low], [0x50, 0x54, 0x00]);
            }
            Message::Rtu(_) | Message::Drep(_) => {}
            Message::Dreq(dreq) => {
                assert!(self.queue_pairs.contains(&dreq.remote_qpn.get()), "{mad}");
                assert_eq!(dreq.reserved, 0);
            }
            Message::Rej(rej) => assert_eq!((rej.info_len, rej.reserved), (0, 0)),
            Message::SidrReq(request) => {
                assert_eq!((request.pkey, request.reserved), (Pkey::DEFAULT, 0));
                let port = ServicePort::from_service_id(request.service_id).unwrap();
                assert_eq!(port, ServicePort::new(PortSpace::UDP, 7174));
                assert_eq!(port.service_id(), request.service_id);
                let (cma, _) = CmaHeader::split(&request.private_data).unwrap();
                check_cma_header(&cma, datagram);
            }
            Message::SidrRep(reply) => {
                self.queue_pairs.insert(reply.qpn.get());
                assert_eq!((reply.info_len, reply.vendor_id), (0, 0));
            }
            other => panic!("{other} is in none of the captures"),
        }
        self.messages.push(mad.message);
    }
}

fn check_encoding(packet: &Packet<'_>, octets: &[u8]) {
    let mut again = vec![0xa5; octets.len()];
    let mut writer = Writer::new(&mut again);
    packet.emit(&mut writer);
    assert_eq!(writer.written(), octets.len());
    assert_eq!(packet.packet_len(), octets.len());
    assert_eq!(again, octets, "{packet}");
    let header_len = packet.headers.header_len();
    assert_eq!(
        packet.payload,
        &octets[header_len..header_len + packet.payload.len()]
    );
}

fn check_icrc(packet: &Packet<'_>, datagram: &Datagram<'_>) {
    let received = packet.trailer.icrc;
    assert_eq!(datagram.icrc().finish(), received, "{packet}");

    let mut headers = Vec::new();
    packet.headers.append_to(&mut headers);
    let (left, right) = packet.payload.split_at(packet.payload.len() / 3);
    let gathered = datagram
        .icrc_of_headers(&headers)
        .update(left)
        .update(right)
        .update(packet.trailer.pad());
    assert_eq!(gathered.finish(), received, "{packet}");

    if let Ends::V4(source, destination, ident) = datagram.ends {
        assert!(ident.dont_fragment && ident.id != 0, "{ident}");
        let len = datagram.payload.len();
        assert_eq!(datagram.icrc().explain(ident, received, len), Some(ident));
        let blind =
            Icrc::of_datagram_v4(source, destination, Ipv4Ident::ZERO, datagram.payload).unwrap();
        assert_eq!(blind.explain(Ipv4Ident::ZERO, received, len), Some(ident));
    }
}

/// What rxe sends: no reserved bits, the default partition, acknowledges without credits, payload
/// that fits the MTU of the lab.
fn check_headers(packet: &Packet<'_>) {
    let headers = &packet.headers;
    let bth = headers.bth;
    assert_eq!(bth.pkey, Pkey::DEFAULT);
    assert_eq!((bth.reserved6, bth.reserved7), (0, 0));
    assert!(!bth.mig_req && !bth.fecn && !bth.becn && !bth.solicited);
    assert!(packet.trailer.pad().iter().all(|octet| *octet == 0));

    let info = bth.opcode.info().unwrap();
    assert_eq!(headers.header_len(), info.header_len);
    assert_eq!(headers.extensions(), info.extensions);
    assert!(info.has_payload() || packet.payload.is_empty());
    let mtu = PathMtu::Mtu1024.octets();
    if info.position.ends() {
        assert!(packet.payload.len() <= mtu);
    } else {
        assert_eq!(packet.payload.len(), mtu);
    }
    if let Some(aeth) = headers.aeth {
        assert_eq!(aeth.syndrome, Syndrome::ACK);
        assert!(matches!(aeth.syndrome.kind(), AethKind::Ack { .. }));
    }
    if let Some(reth) = headers.reth {
        assert_ne!(reth.va, VirtualAddress::default());
        if info.operation == Operation::Write && info.position.starts() && info.position.ends() {
            assert_eq!(usize::try_from(reth.dma_len), Ok(packet.payload.len()));
        } else {
            assert!(reth.dma_len == 4000 || reth.dma_len == 64, "{packet}");
        }
    }
    if let Some(atomic) = headers.atomic_eth {
        assert_eq!(atomic.va.get() % 8, 0);
    }
    if info.service == Service::Ud && bth.dest_qp != Qpn::GSI {
        assert_eq!(headers.deth.unwrap().qkey, Qkey::RDMA_UDP);
    }
}

/// What Linux asks for over RoCE.
fn check_req(req: &Req, datagram: &Datagram<'_>) {
    assert_eq!((req.reserved4, req.reserved24, req.vendor_id), (0, 0, 0));
    assert_eq!(req.transport_service, TransportService::RC);
    assert_eq!(req.remote_cm_response_timeout, TimeoutCode::new(20));
    assert_eq!(req.local_cm_response_timeout, TimeoutCode::new(20));
    assert_eq!(req.max_cm_retries, 15);
    assert_eq!(req.pkey, Pkey::DEFAULT);
    assert_eq!(req.path_mtu.path_mtu(), Some(PathMtu::Mtu1024));
    assert!(req.retry_count <= RetryCount::MAX && req.rnr_retry_count <= RetryCount::MAX);
    assert_eq!((req.rdc_exists, req.extended_transport), (false, 0));
    assert_eq!((req.local_eecn, req.remote_eecn), Default::default());
    let expected = Path {
        local_lid: Lid::PERMISSIVE,
        remote_lid: Lid::PERMISSIVE,
        local_gid: Gid::from(datagram.source()),
        remote_gid: Gid::from(datagram.destination()),
        flow_label: req.primary_path.flow_label,
        hop_limit: 64,
        local_ack_timeout: TimeoutCode::new(19),
        ..Path::default()
    };
    assert_eq!(req.primary_path, expected);
    assert_eq!(req.alternate_path, Path::default());
    assert!(!req.has_alternate_path());

    let port = ServicePort::from_service_id(req.service_id).unwrap();
    assert_eq!(port.space, PortSpace::TCP);
    assert_eq!(port.service_id(), req.service_id);
    let (cma, consumer) = CmaHeader::split(&req.private_data).unwrap();
    check_cma_header(&cma, datagram);
    assert_eq!(consumer.len(), CmaHeader::REQ_PRIVATE_DATA_LEN);
    assert_eq!(cma.join(consumer), Some(req.private_data));
    assert_eq!(
        flow_label_of_ports(cma.source_port, port.port),
        req.primary_path.flow_label
    );
}

fn check_cma_header(cma: &CmaHeader, datagram: &Datagram<'_>) {
    let (source, destination) = (datagram.source(), datagram.destination());
    assert_eq!(
        CmaHeader::new(source, cma.source_port, destination),
        Some(*cma)
    );
    assert_eq!(cma.source_ip(), Some(source));
    assert_eq!(cma.destination_ip(), Some(destination));
}
