//! Conversations of real Linux peers (rxe), replayed: the messages of one side are fed to a
//! connection manager of ours in the other's place, which has to say what Linux said there.

mod cm_support;

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use cm_support::name;
use softverbs_proto::cm::config::Config;
use softverbs_proto::cm::endpoint::Endpoint;
use softverbs_proto::cm::event::{CmEvent, QpEvent};
use softverbs_proto::cm::ids::IdSpace;
use softverbs_proto::cm::params::{
    AcceptParams, CmaAddresses, ConnectRequest, ConnectionId, Listen, ListenToken, PathAddress,
    ResolveRequest, Route, SidrReplyParams,
};
use softverbs_proto::cm::state::State;
use softverbs_proto::qp_state::QpType;
use softverbs_proto::time::Time;
use softverbs_wire::ib::cm::{Mad, Message, Rep, Req, SidrReq};
use softverbs_wire::ib::rdma_cm::CmaHeader;
use softverbs_wire::num::{CommId, FlowLabel, Gid, TimeoutCode};

/// A message of a capture: when, on which path in its sender's view, what. Data packets of
/// connections are `None`.
struct Frame {
    at: Time,
    address: PathAddress,
    mad: Option<Mad>,
}

fn le32(octets: &[u8]) -> u32 {
    u32::from_le_bytes(*octets.first_chunk().unwrap())
}

/// The RoCEv2 packets of a capture of IPv4 or IPv6 over Ethernet.
fn frames(capture: &str) -> Vec<Frame> {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures");
    let file = std::fs::read(captures.join(capture)).unwrap();
    let mut rest = &file[24..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let seconds = Duration::from_secs(le32(rest).into());
        let at = Time::new(seconds + Duration::from_micros(le32(&rest[4..]).into()));
        let len = usize::try_from(le32(&rest[8..])).unwrap();
        let frame = &rest[16..16 + len];
        rest = &rest[16 + len..];
        let ip = &frame[14..];
        let (source, destination, udp) = match frame[12..14] {
            [0x08, 0x00] => {
                let ipv4 = |at: usize| IpAddr::from(*ip[at..].first_chunk::<4>().unwrap());
                (ipv4(12), ipv4(16), &ip[usize::from(ip[0] & 15) * 4..])
            }
            [0x86, 0xdd] => {
                let ipv6 = |at: usize| IpAddr::from(*ip[at..].first_chunk::<16>().unwrap());
                (ipv6(8), ipv6(24), &ip[40..])
            }
            _ => continue,
        };
        if udp[2..4] != [0x12, 0xb7] {
            continue;
        }
        let bth = &udp[8..];
        let to_qp1 = bth[0] == 0x64 && bth[5..8] == [0, 0, 1];
        frames.push(Frame {
            at,
            address: PathAddress::from_ips(source, destination),
            mad: to_qp1.then(|| Mad::parse(&bth[20..276]).expect("a message")),
        });
    }
    frames
}

/// Plays one side of a capture, with what Linux did there as its application.
struct Player {
    cm: Endpoint,
    ids: Vec<(CommId, ConnectionId)>,
    events: Vec<(ConnectionId, CmEvent)>,
    sent: Vec<Mad>,
}

impl Player {
    fn new(mads: &[Mad]) -> Self {
        let guid = mads.iter().find_map(|mad| match mad.message {
            Message::Req(Req { local_ca_guid, .. }) | Message::Rep(Rep { local_ca_guid, .. }) => {
                Some(local_ca_guid)
            }
            _ => None,
        });
        let ids = IdSpace::whole(1, 0x5a5a);
        Self {
            cm: Endpoint::new(Config::default(), guid.unwrap_or_default(), ids),
            ids: Vec::new(),
            events: Vec::new(),
            sent: Vec::new(),
        }
    }

    fn drain(&mut self) {
        while let Some((id, event)) = self.cm.poll_event() {
            if !matches!(event, CmEvent::Qp(_)) {
                self.events.push((id, event));
            }
        }
        while let Some(transmit) = self.cm.poll_transmit() {
            self.sent.push(Mad::parse(&*transmit.octets).unwrap());
        }
    }

    fn names(&self) -> Vec<&'static str> {
        self.events.iter().map(|(_, event)| name(event)).collect()
    }

    /// Our name for what the capture calls so.
    fn ours(&self, theirs: CommId) -> CommId {
        let found = self.ids.iter().find(|(theirs_, _)| *theirs_ == theirs);
        found.map_or(theirs, |(_, id)| id.comm_id())
    }

    fn theirs(&self, ours: CommId) -> CommId {
        let found = self.ids.iter().find(|(_, id)| id.comm_id() == ours);
        found.map_or(ours, |(theirs, _)| *theirs)
    }

    /// A message with our names instead of the capture's, or the other way round.
    fn renamed(mad: &Mad, rename: impl Fn(CommId) -> CommId) -> Mad {
        let mut mad = *mad;
        match &mut mad.message {
            Message::Req(m) => m.local_comm_id = rename(m.local_comm_id),
            Message::SidrReq(m) => m.request_id = rename(m.request_id),
            Message::SidrRep(m) => m.request_id = rename(m.request_id),
            Message::Rep(m) => {
                m.local_comm_id = rename(m.local_comm_id);
                m.remote_comm_id = rename(m.remote_comm_id);
            }
            Message::Rtu(m) => {
                m.local_comm_id = rename(m.local_comm_id);
                m.remote_comm_id = rename(m.remote_comm_id);
            }
            Message::Rej(m) => {
                m.local_comm_id = rename(m.local_comm_id);
                m.remote_comm_id = rename(m.remote_comm_id);
            }
            Message::Dreq(m) => {
                m.local_comm_id = rename(m.local_comm_id);
                m.remote_comm_id = rename(m.remote_comm_id);
            }
            Message::Drep(m) => {
                m.local_comm_id = rename(m.local_comm_id);
                m.remote_comm_id = rename(m.remote_comm_id);
            }
            other => panic!("{other} in a capture"),
        }
        mad
    }

    /// What Linux sent is what our application does.
    fn does(&mut self, now: Time, address: PathAddress, mad: &Mad) {
        match &mad.message {
            Message::Req(req) => {
                let id = self
                    .cm
                    .connect(now, &connect_request(address, req))
                    .unwrap();
                self.ids.push((req.local_comm_id, id));
            }
            Message::SidrReq(sidr) => {
                let request = resolve_request(address, sidr);
                let id = self.cm.resolve(now, &request).unwrap();
                self.ids.push((sidr.request_id, id));
            }
            Message::Rep(rep) => {
                let known = self
                    .ids
                    .iter()
                    .any(|(theirs, _)| *theirs == rep.local_comm_id);
                if known {
                    // A repetition, which is the timer's.
                    self.cm.on_timeout(now);
                } else {
                    let id = self.request_of(rep.remote_comm_id);
                    self.cm.accept(now, id, &accept_params(rep)).unwrap();
                    self.ids.push((rep.local_comm_id, id));
                }
            }
            Message::SidrRep(reply) => {
                let (id, _) = *self.events.last().unwrap();
                let params = SidrReplyParams {
                    status: reply.status,
                    qpn: reply.qpn,
                    qkey: reply.qkey,
                    private_data: reply.private_data.as_array().to_vec(),
                };
                self.cm.sidr_reply(now, id, &params).unwrap();
            }
            Message::Rtu(rtu) => {
                let id = self.id(rtu.local_comm_id);
                self.cm.establish(now, id).unwrap();
            }
            Message::Dreq(dreq) => {
                let id = self.id(dreq.local_comm_id);
                self.cm.disconnect(now, id).unwrap();
            }
            Message::Drep(drep) => {
                let id = self.id(drep.local_comm_id);
                self.cm.disconnect_reply(now, id).unwrap();
            }
            // Without a name of its sender it was the connection manager's own.
            Message::Rej(rej) if rej.local_comm_id == CommId::NONE => {}
            Message::Rej(rej) => {
                let id = self.id(rej.local_comm_id);
                self.cm.destroy(now, id);
            }
            other => panic!("{other} in a capture"),
        }
        self.drain();
    }

    fn id(&self, theirs: CommId) -> ConnectionId {
        self.ids
            .iter()
            .find(|(comm_id, _)| *comm_id == theirs)
            .unwrap()
            .1
    }

    fn request_of(&self, remote: CommId) -> ConnectionId {
        let found = self.events.iter().find(|(_, event)| {
            matches!(event, CmEvent::Request(request) if request.remote_comm_id == remote)
        });
        found.expect("a request").0
    }
}

/// Linux 6.1 took 18 for the packet lifetime.
fn route(address: PathAddress, req: Option<&Req>) -> Route {
    let mut route = Route::new(address);
    route.packet_lifetime = TimeoutCode::new(18);
    if let Some(req) = req {
        route.flow_label = FlowLabel::new(req.primary_path.flow_label.get());
        route.hop_limit = req.primary_path.hop_limit;
    }
    route
}

fn addresses(header: &CmaHeader) -> CmaAddresses {
    CmaAddresses {
        source: header.source_ip().unwrap(),
        source_port: header.source_port,
        destination: header.destination_ip().unwrap(),
    }
}

fn connect_request(address: PathAddress, req: &Req) -> ConnectRequest {
    let (header, data) = CmaHeader::split(&req.private_data).unwrap();
    ConnectRequest {
        service_id: req.service_id,
        addresses: Some(addresses(&header)),
        route: route(address, Some(req)),
        path_mtu: req.path_mtu.path_mtu().unwrap(),
        qpn: req.local_qpn,
        qp_type: QpType::Rc,
        starting_psn: req.starting_psn,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        flow_control: req.end_to_end_flow_control,
        srq: req.srq,
        private_data: data.to_vec(),
    }
}

fn resolve_request(address: PathAddress, sidr: &SidrReq) -> ResolveRequest {
    let (header, data) = CmaHeader::split(&sidr.private_data).unwrap();
    ResolveRequest {
        service_id: sidr.service_id,
        addresses: Some(addresses(&header)),
        route: route(address, None),
        private_data: data.to_vec(),
    }
}

fn accept_params(rep: &Rep) -> AcceptParams {
    AcceptParams {
        qpn: rep.local_qpn,
        starting_psn: rep.starting_psn,
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        rnr_retry_count: rep.rnr_retry_count,
        flow_control: rep.end_to_end_flow_control,
        srq: rep.srq,
        private_data: rep.private_data.as_array().to_vec(),
    }
}

/// Replays a capture with us in the place of the host that sent first (`as_client`), or of the
/// other. Compares all that we send, transactions aside, with what Linux sent.
fn replay(capture: &str, as_client: bool) -> Player {
    let frames = frames(capture);
    let client: Gid = frames[0].address.local;
    let ours = |frame: &&Frame| (frame.address.local == client) == as_client;
    let expected: Vec<Mad> = frames
        .iter()
        .filter(ours)
        .filter_map(|frame| frame.mad)
        .collect();
    let mut player = Player::new(&expected);
    // All services that the captures ask for have somebody who listens, if Linux had.
    let refused = expected
        .iter()
        .any(|mad| matches!(mad.message, Message::Rej(rej) if rej.local_comm_id == CommId::NONE));
    if !refused {
        for mad in frames.iter().filter_map(|frame| frame.mad) {
            let (Message::Req(Req { service_id, .. })
            | Message::SidrReq(SidrReq { service_id, .. })) = mad.message
            else {
                continue;
            };
            let listen = Listen::service(service_id);
            player.cm.listen(ListenToken(service_id.get()), listen).ok();
        }
    }
    for frame in &frames {
        let Some(mad) = &frame.mad else {
            continue;
        };
        if ours(&frame) {
            player.does(frame.at, frame.address, mad);
        } else {
            let mad = Player::renamed(mad, |id| player.ours(id));
            player
                .cm
                .on_mad(frame.at, frame.address.reversed(), &mad.to_bytes())
                .unwrap();
            player.drain();
        }
    }
    let said: Vec<Mad> = player
        .sent
        .iter()
        .map(|mad| Player::renamed(mad, |id| player.theirs(id)))
        .collect();
    for (ours, linux) in said.iter().zip(&expected) {
        assert_eq!(ours.message, linux.message, "{capture}");
        // Transactions of our own have numbers of our own.
        let echoes = match linux.message.name() {
            "REQ" | "SIDR_REQ" | "DREQ" => false,
            "DREP" => true,
            _ => !as_client,
        };
        if echoes {
            assert_eq!(ours.header, linux.header, "{capture}");
        }
    }
    assert_eq!(said.len(), expected.len(), "{capture}: {said:?}");
    player
}

/// Replays as both sides.
fn both(capture: &str) -> [Player; 2] {
    [replay(capture, true), replay(capture, false)]
}

fn finish(player: &mut Player) {
    while let Some(deadline) = player.cm.deadline() {
        player.cm.on_timeout(deadline);
        player.drain();
    }
    assert!(player.cm.is_idle());
}

#[test]
fn rping() {
    for capture in ["rxe-rping.pcap", "rxe-rping-ipv6.pcap"] {
        let [mut client, mut server] = both(capture);
        assert_eq!(client.names(), ["Reply", "Established", "Disconnected"]);
        assert_eq!(server.names(), ["Request", "Established", "Disconnected"]);
        finish(&mut client);
        finish(&mut server);
    }
}

#[test]
fn ucmatose() {
    let [mut client, mut server] = both("rxe-ucmatose.pcap");
    // The server disconnects.
    assert_eq!(client.names(), ["Reply", "Established", "Disconnected"]);
    assert_eq!(server.names(), ["Request", "Established", "Disconnected"]);
    finish(&mut client);
    finish(&mut server);
}

#[test]
fn cmtime() {
    let [mut client, mut server] = both("rxe-cmtime.pcap");
    let count = |player: &Player, wanted| player.names().iter().filter(|n| **n == wanted).count();
    for player in [&mut client, &mut server] {
        assert_eq!(count(player, "Established"), 10);
        assert_eq!(count(player, "Disconnected"), 10);
        assert_eq!(count(player, "Rejected") + count(player, "Unreachable"), 0);
        finish(player);
    }
}

#[test]
fn udaddy() {
    let [mut client, mut server] = both("rxe-ud.pcap");
    assert_eq!(client.names(), ["SidrReply"]);
    assert_eq!(server.names(), ["SidrRequest"]);
    finish(&mut client);
    finish(&mut server);
}

#[test]
fn nobody_listens() {
    let [mut client, mut server] = both("rxe-noserver.pcap");
    assert_eq!(client.names(), ["Rejected"]);
    assert!(server.names().is_empty());
    finish(&mut client);
    finish(&mut server);
}

/// In the client's place: the RTUs that the capture lacks, and the rejection of the dying server
/// after the establishment.
#[test]
fn lost_rtu_as_client() {
    let frames = frames("rxe-lost-rtu.pcap");
    let req = frames[0].mad.unwrap();
    let mut player = Player::new(&[req]);
    player.does(frames[0].at, frames[0].address, &req);
    for frame in &frames[1..] {
        let Some(mad) = &frame.mad else {
            continue;
        };
        let mad = Player::renamed(mad, |id| player.ours(id));
        let address = frame.address.reversed();
        player
            .cm
            .on_mad(frame.at, address, &mad.to_bytes())
            .unwrap();
        let id = player.ids[0].1;
        if player.cm.state(id) == State::MraRepSent {
            player.cm.establish(frame.at, id).unwrap();
        }
        player.drain();
    }
    assert_eq!(player.names(), ["Reply", "Established", "Rejected"]);
    let rtus = player.sent.iter().filter(|mad| mad.message.name() == "RTU");
    assert_eq!(rtus.count(), 6, "one for each REP");
    finish(&mut player);
}

/// In the server's place: the client's first packet establishes, and no REP is repeated, where
/// Linux repeats it until its application gives up.
#[test]
fn lost_rtu_as_server() {
    let frames = frames("rxe-lost-rtu.pcap");
    let client = frames[0].address.local;
    let rep = frames[1].mad.unwrap();
    let mut player = Player::new(&[rep]);
    let req = frames[0].mad.unwrap();
    let Message::Req(Req { service_id, .. }) = req.message else {
        panic!("{req}");
    };
    let listen = Listen::service(service_id);
    player.cm.listen(ListenToken(1), listen).unwrap();
    let address = frames[0].address.reversed();
    player
        .cm
        .on_mad(frames[0].at, address, &req.to_bytes())
        .unwrap();
    player.drain();
    player.does(frames[1].at, frames[1].address, &rep);
    let data = frames.iter().find(|frame| frame.mad.is_none()).unwrap();
    assert_eq!(data.address.local, client);
    let id = player.ids[0].1;
    player
        .cm
        .on_qp_event(data.at, id, QpEvent::CommEst)
        .unwrap();
    player.drain();
    assert_eq!(player.names(), ["Request", "Established"]);
    player.cm.on_timeout(data.at + Duration::from_secs(100));
    player.drain();
    assert_eq!(player.sent.len(), 1);
    assert_eq!(player.cm.deadline(), None);
}
