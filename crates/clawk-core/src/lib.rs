//! The ground of the kernel: ports, errors, time, budgets, entry points, notices, and the pure turn.
//!
//! *Owns:* the traits of what the kernel needs from outside, with their data; who may come in, and whose words a text is; budgets; the turn machine.
//! *Depends on:* proto, manifest, events, policy, sandbox plans.
//! *Must not know:* the path of a call and its permits, sessions, hosts, swarms, replay, vendors.
//! *Start reading at:* [`ports`], then [`turn`], then [`purse`].

pub mod ports;
pub mod turn;

pub mod answer_claims;
pub mod answer_sentence;
pub mod attach;
pub mod author;
pub mod call_summary;
pub mod canonical;
pub mod compaction;
pub mod door;
pub mod error;
pub mod event_words;
pub mod message_frame;
pub mod model_catalogue;
pub mod model_choice;
pub mod moved;
pub mod narrow;
pub mod notice;
pub mod place;
pub mod purse;
pub mod rank;
pub mod rates;
pub mod retry_policy;
pub mod roles;
pub mod sheet;
pub mod testing;
pub mod text_origin;
pub mod time;
pub mod tool_schema;
pub mod turn_result;
pub mod value_facts;
pub mod watch;
pub mod witness;
