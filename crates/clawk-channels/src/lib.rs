//! Channels: how people and events reach the agent, and how its answers reach them.
//!
//! * **Owns:** the platforms' adapters and everything that they share: who is let in, pairing, rates, splitting, questions in
//!   chats, the state of each channel.
//! * **Depends on:** the kernel's doors (what is taken, what is owed), `clawk-egress` and `clawk-sandbox` for the ways out.
//! * **Must not know:** tools, models, the command line, the HTTP listener.
//! * **Start reading at:** [`adapter::Adapter`], then [`inlet::Inlet::message`], then `outlet`.

pub mod adapter;

mod albums;
mod api;

mod check;

mod config;

mod features;

mod files;

mod form;

mod kinds;

mod recording;

mod waiting;

mod gate;

mod genuine;

mod envelope;

mod token;

mod held;

mod remote;

mod pairing;

pub mod inlet;

mod live;

mod outlet;

mod split;

mod markup;

mod questions;

mod runs;

mod shares;

mod schedules;

mod timetable;

mod socket;

mod state;

mod cursor;
mod details;
mod direct;
mod sealed_file;

mod service;

mod types;

pub use adapter::{Adapter, Hook, HookReply, Incoming, OutFile, Served, Talk};
pub use check::{Finding, Grade, check};
pub use config::{ChannelConfig, Missed, Refuse, Respond, faults, is_trigger};
pub use features::unserved;
pub use inlet::{Inlet, Taken};
pub use schedules::Wanted;
pub use service::{Channels, NotDone, Paired, Parts, remove_installed};
pub use state::{Report, State};
pub use types::web::seal_conversations_anew;
