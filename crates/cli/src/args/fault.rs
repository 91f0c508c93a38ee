//! The value of `--fault`.

use softverbs::fault::{ParseError, Plan};

/// Reads what is to be disturbed.
pub(crate) fn parse_fault(text: &str) -> Result<Plan, ParseError> {
    Plan::parse(text)
}
