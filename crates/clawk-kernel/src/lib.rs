//! The kernel: lifecycle, sessions, turns, and the call path that every effect takes.
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
mod attach;
mod author;
pub mod carp;
mod catalog;
mod checkpoint;
mod claims;
mod client_tool;
mod compaction;
mod composite;
mod conversation;
mod cra;
mod dedup;
mod door;
mod drive;
pub mod dry;
pub mod effect;
mod error;
mod event;
mod fit;
mod fork;
mod health;
mod hosts;
mod infer;
mod ingress;
mod judge;
mod kernel;
mod lifecycle;
mod mailbox;
mod member;
mod memory;
mod message_frame;
mod model_catalogue;
pub mod moved;
mod narrow;
mod notice;
mod open_turn;
mod options;
pub mod outbox;
mod output;
mod pictures;
pub mod place;
mod plan;
pub mod projection;
mod prompt;
pub mod purse;
mod rank;
mod rates;
mod recall;
mod recover;
mod remember;
pub mod replay;
mod roles;
mod sampling;
mod screen;
mod session;
pub mod sheet;
pub mod shown;
mod skill;
mod start;
mod state;
mod swarm;
pub mod taint;
mod talk;
mod team;
mod tend;
pub mod testing;
pub mod time;
pub mod undo;
mod value_facts;
mod vectors;
mod watch;
mod world_model;

pub use agent::AgentDependencies;
/// Target of log lines for the operator. `clawk serve` always writes them to standard error.
pub const OPERATOR: &str = "clawk::operator";

pub use attach::{AttachedPicture, MAX_IMAGE_BYTES, MAX_IMAGES};
pub use author::{QUEUE_CLIENTS, TextAuthor};
pub use call::{ApprovalReply, GrantLifetime, GrantScope, PastApproval, ReplyOutcome, StandingGrant};
pub use carp::{AtlasSettings, CarpError};
pub use catalog::PREDICTED;
pub use claims::{Claims, ClaimsJudgement, MARK};
pub use clawk_manifest::model::Role;
pub use clawk_swarm::coord::RunResult;
pub use cra::CraHandle;
pub use door::{EntryPoint, REMEMBERED_DAYS};
pub use error::{ArgumentFault, CallError, DeniedBy, KernelError, StartError};
pub use event::words::{payload_with_words, put_words, words_hash};
pub use event::{ForkPoint, kind};
pub use infer::ModelOptions;
pub use ingress::{AcceptedMessage, ChannelMessage};
pub use kernel::{
    ChannelFact, ConversationStatus, DEFAULT_DRAIN_MS, DeadLetter, Kernel, PairingChange, PushGivenUp,
};
pub use mailbox::MAILBOX;
pub use message_frame::join_frame;
pub use model_catalogue::{CatalogueError, ModelCatalogue, ModelDialect, ModelFacts};
pub use notice::{
    ApprovalAnswer, ApprovalPlanStep, ApprovalQuestion, Plan, SessionNotice, TurnEnd, TurnStop as TalkStop,
    WaitingApproval,
};
pub use options::{InboxLimits, Options, SwarmOptions};
pub use outbox::{DeliveryGuard, OutboxLimits, UndeliveredAnswer};
pub use output::ResultExcerpt;
pub use roles::{KnownPerson, admit};
pub use sampling::{NAME as SAMPLING, SampleAnswer, SampleMessage, SampleRequest, SampleRole};
pub use screen::JudgeSettings;
pub use session::{MAX_MESSAGE_BYTES, SessionHandle};
pub use skill::REQUIRES;
pub use swarm::{SwarmView, UNPROVEN};
pub use talk::MessageStatus;
pub use talk::told::{ClientCall, EarlierMessage, TalkRequest, TurnResult};
pub use team::{SWARM_KINDS, fact_of, session_of};
pub use watch::{BACKLOG, Watcher};
pub use world_model::{PlanLimits, faults as world_model_faults};

#[cfg(test)]
mod tests;
