//! The kernel: sessions, turns, and everything that the path of a call is reached from.
//!
//! *Owns:* sessions, turns, model calls, memory in a turn, recovery, replay, swarms, several hosts, the start and end of an agent.
//! *Depends on:* `clawk-govern` with the path of a call, `clawk-core` with its ports and the turn machine, proto, manifest, trace, policy, sandbox plans.
//! *Must not know:* HTTP servers, SQL, processes, vendors.
//! *Start reading at:* [`call`], then [`turn`], then [`ports`].

pub mod ports;

mod agent;
mod checkpoint;
mod claims;
mod client_tool;
mod composite;
mod conversation;
mod cra;
mod drive;
pub mod dry;
mod fit;
mod fork;
mod health;
mod hosts;
mod infer;
mod ingress;
mod judge;
mod kernel;
mod mailbox;
mod member;
mod memory;
mod model_choice;
mod open_turn;
mod options;
pub mod outbox;
mod output;
mod pictures;
mod plan;
pub mod projection;
mod prompt;
mod recall;
mod recover;
mod remember;
pub mod replay;
mod sampling;
mod screen;
mod services;
mod session;
pub mod shown;
mod skill;
mod start;
mod state;
mod swarm;
mod talk;
mod team;
mod tend;
pub mod testing;
pub mod undo;
mod vectors;
mod world_model;

use clawk_core::{
    answer_claims, answer_sentence, attach, author, call_summary, compaction, door, error, message_frame,
    model_catalogue, notice, rank, rates, retry_policy, roles, turn_result, value_facts, watch,
};
pub use clawk_core::{moved, place, purse, sheet, time, turn, witness};
pub use clawk_govern::{OPERATOR, call, carp, effect, stop, taint};
use clawk_govern::{budget_events, catalog, dedup, event, lifecycle, skill_rights};

pub use agent::AgentDependencies;
pub use attach::{AttachedPicture, MAX_IMAGE_BYTES, MAX_IMAGES};
pub use author::{QUEUE_CLIENTS, TextAuthor};
pub use call::{ApprovalReply, GrantLifetime, GrantScope, PastApproval, ReplyOutcome, StandingGrant};
pub use carp::{AtlasSettings, CarpError};
pub use catalog::PREDICTED;
pub use claims::{Claims, ClaimsJudgement, MARK};
pub use clawk_core::rank::ranking_fault as store_ranking_fault;
pub use clawk_manifest::model::Role;
pub use clawk_swarm::coord::RunResult;
pub use cra::CraHandle;
pub use door::{EntryPoint, REMEMBERED_DAYS};
pub use error::{ArgumentFault, CallError, DeniedBy, KernelError, StartError};
pub use event::words::{RecordedReason, payload_with_words, put_words, words_hash};
pub use event::{ForkPoint, kind};
pub use ingress::{AcceptedMessage, ChannelMessage};
pub use kernel::{
    ChannelFact, ConversationStatus, DEFAULT_DRAIN_MS, DeadLetter, Kernel, PairingChange, PushGivenUp,
};
pub use mailbox::MAILBOX;
pub use message_frame::join_frame;
pub use model_catalogue::{CatalogueError, ModelCatalogue, ModelDialect, ModelFacts};
pub use model_choice::{ModelChoiceError, ModelInUse};
pub use notice::{
    ApprovalAnswer, ApprovalPlanStep, ApprovalQuestion, ClientCall, Plan, SessionNotice, TurnEnd,
    TurnStop as TalkStop, WaitingApproval,
};
pub use options::{InboxLimits, Options, SwarmOptions};
pub use outbox::{DeliveryGuard, OutboxLimits, UndeliveredAnswer};
pub use output::ResultExcerpt;
pub use ports::{SampleAnswer, SampleMessage, SampleRequest, SampleRole};
pub use retry_policy::ModelOptions;
pub use roles::{KnownPerson, admitted_role};
pub use sampling::NAME as SAMPLING;
pub use screen::JudgeSettings;
pub use session::{MAX_MESSAGE_BYTES, SessionHandle};
pub use skill_rights::REQUIRES;
pub use swarm::{SwarmView, UNPROVEN};
pub use talk::MessageStatus;
pub use talk::told::{EarlierMessage, TalkRequest, TurnResult};
pub use team::{SWARM_KINDS, fact_of, session_of};
pub use watch::{BACKLOG, Watcher};
pub use world_model::{PlanLimits, planning_faults as world_model_faults};

#[cfg(test)]
mod tests;
