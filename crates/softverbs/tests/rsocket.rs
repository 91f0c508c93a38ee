//! Stream sockets over RDMA, over both transports.

mod common;

use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use common::rsocket::{NONE, connect, errno, listener, pair, pattern, stream};
use common::{PATIENCE, over_both};
use nix::poll::PollFlags;
use softverbs::rsocket::{Family, MsgFlags, PollEntry, RSockOpt, RSocket, poll};
use softverbs::{Access, Transport};

over_both!(
    echo_of_64_mib,
    echo_in_small_pieces,
    ipv6,
    vectors_and_flags,
    without_waiting,
    many_sockets_in_one_poll,
    descriptors_and_sockets_in_one_poll,
    two_threads_on_one_socket,
    regions,
);

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
