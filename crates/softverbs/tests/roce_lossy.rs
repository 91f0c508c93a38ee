//! Networks that lose, double and overtake: every octet arrives, every request completes once,
//! every atomic operation is done once. Two processes, with faults of `SOFTVERBS_FAULT` over
//! loopback in both directions; and, where the kernel has it, with `tc netem` between two network
//! namespaces.

mod common;

use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use common::child::{self, Other};
use common::{End, Setup, equip, expect, listener, nothing, pattern, poll, resolved};
use softverbs::cm::{CmOption, ConnParam, EventKind};
use softverbs::fault;
use softverbs::{Rkey, SendData, SendFlags, SendOp, SendWr, Transport, WcStatus};

/// Each round is a write, a fetch-and-add, a read and a send.
const ROUNDS: usize = 120;
/// Rounds under way.
const WINDOW: usize = 12;
/// Longest payload: some packets of any MTU.
const MOST: usize = 20_000;
/// In the region: the word of the atomics, what is read, and a place for each round.
const READABLE: usize = 64;
const PLACES: usize = READABLE + MOST;

const fn place(round: usize) -> usize {
    PLACES + round * MOST
}

fn len(round: usize) -> usize {
    // From nothing to several packets, with odd ends.
    (round * round * 7 + round * 131) % (MOST + 1)
}

fn setup(address: &str) -> Setup {
    Setup {
        address: address.parse().unwrap(),
        len: place(ROUNDS),
        client_options: vec![CmOption::AckTimeout(14)],
        server_options: vec![CmOption::AckTimeout(14)],
        ..Setup::over(Transport::Roce)
    }
}

/// The other processes; nothing happens unless it is told to.
#[test]
fn child() {
    let Some(role) = child::role() else { return };
    match role.split_once(' ').unwrap() {
        ("serve", address) => serve(&setup(address)),
        (_, address) => request(&setup(address)),
    }
    let done: u64 =
        fault::report().map_or(0, |report| report.rules.iter().map(|rule| rule.done).sum());
    eprintln!("faults {done}");
    // The answer to the client's DREQ may have been lost.
    child::until_dismissed();
}

fn serve(setup: &Setup) {
    let (channel, _listening, address) = listener(setup);
    eprintln!("listening on {address}");
    let request = expect(&channel, EventKind::ConnectRequest);
    let end = equip(setup, channel, request.id().clone());
    end.mr.copy_in(READABLE, &pattern(MOST, 99)).unwrap();
    // Sends go where the writes have been: the write of a round is checked first.
    let landing = end.pd.alloc_mr(ROUNDS * MOST, common::ALL).unwrap();
    for round in 0..ROUNDS {
        let sges = [landing.sge(round * MOST, MOST)];
        let wr = softverbs::RecvWr {
            wr_id: round as u64,
            sges: &sges,
        };
        end.qp.post_recv(&wr).unwrap();
    }
    let mut offer = end.mr.addr().to_be_bytes().to_vec();
    offer.extend_from_slice(&end.mr.rkey().get().to_be_bytes());
    end.id.accept(&ConnParam::with_private_data(offer)).unwrap();
    for round in 0..ROUNDS {
        let done = end.success();
        assert_eq!(done.wr_id, round as u64, "in order");
        assert_eq!(done.byte_len as usize, len(round));
        let mut got = vec![0; len(round)];
        landing.copy_out(round * MOST, &mut got).unwrap();
        assert!(
            got == pattern(len(round), round as u64 + 1000),
            "send {round}"
        );
        // What was requested before has been done.
        assert!(counter(&end) > round as u64);
        let written = end.read(place(round), len(round));
        assert!(
            written == pattern(len(round), round as u64),
            "write {round}"
        );
    }
    end.send_inline(1, b"all there", SendFlags::SIGNALED);
    // The client has all of its answers before it goes.
    drop(expect(&end.channel, EventKind::Established));
    drop(expect(&end.channel, EventKind::Disconnected));
    // It has read the last message, too; if its acknowledge was lost it did not wait for another try.
    let last = end.completions(1)[0].status;
    assert!(matches!(last, WcStatus::Success | WcStatus::WrFlushErr));
    assert_eq!(counter(&end), ROUNDS as u64);
    nothing(&end.cq, Duration::from_millis(20));
}

fn counter(end: &End) -> u64 {
    u64::from_ne_bytes(end.read(0, 8).try_into().unwrap())
}

fn request(setup: &Setup) {
    let (channel, id) = resolved(setup, setup.address);
    let end = equip(setup, channel, id);
    end.id.connect(&setup.param).unwrap();
    let event = expect(&end.channel, EventKind::Established);
    let offer = event.private_data();
    let base = u64::from_be_bytes(offer[..8].try_into().unwrap());
    let rkey = Rkey::new(u32::from_be_bytes(offer[8..12].try_into().unwrap()));
    let at = |offset: usize| base + offset as u64;
    let readable = pattern(MOST, 99);
    // Results and payloads of their own for every round.
    let results = end.pd.alloc_mr(ROUNDS * 8, common::ALL).unwrap();
    let reads = end.pd.alloc_mr(ROUNDS * MOST, common::ALL).unwrap();
    let sends = end.pd.alloc_mr(ROUNDS * MOST, common::ALL).unwrap();
    end.recv(u64::MAX, 0, 64);
    let mut completed = vec![0_u32; ROUNDS * 4];
    let mut finished = 0;
    for round in 0..ROUNDS + WINDOW {
        if round < ROUNDS {
            let len = len(round);
            let number = round as u64;
            end.mr.copy_in(place(round), &pattern(len, number)).unwrap();
            sends
                .copy_in(round * MOST, &pattern(len, number + 1000))
                .unwrap();
            let requests = [
                (
                    SendOp::Write {
                        remote_addr: at(place(round)),
                        rkey,
                    },
                    end.mr.sge(place(round), len),
                ),
                (
                    SendOp::FetchAdd {
                        remote_addr: at(0),
                        rkey,
                        add: 1,
                    },
                    results.sge(round * 8, 8),
                ),
                (
                    SendOp::Read {
                        remote_addr: at(READABLE),
                        rkey,
                    },
                    reads.sge(round * MOST, len),
                ),
                (SendOp::Send, sends.sge(round * MOST, len)),
            ];
            for (kind, (op, sge)) in (0..).zip(requests) {
                let sges = [sge];
                let wr = SendWr::new(number * 4 + kind, op, SendData::Sges(&sges));
                end.qp.post_send(&wr).unwrap();
            }
        }
        if round < WINDOW {
            continue;
        }
        for wc in poll(&end.cq, 4) {
            assert!(wc.is_success(), "{wc:?}");
            if wc.wr_id == u64::MAX {
                completed.push(1);
                continue;
            }
            let index = usize::try_from(wc.wr_id).unwrap();
            assert_eq!(index, finished, "in order");
            completed[index] += 1;
            finished += 1;
        }
    }
    // The last word of the server may have come among them.
    let more = ROUNDS * 4 + 1 - finished - (completed.len() - ROUNDS * 4);
    for wc in poll(&end.cq, more) {
        assert!(wc.is_success(), "{wc:?}");
        if wc.wr_id != u64::MAX {
            completed[usize::try_from(wc.wr_id).unwrap()] += 1;
        }
    }
    assert!(
        completed[..ROUNDS * 4].iter().all(|count| *count == 1),
        "{completed:?}"
    );
    nothing(&end.cq, Duration::from_millis(20));
    assert_eq!(end.read(0, 9), b"all there");
    for round in 0..ROUNDS {
        let mut before = [0; 8];
        results.copy_out(round * 8, &mut before).unwrap();
        assert_eq!(u64::from_ne_bytes(before), round as u64, "atomic {round}");
        let mut got = vec![0; len(round)];
        reads.copy_out(round * MOST, &mut got).unwrap();
        assert!(got == readable[..len(round)], "read {round}");
    }
    end.id.disconnect().unwrap();
    drop(expect(&end.channel, EventKind::Disconnected));
}

/// Both processes, each with its variables and by way of its wrapper. Faults that they made.
fn run(address: &str, wrappers: [&[&str]; 2], faults: [&str; 2]) -> u64 {
    let environment = |spec| [(fault::VARIABLE, spec)];
    let serve = format!("serve {address}");
    let mut server = Other::start(&serve, wrappers[0], &environment(faults[0]));
    let address = server.says("listening on ");
    let role = format!("request {address}");
    let mut client = Other::start(&role, wrappers[1], &environment(faults[1]));
    let made = [client.says("faults "), server.says("faults ")];
    assert!(client.finish().success() && server.finish().success());
    made.iter().map(|text| text.parse::<u64>().unwrap()).sum()
}

const FAMILIES: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

/// Every packet passes the client's edge once, whichever way it goes.
fn at_the_client(spec: &str) {
    for address in FAMILIES {
        let made = run(address, [&[], &[]], ["", spec]);
        assert!(made > 0, "{spec}");
    }
}

#[test]
fn nothing_wrong() {
    for address in FAMILIES {
        assert_eq!(run(address, [&[], &[]], ["", ""]), 0);
    }
}

#[test]
fn loss() {
    at_the_client("data:1%=drop,seed=1");
    at_the_client("data:5%=drop,seed=2");
    // A fifth of one direction: of both, eight attempts in a row fail every so often, which is as
    // many as there may be.
    at_the_client("out:data:20%=drop,seed=3");
    at_the_client("in:data:20%=drop,seed=4");
}

#[test]
fn duplicates() {
    at_the_client("packet:1%=dup,seed=1");
    at_the_client("packet:5%=dup:2,seed=2");
    at_the_client("packet:20%=dup,seed=3");
}

#[test]
fn reordering() {
    at_the_client("packet:1%=reorder,seed=1");
    at_the_client("packet:5%=reorder:4,seed=2");
    at_the_client("packet:20%=reorder:2,seed=3");
    at_the_client("data:20%=delay:0ms-2ms,seed=4");
}

#[test]
fn corruption() {
    at_the_client("data:1%=corrupt,seed=1");
    at_the_client("data:5%=corrupt,seed=2");
}

#[test]
fn a_slow_line() {
    at_the_client("out:data=rate:20M");
}

#[test]
fn everything_at_both_ends() {
    let spec =
        "data:2%=drop,packet:3%=dup,packet:3%=reorder:2,data:1%=corrupt,data:3%=delay:0ms-3ms";
    for address in FAMILIES {
        let specs = [format!("{spec},seed=5"), format!("{spec},seed=6")];
        assert!(run(address, [&[], &[]], [&specs[0], &specs[1]]) > 0);
    }
}

/// Two network namespaces with a pair of virtual interfaces between them; gone when dropped.
struct Namespaces {
    names: [String; 2],
}

const ENDS: [&str; 2] = ["10.99.7.1", "10.99.7.2"];
const ENDS_V6: [&str; 2] = ["fd00:99:7::1", "fd00:99:7::2"];

fn tool(words: &str) -> Result<String, String> {
    let mut words = words.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

impl Namespaces {
    /// Or why there can be none.
    fn new(test: &str) -> Result<Self, String> {
        let me = std::fs::metadata("/proc/self").map_err(|error| error.to_string())?;
        if me.uid() != 0 {
            return Err("network namespaces need root".to_owned());
        }
        let names = ["a", "b"].map(|end| format!("sv{test}{}{end}", std::process::id()));
        let namespaces = Self { names };
        let [one, other] = &namespaces.names;
        for name in [one, other] {
            tool(&format!("ip netns add {name}"))?;
            tool(&format!("ip -n {name} link set lo up"))?;
        }
        tool(&format!(
            "ip -n {one} link add eth0 type veth peer name eth0 netns {other}"
        ))?;
        for (index, name) in [one, other].into_iter().enumerate() {
            tool(&format!(
                "ip -n {name} addr add {}/24 dev eth0",
                ENDS[index]
            ))?;
            tool(&format!(
                "ip -n {name} addr add {}/64 dev eth0 nodad",
                ENDS_V6[index]
            ))?;
            tool(&format!("ip -n {name} link set eth0 up"))?;
        }
        Ok(namespaces)
    }

    /// What each of the two does to what it sends.
    fn netem(&self, what: [&str; 2]) -> Result<(), String> {
        for (name, what) in self.names.iter().zip(what) {
            tool(&format!(
                "tc -n {name} qdisc replace dev eth0 root netem {what}"
            ))?;
        }
        Ok(())
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = tool(&format!("ip netns del {name}"));
        }
    }
}

fn wrappers(namespaces: &Namespaces) -> [[&str; 4]; 2] {
    let [one, other] = &namespaces.names;
    [one, other].map(|name| ["ip", "netns", "exec", name])
}

fn ends() -> [String; 2] {
    [format!("{}:0", ENDS[0]), format!("[{}]:0", ENDS_V6[0])]
}

/// Over virtual interfaces, with their MTU and their queues, and UDP port 4791 at both ends.
#[test]
fn between_namespaces() {
    let namespaces = match Namespaces::new("n") {
        Ok(namespaces) => namespaces,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let [one, other] = &wrappers(&namespaces);
    for (server, client) in [
        ("", ""),
        ("out:data:1%=drop", "out:data:1%=drop"),
        ("out:data:5%=drop", "out:data:5%=drop"),
        ("packet:20%=dup", "packet:20%=reorder:2"),
    ] {
        for address in ends() {
            let made = run(&address, [one, other], [server, client]);
            assert_eq!(made > 0, !server.is_empty());
        }
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "the lab reads it")]
fn netem() {
    let ready = Namespaces::new("e").and_then(|namespaces| {
        let netem = namespaces.netem(["loss 0%"; 2]);
        let why = |why| format!("no netem in this kernel: {why}");
        netem.map_err(why).map(|()| namespaces)
    });
    let namespaces = match ready {
        Ok(namespaces) => namespaces,
        Err(why) => {
            return eprintln!(
                "skipped: {why}; the other tests of this file do the same without it"
            );
        }
    };
    let [one, other] = &wrappers(&namespaces);
    // With a fifth lost both ways, eight tries in a row do fail now and then, and no more are to be had.
    let all: &[[&str; 2]] = &[
        ["loss 5%"; 2],
        ["loss 20%", "loss 0%"],
        ["duplicate 20%"; 2],
        ["delay 2ms reorder 80%"; 2],
        ["loss 1%"; 2],
        ["loss 0%", "loss 20%"],
        ["duplicate 1%"; 2],
        ["duplicate 5%"; 2],
        ["delay 2ms reorder 99%"; 2],
        ["delay 2ms reorder 95%"; 2],
    ];
    // In an emulated machine all of them take minutes.
    let short = std::env::var_os("SOFTVERBS_NETEM").is_some_and(|value| value == "short");
    for (index, what) in all
        .iter()
        .take(if short { 4 } else { all.len() })
        .enumerate()
    {
        namespaces.netem(*what).unwrap();
        for (family, address) in ends().iter().enumerate() {
            if short && family != index % 2 {
                continue;
            }
            println!("netem {what:?}, {address}");
            run(address, [one, other], ["", ""]);
        }
    }
    println!("netem: done");
}
