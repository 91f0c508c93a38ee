//! Packets between processes of one host, past the kernel.

use super::super::lane::SLOTS;
use super::processes::Peer;
use super::traffic::{dreq_to, two_ports};
use super::*;

/// More calls than a path makes over UDP before it looks for a lane.
const CALLS: u32 = 40;

/// Sends single packets, numbered from `first`, until one has gone by a lane. The next number.
fn open_lane(from: &Port, path: &SendPath, qpn: Qpn, first: u32) -> u32 {
    let mut psn = first;
    let before = from.counters().lane_out;
    wait_until("a lane", || {
        let one = Octets(vec![packet(qpn, psn, 8)]);
        assert_eq!(from.send_packets(&one, path), Sent::Took(1));
        psn += 1;
        from.counters().lane_out > before
    });
    psn
}

fn in_order(got: &Got, count: u32) {
    wait_until("all packets", || got.count() >= count as usize);
    assert_eq!(got.numbers(), (0..count).collect::<Vec<_>>());
}

#[test]
fn the_same_packets_arrive() {
    for address in [V4, V6] {
        let (_folder, one, other) = two_ports();
        let (qpn, got) = queue_pair(other);
        let mut path = SendPath::new(address, address, qpn);
        path.traffic_class = 0x42;
        let mut psn = open_lane(one, &path, qpn, 0);
        assert!(psn > 32, "few packets are not worth it");
        for len in [0, 4, 1024, 4096] {
            let some = (psn..psn + 3).map(|psn| packet(qpn, psn, len)).collect();
            assert_eq!(one.send_packets(&Octets(some), &path), Sent::Took(3));
            psn += 3;
        }
        in_order(&got, psn);
        let counters = (one.counters(), other.counters());
        assert!(counters.0.lane_out >= 12 && counters.1.lane_in == counters.0.lane_out);
        assert_eq!(counters.0.packets_out, u64::from(psn));
        assert_eq!(counters.1.packets_in, u64::from(psn));
        assert_eq!((counters.1.bad_icrc, counters.1.malformed), (0, 0));
        // Whoever looks at an address or a port sees no difference.
        let packets = got.packets.lock().unwrap();
        let (first, last) = (packets[0].2, packets[psn as usize - 1].2);
        assert_eq!(
            (first.local, first.remote, first.source_port),
            (last.local, last.remote, last.source_port)
        );
    }
}

#[test]
fn answers_have_a_lane_of_their_own() {
    let (_folder, one, other) = two_ports();
    let (there, got_there) = queue_pair(other);
    let (here, got_here) = queue_pair(one);
    let (to, back) = (SendPath::new(V4, V4, there), SendPath::new(V4, V4, here));
    let sent = open_lane(one, &to, there, 0);
    let answered = open_lane(other, &back, here, 0);
    in_order(&got_there, sent);
    in_order(&got_here, answered);
    assert_eq!(one.lanes.counts(), (1, 1));
    assert_eq!(other.lanes.counts(), (1, 1));
}

#[test]
fn queue_pairs_share_a_lane() {
    const EACH: u32 = 3000;
    let (_folder, one, other) = two_ports();
    let pairs: Vec<_> = (0..3).map(|_| queue_pair(other)).collect();
    std::thread::scope(|scope| {
        for &(qpn, _) in &pairs {
            scope.spawn(move || {
                let path = SendPath::new(V4, V4, qpn);
                let mut psn = 0;
                while psn < EACH {
                    let most = EACH.min(psn + 1 + psn % 5);
                    let some: Vec<_> = (psn..most).map(|psn| packet(qpn, psn, 100)).collect();
                    match one.send_packets(&Octets(some), &path) {
                        Sent::Took(count) => psn += u32::try_from(count).unwrap(),
                        Sent::Blocked => std::thread::yield_now(),
                        sent => panic!("{sent:?}"),
                    }
                }
            });
        }
        scope.spawn(|| {
            while pairs.iter().any(|(_, got)| got.count() < EACH as usize) {
                other.poll(other.engine);
            }
        });
    });
    for (_, got) in &pairs {
        in_order(got, EACH);
    }
    assert_eq!(one.counters().lane_lost, 0);
    assert_eq!(one.lanes.counts().0, 1);
}

/// Nobody polls: the engine's thread sleeps, and is woken each time.
#[test]
fn who_sleeps_is_woken() {
    let (_folder, one, other) = two_ports();
    let (qpn, got) = queue_pair(other);
    let path = SendPath::new(V4, V4, qpn);
    let mut psn = open_lane(one, &path, qpn, 0);
    in_order(&got, psn);
    for round in 0..300 {
        let one_packet = Octets(vec![packet(qpn, psn, 8)]);
        assert_eq!(one.send_packets(&one_packet, &path), Sent::Took(1));
        psn += 1;
        wait_until("the packet", || got.count() == psn as usize);
        // Somewhere between awake and asleep.
        std::thread::sleep(Duration::from_micros(round * 3));
    }
    in_order(&got, psn);
}

struct Told(Arc<AtomicU32>);

impl PacketSink for Told {
    fn packet(&self, _: Time, _: &Packet<'_>, _: &PacketMeta, _: &ReceivedFrom) {}
    fn burst_end(&self) {}
    fn room(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn who_waits_for_room_is_told() {
    let (_folder, one, other) = two_ports();
    let (qpn, got) = queue_pair(other);
    let mut path = SendPath::new(V4, V4, qpn);
    // Waited for as long as it takes.
    path.reliable = true;
    let first = open_lane(one, &path, qpn, 0);
    in_order(&got, first);
    let told = Arc::new(AtomicU32::new(0));
    let waiting = Arc::new(Told(Arc::clone(&told)));
    let sink: Weak<Told> = Arc::downgrade(&waiting);
    let slots = u32::try_from(SLOTS).unwrap();
    let many = Octets(
        (first..first + 2 * slots)
            .map(|psn| packet(qpn, psn, 8))
            .collect(),
    );
    other.while_receiving(|| {
        assert_eq!(one.send_packets(&many, &path), Sent::Took(slots as usize));
        let rest = Octets(many.0[slots as usize..].to_vec());
        assert_eq!(one.send_packets(&rest, &path), Sent::Blocked);
        one.wait_for_room(Some(&path), sink);
    });
    other.engine.wake();
    wait_until("room", || told.load(Ordering::SeqCst) == 1);
    let mut sent = slots as usize;
    while sent < many.0.len() {
        match one.send_packets(&Octets(many.0[sent..].to_vec()), &path) {
            Sent::Took(count) => sent += count,
            _ => std::thread::sleep(Duration::from_micros(100)),
        }
    }
    in_order(&got, first + 2 * slots);
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

/// As over a network: what nobody receives is lost, and nobody waits for ever.
#[test]
fn a_receiver_that_does_not_look_loses_packets() {
    let (_folder, one, other) = two_ports();
    let (qpn, got) = queue_pair(other);
    let path = SendPath::new(V4, V4, qpn);
    let first = open_lane(one, &path, qpn, 0);
    in_order(&got, first);
    let told = Arc::new(AtomicU32::new(0));
    let waiting = Arc::new(Told(Arc::clone(&told)));
    let sink: Weak<Told> = Arc::downgrade(&waiting);
    let many = Octets((0..1000).map(|psn| packet(qpn, first + psn, 8)).collect());
    other.while_receiving(|| {
        let sent = one.send_packets(&many, &path);
        assert_eq!(sent, Sent::Took(usize::try_from(SLOTS).unwrap()));
        // A thread that has lost its core in between has been patient already.
        if one.send_packets(&many, &path) == Sent::Blocked {
            one.wait_for_room(Some(&path), sink);
            wait_until("the end of patience", || told.load(Ordering::SeqCst) == 1);
            assert_eq!(one.send_packets(&many, &path), Sent::Took(1000));
        }
        assert_eq!(one.counters().lane_lost, 1000);
    });
    other.engine.wake();
    wait_until("what had found room", || {
        got.count() == first as usize + usize::try_from(SLOTS).unwrap()
    });
    open_lane(one, &path, qpn, first + u32::try_from(SLOTS).unwrap());
}

#[test]
fn a_killed_receiver_is_left() {
    let folder = TempFolder::new();
    let public = free_port();
    let port = Port::new_for_test(folder.path(), public).unwrap();
    let (qpn, _got) = queue_pair(port);
    let mut peer = Peer::start(folder.path(), public);
    let path = SendPath::new(V4, V4, peer.qpn);
    let question = Octets(vec![packet(peer.qpn, qpn.get(), 8)]);
    wait_until("a lane", || {
        assert_eq!(port.send_packets(&question, &path), Sent::Took(1));
        port.counters().lane_out > 0
    });
    wait_until("a lane back", || {
        port.send_packets(&question, &path);
        port.counters().lane_in > 0
    });
    peer.kill();
    wait_until("no lanes", || port.lanes.counts() == (0, 0));
    for _ in 0..2 * SLOTS {
        let sent = port.send_packets(&question, &path);
        assert!(
            matches!(sent, Sent::Took(1) | Sent::Lost { .. }),
            "{sent:?}"
        );
    }
}

#[test]
fn who_wants_none_gets_none() {
    let folder = TempFolder::new();
    let public = free_port();
    let port = Port::new_for_test(folder.path(), public).unwrap();
    let (qpn, got) = queue_pair(port);
    let peer = Peer::start_with(folder.path(), public, &[("SOFTVERBS_SAME_HOST", "network")]);
    let path = SendPath::new(V4, V4, peer.qpn);
    let question = Octets(vec![packet(peer.qpn, qpn.get(), 8)]);
    let ask = |path: &SendPath, calls: u32| {
        for _ in 0..calls {
            let before = got.count();
            assert_eq!(port.send_packets(&question, path), Sent::Took(1));
            wait_until("an answer", || got.count() > before);
        }
    };
    ask(&path, CALLS);
    wait_until("the refusal", || port.lanes.refusals() == 1);
    ask(&path, 5 * CALLS);
    // Nor by another path.
    ask(&SendPath::new(V4, V4, peer.qpn), 2 * CALLS);
    let counters = port.counters();
    assert_eq!((counters.lane_out, counters.lane_in), (0, 0));
    assert_eq!(port.lanes.counts(), (0, 0));
    assert_eq!(port.lanes.offers(), 1);
}

/// Takes datagrams, each behind a packet.
struct Behind {
    packets: Arc<Got>,
    taken: Arc<AtomicU32>,
}

impl GsiSink for Behind {
    fn mad(&self, _: Time, _: &ReceivedFrom, _: &[u8; MAD_LEN]) {
        let before = self.taken.fetch_add(1, Ordering::SeqCst);
        let packets = self.packets.count();
        assert!(
            packets > before as usize,
            "{packets} packets, {before} datagrams"
        );
    }
}

/// A DREQ does not overtake the last messages of its connection.
#[test]
fn datagrams_stay_behind_what_was_sent_before() {
    let (_folder, one, other) = two_ports();
    let (qpn, got) = queue_pair(other);
    let path = SendPath::new(V4, V4, qpn);
    let first = open_lane(one, &path, qpn, 0);
    in_order(&got, first);
    let (packets, counted) = (Arc::new(Got::default()), Arc::new(AtomicU32::new(0)));
    let to = other.alloc_qpn().unwrap();
    let sink: Weak<Got> = Arc::downgrade(&packets);
    other.register(to, sink);
    other.set_gsi(Arc::new(Behind {
        packets: Arc::clone(&packets),
        taken: Arc::clone(&counted),
    }));
    let mad = dreq_to(other);
    let path = SendPath::new(V4, V4, to);
    for round in 1..=500 {
        let one_packet = Octets(vec![packet(to, round, 8)]);
        assert_eq!(one.send_packets(&one_packet, &path), Sent::Took(1));
        one.send_mad(&path, &mad).unwrap();
        wait_until("the datagram", || {
            // The sockets alone, as when they are what epoll has told of.
            other.receive(PRIVATE_V4, false);
            other.deliver_mads();
            counted.load(Ordering::SeqCst) == round
        });
    }
    assert_eq!(packets.count(), 500);
}
