//! Keys of memory regions: numbers that nobody guesses, and that lead back to their slot.

/// A secret permutation of the 32-bit numbers: the block cipher Speck32/64 (Beaulieu et al., "The
/// Simon and Speck Families of Lightweight Block Ciphers", 2013).
///
/// Being a permutation, it gives distinct keys to distinct slots; being a cipher, it gives no clue
/// about other keys to a peer that knows some.
pub(super) struct Cipher {
    round_keys: [u16; ROUNDS],
}

const ROUNDS: usize = 22;

impl Cipher {
    /// From the secret, least significant word first.
    pub(super) fn new(secret: [u16; 4]) -> Self {
        let [mut key, mut l0, mut l1, mut l2] = secret;
        let mut round = 0_u16;
        let round_keys = [(); ROUNDS].map(|()| {
            let this = key;
            let l3 = key.wrapping_add(l0.rotate_right(7)) ^ round;
            key = key.rotate_left(2) ^ l3;
            (l0, l1, l2) = (l1, l2, l3);
            round += 1;
            this
        });
        Self { round_keys }
    }

    pub(super) fn encrypt(&self, plain: u32) -> u32 {
        let (mut x, mut y) = halves(plain);
        for key in self.round_keys {
            x = x.rotate_right(7).wrapping_add(y) ^ key;
            y = y.rotate_left(2) ^ x;
        }
        join(x, y)
    }

    pub(super) fn decrypt(&self, cipher: u32) -> u32 {
        let (mut x, mut y) = halves(cipher);
        for key in self.round_keys.iter().rev() {
            y = (x ^ y).rotate_right(2);
            x = (x ^ key).wrapping_sub(y).rotate_left(7);
        }
        join(x, y)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
const fn halves(word: u32) -> (u16, u16) {
    ((word >> 16) as u16, word as u16)
}

fn join(high: u16, low: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_test_vector() {
        let cipher = Cipher::new([0x0100, 0x0908, 0x1110, 0x1918]);
        assert_eq!(cipher.encrypt(0x6574_694c), 0xa868_42f2);
        assert_eq!(cipher.decrypt(0xa868_42f2), 0x6574_694c);
    }

    #[test]
    fn is_a_permutation() {
        let cipher = Cipher::new([1, 2, 3, 4]);
        for word in (0..u32::MAX).step_by(9973) {
            assert_eq!(cipher.decrypt(cipher.encrypt(word)), word);
        }
    }
}
