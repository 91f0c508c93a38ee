//! Thousands of connections on one completion queue and one shared receive queue, each answered
//! at once from its first receive completion.
//!
//! `cargo test -p softverbs --test scale -- --nocapture` reports memory; the number of connections
//! can be set by `SOFTVERBS_CONNECTIONS`.

#![allow(clippy::print_stdout, reason = "tests report what they found")]

mod common;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::{ALL, PATIENCE, Setup, listener};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use softverbs::cm::{CmId, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::{
    Cq, Mr, Pd, Qp, QpCap, QpInitAttr, Qpn, RecvWr, SendData, SendFlags, SendOp, SendWr, Srq,
    SrqInitAttr, Wc,
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

#[test]
fn thousands_of_connections_each_answered_from_its_first_completion() {
    let wanted: usize = std::env::var("SOFTVERBS_CONNECTIONS").map_or(5000, |text| {
        text.parse().expect("SOFTVERBS_CONNECTIONS: a number")
    });
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let fits = usize::try_from(most.saturating_sub(SPARE) / 2).unwrap();
    // Two sockets a connection: both ends are here. The limit is the machine's.
    let connections = wanted.min(fits);
    if connections < wanted {
        println!("{connections} of {wanted} connections: the limit of open files is {most}");
    }
    let setup = Setup::default();
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
        "{connections} connections in {took:.1?}; {memory} octets resident memory for each end"
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
