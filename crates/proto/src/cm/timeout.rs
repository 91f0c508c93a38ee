//! Durations of the connection manager, from the codes in its messages.

use core::time::Duration;

use softverbs_wire::num::TimeoutCode;

/// The duration that Linux' connection manager makes of a code: powers of two of a millisecond,
/// where IBA has 4.096 µs × 2^code. Peers see the same timing from us as from Linux.
pub(super) const fn duration(code: TimeoutCode) -> Duration {
    Duration::from_millis(1 << code.get().saturating_sub(8))
}

/// The local ACK timeout of a queue pair (IBA vol 1 ch 12, REQ): twice the packet lifetime and the
/// delay of the adapter that acknowledges, in codes as Linux adds them.
pub(super) const fn ack_timeout(
    ack_delay: TimeoutCode,
    packet_lifetime: TimeoutCode,
) -> TimeoutCode {
    let delay = ack_delay.get();
    let round_trip = packet_lifetime.get() + 1;
    let sum = if round_trip >= delay {
        round_trip + (delay >= packet_lifetime.get()) as u8
    } else {
        delay + (round_trip + 1 >= delay) as u8
    };
    if sum > TimeoutCode::MAX.get() {
        TimeoutCode::MAX
    } else {
        TimeoutCode::new(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_linux() {
        for (code, millis) in [
            (0, 1),
            (8, 1),
            (16, 256),
            (17, 512),
            (20, 4096),
            (24, 65_536),
        ] {
            assert_eq!(
                duration(TimeoutCode::new(code)),
                Duration::from_millis(millis)
            );
        }
    }

    #[test]
    fn ack_timeouts_are_those_of_linux() {
        for (delay, lifetime, expected) in [
            (15, 16, 17),
            (15, 18, 19),
            (16, 16, 18),
            (20, 16, 20),
            (18, 16, 19),
            (0, 31, 31),
        ] {
            assert_eq!(
                ack_timeout(TimeoutCode::new(delay), TimeoutCode::new(lifetime)).get(),
                expected
            );
        }
    }
}
