//! Whether acknowledges wait for what the application does next.
//!
//! An application thread that has received a message answers it soon, or polls again. Its
//! acknowledge waits for the first of both: behind the answer it costs no call of its own. When
//! neither comes until the engine's thread has looked twice, the application works on its messages for
//! long, and the peer would wait for nothing: then some are acknowledged at once, and more of them
//! each time that it happens again.

/// Messages that are acknowledged at once after the first late one.
const IMPATIENT: u32 = 8;
/// How often that doubles.
const MOST_SLOW: u32 = 6;

/// What a queue pair has seen of its application.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// So many messages are acknowledged at once.
    impatient: u32,
    /// How often in a row the application was slow.
    slow: u32,
}

impl Patience {
    /// What had waited goes out now; `late` if neither an answer nor a poll came in time.
    pub(crate) const fn end(&mut self, late: bool) {
        if late {
            let doubled = if self.slow < MOST_SLOW {
                self.slow
            } else {
                MOST_SLOW
            };
            self.impatient = IMPATIENT << doubled;
            self.slow = self.slow.saturating_add(1);
        } else {
            self.slow = 0;
        }
    }

    /// Messages have come. Whether their acknowledge may wait.
    pub(super) const fn begin(&mut self) -> bool {
        self.impatient = self.impatient.saturating_sub(1);
        self.impatient == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_once(patience: &mut Patience) -> usize {
        std::iter::from_fn(|| (!patience.begin()).then_some(())).count()
    }

    #[test]
    fn waits_less_and_less_for_a_slow_application() {
        let mut patience = Patience::default();
        assert_eq!(at_once(&mut patience), 0);
        let counts: Vec<usize> = (0..9)
            .map(|_| {
                patience.end(true);
                at_once(&mut patience)
            })
            .collect();
        assert_eq!(counts, [7, 15, 31, 63, 127, 255, 511, 511, 511]);
        patience.end(false);
        assert_eq!(at_once(&mut patience), 0);
        patience.end(true);
        assert_eq!(
            at_once(&mut patience),
            7,
            "forgotten when it was quick again"
        );
    }
}
