//! The same work with Softverbs.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use softverbs::cm::{CmId, CmOption, ConnParam, PortSpace};
use softverbs::{
    Access, Cq, Mr, Qp, QpCap, QpInitAttr, RecvWr, SendData, SendFlags, SendOp, SendWr, Wc,
};

use crate::{Outcome, announce};

const REGION: usize = 1 << 20;
/// Writes that are outstanding.
const DEPTH: usize = 8;
const RECEIVES: usize = 16;
const WAIT: Duration = Duration::from_secs(10);

struct End {
    id: CmId,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(id: CmId) -> Outcome<Self> {
        let context = id.verbs().ok_or("no device")?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(1024, None, 0)?;
        let cap = QpCap {
            max_send_wr: 64,
            max_recv_wr: 64,
            ..QpCap::default()
        };
        let qp = id.create_qp(
            &pd,
            &QpInitAttr {
                cap,
                ..QpInitAttr::rc(&cq, &cq)
            },
        )?;
        let mr = pd.alloc_mr(REGION, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        mr.copy_in(0, &vec![3; REGION])?;
        for n in 0..RECEIVES {
            qp.post_recv(&RecvWr {
                wr_id: n as u64,
                sges: &[mr.sge(n * 64, 64)],
            })?;
        }
        Ok(Self { id, cq, qp, mr })
    }

    fn poll(&self) -> Outcome<Wc> {
        let mut wc = [Wc::default()];
        while self.cq.poll(&mut wc)? == 0 {}
        if wc[0].is_success() {
            Ok(wc[0])
        } else {
            Err(format!("{:?}", wc[0]).into())
        }
    }
}

fn accept(private_data: impl FnOnce(&End) -> Vec<u8>) -> Outcome<End> {
    let listener = CmId::new_sync(PortSpace::Tcp)?;
    listener.bind_addr(([127, 0, 0, 1], 0).into())?;
    listener.listen(1)?;
    announce(listener.local_addr().ok_or("not bound")?)?;
    let end = End::new(listener.get_request()?)?;
    end.id
        .accept(&ConnParam::with_private_data(private_data(&end)))?;
    Ok(end)
}

/// A passive target: it sleeps, and the library's own thread places what arrives.
pub(crate) fn target() -> Outcome<()> {
    let end = accept(|end| {
        let mut data = end.mr.addr().to_be_bytes().to_vec();
        data.extend_from_slice(&end.mr.rkey().get().to_be_bytes());
        data
    })?;
    // Until the source says that it is done.
    let channel = end.id.channel();
    loop {
        if let Some(event) = channel.get_event(Some(WAIT * 60))?
            && event.kind() == softverbs::cm::EventKind::Disconnected
        {
            return Ok(());
        }
    }
}

fn connect(address: SocketAddr, crc: bool) -> Outcome<(End, Vec<u8>)> {
    // With a channel of its own, to see the private data of the reply.
    let channel = softverbs::cm::EventChannel::new()?;
    let id = CmId::new(&channel, PortSpace::Tcp, 0)?;
    id.set_option(CmOption::Crc(crc))?;
    let next = || -> Outcome<softverbs::cm::CmEvent> {
        channel
            .get_event(Some(WAIT))?
            .ok_or_else(|| "no event".into())
    };
    id.resolve_addr(None, address, WAIT)?;
    drop(next()?);
    id.resolve_route(WAIT)?;
    drop(next()?);
    let end = End::new(id)?;
    end.id.connect(&ConnParam::default())?;
    let event = next()?;
    if event.kind() != softverbs::cm::EventKind::Established {
        return Err(format!("{event:?}").into());
    }
    let data = event.private_data().to_vec();
    Ok((end, data))
}

/// RDMA Writes of 1 MiB; how long until a last Read says that all are placed.
pub(crate) fn write(address: SocketAddr, mib: usize, crc: bool) -> Outcome<Duration> {
    let (end, data) = connect(address, crc)?;
    let remote_addr = u64::from_be_bytes(data[..8].try_into()?);
    let rkey = softverbs::Rkey::new(u32::from_be_bytes(data[8..12].try_into()?));
    let sges = [end.mr.sge(0, REGION)];
    let wr = SendWr::new(
        1,
        SendOp::Write { remote_addr, rkey },
        SendData::Sges(&sges),
    );
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    let mut wcs = [Wc::default(); 16];
    while done < mib {
        while posted < mib && posted - done < DEPTH {
            end.qp.post_send(&wr)?;
            posted += 1;
        }
        let got = end.cq.poll(&mut wcs)?;
        if let Some(bad) = wcs[..got].iter().find(|wc| !wc.is_success()) {
            return Err(format!("{bad:?}").into());
        }
        done += got;
    }
    // A zero-length Read is answered when everything before it has been placed.
    let read = SendOp::Read { remote_addr, rkey };
    end.qp
        .post_send(&SendWr::new(2, read, SendData::Sges(&[])))?;
    end.poll()?;
    let took = start.elapsed();
    end.id.disconnect()?;
    Ok(took)
}

/// Answers Sends.
pub(crate) fn echo(iterations: usize) -> Outcome<()> {
    let end = accept(|_| Vec::new())?;
    bounce(&end, iterations, || {}, |end| end.poll().map(drop))?;
    let channel = end.id.channel();
    let _ = channel.get_event(Some(WAIT))?;
    Ok(())
}

/// Waits for a message and answers it.
fn bounce(
    end: &End,
    iterations: usize,
    mut each: impl FnMut(),
    wait: impl Fn(&End) -> Outcome<()>,
) -> Outcome<()> {
    for n in 0..iterations {
        wait(end)?;
        let offset = n % RECEIVES * 64;
        end.qp.post_recv(&RecvWr {
            wr_id: 0,
            sges: &[end.mr.sge(offset, 64)],
        })?;
        send(end)?;
        each();
    }
    Ok(())
}

fn send(end: &End) -> Outcome<()> {
    let wr = SendWr::new(9, SendOp::Send, SendData::Inline(&[7; 8])).with_flags(SendFlags::empty());
    Ok(end.qp.post_send(&wr)?)
}

/// Round trips.
pub(crate) fn ping(address: SocketAddr, iterations: usize) -> Outcome<Vec<Duration>> {
    let (end, _) = connect(address, false)?;
    let mut took = Vec::with_capacity(iterations);
    for n in 0..iterations {
        let start = Instant::now();
        send(&end)?;
        end.poll()?;
        took.push(start.elapsed());
        let offset = n % RECEIVES * 64;
        end.qp.post_recv(&RecvWr {
            wr_id: 0,
            sges: &[end.mr.sge(offset, 64)],
        })?;
    }
    end.id.disconnect()?;
    Ok(took)
}
