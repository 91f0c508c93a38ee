//! Rates: `enum ibv_rate`, multiples of 2.5 Gbit/s, and Mbit/s.

use std::ffi::c_int;

/// Each rate with its multiple of 2.5 Gbit/s (0: none has been named) and its Mbit/s.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2500),
    (5, 2, 5000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 10, 25_781),
    (16, 40, 103_125),
    (17, 80, 206_250),
    (18, 120, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

const MAX: c_int = 0;

pub(crate) extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    match RATES.iter().find(|(value, ..)| *value == rate) {
        Some((_, multiple, _)) if *multiple > 0 => *multiple,
        _ => -1,
    }
}

pub(crate) extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    let found = RATES
        .iter()
        .find(|(_, known, _)| *known == multiple && *known > 0);
    found.map_or(MAX, |(value, ..)| *value)
}

pub(crate) extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES
        .iter()
        .find(|(value, ..)| *value == rate)
        .map_or(-1, |(_, _, mbps)| *mbps)
}

pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES
        .iter()
        .find(|(_, _, known)| *known == mbps)
        .map_or(MAX, |(value, ..)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_inverse() {
        for (rate, multiple, mbps) in RATES {
            assert_eq!(ibv_rate_to_mbps(rate), mbps);
            assert_eq!(mbps_to_ibv_rate(mbps), rate);
            if multiple > 0 {
                assert_eq!(mult_to_ibv_rate(ibv_rate_to_mult(rate)), rate);
            }
        }
        assert_eq!((ibv_rate_to_mult(0), ibv_rate_to_mbps(99)), (-1, -1));
        assert_eq!((mult_to_ibv_rate(0), mbps_to_ibv_rate(7)), (0, 0));
    }
}
