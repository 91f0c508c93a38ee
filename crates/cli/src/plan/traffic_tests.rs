//! Every option of `bw` and `lat`, by its short and its long name.

use clap::Parser;

use super::super::Plan;
use super::*;
use crate::args::Args;

fn plan(line: &str) -> Outcome<TrafficPlan> {
    let words = std::iter::once("softverbs").chain(line.split_whitespace());
    let args = Args::try_parse_from(words).map_err(|error| Failure::usage(error.to_string()))?;
    match Plan::new(args)? {
        Plan::Traffic(plan) => Ok(plan),
        other => panic!("not a measurement: {other:?}"),
    }
}

fn workload(line: &str) -> Workload {
    plan(line).expect(line).workload
}

fn server(line: &str) -> ServerPlan {
    match plan(line).expect(line).role {
        Role::Server(server) => server,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn defaults_of_bw() {
    let plan = plan("bw").unwrap();
    assert!(matches!(plan.role, Role::BothEnds));
    let load = plan.workload;
    assert_eq!((load.metric, load.verb), (Metric::Bandwidth, Verb::Write));
    assert_eq!(
        (load.sizes, load.amount),
        (Sizes::One(65_536), Amount::Iterations(5000))
    );
    assert_eq!(
        (load.qps, load.tx_depth, load.inline, load.fpdu),
        (1, 128, 0, None)
    );
    assert!(!load.bidirectional && !load.check && !load.crc);
    assert!(!plan.events && !plan.tcp_exchange && !plan.json);
    assert_eq!(plan.local, Local::Any);
    assert_eq!(plan.timeout, Duration::from_secs(10));
}

#[test]
fn defaults_of_lat() {
    let load = workload("lat");
    assert_eq!((load.metric, load.verb), (Metric::Latency, Verb::Send));
    assert_eq!(
        (load.sizes, load.amount),
        (Sizes::One(8), Amount::Iterations(1000))
    );
    assert_eq!((load.qps, load.inline, load.cq_mod), (1, 64, 0));
}

#[test]
fn verb_and_address() {
    for (line, verb, host) in [
        ("bw read", Verb::Read, None),
        ("bw send 192.0.2.1", Verb::Send, Some("192.0.2.1")),
        ("bw fe80::1%eth0", Verb::Write, Some("fe80::1%eth0")),
        ("bw 192.0.2.1 send", Verb::Send, Some("192.0.2.1")),
        ("bw read write", Verb::Read, Some("write")),
        ("lat write", Verb::Write, None),
        ("lat host.example", Verb::Send, Some("host.example")),
    ] {
        let plan = plan(line).unwrap();
        assert_eq!(plan.workload.verb, verb, "{line}");
        match (plan.role, host) {
            (Role::BothEnds, None) => {}
            (
                Role::Client {
                    host: got,
                    port: 18515,
                },
                Some(host),
            ) => assert_eq!(got, host),
            (role, _) => panic!("{line}: {role:?}"),
        }
    }
}

#[test]
fn short_names() {
    let load = workload("bw -s 4K -n 7 -t 16 -q 3 -b -I 32 -m 512 -Q 4");
    assert_eq!(
        (load.sizes, load.amount),
        (Sizes::One(4096), Amount::Iterations(7))
    );
    assert_eq!(
        (load.tx_depth, load.qps, load.inline, load.fpdu),
        (16, 3, 32, Some(512))
    );
    assert!(load.bidirectional);
    assert_eq!(load.cq_mod, 4);
    assert_eq!(workload("bw -a").sizes, Sizes::ALL);
    assert_eq!(
        workload("bw -D 1.5").amount,
        Amount::Duration(Duration::from_millis(1500))
    );
    let plan = plan("bw -e -p 9 -d iw_lo 192.0.2.1").unwrap();
    assert!(plan.events);
    assert_eq!(plan.local, Local::Device("iw_lo".into()));
    assert!(matches!(plan.role, Role::Client { port: 9, .. }));
}

#[test]
fn long_names() {
    let load = workload(
        "bw --size 1MiB --iters 7 --tx-depth 16 --qps 3 --bidirectional --inline 32 --fpdu 512 \
         --cq-mod 4 --crc --check --transport iwarp",
    );
    assert_eq!(
        (load.sizes, load.amount),
        (Sizes::One(1 << 20), Amount::Iterations(7))
    );
    assert_eq!((load.qps, load.inline, load.fpdu), (3, 32, Some(512)));
    // 64 MiB of buffers, two directions, three queue pairs of 1 MiB messages: 10 each.
    assert_eq!(
        (load.slots, load.tx_depth, load.window, load.cq_mod),
        (10, 10, 10, 4)
    );
    assert!(load.bidirectional && load.crc && load.check);
    assert_eq!(workload("lat --all").sizes, Sizes::ALL);
    assert_eq!(
        workload("lat --duration 2").amount,
        Amount::Duration(Duration::from_secs(2))
    );
    let plan =
        plan("lat --events --port 9 --bind ::1 --tcp-exchange --timeout 3 --json ::1").unwrap();
    assert!(plan.events && plan.tcp_exchange && plan.json);
    assert_eq!(plan.local, Local::Address("::1".parse().unwrap()));
    assert_eq!(plan.timeout, Duration::from_secs(3));
    assert_eq!(
        plan_device("bw --device iw_eth0"),
        Local::Device("iw_eth0".into())
    );
}

fn plan_device(line: &str) -> Local {
    plan(line).unwrap().local
}

#[test]
fn server_options() {
    let plan = server("bw --server -p 0 --wait 5 --port-file f");
    assert_eq!(
        (plan.port, plan.persistent, plan.wait),
        (0, false, Some(Duration::from_secs(5)))
    );
    assert_eq!(plan.port_file, Some("f".into()));
    assert_eq!(plan.demands, Demands::default());
    assert!(server("bw --server --persistent").persistent);
    assert!(server("lat --server --serve-forever").persistent);
}

#[test]
fn a_server_demands_what_its_user_typed() {
    let demands =
        server("bw --server send -s 64 -n 5 -q 2 -t 8 -Q 2 -I 8 -m 999 -b --check").demands;
    let expect = Demands {
        verb: Some(Verb::Send),
        sizes: Some(Sizes::One(64)),
        amount: Some(Amount::Iterations(5)),
        qps: Some(2),
        tx_depth: Some(8),
        cq_mod: Some(2),
        inline: Some(8),
        fpdu: Some(999),
        bidirectional: true,
        check: true,
        ..Demands::default()
    };
    assert_eq!(demands, expect);
    let demands = server("bw --server atomic -A cmp-swap").demands;
    assert_eq!(
        (demands.verb, demands.atomic),
        (Some(Verb::Atomic), Some(AtomicOp::CompareSwap))
    );
    let demands = server("bw --server -c uc --mtu 512 --imm").demands;
    assert_eq!(
        (demands.verb, demands.connection, demands.mtu, demands.imm),
        (None, Some(Connection::Uc), Some(512), true)
    );
    // It may leave the verb to the client.
    assert_eq!(
        server("bw --server -A fetch-add").demands.atomic,
        Some(AtomicOp::FetchAdd)
    );
    // A server may sleep on events whatever the verb turns out to be.
    assert_eq!(
        server("lat --server -e write").demands.verb,
        Some(Verb::Write)
    );
}

#[test]
fn a_server_agrees_with_a_client_of_the_same_options() {
    for options in [
        "bw",
        "bw -a",
        "bw send -s 100 -n 5 -q 2 -t 8 -Q 2 -I 8 -m 999 -b",
        "bw read -D 1 --check -t 50",
        "lat",
        "lat read -s 3",
        "lat write -I 10 --check",
        "bw atomic -A cmp-swap",
        "lat atomic",
        "bw write --imm --mtu 2048",
        "bw -c UC -q 3",
        "bw -c UD -a --mtu 512",
        "lat -c UD --imm",
    ] {
        let demands = server(&format!("{options} --server")).demands;
        let client = workload(options);
        assert_eq!(demands.refuse(client.metric, &client), None, "{options}");
    }
}

#[test]
fn services_and_atomics() {
    let plan_of = |line: &str| plan(line).expect(line);
    let load = workload("bw atomic -q 2");
    assert_eq!(
        (load.verb, load.atomic, load.sizes, load.slots),
        (
            Verb::Atomic,
            AtomicOp::FetchAdd,
            Sizes::One(8),
            load.tx_depth
        )
    );
    let load = workload("lat atomic -A cmp-swap -s 8");
    assert_eq!(load.atomic, AtomicOp::CompareSwap);
    // What only RoCE has chooses RoCE.
    for line in [
        "bw -c UC",
        "bw -c ud",
        "bw --mtu 1024",
        "bw -c RC --mtu 1024",
    ] {
        assert_eq!(plan_of(line).transport, Some(Transport::Roce), "{line}");
    }
    assert_eq!(plan_of("bw -c RC").transport, None);
    assert_eq!(plan_of("bw -d iw_lo").transport, Some(Transport::Iwarp));
    // The usual verb and size are those that the service has.
    let load = workload("bw -c UD");
    assert_eq!((load.verb, load.sizes), (Verb::Send, Sizes::One(1024)));
    assert_eq!(workload("bw -c UD --mtu 256").sizes, Sizes::One(256));
    assert_eq!(workload("bw -c UD -a").sizes, Sizes::UpTo(4096));
    assert_eq!(workload("bw -c UD -a --mtu 512").sizes, Sizes::UpTo(512));
    assert_eq!(workload("bw -c UC").verb, Verb::Write);
    assert_eq!(workload("lat -c UC").verb, Verb::Send);
    assert_eq!(workload("bw -q 2").qps, workload("bw --qp 2").qps);
    // Writes with immediate data show at their target, which may sleep.
    assert!(plan_of("lat write --imm -e").events);
    assert!(plan_of("lat write -c UC -e").events);
}

#[test]
fn refusals_say_why() {
    for (line, word) in [
        ("bw -c UC read", "write and send"),
        ("bw -c UD write", "send only"),
        ("lat -c UD atomic", "send only"),
        ("bw -c UC atomic", "write and send"),
        ("bw -c RD", "RC, UC, UD"),
        ("bw -c UD -s 1025 --mtu 1024", "path MTU, 1024"),
        ("bw -c UC --transport iwarp", "services of RoCE"),
        ("bw -c UD -d iw_lo", "services of RoCE"),
        ("bw --mtu 1024 --transport iwarp", "--fpdu"),
        ("bw --mtu 1024 -d iw_lo", "--fpdu"),
        ("bw --mtu 1000", "256, 512, 1024"),
        ("bw --mtu 1024 --crc", "options of iWARP"),
        ("bw -c UD -m 1000", "options of iWARP"),
        ("bw send --imm --transport iwarp", "--transport roce"),
        ("bw read --imm", "--imm does not go with read"),
        ("bw atomic --imm", "--imm does not go with atomic"),
        ("bw atomic -s 16", "8 octets"),
        ("bw atomic -a", "8 octets"),
        ("bw atomic -I 8", "-I does not go with atomic"),
        ("bw -A fetch-add", "-A goes with the verb atomic"),
        ("bw atomic -A add", "fetch-add, cmp-swap"),
        ("bw -d roce_lo --transport iwarp", "not of iwarp"),
    ] {
        match plan(line) {
            Err(Failure::Usage(text)) => assert!(text.contains(word), "{line}: {text}"),
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn what_does_not_fit_together() {
    for line in [
        "bw --server 192.0.2.1",
        "bw write read 192.0.2.1",
        "bw 192.0.2.1 192.0.2.2",
        "bw rwite 192.0.2.1",
        "bw -s 0",
        "bw -s 2G",
        "bw -s 1 -a",
        "bw -n 1 -D 1",
        "bw -n 0",
        "bw -D 0",
        "bw -q 0",
        "bw -t 0",
        "bw -t 8 -Q 9",
        "bw -p 0 192.0.2.1",
        "bw -p 65536",
        "bw read -I 8",
        "bw --wait 3",
        "bw --persistent",
        "bw --server --persistent --wait 3",
        "bw --port-file f",
        "bw -d iw_lo --bind ::1",
        "bw --transport carrier-pigeon",
        "bw --timeout 0",
        "lat write -e",
        "lat -b",
        "lat -q 2",
        "lat -t 2",
        "frobnicate",
    ] {
        assert!(matches!(plan(line), Err(Failure::Usage(_))), "{line}");
    }
}
