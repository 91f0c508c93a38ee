//! Defects on demand, to show that an explorer of races finds them.
//!
//! They exist in builds with the feature `mutations` and debug assertions only; in every other
//! build, and so in every release, [`Mutations`] has one value, and asking for a defect is the
//! constant `false`.

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// The passive side's requests do not wait for its peer.
    NoGate = 1,
    /// The first packet or FPDU of the peer tells nobody anything.
    NoCommEst = 2,
    /// A REP that comes again is not answered.
    NoRepAnswer = 4,
    /// Octets that were read together with the end of the MPA reply are lost.
    LosesBehindReply = 8,
}

/// Which defects there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mutations {
    #[cfg(all(feature = "mutations", debug_assertions))]
    set: u8,
}

impl Mutations {
    /// None.
    pub const NONE: Self = Self {
        #[cfg(all(feature = "mutations", debug_assertions))]
        set: 0,
    };

    /// This one.
    #[cfg(all(feature = "mutations", debug_assertions))]
    pub const fn only(mutation: Mutation) -> Self {
        Self {
            set: mutation as u8,
        }
    }

    #[cfg(all(feature = "mutations", debug_assertions))]
    pub(crate) const fn has(self, mutation: Mutation) -> bool {
        self.set & mutation as u8 != 0
    }

    #[cfg(not(all(feature = "mutations", debug_assertions)))]
    pub(crate) const fn has(self, _: Mutation) -> bool {
        false
    }
}
