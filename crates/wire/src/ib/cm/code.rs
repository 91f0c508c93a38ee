//! The codes in the messages.

use std::fmt;

/// Declares a code: bits kept as they are, names for some of them, how the others print.
macro_rules! code {
    ($(#[$doc:meta])* $name:ident($inner:ty, $mask:expr), $kind:literal {
        $($value:literal $constant:ident $meaning:literal;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name($inner);

        impl $name {
            $(#[doc = concat!($value, ": ", $meaning, ".")]
            pub const $constant: Self = Self($value);)*

            /// All codes that have a name.
            pub const ALL: &'static [Self] = &[$(Self::$constant,)*];

            /// From the low bits of `code`.
            pub const fn new(code: $inner) -> Self {
                Self(code & $mask)
            }

            /// The code.
            pub const fn get(self) -> $inner {
                self.0
            }

            /// The code in words, if it has a name.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($meaning),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!($kind, " {}"), self.0),
                }
            }
        }
    };
}

code! {
    /// Why a connection was rejected (IBA vol 1 ch 12, REJ reason codes). Codes without a name
    /// here are kept as they are.
    RejReason(u16, u16::MAX), "reason" {
        1 NO_QP "no QP available";
        2 NO_EEC "no EE context available";
        3 NO_RESOURCES "no resources available";
        4 TIMEOUT "timeout";
        5 UNSUPPORTED_REQUEST "unsupported request";
        6 INVALID_COMM_ID "invalid communication ID";
        7 INVALID_COMM_INSTANCE "invalid communication instance";
        8 INVALID_SERVICE_ID "invalid service ID";
        9 INVALID_TRANSPORT_SERVICE "invalid transport service type";
        10 STALE_CONNECTION "stale connection";
        11 RDC_NOT_EXIST "RDC does not exist";
        12 PRIMARY_REMOTE_GID "primary remote port GID rejected";
        13 PRIMARY_REMOTE_LID "primary remote port LID rejected";
        14 PRIMARY_SL "invalid primary SL";
        15 PRIMARY_TRAFFIC_CLASS "invalid primary traffic class";
        16 PRIMARY_HOP_LIMIT "invalid primary hop limit";
        17 PRIMARY_PACKET_RATE "invalid primary packet rate";
        18 ALTERNATE_REMOTE_GID "alternate remote port GID rejected";
        19 ALTERNATE_REMOTE_LID "alternate remote port LID rejected";
        20 ALTERNATE_SL "invalid alternate SL";
        21 ALTERNATE_TRAFFIC_CLASS "invalid alternate traffic class";
        22 ALTERNATE_HOP_LIMIT "invalid alternate hop limit";
        23 ALTERNATE_PACKET_RATE "invalid alternate packet rate";
        24 PORT_AND_CM_REDIRECT "port and CM redirection";
        25 PORT_REDIRECT "port redirection";
        26 INVALID_PATH_MTU "invalid path MTU";
        27 INSUFFICIENT_RESPONDER_RESOURCES "insufficient responder resources";
        28 CONSUMER "consumer reject";
        29 RNR_RETRY_COUNT "RNR retry count reject";
        30 DUPLICATE_LOCAL_COMM_ID "duplicate local communication ID";
        31 INVALID_CLASS_VERSION "invalid class version";
        32 PRIMARY_FLOW_LABEL "invalid primary flow label";
        33 ALTERNATE_FLOW_LABEL "invalid alternate flow label";
        35 VENDOR_OPTION_NOT_SUPPORTED "vendor option not supported";
    }
}

code! {
    /// Which message an MRA or a REJ is about, in two bits (IBA vol 1 ch 12).
    MessageKind(u8, 0x03), "message" {
        0 REQ "REQ";
        1 REP "REP";
        2 OTHER "LAP or no message";
    }
}

code! {
    /// The transport service type of a connection, in two bits (IBA vol 1 ch 12, REQ).
    TransportService(u8, 0x03), "transport service" {
        0 RC "RC";
        1 UC "UC";
        2 RD "RD";
        3 EXTENDED "extended transport";
    }
}

code! {
    /// The outcome of a service ID resolution (IBA vol 1 ch 12, SIDR_REP).
    SidrStatus(u8, u8::MAX), "status" {
        0 VALID "QPN and Q_Key are valid";
        1 UNSUPPORTED "service ID not supported";
        2 REJECT "rejected by service provider";
        3 NO_QP "no QP available";
        4 REDIRECT "request should be redirected";
        5 UNSUPPORTED_VERSION "unsupported class version";
    }
}

code! {
    /// The outcome of an attempt to load an alternate path (IBA vol 1 ch 12, APR).
    ApStatus(u8, u8::MAX), "status" {
        0 LOADED "alternate path loaded";
        1 INVALID_COMM_ID "invalid communication ID";
        2 UNSUPPORTED "alternate paths not supported";
        3 REJECT "path rejected";
        4 REDIRECT "request should be redirected";
        5 IS_CURRENT "path is the current one";
        6 QPN_EECN_MISMATCH "QPN or EECN mismatch";
        7 INVALID_LID "LID rejected";
        8 INVALID_GID "GID rejected";
        9 INVALID_FLOW_LABEL "flow label rejected";
        10 INVALID_TRAFFIC_CLASS "traffic class rejected";
        11 INVALID_HOP_LIMIT "hop limit rejected";
        12 INVALID_PACKET_RATE "packet rate rejected";
        13 INVALID_SL "SL rejected";
    }
}
