//! What the ends tell each other, between the messages that are measured: Sends without content,
//! whose length says what they mean.
//!
//! No content, because all receives of a queue pair share one buffer: the next message may have
//! been placed before anyone looked at this one. The lengths are the smallest six that are not
//! the length of the measured messages.
//!
//! They use the data queue pairs, and so are in order with the messages. An unreliable lane has a
//! reliable queue pair beside it, on which notes carry a number as immediate data.

/// A note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// To the sender of messages: another batch of receives is posted. Of an unreliable lane: all
    /// messages before this number have arrived or are lost.
    Credit,
    /// From the sender of messages: that was the last one of this round.
    End,
    /// To the sender of messages: everything up to your End has arrived. Of an unreliable lane:
    /// everything that will, and the last message came so many microseconds ago.
    Ack,
    /// From an initiator whose target sees no completions: still here.
    Alive,
    /// The answer to it.
    AliveAck,
    /// From the sender of an unreliable lane: all messages before this number have been sent, and
    /// no Credit comes. The answer is a Credit.
    Probe,
}

/// The longest note.
pub(crate) const LONGEST: u32 = 6;

/// Notes that may be under way in one direction: four credits (a window is four batches), an End,
/// an Ack, and an Alive and its answer or a Probe and its answer. So many receives are posted
/// beyond the window.
pub(crate) const RECEIVES: u32 = 8;

const ALL: [Note; 6] = [
    Note::Credit,
    Note::End,
    Note::Ack,
    Note::Alive,
    Note::AliveAck,
    Note::Probe,
];

impl Note {
    /// Its length where the messages have `size` octets.
    pub(crate) fn len(self, size: u32) -> u32 {
        let index = match self {
            Self::Credit => 0,
            Self::End => 1,
            Self::Ack => 2,
            Self::Alive => 3,
            Self::AliveAck => 4,
            Self::Probe => 5,
        };
        if index < size { index } else { index + 1 }
    }

    /// The note of this length, or `None` for a message that is measured (or is nothing we know).
    pub(crate) fn of_len(len: u32, size: u32) -> Option<Self> {
        ALL.into_iter().find(|note| note.len(size) == len)
    }
}

/// How many received messages one Credit stands for.
pub(crate) fn credit_batch(window: u32) -> u32 {
    window.div_ceil(4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_tell_notes_from_messages_and_from_each_other() {
        for size in 1..10 {
            let lengths = ALL.map(|note| note.len(size));
            for (index, len) in lengths.into_iter().enumerate() {
                assert!(len != size && len <= LONGEST, "size {size}: {len}");
                assert_eq!(Note::of_len(len, size), Some(ALL[index]));
            }
            assert_eq!(Note::of_len(size, size), None);
        }
        assert_eq!(Note::of_len(7, 1), None);
    }

    #[test]
    fn at_most_four_credits_are_under_way() {
        for window in 1..500 {
            assert!(window / credit_batch(window) <= 4);
        }
    }
}
