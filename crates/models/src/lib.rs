//! The hand-made concurrent pieces of `softverbs`, word for word, with loom's atomics and locks in
//! place of the standard ones. `cargo test -p softverbs-models` takes them through every
//! interleaving of a few threads, and every value that the memory model lets a load have.

#![allow(dead_code, reason = "no model uses all of a piece")]

/// As `softverbs::sync`.
#[allow(unreachable_pub, reason = "named as in softverbs")]
mod sync {
    pub(crate) use loom::sync::{Mutex, atomic};

    pub(crate) fn wait(turns: &mut u64) {
        *turns += 1;
        loom::thread::yield_now();
    }
}

mod region {
    #[cfg(test)]
    mod tests;
    #[path = "../../../softverbs/src/mr_table/word.rs"]
    mod word;
}

mod manager {
    #[path = "../../../softverbs/src/cm/ib/pump.rs"]
    mod pump;
    #[cfg(test)]
    mod tests;
}

mod lane {
    #[path = "../../../softverbs/src/same_host/board.rs"]
    mod board;
    #[path = "../../../softverbs/src/same_host/flow.rs"]
    mod flow;
    #[path = "../../../softverbs/src/same_host/line.rs"]
    mod line;
    #[cfg(test)]
    mod tests;
    #[path = "../../../softverbs/src/same_host/wake.rs"]
    mod wake;
}

mod queue_pair {
    #[path = "../../../softverbs/src/qp/left.rs"]
    mod left;
    #[cfg(test)]
    mod tests;
}
