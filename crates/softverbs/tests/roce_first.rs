//! First steps over RoCE.

mod common;

use common::{Setup, pair};
use softverbs::{SendOp, Transport};

#[test]
fn send_write_read() {
    let (client, server) = pair(&Setup::over(Transport::Roce));
    for len in [0, 1, 5, 4096, 100_000] {
        let data = client.fill(0, len, 7 + len as u64);
        server.recv(9, 0, len);
        client.send(1, 0, len);
        client.success();
        assert_eq!(server.success().byte_len as usize, len);
        assert_eq!(server.read(0, len), data);
    }
    let data = client.fill(0, 500_000, 3);
    let (remote_addr, rkey) = (server.mr.addr() as u64, server.mr.rkey());
    client.post(1, SendOp::Write { remote_addr, rkey }, 0, 500_000);
    client.success();
    assert_eq!(server.read(0, 500_000), data);
    let data = server.fill(0, 700_000, 4);
    client.post(1, SendOp::Read { remote_addr, rkey }, 0, 700_000);
    client.success();
    assert_eq!(client.read(0, 700_000), data);
}
