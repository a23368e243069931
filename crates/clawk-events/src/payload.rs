//! The payloads, one struct for each event type, or one for types that share a form.
//!
//! INVARIANT: fields stand in alphabetical order and hold no floats, so that the text of a payload is canonical JSON (R27).

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
