//! Every operation, in every size that is an edge, over IPv4 and IPv6, CRC on and off.

mod common;

use common::{ALL, Setup, pair, pattern};
use softverbs::cm::CmOption;
use softverbs::{QpCap, SendData, SendFlags, SendOp, SendWr, Transport, WcOpcode, WcStatus};

common::over_both! {
    gathers_and_scatters,
    inline_data_is_captured_when_posted,
    unsignaled_requests_complete_silently_and_in_order,
    sixteen_reads_outstanding,
    a_region_beyond_four_gigabytes,
    messages_beyond_the_64_kib_edge_keep_their_order,
}

const SIZES: [usize; 16] = [
    0,
    1,
    2,
    3,
    4,
    5,
    1023,
    1024,
    1025,
    4096,
    4097,
    65_535,
    65_536,
    65_537,
    200_000,
    1 << 20,
];

fn setups() -> Vec<Setup> {
    let base = Setup {
        len: 4 << 20,
        ..Setup::default()
    };
    let with = |option: CmOption| Setup {
        client_options: vec![option],
        ..base.clone()
    };
    vec![
        base.clone(),
        with(CmOption::Crc(true)),
        with(CmOption::FpduLimit(1000)),
        Setup {
            client_options: vec![CmOption::MpaAware(true)],
            server_options: vec![CmOption::MpaAware(true)],
            ..base.clone()
        },
        with(CmOption::MpaMarkers(true)),
        with(CmOption::MpaRevision(1)),
        Setup {
            address: "[::1]:0".parse().unwrap(),
            ..base.clone()
        },
        Setup {
            transport: Transport::Roce,
            ..base.clone()
        },
        Setup {
            transport: Transport::Roce,
            address: "[::1]:0".parse().unwrap(),
            ..base
        },
    ]
}

#[test]
fn sends_of_every_size() {
    for setup in setups() {
        let (client, server) = pair(&setup);
        for (round, size) in SIZES.into_iter().enumerate() {
            let seed = round as u64;
            server.recv(seed, 2 << 20, 2 << 20);
            let data = client.fill(7, size, seed);
            client.send(seed, 7, size);
            let sent = client.success();
            assert_eq!((sent.wr_id, sent.opcode), (seed, WcOpcode::Send));
            let got = server.success();
            assert_eq!((got.wr_id, got.opcode), (seed, WcOpcode::Recv), "{setup:?}");
            assert_eq!(got.byte_len as usize, size);
            assert_eq!(server.read(2 << 20, size), data, "{size} octets, {setup:?}");
        }
    }
}

#[test]
fn writes_and_reads_of_every_size() {
    for setup in setups() {
        let (client, server) = pair(&setup);
        let (remote, rkey) = (server.mr.addr(), server.mr.rkey());
        for (round, size) in SIZES.into_iter().enumerate() {
            let data = client.fill(13, size, round as u64);
            let write = SendOp::Write {
                remote_addr: remote + 5,
                rkey,
            };
            client.post(1, write, 13, size);
            let read = SendOp::Read {
                remote_addr: remote + 5,
                rkey,
            };
            client.post(2, read, 2 << 20, size);
            let done = client.completions(2);
            assert_eq!(done[0].opcode, WcOpcode::RdmaWrite);
            assert_eq!(done[1].opcode, WcOpcode::RdmaRead);
            assert!(
                done.iter().all(|wc| wc.status == WcStatus::Success),
                "{done:?} {setup:?}"
            );
            assert_eq!(done[1].byte_len as usize, size);
            assert_eq!(
                server.read(5, size),
                data,
                "{size} octets written, {setup:?}"
            );
            assert_eq!(
                client.read(2 << 20, size),
                data,
                "{size} octets read, {setup:?}"
            );
        }
    }
}

fn gathers_and_scatters(transport: Transport) {
    let setup = Setup::over(transport);
    let (client, server) = pair(&setup);
    let data = client.fill(0, 30_000, 3);
    let sges = [
        client.mr.sge(0, 1),
        client.mr.sge(1, 0),
        client.mr.sge(1, 9_999),
        client.mr.sge(10_000, 20_000),
    ];
    let room = [
        server.mr.sge(100, 3),
        server.mr.sge(200, 20_000),
        server.mr.sge(50_000, 9_997),
    ];
    server
        .qp
        .post_recv(&softverbs::RecvWr {
            wr_id: 5,
            sges: &room,
        })
        .unwrap();
    client
        .qp
        .post_send(&SendWr::new(4, SendOp::Send, SendData::Sges(&sges)))
        .unwrap();
    client.success();
    assert_eq!(server.success().byte_len, 30_000);
    let got = [
        server.read(100, 3),
        server.read(200, 20_000),
        server.read(50_000, 9_997),
    ]
    .concat();
    assert_eq!(got, data);
    // And a read into several pieces.
    let read = SendOp::Read {
        remote_addr: server.mr.addr() + 200,
        rkey: server.mr.rkey(),
    };
    let sink = [client.mr.sge(100_000, 7), client.mr.sge(200_000, 19_993)];
    client
        .qp
        .post_send(&SendWr::new(6, read, SendData::Sges(&sink)))
        .unwrap();
    client.success();
    let got = [client.read(100_000, 7), client.read(200_000, 19_993)].concat();
    assert_eq!(got, server.read(200, 20_000));
}

fn inline_data_is_captured_when_posted(transport: Transport) {
    let setup = Setup {
        cap: QpCap {
            max_inline_data: 1000,
            ..QpCap::default()
        },
        ..Setup::over(transport)
    };
    let (client, server) = pair(&setup);
    for size in [0, 1, 63, 64, 65, 1000] {
        server.recv(1, 0, 4096);
        let mut data = pattern(size, 9);
        let kept = data.clone();
        client.send_inline(1, &data, SendFlags::SIGNALED);
        data.fill(0xee);
        client.success();
        assert_eq!(server.success().byte_len as usize, size);
        assert_eq!(server.read(0, size), kept);
    }
    let too_much = [0; 1001];
    let wr = SendWr::new(1, SendOp::Send, SendData::Inline(&too_much));
    let error = client.qp.post_send(&wr).unwrap_err();
    assert_eq!(error.errno(), 22, "{error}");
}

fn unsignaled_requests_complete_silently_and_in_order(transport: Transport) {
    let (client, server) = pair(&Setup::over(transport));
    for n in 0..100 {
        server.recv(n, 0, 64);
    }
    for n in 0..100_u64 {
        let flags = if n % 10 == 9 {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        client.send_inline(n, &n.to_le_bytes(), flags);
    }
    let sent: Vec<u64> = client.completions(10).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(sent, (0..10).map(|n| n * 10 + 9).collect::<Vec<_>>());
    let got: Vec<u64> = server.completions(100).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(got, (0..100).collect::<Vec<_>>());
    common::nothing(&client.cq, std::time::Duration::from_millis(20));
}

#[test]
fn atomics_between_peers_that_know_them() {
    for setup in [
        Setup::default(),
        Setup {
            client_options: vec![CmOption::Crc(true)],
            ..Setup::default()
        },
    ] {
        let (client, server) = pair(&setup);
        server.mr.copy_in(64, &40_u64.to_ne_bytes()).unwrap();
        let (remote_addr, rkey) = (server.mr.addr() + 64, server.mr.rkey());
        let value =
            |end: &common::End, offset| u64::from_ne_bytes(end.read(offset, 8).try_into().unwrap());
        client.post(
            1,
            SendOp::FetchAdd {
                remote_addr,
                rkey,
                add: 2,
            },
            0,
            8,
        );
        assert_eq!(client.success().opcode, WcOpcode::FetchAdd);
        assert_eq!((value(&client, 0), value(&server, 64)), (40, 42));
        let swap = SendOp::CompareSwap {
            remote_addr,
            rkey,
            compare: 42,
            swap: 7,
        };
        client.post(2, swap, 8, 8);
        assert_eq!(client.success().opcode, WcOpcode::CompSwap);
        assert_eq!((value(&client, 8), value(&server, 64)), (42, 7));
        client.post(3, swap, 16, 8);
        client.success();
        assert_eq!(
            (value(&client, 16), value(&server, 64)),
            (7, 7),
            "not equal: not swapped"
        );
        // Write with immediate data.
        server.recv(9, 0, 0);
        client.fill(1000, 500, 1);
        let write = SendOp::WriteWithImm {
            remote_addr: server.mr.addr() + 4096,
            rkey,
            imm: 0xabcd,
        };
        client.post(4, write, 1000, 500);
        client.success();
        let got = server.success();
        assert_eq!(got.opcode, WcOpcode::RecvRdmaWithImm);
        assert_eq!((got.imm, got.byte_len), (Some(0xabcd), 500));
        assert_eq!(server.read(4096, 500), client.read(1000, 500));
    }
}

fn sixteen_reads_outstanding(transport: Transport) {
    // field B75: every read up to the negotiated depth is served, and more wait their turn.
    let mut setup = Setup::over(transport);
    setup.param.initiator_depth = 16;
    setup.param.responder_resources = 16;
    let (client, server) = pair(&setup);
    let data = server.fill(0, 64 * 1024, 5);
    for n in 0..64 {
        let offset = n * 1024;
        let read = SendOp::Read {
            remote_addr: server.mr.addr() + offset as u64,
            rkey: server.mr.rkey(),
        };
        client.post(n as u64, read, offset, 1024);
    }
    let done = client.completions(64);
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success));
    assert!(done.iter().map(|wc| wc.wr_id).eq(0..64));
    assert_eq!(client.read(0, 64 * 1024), data);
}

fn a_region_beyond_four_gigabytes(transport: Transport) {
    // field B93. Zero pages cost nothing.
    let setup = Setup::over(transport);
    let (client, server) = pair(&setup);
    let huge = server.pd.alloc_mr((5 << 30) + 3, ALL).unwrap();
    let offset = (4_u64 << 30) + 1;
    let data = client.fill(0, 100_000, 8);
    let write = SendOp::Write {
        remote_addr: huge.addr() + offset,
        rkey: huge.rkey(),
    };
    client.post(1, write, 0, 100_000);
    client.success();
    let read = SendOp::Read {
        remote_addr: huge.addr() + offset,
        rkey: huge.rkey(),
    };
    client.post(2, read, 200_000, 100_000);
    client.success();
    assert_eq!(client.read(200_000, 100_000), data);
}

fn messages_beyond_the_64_kib_edge_keep_their_order(transport: Transport) {
    let (client, server) = pair(&Setup {
        len: 8 << 20,
        ..Setup::over(transport)
    });
    for n in 0..32_usize {
        server.recv(n as u64, n * 200_000, 200_000);
    }
    let mut sizes = Vec::new();
    for n in 0..32_usize {
        let size = [1, 65_536, 199_999, 4096][n % 4];
        client.fill(n * 200_000, size, n as u64);
        client.send(n as u64, n * 200_000, size);
        sizes.push(size);
    }
    client.completions(32);
    let got = server.completions(32);
    for (n, wc) in got.iter().enumerate() {
        assert_eq!((wc.wr_id, wc.byte_len as usize), (n as u64, sizes[n]));
        assert_eq!(
            server.read(n * 200_000, sizes[n]),
            pattern(sizes[n], n as u64)
        );
    }
}
