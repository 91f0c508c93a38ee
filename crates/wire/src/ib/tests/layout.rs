//! Where the fields of a header are: each is filled with ones, and nothing else must change.

use std::fmt::{Debug, Display};

use crate::codec::{Malformed, Reader, Writer, emitted_over_noise};

/// A header with one field full of ones, and where on the wire these are: the octet, the bit in
/// it from its top, the number of bits.
pub(crate) struct Filled<T> {
    pub(crate) header: T,
    pub(crate) at: (usize, usize),
    pub(crate) width: usize,
}

/// Checks that every bit of a header belongs to exactly one field, there where the table says.
pub(crate) fn check<T: Copy + PartialEq + Debug + Display>(
    len: usize,
    zero: T,
    fields: &[Filled<T>],
    emit: impl Fn(&T, &mut Writer<'_>),
    parse: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
) {
    let octets_of = |header: &T| emitted_over_noise(len, |writer| emit(header, writer));
    assert_eq!(octets_of(&zero), vec![0; len]);
    assert_eq!(Reader::all(&vec![0; len], &parse), Ok(zero));
    let mut covered = vec![0; len];
    for Filled { header, at, width } in fields {
        let mut expected = vec![0; len];
        for bit in at.0 * 8 + at.1..at.0 * 8 + at.1 + width {
            expected[bit / 8] |= 0x80 >> (bit % 8);
        }
        assert_eq!(octets_of(header), expected, "{header:?}");
        assert_eq!(Reader::all(&expected, &parse), Ok(*header));
        assert!(!header.to_string().is_empty());
        for (covered, field) in covered.iter_mut().zip(&expected) {
            assert_eq!(*covered & field, 0, "two fields in one place: {header:?}");
            *covered |= field;
        }
    }
    assert_eq!(covered, vec![0xff; len], "bits that are of no field");
    for len in 0..len {
        let mut reader = Reader::new(&covered[..len]);
        assert_eq!(parse(&mut reader), Err(Malformed::Truncated));
        assert_eq!(reader.remaining(), len);
    }
}

/// A table of fields: name, ones, place.
macro_rules! layout {
    ($type:ident, $len:expr, $zero:expr, {
        $($($field:tt).+ = $ones:expr, [$octet:literal $bit:literal] $width:expr;)*
    }) => {{
        let zero: $type = $zero;
        let fields = [$({
            let mut header = zero;
            header.$($field).+ = $ones;
            $crate::ib::tests::layout::Filled {
                header,
                at: ($octet, $bit),
                width: $width,
            }
        },)*];
        $crate::ib::tests::layout::check(
            $len,
            zero,
            &fields,
            |header, writer| header.emit(writer),
            $type::parse,
        );
        for field in fields {
            let octets = field.header.to_bytes();
            let written = crate::codec::emitted_over_noise($len, |writer| {
                field.header.emit(writer);
            });
            assert_eq!(octets[..], written);
        }
    }};
}
pub(crate) use layout;
