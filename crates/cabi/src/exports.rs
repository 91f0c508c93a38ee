//! The symbols that C programs see; written by build.rs from symbols.txt.

#[allow(unused_imports, reason = "as long as a module has no entry points yet")]
use crate::rdmacm::*;
#[allow(unused_imports, reason = "as long as a module has no entry points yet")]
use crate::rsocket::*;
use crate::verbs::*;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
