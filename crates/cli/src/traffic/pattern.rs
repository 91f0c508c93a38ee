//! The payload under `--check`: every octet depends on who sent the message, on which lane, and
//! which message it is.

/// Names one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The initiator sent it.
    pub(crate) from_initiator: bool,
    /// Number of the lane.
    pub(crate) lane: u16,
    /// Number of the round.
    pub(crate) round: u32,
    /// Number of the message in that round and lane.
    pub(crate) message: u64,
}

impl Mark {
    /// A number that differs between all messages of a run.
    fn seed(self) -> u64 {
        let mut seed = self.message;
        seed = mix(seed ^ u64::from(self.round) << 40);
        mix(seed ^ u64::from(self.lane) << 1 ^ u64::from(self.from_initiator))
    }

    /// Writes the payload of this message.
    pub(crate) fn fill(self, payload: &mut [u8]) {
        let mut words = Words(self.seed());
        let mut chunks = payload.chunks_exact_mut(8);
        for chunk in &mut chunks {
            chunk.copy_from_slice(&words.next().to_le_bytes());
        }
        let rest = chunks.into_remainder();
        let last = words.next().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// The offset of the first octet that is not of this message.
    pub(crate) fn first_wrong(self, payload: &[u8]) -> Option<usize> {
        let mut words = Words(self.seed());
        let mut at = 0;
        for chunk in payload.chunks(8) {
            let expected = words.next().to_le_bytes();
            if *chunk != expected[..chunk.len()] {
                let inside = chunk
                    .iter()
                    .zip(expected)
                    .position(|(got, want)| *got != want);
                return Some(at + inside.unwrap_or(0));
            }
            at += chunk.len();
        }
        None
    }
}

/// The words of a payload: one step of a linear congruential generator each, so that filling and
/// verifying keep up with the transfer.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // The low bits of such a generator have short periods; swapping puts them where they
        // are seen last.
        self.0.swap_bytes()
    }
}

/// Spreads the bits of a number over all of it (the finalizer of SplitMix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Mark = Mark {
        from_initiator: true,
        lane: 3,
        round: 2,
        message: 1000,
    };

    #[test]
    fn what_was_filled_is_right() {
        for len in [0, 1, 7, 8, 9, 64, 1001] {
            let mut payload = vec![0; len];
            MARK.fill(&mut payload);
            assert_eq!(MARK.first_wrong(&payload), None, "{len}");
        }
    }

    #[test]
    fn every_octet_counts() {
        let mut payload = vec![0; 101];
        MARK.fill(&mut payload);
        for at in 0..payload.len() {
            payload[at] ^= 1;
            assert_eq!(MARK.first_wrong(&payload), Some(at));
            payload[at] ^= 1;
        }
    }

    #[test]
    fn messages_differ_in_all_that_names_them() {
        let mut payload = vec![0; 16];
        MARK.fill(&mut payload);
        for other in [
            Mark {
                from_initiator: false,
                ..MARK
            },
            Mark { lane: 4, ..MARK },
            Mark { round: 3, ..MARK },
            Mark {
                message: 1001,
                ..MARK
            },
        ] {
            assert!(other.first_wrong(&payload).is_some(), "{other:?}");
        }
    }
}
