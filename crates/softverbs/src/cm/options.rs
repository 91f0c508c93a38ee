//! Options of an identifier, and what they do to its socket.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use softverbs_proto::iwarp::stream::FpduSizing;

use crate::device::{IbMtu, Transport, transport_of_environment};
use crate::engine::sys;
use crate::error::Result;

/// One option of an identifier; set before `connect` or `listen`. What a listener has, its
/// connections inherit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CmOption {
    /// The transport (default: what the environment variable `SOFTVERBS_TRANSPORT` says, `iwarp`
    /// or `roce`; else, and if it says `both`, iWARP). Before `bind_addr` and `resolve_addr`.
    Transport(Transport),
    /// Ask for CRC (default: no). It is used if either end asks.
    Crc(bool),
    /// Ask the peer for markers in what we receive (default: no).
    MpaMarkers(bool),
    /// Largest ULPDU that we send, in octets: 64 ..= 65535 (default: the largest).
    FpduLimit(u16),
    /// Size FPDUs to TCP segments, for network cards that want it (default: no).
    MpaAware(bool),
    /// How long a responder holds its sends for a peer that did not offer peer-to-peer mode
    /// and stays silent (default: 25 ms).
    Grace(Duration),
    /// Ask for peer-to-peer mode, in which the initiator sends first (default: yes).
    PeerToPeer(bool),
    /// MPA revision to open with: 1 or 2 (default: 2, then 1 for a peer that refuses it).
    MpaRevision(u8),
    /// Type of service (IPv4) or traffic class (IPv6).
    Tos(u8),
    /// Local ACK timeout of the queue pair over RoCE: 4.096 µs × 2^code, 0 for ever, up to 31
    /// (default: what the path suggests, 17). The peer of `connect` gets it, too.
    AckTimeout(u8),
    /// Path MTU that `connect` asks for (RoCE; default: the port's, or that of another interface of
    /// this host which the way leads to, if it is smaller). `connect` fails with EINVAL
    /// if it exceeds the port's. Set on the active side.
    PathMtu(IbMtu),
    /// TCP_NODELAY (default: on).
    NoDelay(bool),
    /// Idle time after which TCP asks whether the peer is still there (default: 10 s); `None`:
    /// never. A silent connection counts as lost after about twice as long, one whose peer takes
    /// nothing of what was sent to it (it is stopped, say) after twelve times as long.
    Keepalive(Option<Duration>),
    /// SO_SNDBUF in octets (default: the kernel tunes it).
    SendBuffer(usize),
    /// SO_RCVBUF in octets (default: the kernel tunes it).
    RecvBuffer(usize),
    /// An IPv6 wildcard does not accept IPv4 (default: it does).
    Afonly(bool),
    /// Bind to an address whose former connections still linger (default: yes).
    ReuseAddr(bool),
    /// How long setting up the TCP connection may take (default: 30 s).
    ConnectTimeout(Duration),
    /// How long the peer may take to answer the MPA request, its application's time to accept
    /// included (default: 10 s).
    ReplyTimeout(Duration),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) transport: Transport,
    pub(super) crc: bool,
    pub(super) markers: bool,
    fpdu_limit: u16,
    mpa_aware: bool,
    pub(super) grace: Duration,
    pub(super) peer_to_peer: bool,
    pub(super) revision: u8,
    tos: Option<u8>,
    pub(super) ack_timeout: Option<u8>,
    pub(super) path_mtu: Option<IbMtu>,
    no_delay: bool,
    keepalive: Option<Duration>,
    send_buffer: Option<usize>,
    recv_buffer: Option<usize>,
    pub(super) afonly: bool,
    reuse_addr: bool,
    pub(super) connect_timeout: Duration,
    pub(super) reply_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transport: Transport::Iwarp,
            crc: false,
            markers: false,
            fpdu_limit: u16::MAX,
            mpa_aware: false,
            grace: Duration::from_millis(25),
            peer_to_peer: true,
            revision: 2,
            tos: None,
            ack_timeout: None,
            path_mtu: None,
            no_delay: true,
            keepalive: Some(Duration::from_secs(10)),
            send_buffer: None,
            recv_buffer: None,
            afonly: false,
            reuse_addr: true,
            connect_timeout: Duration::from_secs(30),
            reply_timeout: Duration::from_secs(10),
        }
    }
}

impl Options {
    /// Takes an option, or says what is wrong with its value.
    pub(super) fn set(
        &mut self,
        option: CmOption,
    ) -> std::result::Result<(), (&'static str, &'static str)> {
        match option {
            CmOption::Transport(transport) => self.transport = transport,
            CmOption::Crc(on) => self.crc = on,
            CmOption::MpaMarkers(on) => self.markers = on,
            CmOption::FpduLimit(limit) if limit < 64 => {
                return Err(("fpdu_limit", "must be in 64 ..= 65535"));
            }
            CmOption::FpduLimit(limit) => self.fpdu_limit = limit,
            CmOption::MpaAware(on) => self.mpa_aware = on,
            CmOption::Grace(grace) => self.grace = grace,
            CmOption::PeerToPeer(on) => self.peer_to_peer = on,
            CmOption::MpaRevision(revision @ 1..=2) => self.revision = revision,
            CmOption::MpaRevision(_) => return Err(("mpa_revision", "must be 1 or 2")),
            CmOption::Tos(tos) => self.tos = Some(tos),
            CmOption::AckTimeout(code @ 0..=31) => self.ack_timeout = Some(code),
            CmOption::AckTimeout(_) => return Err(("ack_timeout", "must be in 0 ..= 31")),
            CmOption::PathMtu(mtu) => self.path_mtu = Some(mtu),
            CmOption::NoDelay(on) => self.no_delay = on,
            // The kernel's own limits.
            CmOption::Keepalive(Some(idle)) if !(1..=32_767).contains(&idle.as_secs()) => {
                return Err(("keepalive", "must be in 1 ..= 32767 s"));
            }
            CmOption::Keepalive(idle) => self.keepalive = idle,
            CmOption::SendBuffer(octets) => self.send_buffer = Some(octets),
            CmOption::RecvBuffer(octets) => self.recv_buffer = Some(octets),
            CmOption::Afonly(on) => self.afonly = on,
            CmOption::ReuseAddr(on) => self.reuse_addr = on,
            CmOption::ConnectTimeout(limit) => self.connect_timeout = limit,
            CmOption::ReplyTimeout(limit) => self.reply_timeout = limit,
        }
        Ok(())
    }

    /// What an identifier starts with.
    pub(super) fn of_environment() -> Result<Self> {
        let transport = transport_of_environment()?;
        Ok(Self {
            transport: transport.unwrap_or(Transport::Iwarp),
            ..Self::default()
        })
    }

    pub(super) fn traffic_class(&self) -> u8 {
        self.tos.unwrap_or(0)
    }

    /// A socket for an address of this family; buffer sizes have to be set before it connects or
    /// listens, since TCP's window scale is fixed then.
    pub(super) fn socket(&self, address: &SocketAddr) -> io::Result<Socket> {
        let socket = sys::socket(
            Domain::for_address(*address),
            Type::STREAM.nonblocking(),
            Some(Protocol::TCP),
        )?;
        socket.set_reuse_address(self.reuse_addr)?;
        if address.is_ipv6() {
            socket.set_only_v6(self.afonly)?;
        }
        if let Some(octets) = self.send_buffer {
            socket.set_send_buffer_size(octets)?;
        }
        if let Some(octets) = self.recv_buffer {
            socket.set_recv_buffer_size(octets)?;
        }
        Ok(socket)
    }

    /// Options of a connection, connected or accepted.
    pub(super) fn apply(&self, socket: &SockRef<'_>, ipv6: bool) -> io::Result<()> {
        socket.set_tcp_nodelay(self.no_delay)?;
        if let Some(idle) = self.keepalive {
            let interval = (idle / 5).max(Duration::from_secs(1));
            socket.set_tcp_keepalive(
                &TcpKeepalive::new()
                    .with_time(idle)
                    .with_interval(interval)
                    .with_retries(5),
            )?;
            // The same for a peer that vanishes while octets are under way.
            socket.set_tcp_user_timeout(Some(idle * 12))?;
        }
        if let Some(tos) = self.tos {
            if ipv6 {
                socket.set_tclass_v6(u32::from(tos))?;
            } else {
                socket.set_tos_v4(u32::from(tos))?;
            }
        }
        Ok(())
    }

    pub(super) fn sizing(&self, socket: &SockRef<'_>) -> FpduSizing {
        if self.mpa_aware {
            let emss = socket
                .tcp_mss()
                .unwrap_or(536)
                .clamp(128, u32::from(u16::MAX));
            return FpduSizing::MpaAware {
                emss: u16::try_from(emss).unwrap_or(u16::MAX),
            };
        }
        FpduSizing::Largest {
            limit: self.fpdu_limit,
        }
    }
}
