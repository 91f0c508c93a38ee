//! What a receiver on a plain UDP socket cannot see and the ICRC covers: the IPv4 identification
//! and the flag beside it.
//!
//! A CRC is linear: between two packets of the same length that differ in one word, the difference
//! of their CRCs depends on nothing but the difference of the words and its distance from the end.
//! And it is invertible: shifting the difference of the CRCs back over that distance gives the
//! difference of the words. The word of identification, flags and fragment offset has 32 bits, as
//! the CRC has, so there always is exactly one word that explains a CRC; it is believable if the
//! fragment bits that cannot have been set are clear.
//!
//! The shift is a multiplication by a power of x⁻⁸ modulo the CRC's polynomial. The powers come
//! from two tables, one for the low and one for the high octet of the exponent.

use std::fmt;

use super::{Icrc, UDP_LEN};

/// The second word of an IPv4 header as far as it varies between packets that are not fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ipv4Ident {
    /// Identification.
    pub id: u16,
    /// DF: routers must not fragment the packet.
    pub dont_fragment: bool,
}

impl Ipv4Ident {
    /// Identification 0 and DF: what Linux sends from an unconnected socket with
    /// `IP_PMTUDISC_DO`.
    pub const ZERO: Self = Self::new(0);

    const DONT_FRAGMENT: u16 = 0x4000;

    /// With DF.
    pub const fn new(id: u16) -> Self {
        Self {
            id,
            dont_fragment: true,
        }
    }

    /// The octets of identification, flags and fragment offset.
    pub(super) fn to_bytes(self) -> [u8; 4] {
        let [high, low] = self.id.to_be_bytes();
        let [flags, offset] = self.flags().to_be_bytes();
        [high, low, flags, offset]
    }

    const fn flags(self) -> u16 {
        if self.dont_fragment {
            Self::DONT_FRAGMENT
        } else {
            0
        }
    }
}

impl fmt::Display for Ipv4Ident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ID {:#06x}", self.id)?;
        if self.dont_fragment {
            f.write_str(" DF")?;
        }
        Ok(())
    }
}

impl Icrc {
    /// Which identification explains the ICRC that a packet carries.
    ///
    /// `self` is the finished ICRC of what was received, made with the identification `assumed`;
    /// `received` is what the packet carries, `datagram_len` as in [`new_v4`](Self::new_v4). The
    /// answer is `assumed` itself if the ICRCs are equal, which is all of the check and costs
    /// nothing; a good guess is the one after the peer's last. Otherwise it is the one
    /// identification that a sender could have used, if there is one: for a corrupted packet there
    /// is with a probability of 2⁻¹⁵, or 2⁻¹⁶ if the caller insists on the DF that it expects.
    pub fn explain(
        self,
        assumed: Ipv4Ident,
        received: [u8; Self::LEN],
        datagram_len: usize,
    ) -> Option<Ipv4Ident> {
        let difference = self.0 ^ Self::from_wire(received).0;
        if difference == 0 {
            return Some(assumed);
        }
        // Of the IP header, the protocol word and the addresses follow the identification.
        let behind = datagram_len
            .checked_sub(Self::LEN)?
            .checked_add(12 + UDP_LEN)?;
        let word = multiply(difference, inverse_power(behind.checked_add(4)?)?);
        let [high, low, flags, offset] = word.to_le_bytes();
        let id = u16::from_be_bytes([high, low]);
        let flags = u16::from_be_bytes([flags, offset]);
        match flags {
            0 | Ipv4Ident::DONT_FRAGMENT => Some(Ipv4Ident {
                id: assumed.id ^ id,
                dont_fragment: assumed.dont_fragment ^ (flags != 0),
            }),
            _ => None,
        }
    }
}

/// The polynomial, reflected: the coefficient of x⁰ is the top bit, that of x³¹ the lowest, and
/// x³² is implied.
const POLYNOMIAL: u32 = 0xedb8_8320;
const ONE: u32 = 1 << 31;

/// x⁻⁸ᵏ for k from 0 to 255.
static LOW: [u32; 256] = powers(octets_inverse(1));
/// x⁻⁸ᵏ for the multiples of 256 up to 255 · 256.
static HIGH: [u32; 256] = powers(octets_inverse(256));

/// x⁻⁸ᵏ, for lengths that an IP packet can have.
fn inverse_power(octets: usize) -> Option<u32> {
    let [high, low] = u16::try_from(octets).ok()?.to_be_bytes();
    Some(multiply(HIGH[usize::from(high)], LOW[usize::from(low)]))
}

const fn powers(base: u32) -> [u32; 256] {
    let mut powers = [ONE; 256];
    let mut exponent = 1;
    while exponent < powers.len() {
        powers[exponent] = multiply(powers[exponent - 1], base);
        exponent += 1;
    }
    powers
}

/// x⁻⁸ᵏ, slowly.
const fn octets_inverse(octets: u32) -> u32 {
    let mut result = ONE;
    let mut bits = 0;
    while bits < 8 * octets {
        result = divide_by_x(result);
        bits += 1;
    }
    result
}

const fn multiply_by_x(value: u32) -> u32 {
    // What x³¹ becomes, x³², is the rest of the polynomial.
    (value >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(value & 1))
}

const fn divide_by_x(value: u32) -> u32 {
    // The polynomial has x⁰, so adding it if need be clears the coefficient that cannot be divided.
    let odd = value >> 31;
    ((value ^ (POLYNOMIAL & 0_u32.wrapping_sub(odd))) << 1) | odd
}

const fn multiply(left: u32, right: u32) -> u32 {
    let (mut product, mut left, mut power) = (0, left, right);
    // Coefficients of `left` from x⁰ up, against `right` times that power of x.
    let mut bit = 0;
    while bit < 32 {
        product ^= power & 0_u32.wrapping_sub(left >> 31);
        left <<= 1;
        power = multiply_by_x(power);
        bit += 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: u32 = ONE >> 1;

    #[test]
    fn x_and_its_inverse() {
        assert_eq!(multiply_by_x(ONE), X);
        assert_eq!(divide_by_x(X), ONE);
        for value in [ONE, X, 1, 0xdead_beef, u32::MAX] {
            assert_eq!(divide_by_x(multiply_by_x(value)), value);
            assert_eq!(multiply_by_x(divide_by_x(value)), value);
            assert_eq!(multiply(value, ONE), value);
            assert_eq!(multiply(X, value), multiply_by_x(value));
            assert_eq!(multiply(value, 0), 0);
        }
    }

    #[test]
    fn powers_by_table_are_powers() {
        let mut power = ONE;
        for octets in 0..=usize::from(u16::MAX) {
            assert_eq!(inverse_power(octets), Some(power), "{octets} octets");
            for _ in 0..8 {
                power = divide_by_x(power);
            }
        }
        assert_eq!(inverse_power(0x1_0000), None);
    }
}
