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
mod door;
mod drive;
pub mod effect;
mod error;
mod event;
mod fork;
mod health;
mod infer;
mod ingress;
mod kernel;
mod lifecycle;
mod mailbox;
mod memory;
mod narrow;
mod notice;
pub mod outbox;
mod output;
pub mod place;
mod plan;
pub mod projection;
mod prompt;
pub mod purse;
mod rates;
mod recover;
pub mod replay;
mod roles;
mod screen;
mod session;
pub mod sheet;
mod skill;
mod start;
mod swarm;
mod talk;
pub mod testing;
pub mod time;
mod watch;

pub use agent::{Options, Parts};
pub use call::{Breadth, Held, Lasting, Person, Reception, Reply};
pub use carp::{Atlases, CarpError, Cra};
pub use clawk_manifest::model::Role;
pub use door::Door;
pub use error::{ArgumentFault, CallError, DeniedBy, KernelError, StartError};
pub use event::kind;
pub use fork::ForkPoint;
pub use infer::ModelOptions;
pub use ingress::{Accepted, Inbound, InboxLimits, REMEMBERED_DAYS};
pub use kernel::{DEFAULT_DRAIN_MS, DeadLetter, Kernel};
pub use mailbox::MAILBOX;
pub use notice::{Answer, Asked, Notice, Plan, Question, Step, TurnEnd};
pub use outbox::{Deliveries, OutboxLimits, Undelivered};
pub use output::Shown;
pub use roles::admit;
pub use screen::Judge;
pub use session::{MAX_MESSAGE_BYTES, Session};
pub use talk::{Stop as TalkStop, Talk, Told};
pub use watch::{BACKLOG, Watcher};

#[cfg(test)]
mod tests;
