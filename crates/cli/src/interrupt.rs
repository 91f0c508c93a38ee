//! Ctrl-C and SIGTERM: the first asks for an orderly end, a second one ends at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::{Failure, Outcome};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// How long anything may sleep before it looks whether it should end.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Starts to listen for the signals.
pub(crate) fn install() -> Outcome<()> {
    let asked = ASKED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag down, a second one finds it up and has
        // its usual effect.
        flag::register_conditional_default(signal, asked.clone())
            .and_then(|_| flag::register(signal, asked.clone()))
            .map_err(|error| Failure::run(format!("cannot handle signals: {error}")))?;
    }
    Ok(())
}

/// Whether the end was asked for.
pub(crate) fn asked() -> bool {
    ASKED
        .get()
        .is_some_and(|asked| asked.load(Ordering::Relaxed))
}

/// Ends what is going on if the user asked for that.
pub(crate) fn check() -> Outcome<()> {
    if asked() {
        Err(Failure::Interrupted)
    } else {
        Ok(())
    }
}
