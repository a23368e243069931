//! One enum of all journal events, with the code that reads and writes them.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use crate::error::{EventError, FieldDiagnosis, PayloadFault, diagnose_payload};
use crate::field::EventPayload;
use crate::kind::*;
use crate::payload::*;

/// The result of reading a payload.
enum PayloadReading<P> {
    /// The complete payload.
    Whole(P),
    /// The payload was shortened when it was written. Holds its raw JSON.
    Shortened(Box<RawValue>),
}

/// Ties a payload that only one type has to that type.
macro_rules! own_payload {
    ($payload:ident $kind:ident shared) => {};
    ($payload:ident $kind:ident) => {
        impl crate::written::sealed::SealedPayload for $payload {}

        impl crate::WrittenEvent for $payload {
            fn event_kind(&self) -> &'static str {
                $kind
            }

            fn canonical_payload(&self) -> Box<RawValue> {
                write_payload(self)
            }
        }
    };
}

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident($payload:ident) = $kind:ident $($shared:ident)?,)*) => {
        $(own_payload! { $payload $kind $($shared)? })*

        /// An event of the journal: its type and its payload.
        ///
        /// Match this enum without a `_` arm. Then a new event breaks the build wherever events are read, and each reader must
        /// handle it or skip it by name.
        #[derive(Debug, Clone)]
        pub enum Event {
            $($(#[$doc])* $variant(Box<$payload>),)*
            /// An event of a known type whose payload, or one of its fields, was larger than the size limit of an event. The raw
            /// payload holds the beginning, the length and the digest of the shortened part ([`clawk_trace::bounded`]) in place of
            /// a value of the field's type.
            Shortened {
                /// The type.
                kind: &'static str,
                /// The shortened payload, as raw JSON.
                raw: Box<RawValue>,
            },
            /// An event of a type that this version does not know.
            Unknown {
                /// The type.
                kind: String,
                /// The payload, as raw JSON.
                raw: Box<RawValue>,
            },
        }

        /// The types of all events that this version knows, in the order of [`Event`].
        pub const KINDS: &[&str] = &[$($kind,)*];

        impl Event {
            /// Reads an event of the journal. Fields that this version does not know are ignored.
            ///
            /// # Errors
            /// The payload is not an object, lacks a field that every version writes, or a field has a value of another type.
            pub fn read(kind: &str, payload: &str) -> Result<Self, EventError> {
                match kind {
                    $($kind => Ok(match read_payload::<$payload>($kind, payload)? {
                        PayloadReading::Whole(payload) => Self::$variant(Box::new(payload)),
                        PayloadReading::Shortened(raw) => Self::Shortened { kind: $kind, raw },
                    }),)*
                    other => Ok(Self::Unknown {
                        kind: other.to_owned(),
                        raw: read_object(other, payload)?,
                    }),
                }
            }

            /// Returns the event's type as the journal spells it, for example `session.started`.
            #[must_use]
            pub fn kind(&self) -> &str {
                match self {
                    $(Self::$variant(_) => $kind,)*
                    Self::Shortened { kind, .. } => kind,
                    Self::Unknown { kind, .. } => kind,
                }
            }

            /// Returns the payload as the journal stores it: canonical JSON (R27), within the size limit of an event.
            #[must_use]
            pub fn canonical_payload(&self) -> Box<RawValue> {
                match self {
                    $(Self::$variant(payload) => write_payload(&**payload),)*
                    Self::Shortened { raw, .. } | Self::Unknown { raw, .. } => clawk_trace::bounded(raw.clone()),
                }
            }
        }

        /// Returns the names of the fields that the payload of `kind` may have.
        #[cfg(test)]
        pub(crate) fn field_names(kind: &str) -> Vec<&'static str> {
            let fields = match kind {
                $($kind => $payload::FIELDS,)*
                _ => &[],
            };
            fields.iter().map(|field| field.name).collect()
        }
    };
}

events! {
    /// `session.started`. A chain of events begins. A chain of the CRA interface holds only the agent and the goal.
    SessionStarted(SessionStarted) = SESSION_STARTED,
    /// `ckp.agent.described`. An agent starts. The content is the agent's configuration that a replay needs.
    AgentDescribed(AgentDescribed) = AGENT_DESCRIBED,
    /// `ckp.tool.described`. The agent read a tool's description for the first time in this run. The content is the description
    /// that rules see.
    ToolDescribed(ToolDescribed) = TOOL_DESCRIBED,
    /// `session.ended`. A chain of events ends normally.
    SessionEnded(SessionEnded) = SESSION_ENDED,
    /// `ckp.lifecycle.transition`. The agent's lifecycle state changed (CKP §8).
    LifecycleChanged(LifecycleChanged) = LIFECYCLE,
    /// `ckp.message.accepted`. An inbound message was accepted.
    MessageAccepted(MessageAccepted) = MESSAGE_ACCEPTED,
    /// `ckp.message.attached`. An image of the message that is accepted next. The content is the image.
    MessageAttached(MessageAttached) = MESSAGE_ATTACHED,
    /// `ckp.message.framed`. Text that the model reads before the next message. The content is that text.
    MessageFramed(MessageFramed) = MESSAGE_FRAMED,
    /// `ckp.message.tools`. The client's own tools that came with a message. The content is the tools.
    MessageTools(MessageTools) = MESSAGE_TOOLS,
    /// `ckp.client.called`. A call of a client's own tool was handed to the client. The content is the call.
    ClientToolCalled(ClientToolCalled) = CLIENT_CALLED,
    /// `ckp.message.refused`. An inbound message was rejected.
    MessageRefused(MessageRefused) = MESSAGE_REFUSED,
    /// `ckp.message.answered`. A message's turn ended.
    MessageAnswered(MessageAnswered) = MESSAGE_ANSWERED,
    /// `ckp.message.resumed`. An interrupted turn continues after a restart.
    MessageResumed(MessageResumed) = MESSAGE_RESUMED,
    /// `ckp.message.dead`. A message's turn can't be finished; it is in the dead-letter box.
    MessageDead(MessageDead) = MESSAGE_DEAD,
    /// `ckp.claims.judged`. A model checked an answer for sentences that the record does not support.
    ClaimsJudged(ClaimsJudged) = CLAIMS_JUDGED,
    /// `ckp.conversation.cleared`. A person cleared the conversation. Earlier messages leave the context but stay in the record.
    ConversationCleared(ConversationCleared) = CONVERSATION_CLEARED,
    /// `ckp.conversation.model`. A person chose which model answers the conversation's next messages, and how much it thinks.
    ConversationModel(ConversationModel) = CONVERSATION_MODEL,
    /// `ckp.turn.stopped`. The loop guard ended a turn.
    TurnStopped(TurnStopped) = TURN_STOPPED,
    /// `ckp.delivery.started`. An answer is about to be sent to its conversation.
    DeliveryStarted(DeliveryStarted) = DELIVERY_STARTED,
    /// `ckp.delivery.ended`. An attempt to deliver an answer ended.
    DeliveryEnded(DeliveryEnded) = DELIVERY_ENDED,
    /// `ckp.delivery.requeued`. The delivery of an undelivered answer is tried again.
    DeliveryRequeued(DeliveryRequeued) = DELIVERY_REQUEUED,
    /// `ckp.provider.requested`. A request to a model starts. The amounts are the reserved amounts.
    ProviderRequested(ProviderRequested) = PROVIDER_REQUESTED,
    /// `ckp.provider.completed`. A model answered.
    ProviderCompleted(ProviderCompleted) = PROVIDER_COMPLETED,
    /// `ckp.provider.failed`. An attempt of a model request failed.
    ProviderFailed(ProviderFailed) = PROVIDER_FAILED,
    /// `ckp.provider.adapted`. From now on, requests to an endpoint use another format, or are smaller.
    ProviderAdapted(ProviderAdapted) = PROVIDER_ADAPTED,
    /// `ckp.provider.unreachable`. A provider could not be reached after the start.
    ProviderUnreachable(ProviderUnreachable) = PROVIDER_UNREACHABLE,
    /// `ckp.budget.warned`. A budget limit passed its warning threshold.
    BudgetWarned(BudgetWarned) = BUDGET_WARNED,
    /// `ckp.budget.dry_run`. A dry run ended. The cost of its models counts against the agent's budgets.
    DryRunSpent(DryRunSpent) = DRY_RUN_SPENT,
    /// `action.requested`. A caller requests a tool call.
    ActionRequested(ActionRequested) = ACTION_REQUESTED,
    /// `action.approved`. The decision that a call may run. It is durable before the effect begins.
    ActionApproved(ActionApproved) = ACTION_APPROVED,
    /// `action.denied`. The call may not run.
    ActionDenied(ActionDenied) = ACTION_DENIED,
    /// `action.executed`. The call ran.
    ActionExecuted(ActionExecuted) = ACTION_EXECUTED,
    /// `action.failed`. The call did not run, was cut short, or its outcome is unknown.
    ActionFailed(ActionFailed) = ACTION_FAILED,
    /// `ckp.policy.audited`. An `audit-only` rule let a call pass.
    ActionAudited(ActionAudited) = AUDIT,
    /// `ckp.effect.resolved`. The unknown outcome of an effect was determined.
    EffectResolved(EffectResolved) = EFFECT_RESOLVED,
    /// `ckp.egress.connected`. A network connection of a call was served.
    EgressConnected(EgressConnected) = EGRESS_CONNECTED,
    /// `ckp.egress.refused`. A network connection of a call was refused or closed.
    EgressRefused(EgressRefused) = EGRESS_REFUSED,
    /// `ckp.egress.summed`. Totals of a call's further network connections.
    EgressSummed(EgressSummed) = EGRESS_SUMMED,
    /// `ckp.approval.requested`. An approval was requested from a person.
    ApprovalRequested(ApprovalRequested) = APPROVAL_REQUESTED,
    /// `ckp.approval.answered`. An approval request was answered, or expired.
    ApprovalAnswered(ApprovalAnswered) = APPROVAL_ANSWERED,
    /// `ckp.approval.voided`. A precondition of an approval changed before the call ran.
    ApprovalVoided(ApprovalVoided) = APPROVAL_VOIDED,
    /// `ckp.approval.granted`. A person gave a standing grant: later calls that match it need no approval.
    ApprovalGranted(ApprovalGranted) = APPROVAL_GRANTED,
    /// `ckp.approval.revoked`. A standing grant ended.
    ApprovalRevoked(ApprovalRevoked) = APPROVAL_REVOKED,
    /// `ckp.stop.engaged`. An operator stopped the agent, or a session.
    StopEngaged(StopEngaged) = STOP_ENGAGED,
    /// `ckp.stop.lifted`. An operator lifted a stop.
    StopLifted(StopLifted) = STOP_LIFTED,
    /// `ckp.undo.started`. A person starts to restore what calls of the session overwrote. The content is the list.
    UndoStarted(UndoStarted) = UNDO_STARTED,
    /// `ckp.undo.ended`. An undo ended.
    UndoEnded(UndoEnded) = UNDO_ENDED,
    /// `ckp.context.trimmed`. Old messages were removed from the model's context.
    ContextTrimmed(ContextTrimmed) = CONTEXT_TRIMMED,
    /// `ckp.context.compacted`. A summary replaced the oldest turns in the context. The content is the summary and the list of
    /// replaced messages.
    ContextCompacted(ContextCompacted) = CONTEXT_COMPACTED,
    /// `ckp.context.written`. The agent wrote one of its context files.
    ContextWritten(ContextWritten) = CONTEXT_WRITTEN,
    /// `ckp.context.read`. A context file differs from the session's record of it. The content is the file's new text.
    ContextRead(ContextRead) = CONTEXT_READ,
    /// `ckp.context.tainted`. Text of files with untrusted content entered a context.
    ContextTainted(ContextTainted) = CONTEXT_TAINTED,
    /// `ckp.screen.secret`. Secrets were found in a text.
    ScreenSecret(ScreenFinding) = SCREEN_SECRET shared,
    /// `ckp.screen.injection`. A text addresses the model over its operator's head.
    ScreenInjection(ScreenFinding) = SCREEN_INJECTION shared,
    /// `ckp.screen.input`. A text is not valid input.
    ScreenInput(ScreenInput) = SCREEN_INPUT,
    /// `ckp.screen.judged`. A model judged a text.
    ScreenJudged(ScreenJudged) = SCREEN_JUDGED,
    /// `ckp.content.redacted`. Contents of the session were erased.
    ContentRedacted(ContentRedacted) = CONTENT_REDACTED,
    /// `ckp.memory.requested`. Entries are to be stored: durable before they are.
    MemoryRequested(MemoryWrite) = MEMORY_REQUESTED shared,
    /// `ckp.memory.stored`. Entries were stored.
    MemoryStored(MemoryWrite) = MEMORY_STORED shared,
    /// `ckp.memory.queried`. A store was asked.
    MemoryQueried(MemoryQueried) = MEMORY_QUERIED,
    /// `ckp.memory.recalled`. Entries were recalled before a turn. The content is the entries.
    MemoryRecalled(MemoryRecalled) = MEMORY_RECALLED,
    /// `ckp.memory.expired`. Retention deleted entries permanently.
    MemoryExpired(MemoryExpired) = MEMORY_EXPIRED,
    /// `ckp.memory.compacted`. A store was compacted.
    MemoryCompacted(MemoryCompacted) = MEMORY_COMPACTED,
    /// `ckp.memory.forgotten`. A person or a program outside the agent deleted entries.
    MemoryForgotten(MemoryForgotten) = MEMORY_FORGOTTEN,
    /// `ckp.memory.restored`. Entries that compaction had set aside were restored.
    MemoryRestored(MemoryRestored) = MEMORY_RESTORED,
    /// `ckp.skill.invoked`. A skill's instruction was added to a turn.
    SkillInvoked(SkillInvoked) = SKILL_INVOKED,
    /// `ckp.skill.repaired`. A skill's result did not match its `output_schema`. The model is asked once more.
    SkillRepaired(SkillRepaired) = SKILL_REPAIRED,
    /// `ckp.skill.finished`. A skill ended: its actual use and its estimates.
    SkillFinished(SkillFinished) = SKILL_FINISHED,
    /// `ckp.world_model.planned`. What a skill's world model predicted, and what of it is followed; the content is everything
    /// that was weighed.
    WorldModelPlanned(WorldModelPlanned) = WORLD_MODEL_PLANNED,
    /// `ckp.world_model.compared`. The actual result of a plan, compared with the prediction.
    WorldModelCompared(WorldModelCompared) = WORLD_MODEL_COMPARED,
    /// `ckp.swarm.run`. A task was given to the whole swarm.
    SwarmRun(SwarmProgress) = SWARM_RUN shared,
    /// `ckp.swarm.try`. A try of a member at a task began or ended.
    SwarmTry(SwarmProgress) = SWARM_TRY shared,
    /// `ckp.swarm.refused`. A report was not accepted.
    SwarmRefused(SwarmProgress) = SWARM_REFUSED shared,
    /// `ckp.swarm.circuit`. A member's circuit breaker changed.
    SwarmCircuit(SwarmProgress) = SWARM_CIRCUIT shared,
    /// `ckp.swarm.dead_lettered`. A task went to the dead-letter box.
    SwarmDeadLettered(SwarmProgress) = SWARM_DEAD_LETTERED shared,
    /// `ckp.swarm.aggregated`. Answers became one.
    SwarmAggregated(SwarmProgress) = SWARM_AGGREGATED shared,
    /// `ckp.swarm.ended`. A run ended.
    SwarmEnded(SwarmProgress) = SWARM_ENDED shared,
    /// `ckp.swarm.led`. A host coordinates the swarm from now on.
    SwarmLed(SwarmProgress) = SWARM_LED shared,
    /// `ckp.swarm.delegated`. A task was given to a peer. `peer`, `seat` and `task_hash`: written by the first versions only.
    SwarmDelegated(SwarmDelegated) = SWARM_DELEGATED,
    /// `ckp.swarm.reported`. A task's end was reported. With `result_hash` it is a single peer's report, with `fact_hash`
    /// that of a team.
    SwarmReported(SwarmReported) = SWARM_REPORTED,
    /// `ckp.swarm.broadcast`. A message went to all peers.
    SwarmBroadcast(SwarmBroadcast) = SWARM_BROADCAST,
    /// `ckp.channel.refused`. A channel refused a sender or a message.
    ChannelRefused(ChannelRefused) = CHANNEL_REFUSED,
    /// `ckp.channel.pairing`. A pairing code was issued, approved or denied, or a pairing was revoked.
    ChannelPairing(ChannelPairing) = CHANNEL_PAIRING,
    /// `ckp.channel.run`. A trigger started, skipped, queued or missed a run.
    ChannelRun(ChannelRun) = CHANNEL_RUN,
    /// `ckp.push.given_up`. The delivery of a task's push notification was given up.
    PushGivenUp(PushGivenUp) = PUSH_GIVEN_UP,
    /// `carp.request.received`. A CARP request arrived. Fields that are not set or have the default are left out.
    CarpRequestReceived(CarpRequestReceived) = CARP_REQUEST,
    /// `carp.resolution.completed`. A CARP request was resolved.
    CarpResolutionCompleted(CarpResolutionCompleted) = CARP_COMPLETED,
    /// `error.occurred`. A CARP request failed.
    CarpErrorOccurred(CarpErrorOccurred) = ERROR_OCCURRED,
    /// `policy.evaluated`. An Atlas evaluated one action.
    PolicyEvaluated(PolicyEvaluated) = POLICY_EVALUATED,
    /// `policy.violated`. An execution violated a policy.
    PolicyViolated(PolicyViolated) = POLICY_VIOLATED,
    /// `context.injected`. A context block was delivered to the reader.
    ContextInjected(ContextInjected) = CONTEXT_INJECTED,
    /// `context.redacted`. A context block was left out.
    ContextRedacted(ContextRedacted) = CONTEXT_REDACTED,
    /// `ckp.carp.session`. The owner of a CRA session. The content is the goal or, with `about_hash`, the whole opening request.
    CarpSessionOpened(CarpSessionOpened) = CARP_SESSION,
    /// `ckp.carp.issued`. A resolution under which actions may be executed. The content is the data that execution needs.
    CarpResolutionIssued(CarpResolutionIssued) = CARP_ISSUED,
    /// `ckp.carp.charged`. An execution used up part of the limits of Atlases.
    CarpLimitsCharged(CarpLimitsCharged) = CARP_CHARGED,
    /// `ckp.carp.answered`. A person answered the approval request of a waiting action.
    CarpApprovalAnswered(CarpApprovalAnswered) = CARP_ANSWERED,
    /// `ckp.atlas.described`. An Atlas of the configuration is in force in this run. The content is the Atlas's source.
    AtlasDescribed(AtlasDescribed) = ATLAS_DESCRIBED,
    /// `ckp.atlas.loaded`. An Atlas was loaded over the API.
    AtlasLoaded(AtlasLoaded) = ATLAS_LOADED,
    /// `ckp.atlas.removed`. An Atlas was removed over the API.
    AtlasRemoved(AtlasRemoved) = ATLAS_REMOVED,
}

/// Reads the payload of a known type.
fn read_payload<P: EventPayload>(kind: &str, payload: &str) -> Result<PayloadReading<P>, EventError> {
    // serde would also read a JSON array as a struct.
    if !payload.starts_with('{') {
        return Err(event_error(kind, PayloadFault::of_text(payload)));
    }
    let error = match serde_json::from_str(payload) {
        Ok(read) => return Ok(PayloadReading::Whole(read)),
        Err(error) => error,
    };
    match diagnose_payload(P::FIELDS, payload, &error) {
        FieldDiagnosis::Shortened => Ok(PayloadReading::Shortened(read_object(kind, payload)?)),
        FieldDiagnosis::Fault(fault) => Err(event_error(kind, fault)),
    }
}

/// Reads a payload that must be whole.
pub(crate) fn read_whole<P: EventPayload>(kind: &str, payload: &str) -> Result<P, EventError> {
    match read_payload(kind, payload)? {
        PayloadReading::Whole(read) => Ok(read),
        PayloadReading::Shortened(_) => Err(event_error(kind, PayloadFault::Shortened)),
    }
}

/// Reads any payload as a JSON object, without a struct for it.
fn read_object(kind: &str, payload: &str) -> Result<Box<RawValue>, EventError> {
    match serde_json::from_str::<Box<RawValue>>(payload) {
        Ok(raw) if raw.get().starts_with('{') => Ok(raw),
        // silent-ok: `of_text` reads the text again and finds the fault
        Ok(_) | Err(_) => Err(event_error(kind, PayloadFault::of_text(payload))),
    }
}

pub(crate) fn write_payload(payload: &impl Serialize) -> Box<RawValue> {
    // silent-ok: plain structs always serialise; were it otherwise, the journal would refuse this
    let raw = to_raw_value(payload).unwrap_or_else(|_| RawValue::NULL.to_owned());
    clawk_trace::bounded(raw)
}

/// The members of a payload of any type, for who compares or shows them all.
///
/// # Errors
/// It is not an object.
pub fn read_members(kind: &str, payload: &str) -> Result<Map<String, Value>, EventError> {
    // silent-ok: it is looked at again there
    serde_json::from_str(payload).map_err(|_| event_error(kind, PayloadFault::of_text(payload)))
}

fn event_error(kind: &str, fault: PayloadFault) -> EventError {
    EventError {
        kind: kind.to_owned(),
        fault,
    }
}
