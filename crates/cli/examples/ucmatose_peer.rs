//! A minimal counterpart of rdma-core's `ucmatose`, in both roles, written to talk to it.
//!
//! All connections are set up first. Then the passive side sends its messages, before the active
//! side has sent anything; the active side answers with as many once it has them all; the passive
//! side disconnects. Every message has a receive posted before its connection is accepted.
//!
//! ```text
//! ucmatose_peer --server [-b ADDRESS] [-p PORT] [-c CONNECTIONS] [-C COUNT] [-S SIZE]
//! ucmatose_peer ADDRESS [-p PORT] [-c CONNECTIONS] [-C COUNT] [-S SIZE]
//! ```
//!
//! Exit status 0 if all messages came.

use std::io::{Write, stderr, stdout};
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use softverbs::cm::{CmEvent, CmId, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::{
    Access, Cq, Mr, Pd, Qp, QpInitAttr, RecvWr, SendData, SendOp, SendWr, Wc, WcStatus,
};

/// Exchange messages with ucmatose: the server sends first.
#[derive(Debug, Parser)]
struct Args {
    /// The server to connect to
    #[arg(
        value_name = "ADDRESS",
        required_unless_present = "server",
        conflicts_with = "server"
    )]
    host: Option<String>,

    /// Be the server
    #[arg(long)]
    server: bool,

    /// Server: listen at this address only
    #[arg(short = 'b', long, value_name = "ADDRESS")]
    bind: Option<String>,

    /// Port; a server prints which one it got
    #[arg(short, long, default_value_t = 7471)]
    port: u16,

    /// Connections
    #[arg(short = 'c', long, default_value_t = 1)]
    connections: usize,

    /// Messages each way on each connection
    #[arg(short = 'C', long, default_value_t = 10)]
    count: u32,

    /// Octets of a message; 0 means that there are no messages
    #[arg(short = 'S', long, default_value_t = 100)]
    size: u32,

    /// Seconds after which to give up
    #[arg(long, default_value_t = 30)]
    timeout: u64,
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr is gone, the exit status still tells.
            let _ = writeln!(stderr().lock(), "ucmatose_peer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Outcome<()> {
    let mut test = Test {
        args,
        channel: EventChannel::new()?,
        give_up: Instant::now() + Duration::from_secs(args.timeout),
        nodes: Vec::new(),
    };
    match &args.host {
        Some(host) => test.client(resolve(host, args.port)?),
        None => test.server(match &args.bind {
            Some(host) => resolve(host, args.port)?,
            None => SocketAddr::from(([0; 8], args.port)),
        }),
    }
}

fn resolve(host: &str, port: u16) -> Outcome<SocketAddr> {
    let mut found = (host, port).to_socket_addrs()?;
    found
        .next()
        .ok_or_else(|| format!("{host} has no address").into())
}

struct Test<'a> {
    args: &'a Args,
    channel: EventChannel,
    give_up: Instant,
    nodes: Vec<Node>,
}

/// One connection.
struct Node {
    id: CmId,
    established: bool,
    resources: Option<Resources>,
}

struct Resources {
    qp: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    mr: Option<Mr>,
    _pd: Pd,
}

impl Test<'_> {
    fn messages(&self) -> u32 {
        if self.args.size == 0 {
            0
        } else {
            self.args.count
        }
    }

    fn server(&mut self, address: SocketAddr) -> Outcome<()> {
        let listener = CmId::new(&self.channel, PortSpace::Tcp, 0)?;
        listener.bind_addr(address)?;
        listener.listen(0)?;
        writeln!(
            stderr().lock(),
            "listening on {}",
            listener.local_addr().unwrap_or(address)
        )?;
        self.connect_events()?;
        self.say("initiating data transfers")?;
        self.post_sends()?;
        self.say("completing sends")?;
        self.poll(|resources| &resources.send_cq)?;
        self.say("receiving data transfers")?;
        self.poll(|resources| &resources.recv_cq)?;
        self.say("data transfers complete; disconnecting")?;
        for node in &self.nodes {
            node.id.disconnect()?;
        }
        self.disconnect_events()
    }

    fn client(&mut self, peer: SocketAddr) -> Outcome<()> {
        for _ in 0..self.args.connections {
            let id = CmId::new(&self.channel, PortSpace::Tcp, 0)?;
            id.resolve_addr(None, peer, Duration::from_secs(2))?;
            self.nodes.push(Node {
                id,
                established: false,
                resources: None,
            });
        }
        self.connect_events()?;
        self.say("receiving data transfers")?;
        self.poll(|resources| &resources.recv_cq)?;
        self.say("sending replies")?;
        self.post_sends()?;
        self.say("data transfers complete")?;
        self.disconnect_events()
    }

    fn say(&self, text: &str) -> Outcome<()> {
        if self.messages() > 0 {
            writeln!(stdout().lock(), "{text}")?;
        }
        Ok(())
    }

    /// Serves events until all connections are established.
    fn connect_events(&mut self) -> Outcome<()> {
        let all = self.args.connections;
        while self.nodes.iter().filter(|node| node.established).count() < all {
            let event = self.next_event("connecting")?;
            match event.kind() {
                EventKind::AddrResolved => event.id().resolve_route(Duration::from_secs(2))?,
                EventKind::RouteResolved => {
                    self.prepare(event.id())?;
                    let param = ConnParam {
                        responder_resources: 1,
                        initiator_depth: 1,
                        retry_count: 5,
                        ..ConnParam::default()
                    };
                    event.id().connect(&param)?;
                }
                EventKind::ConnectRequest if self.nodes.len() == all => event.id().reject(&[])?,
                EventKind::ConnectRequest => {
                    let id = event.id().clone();
                    self.nodes.push(Node {
                        id,
                        established: false,
                        resources: None,
                    });
                    self.prepare(event.id())?;
                    event.id().accept(&ConnParam::default())?;
                }
                EventKind::Established => self.node(event.id())?.established = true,
                // The passive side may be done with one connection before another one is up.
                EventKind::Disconnected => return Err("disconnected while connecting".into()),
                kind => {
                    return Err(format!("{}, status {}", kind.name(), event.status()).into());
                }
            }
        }
        Ok(())
    }

    /// Waits until the peer has disconnected everywhere, and disconnects, too.
    fn disconnect_events(&mut self) -> Outcome<()> {
        while self.nodes.iter().any(|node| node.established) {
            let event = self.next_event("disconnecting")?;
            if event.kind() == EventKind::Disconnected {
                self.node(event.id())?.established = false;
                // Whoever began has disconnected already.
                let _ = event.id().disconnect();
            }
        }
        writeln!(stdout().lock(), "test complete")?;
        Ok(())
    }

    fn next_event(&self, doing: &str) -> Outcome<CmEvent> {
        let left = self.give_up.saturating_duration_since(Instant::now());
        let event = self.channel.get_event(Some(left))?;
        event.ok_or_else(|| format!("timed out while {doing}").into())
    }

    fn node(&mut self, id: &CmId) -> Outcome<&mut Node> {
        let found = self.nodes.iter_mut().find(|node| node.id.same_as(id));
        found.ok_or_else(|| "an event of an unknown identifier".into())
    }

    /// Makes the queue pair of a connection and posts all its receives.
    fn prepare(&mut self, id: &CmId) -> Outcome<()> {
        let (messages, size) = (self.messages(), self.args.size as usize);
        let context = id.verbs().ok_or("no device")?;
        let pd = context.alloc_pd()?;
        let send_cq = context.create_cq(messages.max(1), None, 0)?;
        let recv_cq = context.create_cq(messages.max(1), None, 0)?;
        let mut attr = QpInitAttr::rc(&send_cq, &recv_cq);
        attr.sq_sig_all = true;
        attr.cap.max_send_wr = messages.max(1);
        attr.cap.max_recv_wr = messages.max(1);
        let qp = id.create_qp(&pd, &attr)?;
        let mr = if messages > 0 {
            Some(pd.alloc_mr(size, Access::LOCAL_WRITE)?)
        } else {
            None
        };
        if let Some(mr) = &mr {
            let sges = [mr.sge(0, size)];
            for wr_id in 0..u64::from(messages) {
                qp.post_recv(&RecvWr { wr_id, sges: &sges })?;
            }
        }
        self.node(id)?.resources = Some(Resources {
            qp,
            send_cq,
            recv_cq,
            mr,
            _pd: pd,
        });
        Ok(())
    }

    fn post_sends(&self) -> Outcome<()> {
        for resources in self.nodes.iter().filter_map(|node| node.resources.as_ref()) {
            let Some(mr) = &resources.mr else { continue };
            let sges = [mr.sge(0, mr.len())];
            for wr_id in 0..u64::from(self.messages()) {
                let wr = SendWr::new(wr_id, SendOp::Send, SendData::Sges(&sges));
                resources.qp.post_send(&wr)?;
            }
        }
        Ok(())
    }

    /// Waits until all messages have completed on one queue of every connection.
    fn poll(&self, queue: impl Fn(&Resources) -> &Cq) -> Outcome<()> {
        for resources in self.nodes.iter().filter_map(|node| node.resources.as_ref()) {
            let mut left = self.messages() as usize;
            let mut completions = [Wc::default(); 8];
            while left > 0 {
                let count = queue(resources).poll(&mut completions)?;
                for wc in &completions[..count] {
                    if wc.status != WcStatus::Success {
                        return Err(format!("a message failed: {:?}", wc.status).into());
                    }
                }
                left = left.saturating_sub(count);
                if Instant::now() > self.give_up {
                    return Err(format!("{left} messages did not come in time").into());
                }
            }
        }
        Ok(())
    }
}
