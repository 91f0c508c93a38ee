//! Sockets over RDMA.

use std::net::SocketAddr;

use softverbs::rsocket::{Family, MsgFlags, RSocket};
use softverbs::{Error, Transport};

pub fn stream(transport: Transport, family: Family) -> RSocket {
    let socket = RSocket::stream(family).unwrap();
    socket.set_transport(transport).unwrap();
    socket
}

pub fn any(family: Family) -> SocketAddr {
    match family {
        Family::V4 => "127.0.0.1:0".parse().unwrap(),
        Family::V6 => "[::1]:0".parse().unwrap(),
    }
}

pub fn listener(transport: Transport, family: Family) -> (RSocket, SocketAddr) {
    let listener = stream(transport, family);
    listener.bind(any(family)).unwrap();
    listener.listen(128).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub fn connect(listener: &RSocket, client: &RSocket) -> RSocket {
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| listener.accept().unwrap());
        client.connect(address).unwrap();
        let (server, from) = server.join().unwrap();
        assert_eq!(from, client.local_addr().unwrap());
        assert_eq!(client.peer_addr().unwrap(), address);
        server
    })
}

pub fn pair(transport: Transport) -> (RSocket, RSocket) {
    let (listener, _) = listener(transport, Family::V4);
    let client = stream(transport, Family::V4);
    let server = connect(&listener, &client);
    (client, server)
}

pub fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> i32 {
    result.unwrap_err().errno()
}

pub const NONE: MsgFlags = MsgFlags::empty();

/// Octets that depend on their place, with a period that no buffer size divides.
pub fn pattern(at: usize) -> u8 {
    (at % 65_521).to_le_bytes()[0] ^ (at / 65_521).to_le_bytes()[0]
}
