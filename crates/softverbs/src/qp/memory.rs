//! Registered memory as one queue pair sees it.

use std::cell::Cell;

use softverbs_proto::memory::{Access, Memory, MemoryFault};
use softverbs_proto::wr::{BindMw, Payload, RecvRequest, SendOp, SendRequest, Sge};
use softverbs_wire::num::{Lkey, Qpn, Rkey};

use super::QpInner;
use crate::engine::sys::IoList;
use crate::mr_table::{Domain, LastPin, MrTable, Pin};
use crate::roce::port::{Port, SendPath};
use crate::same_host::placing::SMALL;
use crate::srq::Srq;

/// The upward trait of proto for one queue pair.
pub(crate) struct QpMemory<'a> {
    qp: &'a QpInner,
    regions: &'a MrTable,
    domain: Domain,
    last: LastPin<'a>,
    /// The shared receive queue of the message (XRC).
    selected: Option<Srq>,
    /// The way to the peer, on which its memory can be reached, perhaps.
    reach: Option<(&'static Port, &'a SendPath)>,
    /// See [`take_written`](Self::take_written).
    written: Cell<Option<Rkey>>,
}

impl<'a> QpMemory<'a> {
    pub(crate) fn new(qp: &'a QpInner) -> Self {
        Self {
            qp,
            regions: &qp.pd.context().inner().regions,
            domain: qp.domain(),
            last: LastPin::new(&qp.pd.context().inner().regions),
            selected: None,
            reach: None,
            written: Cell::new(None),
        }
    }

    /// The same, for requests to the peer at the end of a path.
    pub(crate) fn reaching(mut self, port: &'static Port, path: Option<&'a SendPath>) -> Self {
        self.reach = path.map(|path| (port, path));
        self
    }

    /// The payload of a request. Nothing if its completion will say that it is not there, or if it is that
    /// of a window.
    pub(super) fn gather<'r>(&self, request: &'r SendRequest) -> Option<IoList<'r>>
    where
        'a: 'r,
    {
        let mut octets = IoList::new();
        match &request.payload {
            Payload::Inline(data) => octets.push_out(data),
            Payload::Sges(sges) => {
                for sge in sges.iter().filter(|sge| sge.length > 0) {
                    let len = sge.length as usize;
                    let found =
                        self.regions
                            .iovec(sge.lkey, sge.addr, len, Access::empty(), self.domain);
                    let (pin, start) = found.ok().filter(|(pin, _)| !pin.is_window())?;
                    octets.push_pinned(pin, start, len);
                }
            }
        }
        Some(octets)
    }

    /// Of small writes of the peer that were checked since this was asked, the key of the last one.
    pub(super) fn take_written(&self) -> Option<Rkey> {
        self.written.take()
    }

    pub(super) fn regions(&self) -> &'a MrTable {
        self.regions
    }

    pub(super) fn domain(&self) -> Domain {
        self.domain
    }
}

impl Memory for QpMemory<'_> {
    fn check_local(&self, sge: &Sge, need: Access) -> Result<(), MemoryFault> {
        if sge.length == 0 {
            return Ok(());
        }
        self.last.with(sge.lkey.get(), |pin| {
            pin.check_local(sge.addr, sge.length.into(), need, self.domain)
        })
    }

    fn check_remote(
        &self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), MemoryFault> {
        if need == Access::REMOTE_WRITE && len <= SMALL {
            self.written.set(Some(rkey));
        }
        let check = |pin: &Pin<'_>| pin.check(addr, len, need, self.domain);
        self.last.with(rkey.get(), check)
    }

    fn invalidate(&mut self, rkey: Rkey) -> Result<(), MemoryFault> {
        // Which waits until nobody has it pinned.
        self.last.release();
        self.regions.invalidate(rkey, self.domain)
    }

    fn place(&mut self, request: &SendRequest) -> bool {
        let (Some((port, path)), SendOp::Write { remote_addr, rkey }) = (self.reach, request.op)
        else {
            return false;
        };
        self.gather(request).is_some_and(|octets| {
            port.write_at_once(path, self.qp.qp_num, rkey, remote_addr, &octets)
        })
    }

    fn bind(&mut self, bind: &BindMw) -> Result<(), MemoryFault> {
        self.last.release();
        self.regions.bind(bind, self.domain)
    }

    fn read(&self, key: Lkey, addr: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        if out.is_empty() {
            return Ok(());
        }
        self.last
            .with(key.get(), |pin| pin.copy_out(addr, out, self.domain))
    }

    fn append(
        &self,
        key: Lkey,
        addr: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), MemoryFault> {
        if len == 0 {
            return Ok(());
        }
        self.last
            .with(key.get(), |pin| pin.append_to(addr, len, out, self.domain))
    }

    fn write(&mut self, key: Lkey, addr: u64, data: &[u8]) -> Result<(), MemoryFault> {
        if data.is_empty() {
            return Ok(());
        }
        self.last.with(key.get(), |pin| {
            pin.copy_in(addr, data, Access::LOCAL_WRITE, self.domain)
        })
    }

    fn atomic(
        &mut self,
        rkey: Rkey,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, MemoryFault> {
        self.regions.atomic(rkey, addr, self.domain, update)
    }

    fn select_srq(&mut self, srq: Qpn) -> bool {
        let found = self.qp.xrcd.as_ref().and_then(|xrcd| xrcd.srq(srq));
        self.domain.pd = found.as_ref().map_or(0, Srq::pd_id);
        self.selected = found;
        self.selected.is_some()
    }

    fn take_receive(&mut self) -> Option<RecvRequest> {
        if let Some(srq) = &self.selected {
            return srq.take();
        }
        match &self.qp.srq {
            Some(srq) => srq.take(),
            None => Some(self.qp.rq.take()?.request),
        }
    }
}
