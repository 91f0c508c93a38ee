//! Explores what races can do to Softverbs: drives the real state machines of `proto` on both ends,
//! and a network between them, through every interleaving up to a bound.
//!
//! A [`World`](world::World) is a state of both ends, with the steps that can happen in it: a packet
//! arrives, arrives twice or is lost; a timer fires; an application posts, accepts, disconnects.
//! [`explore`](explore::explore) takes all of them, in every order, and checks each state; what is
//! wrong comes back as the shortest way to it, drawn as a [`ladder`] and as a list of steps that
//! [`replay`](replay::replay) takes again.
//!
//! The applications are as free as real ones: they may do whatever is allowed, at any moment or
//! never.

#![forbid(unsafe_code)]

pub mod app;
pub mod bounds;
mod end;
pub mod explore;
pub mod ib;
mod inbox;
pub mod iwarp;
pub mod ladder;
mod net;
pub mod replay;
pub mod scenario;
mod shared;
pub mod world;
