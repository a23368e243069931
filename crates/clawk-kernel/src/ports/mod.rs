//! What the kernel needs from outside, as traits. Each has a real, a scripted and a fault-injecting implementation.

mod connections;
mod context;
mod deliver;
mod elsewhere;
mod frame;
mod inbox;
mod journal;
mod memory;
mod model;
mod request;
mod shared;
mod sources;
mod speech;
mod tool;

use std::future::Future;
use std::pin::Pin;

pub use clawk_swarm::coord::Lost;
pub use connections::{Connection, Connections, Reached};
pub use context::{MessageContext, QuoteAuthor, QuoteKind, QuotedText};
pub use deliver::{Deliver, Delivery, OutboxChange, OutboxRow, Outgoing, Owed};
pub use elsewhere::{Elsewhere, Errand, Known, Place, Reports, TokenKey, Worked};
pub use frame::Frame;
pub use inbox::{Arrival, Arrived, ConversationKey, InboxChange};
pub use journal::{
    ANSWER_KEPT_MS, AnswerKey, Batch, Content, EffectChange, Entry, Journal, JournalError, OpenEffect,
    OpenMessage, Recorded, Scan, SessionRow, Spent, StoredAnswer, Ticket,
};
pub use memory::{Ask, Inspect, Lacking, Memory, MemoryError, Page, Scope, StoreQuery};
pub use model::{
    Completion, Delta, Embedded, FaultKind, Image, InferRequest, Message, NAME_MAX_BYTES, Provider,
    ProviderError, ProviderState, StatePart, StopReason, Told, ToolOffer, ToolUse, Usage,
};
pub use request::{Effort, RefusalCause, RequestAdaptation};
pub use shared::{Aside, BESIDE, Holder, News, Order, ProviderRate, Room, Shared, Terms, Unmet};
pub use sources::{Content as MarkedContent, Marked, Sources};
pub use speech::{Audio, SPEECH_MAX_CHARS, Spoken, Transcribed, heard, said};
pub use tool::{Description, Executor, Look, Mend, RunError, RunOutcome, Sampler, ToolRunner};

/// A boxed future, as the traits return it.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
