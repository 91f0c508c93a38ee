//! Several processes: this test program starts itself again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use super::*;
use softverbs_wire::num::CommId;

const FOLDER: &str = "SOFTVERBS_TEST_FOLDER";
const PUBLIC: &str = "SOFTVERBS_TEST_PUBLIC";

/// What the other process does: makes a port with one queue pair, tells its number, and answers
/// each packet until its input ends.
#[test]
fn child() {
    let (Some(folder), Ok(public)) = (std::env::var_os(FOLDER), std::env::var(PUBLIC)) else {
        return;
    };
    let port = Port::new_for_test(Path::new(&folder), public.parse().unwrap()).unwrap();
    let (qpn, got) = queue_pair(port);
    let owners = port.public_owners();
    let mut out = std::io::stderr();
    let guid = port.ca_guid().get();
    writeln!(out, "READY {} {guid} {}", qpn.get(), owners[0].owner).unwrap();
    let mut answered = 0;
    let mut ways = HashMap::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        port.poll(port.engine);
        let packets = got.packets.lock().unwrap().clone();
        for (psn, _, from) in packets.iter().skip(answered) {
            // The sender's queue pair is in the packet number, slot and all.
            let back = Qpn::new(*psn);
            let path = ways
                .entry((*from, back))
                .or_insert_with(|| SendPath::reply(from, back));
            let answer = Octets(vec![packet(back, qpn.get(), 32)]);
            assert_eq!(port.send_packets(&answer, path), Sent::Took(1));
        }
        answered = packets.len();
        std::thread::yield_now();
    }
}

/// The other process.
pub(super) struct Peer {
    child: Child,
    pub(super) qpn: Qpn,
    guid: Guid,
    owner: String,
    _input: ChildStdin,
}

impl Peer {
    pub(super) fn start(folder: &Path, public: u16) -> Self {
        Self::start_with(folder, public, &[])
    }

    pub(super) fn start_with(folder: &Path, public: u16, environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "roce::port::tests::processes::child",
                "--nocapture",
            ])
            .env(FOLDER, folder)
            .env(PUBLIC, public.to_string())
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready = lines
            .find_map(|line| line.unwrap().strip_prefix("READY ").map(str::to_owned))
            .unwrap();
        let (qpn, rest) = ready.split_once(' ').unwrap();
        let (guid, owner) = rest.split_once(' ').unwrap();
        let _input = child.stdin.take().unwrap();
        Self {
            child,
            qpn: Qpn::new(qpn.parse().unwrap()),
            guid: Guid::new(guid.parse().unwrap()),
            owner: owner.to_owned(),
            _input,
        }
    }

    /// As `kill -9`.
    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn processes_find_each_other() {
    let folder = TempFolder::new();
    let public = free_port();
    let port = Port::new_for_test(folder.path(), public).unwrap();
    let (qpn, got) = queue_pair(port);
    let mut peers = [0; 2].map(|_| Peer::start(folder.path(), public));
    assert_ne!(peers[0].qpn, peers[1].qpn);
    assert_eq!(peers[0].owner, "another process of this user");
    for (count, peer) in peers.iter().enumerate() {
        let path = SendPath::new(V4, V4, peer.qpn);
        let question = Octets(vec![packet(peer.qpn, qpn.get(), 100)]);
        assert_eq!(port.send_packets(&question, &path), Sent::Took(1));
        wait_until("an answer", || got.count() == count + 1);
        assert_eq!(got.numbers()[count], peer.qpn.get());
    }
    assert_eq!(port.counters().forwarded, 0, "directly");
    // A killed process leaves its slot, which rests.
    let slot = qpns::slot_of(peers[0].qpn);
    assert!(port.folder.slot_owner(slot).is_some());
    peers[0].kill();
    assert_eq!(port.folder.slot_owner(slot), None);
    let next = Peer::start(folder.path(), public);
    assert_ne!(qpns::slot_of(next.qpn), slot);
}

#[test]
fn it_is_known_who_has_died() {
    let folder = TempFolder::new();
    let public = free_port();
    let port = Port::new_for_test(folder.path(), public).unwrap();
    let mut peer = Peer::start(folder.path(), public);
    let slot = qpns::slot_of(peer.qpn);
    let comm_id = CommId::new(u32::from(slot) << COMM_ID_BITS | 7);
    let stranger = Guid::new(peer.guid.get() ^ 1);
    let file = port.folder.presence(slot);
    assert_eq!(port.whereabouts(comm_id, peer.guid), Whereabouts::Here);
    assert_eq!(port.whereabouts(comm_id, stranger), Whereabouts::Replaced);
    peer.kill();
    assert_eq!(port.whereabouts(comm_id, peer.guid), Whereabouts::Gone);
    assert_eq!(port.whereabouts(comm_id, stranger), Whereabouts::Replaced);
    // Another process has taken the slot, and has not said yet who it is; then it has.
    std::fs::write(&file, "").unwrap();
    assert_eq!(port.whereabouts(comm_id, peer.guid), Whereabouts::Unknown);
    std::fs::write(&file, format!("{:016x}\n", stranger.get())).unwrap();
    assert_eq!(port.whereabouts(comm_id, peer.guid), Whereabouts::Replaced);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(port.whereabouts(comm_id, peer.guid), Whereabouts::Unknown);
    let own = CommId::new(port.comm_id_prefix());
    assert_eq!(port.whereabouts(own, peer.guid), Whereabouts::Unknown);
}

#[test]
fn another_process_takes_the_public_port_over() {
    let folder = TempFolder::new();
    let public = free_port();
    let mut peer = Peer::start(folder.path(), public);
    assert_eq!(peer.owner, "this process");
    let port = Port::new_for_test(folder.path(), public).unwrap();
    assert_eq!(
        port.public_owners()[0].owner,
        "another process of this user"
    );
    // From outside to us, by way of the peer.
    let (qpn, got) = queue_pair(port);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = socket.local_addr().unwrap().port();
    let ends = send::Ends::new((V4, from), (V4, public)).unwrap();
    let mut octets = packet(qpn, 1, 64);
    octets.extend_from_slice(&[0; 4]);
    ends.seal(0, &mut octets);
    socket.send_to(&octets, (V4, public)).unwrap();
    wait_until("forwarded", || got.count() == 1);
    peer.kill();
    let start = Instant::now();
    wait_until("taken over", || {
        port.public_owners()[0].owner == "this process"
    });
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    socket.send_to(&octets, (V4, public)).unwrap();
    wait_until("received", || got.count() == 2);
}

#[test]
fn a_stranger_is_named() {
    let folder = TempFolder::new();
    let stranger = UdpSocket::bind("0.0.0.0:0").unwrap();
    let public = stranger.local_addr().unwrap().port();
    let port = Port::new_for_test(folder.path(), public).unwrap();
    let error = port
        .check_reachable("192.0.2.1".parse().unwrap())
        .unwrap_err();
    let me = format!("(pid {})", std::process::id());
    assert!(error.to_string().contains(&me), "{error}");
    port.check_reachable(V4).unwrap();
    let peer = Peer::start(folder.path(), public);
    let (qpn, got) = queue_pair(port);
    let path = SendPath::new(V4, V4, peer.qpn);
    let question = Octets(vec![packet(peer.qpn, qpn.get(), 100)]);
    assert_eq!(port.send_packets(&question, &path), Sent::Took(1));
    wait_until("an answer", || got.count() == 1);
    drop(stranger);
    wait_until("the port is free", || {
        port.check_reachable("192.0.2.1".parse().unwrap()).is_ok()
    });
}
