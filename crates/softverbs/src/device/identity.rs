//! Whose vendor and part numbers devices report.

use std::str::FromStr;
use std::sync::OnceLock;

use crate::error::{Error, Result};

/// Name of the variable that chooses.
const VARIABLE: &str = "SOFTVERBS_AS";

/// Whose vendor and part numbers devices report; some programs choose their features by them. The
/// environment variable `SOFTVERBS_AS` chooses, once for a process; an unknown name there counts as
/// [`Softverbs`](Self::Softverbs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// A number of our own, that nobody can be registered by: one of local administration.
    #[default]
    Softverbs,
    /// Mellanox ConnectX-5.
    Mlx5,
    /// Linux's software RoCE.
    Rxe,
    /// Linux's software iWARP.
    Siw,
}

impl Identity {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Softverbs, Self::Mlx5, Self::Rxe, Self::Siw];

    /// Its name in `SOFTVERBS_AS`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Softverbs => "softverbs",
            Self::Mlx5 => "mlx5",
            Self::Rxe => "rxe",
            Self::Siw => "siw",
        }
    }

    /// `vendor_id` of the device.
    pub const fn vendor_id(self) -> u32 {
        match self {
            // The letters "SV" behind the bit of local administration.
            Self::Softverbs => 0x02_5356,
            Self::Mlx5 => 0x02c9,
            Self::Rxe => 0xff_ffff,
            // The letters "bmt".
            Self::Siw => 0x62_6d74,
        }
    }

    /// `vendor_part_id` of the device.
    pub const fn vendor_part_id(self) -> u32 {
        match self {
            Self::Mlx5 => 4119,
            Self::Softverbs | Self::Rxe | Self::Siw => 0,
        }
    }

    /// That of this process.
    pub(super) fn of_process() -> Self {
        static IDENTITY: OnceLock<Identity> = OnceLock::new();
        *IDENTITY.get_or_init(|| {
            std::env::var(VARIABLE)
                .ok()
                .and_then(|name| name.parse().ok())
                .unwrap_or_default()
        })
    }
}

impl FromStr for Identity {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|identity| identity.name() == name)
            .ok_or_else(|| Error::invalid(VARIABLE, format!("{name:?} is no identity")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for identity in Identity::ALL {
            assert_eq!(identity.name().parse(), Ok(identity));
        }
        assert!("mlx4".parse::<Identity>().is_err());
    }
}
