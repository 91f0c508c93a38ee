//! Sizes and times as users write them.

use std::time::Duration;

/// Parses a number of octets: `64`, `4K`, `4KiB`, `1M`, `2GiB`. The suffixes count in powers of
/// 1024, in either case; `KB` is refused, since half of its users mean 1000.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a size such as 4096, 64K or 1MiB"))?;
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "kb" | "mb" | "gb" => {
            return Err(format!(
                "`{suffix}` may mean powers of 1000 or of 1024: write K, M or G (powers of 1024)"
            ));
        }
        _ => return Err(format!("`{suffix}` is not a suffix: use K, M or G")),
    };
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("`{text}` is too large"))
}

/// Parses a number of seconds, fractions allowed, and not zero.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .strip_suffix('s')
        .unwrap_or(text)
        .parse()
        .map_err(|_| format!("`{text}` is not a number of seconds"))?;
    // A week is enough for everyone, and keeps all sums of times far from overflow.
    if !(0.001..=604_800.0).contains(&seconds) {
        return Err(format!("`{text}` is outside of 0.001 to 604800 seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_suffix() {
        for (text, octets) in [
            ("0", 0),
            ("2", 2),
            ("17b", 17),
            ("1K", 1024),
            ("64k", 65_536),
            ("64KiB", 65_536),
            ("8M", 8 << 20),
            ("8mib", 8 << 20),
            ("1G", 1 << 30),
            ("3GiB", 3 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(octets), "{text}");
        }
    }

    #[test]
    fn sizes_that_are_none() {
        for text in [
            "",
            "K",
            "-1",
            "1.5K",
            "1T",
            "1 K",
            "99999999999999999999",
            "18446744073709551615K",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_size("64KB").unwrap_err().contains("1024"));
    }

    #[test]
    fn seconds() {
        assert_eq!(parse_seconds("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_seconds("0.5s"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "x", "nan", "inf", "1e9"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
