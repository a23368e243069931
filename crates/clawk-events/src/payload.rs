//! The payloads: one struct for each event type. Event types of the same form share a struct.
//!
//! INVARIANT: fields are declared in alphabetical order and hold no floats, so that a payload is written as canonical JSON (R27).

mod action;
mod approval;
mod carp;
mod channel;
mod context;
mod memory;
mod message;
mod provider;
mod session;
mod skill;
mod swarm;

pub use action::*;
pub use approval::*;
pub use carp::*;
pub use channel::*;
pub use context::*;
pub use memory::*;
pub use message::*;
pub use provider::*;
pub use session::*;
pub use skill::*;
pub use swarm::*;
