//! A minimal counterpart of rdma-core's `mckey`: sends to a multicast group or receives from it.
//!
//! ```text
//! mckey_peer -b ADDRESS -m GROUP [-s] [-C COUNT] [-S SIZE]
//! ```
//!
//! Exit status 0 if all messages came.

mod support;

use std::io::{Write, stdout};
use std::process::ExitCode;

use clap::Parser;
use softverbs::cm::{CmId, EventChannel, EventKind, PortSpace};
use softverbs::{Access, QpInitAttr, Qpn, RecvWr, SendData, SendOp, SendWr, UdAddress};

use support::{GRH, Outcome, complete_well, exit, expect, next_event, resolve};

/// Send to a multicast group or receive from it, as mckey does.
#[derive(Debug, Parser)]
struct Args {
    /// The own address
    #[arg(short, long, value_name = "ADDRESS")]
    bind: String,

    /// The group
    #[arg(short = 'm', long, value_name = "ADDRESS")]
    group: String,

    /// Send; without it, receive
    #[arg(short, long)]
    sender: bool,

    /// Messages
    #[arg(short = 'C', long, default_value_t = 10)]
    count: u32,

    /// Octets of a message
    #[arg(short = 'S', long, default_value_t = 100)]
    size: usize,
}

fn main() -> ExitCode {
    exit("mckey_peer", run(&Args::parse()))
}

fn run(args: &Args) -> Outcome<()> {
    let channel = EventChannel::new()?;
    let id = CmId::new(&channel, PortSpace::Udp, 0)?;
    id.bind_addr(resolve(&args.bind, 0)?)?;
    let context = id.verbs().ok_or("no device has the address")?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(2 * args.count.max(1), None, 0)?;
    let mut attr = QpInitAttr::ud(&cq, &cq);
    attr.cap.max_send_wr = args.count.max(1);
    attr.cap.max_recv_wr = args.count.max(1);
    let qp = id.create_qp(&pd, &attr)?;
    let mr = pd.alloc_mr(GRH + args.size, Access::LOCAL_WRITE)?;
    if !args.sender {
        let sges = [mr.sge(0, GRH + args.size)];
        for wr_id in 0..u64::from(args.count) {
            qp.post_recv(&RecvWr { wr_id, sges: &sges })?;
        }
    }
    let group = resolve(&args.group, 0)?;
    id.join_multicast(group)?;
    let event = next_event(&channel)?;
    expect(event.kind() == EventKind::MulticastJoin, || {
        format!("{}, status {}", event.kind().name(), event.status())
    })?;
    let ud = event.param().ud.ok_or("nowhere to send to")?;
    writeln!(stdout().lock(), "joined {}", ud.ah_attr.grh.dgid.to_ip())?;
    if args.sender {
        let ah = pd.create_ah(&ud.ah_attr)?;
        let to = UdAddress {
            ah: &ah,
            remote_qpn: ud.qp_num,
            remote_qkey: ud.qkey,
        };
        let sges = [mr.sge(GRH, args.size)];
        let op = SendOp::SendWithImm(qp.qp_num().get());
        for wr_id in 0..u64::from(args.count) {
            let wr = SendWr::new(wr_id, op, SendData::Sges(&sges)).to(to);
            qp.post_send(&wr)?;
        }
        for _ in 0..args.count {
            complete_well(&cq, "a message")?;
        }
    } else {
        for _ in 0..args.count {
            let wc = complete_well(&cq, "a message")?;
            let right = wc.grh
                && wc.byte_len as usize == GRH + args.size
                && wc.src_qp.is_some()
                && wc.imm == wc.src_qp.map(Qpn::get);
            expect(right, || format!("a wrong message: {wc:?}"))?;
        }
    }
    writeln!(stdout().lock(), "data transfers complete")?;
    id.leave_multicast(group)?;
    Ok(())
}
