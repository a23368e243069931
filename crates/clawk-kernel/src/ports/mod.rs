//! What the kernel needs from outside, as traits. Each has a real, a scripted and a fault-injecting implementation.

mod journal;
mod memory;
mod model;
mod tool;

use std::future::Future;
use std::pin::Pin;

pub use journal::{
    ANSWER_KEPT_MS, AnswerKey, Batch, Content, Entry, InboxChange, Journal, JournalError, OpenMessage,
    Recorded, Scan, SessionRow, Ticket,
};
pub use memory::{Memory, MemoryError, Place, StoreQuery};
pub use model::{
    Completion, Delta, FaultKind, InferRequest, Message, Provider, ProviderError, StopReason, ToolOffer,
    ToolUse, Usage,
};
pub use tool::{Description, Look, RunError, RunOutcome, ToolRunner};

/// A boxed future, as the traits return it.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
