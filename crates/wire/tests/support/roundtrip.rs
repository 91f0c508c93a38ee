//! There and back again.

use std::fmt::Display;

use softverbs_wire::{Reader, Writer};

/// If `octets` begin with a frame, emits it again and compares.
pub(crate) fn same_octets<T: Display, E>(
    octets: &[u8],
    parse: impl FnOnce(&mut Reader<'_>) -> Result<T, E>,
    emit: impl FnOnce(&T, &mut Writer<'_>),
) {
    let mut reader = Reader::new(octets);
    let Ok(frame) = parse(&mut reader) else {
        return;
    };
    let consumed = octets.len() - reader.remaining();
    let mut again = vec![0xa5; consumed];
    let mut writer = Writer::new(&mut again);
    emit(&frame, &mut writer);
    assert_eq!(writer.written(), consumed);
    assert_eq!(again, octets[..consumed], "{frame}");
}
