//! Conversations of librdmacm's `rstream` (over siw and over rxe), replayed: two ends of ours,
//! made with the same buffers, have to post the same, octet by octet.

use std::collections::HashSet;
use std::path::Path;

use softverbs_proto::rsocket::{
    Config, LocalMemory, Messaging, Payload, Post, Shutdown, Stream, TargetList,
};
use softverbs_wire::rsocket::{ByteOrder, ConnectData, Control, IomapSize, Message};

/// What one end posted: where it wrote how much of what, and what it said behind it.
#[derive(Debug)]
struct Said {
    by: usize,
    addr: u64,
    rkey: u32,
    payload: Vec<u8>,
    message: Message,
}

#[derive(Debug, Default)]
struct Conversation {
    /// Of the initiator, of the responder.
    connect: Vec<ConnectData>,
    said: Vec<Said>,
}

fn be16(octets: &[u8]) -> usize {
    usize::from(u16::from_be_bytes(*octets.first_chunk().unwrap()))
}

fn be32(octets: &[u8]) -> u32 {
    u32::from_be_bytes(*octets.first_chunk().unwrap())
}

fn be64(octets: &[u8]) -> u64 {
    u64::from_be_bytes(*octets.first_chunk().unwrap())
}

/// The IPv4 packets of a capture; the first one's sender is the initiator.
fn packets(capture: &str) -> Vec<(usize, Vec<u8>)> {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures");
    let file = std::fs::read(captures.join(capture)).unwrap();
    let mut rest = &file[24..];
    let mut packets = Vec::new();
    let mut initiator = None;
    while !rest.is_empty() {
        let len = u32::from_le_bytes(*rest[8..].first_chunk().unwrap()) as usize;
        let ip = &rest[16 + 14..16 + len];
        let ip = &ip[..be16(&ip[2..])];
        let source = be32(&ip[12..]);
        let by = usize::from(source != *initiator.get_or_insert(source));
        packets.push((by, ip[20..].to_vec()));
        rest = &rest[16 + len..];
    }
    packets
}

fn over_siw() -> Conversation {
    let mut conversation = Conversation::default();
    let mut writes = [const { None }; 2];
    let mut seen = HashSet::new();
    for (by, tcp) in packets("siw-rstream.pcap") {
        // Some segments were sent twice.
        if !seen.insert((by, be32(&tcp[4..]), tcp.len())) {
            continue;
        }
        let mut rest = &tcp[usize::from(tcp[12] >> 4) * 4..];
        if rest.starts_with(b"MPA ID Re") {
            let data = Stream::parse_connect_data(&rest[24..]).unwrap();
            conversation.connect.push(data);
            continue;
        }
        while !rest.is_empty() {
            let ulpdu = be16(rest);
            let fpdu = &rest[..(2 + ulpdu).next_multiple_of(4) + 4];
            rest = &rest[fpdu.len()..];
            let ulpdu = &fpdu[2..2 + ulpdu];
            if ulpdu[0] & 0x80 != 0 {
                let place = (be64(&ulpdu[6..]), be32(&ulpdu[2..]), ulpdu[14..].to_vec());
                assert!(writes[by].replace(place).is_none());
            } else {
                let octets = *ulpdu[18..].first_chunk().unwrap();
                let (addr, rkey, payload) = writes[by].take().unwrap_or_default();
                conversation.said.push(Said {
                    by,
                    addr,
                    rkey,
                    payload,
                    message: Message::from_bytes(octets, ByteOrder::Little),
                });
            }
        }
    }
    conversation
}

fn over_rxe() -> Conversation {
    let mut conversation = Conversation::default();
    for (by, udp) in packets("rxe-rstream.pcap") {
        let bth = &udp[8..];
        match bth[0] {
            // Datagrams of the connection manager: REQ and REP.
            0x64 => {
                let mad = &bth[20..];
                let data = match be16(&mad[16..]) {
                    0x0010 => &mad[24 + 140 + 36..],
                    0x0013 => &mad[24 + 36..],
                    _ => continue,
                };
                let data = Stream::parse_connect_data(data).unwrap();
                conversation.connect.push(data);
            }
            // RDMA Write Only with Immediate.
            0x0b => {
                let len = be32(&bth[24..]) as usize;
                conversation.said.push(Said {
                    by,
                    addr: be64(&bth[12..]),
                    rkey: be32(&bth[20..]),
                    payload: bth[32..32 + len].to_vec(),
                    message: Message::new(be32(&bth[28..])),
                });
            }
            _ => {}
        }
    }
    conversation
}

struct List(Vec<u8>);

impl TargetList for List {
    fn target(&mut self, index: u32) -> [u8; 16] {
        *self.0[index as usize * 16..].first_chunk().unwrap()
    }
    fn clear_target(&mut self, index: u32) {
        self.0[index as usize * 16..][..16].fill(0);
    }
    fn region(&mut self, _: u32) -> [u8; 24] {
        [0; 24]
    }
}

/// An end with the buffers that `data` tells of.
fn end(data: &ConnectData, messaging: Messaging) -> (Stream, List) {
    let config = Config {
        messaging,
        send_buffer: 1 << 20,
        send_slots: 384,
        recv_buffer: LocalMemory {
            addr: data.window.addr,
            rkey: data.window.rkey,
            len: data.window.length as usize * 2,
        },
        credits: data.credits,
        target_list: LocalMemory {
            addr: data.target_list.addr,
            rkey: data.target_list.rkey,
            len: Config::list_len(IomapSize::new(0)),
        },
        iomap_size: data.iomap_size,
    };
    (Stream::new(config), List(vec![0; config.target_list.len]))
}

/// What one of our ends has posted; payload that is the application's is `payload`.
fn as_said(post: &Post, by: usize, payload: &[u8]) -> Said {
    Said {
        by,
        addr: post.remote.addr,
        rkey: post.remote.rkey.get(),
        payload: match &post.payload {
            Payload::None => Vec::new(),
            Payload::Octets(octets) => octets.to_vec(),
            Payload::Caller(len) => payload[..*len as usize].to_vec(),
            Payload::Buffer(_) => panic!("nothing was reserved"),
        },
        message: post.message.unwrap(),
    }
}

fn replay(conversation: &Conversation, messaging: Messaging) -> usize {
    let [initiator, responder] = &conversation.connect[..] else {
        panic!("a request and a reply")
    };
    let mut ends = [end(initiator, messaging), end(responder, messaging)];
    for (which, (stream, _)) in ends.iter_mut().enumerate() {
        assert_eq!(stream.connect_data(), conversation.connect[which]);
        stream.connected(&conversation.connect[1 - which]);
    }
    let mut data = 0;
    for said in &conversation.said {
        let (stream, _) = &mut ends[said.by];
        let post = match said.message {
            Message::Data(len) => {
                data += len as usize;
                // Both ends read what has come before they answer.
                stream.consume(usize::MAX);
                stream.send_inline(len as usize)
            }
            Message::Window(_) => stream.next_control(),
            Message::Control(Control::Disconnect) => {
                stream.shutdown(Shutdown::Both);
                stream.next_control()
            }
            other => panic!("{other}"),
        };
        let ours = as_said(&post.expect("it may be posted"), said.by, &said.payload);
        assert_eq!((ours.message, &ours.payload), (said.message, &said.payload));
        // rdma-core leaves the place of nothing as it happens to be.
        if !said.payload.is_empty() {
            assert_eq!((ours.addr, ours.rkey), (said.addr, said.rkey));
        }
        stream.on_sent();

        let (stream, list) = &mut ends[1 - said.by];
        let listed = stream.config().target_list;
        if said.rkey == listed.rkey.get() && !said.payload.is_empty() {
            let at = usize::try_from(said.addr - listed.addr).unwrap();
            list.0[at..at + said.payload.len()].copy_from_slice(&said.payload);
        }
        stream.on_message(said.message, list);
    }
    assert!(ends.iter().all(|(stream, _)| stream.is_disconnected()));
    assert!(ends.iter().all(|(stream, _)| stream.failure().is_none()));
    data
}

#[test]
fn rstream_over_siw() {
    assert_eq!(replay(&over_siw(), Messaging::Sends), 2 * (16 + 5 * 1000));
}

#[test]
fn rstream_over_rxe() {
    assert_eq!(
        replay(&over_rxe(), Messaging::Immediate),
        2 * (16 + 5 * 1000)
    );
}
