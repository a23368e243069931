//! Channels: how people and events reach the agent, and how its answers reach them.
//!
//! * **Owns:** the platforms' adapters and everything that they share: who is let in, pairing, rates, splitting, questions in
//!   chats, the state of each channel.
//! * **Depends on:** the kernel's doors (what is taken, what is owed), `clawk-egress` and `clawk-sandbox` for the ways out.
//! * **Must not know:** tools, models, the command line, the HTTP listener.
//! * **Start reading at:** [`adapter::ChannelAdapter`], then [`inlet::InboundPipeline::ingest_message`], then `outlet`.

pub mod adapter;
pub mod chat_command;

mod albums;
mod api;

mod check;

mod config;
mod config_check;

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

mod dependencies;
mod handle;
mod message;
mod plain_name;
mod service;

mod platform_kit;
mod platforms;
mod reseal;

pub use adapter::{
    ChannelAdapter, HookReply, HookRequest, HookResponse, HookWebSocket, OutFile, PlatformMessage,
};
pub use check::{CheckGrade, Finding, check_channels};
pub use config::{ChannelConfig, MissedRunPolicy, RefusalPolicy, ResponsePolicy};
pub use config_check::faults;
pub use dependencies::ChannelDependencies;
pub use details::render_details;
pub use features::{dead_channel_reason, unsupported_features};
pub use inlet::{InboundPipeline, IngestOutcome};
/// The reader of `Authentication-Results`, for the fuzz targets.
#[cfg(feature = "mail")]
pub use platforms::authentication_results;
pub use platforms::is_trigger;
pub use reseal::seal_conversations_anew;
pub use schedules::ScheduleRequest;
pub use service::{ChannelPairings, Channels, NotDone, remove_installed};
pub use state::{ChannelReport, State};
