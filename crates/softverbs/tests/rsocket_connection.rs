//! Stream sockets over RDMA: connecting, ending, options.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use common::rsocket::{NONE, any, connect, errno, listener, pair, pattern, stream};
use common::{PATIENCE, over_both};
use nix::poll::PollFlags;
use softverbs::cm::{CmId, CmOption, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::rsocket::{Family, PollEntry, RSockOpt, RSockOptName, poll};
use softverbs::{QpInitAttr, Transport};
use softverbs_wire::num::Rkey;
use softverbs_wire::rsocket::{ByteOrder, ConnectData, RemoteBuffer};

over_both!(
    connecting_without_waiting,
    refused,
    a_peer_that_vanishes,
    a_peer_that_speaks_something_else,
    closing_wakes_who_waits,
    options,
    what_was_sent_before_closing_arrives,
    keepalives_do_no_harm,
    shutting_down_halves,
);

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
