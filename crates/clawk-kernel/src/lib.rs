//! The kernel: lifecycle, sessions, turns, and the one path that every effect takes.
//!
//! *Owns:* lifecycle, sessions, the turn machine, the tool-call path, approvals, budgets, recovery, ports.
//! *Depends on:* proto, manifest, trace, policy, sandbox plans.
//! *Must not know:* HTTP servers, SQL, processes, vendors.
//! *Start reading at:* [`call`], then [`turn`], then [`ports`].

pub mod call;
pub mod ports;
pub mod stop;
pub mod turn;
pub mod witness;

mod agent;
pub mod carp;
mod catalog;
mod composite;
mod drive;
pub mod effect;
mod error;
mod event;
mod fork;
mod infer;
mod kernel;
mod lifecycle;
mod memory;
mod notice;
pub mod place;
mod plan;
mod prompt;
pub mod purse;
mod rates;
mod recover;
pub mod replay;
mod roles;
mod screen;
mod session;
mod skill;
mod start;
mod swarm;
pub mod testing;
pub mod time;

pub use agent::{Options, Parts};
pub use call::{Breadth, Held, Lasting, Person, Reception, Reply};
pub use carp::{Atlases, CarpError, Cra};
pub use error::{ArgumentFault, CallError, DeniedBy, KernelError, StartError};
pub use event::kind;
pub use fork::ForkPoint;
pub use kernel::{DEFAULT_DRAIN_MS, DeadLetter, Kernel};
pub use notice::{Answer, Asked, Notice, Plan, Question, Step, TurnEnd};
pub use roles::admit;
pub use screen::Judge;
pub use session::{Door, MAILBOX, MAX_MESSAGE_BYTES, Session};

#[cfg(test)]
mod tests;
