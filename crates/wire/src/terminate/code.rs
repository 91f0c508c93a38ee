//! The error codes of a Terminate message (RFC 5040 §4.8, RFC 5041 §7, RFC 5044 §8, RFC 6581 §8).

use std::fmt;

/// An error as the wire states it: which layer, what type of error, which error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminateTriple {
    /// 0 RDMAP, 1 DDP, 2 the layer below (MPA). Four bits.
    pub layer: u8,
    /// The error type within the layer. Four bits.
    pub etype: u8,
    /// The error within its type.
    pub code: u8,
}

impl TerminateTriple {
    /// From the plain numbers; of `layer` and `etype` the low four bits.
    pub const fn new(layer: u8, etype: u8, code: u8) -> Self {
        Self {
            layer: layer & 0x0f,
            etype: etype & 0x0f,
            code,
        }
    }
}

impl fmt::Display for TerminateTriple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "layer {} type {} code {:#04x}",
            self.layer, self.etype, self.code
        )
    }
}

/// The table of codes: name, triple, meaning. One line each, so that the two directions and the
/// text cannot disagree.
macro_rules! terminate_codes {
    ($($name:ident = ($layer:literal, $etype:literal, $code:literal) $meaning:literal;)*) => {
        /// An error that ends a stream.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum TerminateCode {
            $(#[doc = concat!("Layer ", $layer, ", type ", $etype, ": ", $meaning, ".")] $name,)*
            /// A triple that no specification defines. Made by
            /// [`from_triple`](Self::from_triple) only for such.
            Unknown(TerminateTriple),
        }

        impl TerminateCode {
            /// All codes that a specification defines.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code that a triple stands for.
            pub const fn from_triple(triple: TerminateTriple) -> Self {
                match (triple.layer, triple.etype, triple.code) {
                    $(($layer, $etype, $code) => Self::$name,)*
                    _ => Self::Unknown(triple),
                }
            }

            /// The triple that goes on the wire.
            pub const fn to_triple(self) -> TerminateTriple {
                match self {
                    $(Self::$name => TerminateTriple::new($layer, $etype, $code),)*
                    Self::Unknown(triple) => triple,
                }
            }

            /// The error in words, if a specification defines it.
            pub const fn meaning(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($meaning),)*
                    // These two types have no codes of their own: any octet may be there.
                    Self::Unknown(TerminateTriple { layer: 0, etype: 0, .. }) => {
                        Self::RdmapLocalCatastrophic.meaning()
                    }
                    Self::Unknown(TerminateTriple { layer: 1, etype: 0, .. }) => {
                        Self::DdpLocalCatastrophic.meaning()
                    }
                    Self::Unknown(_) => None,
                }
            }
        }
    };
}

terminate_codes! {
    // RDMAP (RFC 5040 §4.8)
    RdmapLocalCatastrophic = (0, 0, 0x00) "local catastrophic error";
    ProtectionInvalidStag = (0, 1, 0x00) "invalid STag";
    ProtectionBounds = (0, 1, 0x01) "access outside of the buffer";
    ProtectionAccess = (0, 1, 0x02) "access rights forbid the operation";
    ProtectionStagNotAssociated = (0, 1, 0x03) "STag belongs to another stream";
    ProtectionToWrap = (0, 1, 0x04) "tagged offset wraps around";
    ProtectionCannotInvalidate = (0, 1, 0x09) "STag cannot be invalidated";
    ProtectionUnspecified = (0, 1, 0xff) "protection error";
    OperationRdmapVersion = (0, 2, 0x05) "invalid RDMAP version";
    OperationUnexpectedOpcode = (0, 2, 0x06) "unexpected opcode";
    OperationCatastrophicStream = (0, 2, 0x07) "catastrophic error of this stream";
    OperationCatastrophicGlobal = (0, 2, 0x08) "catastrophic error beyond this stream";
    OperationCannotInvalidate = (0, 2, 0x09) "operation cannot invalidate the STag";
    OperationUnspecified = (0, 2, 0xff) "operation error";
    // DDP (RFC 5041 §7)
    DdpLocalCatastrophic = (1, 0, 0x00) "local catastrophic error of DDP";
    TaggedInvalidStag = (1, 1, 0x00) "invalid STag in a tagged segment";
    TaggedBounds = (1, 1, 0x01) "tagged segment exceeds its buffer";
    TaggedStagNotAssociated = (1, 1, 0x02) "STag of a tagged segment belongs to another stream";
    TaggedToWrap = (1, 1, 0x03) "tagged offset of a segment wraps around";
    TaggedDdpVersion = (1, 1, 0x04) "invalid DDP version in a tagged segment";
    UntaggedInvalidQueue = (1, 2, 0x01) "invalid queue number";
    UntaggedNoBuffer = (1, 2, 0x02) "no buffer available for the message";
    UntaggedMsnRange = (1, 2, 0x03) "message sequence number out of range";
    UntaggedInvalidOffset = (1, 2, 0x04) "invalid message offset";
    UntaggedTooLong = (1, 2, 0x05) "message too long for its buffer";
    UntaggedDdpVersion = (1, 2, 0x06) "invalid DDP version in an untagged segment";
    // MPA (RFC 5044 §8; the last three RFC 6581 §8)
    MpaStreamLost = (2, 0, 0x01) "TCP connection closed or lost";
    MpaCrc = (2, 0, 0x02) "CRC does not match";
    MpaMarker = (2, 0, 0x03) "marker and length do not agree";
    MpaInvalidFrame = (2, 0, 0x04) "invalid MPA request or reply";
    MpaLocalCatastrophic = (2, 0, 0x05) "local catastrophic error of MPA";
    MpaInsufficientIrd = (2, 0, 0x06) "not enough inbound read resources";
    MpaNoMatchingRtr = (2, 0, 0x07) "no ready-to-receive indication in common";
}

impl From<TerminateTriple> for TerminateCode {
    fn from(triple: TerminateTriple) -> Self {
        Self::from_triple(triple)
    }
}

impl From<TerminateCode> for TerminateTriple {
    fn from(code: TerminateCode) -> Self {
        code.to_triple()
    }
}

impl fmt::Display for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let triple = self.to_triple();
        match self.meaning() {
            Some(meaning) => write!(f, "{meaning} ({triple})"),
            None => write!(f, "unknown error ({triple})"),
        }
    }
}
