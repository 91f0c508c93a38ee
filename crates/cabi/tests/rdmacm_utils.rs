//! The programs of rdmacm-utils, unmodified, with themselves: over both transports, IPv4 and IPv6, as an
//! ordinary user.

mod common;

use common::cm::{Program, TRANSPORTS, free_port, pair};

const ADDRESSES: [&str; 2] = ["127.0.0.1", "::1"];

/// Over each transport and each family of addresses, with a free port.
fn everywhere(test: impl Fn(&str, &str, u16)) {
    for transport in TRANSPORTS {
        for address in ADDRESSES {
            test(transport, address, free_port());
        }
    }
}

#[test]
fn rping() {
    everywhere(|transport, address, port| {
        for (options, expected) in [
            ("-v -V -C 5", "rdma-ping-4"),
            ("-d -v -V -C 3 -S 100", "rdma-ping-2"),
            ("-V -C 10 -S 65535", ""),
        ] {
            let (server, client) = pair(
                transport,
                &format!("rping -s -a {address} -p {port} {options}"),
                &format!("rping -c -a {address} -p {port} {options}"),
            );
            assert!(
                server.contains(expected) && client.contains(expected),
                "{server}{client}"
            );
        }
    });
}

/// A queue pair of the program's own. (Over iWARP rping would have to do without CONNECT_RESPONSE, as
/// with real devices, and cannot.)
#[test]
fn rping_with_its_own_queue_pair() {
    for address in ADDRESSES {
        let port = free_port();
        let (server, client) = pair(
            "roce",
            &format!("rping -s -a {address} -p {port} -v -C 3 -q"),
            &format!("rping -c -a {address} -p {port} -v -C 3 -q"),
        );
        assert!(server.contains("rdma-ping-2") && client.contains("rdma-ping-2"));
    }
}

/// A server that stays, whose clients come and go. (Not at once: rping keeps one request only.)
#[test]
fn rping_persistent_server() {
    everywhere(|transport, address, port| {
        let server = format!("rping -s -P -a {address} -p {port}");
        let mut server = Program::new(transport, &server).start();
        server.wait_ready();
        let client = || format!("rping -c -a {address} -p {port} -V -C 20");
        for _ in 0..4 {
            Program::new(transport, &client()).ok();
        }
    });
}

/// Its server hears that a client has died, and goes on to the next.
#[test]
fn rping_clients_that_are_killed() {
    everywhere(|transport, address, port| {
        let server = format!("rping -s -P -a {address} -p {port}");
        let mut server = Program::new(transport, &server).start();
        server.wait_ready();
        let client = format!("rping -c -v -a {address} -p {port}");
        let client = Program::new(transport, &client).start();
        client.says("ping data");
        client.kill();
        server.says("server DISCONNECT EVENT");
        let next = format!("rping -c -a {address} -p {port} -V -C 20");
        Program::new(transport, &next).ok();
    });
}

#[test]
fn rping_from_a_source_address() {
    for transport in TRANSPORTS {
        let port = free_port();
        pair(
            transport,
            &format!("rping -s -a 0.0.0.0 -p {port} -C 2"),
            &format!("rping -c -I 127.0.0.1 -a 127.0.0.1 -p {port} -C 2"),
        );
        let port = free_port();
        pair(
            transport,
            &format!("rping -s -a :: -p {port} -C 2"),
            &format!("rping -c -I 127.0.0.1 -a 127.0.0.1 -p {port} -C 2"),
        );
    }
}

/// Whoever is not there refuses, and the client says so.
#[test]
fn rping_without_a_server() {
    for transport in TRANSPORTS {
        let client = format!("rping -c -a 127.0.0.1 -p {} -C 1", free_port());
        let (status, output) = Program::new(transport, &client).start().end();
        assert!(!status.success(), "{output}");
        assert!(output.contains("RDMA_CM_EVENT_REJECTED"), "{output}");
    }
}

#[test]
fn ucmatose() {
    everywhere(|transport, address, port| {
        for options in [
            "",
            "-m",
            "-c 50 -C 20 -S 1000",
            "-C 3 -S 100000",
            "-t 32 -a 18",
        ] {
            let (server, client) = pair(
                transport,
                &format!("ucmatose -b {address} -p {port} {options}"),
                &format!("ucmatose -s {address} -p {port} {options}"),
            );
            for output in [&server, &client] {
                assert!(output.contains("return status 0"), "{output}");
            }
        }
    });
}

#[test]
fn ucmatose_formats_of_addresses() {
    for transport in TRANSPORTS {
        for (address, format) in [("127.0.0.1", "ip"), ("::1", "ipv6"), ("localhost", "name")] {
            let port = free_port();
            pair(
                transport,
                &format!("ucmatose -b {address} -p {port} -f {format}"),
                &format!("ucmatose -s {address} -p {port} -f {format}"),
            );
        }
        // Not bound to an address.
        let port = free_port();
        pair(
            transport,
            &format!("ucmatose -p {port}"),
            &format!("ucmatose -s 127.0.0.1 -p {port} -f ip"),
        );
    }
}

/// GIDs, and the port space of InfiniBand, which iWARP does not have.
#[test]
fn ucmatose_in_the_port_space_of_infiniband() {
    for (address, format) in [("127.0.0.1", "ip"), ("::1", "gid"), ("::1", "ipv6")] {
        let port = free_port();
        pair(
            "roce",
            &format!("ucmatose -b {address} -p {port} -P ib -f {format}"),
            &format!("ucmatose -s {address} -p {port} -P ib -f {format}"),
        );
    }
}

/// Datagrams are RoCE's, whatever transport is chosen for connections. One after another: the port is fixed.
#[test]
fn datagrams() {
    for transport in TRANSPORTS {
        for address in ADDRESSES {
            for options in ["", "-c 20 -C 5 -S 500"] {
                let (server, client) = pair(
                    transport,
                    &format!("udaddy -b {address} {options}"),
                    &format!("udaddy -s {address} {options}"),
                );
                for output in [&server, &client] {
                    assert!(output.contains("data transfers complete"), "{output}");
                }
            }
        }
    }
}

/// The sender does not ask for completions: it posts, leaves the group, and ends. (IPv4: the loopback
/// interface takes no multicast of IPv6.)
#[test]
fn datagrams_to_a_group() {
    for (transport, address, group, options) in [
        ("iwarp", "127.0.0.1", "239.7.7.1", ""),
        ("roce", "127.0.0.1", "239.7.7.2", ""),
        ("roce", "127.0.0.1", "239.7.7.3", "-C 50 -S 1000"),
        ("roce", "127.0.0.1", "239.7.7.4", "-c 5 -C 3"),
    ] {
        let (receiver, sender) = pair(
            transport,
            &format!("mckey -b {address} -m {group} {options}"),
            &format!("mckey -s -b {address} -m {group} {options}"),
        );
        for output in [&receiver, &sender] {
            assert!(output.contains("return status 0"), "{output}");
        }
    }
}

#[test]
fn rdma_client_and_server() {
    everywhere(|transport, address, port| {
        let server = format!("rdma_server -s {address} -p {port}");
        let client = format!("rdma_client -s {address} -p {port}");
        let (server, client) = pair(transport, &server, &client);
        assert!(
            server.contains("end 0") && client.contains("end 0"),
            "{server}{client}"
        );
    });
}

#[test]
fn rdma_xclient_and_xserver() {
    for transport in TRANSPORTS {
        let port = free_port();
        pair(
            transport,
            &format!("rdma_xserver -p {port} -c r"),
            &format!("rdma_xclient -s 127.0.0.1 -p {port} -c r"),
        );
    }
}

/// Over RoCE, which has it.
#[test]
fn rdma_xclient_and_xserver_with_xrc() {
    let port = free_port();
    pair(
        "roce",
        &format!("rdma_xserver -p {port} -c x"),
        &format!("rdma_xclient -s 127.0.0.1 -p {port} -c x"),
    );
}

#[test]
fn cmtime_with_a_thousand_connections() {
    for transport in TRANSPORTS {
        let port = free_port();
        let server = format!("cmtime -b 127.0.0.1 -p {port} -c 1000");
        let mut server = Program::new(transport, &server).start();
        server.wait_ready();
        // Its server has no end.
        let client = format!("cmtime -s 127.0.0.1 -p {port} -c 1000 -t 20000");
        let output = Program::new(transport, &client).ok();
        assert!(output.contains("disconnect"), "{output}");
    }
}
