//! A minimal counterpart of rdma-core's `udaddy`, in both roles, written to talk to it.
//!
//! Datagrams in the port space of UDP: the client asks the server's connection manager where to
//! send to (SIDR) and sends its messages; the server answers each client with as many, to where
//! the first one came from. Every message carries its sender's queue pair number as immediate data.
//!
//! ```text
//! udaddy_peer --server [-b ADDRESS] [-p PORT] [-c CONNECTIONS] [-C COUNT] [-S SIZE]
//! udaddy_peer ADDRESS [-b ADDRESS] [-p PORT] [-c CONNECTIONS] [-C COUNT] [-S SIZE]
//! ```
//!
//! Exit status 0 if all messages came.

mod support;

use std::io::{Write, stderr, stdout};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use softverbs::cm::{CmId, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::{
    Access, AddressHandle, AhAttr, Cq, Gid, Mr, Pd, Qp, QpInitAttr, Qpn, RecvWr, SendData, SendOp,
    SendWr, UdAddress,
};

use support::{GRH, Outcome, complete_well, exit, expect, next_event, resolve};

/// Exchange datagrams with udaddy.
#[derive(Debug, Parser)]
struct Args {
    /// The server to send to
    #[arg(
        value_name = "ADDRESS",
        required_unless_present = "server",
        conflicts_with = "server"
    )]
    host: Option<String>,

    /// Be the server
    #[arg(long)]
    server: bool,

    /// The own address
    #[arg(short, long, value_name = "ADDRESS")]
    bind: Option<String>,

    /// Port
    #[arg(short, long, default_value_t = 7174)]
    port: u16,

    /// Queue pairs at the client, and so at the server
    #[arg(short = 'c', long, default_value_t = 1)]
    connections: usize,

    /// Messages each way between two queue pairs
    #[arg(short = 'C', long, default_value_t = 10)]
    count: u32,

    /// Octets of a message
    #[arg(short = 'S', long, default_value_t = 100)]
    size: usize,
}

fn main() -> ExitCode {
    exit("udaddy_peer", run(&Args::parse()))
}

fn run(args: &Args) -> Outcome<()> {
    let channel = EventChannel::new()?;
    match &args.host {
        Some(host) => client(args, &channel, resolve(host, args.port)?)?,
        None => server(args, &channel)?,
    }
    writeln!(stdout().lock(), "test complete")?;
    Ok(())
}

/// One queue pair and where it sends to.
struct Node {
    id: CmId,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    mr: Mr,
    to: Option<(AddressHandle, Qpn, u32)>,
}

impl Node {
    /// With all its receives posted.
    fn new(args: &Args, id: &CmId) -> Outcome<Self> {
        let context = id.verbs().ok_or("no device")?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(2 * args.count.max(1), None, 0)?;
        let mut attr = QpInitAttr::ud(&cq, &cq);
        attr.cap.max_send_wr = args.count.max(1);
        attr.cap.max_recv_wr = args.count.max(1);
        let qp = id.create_qp(&pd, &attr)?;
        let mr = pd.alloc_mr(GRH + args.size, Access::LOCAL_WRITE)?;
        let sges = [mr.sge(0, GRH + args.size)];
        for wr_id in 0..u64::from(args.count) {
            qp.post_recv(&RecvWr { wr_id, sges: &sges })?;
        }
        Ok(Self {
            id: id.clone(),
            pd,
            cq,
            qp,
            mr,
            to: None,
        })
    }

    fn send_all(&self, args: &Args) -> Outcome<()> {
        let (ah, remote_qpn, remote_qkey) = self.to.as_ref().ok_or("nowhere to send to")?;
        let to = UdAddress {
            ah,
            remote_qpn: *remote_qpn,
            remote_qkey: *remote_qkey,
        };
        let sges = [self.mr.sge(GRH, args.size)];
        let op = SendOp::SendWithImm(self.qp.qp_num().get());
        for wr_id in 0..u64::from(args.count) {
            let wr = SendWr::new(wr_id, op, SendData::Sges(&sges)).to(to);
            // Unsignaled, all but the last.
            let last = wr_id + 1 == u64::from(args.count);
            let flags = if last {
                softverbs::SendFlags::SIGNALED
            } else {
                softverbs::SendFlags::empty()
            };
            self.qp.post_send(&wr.with_flags(flags))?;
        }
        Ok(())
    }

    /// Receives all messages, and says where from: they all come from one queue pair.
    fn receive_all(&self, args: &Args) -> Outcome<Option<Qpn>> {
        let (mut from, mut left) = (None, args.count);
        while left > 0 {
            let wc = complete_well(&self.cq, "a message")?;
            if !wc.opcode.is_recv() {
                continue;
            }
            left -= 1;
            let right = wc.grh
                && wc.byte_len as usize == GRH + args.size
                && wc.src_qp.is_some()
                && wc.imm == wc.src_qp.map(Qpn::get)
                && (from.is_none() || from == wc.src_qp);
            expect(right, || format!("a wrong message: {wc:?}"))?;
            from = wc.src_qp;
        }
        Ok(from)
    }

    /// The way back, from the network header of the last message.
    fn reply_to(&mut self, from: Qpn) -> Outcome<()> {
        let mut header = [0; GRH];
        self.mr.copy_out(0, &mut header)?;
        // Either IPv6, or 20 octets of nothing and then IPv4.
        let (source, own) = if header[0] >> 4 == 6 {
            let gid = |at| Gid::new(std::array::from_fn(|i| header[at + i]));
            (gid(8), gid(24))
        } else {
            let ip = |at| <[u8; 4]>::try_from(&header[at..at + 4]).map(std::net::Ipv4Addr::from);
            (
                support::to_gid(ip(32)?.into()),
                support::to_gid(ip(36)?.into()),
            )
        };
        let context = self.id.verbs().ok_or("no device")?;
        let index = support::gid_index(&context, own.to_ip())?;
        let ah = self.pd.create_ah(&AhAttr::new(source, index))?;
        self.to = Some((ah, from, self.qp.query().qkey));
        Ok(())
    }
}

fn server(args: &Args, channel: &EventChannel) -> Outcome<()> {
    let listener = CmId::new(channel, PortSpace::Udp, 0)?;
    listener.bind_addr(match &args.bind {
        Some(host) => resolve(host, args.port)?,
        None => SocketAddr::from(([0; 8], args.port)),
    })?;
    listener.listen(0)?;
    if let Some(address) = listener.local_addr() {
        writeln!(stderr().lock(), "listening on {address}")?;
    }
    let mut nodes = Vec::new();
    while nodes.len() < args.connections {
        let event = next_event(channel)?;
        expect(event.kind() == EventKind::ConnectRequest, || {
            format!("{}, status {}", event.kind().name(), event.status())
        })?;
        let node = Node::new(args, event.id())?;
        node.id.accept(&ConnParam::default())?;
        nodes.push(node);
    }
    writeln!(stdout().lock(), "receiving data transfers")?;
    for node in &mut nodes {
        if let Some(from) = node.receive_all(args)? {
            node.reply_to(from)?;
        }
    }
    writeln!(stdout().lock(), "sending replies")?;
    for node in nodes.iter().filter(|_| args.count > 0) {
        node.send_all(args)?;
        complete_well(&node.cq, "a reply")?;
    }
    Ok(())
}

fn client(args: &Args, channel: &EventChannel, peer: SocketAddr) -> Outcome<()> {
    let bind = args.bind.as_deref().map(|host| resolve(host, 0));
    let bind = bind.transpose()?;
    let mut nodes = Vec::new();
    for _ in 0..args.connections {
        let id = CmId::new(channel, PortSpace::Udp, 0)?;
        id.resolve_addr(bind, peer, Duration::from_secs(2))?;
        nodes.push((id, None));
    }
    let mut left = args.connections;
    while left > 0 {
        let event = next_event(channel)?;
        let node = nodes.iter_mut().find(|(id, _)| id.same_as(event.id()));
        let (id, node) = node.ok_or("an event of an unknown identifier")?;
        match event.kind() {
            EventKind::AddrResolved => id.resolve_route(Duration::from_secs(2))?,
            EventKind::RouteResolved => {
                *node = Some(Node::new(args, id)?);
                id.connect(&ConnParam::default())?;
            }
            EventKind::Established => {
                let (node, ud) = (node.as_mut(), event.param().ud);
                let (node, ud) = node.zip(ud).ok_or("nowhere to send to")?;
                node.to = Some((node.pd.create_ah(&ud.ah_attr)?, ud.qp_num, ud.qkey));
                left -= 1;
            }
            kind => return Err(format!("{}, status {}", kind.name(), event.status()).into()),
        }
    }
    writeln!(stdout().lock(), "initiating data transfers")?;
    let nodes = || nodes.iter().filter_map(|(_, node)| node.as_ref());
    for node in nodes() {
        node.send_all(args)?;
    }
    writeln!(stdout().lock(), "receiving data transfers")?;
    for node in nodes() {
        let from = node.receive_all(args)?;
        let asked = node.to.as_ref().map(|(_, qpn, _)| *qpn);
        expect(args.count == 0 || from == asked, || {
            format!("answers from {from:?}")
        })?;
    }
    Ok(())
}
