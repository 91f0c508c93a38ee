//! Timers, retries and limits of an [`Endpoint`](super::endpoint::Endpoint).

use core::time::Duration;

use softverbs_wire::num::{PathMtu, TimeoutCode};

use crate::mutation::Mutations;

/// Timers, retries and limits. The default is what Linux uses, and limits that no honest peer
/// meets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How long a peer may take to answer one of our messages, and how long we say that we take:
    /// 4.096 µs × 2^code (`CMA_CM_RESPONSE_TIMEOUT`).
    pub response_timeout: TimeoutCode,
    /// How often an unanswered REQ, DREQ or SIDR_REQ is sent again, and what we ask of the peer
    /// (`CMA_MAX_CM_RETRIES`). At most 15.
    pub max_cm_retries: u8,
    /// How often a DREQ is sent again when its connection was destroyed rather than disconnected:
    /// nobody waits for the outcome, but the peer should learn of it.
    pub destroy_retries: u8,
    /// How long our adapter takes to acknowledge: 4.096 µs × 2^code.
    pub ack_delay: TimeoutCode,
    /// The service timeout of an MRA (4.096 µs × 2^code) that answers a REQ or REP which arrives
    /// again while the application has not decided. Without it such messages are ignored.
    pub delayed_mra: Option<TimeoutCode>,
    /// Longest wait for the peer that its own messages can make us set, whatever timeout or
    /// service timeout they name.
    pub max_wait: Duration,
    /// Longest time that a connection stays in TimeWait, whatever its path's timeout.
    pub max_timewait: Duration,
    /// How often a REQ that was rejected as stale (reason 10) is sent again, before the application
    /// is told: the peer needs a moment to clean up what an earlier process of ours left there.
    pub stale_retries: u8,
    /// The wait before the first of them; it doubles with each.
    pub stale_delay: Duration,
    /// Largest path MTU of ours: a REQ that wants more is rejected (reason 26).
    pub max_path_mtu: PathMtu,
    /// Most requests of one peer address that are not established yet; further ones are dropped,
    /// and tried again by an honest peer.
    pub max_half_open_per_peer: usize,
    /// Most such requests in all.
    pub max_half_open: usize,
    /// Defects on demand; none in a release.
    pub mutations: Mutations,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            response_timeout: TimeoutCode::new(20),
            max_cm_retries: 15,
            destroy_retries: 3,
            ack_delay: TimeoutCode::new(15),
            delayed_mra: Some(TimeoutCode::new(24)),
            max_wait: Duration::from_millis(1 << 17),
            max_timewait: Duration::from_millis(1 << 14),
            stale_retries: 5,
            stale_delay: Duration::from_millis(100),
            max_path_mtu: PathMtu::Mtu4096,
            max_half_open_per_peer: 4096,
            max_half_open: 16_384,
            mutations: Mutations::NONE,
        }
    }
}
