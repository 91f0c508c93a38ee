//! Packets between ports of one process.

use std::net::SocketAddr;

use softverbs_wire::ib::cm::{Dreq, Mad, Req};
use softverbs_wire::ib::{Icrc, Ipv4Ident};
use softverbs_wire::num::{CommId, TransactionId};

use super::super::send::{Ends, gather};
use super::*;

pub(in super::super) fn two_ports() -> (TempFolder, &'static Port, &'static Port) {
    let folder = TempFolder::new();
    let public = free_port();
    let one = Port::new_for_test(folder.path(), public).unwrap();
    let other = Port::new_for_test(folder.path(), public).unwrap();
    (folder, one, other)
}

/// Sends packets, waiting for the receiver now and then: sockets have bounds.
fn send_all(from: &Port, path: &SendPath, packets: Vec<Vec<u8>>, got: &Got) {
    let before = got.count();
    let all = packets.len();
    let mut sent = 0;
    for part in packets.chunks(200) {
        let part = Octets(part.to_vec());
        assert_eq!(from.send_packets(&part, path), Sent::Took(part.0.len()));
        sent += part.0.len();
        wait_until("packets arrive", || got.count() >= before + sent);
    }
    assert_eq!(got.count(), before + all);
}

fn round_trip(address: IpAddr, offload: bool) {
    let (_folder, one, other) = two_ports();
    let (qpn, got) = queue_pair(other);
    let (back, got_back) = queue_pair(one);
    for sock in one.socks.iter().filter_map(OnceLock::get) {
        sock.gso.store(offload, Ordering::Relaxed);
    }
    let path = SendPath::new(address, address, qpn);
    let packets = (0..5000).map(|psn| packet(qpn, psn, 1024)).collect();
    send_all(one, &path, packets, &got);
    assert_eq!(got.numbers(), (0..5000).collect::<Vec<_>>(), "in order");
    let from = got.packets.lock().unwrap()[0].2;
    assert_eq!((from.local, from.remote), (address, address));
    assert!(got.bursts.load(Ordering::Relaxed) < 5000);
    // And back, to where they came from.
    let path = SendPath::reply(&from, back);
    let packets = (0..10).map(|psn| packet(back, psn, 64)).collect();
    send_all(other, &path, packets, &got_back);
    let (sent, received) = (one.counters(), other.counters());
    assert_eq!(sent.packets_out, 5000);
    assert_eq!(sent.gathered_out > 0, offload, "{sent}");
    assert_eq!((received.packets_in, received.bad_icrc), (5000, 0));
    assert_eq!(received.idents_guessed, 0, "{received}");
}

#[test]
fn packets_arrive_over_v4() {
    round_trip(V4, true);
}

#[test]
fn packets_arrive_over_v6() {
    round_trip(V6, true);
}

#[test]
fn packets_arrive_without_offload() {
    round_trip(V4, false);
    round_trip(V6, false);
}

/// All sizes in all orders: what is sent together must come apart the same.
#[test]
fn mixed_sizes() {
    let (_folder, one, other) = two_ports();
    let (qpn, got) = queue_pair(other);
    let path = SendPath::new(V4, V4, qpn);
    let sizes = [
        0, 4, 4096, 4096, 4096, 16, 4096, 4112, 4096, 4096, 8, 8, 8, 4, 8192, 0, 0,
    ];
    let packets: Vec<_> = sizes
        .iter()
        .cycle()
        .take(sizes.len() * 20)
        .zip(0..)
        .map(|(size, psn)| packet(qpn, psn, *size))
        .collect();
    send_all(one, &path, packets, &got);
    let lens: Vec<usize> = got
        .packets
        .lock()
        .unwrap()
        .iter()
        .map(|got| got.1)
        .collect();
    assert_eq!(lens[..sizes.len()], sizes);
    assert!(got.numbers().is_sorted());
    assert_eq!(other.counters().bad_icrc, 0);
}

/// With and without offload the octets on the wire are the same but for the ICRC, which covers the
/// identification.
#[test]
fn the_same_with_and_without_offload() {
    let end = |port| SocketAddr::new(V4, port);
    let ends = Ends::new((V4, 1000), (V4, 4791)).unwrap();
    let packets = Octets((0..100).map(|psn| packet(Qpn::new(9), psn, 1000)).collect());
    let (mut together, mut alone) = (Buffer::new(), Buffer::new());
    let (gathered, fault) = gather(&packets, 0, true, &ends, &mut together);
    assert_eq!(fault, None);
    assert_eq!((gathered.packets, gathered.segment), (64, 1016));
    for (index, segment) in together.filled().chunks_mut(1016).enumerate() {
        let (one, _) = gather(&packets, index, false, &ends, &mut alone);
        assert_eq!(one.packets, 1);
        let alone = alone.filled();
        assert_eq!(segment[..1012], alone[..1012]);
        assert_eq!(segment == alone, index == 0, "identification {index}");
        let (SocketAddr::V4(from), SocketAddr::V4(to)) = (end(1000), end(4791)) else {
            unreachable!()
        };
        let ident = Ipv4Ident::new(u16::try_from(index).unwrap());
        let icrc = Icrc::of_datagram_v4(from, to, ident, segment).unwrap();
        assert_eq!(icrc.finish(), segment[1012..]);
        ends.seal(0, segment);
        assert_eq!(segment, alone, "sealed again for a call of its own");
    }
    // Not more than fits into a datagram, and nothing behind a shorter one.
    let large = Octets((0..20).map(|psn| packet(Qpn::new(9), psn, 4096)).collect());
    let (gathered, _) = gather(&large, 3, true, &ends, &mut together);
    assert_eq!(gathered.packets, 15);
    let sizes = [64, 64, 32, 64].iter().zip(0..);
    let uneven = Octets(
        sizes
            .map(|(size, psn)| packet(Qpn::new(9), psn, *size))
            .collect(),
    );
    assert_eq!(gather(&uneven, 0, true, &ends, &mut together).0.packets, 3);
    assert_eq!(gather(&uneven, 2, true, &ends, &mut together).0.packets, 1);
}

#[test]
fn what_is_wrong_is_dropped() {
    let (_folder, one, other) = two_ports();
    let (qpn, got) = queue_pair(other);
    let port = other.owner.port_v4;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = socket.local_addr().unwrap().port();
    let ends = Ends::new((V4, from), (V4, port)).unwrap();
    let send = |octets: &[u8]| {
        socket.send_to(octets, (V4, port)).unwrap();
    };
    let sealed = |to, ident| {
        let mut octets = packet(to, 7, 64);
        octets.extend_from_slice(&[0; 4]);
        ends.seal(ident, &mut octets);
        octets
    };
    // As rxe does it: an identification that cannot be known.
    send(&sealed(qpn, 0x1234));
    wait_until("a packet", || got.count() == 1);
    assert_eq!(other.counters().idents_guessed, 1);
    let mut damaged = sealed(qpn, 0);
    damaged[40] ^= 1;
    send(&damaged);
    wait_until("a wrong ICRC", || other.counters().bad_icrc == 1);
    send(&[0; 5]);
    send(b"");
    wait_until("malformed", || other.counters().malformed == 2);
    let unknown = Qpn::new(qpn.get() ^ 0xff);
    send(&sealed(unknown, 0));
    wait_until("no queue pair", || other.counters().no_queue_pair == 1);
    let foreign = Qpn::new(u32::from(one.slot()) << 12);
    send(&sealed(foreign, 0));
    wait_until("not ours", || other.counters().not_ours == 1);
    other.unregister(qpn);
    send(&sealed(qpn, 0));
    wait_until("no queue pair", || other.counters().no_queue_pair == 2);
    assert_eq!(got.count(), 1);
}

/// A packet from another host: to the public port, whose owner forwards it.
#[test]
fn the_public_port_forwards() {
    for (address, any) in [(V4, "0.0.0.0:0"), (V6, "[::]:0")] {
        let (_folder, one, other) = two_ports();
        assert!(one.public_is_ours(address.is_ipv6()));
        assert!(other.public_is_ours(address.is_ipv6()));
        let (qpn, got) = queue_pair(other);
        let (own, got_own) = queue_pair(one);
        let socket = UdpSocket::bind(any).unwrap();
        let from = socket.local_addr().unwrap().port();
        let ends = Ends::new((address, from), (address, one.public_port)).unwrap();
        for psn in 0..300 {
            for to in [qpn, own] {
                let mut octets = packet(to, psn, 512);
                octets.extend_from_slice(&[0; 4]);
                ends.seal(0x77, &mut octets);
                socket.send_to(&octets, (address, one.public_port)).unwrap();
            }
            if psn % 20 == 19 {
                let so_far = psn as usize + 1;
                wait_until("forwarded", || got.count() >= so_far);
                wait_until("kept", || got_own.count() >= so_far);
            }
        }
        assert_eq!(got.numbers(), (0..300).collect::<Vec<_>>());
        assert_eq!(got_own.numbers(), (0..300).collect::<Vec<_>>());
        let seen = got.packets.lock().unwrap()[0].2;
        assert_eq!((seen.local, seen.remote), (address, address));
        assert_eq!(seen.source_port, from);
        assert_eq!(one.counters().forwarded, 300);
        assert_eq!(other.counters().forwarded_in, 300);
        // To a slot that nobody has.
        let nobody = Qpn::new(u32::from(other.slot() % 4000 + 50) << 12);
        let mut octets = packet(nobody, 0, 0);
        octets.extend_from_slice(&[0; 4]);
        socket.send_to(&octets, (address, one.public_port)).unwrap();
        wait_until("not ours", || one.counters().not_ours == 1);
    }
}

/// A process that takes nothing must not hold up the one that forwards.
#[test]
fn a_stuck_process_holds_nobody_up() {
    let (_folder, one, other) = two_ports();
    let (stuck, got_stuck) = queue_pair(other);
    let (own, got_own) = queue_pair(one);
    let lock = other.relay.lock_inbox();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = socket.local_addr().unwrap().port();
    let ends = Ends::new((V4, from), (V4, one.public_port)).unwrap();
    for psn in 0..500 {
        for to in [stuck, own] {
            let mut octets = packet(to, psn, 1024);
            octets.extend_from_slice(&[0; 4]);
            ends.seal(0, &mut octets);
            socket.send_to(&octets, (V4, one.public_port)).unwrap();
        }
        wait_until("own packets", || got_own.count() > psn as usize);
    }
    wait_until("losses", || one.counters().forward_lost > 0);
    drop(lock);
    wait_until("what its queue held", || got_stuck.count() > 0);
}

fn request(service: ServiceId) -> [u8; MAD_LEN] {
    let request = Req {
        service_id: service,
        ..Req::default()
    };
    octets_of(&Mad::new(TransactionId::new(1), request))
}

/// A datagram that is steered to a port by its communication id.
pub(super) fn dreq_to(port: &Port) -> [u8; MAD_LEN] {
    let message = Dreq {
        remote_comm_id: CommId::new(port.comm_id_prefix() | 5),
        ..Dreq::default()
    };
    octets_of(&Mad::new(TransactionId::new(2), message))
}

fn octets_of(mad: &Mad) -> [u8; MAD_LEN] {
    mad.to_bytes()
}

#[test]
fn management_datagrams_are_steered() {
    let (_folder, one, other) = two_ports();
    let (of_one, of_other) = (Arc::new(Mads::default()), Arc::new(Mads::default()));
    one.set_gsi(of_one.clone());
    other.set_gsi(of_other.clone());
    let counts = || {
        (
            of_one.0.lock().unwrap().len(),
            of_other.0.lock().unwrap().len(),
        )
    };
    let service = ServiceId::new(0x0106_1c06);
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    other.take_service(service, any).unwrap();
    other.offer_service(service, any).unwrap();
    let error = one.take_service(service, any).unwrap_err();
    assert_eq!(error.to_string(), "address 0.0.0.0:7174 is in use");
    assert!(other.take_service(service, any).is_err());
    let path = SendPath::new(V4, V4, Qpn::GSI);
    // By the service, from whichever process.
    one.send_mad(&path, &request(service)).unwrap();
    other.send_mad(&path, &request(service)).unwrap();
    wait_until("requests", || counts() == (0, 2));
    let (from, mad) = of_other.0.lock().unwrap()[0];
    assert_eq!((from.local, from.remote), (V4, V4));
    assert_eq!(mad, request(service));
    // What nobody offers is refused by the one that asks, whoever has the public port.
    let nobodys = ServiceId::new(0x0106_1c07);
    one.send_mad(&path, &request(nobodys)).unwrap();
    wait_until("nobody's", || counts() == (1, 2));
    one.take_service(nobodys, V4).unwrap();
    other.send_mad(&path, &request(nobodys)).unwrap();
    wait_until("not offered", || counts() == (1, 3));
    // Of one that has just been offered it is asked a little later.
    other.withdraw_service(service, any);
    other.send_mad(&path, &request(service)).unwrap();
    one.send_mad(&path, &request(service)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(counts(), (1, 3), "may come back");
    one.take_service(service, V4).unwrap();
    one.offer_service(service, V4).unwrap();
    wait_until("it came back", || counts() == (3, 3));
    one.withdraw_service(service, V4);
    other.send_mad(&path, &request(service)).unwrap();
    wait_until("it does not come back", || counts() == (3, 4));
    // By the communication id.
    for (to, expected) in [(one, (4, 4)), (other, (4, 5))] {
        one.send_mad(&path, &dreq_to(to)).unwrap();
        wait_until("by id", || counts() == expected);
    }
    // From outside: by way of the public port.
    one.take_service(service, V4).unwrap();
    one.offer_service(service, V4).unwrap();
    other.take_service(service, any).unwrap();
    other.offer_service(service, any).unwrap();
    assert_eq!(one.steer(&request(service), V4), Some(one.slot()));
    one.withdraw_service(service, V4);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = socket.local_addr().unwrap().port();
    let mut octets = Vec::new();
    softverbs_wire::ib::mad::gsi_headers(Psn::new(0)).append_to(&mut octets);
    octets.extend_from_slice(&request(service));
    octets.extend_from_slice(&[0; 4]);
    let ends = Ends::new((V4, from), (V4, one.public_port)).unwrap();
    ends.seal(3, &mut octets);
    socket.send_to(&octets, (V4, one.public_port)).unwrap();
    wait_until("forwarded", || counts() == (4, 6));
}

#[test]
fn groups() {
    let (_folder, one, other) = two_ports();
    let group: IpAddr = "239.77.1.2".parse().unwrap();
    let loopback = nix::net::if_::if_nametoindex("lo").unwrap();
    let (qpn, got) = queue_pair(other);
    let (own, got_own) = queue_pair(one);
    other.join(group, loopback, qpn).unwrap();
    other.join(group, loopback, qpn).unwrap();
    one.join(group, loopback, own).unwrap();
    assert!(one.join(V4, loopback, own).is_err());
    let mut path = SendPath::new(V4, group, Qpn::MULTICAST);
    path.interface = loopback;
    let packets = |range: std::ops::Range<u32>| {
        Octets(range.map(|psn| packet(Qpn::MULTICAST, psn, 100)).collect())
    };
    assert_eq!(one.send_packets(&packets(0..5), &path), Sent::Took(5));
    wait_until("member", || got.count() == 5);
    wait_until("member", || got_own.count() == 5);
    assert_eq!(got.packets.lock().unwrap()[0].2.local, group);
    other.leave(group, loopback, qpn);
    assert_eq!(other.members(group).len(), 1, "joined twice");
    other.leave(group, loopback, qpn);
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(one.send_packets(&packets(5..7), &path), Sent::Took(2));
    wait_until("member", || got_own.count() == 7);
    assert_eq!(got.count(), 5);
    one.leave(group, loopback, own);
}

#[test]
fn what_cannot_be_sent() {
    let (_folder, one, _other) = two_ports();
    let qpn = Qpn::new(0x11);
    let send = |local: &str, remote: &str, len| {
        let path = SendPath::new(local.parse().unwrap(), remote.parse().unwrap(), qpn);
        one.send_packets(&Octets(vec![packet(qpn, 0, len); 3]), &path)
    };
    let lost = |errno| Sent::Lost { errno };
    assert_eq!(send("127.0.0.1", "::1", 8), lost(libc::EADDRNOTAVAIL));
    assert_eq!(send("0.0.0.0", "127.0.0.1", 8), lost(libc::EADDRNOTAVAIL));
    // Longer than a datagram can be.
    assert_eq!(send("127.0.0.1", "127.0.0.1", 65_600), lost(libc::EMSGSIZE));
    let Sent::Lost { .. } = send("127.0.0.1", "192.0.2.1", 8) else {
        panic!("from loopback to another host");
    };
    let socks = &one.socks[PRIVATE_V4];
    assert!(
        socks.get().unwrap().gso.load(Ordering::Relaxed),
        "not to blame"
    );
    assert_eq!(one.counters().packets_out, 0);
}

/// Cleaners of `/tmp` look at the times of files.
#[test]
fn files_stay_young() {
    let (folder, one, _other) = two_ports();
    let service = ServiceId::new(77);
    one.take_service(service, V4).unwrap();
    let find = |part: &str, name: &str| {
        let net = std::fs::read_dir(folder.path()).unwrap().next().unwrap();
        net.unwrap().path().join(part).join(name)
    };
    let files = [
        find("slots", &format!("{:03x}", one.slot())),
        find("services", &format!("{:016x}-{V4}", 77)),
    ];
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let age = |file: &PathBuf| std::fs::metadata(file).unwrap().modified().unwrap();
    for file in &files {
        std::fs::File::open(file)
            .unwrap()
            .set_modified(old)
            .unwrap();
    }
    let now = one.engine.now();
    one.touch_files(now + Duration::from_secs(3000));
    assert!(files.iter().all(|file| age(file) == old), "not yet");
    one.touch_files(now + Duration::from_secs(3601));
    assert!(files.iter().all(|file| age(file) > old));
}

#[test]
fn status_tells_all() {
    let (_folder, one, _other) = two_ports();
    let status = one.status();
    assert_eq!(status.slot, one.slot());
    let owner = &status.port_owners[0];
    assert_eq!(
        (owner.family, owner.owner.as_str(), owner.stranger),
        ("IPv4", "this process", false)
    );
    let segmentation = "IPv4 segmentation offload".to_owned();
    assert!(status.offloads.contains(&(segmentation, true)));
    assert!(status.counters.contains(&("packets sent", 0)));
}

#[test]
fn header_fields_arrive() {
    #[derive(Default)]
    struct Classes(Mutex<Vec<u8>>);
    impl PacketSink for Classes {
        fn packet(&self, _: Time, _: &Packet<'_>, meta: &PacketMeta, _: &ReceivedFrom) {
            assert_eq!(meta.congested(), meta.traffic_class & 3 == 3);
            self.0.lock().unwrap().push(meta.traffic_class);
        }
        fn burst_end(&self) {}
    }
    let (_folder, one, other) = two_ports();
    for address in [V4, V6] {
        let classes = Arc::new(Classes::default());
        let qpn = other.alloc_qpn().unwrap();
        let sink: Weak<Classes> = Arc::downgrade(&classes);
        other.register(qpn, sink);
        let mut path = SendPath::new(address, address, qpn);
        path.hop_limit = 3;
        for class in [0, 2, 3, 0xa2] {
            path.traffic_class = class;
            let packets = Octets(vec![packet(qpn, 0, 64); 2]);
            assert_eq!(one.send_packets(&packets, &path), Sent::Took(2));
        }
        wait_until("packets", || classes.0.lock().unwrap().len() == 8);
        assert_eq!(*classes.0.lock().unwrap(), [0, 0, 2, 2, 3, 3, 0xa2, 0xa2]);
    }
    assert_eq!(other.counters().bad_icrc, 0);
}

/// As rxe sends: without a UDP checksum, over IPv6 too.
#[test]
fn without_checksum() {
    let (_folder, _one, other) = two_ports();
    for (address, port, any) in [
        (V4, other.owner.port_v4, "0.0.0.0:0"),
        (V6, other.owner.port_v6, "[::]:0"),
    ] {
        let (qpn, got) = queue_pair(other);
        let socket = UdpSocket::bind(any).unwrap();
        let fd = std::os::fd::AsFd::as_fd(&socket);
        if address.is_ipv6() {
            sys::set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1).unwrap();
        } else {
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        }
        let from = socket.local_addr().unwrap().port();
        let ends = Ends::new((address, from), (address, port)).unwrap();
        let mut octets = packet(qpn, 7, 64);
        octets.extend_from_slice(&[0; 4]);
        ends.seal(0, &mut octets);
        socket.send_to(&octets, (address, port)).unwrap();
        wait_until("a packet", || got.count() == 1);
    }
}

/// What finds no room is counted.
#[test]
fn a_full_socket_loses() {
    let (_folder, one, other) = two_ports();
    let (qpn, _got) = queue_pair(other);
    let sock = other.socks[PRIVATE_V4].get().unwrap();
    assert!(other.receive_room() > 0);
    // Nobody receives meanwhile.
    let inbox = sock.inbox.lock().unwrap();
    sock.options().set_recv_buffer_size(4096).unwrap();
    let packets = Octets((0..100).map(|psn| packet(qpn, psn, 4096)).collect());
    let path = SendPath::new(V4, V4, qpn);
    assert_eq!(one.send_packets(&packets, &path), Sent::Took(100));
    wait_until("drops", || other.counters().no_room > 0);
    drop(inbox);
}

/// More queue pairs than a slot has numbers.
#[test]
fn a_second_slot() {
    let (_folder, one, other) = two_ports();
    let numbers: Vec<Qpn> = (0..5000).map(|_| other.alloc_qpn().unwrap()).collect();
    let distinct: std::collections::HashSet<_> = numbers.iter().collect();
    assert_eq!(distinct.len(), numbers.len());
    let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
    assert_ne!(qpns::slot_of(first), qpns::slot_of(last));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = socket.local_addr().unwrap().port();
    for qpn in [first, last] {
        let got = Arc::new(Got::default());
        let sink: Weak<Got> = Arc::downgrade(&got);
        other.register(qpn, sink);
        let path = SendPath::new(V4, V4, qpn);
        let packets = Octets(vec![packet(qpn, 3, 64)]);
        assert_eq!(one.send_packets(&packets, &path), Sent::Took(1));
        wait_until("directly", || got.count() == 1);
        assert_eq!(one.counters().forwarded, 0);
        // From outside, to whoever has the public port: that is `one`.
        let ends = Ends::new((V4, from), (V4, one.public_port)).unwrap();
        let mut octets = packet(qpn, 7, 64);
        octets.extend_from_slice(&[0; 4]);
        ends.seal(0, &mut octets);
        socket.send_to(&octets, (V4, one.public_port)).unwrap();
        wait_until("forwarded", || got.count() == 2);
        wait_until("counted", || one.counters().forwarded == 1);
        one.counters.forwarded.store(0, Ordering::Relaxed);
    }
}

/// Several threads that send and poll: each sender's packets stay in their order.
#[test]
fn order_with_many_threads() {
    let (_folder, one, other) = two_ports();
    let queue_pairs: Vec<_> = (0..4).map(|_| queue_pair(other)).collect();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    other.poll(other.engine);
                    std::thread::yield_now();
                }
            });
        }
        let senders: Vec<_> = queue_pairs
            .iter()
            .map(|(qpn, got)| {
                scope.spawn(move || {
                    let path = SendPath::new(V4, V4, *qpn);
                    let packets = (0..1000).map(|psn| packet(*qpn, psn, 256)).collect();
                    send_all(one, &path, packets, got);
                })
            })
            .collect();
        for sender in senders {
            sender.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    for (_, got) in &queue_pairs {
        assert_eq!(got.numbers(), (0..1000).collect::<Vec<_>>());
    }
}

/// A full socket: the sender is told when there is room.
#[test]
fn room_is_told() {
    struct Waiting(std::sync::atomic::AtomicBool);
    impl PacketSink for Waiting {
        fn packet(&self, _: Time, _: &Packet<'_>, _: &PacketMeta, _: &ReceivedFrom) {}
        fn burst_end(&self) {}
        fn room(&self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (_folder, one, _other) = two_ports();
    let waiting = Arc::new(Waiting(false.into()));
    let sink: Weak<Waiting> = Arc::downgrade(&waiting);
    // Loopback never is full; that it says so is what can be tested.
    one.wait_for_room(None, sink);
    wait_until("room", || waiting.0.load(Ordering::Relaxed));
}
