//! How much the tests do that try things at random: `SOFTVERBS_FUZZ=100` is a hundred times as much
//! as without it.

#![allow(unreachable_pub, reason = "a module of several test binaries")]
/// By how much the number of cases is multiplied.
pub fn effort() -> u32 {
    std::env::var("SOFTVERBS_FUZZ")
        .map_or(1, |text| text.parse().expect("SOFTVERBS_FUZZ: a number"))
}
