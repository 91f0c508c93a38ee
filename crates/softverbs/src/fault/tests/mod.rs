//! Plans as text, and what they decide.

mod judge;
mod stream;
mod text;
