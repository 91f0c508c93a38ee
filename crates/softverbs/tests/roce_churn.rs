//! Processes that come and go, at one address over RoCE: every attempt to connect ends, and soon.

mod common;
#[path = "common/netns.rs"]
mod netns;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use common::child::{Other, role};
use common::{PATIENCE, Setup, equip, expect, listener, next_event, no_event, resolved};
use softverbs::cm::EventKind;
use softverbs::{Device, QpInitAttr, Transport};

/// Where nobody listens but those that a test starts.
const PORTS: [u16; 2] = [20_001, 20_002];

fn setup(port: u16) -> Setup {
    Setup {
        address: ([127, 0, 0, 1], port).into(),
        len: 4096,
        ..Setup::over(Transport::Roce)
    }
}

/// One attempt. Whether it succeeded; then it is over again.
fn attempt(setup: &Setup, address: SocketAddr) -> bool {
    let (channel, id) = resolved(setup, address);
    let client = equip(setup, channel, id);
    client.id.connect(&setup.param).unwrap();
    let event = next_event(&client.channel);
    match event.kind() {
        EventKind::Established => true,
        EventKind::Rejected => false,
        other => panic!("{other:?}, status {}", event.status()),
    }
}

/// One of the other processes; does nothing unless it is told to.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let number = |nth: usize| words[nth].parse::<u16>().unwrap();
    match words[0] {
        // Takes connections, one at a time, each by a listener of its own.
        "serve" => {
            let setup = setup(number(1));
            for _ in 0..number(2) {
                let (channel, listening, _) = listener(&setup);
                let Some(event) = channel.get_event(Some(PATIENCE / 4)).unwrap() else {
                    return;
                };
                let request = event.id().clone();
                drop(event);
                let server = equip(&setup, channel, request);
                if server.id.accept(&setup.param).is_ok() {
                    drop(listening);
                    // Or the client has gone.
                    let _ = server.channel.get_event(Some(PATIENCE / 4)).unwrap();
                }
            }
        }
        "connect" => {
            let setup = setup(number(1));
            for _ in 0..number(2) {
                attempt(&setup, setup.address);
            }
        }
        // Has queue pairs, and so UDP port 4791, but connects nothing.
        "own" => {
            let device = Device::for_address([127, 0, 0, 1].into(), None).unwrap();
            let context = device.with_transport(Transport::Roce).open().unwrap();
            let pd = context.alloc_pd().unwrap();
            let cq = context.create_cq(16, None, 0).unwrap();
            let _qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
            let owners = softverbs::roce_status().unwrap().port_owners;
            eprintln!("owner {}", owners[0].owner);
            thread::sleep(PATIENCE * 4);
        }
        _ => unreachable!(),
    }
    eprintln!("done");
}

/// Servers that end and start again, some of them killed, and clients that do not wait for them.
#[test]
fn every_attempt_ends() {
    if !netns::inside("every_attempt_ends") {
        return;
    }
    for round in 0..6 {
        let serve = |port: u16, n: u16| Other::start(&format!("serve {port} {n}"), &[], &[]);
        let mut first = serve(PORTS[0], 50);
        let clients: Vec<_> = [PORTS[0], PORTS[1], PORTS[0]]
            .map(|port| Other::start(&format!("connect {port} 8"), &[], &[]))
            .into();
        let second = serve(PORTS[1], 3);
        thread::sleep(Duration::from_millis(20 * round));
        if round % 2 == 0 {
            first.kill();
        }
        for mut client in clients {
            client.says("done");
            assert!(client.finish().success(), "round {round}");
        }
        drop((first, second));
    }
}

/// A client on the same host does not depend on who has UDP port 4791, which may be about to end.
#[test]
fn whoever_has_the_port_nobody_waits_for_it() {
    if !netns::inside("whoever_has_the_port_nobody_waits_for_it") {
        return;
    }
    let mut owner = Other::start("own", &[], &[]);
    assert_eq!(owner.says("owner "), "this process");
    let setup = setup(PORTS[0]);
    assert!(!attempt(&setup, setup.address));
    owner.kill();
    assert!(!attempt(&setup, setup.address));
}

/// Who has UDP port 4791 answers for its host to others, also if it never connects itself.
#[test]
fn another_host_is_answered() {
    if !netns::inside("another_host_is_answered") {
        return;
    }
    let script = "ip link set lo up; ip link add sv1 type veth peer name sv0 netns $PPID; \
                  ip addr add 10.77.9.2/24 dev sv1; ip link set sv1 up; exec \"$0\" \"$@\"";
    let other_host = ["unshare", "--net", "sh", "-ec", script];
    let mut owner = Other::start("own", &other_host, &[]);
    assert_eq!(owner.says("owner "), "this process");
    let status = std::process::Command::new("sh")
        .args([
            "-ec",
            "ip addr add 10.77.9.1/24 dev sv0; ip link set sv0 up",
        ])
        .status();
    assert!(status.unwrap().success());
    let setup = setup(PORTS[0]);
    assert!(!attempt(&setup, ([10, 77, 9, 2], PORTS[0]).into()));
}

/// A server that listens for one connection at a time is not there for a moment.
#[test]
fn a_request_waits_for_a_listener_that_comes_back() {
    if !netns::inside("a_request_waits_for_a_listener_that_comes_back") {
        return;
    }
    let setup = setup(PORTS[0]);
    let (_channel, listening, address) = listener(&setup);
    drop(listening);
    let (channel, id) = resolved(&setup, address);
    let client = equip(&setup, channel, id);
    client.id.connect(&setup.param).unwrap();
    no_event(&client.channel, Duration::from_millis(50));
    let (channel, _listening, _) = listener(&setup);
    let request = expect(&channel, EventKind::ConnectRequest);
    let server = equip(&setup, channel, request.id().clone());
    drop(request);
    server.id.accept(&setup.param).unwrap();
    drop(expect(&client.channel, EventKind::Established));
}

/// It is refused when it has waited, and at once if nobody can come back.
#[test]
fn a_request_does_not_wait_for_nothing() {
    if !netns::inside("a_request_does_not_wait_for_nothing") {
        return;
    }
    let setup = setup(PORTS[0]);
    let (_channel, listening, address) = listener(&setup);
    drop(listening);
    let begun = Instant::now();
    assert!(!attempt(&setup, address));
    assert!(begun.elapsed() >= Duration::from_millis(900), "it waits");
    // Bound, and never listened.
    let (_channel, bound) = {
        let channel = softverbs::cm::EventChannel::new().unwrap();
        let id = softverbs::cm::CmId::new(&channel, softverbs::cm::PortSpace::Tcp, 0).unwrap();
        id.set_option(softverbs::cm::CmOption::Transport(Transport::Roce))
            .unwrap();
        id.bind_addr(([127, 0, 0, 1], PORTS[1]).into()).unwrap();
        (channel, id)
    };
    assert!(!attempt(&setup, ([127, 0, 0, 1], PORTS[1]).into()));
    drop(bound);
}
