//! Two ends of a connection in one process.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    unused_imports,
    unused_macros,
    reason = "each test file uses its part"
)]

pub mod child;
pub mod faults;
pub mod lanes;

pub mod rsocket;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use softverbs::cm::{CmEvent, CmId, CmOption, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::{
    Access, Cq, Mr, Pd, Qp, QpCap, QpInitAttr, RecvWr, SendData, SendFlags, SendOp, SendWr,
    Transport, Wc, WcStatus,
};

/// Makes tests of functions that take a transport.
macro_rules! over_both {
    ($($name:ident),* $(,)?) => {
        mod over_iwarp {
            $(#[test]
            fn $name() {
                super::$name(softverbs::Transport::Iwarp);
            })*
        }

        mod over_roce {
            $(#[test]
            fn $name() {
                super::$name(softverbs::Transport::Roce);
            })*
        }
    };
}
pub(crate) use over_both;

/// Long enough for a busy machine, short enough for a test that hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// One end: its objects and one region.
#[derive(Debug)]
pub struct End {
    pub channel: EventChannel,
    pub id: CmId,
    pub pd: Pd,
    pub cq: Cq,
    pub qp: Qp,
    pub mr: Mr,
}

/// What a pair is made with.
#[derive(Clone, Debug)]
pub struct Setup {
    pub transport: Transport,
    pub address: SocketAddr,
    pub cap: QpCap,
    pub len: usize,
    pub server_options: Vec<CmOption>,
    pub client_options: Vec<CmOption>,
    pub param: ConnParam,
}

impl Setup {
    pub fn over(transport: Transport) -> Self {
        Self {
            transport,
            ..Self::default()
        }
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            transport: Transport::Iwarp,
            address: ([127, 0, 0, 1], 0).into(),
            cap: QpCap {
                max_send_wr: 512,
                max_recv_wr: 512,
                ..QpCap::default()
            },
            len: 1 << 20,
            server_options: Vec::new(),
            client_options: Vec::new(),
            param: ConnParam::default(),
        }
    }
}

pub fn next_event(channel: &EventChannel) -> CmEvent {
    channel
        .get_event(Some(PATIENCE))
        .unwrap()
        .expect("an event in time")
}

pub fn expect(channel: &EventChannel, kind: EventKind) -> CmEvent {
    let event = next_event(channel);
    assert_eq!(event.kind(), kind, "status {}", event.status());
    event
}

pub fn no_event(channel: &EventChannel, during: Duration) {
    let event = channel.get_event(Some(during)).unwrap();
    assert!(event.is_none(), "unexpected {event:?}");
}

/// A listening identifier and its address.
pub fn listener(setup: &Setup) -> (EventChannel, CmId, SocketAddr) {
    let channel = EventChannel::new().unwrap();
    let id = CmId::new(&channel, PortSpace::Tcp, 0).unwrap();
    id.set_option(CmOption::Transport(setup.transport)).unwrap();
    for option in &setup.server_options {
        id.set_option(*option).unwrap();
    }
    id.bind_addr(setup.address).unwrap();
    id.listen(0).unwrap();
    let address = id.local_addr().unwrap();
    (channel, id, address)
}

/// An identifier that has found its way to `address`.
pub fn resolved(setup: &Setup, address: SocketAddr) -> (EventChannel, CmId) {
    let channel = EventChannel::new().unwrap();
    let id = CmId::new(&channel, PortSpace::Tcp, 0).unwrap();
    id.set_option(CmOption::Transport(setup.transport)).unwrap();
    for option in &setup.client_options {
        id.set_option(*option).unwrap();
    }
    id.resolve_addr(None, address, PATIENCE).unwrap();
    drop(expect(&channel, EventKind::AddrResolved));
    id.resolve_route(PATIENCE).unwrap();
    drop(expect(&channel, EventKind::RouteResolved));
    (channel, id)
}

/// Gives an identifier its objects.
pub fn equip(setup: &Setup, channel: EventChannel, id: CmId) -> End {
    let context = id.verbs().expect("a device");
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(1 << 15, None, 0).unwrap();
    let attr = QpInitAttr {
        cap: setup.cap,
        ..QpInitAttr::rc(&cq, &cq)
    };
    let qp = id.create_qp(&pd, &attr).unwrap();
    let mr = pd.alloc_mr(setup.len, ALL).unwrap();
    End {
        channel,
        id,
        pd,
        cq,
        qp,
        mr,
    }
}

/// The client has called connect, the server has its request and has not answered.
pub fn requested(setup: &Setup) -> (End, End, CmId) {
    let (server_channel, listening, address) = listener(setup);
    let (client_channel, id) = resolved(setup, address);
    let client = equip(setup, client_channel, id);
    client.id.connect(&setup.param).unwrap();
    let request = expect(&server_channel, EventKind::ConnectRequest);
    let server = equip(setup, server_channel, request.id().clone());
    (client, server, listening)
}

/// Client and server of an established connection.
pub fn pair(setup: &Setup) -> (End, End) {
    let (client, server, _listening) = requested(setup);
    server.id.accept(&setup.param).unwrap();
    drop(expect(&client.channel, EventKind::Established));
    drop(expect(&server.channel, EventKind::Established));
    (client, server)
}

impl End {
    pub fn recv(&self, wr_id: u64, offset: usize, len: usize) {
        self.qp
            .post_recv(&RecvWr {
                wr_id,
                sges: &[self.mr.sge(offset, len)],
            })
            .unwrap();
    }

    pub fn post(&self, wr_id: u64, op: SendOp, offset: usize, len: usize) {
        let sges = [self.mr.sge(offset, len)];
        self.qp
            .post_send(&SendWr::new(wr_id, op, SendData::Sges(&sges)))
            .unwrap();
    }

    pub fn send(&self, wr_id: u64, offset: usize, len: usize) {
        self.post(wr_id, SendOp::Send, offset, len);
    }

    pub fn send_inline(&self, wr_id: u64, data: &[u8], flags: SendFlags) {
        let wr = SendWr::new(wr_id, SendOp::Send, SendData::Inline(data)).with_flags(flags);
        self.qp.post_send(&wr).unwrap();
    }

    /// Polls for `count` completions.
    pub fn completions(&self, count: usize) -> Vec<Wc> {
        poll(&self.cq, count)
    }

    /// Polls for one completion, which must be a success.
    pub fn success(&self) -> Wc {
        let wc = self.completions(1)[0];
        assert_eq!(wc.status, WcStatus::Success, "wr_id {}", wc.wr_id);
        wc
    }

    pub fn fill(&self, offset: usize, len: usize, seed: u64) -> Vec<u8> {
        let data = pattern(len, seed);
        self.mr.copy_in(offset, &data).unwrap();
        data
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.mr.copy_out(offset, &mut out).unwrap();
        out
    }
}

/// Polls a queue for `count` completions.
pub fn poll(cq: &Cq, count: usize) -> Vec<Wc> {
    let end = Instant::now() + PATIENCE;
    let mut found = Vec::new();
    let mut room = [Wc::default(); 16];
    while found.len() < count {
        let most = room.len().min(count - found.len());
        let got = cq.poll(&mut room[..most]).unwrap();
        found.extend_from_slice(&room[..got]);
        assert!(
            Instant::now() < end,
            "{} of {count} completions in time: {found:?}",
            found.len()
        );
    }
    found
}

/// Asserts that nothing completes for a while.
pub fn nothing(cq: &Cq, during: Duration) {
    let end = Instant::now() + during;
    while Instant::now() < end {
        let mut room = [Wc::default()];
        assert_eq!(cq.poll(&mut room).unwrap(), 0, "unexpected {:?}", room[0]);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Octets that depend on the place and the seed.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}
