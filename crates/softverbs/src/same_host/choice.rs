//! The choice of the user.

use std::env::{self, VarError};
use std::str::FromStr;

use crate::error::{Error, Result};

/// Name of the variable that chooses.
const VARIABLE: &str = "SOFTVERBS_SAME_HOST";

/// What goes between processes of one user on one host goes by. The environment variable
/// `SOFTVERBS_SAME_HOST` chooses, for what a process sends and for what others send it; something else
/// than a name there makes every use of the library fail with EINVAL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameHost {
    /// Shared memory, once there is enough of it to be worth it. Nothing is to be seen of that on the
    /// loopback interface.
    #[default]
    Memory,
    /// UDP (RoCEv2) and TCP (iWARP), as to other hosts.
    Network,
}

impl SameHost {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Memory, Self::Network];

    /// The variable.
    pub const VARIABLE: &str = VARIABLE;

    /// Its name in the variable.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Network => "network",
        }
    }

    /// What the environment says.
    pub(crate) fn of_environment() -> Result<Self> {
        match env::var(VARIABLE) {
            Ok(name) if !name.trim().is_empty() => name.parse(),
            Ok(_) | Err(VarError::NotPresent) => Ok(Self::default()),
            Err(error) => Err(Error::invalid(VARIABLE, error.to_string())),
        }
    }
}

impl FromStr for SameHost {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|way| way.name() == name)
            .ok_or_else(|| {
                let why = format!("{name:?} is neither `memory` nor `network`");
                Error::invalid(VARIABLE, why)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for way in SameHost::ALL {
            assert_eq!(way.name().parse(), Ok(way));
        }
        assert!("tcp".parse::<SameHost>().is_err());
    }
}
