//! Stream sockets over RDMA, over both transports.

mod common;

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use common::{PATIENCE, over_both};
use nix::poll::PollFlags;
use softverbs::cm::{CmId, CmOption, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::rsocket::{Family, MsgFlags, PollEntry, RSockOpt, RSockOptName, RSocket, poll};
use softverbs::{Access, Error, QpInitAttr, Transport};
use softverbs_wire::num::Rkey;
use softverbs_wire::rsocket::{ByteOrder, ConnectData, RemoteBuffer};

over_both!(
    echo_of_64_mib,
    echo_in_small_pieces,
    ipv6,
    vectors_and_flags,
    without_waiting,
    connecting_without_waiting,
    refused,
    shutting_down_halves,
    a_peer_that_vanishes,
    a_peer_that_speaks_something_else,
    many_sockets_in_one_poll,
    descriptors_and_sockets_in_one_poll,
    closing_wakes_who_waits,
    two_threads_on_one_socket,
    regions,
    options,
    what_was_sent_before_closing_arrives,
    keepalives_do_no_harm,
);

fn stream(transport: Transport, family: Family) -> RSocket {
    let socket = RSocket::stream(family).unwrap();
    socket.set_transport(transport).unwrap();
    socket
}

fn any(family: Family) -> SocketAddr {
    match family {
        Family::V4 => "127.0.0.1:0".parse().unwrap(),
        Family::V6 => "[::1]:0".parse().unwrap(),
    }
}

fn listener(transport: Transport, family: Family) -> (RSocket, SocketAddr) {
    let listener = stream(transport, family);
    listener.bind(any(family)).unwrap();
    listener.listen(128).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn connect(listener: &RSocket, client: &RSocket) -> RSocket {
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| listener.accept().unwrap());
        client.connect(address).unwrap();
        let (server, from) = server.join().unwrap();
        assert_eq!(from, client.local_addr().unwrap());
        assert_eq!(client.peer_addr().unwrap(), address);
        server
    })
}

fn pair(transport: Transport) -> (RSocket, RSocket) {
    let (listener, _) = listener(transport, Family::V4);
    let client = stream(transport, Family::V4);
    let server = connect(&listener, &client);
    (client, server)
}

fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> i32 {
    result.unwrap_err().errno()
}

const NONE: MsgFlags = MsgFlags::empty();

/// Octets that depend on their place, with a period that no buffer size divides.
fn pattern(at: usize) -> u8 {
    (at % 65_521).to_le_bytes()[0] ^ (at / 65_521).to_le_bytes()[0]
}

/// A thread that fails does not leave others waiting.
struct Hangup<'a>([&'a RSocket; 2]);

impl Drop for Hangup<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.iter().for_each(|socket| socket.close());
        }
    }
}

fn echo(client: &RSocket, server: &RSocket, total: usize, piece: usize) {
    std::thread::scope(|scope| {
        let both = [client, server];
        scope.spawn(move || {
            let _hangup = Hangup(both);
            let mut buffer = vec![0; piece];
            loop {
                let len = server.recv(&mut buffer, NONE).unwrap();
                if len == 0 {
                    break;
                }
                assert_eq!(server.send(&buffer[..len], NONE).unwrap(), len);
            }
            server.shutdown(Shutdown::Write).unwrap();
        });
        scope.spawn(move || {
            let _hangup = Hangup(both);
            let mut sent = 0;
            while sent < total {
                let len = piece.min(total - sent);
                let data: Vec<u8> = (sent..sent + len).map(pattern).collect();
                assert_eq!(client.send(&data, NONE).unwrap(), len);
                sent += len;
            }
            client.shutdown(Shutdown::Write).unwrap();
        });
        let _hangup = Hangup(both);
        let mut received = 0;
        let mut buffer = vec![0; piece + 7];
        loop {
            let len = client.recv(&mut buffer, NONE).unwrap();
            if len == 0 {
                break;
            }
            let wrong = (0..len).find(|&at| buffer[at] != pattern(received + at));
            assert_eq!(wrong.map(|at| received + at), None);
            received += len;
        }
        assert_eq!(received, total);
    });
}

fn echo_of_64_mib(transport: Transport) {
    let (client, server) = pair(transport);
    echo(&client, &server, 64 << 20, 300_000);
}

fn echo_in_small_pieces(transport: Transport) {
    let (listener, _) = listener(transport, Family::V4);
    let client = stream(transport, Family::V4);
    for socket in [&listener, &client] {
        socket.set_option(RSockOpt::RecvBuffer(2000)).unwrap();
        socket.set_option(RSockOpt::SendBuffer(1000)).unwrap();
        socket.set_option(RSockOpt::SendQueue(16)).unwrap();
        socket.set_option(RSockOpt::RecvQueue(16)).unwrap();
    }
    let server = connect(&listener, &client);
    echo(&client, &server, 100_000, 13);
}

fn ipv6(transport: Transport) {
    let (listener, address) = listener(transport, Family::V6);
    assert!(address.is_ipv6());
    let client = stream(transport, Family::V6);
    let v4 = "127.0.0.1:1".parse().unwrap();
    assert_eq!(errno(client.connect(v4)), libc::EAFNOSUPPORT);
    let server = connect(&listener, &client);
    echo(&client, &server, 1 << 20, 10_000);
}

fn vectors_and_flags(transport: Transport) {
    let (client, server) = pair(transport);
    let parts = [
        IoSlice::new(b"one"),
        IoSlice::new(b""),
        IoSlice::new(b"two"),
        IoSlice::new(b"three"),
    ];
    assert_eq!(client.send_vectored(&parts, NONE).unwrap(), 11);
    let mut buffer = [0; 5];
    assert_eq!(server.recv(&mut buffer, MsgFlags::PEEK).unwrap(), 5);
    assert_eq!(&buffer, b"onetw");
    let (mut first, mut second) = ([0; 4], [0; 7]);
    let mut into = [
        IoSliceMut::new(&mut first),
        IoSliceMut::new(&mut []),
        IoSliceMut::new(&mut second),
    ];
    assert_eq!(server.recv_vectored(&mut into, NONE).unwrap(), 11);
    assert_eq!((&first, &second), (b"onet", b"wothree"));
    assert_eq!(
        errno(server.recv(&mut buffer, MsgFlags::DONTWAIT)),
        libc::EAGAIN
    );
    assert_eq!(server.recv(&mut [], NONE).unwrap(), 0);
    assert_eq!(client.send(&[], NONE).unwrap(), 0);

    // More than the buffers hold, with one call on each side.
    let data: Vec<u8> = (0..1 << 20).map(pattern).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(client.send(&data, NONE).unwrap(), data.len()));
        let mut all = vec![0; data.len()];
        assert_eq!(server.recv(&mut all, MsgFlags::WAITALL).unwrap(), all.len());
        assert!(all == data);
    });
    let to = client.peer_addr().unwrap();
    assert_eq!(errno(client.send_to(&parts, to, NONE)), libc::EISCONN);
    client.send(b"who", NONE).unwrap();
    let mut into = [IoSliceMut::new(&mut buffer)];
    let from = server.recv_from(&mut into, NONE).unwrap();
    assert_eq!(from, (3, client.local_addr().unwrap()));
    // With less than was asked for, the end of the stream ends the waiting.
    client.send(b"end", NONE).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.recv(&mut buffer, MsgFlags::WAITALL).unwrap(), 3);
    assert_eq!(server.recv(&mut buffer, MsgFlags::WAITALL).unwrap(), 0);
}

fn without_waiting(transport: Transport) {
    let (client, server) = pair(transport);
    client.set_nonblocking(true);
    assert!(client.is_nonblocking());
    assert_eq!(errno(client.recv(&mut [0; 10], NONE)), libc::EAGAIN);
    let data: Vec<u8> = (0..1 << 20).map(pattern).collect();
    // The peer does not read: its buffer fills up.
    let mut sent = 0;
    let end = Instant::now() + PATIENCE;
    loop {
        match client.send(&data[sent..], NONE) {
            Ok(len) => sent += len,
            Err(error) => {
                assert_eq!(error.errno(), libc::EAGAIN);
                let mut entries = [PollEntry::socket(&client, PollFlags::POLLOUT)];
                if poll(&mut entries, Some(Duration::from_millis(100))).unwrap() == 0 {
                    break;
                }
            }
        }
        assert!(Instant::now() < end);
    }
    assert!(sent >= 1 << 17 && sent < data.len(), "{sent}");
    let mut received = vec![0; sent];
    assert_eq!(server.recv(&mut received, MsgFlags::WAITALL).unwrap(), sent);
    assert!(received == data[..sent]);
    let mut entries = [PollEntry::socket(&client, PollFlags::POLLOUT)];
    assert_eq!(poll(&mut entries, Some(PATIENCE)).unwrap(), 1);
    assert!(client.send(b"x", NONE).is_ok());
}

fn connecting_without_waiting(transport: Transport) {
    let (listener, address) = listener(transport, Family::V4);
    listener.set_nonblocking(true);
    assert_eq!(errno(listener.accept()), libc::EAGAIN);
    let client = stream(transport, Family::V4);
    client.set_nonblocking(true);
    assert_eq!(errno(client.connect(address)), libc::EINPROGRESS);
    // One thread is both ends.
    let mut entries = [
        PollEntry::socket(&listener, PollFlags::POLLIN),
        PollEntry::socket(&client, PollFlags::POLLOUT),
    ];
    while !entries[0].revents.contains(PollFlags::POLLIN) {
        assert_eq!(errno(client.send(b"early", NONE)), libc::EAGAIN);
        assert!(poll(&mut entries, Some(PATIENCE)).unwrap() > 0);
    }
    let (server, _) = listener.accept().unwrap();
    assert!(!server.is_nonblocking());
    let mut entries = [PollEntry::socket(&client, PollFlags::POLLOUT)];
    assert_eq!(poll(&mut entries, Some(PATIENCE)).unwrap(), 1);
    assert_eq!(entries[0].revents, PollFlags::POLLOUT);
    assert_eq!(client.take_error(), None);
    client.connect(address).unwrap();
    assert_eq!(errno(client.connect(address)), libc::EISCONN);
    assert_eq!(client.send(b"now", NONE).unwrap(), 3);
    assert_eq!(server.recv(&mut [0; 10], NONE).unwrap(), 3);
}

fn refused(transport: Transport) {
    let (gone, address) = listener(transport, Family::V4);
    drop(gone);
    let client = stream(transport, Family::V4);
    assert_eq!(errno(client.send(b"x", NONE)), libc::ENOTCONN);
    assert_eq!(errno(client.recv(&mut [0], NONE)), libc::ENOTCONN);
    assert_eq!(errno(client.shutdown(Shutdown::Both)), libc::ENOTCONN);
    assert_eq!(errno(client.peer_addr()), libc::ENOTCONN);
    assert_eq!(errno(client.connect(address)), libc::ECONNREFUSED);
    let client = stream(transport, Family::V4);
    client.set_nonblocking(true);
    assert_eq!(errno(client.connect(address)), libc::EINPROGRESS);
    let mut entries = [PollEntry::socket(&client, PollFlags::POLLOUT)];
    assert_eq!(poll(&mut entries, Some(PATIENCE)).unwrap(), 1);
    assert!(
        entries[0]
            .revents
            .contains(PollFlags::POLLERR | PollFlags::POLLOUT)
    );
    assert_eq!(client.take_error(), Some(libc::ECONNREFUSED));
    assert_eq!(client.take_error(), None);

    // The same socket may try again, and somebody may be there then.
    let again = stream(transport, Family::V4);
    again.bind(address).unwrap();
    again.listen(1).unwrap();
    client.set_nonblocking(false);
    drop(connect(&again, &client));
}

fn shutting_down_halves(transport: Transport) {
    let (client, server) = pair(transport);
    client.send(b"question", NONE).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(errno(client.send(b"more", NONE)), libc::EPIPE);
    let mut text = Vec::new();
    (&server).read_to_end(&mut text).unwrap();
    assert_eq!(text, b"question");
    assert_eq!(server.recv(&mut [0; 8], NONE).unwrap(), 0);
    (&server).write_all(b"answer").unwrap();
    let mut entries = [PollEntry::socket(&client, PollFlags::POLLIN)];
    assert_eq!(poll(&mut entries, Some(PATIENCE)).unwrap(), 1);
    assert_eq!(entries[0].revents, PollFlags::POLLIN);
    server.shutdown(Shutdown::Write).unwrap();
    text.clear();
    (&client).read_to_end(&mut text).unwrap();
    assert_eq!(text, b"answer");
    let mut entries = [PollEntry::socket(&client, PollFlags::POLLIN)];
    assert_eq!(poll(&mut entries, Some(PATIENCE)).unwrap(), 1);
    assert_eq!(entries[0].revents, PollFlags::POLLIN | PollFlags::POLLHUP);
    assert_eq!((client.take_error(), server.take_error()), (None, None));

    let (client, server) = pair(transport);
    server.shutdown(Shutdown::Both).unwrap();
    assert_eq!(client.recv(&mut [0; 8], NONE).unwrap(), 0);
    assert_eq!(errno(client.send(b"too late", NONE)), libc::ECONNRESET);
    assert_eq!(errno(server.send(b"too late", NONE)), libc::EPIPE);
}

/// An end that knows how to begin, and no more.
fn impostor(transport: Transport, data: &[u8]) -> (SocketAddr, std::thread::JoinHandle<CmId>) {
    let channel = EventChannel::new().unwrap();
    let id = CmId::new(&channel, PortSpace::Tcp, 0).unwrap();
    id.set_option(CmOption::Transport(transport)).unwrap();
    id.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
    id.listen(1).unwrap();
    let address = id.local_addr().unwrap();
    let data = data.to_vec();
    let thread = std::thread::spawn(move || {
        let request = channel.get_event(Some(PATIENCE)).unwrap().unwrap();
        assert_eq!(request.kind(), EventKind::ConnectRequest);
        let peer = request.id().clone();
        drop(request);
        let context = peer.verbs().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16, None, 0).unwrap();
        peer.create_qp(&pd, &QpInitAttr::rc(&cq, &cq)).unwrap();
        peer.accept(&ConnParam::with_private_data(data)).unwrap();
        let event = channel.get_event(Some(PATIENCE)).unwrap().unwrap();
        assert_eq!(event.kind(), EventKind::Established);
        drop(event);
        drop(id);
        peer
    });
    (address, thread)
}

fn a_peer_that_vanishes(transport: Transport) {
    let data = ConnectData {
        credits: 100,
        target_list: RemoteBuffer {
            addr: 0,
            rkey: Rkey::new(0),
            length: 2,
        },
        ..ConnectData::new(ByteOrder::Little)
    };
    let (address, peer) = impostor(transport, &data.to_bytes());
    let client = stream(transport, Family::V4);
    client.connect(address).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.recv(&mut [0; 10], NONE));
        std::thread::sleep(Duration::from_millis(20));
        drop(peer.join().unwrap());
        assert_eq!(errno(waiting.join().unwrap()), libc::ECONNRESET);
    });
    assert_eq!(client.recv(&mut [0; 10], NONE).unwrap(), 0);
    assert_eq!(errno(client.send(b"x", NONE)), libc::ECONNRESET);
    let mut entries = [PollEntry::socket(&client, PollFlags::empty())];
    assert_eq!(poll(&mut entries, Some(PATIENCE)).unwrap(), 1);
    assert!(
        entries[0]
            .revents
            .contains(PollFlags::POLLERR | PollFlags::POLLHUP)
    );
}

fn a_peer_that_speaks_something_else(transport: Transport) {
    let (address, peer) = impostor(transport, b"hello");
    let client = stream(transport, Family::V4);
    assert_eq!(errno(client.connect(address)), libc::EPROTO);
    drop(peer.join().unwrap());

    let (listener, address) = listener(transport, Family::V4);
    let channel = EventChannel::new().unwrap();
    let id = CmId::new(&channel, PortSpace::Tcp, 0).unwrap();
    id.set_option(CmOption::Transport(transport)).unwrap();
    id.resolve_addr(None, address, PATIENCE).unwrap();
    id.resolve_route(PATIENCE).unwrap();
    let context = id.verbs().unwrap();
    let (pd, cq) = (
        context.alloc_pd().unwrap(),
        context.create_cq(16, None, 0).unwrap(),
    );
    id.create_qp(&pd, &QpInitAttr::rc(&cq, &cq)).unwrap();
    id.connect(&ConnParam::with_private_data(*b"hello"))
        .unwrap();
    // It is turned away, and the next one is served.
    let client = stream(transport, Family::V4);
    let server = connect(&listener, &client);
    drop((client, server));
    let rejected = std::iter::from_fn(|| channel.get_event(Some(PATIENCE)).unwrap())
        .find(|event| event.kind() == EventKind::Rejected);
    assert!(rejected.is_some());
}

fn many_sockets_in_one_poll(transport: Transport) {
    const SOCKETS: usize = 60;
    let (listener, _) = listener(transport, Family::V4);
    let pairs: Vec<(RSocket, RSocket)> = (0..SOCKETS)
        .map(|_| {
            let client = stream(transport, Family::V4);
            let server = connect(&listener, &client);
            (client, server)
        })
        .collect();
    let numbers: std::collections::HashSet<_> = pairs
        .iter()
        .flat_map(|(client, server)| [client.as_raw_fd(), server.as_raw_fd()])
        .collect();
    assert_eq!(numbers.len(), 2 * SOCKETS);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = SOCKETS;
            let mut done = [false; SOCKETS];
            while open > 0 {
                let mut entries: Vec<_> = pairs
                    .iter()
                    .map(|(_, server)| PollEntry::socket(server, PollFlags::POLLIN))
                    .collect();
                for (entry, done) in entries.iter_mut().zip(done) {
                    if done {
                        entry.source = softverbs::rsocket::PollSource::Ignored;
                    }
                }
                assert!(poll(&mut entries, Some(PATIENCE)).unwrap() > 0);
                let ready: Vec<usize> = (0..SOCKETS)
                    .filter(|&at| !entries[at].revents.is_empty())
                    .collect();
                for at in ready {
                    let mut buffer = [0; 64];
                    match pairs[at].1.recv(&mut buffer, MsgFlags::DONTWAIT).unwrap() {
                        0 => {
                            done[at] = true;
                            open -= 1;
                        }
                        len => assert_eq!(pairs[at].1.send(&buffer[..len], NONE).unwrap(), len),
                    }
                }
            }
        });
        for round in 0..5 {
            for (at, (client, _)) in pairs.iter().enumerate() {
                client.send(&[at.to_le_bytes()[0]; 40], NONE).unwrap();
                if at % 7 == round {
                    let mut buffer = [0; 40];
                    client.recv(&mut buffer, MsgFlags::WAITALL).unwrap();
                }
            }
        }
        for (at, (client, _)) in pairs.iter().enumerate() {
            let left = if at % 7 < 5 { 160 } else { 200 };
            let mut buffer = vec![0; left];
            client.recv(&mut buffer, MsgFlags::WAITALL).unwrap();
            assert!(buffer.iter().all(|&octet| octet == at.to_le_bytes()[0]));
            client.shutdown(Shutdown::Write).unwrap();
        }
    });
}

fn descriptors_and_sockets_in_one_poll(transport: Transport) {
    let (client, server) = pair(transport);
    let (read, write) = nix::unistd::pipe().unwrap();
    let look = |timeout| {
        let mut entries = [
            PollEntry::fd(read.as_fd(), PollFlags::POLLIN),
            PollEntry::socket(&server, PollFlags::POLLIN),
        ];
        let ready = poll(&mut entries, Some(timeout)).unwrap();
        let found = entries.map(|entry| !entry.revents.is_empty());
        assert_eq!(ready, found.iter().filter(|&&found| found).count());
        found
    };
    let start = Instant::now();
    assert_eq!(look(Duration::from_millis(50)), [false, false]);
    assert!(start.elapsed() >= Duration::from_millis(50));
    // Each time, not only the first.
    assert_eq!(look(Duration::from_millis(1)), [false, false]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            nix::unistd::write(&write, b"x").unwrap();
        });
        assert_eq!(look(PATIENCE), [true, false]);
    });
    assert_eq!(look(Duration::ZERO), [true, false]);
    nix::unistd::read(&read, &mut [0; 8]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            client.send(b"y", NONE).unwrap();
        });
        assert_eq!(look(PATIENCE), [false, true]);
    });
    nix::unistd::write(&write, b"x").unwrap();
    assert_eq!(look(PATIENCE), [true, true]);
}

fn closing_wakes_who_waits(transport: Transport) {
    let (client, server) = pair(transport);
    let (listener, _) = listener(transport, Family::V4);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| client.recv(&mut [0; 10], NONE));
        let accepting = scope.spawn(|| listener.accept().map(drop));
        let polling = scope.spawn(|| {
            let mut entries = [PollEntry::socket(&client, PollFlags::POLLIN)];
            poll(&mut entries, None).unwrap();
            entries[0].revents
        });
        std::thread::sleep(Duration::from_millis(30));
        client.close();
        listener.close();
        // It may have seen the end of the stream first.
        let read = reading.join().unwrap().map_err(|error| error.errno());
        assert!(matches!(read, Ok(0) | Err(libc::EBADF)), "{read:?}");
        assert_eq!(errno(accepting.join().unwrap()), libc::EBADF);
        assert!(!polling.join().unwrap().is_empty());
    });
    assert_eq!(server.recv(&mut [0; 10], NONE).unwrap(), 0);
    assert_eq!(errno(client.send(b"x", NONE)), libc::EBADF);
}

/// Two threads sleep in the same socket for different things; neither misses its own.
fn two_threads_on_one_socket(transport: Transport) {
    let (client, server) = pair(transport);
    const ROUNDS: usize = 300;
    let block = vec![5; 200_000];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                assert_eq!(client.send(&block, NONE).unwrap(), block.len());
            }
        });
        scope.spawn(|| {
            let mut buffer = [0; 1];
            for _ in 0..ROUNDS {
                assert_eq!(client.recv(&mut buffer, NONE).unwrap(), 1);
            }
        });
        scope.spawn(|| {
            let mut buffer = vec![0; 20 * block.len()];
            let len = server.recv(&mut buffer, MsgFlags::WAITALL).unwrap();
            assert_eq!(len, buffer.len());
        });
        for round in 0..ROUNDS {
            if round % 3 == 0 {
                std::thread::sleep(Duration::from_micros(300));
            }
            assert_eq!(server.send(b"z", NONE).unwrap(), 1);
        }
    });
}

fn regions(transport: Transport) {
    let (listener, _) = listener(transport, Family::V4);
    let client = stream(transport, Family::V4);
    assert_eq!(errno(client.pd()), libc::ENOTCONN);
    client.set_option(RSockOpt::IomapSize(2)).unwrap();
    let server = connect(&listener, &client);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = server.pd().unwrap().alloc_mr(200_000, access).unwrap();
    let hidden = server
        .pd()
        .unwrap()
        .alloc_mr(10, Access::LOCAL_WRITE)
        .unwrap();
    assert_eq!(errno(server.map_region(&hidden, None)), libc::EINVAL);
    assert_eq!(server.map_region(&mr, Some(1000)).unwrap(), 1000);
    let other = server.pd().unwrap().alloc_mr(100, access).unwrap();
    let offset = server.map_region(&other, None).unwrap();
    assert_eq!(offset, other.as_ptr().addr() as u64);
    assert_eq!(errno(server.map_region(&mr, Some(0))), libc::ENOMEM);
    server.send(b"mapped", NONE).unwrap();
    let mut buffer = [0; 6];
    client.recv(&mut buffer, MsgFlags::WAITALL).unwrap();

    let data: Vec<u8> = (0..199_000).map(pattern).collect();
    assert_eq!(client.write_region(&data, 1500, NONE).unwrap(), data.len());
    assert_eq!(client.write_region(b"there", offset + 95, NONE).unwrap(), 5);
    assert_eq!(
        errno(client.write_region(b"nowhere", 0, NONE)),
        libc::EFAULT
    );
    client.send(b"written", NONE).unwrap();
    let mut buffer = [0; 7];
    server.recv(&mut buffer, MsgFlags::WAITALL).unwrap();
    let mut found = vec![0; data.len()];
    mr.copy_out(500, &mut found).unwrap();
    assert!(found == data);
    let mut found = [0; 5];
    other.copy_out(95, &mut found).unwrap();
    assert_eq!(&found, b"there");

    server.unmap_region(mr.as_ptr().addr(), mr.len()).unwrap();
    assert_eq!(
        errno(server.unmap_region(mr.as_ptr().addr(), mr.len())),
        libc::EINVAL
    );
    server.send(b"gone", NONE).unwrap();
    let mut buffer = [0; 4];
    client.recv(&mut buffer, MsgFlags::WAITALL).unwrap();
    assert_eq!(errno(client.write_region(b"x", 1500, NONE)), libc::EFAULT);
    assert_eq!(client.write_region(b"still", offset, NONE).unwrap(), 5);
}

fn options(transport: Transport) {
    let socket = stream(transport, Family::V4);
    socket.set_option(RSockOpt::RecvBuffer(100_000)).unwrap();
    let size = socket.option(RSockOptName::RecvBuffer);
    assert_eq!(size, RSockOpt::RecvBuffer(200_000));
    for option in [
        RSockOpt::ReuseAddr(true),
        RSockOpt::NoDelay(true),
        RSockOpt::OobInline(true),
        RSockOpt::V6Only(true),
        RSockOpt::Linger(Some(Duration::from_secs(1))),
        RSockOpt::KeepaliveIdle(Duration::from_secs(100)),
        RSockOpt::SendQueue(200),
        RSockOpt::Inline(16),
        RSockOpt::IomapSize(20),
    ] {
        socket.set_option(option).unwrap();
    }
    assert_eq!(
        socket.option(RSockOptName::SendQueue),
        RSockOpt::SendQueue(200)
    );
    assert_eq!(
        socket.option(RSockOptName::IomapSize),
        RSockOpt::IomapSize(20)
    );
    socket.set_option(RSockOpt::RecvQueue(1)).unwrap();
    assert_eq!(
        socket.option(RSockOptName::RecvQueue),
        RSockOpt::RecvQueue(16)
    );
    let idle = RSockOpt::KeepaliveIdle(Duration::ZERO);
    assert_eq!(errno(socket.set_option(idle)), libc::EINVAL);

    let (listener, _) = listener(transport, Family::V4);
    let server = connect(&listener, &socket);
    assert_eq!(errno(socket.set_option(RSockOpt::Inline(1))), libc::EINVAL);
    socket.set_option(RSockOpt::RecvBuffer(1)).unwrap();
    assert_eq!(socket.option(RSockOptName::RecvBuffer), size);
    drop(server);
    let taken = stream(transport, Family::V4);
    let bound = taken.bind(listener.local_addr().unwrap());
    let listening = bound.and_then(|()| taken.listen(1));
    assert_eq!(errno(listening), libc::EADDRINUSE);
    assert_eq!(errno(listener.bind(any(Family::V4))), libc::EINVAL);
    let foreign = stream(transport, Family::V4).bind("192.0.2.1:0".parse().unwrap());
    assert_eq!(errno(foreign), libc::EADDRNOTAVAIL);
}

fn what_was_sent_before_closing_arrives(transport: Transport) {
    let (client, server) = pair(transport);
    let data: Vec<u8> = (0..120_000).map(pattern).collect();
    assert_eq!(client.send(&data, NONE).unwrap(), data.len());
    drop(client);
    let mut all = Vec::new();
    (&server).read_to_end(&mut all).unwrap();
    assert!(all == data);
    assert_eq!(server.take_error(), None);
}

fn keepalives_do_no_harm(transport: Transport) {
    let (client, server) = pair(transport);
    for socket in [&client, &server] {
        let idle = RSockOpt::KeepaliveIdle(Duration::from_secs(1));
        socket.set_option(idle).unwrap();
        socket.set_option(RSockOpt::Keepalive(true)).unwrap();
    }
    // More of them than may be on their way at once.
    std::thread::sleep(Duration::from_millis(5500));
    assert_eq!(client.send(b"still here", NONE).unwrap(), 10);
    let mut buffer = [0; 10];
    assert_eq!(server.recv(&mut buffer, NONE).unwrap(), 10);
}
