//! Ten thousand connections in one process, both ends of each, on one completion queue and one
//! shared receive queue a side; each is answered at once from its first receive completion. Then
//! all end, and what they took is given back.
//!
//! `cargo test -p softverbs --test scale -- --nocapture` reports memory; the number of connections
//! can be set by `SOFTVERBS_CONNECTIONS`.

#![allow(clippy::print_stdout, reason = "tests report what they found")]

mod common;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::{ALL, PATIENCE, Setup, listener, pair};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use softverbs::cm::{CmId, CmOption, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::{
    Cq, Mr, Pd, Qp, QpCap, QpInitAttr, Qpn, RecvWr, SendData, SendFlags, SendOp, SendWr, Srq,
    SrqInitAttr, Transport, Wc,
};

/// Descriptors that the rest of the process needs.
const SPARE: u64 = 200;

/// One side of all connections.
struct Side {
    channel: EventChannel,
    pd: Pd,
    cq: Cq,
    srq: Srq,
    mr: Mr,
    ids: HashMap<Qpn, (CmId, Qp)>,
}

impl Side {
    fn new(id: &CmId, channel: EventChannel, connections: usize) -> Self {
        let context = id.verbs().unwrap();
        let pd = context.alloc_pd().unwrap();
        let entries = u32::try_from(4 * connections).unwrap();
        let cq = context.create_cq(entries, None, 0).unwrap();
        let attr = SrqInitAttr {
            max_wr: 16_384,
            ..SrqInitAttr::default()
        };
        let srq = pd.create_srq(&attr).unwrap();
        let mr = pd.alloc_mr(64 * connections, ALL).unwrap();
        for n in 0..connections {
            let sges = [mr.sge(64 * n, 64)];
            srq.post_recv(&RecvWr {
                wr_id: n as u64,
                sges: &sges,
            })
            .unwrap();
        }
        Self {
            channel,
            pd,
            cq,
            srq,
            mr,
            ids: HashMap::new(),
        }
    }

    fn add(&mut self, id: CmId) -> Qp {
        let cap = QpCap {
            max_send_wr: 8,
            ..QpCap::default()
        };
        let attr = QpInitAttr {
            cap,
            srq: Some(&self.srq),
            ..QpInitAttr::rc(&self.cq, &self.cq)
        };
        let qp = id.create_qp(&self.pd, &attr).unwrap();
        self.ids.insert(qp.qp_num(), (id, qp.clone()));
        qp
    }

    fn data(&self, wc: &Wc) -> u64 {
        let mut out = [0; 8];
        self.mr
            .copy_out(64 * usize::try_from(wc.wr_id).unwrap(), &mut out)
            .unwrap();
        u64::from_ne_bytes(out)
    }
}

fn send(qp: &Qp, value: u64) {
    let data = value.to_ne_bytes();
    let wr = SendWr::new(0, SendOp::Send, SendData::Inline(&data));
    qp.post_send(&wr.with_flags(SendFlags::empty())).unwrap();
}

/// Resident memory of this process, in octets.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

common::over_both! { ten_thousand_connections_each_answered_from_its_first_completion }

/// The two counts must not see each other.
static ALONE: Mutex<()> = Mutex::new(());

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
/// How many connections this machine lets this process have.
fn allowed(transport: Transport, wanted: usize) -> usize {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let needed = match transport {
        // Two sockets a connection: both ends are here.
        Transport::Iwarp => 2 * wanted as u64 + SPARE,
        Transport::Roce => SPARE,
    };
    // Root may raise the limit.
    let most = match setrlimit(Resource::RLIMIT_NOFILE, needed.max(most), needed.max(most)) {
        Ok(()) => needed.max(most),
        Err(_) => {
            setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
            most
        }
    };
    let missing = usize::try_from(needed.saturating_sub(most)).unwrap();
    let connections = wanted - missing.div_ceil(2);
    if connections < wanted {
        println!("{connections} of {wanted} connections: the limit of open files is {most}");
    }
    connections
}

fn ten_thousand_connections_each_answered_from_its_first_completion(transport: Transport) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted: usize = std::env::var("SOFTVERBS_CONNECTIONS").map_or(10_000, |text| {
        text.parse().expect("SOFTVERBS_CONNECTIONS: a number")
    });
    let connections = allowed(transport, wanted);
    drop(pair(&Setup::over(transport)));
    // Numbers of queue pairs are a file's each 4096, over RoCE, and stay this process's.
    let descriptors = open_descriptors() + 16;
    round(transport, connections);
    settle(descriptors);
    let memory = resident();
    let again = connections.div_ceil(5);
    for _ in 0..REPEATED {
        round(transport, again);
        settle(descriptors);
    }
    let grown = resident().saturating_sub(memory);
    println!("{transport}: {grown} octets more after {REPEATED} times {again} connections");
    let ends = 2 * again * REPEATED;
    // A leak of 128 octets an end would show.
    assert!(
        grown <= 128 * ends + (1 << 20),
        "{grown} octets more, {ends} ends"
    );
}

const REPEATED: usize = 3;

/// Waits until no more descriptors are open; sockets linger until their peers are closed, too.
fn settle(descriptors: usize) {
    let end = Instant::now() + 3 * PATIENCE;
    while open_descriptors() > descriptors {
        assert!(
            Instant::now() < end,
            "{} descriptors, {descriptors} expected",
            open_descriptors()
        );
        thread::sleep(Duration::from_millis(50));
    }
}

/// All of them open, one question and its answer on each, and all closed.
fn round(transport: Transport, connections: usize) {
    let setup = Setup::over(transport);
    let (server_channel, listening, address) = listener(&setup);
    let mut server = Side::new(&listening, server_channel, connections);
    let client_channel = EventChannel::new().unwrap();
    let mut client: Option<Side> = None;
    let before = resident();

    let start = Instant::now();
    let (mut opened, mut established, mut accepted) = (0, 0, 0);
    while established < 2 * connections {
        assert!(
            start.elapsed() < 12 * PATIENCE,
            "{established} ends are established"
        );
        // Not more at once than a listener's backlog.
        while opened < connections && opened < accepted + 512 {
            let id = CmId::new(&client_channel, PortSpace::Tcp, 0).unwrap();
            id.set_option(CmOption::Transport(transport)).unwrap();
            // The events of these two say nothing that the return does not.
            id.resolve_addr(None, address, PATIENCE).unwrap();
            id.resolve_route(PATIENCE).unwrap();
            opened += 1;
            client.get_or_insert_with(|| Side::new(&id, client_channel.clone(), connections));
            let side = client.as_mut().unwrap();
            let qp = side.add(id.clone());
            id.connect(&ConnParam::default()).unwrap();
            // Posted before the connection is there; it leaves when it may.
            send(&qp, qp.qp_num().get().into());
        }
        while let Some(event) = server.channel.get_event(Some(Duration::ZERO)).unwrap() {
            if event.kind() == EventKind::ConnectRequest {
                let id = event.id().clone();
                server.add(id.clone());
                id.accept(&ConnParam::default()).unwrap();
                accepted += 1;
            } else {
                assert_eq!(event.kind(), EventKind::Established, "{event:?}");
                established += 1;
            }
        }
        while let Some(event) = client_channel.get_event(Some(Duration::ZERO)).unwrap() {
            match event.kind() {
                EventKind::Established => established += 1,
                EventKind::RouteResolved | EventKind::AddrResolved => {}
                other => panic!("{other:?} {}", event.status()),
            }
        }
        answer(&server);
    }
    let client = client.unwrap();
    let took = start.elapsed();
    let memory = resident().saturating_sub(before) / (2 * connections);
    println!(
        "{transport}: {connections} connections in {took:.1?}; {memory} octets resident memory for each end"
    );

    // Every client gets its own number back.
    let mut got: HashMap<Qpn, u64> = HashMap::new();
    let mut room = [Wc::default(); 64];
    while got.len() < connections {
        assert!(start.elapsed() < 24 * PATIENCE, "{} answers", got.len());
        answer(&server);
        let found = client.cq.poll(&mut room).unwrap();
        for wc in &room[..found] {
            assert!(wc.is_success(), "{wc:?}");
            assert!(
                got.insert(wc.qp_num, client.data(wc)).is_none(),
                "two answers"
            );
        }
    }
    assert!(
        got.iter()
            .all(|(qp_num, value)| u64::from(qp_num.get()) == *value)
    );
    for (qp_num, _) in got {
        assert!(client.ids.contains_key(&qp_num));
    }
    drop((client, server));
    drop((listening, client_channel));
}

/// Answers what has arrived, from the receive completion itself.
fn answer(server: &Side) {
    let mut room = [Wc::default(); 64];
    loop {
        let found = server.cq.poll(&mut room).unwrap();
        for wc in &room[..found] {
            assert!(wc.is_success(), "{wc:?}");
            send(&server.ids[&wc.qp_num].1, server.data(wc));
        }
        if found == 0 {
            return;
        }
    }
}
