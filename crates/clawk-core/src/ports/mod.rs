//! The kernel's ports: traits for everything it needs from outside. Each has a real, a scripted and a fault-injecting
//! implementation.

mod connections;
mod context;
mod deliver;
mod frame;
mod inbox;
mod journal;
mod memory;
mod model;
mod request;
mod sampling;
mod shared;
mod sources;
mod speech;
mod tool;

use std::future::Future;
use std::pin::Pin;

pub use connections::{CallConnection, ConnectionCollector, ReachedConnections};
pub use context::{MessageContext, QuoteAuthor, QuoteKind, QuotedText};
pub use deliver::{ChannelDelivery, Delivery, OutboxChange, OutboxRow, OutgoingAnswer, OwedAnswer};
pub use frame::SocketFrame;
pub use inbox::{ConversationKey, EarlierArrival, InboxArrival, InboxChange};
pub use journal::{
    ANSWER_KEPT_MS, AnswerKey, Batch, EffectChange, EventContent, Journal, JournalEntry, JournalError,
    JournalScan, JournalTicket, OpenEffect, OpenMessage, RecordedEvent, SessionRow, SpentAmount,
    StoredAnswer,
};
pub use memory::{
    Memory, MemoryError, MemoryInspector, MemorySearch, Page, Scope, StoreQuery, UnembeddedEntry,
};
pub use model::{
    CompletionDelta, FaultKind, Image, InferRequest, ModelCompletion, ModelMessage, ModelProvider,
    NAME_MAX_BYTES, ProviderError, ProviderState, StatePart, StopReason, TextEmbeddings, TokenReport,
    ToolOffer, ToolUse, Usage,
};
pub use request::{ReasoningEffort, RefusalCause, RequestAdaptation};
pub use sampling::{SampleAnswer, SampleMessage, SampleRequest, SampleRole, SamplingHandler};
pub use shared::{
    BESIDE, BatchConditions, BatchReservation, BudgetDemand, HostCluster, HostNews, HostOrder, ProviderRate,
    SessionHolder, UnmetCondition,
};
pub use sources::{ProvenanceCollector, ProvenanceSubject as MarkedContent, TaintedFiles};
pub use speech::{
    AudioRecording, AudioTranscript, SPEECH_MAX_CHARS, SpokenAudio, speech_usage, transcription_usage,
};
pub use tool::{Executor, InspectedCall, ReconcileMethod, RunError, RunOutcome, ToolDescription};

/// A boxed future, as the traits return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
