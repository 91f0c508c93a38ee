//! The classic capture file: a header, then records of time, lengths and octets.

use std::path::{Path, PathBuf};

/// Magic number of a little-endian file with microseconds.
const MAGIC: u32 = 0xa1b2_c3d4;
const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16;
const LINK_ETHERNET: u32 = 1;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures")
}

/// The octets of a file among `tests/captures`.
pub(crate) fn read(name: &str) -> Vec<u8> {
    let path = folder().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of all files there, in their order.
pub(crate) fn names() -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .map(|file| file.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// How many files there have names that start with `prefix`.
pub(crate) fn count_of(prefix: &str) -> usize {
    let names = names();
    names.iter().filter(|name| name.starts_with(prefix)).count()
}

/// The Ethernet frames of a file. A frame that was not captured whole is an error.
pub(crate) fn frames(file: &[u8]) -> Vec<&[u8]> {
    assert_eq!(u32_at(file, 0), MAGIC, "not a little-endian pcap file");
    assert_eq!(u32_at(file, 20), LINK_ETHERNET);
    let mut rest = &file[FILE_HEADER_LEN..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let (captured, original) = (u32_at(rest, 8), u32_at(rest, 12));
        assert_eq!(captured, original, "frame cut short by the capture");
        let end = RECORD_HEADER_LEN + usize::try_from(captured).unwrap();
        frames.push(&rest[RECORD_HEADER_LEN..end]);
        rest = &rest[end..];
    }
    frames
}

fn u32_at(octets: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*octets[at..].first_chunk().unwrap())
}
