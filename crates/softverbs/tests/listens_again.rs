//! A listener that has served somebody is closed, and there is another one at its address soon: clients
//! that connect in between wait for it.

mod common;

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use common::{End, PATIENCE, Setup, equip, expect, listener, next_event, no_event, resolved};
use softverbs::Transport;
use softverbs::cm::{CmId, ConnParam, EventChannel, EventKind};

fn setup(transport: Transport, address: SocketAddr) -> Setup {
    Setup {
        address,
        len: 4096,
        ..Setup::over(transport)
    }
}

fn client(setup: &Setup, address: SocketAddr) -> End {
    let (channel, id) = resolved(setup, address);
    let end = equip(setup, channel, id);
    end.id.connect(&ConnParam::default()).unwrap();
    end
}

fn accept(setup: &Setup, channel: &EventChannel) -> End {
    let request = expect(channel, EventKind::ConnectRequest);
    let end = equip(setup, channel.clone(), request.id().clone());
    drop(request);
    end.id.accept(&ConnParam::default()).unwrap();
    drop(expect(channel, EventKind::Established));
    end
}

/// A listener that has served one client. Both stay connected.
fn served(setup: &Setup) -> (CmId, SocketAddr, [End; 2]) {
    let (channel, listening, address) = listener(setup);
    let client = client(setup, address);
    let server = accept(setup, &channel);
    drop(expect(&client.channel, EventKind::Established));
    (listening, address, [client, server])
}

fn waits(transport: Transport) {
    let any = setup(transport, ([127, 0, 0, 1], 0).into());
    let (listening, address, _pair) = served(&any);
    let again = setup(transport, address);
    for _ in 0..3 {
        drop(listening.destroy());
        let early = client(&again, address);
        no_event(&early.channel, Duration::from_millis(50));
        let (channel, listening, _) = listener(&again);
        let server = accept(&again, &channel);
        drop(expect(&early.channel, EventKind::Established));
        let data = early.fill(0, 100, 5);
        server.recv(1, 0, 100);
        early.send(2, 0, 100);
        early.success();
        server.success();
        assert_eq!(server.read(0, 100), data);
        drop((early, server, listening));
    }
}

#[test]
fn clients_wait_over_iwarp() {
    waits(Transport::Iwarp);
}

#[test]
fn clients_wait_over_roce() {
    waits(Transport::Roce);
}

#[test]
fn who_waits_in_vain_hears_so() {
    let any = setup(Transport::Iwarp, ([127, 0, 0, 1], 0).into());
    let (listening, address, _pair) = served(&any);
    drop(listening.destroy());
    let begin = Instant::now();
    let early = client(&any, address);
    let event = next_event(&early.channel);
    assert!(
        matches!(
            event.kind(),
            EventKind::Rejected | EventKind::ConnectError | EventKind::Unreachable
        ),
        "{event:?}"
    );
    assert!(begin.elapsed() < PATIENCE);
    drop(event);
    no_event(&early.channel, Duration::from_millis(20));
}

#[test]
fn a_listener_that_served_nobody_is_closed_at_once() {
    let any = setup(Transport::Iwarp, ([127, 0, 0, 1], 0).into());
    let (_channel, listening, address) = listener(&any);
    drop(listening.destroy());
    drop(TcpListener::bind(address).unwrap());
    let refused = client(&any, address);
    drop(expect(&refused.channel, EventKind::Rejected));
}

#[test]
fn the_address_is_free_soon() {
    let any = setup(Transport::Iwarp, ([127, 0, 0, 1], 0).into());
    let (listening, address, _pair) = served(&any);
    drop(listening.destroy());
    let begin = Instant::now();
    while TcpListener::bind(address).is_err() {
        assert!(begin.elapsed() < PATIENCE, "{address} is never free");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn another_address_with_the_same_port_is_free_at_once() {
    let any = setup(Transport::Iwarp, ([127, 0, 0, 1], 0).into());
    let (listening, address, _pair) = served(&any);
    drop(listening.destroy());
    let all = setup(Transport::Iwarp, ([0, 0, 0, 0], address.port()).into());
    let (channel, _listening, _) = listener(&all);
    let client = client(&any, address);
    let _server = accept(&any, &channel);
    drop(expect(&client.channel, EventKind::Established));
}

#[test]
fn who_binds_there_may_connect_from_there() {
    let any = setup(Transport::Iwarp, ([127, 0, 0, 1], 0).into());
    let (listening, address, _pair) = served(&any);
    let (channel, _other, to) = listener(&any);
    drop(listening.destroy());
    let events = EventChannel::new().unwrap();
    let id = CmId::new(&events, softverbs::cm::PortSpace::Tcp, 0).unwrap();
    id.bind_addr(address).unwrap();
    id.resolve_addr(None, to, PATIENCE).unwrap();
    drop(expect(&events, EventKind::AddrResolved));
    id.resolve_route(PATIENCE).unwrap();
    drop(expect(&events, EventKind::RouteResolved));
    let end = equip(&any, events, id);
    end.id.connect(&ConnParam::default()).unwrap();
    let _server = accept(&any, &channel);
    drop(expect(&end.channel, EventKind::Established));
    assert_eq!(end.id.local_addr(), Some(address));
}
