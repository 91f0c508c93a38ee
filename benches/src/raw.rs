//! What raw TCP reaches: the floors that Softverbs is held against.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::{Outcome, announce};

const PAYLOAD: usize = 64 << 10;
const HEADER: usize = 16;
const TRAILER: usize = 4;
/// Frames gathered in one call.
const BATCH: usize = 16;
const REGION: usize = 1 << 20;

fn accept() -> Outcome<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    announce(listener.local_addr()?)?;
    let (socket, _) = listener.accept()?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Receives frames; each payload goes straight to its place, together with the next header.
pub(crate) fn sink(mib: usize) -> Outcome<()> {
    let mut socket = accept()?;
    let frames = (mib << 20) / PAYLOAD;
    let mut region = vec![1_u8; REGION];
    let mut scratch = [0_u8; HEADER + TRAILER];
    socket.read_exact(&mut scratch[..HEADER])?;
    for frame in 0..frames {
        let start = frame * PAYLOAD % REGION;
        let place = &mut region[start..start + PAYLOAD];
        let tail = if frame + 1 < frames {
            TRAILER + HEADER
        } else {
            TRAILER
        };
        let mut done = 0;
        while done < PAYLOAD + tail {
            done += if done < PAYLOAD {
                socket.read_vectored(&mut [
                    IoSliceMut::new(&mut place[done..]),
                    IoSliceMut::new(&mut scratch[..tail]),
                ])?
            } else {
                socket.read(&mut scratch[done - PAYLOAD..tail])?
            };
        }
    }
    socket.write_all(&[1])?;
    Ok(())
}

/// Sends frames in large gathered writes; how long until the sink has all.
pub(crate) fn source(address: SocketAddr, mib: usize) -> Outcome<Duration> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let frames = (mib << 20) / PAYLOAD;
    let region = vec![2_u8; REGION];
    let (header, trailer) = ([0_u8; HEADER], [0_u8; TRAILER]);
    let start = Instant::now();
    for first in (0..frames).step_by(BATCH) {
        let mut slices = Vec::with_capacity(3 * BATCH);
        for frame in first..frames.min(first + BATCH) {
            let from = frame * PAYLOAD % REGION;
            slices.push(IoSlice::new(&header));
            slices.push(IoSlice::new(&region[from..from + PAYLOAD]));
            slices.push(IoSlice::new(&trailer));
        }
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let sent = socket.write_vectored(rest)?;
            IoSlice::advance_slices(&mut rest, sent);
        }
    }
    socket.read_exact(&mut [0])?;
    Ok(start.elapsed())
}

fn read_busily(socket: &mut TcpStream, room: &mut [u8]) -> Outcome<()> {
    let mut done = 0;
    while done < room.len() {
        match socket.read(&mut room[done..]) {
            Ok(0) => return Err("the peer closed".into()),
            Ok(got) => done += got,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Answers messages.
pub(crate) fn echo(iterations: usize) -> Outcome<()> {
    let mut socket = accept()?;
    socket.set_nonblocking(true)?;
    let mut message = [0; 8];
    for _ in 0..iterations {
        read_busily(&mut socket, &mut message)?;
        socket.write_all(&message)?;
    }
    // The last answer has to leave before the process does.
    let _ = read_busily(&mut socket, &mut message);
    Ok(())
}

/// Round trips.
pub(crate) fn ping(address: SocketAddr, iterations: usize) -> Outcome<Vec<Duration>> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    let mut message = [0; 8];
    let mut took = Vec::with_capacity(iterations);
    for _ in 0..iterations {
        let start = Instant::now();
        socket.write_all(&message)?;
        read_busily(&mut socket, &mut message)?;
        took.push(start.elapsed());
    }
    Ok(took)
}

fn pair() -> Outcome<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    for socket in [&one, &other] {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
    }
    Ok((one, other))
}

/// Both ends of a ping-pong on this thread.
pub(crate) fn ping_alone(iterations: usize) -> Outcome<()> {
    let (mut one, mut other) = pair()?;
    let mut message = [0; 8];
    for _ in 0..iterations {
        one.write_all(&message)?;
        read_busily(&mut other, &mut message)?;
        other.write_all(&message)?;
        read_busily(&mut one, &mut message)?;
    }
    Ok(())
}

/// Both ends of a stream on this thread: writes of 1 MiB.
pub(crate) fn stream_alone(mib: usize) -> Outcome<()> {
    let (mut one, mut other) = pair()?;
    let (from, mut to) = (vec![2_u8; REGION], vec![1_u8; REGION]);
    for _ in 0..mib {
        let (mut sent, mut got) = (0, 0);
        while got < REGION {
            if sent < REGION {
                sent += would_block(one.write(&from[sent..]))?;
            }
            got += would_block(other.read(&mut to[got..]))?;
        }
    }
    Ok(())
}

/// Octets moved; none if that has to wait.
fn would_block(result: std::io::Result<usize>) -> std::io::Result<usize> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}
