//! The events that the kernel writes into the journal: types and payloads (TRACE's standard list, R31).
//!
//! INVARIANT: every payload struct declares its fields in alphabetical order and holds no floats, so that serde_json's text of it
//! *is* canonical JSON (JCS, R27). `tests::payloads_are_canonical` checks it.
//!
//! INVARIANT: every event is built by [`JournalWriter::written`], which limits its size: whatever text a field has, the event stays
//! below the limit of every verifier, and a number without a canonical text never prevents an event.

use std::collections::BTreeSet;
use std::sync::Arc;

use clawk_proto::{Digest, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::author::AuthorKind;
use crate::ports::{
    AnswerKey, Batch, BatchConditions, EffectChange, EventContent, InboxChange, Journal, JournalEntry,
    JournalError, JournalScan, JournalTicket, OutboxChange, RecordedEvent, RefusalCause, RequestAdaptation,
    SpentAmount, TokenReport,
};
use crate::time::{Clock, Timestamp};

/// Events read at a time.
const PAGE: usize = 1000;

pub mod kind;
pub(crate) mod words;

pub(crate) use words::{ChainText, EventWords, WordField, stand_in};

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
const fn is_zero(count: &usize) -> bool {
    *count == 0
}

macro_rules! payloads {
    ($($(#[$doc:meta])* $name:ident $(<$life:lifetime>)? { $($(#[$attr:meta])* $field:ident : $type:ty),* $(,)? })*) => {
        $($(#[$doc])* #[derive(Debug, Serialize)] pub(crate) struct $name $(<$life>)? { $($(#[$attr])* pub(crate) $field: $type,)* })*
    };
}

payloads! {
    /// `session.started`.
    SessionStarted<'a> { agent_hash: Digest, agent_id: &'a str, door: &'a str, goal: &'a str, role: &'a str, run: Uuid }
    /// `session.started` of a forked session.
    SessionForked<'a> { agent_hash: Digest, agent_id: &'a str, door: &'a str, fork: &'a ForkPoint, goal: &'a str, role: &'a str, run: Uuid }
    /// `ckp.agent.described`.
    AgentDescribed<'a> { agent: &'a str, agent_hash: Digest }
    /// `ckp.tool.described`.
    ToolDescribed<'a> { action_id: &'a str, tool_hash: Digest }
    /// `session.ended`.
    SessionEnded<'a> { duration_ms: u64, reason: &'a str }
    /// `ckp.lifecycle.transition`.
    Transition<'a> { agent: &'a str, duration_ms: u64, from: &'a str, reason: &'a str, to: &'a str }
    /// `ckp.message.accepted`: with the complete entry point (R39), from which [`crate::door::Origin`] is restored.
    MessageAccepted<'a> {
        author_kind: AuthorKind,
        channel: Option<&'a str>, conversation: Option<&'a str>, direct: Option<bool>, door: &'a str, message_id: Uuid,
        platform_ids: &'a [String], #[serde(skip_serializing_if = "BTreeSet::is_empty")] repeats: &'a BTreeSet<String>, role: &'a str,
        sender: &'a str, size_bytes: u64, task_id: Option<&'a str>, text_hash: Digest,
    }
    /// `ckp.message.attached`.
    MessageAttached<'a> { content_hash: Digest, message_id: Uuid, mime_type: &'a str, name: Option<&'a str>, size_bytes: u64 }
    /// `ckp.message.framed`. `untrusted`: sources of other people's text that the frame repeats.
    MessageFramed<'a> {
        frame_hash: Digest, message_id: Uuid, #[serde(skip_serializing_if = "<[String]>::is_empty")] untrusted: &'a [String],
    }
    /// `ckp.message.tools`.
    MessageTools { message_id: Uuid, tools_hash: Digest }
    /// `ckp.client.called`.
    ClientCalled<'a> { call_hash: Digest, call_id: &'a str, tool: &'a str, turn: Uuid }
    /// `ckp.message.refused`.
    MessageRefused<'a> {
        door: &'a str, message_id: Uuid, reason: ChainText, size_bytes: u64,
        #[serde(skip_serializing_if = "Option::is_none")] words_hash: Option<Digest>,
    }
    /// `ckp.message.answered`.
    MessageAnswered<'a> {
        #[serde(skip_serializing_if = "std::ops::Not::not")] could_act: bool,
        #[serde(skip_serializing_if = "std::ops::Not::not")] declined: bool,
        duration_ms: u64, end: &'a str, input_tokens: u64, message_id: Uuid, output_tokens: u64, text_hash: Digest }
    /// `ckp.claims.judged`. `marks`: byte offsets in the answer `text_hash`, after sentences that the record does not support.
    ClaimsJudged<'a> {
        duration_ms: u64, #[serde(skip_serializing_if = "Option::is_none")] failed: Option<&'a str>, marks: &'a [usize], message_id: Uuid,
        provider: &'a str, sentences: usize, text_hash: Digest,
    }
    /// `ckp.conversation.cleared`.
    ConversationCleared<'a> { by: &'a str, messages: usize }
    /// `ckp.message.dead`.
    MessageDead<'a> {
        message_id: Uuid, reason: ChainText, #[serde(skip_serializing_if = "Option::is_none")] why: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")] words_hash: Option<Digest>,
    }
    /// `ckp.delivery.started`.
    DeliveryStarted<'a> { attempt: u32, channel: &'a str, message_id: Uuid, repeat: bool }
    /// `ckp.delivery.ended`.
    DeliveryEnded<'a> {
        attempt: u32, channel: &'a str, dead: bool, message_id: Uuid, next_at: Option<String>, outcome: &'a str,
        platform_id: Option<&'a str>, reason: Option<ChainText>,
        #[serde(skip_serializing_if = "Option::is_none")] words_hash: Option<Digest>,
    }
    /// `ckp.delivery.requeued`.
    DeliveryRequeued<'a> { by: &'a str, message_id: Uuid }
    /// `ckp.provider.requested`.
    ProviderRequested<'a> {
        attempt: u32, bytes_out: u64, cost_microusd: Option<u64>, inference_id: Uuid, input_tokens: u64, model: &'a str,
        output_tokens: u64, provider: &'a str, purses: &'a [Arc<str>], request_hash: Digest, turn: Uuid,
    }
    /// `ckp.provider.completed`.
    ProviderCompleted<'a> {
        attempt: u32, bytes_out: u64, cached_tokens: u64, call_count: usize, completion_hash: Digest, cost_microusd: Option<u64>,
        duration_ms: u64, estimated: bool, inference_id: Uuid, input_tokens: u64,
        model: &'a str, output_tokens: u64, provider: &'a str, request_hash: Digest, stop: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")] told: Option<TokenReport>,
        #[serde(skip_serializing_if = "<[_]>::is_empty")] took: &'a [BudgetUse],
        turn: Uuid,
    }
    /// `ckp.provider.failed`.
    ProviderFailed<'a> {
        attempt: u32, bytes_out: u64,
        #[serde(skip_serializing_if = "Option::is_none")] cause: Option<&'a RefusalCause>,
        cost_microusd: Option<u64>, duration_ms: u64, estimated: bool, inference_id: Uuid,
        input_tokens: u64, kind: &'a str, output_tokens: u64, provider: &'a str, reason: ChainText,
        #[serde(skip_serializing_if = "Option::is_none")] retry_after_ms: Option<u64>,
        status: Option<u16>,
        #[serde(skip_serializing_if = "Option::is_none")] told: Option<TokenReport>,
        #[serde(skip_serializing_if = "<[_]>::is_empty")] took: &'a [BudgetUse],
        turn: Uuid,
        #[serde(skip_serializing_if = "Option::is_none")] words_hash: Option<Digest>,
    }
    /// `ckp.provider.adapted`. `cause`: `known` before the turn, or what was refused. `window_tokens`: the window derived from
    /// refusals; `server_tokens`: the window that the server reports.
    ProviderAdapted<'a> {
        #[serde(skip_serializing_if = "RequestAdaptation::is_empty")] adaptation: &'a RequestAdaptation,
        cause: &'a str, change: &'a str, endpoint: Digest, model: &'a str, provider: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")] server_tokens: Option<u64>,
        turn: Uuid,
        #[serde(skip_serializing_if = "Option::is_none")] window_tokens: Option<u64>,
    }
    /// `ckp.provider.unreachable`.
    ProviderUnreachable<'a> { provider: &'a str, reason: ChainText, #[serde(skip_serializing_if = "Option::is_none")] words_hash: Option<Digest> }
    /// `ckp.budget.warned`.
    BudgetWarned<'a> { bound: u64, limit: &'a str, purse: &'a str, resets_at: Option<&'a str>, spent: u64 }
    /// `ckp.turn.stopped`.
    TurnStopped<'a> { guard: &'a str, reason: ChainText, turn: Uuid, #[serde(skip_serializing_if = "Option::is_none")] words_hash: Option<Digest> }
    /// `ckp.effect.resolved`.
    EffectResolved<'a> {
        action_id: &'a str, by: &'a str, how: &'a str, outcome: &'a str, reason: Option<ChainText>, request_id: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")] words_hash: Option<Digest>,
    }
    /// `action.requested`.
    ActionRequested<'a> {
        action_id: &'a str, call_id: Option<&'a str>,
        #[serde(skip_serializing_if = "<[String]>::is_empty")] converted: &'a [String],
        door: &'a str, identity: &'a str, parameters_hash: Digest,
        policy: Option<&'a str>, request_id: &'a str, sandbox: Option<&'a str>,
        #[serde(skip_serializing_if = "<[String]>::is_empty")] taint: &'a [String],
        turn: Option<Uuid>,
    }
    /// `action.approved`.
    ActionApproved<'a> {
        action_id: &'a str, by: &'a str, effect: &'a str, parameters_hash: Digest, policy_id: Option<&'a str>,
        request_hash: Digest, request_id: &'a str, resolution_id: Uuid, rule_id: Option<&'a str>, side_effects: bool, turn: Option<Uuid>,
    }
    /// `action.denied`. `reason` equals `by`; the text is in the result's content.
    ActionDenied<'a> {
        action_id: &'a str, by: &'a str, policy_id: Option<&'a str>, reason: ChainText, request_hash: Digest, request_id: &'a str,
        result_hash: Digest, rule_id: Option<&'a str>, turn: Option<Uuid>,
    }
    /// `action.executed`.
    ActionExecuted<'a> {
        action_id: &'a str, attempts: u32, duration_ms: u64, execution_id: Uuid, is_error: bool, level: &'a str,
        mechanisms: &'a [String], missing: &'a [String], request_hash: Digest, request_id: &'a str, result_hash: Digest,
        #[serde(skip_serializing_if = "<[_]>::is_empty")] took: &'a [BudgetUse],
        turn: Option<Uuid>,
    }
    /// `action.failed`. `error_message` equals `error_code`; the text is in the result's content.
    ActionFailed<'a> {
        action_id: &'a str, duration_ms: u64, error_code: &'a str, error_message: ChainText, request_hash: Digest, request_id: &'a str,
        result_hash: Digest, #[serde(skip_serializing_if = "<[_]>::is_empty")] took: &'a [BudgetUse],
        turn: Option<Uuid>,
    }
    /// `ckp.approval.requested`.
    ApprovalRequested<'a> {
        action_id: &'a str, default_if_timeout: &'a str, expires_at: String, policy_id: Option<&'a str>, question_hash: Digest,
        reason: &'a str, request_hash: Digest, request_id: &'a str, rule_id: Option<&'a str>,
    }
    /// `ckp.approval.answered`.
    ApprovalAnswered<'a> {
        action_id: &'a str, answer: &'a str, by: &'a str, channel: &'a str, reason: Option<ChainText>, request_id: &'a str, role: &'a str,
        seen: Option<&'a str>, #[serde(skip_serializing_if = "Option::is_none")] words_hash: Option<Digest>,
    }
    /// `ckp.approval.voided`.
    ApprovalVoided<'a> { action_id: &'a str, changed: &'a str, request_id: &'a str }
    /// `ckp.approval.granted`.
    ApprovalGranted<'a> {
        action_id: &'a str, #[serde(skip_serializing_if = "Option::is_none")] basis_hash: Option<Digest>,
        by: &'a str, channel: &'a str, folder: Option<&'a str>, grant_id: &'a str, lasting: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")] led_hash: Option<Digest>,
        parameters_hash: Digest, plan_hash: Digest, request_id: &'a str, shown: ChainText,
        #[serde(skip_serializing_if = "Option::is_none")] words_hash: Option<Digest>,
    }
    /// `ckp.approval.revoked`.
    ApprovalRevoked<'a> { by: &'a str, grant_id: &'a str }
    /// `ckp.stop.engaged`.
    StopEngaged<'a> {
        by: &'a str, channel: &'a str, level: &'a str, reason: Option<ChainText>, session: Option<Uuid>,
        #[serde(skip_serializing_if = "Option::is_none")] words_hash: Option<Digest>,
    }
    /// `ckp.stop.lifted`.
    StopLifted<'a> { by: &'a str, channel: &'a str, session: Option<Uuid> }
    /// `ckp.policy.audited`.
    Audited<'a> { action_id: &'a str, policy_id: Option<&'a str>, reason: Option<&'a str>, request_id: &'a str, rule_id: Option<&'a str> }
    /// `ckp.message.resumed`.
    MessageResumed<'a> { attempt: u32, message_id: Uuid, role: &'a str, waiting: bool }
    /// `ckp.context.trimmed`.
    ContextTrimmed<'a> {
        dropped_messages: usize, kept_messages: usize,
        #[serde(skip_serializing_if = "Option::is_none")] provider: Option<&'a str>,
        #[serde(skip_serializing_if = "is_zero")] shortened_results: usize,
        turn: Uuid,
    }
    /// `ckp.context.compacted`: `untrusted` lists the sources of untrusted text in what was replaced.
    ContextCompacted<'a> {
        kept_messages: usize, method: &'a str, replaced_messages: usize, strategy: &'a str, summary_hash: Digest, turn: Uuid,
        untrusted: &'a [String],
    }
    /// `ckp.context.written`.
    ContextWritten<'a> { file: &'a str, request_id: &'a str, text_hash: Digest }
    /// `ckp.context.read`. Without `text_hash` the file no longer exists.
    ContextRead<'a> { file: &'a str, text_hash: Option<Digest>, turn: Uuid }
    /// `ckp.context.tainted`: `files` lists each file with the sources of its text; `untrusted` lists all sources, each with its
    /// file.
    ContextTainted<'a> {
        files: &'a crate::ports::TaintedFiles, #[serde(skip_serializing_if = "Option::is_none")] request_id: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")] turn: Option<Uuid>, untrusted: &'a [String],
    }
    /// `ckp.memory.requested`, `ckp.memory.stored`. They never hold the entries, which are in the store.
    #[derive(Clone, Copy)]
    MemoryStored<'a> {
        batch: Uuid,
        // Set to `memory-store` if a call of that tool stored the entries; the call then has the answer.
        #[serde(skip_serializing_if = "Option::is_none")] by: Option<&'a str>,
        count: usize, entries_hash: Digest, request_hash: Digest, request_id: &'a str, store: &'a str,
    }
    /// `ckp.memory.queried`.
    MemoryQueried<'a> { found: usize, query: &'a str, store: &'a str }
    /// `ckp.memory.recalled`: `untrusted` lists the sources of text that is not the user's own.
    MemoryRecalled<'a> {
        left_out: usize, query_hash: Digest, recalled_hash: Digest, searches: &'a [crate::recall::RecalledIds], tokens: usize, turn: Uuid,
        untrusted: &'a [String],
    }
    /// `ckp.memory.expired`.
    MemoryExpired<'a> { entries: u64, store: &'a str }
    /// `ckp.memory.compacted`.
    MemoryCompacted<'a> { entries_after: u64, entries_before: u64, store: &'a str }
    /// `ckp.swarm.reported`.
    SwarmReported<'a> { cost_microusd: u64, duration_ms: u64, orphan: bool, result_hash: Digest, status: &'a str, task_id: &'a str, token_usage: u64 }
    /// All other events of a swarm. Fields that do not apply are left out.
    #[derive(Default)]
    SwarmEvent<'a> {
        #[serde(skip_serializing_if = "Option::is_none")] attempt: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")] cost_microusd: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")] duration_ms: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")] fact_hash: Option<Digest>,
        #[serde(skip_serializing_if = "Option::is_none")] host: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")] member: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")] orphan: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")] parent: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")] peer_session: Option<Uuid>,
        #[serde(skip_serializing_if = "Option::is_none")] provider: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")] reason: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")] request_hash: Option<Digest>,
        #[serde(skip_serializing_if = "Option::is_none")] request_id: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")] role: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")] run: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")] run_tokens: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")] state: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")] status: Option<&'a str>,
        swarm: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")] task_id: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")] token_usage: Option<u64>,
    }
    /// `ckp.swarm.broadcast`.
    SwarmBroadcast<'a> { message_hash: Digest, peers: usize, swarm: &'a str }
    /// `ckp.screen.secret`, `ckp.screen.injection`: the kind, the count and the action. Never the text found.
    ScreenFound<'a> { action: &'a str, count: usize, kind: &'a str, method: &'a str, place: &'a str, subject: &'a str }
    /// `ckp.screen.input`.
    ScreenInput<'a> { action: &'a str, at: &'a str, fault: &'a str, place: &'a str, subject: &'a str }
    /// `ckp.screen.judged`.
    ScreenJudged<'a> { duration_ms: u64, place: &'a str, provider: &'a str, subject: &'a str, verdict: &'a str }
}

/// The point at which a session was forked; part of the new session's first event. Fields in alphabetical order, as in every
/// payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkPoint {
    /// Hash of the last event that belongs to the fork.
    pub event_hash: Digest,
    /// The continued turn keeps its sender. Records of earlier versions gave it to the person who forked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_sender: bool,
    /// Sequence number of that event.
    pub sequence: u64,
    /// The forked session.
    pub session_id: SessionId,
    /// The forked session's trace id.
    pub trace_id: Uuid,
    /// The new id of the turn that was running and continues here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Uuid>,
}

/// The part of a persistent budget that a call or model request used, and its hour. Fields in alphabetical order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BudgetUse {
    pub(crate) busy_ms: u64,
    pub(crate) bytes_out: u64,
    pub(crate) calls: u64,
    pub(crate) hour: i64,
    pub(crate) purse: Arc<str>,
}

impl BudgetUse {
    pub(crate) fn of(told: &[SpentAmount]) -> Vec<Self> {
        let of = |spent: &SpentAmount| Self {
            busy_ms: spent.amount.busy_ms,
            bytes_out: spent.amount.bytes_out,
            calls: spent.amount.calls,
            hour: spent.hour,
            purse: Arc::clone(&spent.purse),
        };
        told.iter().map(of).collect()
    }
}

/// Returns the SHA-256 digest.
pub(crate) fn digest(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

/// Returns a value's canonical JSON (JCS). Digests of arguments are made of its bytes.
pub(crate) fn canonical<T: Serialize>(value: &T) -> Vec<u8> {
    // serde_json sorts maps by UTF-8 bytes, JCS by UTF-16 units. They differ only for astral keys, and a digest of arguments needs
    // a fixed order, not a particular one.
    serde_json::to_vec(value).unwrap_or_default() // silent-ok: JSON values always serialise
}

/// The position of an event: its chain and its span.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Thread {
    pub(crate) session: SessionId,
    pub(crate) span: Uuid,
    pub(crate) parent: Option<Uuid>,
}

impl Thread {
    /// Returns the root thread of a chain.
    pub(crate) const fn of(session: SessionId) -> Self {
        Self {
            session,
            span: session.0,
            parent: None,
        }
    }

    /// Returns a thread below this one.
    pub(crate) const fn child(self, span: Uuid) -> Self {
        Self {
            session: self.session,
            span,
            parent: Some(self.span),
        }
    }
}

/// Builds journal entries and writes them.
#[derive(Debug, Clone)]
pub(crate) struct JournalWriter {
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
}

impl JournalWriter {
    pub(crate) fn new(journal: Arc<dyn Journal>, clock: Arc<dyn Clock>) -> Self {
        Self { journal, clock }
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(crate) fn shared_clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    pub(crate) fn journal(&self) -> &Arc<dyn Journal> {
        &self.journal
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Builds one entry without writing it.
    pub(crate) fn entry<P: Serialize>(&self, thread: &Thread, kind: &'static str, payload: &P) -> Draft {
        // silent-ok: plain structs always serialise; if one did not, the journal would refuse `null`
        let payload = to_raw_value(payload).unwrap_or_else(|_| RawValue::NULL.to_owned());
        self.written(thread, kind, payload)
    }

    /// Builds one entry from a payload's JSON text. A part that is too long is replaced by its beginning, length and digest.
    pub(crate) fn written(&self, thread: &Thread, kind: &'static str, payload: Box<RawValue>) -> Draft {
        Draft(JournalEntry {
            session: thread.session,
            event_id: self.clock.uuid(),
            span: thread.span,
            parent: thread.parent,
            at: self.clock.now(),
            kind,
            payload: clawk_trace::bounded(payload),
            content: None,
            answers: None,
        })
    }

    /// Queues entries for one commit.
    pub(crate) fn submit(&self, entries: Vec<Draft>) -> Result<JournalTicket, JournalError> {
        self.submit_with(entries, Vec::new())
    }

    /// Queues entries and inbox changes for one commit.
    pub(crate) fn submit_with(
        &self,
        entries: Vec<Draft>,
        inbox: Vec<InboxChange>,
    ) -> Result<JournalTicket, JournalError> {
        self.journal.submit(Batch {
            entries: entries.into_iter().map(|draft| draft.0).collect(),
            inbox,
            ..Batch::default()
        })
    }

    /// Queues entries, spent amounts and the states of effects for one commit.
    pub(crate) fn account(
        &self,
        entries: Vec<Draft>,
        spent: Vec<SpentAmount>,
        effects: Vec<EffectChange>,
    ) -> Result<JournalTicket, JournalError> {
        self.journal.submit(Batch {
            entries: entries.into_iter().map(|draft| draft.0).collect(),
            spent,
            effects,
            ..Batch::default()
        })
    }

    /// Queues entries and the return of amounts that were assumed but not spent, for one commit.
    pub(crate) fn take_back(
        &self,
        entries: Vec<Draft>,
        unspent: Vec<SpentAmount>,
    ) -> Result<JournalTicket, JournalError> {
        self.journal.submit(Batch {
            entries: entries.into_iter().map(|draft| draft.0).collect(),
            unspent,
            ..Batch::default()
        })
    }

    /// Like [`Self::account`], but only if these conditions hold over all hosts. A single host has checked them already.
    pub(crate) fn account_if(
        &self,
        entries: Vec<Draft>,
        (spent, effects): (Vec<SpentAmount>, Vec<EffectChange>),
        terms: BatchConditions,
    ) -> Result<JournalTicket, JournalError> {
        let terms = (terms != BatchConditions::default()).then(|| Box::new(terms));
        self.journal.submit(Batch {
            entries: entries.into_iter().map(|draft| draft.0).collect(),
            spent,
            effects,
            terms,
            ..Batch::default()
        })
    }

    /// Queues entries and outbox changes for one commit.
    pub(crate) fn owe(
        &self,
        entries: Vec<Draft>,
        outbox: Vec<OutboxChange>,
    ) -> Result<JournalTicket, JournalError> {
        self.journal.submit(Batch {
            entries: entries.into_iter().map(|draft| draft.0).collect(),
            outbox,
            ..Batch::default()
        })
    }

    /// Reads all matching events, page by page.
    pub(crate) async fn each(
        &self,
        mut scan: JournalScan,
        mut see: impl FnMut(&RecordedEvent),
    ) -> Result<(), JournalError> {
        scan.limit = PAGE;
        loop {
            let page = self.journal.scan(scan.clone()).await?;
            page.iter().for_each(&mut see);
            match page.last() {
                Some(last) if page.len() == PAGE => scan.after_row = last.row,
                Some(_) | None => return Ok(()),
            }
        }
    }

    /// Queues entries and waits until they are durable.
    pub(crate) async fn write(&self, entries: Vec<Draft>) -> Result<(), JournalError> {
        self.submit(entries)?.durable().await
    }
}

/// Joins entries into a batch that another component commits together with its own changes.
pub(crate) fn together(drafts: Vec<Draft>) -> Batch {
    Batch {
        entries: drafts.into_iter().map(|draft| draft.0).collect(),
        ..Batch::default()
    }
}

/// An entry to which content may still be added.
#[derive(Debug, Clone)]
pub(crate) struct Draft(pub(crate) JournalEntry);

impl Draft {
    /// Adds the bytes that the payload refers to.
    pub(crate) fn content(mut self, digest: Digest, bytes: Vec<u8>) -> Self {
        self.0.content = Some(EventContent { digest, bytes });
        self
    }

    /// Adds the text that the payload refers to.
    pub(crate) fn words(self, words: impl Into<Option<EventWords>>) -> Self {
        match words.into() {
            Some(words) => {
                let (digest, bytes) = words.into_content();
                self.content(digest, bytes)
            }
            None => self,
        }
    }

    /// Marks the entry as the stored answer to a request (R19).
    pub(crate) fn answers(mut self, key: Option<AnswerKey>) -> Self {
        self.0.answers = key;
        self
    }
}
