use std::collections::VecDeque;

use super::super::{Messaging, Payload, Post, TargetList};
use super::*;

const RECV: u64 = 0x10_0000;
const LIST: u64 = 0x20_0000;
const REGION: u64 = 0x30_0000;

/// One end with its memory, and what is on its way to it.
struct End {
    stream: Stream,
    send_buffer: Vec<u8>,
    recv_buffer: Vec<u8>,
    list: List,
    region: Vec<u8>,
    inbox: VecDeque<(Post, Vec<u8>)>,
    /// Posts that have not completed.
    posted: usize,
}

struct List(Vec<u8>);

impl TargetList for List {
    fn target(&mut self, index: u32) -> [u8; 16] {
        *self.0[index as usize * 16..].first_chunk().unwrap()
    }
    fn clear_target(&mut self, index: u32) {
        self.0[index as usize * 16..][..16].fill(0);
    }
    fn region(&mut self, index: u32) -> [u8; 24] {
        *self.0[32 + index as usize * 24..].first_chunk().unwrap()
    }
}

fn config(messaging: Messaging) -> Config {
    let iomap_size = IomapSize::at_most(2);
    Config {
        messaging,
        send_buffer: 5000,
        send_slots: 8,
        recv_buffer: LocalMemory {
            addr: RECV,
            rkey: Rkey::new(1),
            len: 8192,
        },
        credits: 20,
        target_list: LocalMemory {
            addr: LIST,
            rkey: Rkey::new(2),
            len: Config::list_len(iomap_size),
        },
        iomap_size,
    }
}

impl End {
    fn new(config: Config) -> Self {
        Self {
            stream: Stream::new(config),
            send_buffer: vec![0; config.send_buffer],
            recv_buffer: vec![0; config.recv_buffer.len],
            list: List(vec![0; config.target_list.len]),
            region: vec![0; 100],
            inbox: VecDeque::new(),
            posted: 0,
        }
    }

    /// Sends what may be sent of `data`; returns how much.
    fn send(&mut self, data: &[u8], to: &mut Self) -> usize {
        let mut sent = 0;
        while sent < data.len() {
            let Some(reserved) = self.stream.reserve((data.len() - sent).min(3000)) else {
                break;
            };
            let pieces = reserved.pieces().clone();
            let (first, rest) = data[sent..sent + pieces.len()].split_at(pieces.first.len());
            self.send_buffer[pieces.first].copy_from_slice(first);
            self.send_buffer[pieces.second].copy_from_slice(rest);
            sent += first.len() + rest.len();
            let post = self.stream.commit(reserved);
            self.post(post, to);
        }
        sent
    }

    fn post(&mut self, post: Post, to: &mut Self) {
        let octets = match &post.payload {
            Payload::None => Vec::new(),
            Payload::Octets(octets) => octets.to_vec(),
            Payload::Buffer(pieces) => [
                &self.send_buffer[pieces.first.clone()],
                &self.send_buffer[pieces.second.clone()],
            ]
            .concat(),
            Payload::Caller(len) => vec![0x77; *len as usize],
        };
        self.posted += 1;
        to.inbox.push_back((post, octets));
    }

    fn control(&mut self, to: &mut Self) {
        while let Some(post) = self.stream.next_control() {
            self.post(post, to);
        }
    }

    /// One request of the peer's arrives here, and completes there.
    fn deliver(&mut self, from: &mut Self) -> bool {
        let Some((post, octets)) = self.inbox.pop_front() else {
            return false;
        };
        let at = |start| usize::try_from(post.remote.addr - start).unwrap();
        let place = match post.remote.rkey.get() {
            1 => &mut self.recv_buffer[at(RECV)..],
            2 => &mut self.list.0[at(LIST)..],
            3 => &mut self.region[at(REGION)..],
            _ => &mut [],
        };
        place[..octets.len()].copy_from_slice(&octets);
        if let Some(message) = post.message {
            self.stream.on_message(message, &mut self.list);
        }
        from.posted -= 1;
        from.stream.on_sent();
        true
    }

    fn read(&mut self, len: usize) -> Vec<u8> {
        let pieces = self.stream.peek(0, len);
        let octets = [
            &self.recv_buffer[pieces.first],
            &self.recv_buffer[pieces.second],
        ]
        .concat();
        self.stream.consume(octets.len());
        octets
    }
}

fn pair(messaging: Messaging) -> (End, End) {
    let (mut a, mut b) = (End::new(config(messaging)), End::new(config(messaging)));
    let (from_a, from_b) = (a.stream.connect_data(), b.stream.connect_data());
    let octets = from_a.to_bytes();
    assert_eq!(Stream::parse_connect_data(&octets), Ok(from_a));
    a.stream.connected(&from_b);
    b.stream.connected(&from_a);
    (a, b)
}

fn settle(a: &mut End, b: &mut End) {
    loop {
        a.control(b);
        b.control(a);
        if !(a.deliver(b) | b.deliver(a)) {
            return;
        }
    }
}

/// A sequence that repeats only after 2³² numbers, and is the same each time.
struct Noise(u32);

impl Noise {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as usize % limit
    }
}

#[test]
fn octets_arrive_in_order_whatever_the_pieces() {
    for (messaging, seed) in [
        (Messaging::Immediate, 1),
        (Messaging::Sends, 2),
        (Messaging::Immediate, 3),
        (Messaging::Sends, 4),
    ] {
        let (mut a, mut b) = pair(messaging);
        let mut noise = Noise(seed);
        let data: Vec<u8> = (0..300_000_u32)
            .map(|n| (n.wrapping_mul(n) >> 7).to_le_bytes()[0])
            .collect();
        let (mut sent, mut got) = (0, Vec::new());
        let mut steps = 0;
        while got.len() < data.len() {
            steps += 1;
            assert!(steps < 1_000_000, "stuck at {sent} sent, {} got", got.len());
            match noise.below(5) {
                0 => {
                    let len = noise.below(9000).min(data.len() - sent);
                    sent += a.send(&data[sent..sent + len], &mut b);
                }
                1 => {
                    // Small ones use up the credits.
                    let len = noise.below(3).min(data.len() - sent);
                    sent += a.send(&data[sent..sent + len], &mut b);
                }
                2 => {
                    let len = noise.below(6000);
                    got.extend(b.read(len));
                    b.control(&mut a);
                }
                3 => {
                    b.deliver(&mut a);
                }
                _ => {
                    a.deliver(&mut b);
                    a.control(&mut b);
                }
            }
            let in_flight = b.inbox.len();
            assert!(in_flight <= Config::receives(20) as usize);
        }
        assert!(got == data, "{messaging:?}");
        settle(&mut a, &mut b);
        assert!(a.stream.is_drained() && b.stream.is_drained());
    }
}

/// One octet in each message: the sender stops when the peer has no receive left for it.
#[test]
fn credits_stop_the_sender_and_come_back() {
    for (messaging, most) in [(Messaging::Immediate, 20), (Messaging::Sends, 16)] {
        let (mut a, mut b) = pair(messaging);
        settle(&mut a, &mut b);
        let mut sent = 0;
        loop {
            let n = a.send(b"x", &mut b);
            if n == 0 {
                break;
            }
            sent += n;
            settle(&mut a, &mut b);
        }
        assert_eq!(sent, most);
        assert_eq!(b.read(9), [b'x'; 9]);
        settle(&mut a, &mut b);
        assert!(
            !a.stream.can_send(),
            "nine are less than half of the credits"
        );
        assert_eq!(b.read(1), b"x");
        settle(&mut a, &mut b);
        let mut more = 0;
        while a.send(b"y", &mut b) == 1 {
            more += 1;
            settle(&mut a, &mut b);
        }
        assert_eq!(more, 10);
    }
}

#[test]
fn a_window_ends_where_the_buffer_does() {
    let (mut a, mut b) = pair(Messaging::Immediate);
    settle(&mut a, &mut b);
    let mut sent = 0;
    loop {
        let n = a.send(&[7; 5000], &mut b);
        settle(&mut a, &mut b);
        if n == 0 {
            break;
        }
        sent += n;
    }
    assert_eq!((sent, b.stream.available()), (8192, 8192));
    assert_eq!(b.read(4095).len(), 4095);
    settle(&mut a, &mut b);
    assert!(!a.stream.can_send());
    assert_eq!(b.read(1).len(), 1);
    settle(&mut a, &mut b);
    assert!(a.stream.can_send());
}

#[test]
fn inline_octets_use_no_buffer() {
    let (mut a, mut b) = pair(Messaging::Immediate);
    for _ in 0..8 {
        let post = a.stream.send_inline(10).unwrap();
        assert_eq!(post.payload, Payload::Caller(10));
        a.post(post, &mut b);
    }
    assert!(a.stream.send_inline(10).is_none(), "no slot is left");
    settle(&mut a, &mut b);
    assert_eq!(b.read(100), [0x77; 80]);
}

#[test]
fn shutting_down_half_and_half() {
    let (mut a, mut b) = pair(Messaging::Sends);
    assert_eq!(a.send(b"last words", &mut b), 10);
    a.stream.shutdown(Shutdown::Write);
    assert!(!a.stream.can_send() && a.stream.is_connected());
    settle(&mut a, &mut b);
    assert!(!b.stream.is_readable() && b.stream.is_writable());
    assert_eq!(b.read(100), b"last words");
    assert_eq!(b.send(b"answer", &mut a), 6);
    b.stream.shutdown(Shutdown::Write);
    assert!(b.stream.is_disconnected());
    settle(&mut a, &mut b);
    assert_eq!(a.read(100), b"answer");
    assert!(a.stream.is_disconnected() && a.stream.is_drained() && b.stream.is_drained());
    assert_eq!((a.stream.failure(), b.stream.failure()), (None, None));
    a.stream.on_lost();
    assert_eq!(a.stream.failure(), None, "that was in good order");
}

#[test]
fn not_reading_any_more_is_not_said() {
    let (mut a, mut b) = pair(Messaging::Immediate);
    settle(&mut a, &mut b);
    a.stream.shutdown(Shutdown::Read);
    assert!(a.stream.next_control().is_none());
    assert_eq!(a.send(b"still here", &mut b), 10);
    a.stream.shutdown(Shutdown::Write);
    settle(&mut a, &mut b);
    assert!(b.stream.is_disconnected());
    assert_eq!(b.read(10), b"still here");
}

#[test]
fn a_lost_connection_is_a_failure() {
    let (mut a, mut b) = pair(Messaging::Immediate);
    assert_eq!(b.send(b"before", &mut a), 6);
    settle(&mut a, &mut b);
    a.stream.on_lost();
    assert_eq!(a.stream.failure(), Some(Failure::Lost));
    assert!(!a.stream.can_send());
    assert_eq!(a.read(6), b"before");
}

#[test]
fn a_peer_that_writes_too_much() {
    let (mut a, mut b) = pair(Messaging::Immediate);
    settle(&mut a, &mut b);
    let list = &mut a.list;
    a.stream.on_message(Message::Data(8192), list);
    assert_eq!(a.stream.failure(), None);
    a.stream.on_message(Message::Data(1), list);
    assert_eq!(a.stream.failure(), Some(Failure::Overrun));
    assert_eq!(a.stream.available(), 8192);
}

#[test]
fn unknown_and_empty_messages_do_no_harm() {
    let (mut a, mut b) = pair(Messaging::Immediate);
    settle(&mut a, &mut b);
    for bits in [
        0,
        0x2000_0005,
        0x4000_0005,
        0xa000_0000,
        0xc000_ffff,
        0xe000_0001,
        0xe000_0077,
    ] {
        a.stream.on_message(Message::new(bits), &mut a.list);
    }
    assert!(a.stream.is_connected());
    assert_eq!(a.stream.available(), 0);
}

#[test]
fn regions() {
    for messaging in [Messaging::Immediate, Messaging::Sends] {
        let (mut a, mut b) = pair(messaging);
        settle(&mut a, &mut b);
        let region = Iomap {
            offset: 1000,
            addr: REGION,
            rkey: Rkey::new(3),
            length: 100,
        };
        let index = b.stream.map_region(&region).unwrap();
        assert_eq!(b.stream.map_region(&region), Ok(1));
        assert_eq!(b.stream.map_region(&region), Err(TableFull));
        b.stream.unmap_region(1);
        assert!(b.stream.has_region_news());
        while let Some(post) = b.stream.next_region() {
            b.post(post, &mut a);
        }
        assert!(!b.stream.has_region_news());
        settle(&mut a, &mut b);

        assert_eq!(a.stream.find_region(999), None);
        assert_eq!(a.stream.find_region(1100), None);
        let (target, left) = a.stream.find_region(1040).unwrap();
        assert_eq!((target.addr, left), (REGION + 40, 60));
        let reserved = a.stream.reserve_write(3).unwrap();
        a.send_buffer[reserved.pieces().first.clone()].copy_from_slice(b"abc");
        let post = a.stream.commit_write(reserved, target);
        assert_eq!(post.message, None);
        a.post(post, &mut b);
        settle(&mut a, &mut b);
        assert_eq!(&b.region[40..43], b"abc");

        b.stream.unmap_region(index);
        let post = b.stream.next_region().unwrap();
        b.post(post, &mut a);
        settle(&mut a, &mut b);
        assert_eq!(a.stream.find_region(1040), None);
        assert_eq!(
            b.stream.map_region(&region),
            Ok(0),
            "the entry is free again"
        );
    }
}

#[test]
fn others_are_refused() {
    let mut data = Stream::new(config(Messaging::Sends)).connect_data();
    data.version = 2;
    assert_eq!(
        Stream::parse_connect_data(&data.to_bytes()),
        Err(Refusal::Version(2))
    );
    data.version = 1;
    data.target_list.length = 0;
    assert_eq!(
        Stream::parse_connect_data(&data.to_bytes()),
        Err(Refusal::NotRsockets)
    );
    assert_eq!(
        Stream::parse_connect_data(b"hello"),
        Err(Refusal::NotRsockets)
    );
}
