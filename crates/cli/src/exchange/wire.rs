//! The layout of exchange messages: the header, and cursors over big-endian fields.

/// First octets of every message.
pub(crate) const MAGIC: [u8; 4] = *b"SVXC";

/// The version of the layout and of the conversation. A peer of another one is refused.
pub(crate) const VERSION: u8 = 2;

/// The version that refusals carry and that all versions read, so that a peer of another version
/// is told why it is refused.
const COMMON_VERSION: u8 = 1;

/// Octets of the header: magic, version, kind, length.
pub(crate) const HEADER_LEN: usize = 8;

/// No message is longer: receives are posted for this much.
pub(crate) const MAX_LEN: usize = 256;

/// Why octets are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// Not from this program at all.
    #[error("the peer does not speak the exchange of this program")]
    Magic,
    /// From another version of this program.
    #[error("the peer speaks version {0} of the exchange, this program version {VERSION}")]
    Version(u8),
    /// A kind that this version does not have.
    #[error("message of unknown kind {0}")]
    Kind(u8),
    /// Ends before its fields do.
    #[error("a message is cut off")]
    Short,
    /// A field holds a value that it may not.
    #[error("a message has a wrong {0}")]
    Field(&'static str),
}

/// Writes a message.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// Starts a message of this kind.
    pub(crate) fn new(kind: u8) -> Self {
        Self::of_version(VERSION, kind)
    }

    /// Starts a message that peers of all versions read.
    pub(crate) fn common(kind: u8) -> Self {
        Self::of_version(COMMON_VERSION, kind)
    }

    fn of_version(version: u8, kind: u8) -> Self {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[version, kind, 0, 0]);
        Self(bytes)
    }

    /// Appends fields, most significant octet first.
    #[must_use]
    pub(crate) fn put<const N: usize>(mut self, field: [u8; N]) -> Self {
        self.0.extend_from_slice(&field);
        self
    }

    /// Appends text up to the longest message, cut at a character boundary.
    #[must_use]
    pub(crate) fn text(mut self, text: &str, room: usize) -> Self {
        let mut end = text.len().min(room.saturating_sub(self.0.len()));
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0.extend_from_slice(&text.as_bytes()[..end]);
        self
    }

    /// Fills in the length and hands the message out.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let len = u16::try_from(self.0.len()).unwrap_or(u16::MAX);
        self.0[6..8].copy_from_slice(&len.to_be_bytes());
        self.0
    }
}

/// Reads the header: the kind, and the length of the whole message. Of other versions, only
/// messages of the kind `common` are read.
pub(crate) fn header(bytes: &[u8], common: u8) -> Result<(u8, usize), Malformed> {
    // Somebody else's private data may be of any length, or none.
    if !bytes.starts_with(&MAGIC) {
        return Err(Malformed::Magic);
    }
    let Some((header, _)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Err(Malformed::Short);
    };
    let [_, _, _, _, version, kind, l0, l1] = *header;
    if version != VERSION && kind != common {
        return Err(Malformed::Version(version));
    }
    let len = usize::from(u16::from_be_bytes([l0, l1]));
    if !(HEADER_LEN..=MAX_LEN).contains(&len) {
        return Err(Malformed::Field("length"));
    }
    Ok((kind, len))
}

/// Reads the fields of a message.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Over the fields after the header. What lies behind the length that the message states is
    /// padding (of private data, on some transports) and not looked at.
    pub(crate) fn new(bytes: &'a [u8], len: usize) -> Result<Self, Malformed> {
        bytes.get(HEADER_LEN..len).map(Self).ok_or(Malformed::Short)
    }

    /// The next `N` octets.
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*field)
    }

    /// The next 16 bits.
    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_be_bytes)
    }

    /// The next 32 bits.
    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_be_bytes)
    }

    /// The next 64 bits.
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_be_bytes)
    }

    /// The rest, as text for a terminal: control characters from a stranger are not passed on.
    pub(crate) fn text(self) -> String {
        String::from_utf8_lossy(self.0)
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_layout() {
        let bytes = Writer::new(7).put([1, 2]).finish();
        assert_eq!(bytes, [b'S', b'V', b'X', b'C', 2, 7, 0, 10, 1, 2]);
        assert_eq!(header(&bytes, 3), Ok((7, 10)));
    }

    #[test]
    fn headers_that_are_none() {
        let good = Writer::new(1).finish();
        assert_eq!(header(&good[..7], 3), Err(Malformed::Short));
        for stranger in [&b"MPA ID Req Frame"[..], b"SVX", b""] {
            assert_eq!(header(stranger, 3), Err(Malformed::Magic));
        }
        let with = |at: usize, value| {
            let mut bytes = good.clone();
            bytes[at] = value;
            header(&bytes, 3)
        };
        assert_eq!(with(4, 9), Err(Malformed::Version(9)));
        assert_eq!(with(7, 3), Err(Malformed::Field("length")));
        assert_eq!(with(6, 2), Err(Malformed::Field("length")));
    }

    #[test]
    fn one_kind_is_read_in_every_version() {
        let old = Writer::common(3).finish();
        assert_eq!(old[4], 1);
        assert_eq!(header(&old, 3), Ok((3, 8)));
        assert_eq!(header(&old, 4), Err(Malformed::Version(1)));
    }

    #[test]
    fn padding_is_not_read() {
        let mut bytes = Writer::new(1).text("hello", 56).finish();
        bytes.resize(56, 0);
        let (_, len) = header(&bytes, 3).unwrap();
        assert_eq!(Reader::new(&bytes, len).unwrap().text(), "hello");
        assert!(Reader::new(&bytes[..9], len).is_err());
    }

    #[test]
    fn text_is_cut_at_a_character() {
        let bytes = Writer::new(1).text("aé", HEADER_LEN + 2).finish();
        assert_eq!(&bytes[HEADER_LEN..], b"a");
        assert_eq!(
            Reader::new(b"12345678\x1b[2J\xff", 13).unwrap().text(),
            "?[2J\u{fffd}"
        );
    }
}
