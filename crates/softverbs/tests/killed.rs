//! kill -9 of either end during a transfer: the other one gets flush errors and DISCONNECTED at
//! once, and listening and connecting again on the same port works at once.

mod common;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{End, Setup, equip, expect, listener, poll, resolved};
use softverbs::cm::{CmEvent, EventKind};
use softverbs::{Rkey, SendOp, WcStatus};

const ROLE: &str = "SOFTVERBS_TEST_CHILD";

/// The other process; does nothing unless it is told to.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let setup = setup(
        role.strip_prefix("listen ")
            .unwrap_or("127.0.0.1:0")
            .parse()
            .unwrap(),
    );
    if role.starts_with("listen") {
        let (channel, _listening, address) = listener(&setup);
        eprintln!("listening on {address}");
        let request = expect(&channel, EventKind::ConnectRequest);
        let end = equip(&setup, channel, request.id().clone());
        end.id.accept(&offer(&setup, &end)).unwrap();
        write_for_ever(
            &end,
            &expect(&end.channel, EventKind::Established),
            request.private_data(),
        );
    } else {
        let (channel, id) = resolved(&setup, role.parse().unwrap());
        let end = equip(&setup, channel, id);
        end.id.connect(&offer(&setup, &end)).unwrap();
        let event = expect(&end.channel, EventKind::Established);
        write_for_ever(&end, &event, event.private_data());
    }
}

fn setup(address: SocketAddr) -> Setup {
    Setup {
        address,
        ..Setup::default()
    }
}

/// Where the peer may write, as private data.
fn offer(setup: &Setup, end: &End) -> softverbs::cm::ConnParam {
    let mut data = end.mr.addr().to_be_bytes().to_vec();
    data.extend_from_slice(&end.mr.rkey().get().to_be_bytes());
    softverbs::cm::ConnParam {
        private_data: data,
        ..setup.param.clone()
    }
}

fn target(data: &[u8]) -> SendOp {
    SendOp::Write {
        remote_addr: u64::from_be_bytes(data[..8].try_into().unwrap()),
        rkey: Rkey::new(u32::from_be_bytes(data[8..12].try_into().unwrap())),
    }
}

/// Until it is killed, or until something fails.
fn write_for_ever(end: &End, _established: &CmEvent, data: &[u8]) {
    let write = target(data);
    for n in 0..8 {
        end.post(n, write, 0, 1 << 20);
    }
    while end.completions(1)[0].is_success() {
        end.post(0, write, 0, 1 << 20);
    }
}

struct Other(Child);

impl Other {
    fn start(role: &str) -> (Self, BufReader<std::process::ChildStderr>) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(ROLE, role)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        (Self(child), stderr)
    }

    fn listener(at: &str) -> (Self, SocketAddr) {
        let (other, stderr) = Self::start(&format!("listen {at}"));
        let address = stderr
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("listening on ")?.parse().ok())
            .expect("the child listens");
        (other, address)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes to the other process and kills it in the middle; how long until the event.
fn survive(end: &End, data: &[u8], other: &mut Other) -> Duration {
    for n in 0..16 {
        end.recv(100 + n, 0, 64);
    }
    let write = target(data);
    for n in 0..16 {
        end.post(n, write, 0, 1 << 20);
    }
    assert!(
        poll(&end.cq, 4).iter().all(|wc| wc.is_success()),
        "a transfer is under way"
    );
    for n in 16..64 {
        end.post(n, write, 0, 1 << 20);
    }
    other.kill();
    let killed = Instant::now();
    expect(&end.channel, EventKind::Disconnected);
    let took = killed.elapsed();
    // Every request has ended: some may have been with TCP already, the others are flushed.
    let rest = poll(&end.cq, 60 + 16);
    let flushed = rest
        .iter()
        .filter(|wc| wc.status == WcStatus::WrFlushErr)
        .count();
    assert!(
        rest.iter()
            .all(|wc| wc.is_success() || wc.status == WcStatus::WrFlushErr)
    );
    assert!(flushed >= 16, "the receives at least");
    took
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort();
    took[took.len() / 2]
}

#[test]
fn the_passive_side_is_killed() {
    let mut at = "127.0.0.1:0".to_owned();
    let mut took = Vec::new();
    for _ in 0..3 {
        // From the second time on at the port of the one that was killed.
        let (mut other, address) = Other::listener(&at);
        at = address.to_string();
        let setup = setup(address);
        let (channel, id) = resolved(&setup, address);
        let client = equip(&setup, channel, id);
        client.id.connect(&offer(&setup, &client)).unwrap();
        let event = expect(&client.channel, EventKind::Established);
        took.push(survive(&client, event.private_data(), &mut other));
    }
    assert!(median(took.clone()) < Duration::from_secs(1), "{took:?}");
}

#[test]
fn the_active_side_is_killed() {
    let setup = setup("127.0.0.1:0".parse().unwrap());
    let (channel, listening, address) = listener(&setup);
    let mut took = Vec::new();
    for _ in 0..3 {
        let (mut other, _stderr) = Other::start(&address.to_string());
        let request = expect(&channel, EventKind::ConnectRequest);
        let data = request.private_data().to_vec();
        let server = equip(&setup, channel.clone(), request.id().clone());
        drop(request);
        server.id.accept(&offer(&setup, &server)).unwrap();
        drop(expect(&channel, EventKind::Established));
        took.push(survive(&server, &data, &mut other));
    }
    assert!(median(took.clone()) < Duration::from_secs(1), "{took:?}");
    drop((listening, channel));
    // And the port is free again at once.
    let (_channel, _listening, again) = listener(&Setup { address, ..setup });
    assert_eq!(again, address);
}
