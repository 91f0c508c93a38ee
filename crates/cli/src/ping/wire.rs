//! What goes over the wire.

use softverbs::Rkey;

/// Longest ping. (rping refuses 65536, its buffers stop one short of it.)
pub(crate) const MAX_SIZE: u32 = 65_536;

/// Where a buffer of the client lies: 64 bits of address, 32 of key, 32 of size, all big-endian.
/// The server's answers have the same size, and rping ignores what is in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Buffer {
    pub(super) addr: u64,
    pub(super) rkey: Rkey,
    pub(super) size: u32,
}

impl Buffer {
    /// Octets on the wire.
    pub(super) const LEN: usize = 16;

    pub(super) fn encode(self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        octets[..8].copy_from_slice(&self.addr.to_be_bytes());
        octets[8..12].copy_from_slice(&self.rkey.get().to_be_bytes());
        octets[12..].copy_from_slice(&self.size.to_be_bytes());
        octets
    }

    pub(super) fn decode(octets: [u8; Self::LEN]) -> Self {
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            k0,
            k1,
            k2,
            k3,
            s0,
            s1,
            s2,
            s3,
        ] = octets;
        Self {
            addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: Rkey::new(u32::from_be_bytes([k0, k1, k2, k3])),
            size: u32::from_be_bytes([s0, s1, s2, s3]),
        }
    }
}

/// The data of a ping: its number as text, then the characters from `A` to `z` over and over,
/// beginning one later with every ping, and a NUL at the end. A short ping is cut off.
pub(super) fn payload(number: u64, size: u32) -> Vec<u8> {
    const FIRST: u8 = b'A';
    const LETTERS: u8 = b'z' - FIRST + 1;
    let size = size as usize;
    let start = u8::try_from(number % u64::from(LETTERS)).unwrap_or(0);
    let letters = (0..LETTERS)
        .cycle()
        .skip(start.into())
        .map(|letter| FIRST + letter);
    let mut data: Vec<u8> = format!("rdma-ping-{number}: ")
        .bytes()
        .chain(letters)
        .take(size)
        .collect();
    if let Some(last) = data.last_mut() {
        *last = 0;
    }
    data
}

/// How much of a buffer the server writes back: the C string in it, NUL included.
pub(super) fn string_len(data: &[u8]) -> usize {
    data.iter()
        .position(|octet| *octet == 0)
        .map_or(data.len(), |at| at + 1)
}

/// The C string in a buffer, for people.
pub(super) fn text(data: &[u8]) -> String {
    let end = data
        .iter()
        .position(|octet| *octet == 0)
        .unwrap_or(data.len());
    String::from_utf8_lossy(&data[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first Send and the first two payloads of `rping -C 3` between two Linux machines.
    #[test]
    fn as_real_rping_does() {
        let octets = *b"\x00\x00\x55\x65\x0c\x54\x52\xa0\x8e\xc6\x03\x00\x00\x00\x00\x40";
        let buffer = Buffer {
            addr: 0x5565_0c54_52a0,
            rkey: Rkey::new(0x8ec6_0300),
            size: 64,
        };
        assert_eq!(Buffer::decode(octets), buffer);
        assert_eq!(buffer.encode(), octets);
        let first = b"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr\0";
        assert_eq!(payload(0, 64), first);
        let second = b"rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs\0";
        assert_eq!(payload(1, 64), second);
    }

    #[test]
    fn letters_wrap_after_z() {
        let long = text(&payload(57, 100));
        assert!(long.starts_with("rdma-ping-57: zABC"), "{long}");
        assert!(text(&payload(58, 100)).starts_with("rdma-ping-58: ABC"));
        let long = text(&payload(0, 200));
        assert_eq!(long.matches("xyzAB").count(), 3, "{long}");
    }

    #[test]
    fn any_size() {
        for size in [1, 2, 13, 14, 15, 26, 64, 65_535, MAX_SIZE] {
            let data = payload(12, size);
            assert_eq!(data.len(), size as usize);
            assert_eq!(data.iter().filter(|octet| **octet == 0).count(), 1);
            assert_eq!(string_len(&data), data.len());
        }
        assert_eq!(payload(0, 5), b"rdma\0");
        assert_eq!(payload(0, 1), b"\0");
        assert!(payload(0, 0).is_empty());
    }

    #[test]
    fn strings_end_at_the_first_nul() {
        assert_eq!(string_len(b"ab\0cd\0"), 3);
        assert_eq!(string_len(b"abc"), 3);
        assert_eq!(string_len(b""), 0);
        assert_eq!(text(b"ab\0cd"), "ab");
        assert_eq!(text(b"ab"), "ab");
    }
}
