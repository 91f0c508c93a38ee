//! The system calls of the UDP sockets. `unsafe` lives here so that the rest of the port needs
//! none.
//!
//! Those of each packet are made directly. The functions of libc are cancellation points, where another
//! thread may end this one, and to be that takes them longer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::SockAddr;

use crate::same_host::sys::{CONTROL_HEADER, control_messages};

/// Room for the control messages of one call.
const CONTROL_LEN: usize = 192;
/// Room for any address of an IP socket.
const NAME_LEN: usize = 32;

/// Octets where the kernel wants a structure with alignment.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Aligned<const N: usize>([u8; N]);

/// Control messages: each a length, a level, a type and data, all of it aligned to words.
struct Control {
    octets: Aligned<CONTROL_LEN>,
    len: usize,
}

impl Control {
    const fn new() -> Self {
        Self {
            octets: Aligned([0; CONTROL_LEN]),
            len: 0,
        }
    }

    /// Appends a message.
    fn push<const N: usize>(&mut self, level: i32, kind: i32, data: [u8; N]) {
        let mut put = |octets: &[u8]| {
            self.octets.0[self.len..self.len + octets.len()].copy_from_slice(octets);
            self.len += octets.len();
        };
        put(&(CONTROL_HEADER + N).to_ne_bytes());
        put(&level.to_ne_bytes());
        put(&kind.to_ne_bytes());
        put(&data);
        self.len = self.len.next_multiple_of(size_of::<usize>());
    }
}

/// Addresses and header fields of datagrams to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    pub(super) from: IpAddr,
    pub(super) to: SocketAddr,
    /// 0: as the routing table says.
    pub(super) interface: u32,
    pub(super) traffic_class: u8,
    /// 0: the socket's default.
    pub(super) hop_limit: u8,
}

/// Sends one datagram, or with `segment` datagrams of that length, the last of which may be
/// shorter. Does not block.
pub(super) fn send(
    fd: BorrowedFd<'_>,
    envelope: &Envelope,
    octets: &[u8],
    segment: Option<u16>,
) -> io::Result<()> {
    let mut control = Control::new();
    match envelope.from {
        IpAddr::V4(from) => {
            let mut info = [0; 12];
            info[..4].copy_from_slice(&envelope.interface.to_ne_bytes());
            info[4..8].copy_from_slice(&from.octets());
            control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
            if envelope.traffic_class != 0 {
                let tos = i32::from(envelope.traffic_class).to_ne_bytes();
                control.push(libc::IPPROTO_IP, libc::IP_TOS, tos);
            }
            if envelope.hop_limit != 0 {
                let ttl = i32::from(envelope.hop_limit).to_ne_bytes();
                control.push(libc::IPPROTO_IP, libc::IP_TTL, ttl);
            }
        }
        IpAddr::V6(from) => {
            let mut info = [0; 20];
            info[..16].copy_from_slice(&from.octets());
            info[16..].copy_from_slice(&envelope.interface.to_ne_bytes());
            control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
            if envelope.traffic_class != 0 {
                let class = i32::from(envelope.traffic_class).to_ne_bytes();
                control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class);
            }
            if envelope.hop_limit != 0 {
                let limit = i32::from(envelope.hop_limit).to_ne_bytes();
                control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, limit);
            }
        }
    }
    if let Some(segment) = segment {
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, segment.to_ne_bytes());
    }
    let name = SockAddr::from(envelope.to);
    let mut element = libc::iovec {
        iov_base: octets.as_ptr().cast_mut().cast(),
        iov_len: octets.len(),
    };
    // SAFETY: an all-zero msghdr is a valid value of this plain C struct.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name.as_ptr().cast_mut().cast();
    message.msg_namelen = name.len();
    message.msg_iov = &raw mut element;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control.octets).cast();
    message.msg_controllen = control.len as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: name, control buffer, element and the octets behind it live until the call returns,
    // with the lengths given; sendmsg only reads them, so that the casts from const are sound.
    let sent =
        unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const message, flags) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// What came in one call of the kernel: a datagram, or several of one sender put together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) from: SocketAddr,
    /// The destination in the IP header.
    pub(super) to: IpAddr,
    pub(super) interface: u32,
    pub(super) traffic_class: u8,
    /// Octets of each datagram; the last may be shorter.
    pub(super) segment: usize,
    /// The room did not suffice.
    pub(super) truncated: bool,
}

/// The largest that the kernel puts together.
const ROOM: usize = 1 << 16;

/// Room for what is received in one call.
pub(super) struct Inbox<const N: usize> {
    octets: Box<[u8]>,
    controls: Box<[Aligned<CONTROL_LEN>; N]>,
    names: Box<[Aligned<NAME_LEN>; N]>,
    lens: [usize; N],
    received: [Option<Received>; N],
}

impl<const N: usize> Inbox<N> {
    pub(super) fn new() -> Self {
        Self {
            // Zeroed pages of the kernel: only what is used takes memory.
            octets: vec![0; N * ROOM].into_boxed_slice(),
            controls: Box::new([Aligned([0; CONTROL_LEN]); N]),
            names: Box::new([Aligned([0; NAME_LEN]); N]),
            lens: [0; N],
            received: [None; N],
        }
    }

    /// Receives up to `M` times without blocking. Returns how often something came.
    pub(super) fn receive<const M: usize>(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        const { assert!(M <= N, "no more than there is room for") };
        let mut elements = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; M];
        // SAFETY: an all-zero mmsghdr is a valid value of this plain C struct.
        let mut messages: [libc::mmsghdr; M] = unsafe { std::mem::zeroed() };
        let rooms = self.octets.chunks_exact_mut(ROOM);
        let places = self.controls.iter_mut().zip(self.names.iter_mut());
        let heads = messages.iter_mut().zip(&mut elements);
        for (((head, element), room), (control, name)) in heads.zip(rooms).zip(places) {
            element.iov_base = room.as_mut_ptr().cast();
            element.iov_len = room.len();
            head.msg_hdr.msg_iov = element;
            head.msg_hdr.msg_iovlen = 1;
            head.msg_hdr.msg_control = (&raw mut *control).cast();
            head.msg_hdr.msg_controllen = CONTROL_LEN as _;
            head.msg_hdr.msg_name = (&raw mut *name).cast();
            head.msg_hdr.msg_namelen = libc::socklen_t::try_from(NAME_LEN).unwrap_or(0);
        }
        let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
        let got = if M == 1 {
            let message = &mut messages[0];
            // SAFETY: the message names buffers that are borrowed exclusively above and live, as
            // does the element, until the call returns, each with its own length.
            let len =
                unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut message.msg_hdr, flags) };
            message.msg_len = libc::c_uint::try_from(len).unwrap_or(0);
            // An empty datagram is one, too.
            if len < 0 { len } else { 1 }
        } else {
            let timeout: *mut libc::timespec = std::ptr::null_mut();
            // SAFETY: as above, for each of the messages, of which there are as many as it says.
            unsafe {
                let messages = messages.as_mut_ptr();
                libc::syscall(libc::SYS_recvmmsg, fd, messages, M, flags, timeout)
            }
        };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        for (index, message) in messages.iter().enumerate().take(got) {
            let len = (message.msg_len as usize).min(ROOM);
            let name_len = (message.msg_hdr.msg_namelen as usize).min(NAME_LEN);
            #[allow(
                clippy::unnecessary_cast,
                reason = "another type with other C libraries"
            )]
            let control_len = (message.msg_hdr.msg_controllen as usize).min(CONTROL_LEN);
            self.lens[index] = len;
            self.received[index] = describe(
                &self.names[index].0[..name_len],
                &self.controls[index].0[..control_len],
                len,
                message.msg_hdr.msg_flags,
            );
        }
        Ok(got)
    }

    /// What came, by its number; nothing if its addresses are not known.
    pub(super) fn get(&self, index: usize) -> Option<(Received, &[u8])> {
        let received = (*self.received.get(index)?)?;
        let octets = self.octets.get(index * ROOM..)?.get(..self.lens[index])?;
        Some((received, octets))
    }
}

fn describe(name: &[u8], control: &[u8], len: usize, flags: i32) -> Option<Received> {
    let from = address(name)?;
    let mut to = None;
    let mut interface = 0;
    let mut traffic_class = 0;
    let mut segment = len;
    for (level, kind, data) in control_messages(control) {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let (index, rest) = data.split_first_chunk()?;
                interface = u32::from_ne_bytes(*index);
                // The second address is that of the header.
                let octets: [u8; 4] = rest.get(4..8)?.try_into().ok()?;
                to = Some(IpAddr::from(octets));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let (octets, index) = data.split_first_chunk::<16>()?;
                to = Some(IpAddr::from(*octets));
                interface = u32::from_ne_bytes(*index.first_chunk()?);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => traffic_class = *data.first()?,
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let class = i32::from_ne_bytes(*data.first_chunk()?);
                traffic_class = u8::try_from(class & 0xff).ok()?;
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let size = i32::from_ne_bytes(*data.first_chunk()?);
                segment = usize::try_from(size).ok().filter(|size| *size > 0)?;
            }
            _ => (),
        }
    }
    Some(Received {
        from,
        to: to?,
        interface,
        traffic_class,
        segment,
        truncated: flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
    })
}

/// Reads a `sockaddr_in` or `sockaddr_in6`.
fn address(name: &[u8]) -> Option<SocketAddr> {
    let (family, rest) = name.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk()?;
    let port = u16::from_be_bytes(*port);
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => {
            let octets = *rest.first_chunk::<4>()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(octets), port).into())
        }
        libc::AF_INET6 => {
            let (_flow, rest) = rest.split_first_chunk::<4>()?;
            let (octets, rest) = rest.split_first_chunk::<16>()?;
            let scope = u32::from_ne_bytes(*rest.first_chunk()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(*octets), port, 0, scope).into())
        }
        _ => None,
    }
}

/// How many datagrams a socket had no room for.
pub(super) fn drops(fd: BorrowedFd<'_>) -> u32 {
    const SO_MEMINFO: i32 = 55;
    const DROPS: usize = 8;
    let mut info = [0_u32; DROPS + 1];
    let mut len = libc::socklen_t::try_from(size_of_val(&info)).unwrap_or(0);
    // SAFETY: the kernel writes at most `len` octets to `info`, which is as long, and the length
    // that it wrote to `len`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    // A kernel before 4.12 does not tell.
    if result < 0 { 0 } else { info[DROPS] }
}

/// Sets a socket option that is a number.
pub(super) fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<i32>()).unwrap_or(0);
    // SAFETY: the kernel reads `len` octets of `value`, which outlives the call.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
