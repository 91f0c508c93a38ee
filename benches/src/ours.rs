//! The same work with Softverbs.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use softverbs::cm::{CmEvent, CmId, CmOption, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::{
    Access, Cq, Mr, Qp, QpCap, QpInitAttr, RecvWr, SendData, SendFlags, SendOp, SendWr, Transport,
    Wc,
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
        let end = Self { id, cq, qp, mr };
        for n in 0..RECEIVES {
            end.repost(n)?;
        }
        Ok(end)
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

    /// Polls once, when nothing of interest is to come.
    fn idle(&self) -> Outcome<()> {
        self.cq.poll(&mut [Wc::default()])?;
        Ok(())
    }

    /// A receive for the message after the next ones.
    fn repost(&self, n: usize) -> Outcome<()> {
        Ok(self.qp.post_recv(&RecvWr {
            wr_id: n as u64,
            sges: &[self.mr.sge(n % RECEIVES * 64, 64)],
        })?)
    }

    fn send(&self) -> Outcome<()> {
        let data = SendData::Inline(&[7; 8]);
        let wr = SendWr::new(9, SendOp::Send, data).with_flags(SendFlags::empty());
        Ok(self.qp.post_send(&wr)?)
    }
}

fn listen(transport: Transport) -> Outcome<(CmId, SocketAddr)> {
    let listener = CmId::new_sync(PortSpace::Tcp)?;
    listener.set_option(CmOption::Transport(transport))?;
    listener.bind_addr(([127, 0, 0, 1], 0).into())?;
    listener.listen(1)?;
    let address = listener.local_addr().ok_or("not bound")?;
    Ok((listener, address))
}

/// Where the peer may write.
fn region(end: &End) -> Vec<u8> {
    let mut data = end.mr.addr().to_be_bytes().to_vec();
    data.extend_from_slice(&end.mr.rkey().get().to_be_bytes());
    data
}

fn accept(transport: Transport, private_data: impl FnOnce(&End) -> Vec<u8>) -> Outcome<End> {
    let (listener, address) = listen(transport)?;
    announce(address)?;
    let end = End::new(listener.get_request()?)?;
    end.id
        .accept(&ConnParam::with_private_data(private_data(&end)))?;
    Ok(end)
}

/// A passive target: it sleeps, and the library's own thread places what arrives.
pub(crate) fn target(transport: Transport) -> Outcome<()> {
    let end = accept(transport, region)?;
    // Until the source says that it is done.
    let channel = end.id.channel();
    loop {
        if let Some(event) = channel.get_event(Some(WAIT * 60))?
            && event.kind() == EventKind::Disconnected
        {
            return Ok(());
        }
    }
}

/// What differs between connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) transport: Transport,
    /// CRC of MPA (iWARP).
    pub(crate) crc: bool,
}

/// An end that connects, and its channel: for the private data of the reply.
fn active(address: SocketAddr, way: Way) -> Outcome<(End, EventChannel)> {
    let channel = EventChannel::new()?;
    let id = CmId::new(&channel, PortSpace::Tcp, 0)?;
    id.set_option(CmOption::Transport(way.transport))?;
    id.set_option(CmOption::Crc(way.crc))?;
    id.resolve_addr(None, address, WAIT)?;
    drop(next(&channel)?);
    id.resolve_route(WAIT)?;
    drop(next(&channel)?);
    let end = End::new(id)?;
    end.id.connect(&ConnParam::default())?;
    Ok((end, channel))
}

fn next(channel: &EventChannel) -> Outcome<CmEvent> {
    channel
        .get_event(Some(WAIT))?
        .ok_or_else(|| "no event".into())
}

/// Waits until it is connected; the private data of the reply.
fn established(channel: &EventChannel) -> Outcome<Vec<u8>> {
    let event = next(channel)?;
    if event.kind() != EventKind::Established {
        return Err(format!("{event:?}").into());
    }
    Ok(event.private_data().to_vec())
}

fn connect(address: SocketAddr, way: Way) -> Outcome<(End, Vec<u8>)> {
    let (end, channel) = active(address, way)?;
    let data = established(&channel)?;
    Ok((end, data))
}

/// Both ends of a connection in this process; where the first may write.
fn pair(transport: Transport) -> Outcome<(End, End, Vec<u8>)> {
    let (listener, address) = listen(transport)?;
    let way = Way {
        transport,
        crc: false,
    };
    let (one, channel) = active(address, way)?;
    let other = End::new(listener.get_request()?)?;
    let accepts = std::thread::spawn(move || {
        let accepted = other
            .id
            .accept(&ConnParam::with_private_data(region(&other)));
        accepted.map(|()| other)
    });
    let data = established(&channel)?;
    let other = accepts.join().map_err(|_| "accept panicked")??;
    Ok((one, other, data))
}

/// RDMA Writes of 1 MiB; how long until a last Read says that all are placed.
pub(crate) fn write(address: SocketAddr, mib: usize, way: Way) -> Outcome<Duration> {
    let (end, data) = connect(address, way)?;
    let start = Instant::now();
    write_all(&end, &data, mib, || Ok(()))?;
    let took = start.elapsed();
    end.id.disconnect()?;
    Ok(took)
}

/// The same with both ends on this thread.
pub(crate) fn write_alone(transport: Transport, mib: usize) -> Outcome<()> {
    let (one, other, data) = pair(transport)?;
    write_all(&one, &data, mib, || other.idle())?;
    one.id.disconnect()?;
    Ok(())
}

fn write_all(
    end: &End,
    data: &[u8],
    mib: usize,
    mut each: impl FnMut() -> Outcome<()>,
) -> Outcome<()> {
    let remote_addr = u64::from_be_bytes(data[..8].try_into()?);
    let rkey = softverbs::Rkey::new(u32::from_be_bytes(data[8..12].try_into()?));
    let sges = [end.mr.sge(0, REGION)];
    let op = SendOp::Write { remote_addr, rkey };
    let wr = SendWr::new(1, op, SendData::Sges(&sges));
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
        each()?;
    }
    // A zero-length Read is answered when everything before it has been placed.
    let read = SendOp::Read { remote_addr, rkey };
    end.qp
        .post_send(&SendWr::new(2, read, SendData::Sges(&[])))?;
    let mut wc = [Wc::default()];
    while end.cq.poll(&mut wc)? == 0 {
        each()?;
    }
    if !wc[0].is_success() {
        return Err(format!("{:?}", wc[0]).into());
    }
    Ok(())
}

/// Answers Sends.
pub(crate) fn echo(transport: Transport, iterations: usize) -> Outcome<()> {
    let end = accept(transport, |_| Vec::new())?;
    for n in 0..iterations {
        end.poll()?;
        end.repost(n)?;
        end.send()?;
    }
    let channel = end.id.channel();
    // The peer has to have the last answer before this process ends.
    while channel.get_event(Some(Duration::ZERO))?.is_none() {
        end.idle()?;
    }
    Ok(())
}

/// Round trips.
pub(crate) fn ping(
    address: SocketAddr,
    iterations: usize,
    transport: Transport,
) -> Outcome<Vec<Duration>> {
    let way = Way {
        transport,
        crc: false,
    };
    let (end, _) = connect(address, way)?;
    let mut took = Vec::with_capacity(iterations);
    for n in 0..iterations {
        let start = Instant::now();
        end.send()?;
        end.poll()?;
        took.push(start.elapsed());
        end.repost(n)?;
    }
    end.id.disconnect()?;
    Ok(took)
}

/// Both ends of a ping-pong on this thread.
pub(crate) fn ping_alone(transport: Transport, iterations: usize) -> Outcome<()> {
    let (one, other, _) = pair(transport)?;
    for n in 0..iterations {
        for (from, to) in [(&one, &other), (&other, &one)] {
            from.send()?;
            to.poll()?;
            to.repost(n)?;
        }
    }
    one.id.disconnect()?;
    Ok(())
}
