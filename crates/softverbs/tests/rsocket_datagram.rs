//! Datagram sockets over RDMA.

use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use nix::time::{ClockId, clock_gettime};
use softverbs::Error;
use softverbs::rsocket::{Family, MsgFlags, PollEntry, RSockOpt, RSocket, poll};

#[path = "common/netns.rs"]
mod netns;

const NONE: MsgFlags = MsgFlags::empty();
const PATIENCE: Duration = Duration::from_secs(20);

fn bound(family: Family) -> (RSocket, SocketAddr) {
    let socket = RSocket::datagram(family).unwrap();
    let any = match family {
        Family::V4 => "127.0.0.1:0",
        Family::V6 => "[::1]:0",
    };
    socket.bind(any.parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn send_to(socket: &RSocket, data: &[u8], to: SocketAddr) -> Result<usize, Error> {
    socket.send_to(&[IoSlice::new(data)], to, NONE)
}

fn recv_from(socket: &RSocket, buffer: &mut [u8]) -> (usize, SocketAddr) {
    let mut entries = [PollEntry::socket(socket, PollFlags::POLLIN)];
    assert_eq!(poll(&mut entries, Some(PATIENCE)).unwrap(), 1);
    let mut buffers = [IoSliceMut::new(buffer)];
    socket.recv_from(&mut buffers, MsgFlags::DONTWAIT).unwrap()
}

fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> i32 {
    result.unwrap_err().errno()
}

fn back_and_forth(family: Family) {
    let (server, server_address) = bound(family);
    let (client, client_address) = bound(family);
    let mut buffer = [0; 100];
    for round in 0..20_u8 {
        assert_eq!(send_to(&client, &[round; 10], server_address).unwrap(), 10);
        let (len, from) = recv_from(&server, &mut buffer);
        assert_eq!((len, from), (10, client_address));
        assert_eq!(buffer[..10], [round; 10]);
        assert_eq!(send_to(&server, &[round; 7], from).unwrap(), 7);
        assert_eq!(recv_from(&client, &mut buffer), (7, server_address));
    }
}

#[test]
fn back_and_forth_over_ipv4() {
    back_and_forth(Family::V4);
}

#[test]
fn back_and_forth_over_ipv6() {
    back_and_forth(Family::V6);
}

#[test]
fn connected_and_blocking() {
    let (server, address) = bound(Family::V4);
    let client = RSocket::datagram(Family::V4).unwrap();
    assert_eq!(errno(client.send(b"x", NONE)), libc::EDESTADDRREQ);
    assert_eq!(errno(client.peer_addr()), libc::ENOTCONN);
    client.connect(address).unwrap();
    assert_eq!(client.peer_addr().unwrap(), address);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 1000];
            for _ in 0..100 {
                let mut buffers = [IoSliceMut::new(&mut buffer)];
                let (len, from) = server.recv_from(&mut buffers, NONE).unwrap();
                send_to(&server, &buffer[..len], from).unwrap();
            }
        });
        let mut buffer = [0; 1000];
        for round in 0..100_usize {
            let len = round * 7;
            client
                .send(&vec![round.to_le_bytes()[0]; len], NONE)
                .unwrap();
            assert_eq!(client.recv(&mut buffer, NONE).unwrap(), len);
        }
    });
    // Somebody else is not heard.
    let (other, _) = bound(Family::V4);
    send_to(&other, b"psst", client.local_addr().unwrap()).unwrap();
    let mut entries = [PollEntry::socket(&client, PollFlags::POLLIN)];
    assert_eq!(
        poll(&mut entries, Some(Duration::from_millis(50))).unwrap(),
        0
    );
}

#[test]
fn edges() {
    let (server, address) = bound(Family::V4);
    let (client, _) = bound(Family::V4);
    client.set_nonblocking(true);
    let mut buffer = [0; 8];
    assert_eq!(errno(client.recv(&mut buffer, NONE)), libc::EAGAIN);
    let long = send_to(&client, &[0; 5000], address);
    assert_eq!(errno(long), libc::EMSGSIZE);
    let v6 = "[::1]:9".parse().unwrap();
    assert_eq!(errno(send_to(&client, b"x", v6)), libc::EAFNOSUPPORT);
    assert_eq!(errno(client.listen(1)), libc::EOPNOTSUPP);

    send_to(&client, b"longer than that", address).unwrap();
    let (len, _) = recv_from(&server, &mut buffer);
    assert_eq!((len, &buffer), (8, b"longer t"));
    send_to(&client, b"twice", address).unwrap();
    let mut entries = [PollEntry::socket(
        &server,
        PollFlags::POLLIN | PollFlags::POLLOUT,
    )];
    assert_eq!(poll(&mut entries, Some(PATIENCE)).unwrap(), 1);
    assert_eq!(server.recv(&mut buffer, MsgFlags::PEEK).unwrap(), 5);
    assert_eq!(server.recv(&mut buffer, NONE).unwrap(), 5);
    // Others than sockets of this kind are no harm.
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger
        .send_to(b"hello there, who are you?", address)
        .unwrap();
    stranger.send_to(&[], address).unwrap();
    send_to(&client, b"me", address).unwrap();
    assert_eq!(recv_from(&server, &mut buffer).0, 2);

    server.close();
    assert_eq!(errno(server.recv(&mut buffer, NONE)), libc::EBADF);
}

#[test]
fn many_peers_of_one_socket() {
    let (server, address) = bound(Family::V4);
    let clients: Vec<_> = (0..20).map(|_| bound(Family::V4)).collect();
    let mut buffer = [0; 8];
    for _ in 0..3 {
        for (client, from) in &clients {
            send_to(client, b"hello", address).unwrap();
            assert_eq!(recv_from(&server, &mut buffer), (5, *from));
            send_to(&server, b"you", *from).unwrap();
            assert_eq!(recv_from(client, &mut buffer), (3, address));
        }
    }
}

/// The time that this thread has computed for.
fn computed() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .unwrap()
        .into()
}

#[test]
fn who_sleeps_is_not_woken_by_what_has_no_place() {
    const ROOM: u32 = 16;
    let server = RSocket::datagram(Family::V4).unwrap();
    server.set_option(RSockOpt::RecvQueue(ROOM)).unwrap();
    server.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = server.local_addr().unwrap();
    // The first datagram of each goes over UDP, and the last ones stay there.
    let clients: Vec<RSocket> = (0..2 * ROOM)
        .map(|_| {
            let client = RSocket::datagram(Family::V4).unwrap();
            assert_eq!(send_to(&client, b"first", address).unwrap(), 5);
            client
        })
        .collect();
    let mut nothing = [PollEntry::socket(&server, PollFlags::empty())];
    let (start, before) = (Instant::now(), computed());
    assert_eq!(
        poll(&mut nothing, Some(Duration::from_millis(500))).unwrap(),
        0
    );
    let (busy, all) = (computed() - before, start.elapsed());
    assert!(busy < all / 8, "{busy:?} of {all:?}");
    // They come as soon as there is room.
    let mut buffer = [0; 10];
    for _ in &clients {
        assert_eq!(recv_from(&server, &mut buffer).0, 5);
    }
}

/// An interface of which nobody is at the other end, and which keeps what is for a neighbour until
/// it gives him up.
fn make_lonely_interface() {
    for command in [
        "ip link add lonely type veth peer name other",
        "ip addr add 10.9.0.1/24 dev lonely",
        "ip link set other up",
        "ip link set lonely up",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let status = Command::new(words[0]).args(&words[1..]).status().unwrap();
        assert!(status.success(), "{command}");
    }
    std::fs::write(
        "/proc/sys/net/ipv4/neigh/lonely/unres_qlen_bytes",
        "100000000",
    )
    .unwrap();
}

#[test]
fn room_in_a_full_udp_socket_is_waited_for() {
    if !netns::inside("room_in_a_full_udp_socket_is_waited_for") {
        return;
    }
    make_lonely_interface();
    let nobody: SocketAddr = "10.9.0.9:7000".parse().unwrap();
    let socket = RSocket::datagram(Family::V4).unwrap();
    socket.bind("10.9.0.1:0".parse().unwrap()).unwrap();
    let data = [0; 900];
    let pieces = [IoSlice::new(&data)];
    let fill = || {
        let full =
            (0..100_000).find_map(|_| socket.send_to(&pieces, nobody, MsgFlags::DONTWAIT).err());
        assert_eq!(full.expect("full at last").errno(), libc::EAGAIN);
    };
    let writable = |timeout| {
        let mut entries = [PollEntry::socket(&socket, PollFlags::POLLOUT)];
        poll(&mut entries, Some(timeout)).unwrap() == 1
    };
    fill();
    assert!(!writable(Duration::ZERO));
    assert!(writable(PATIENCE));
    fill();
    std::thread::scope(|scope| {
        let (done, end) = mpsc::channel();
        let (socket, pieces) = (&socket, &pieces);
        scope.spawn(move || {
            let sent = socket.send_to(pieces, nobody, NONE);
            done.send(sent.map_err(|error| error.errno())).unwrap();
        });
        let sent = end.recv_timeout(PATIENCE);
        // Whoever waits for ever would keep the scope from ending.
        socket.close();
        assert_eq!(sent, Ok(Ok(900)));
    });
}
