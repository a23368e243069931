//! Converts a journal event to a telemetry fact: numbers, ids, digests, fixed words, and names that the operator declared. All
//! other text stays on this machine.

use std::collections::{BTreeMap, BTreeSet};

use clawk_events::Event;
use clawk_events::payload::{MemoryRecalled, ProviderCompleted, ProviderFailed};
use clawk_kernel::kind;
use clawk_kernel::ports::{FaultKind, RecordedEvent};
use clawk_manifest::Manifest;
use clawk_proto::Digest;
use clawk_telemetry::{ErrorFact, InferenceFact, Label, TelemetryFact, TelemetryFactKind, ToolCallFact};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

#[cfg(test)]
mod tests;

/// Largest number of tools with a name in telemetry. Further ones become `other`.
const MAX_TOOLS: usize = 512;
/// The error that stands for an event that can't be read.
const UNREADABLE: &str = "unreadable";
/// States of the lifecycle.
const STATES: &[&str] = &["INIT", "STARTING", "READY", "STOPPING", "STOPPED", "ERROR"];
/// States of a swarm's task, and steps of its attempts.
const STATUSES: &[&str] = &[
    "completed",
    "failed",
    "partial",
    "began",
    "reported",
    "told",
    "shared",
    "said",
    "lost",
    "over",
    "settled",
];
/// Reasons for a failed model request.
const FAULTS: &[&str] = &[
    FaultKind::Unreachable.as_str(),
    FaultKind::Timeout.as_str(),
    FaultKind::RateLimited.as_str(),
    FaultKind::ServerFault.as_str(),
    FaultKind::Cut.as_str(),
    FaultKind::Malformed.as_str(),
    FaultKind::Auth.as_str(),
    FaultKind::Rejected.as_str(),
    FaultKind::Unpriced.as_str(),
    FaultKind::ContextTooLong.as_str(),
    FaultKind::Cancelled.as_str(),
];

/// Event types from which facts are made.
pub(super) const KINDS: &[&str] = &[
    kind::LIFECYCLE,
    kind::TOOL_DESCRIBED,
    kind::MESSAGE_ACCEPTED,
    kind::MESSAGE_ANSWERED,
    kind::MESSAGE_DEAD,
    kind::MESSAGE_REFUSED,
    kind::PROVIDER_COMPLETED,
    kind::PROVIDER_FAILED,
    kind::PROVIDER_UNREACHABLE,
    kind::ACTION_REQUESTED,
    kind::ACTION_DENIED,
    kind::ACTION_EXECUTED,
    kind::ACTION_FAILED,
    kind::TURN_STOPPED,
    kind::ERROR_OCCURRED,
    kind::CHANNEL_REFUSED,
    kind::SKILL_INVOKED,
    kind::SKILL_REPAIRED,
    kind::SKILL_FINISHED,
    kind::WORLD_MODEL_PLANNED,
    kind::WORLD_MODEL_COMPARED,
    kind::MEMORY_STORED,
    kind::MEMORY_QUERIED,
    kind::MEMORY_RECALLED,
    kind::MEMORY_COMPACTED,
    kind::MEMORY_EXPIRED,
    kind::SWARM_RUN,
    kind::SWARM_DELEGATED,
    kind::SWARM_TRY,
    kind::SWARM_REPORTED,
    kind::SWARM_REFUSED,
    kind::SWARM_DEAD_LETTERED,
    kind::SWARM_AGGREGATED,
    kind::SWARM_BROADCAST,
    kind::SWARM_ENDED,
];

/// The names that may leave this machine.
#[derive(Debug, Clone, Default)]
pub(super) struct DeclaredNames {
    declared: BTreeSet<String>,
    tools: BTreeSet<String>,
    /// The model of each provider.
    models: BTreeMap<String, String>,
}

impl DeclaredNames {
    pub(super) fn of(manifest: &Manifest) -> Self {
        let tools = manifest.tools.iter().map(|tool| &tool.name);
        let skills = manifest.skills.iter().map(|skill| &skill.name);
        let models = manifest.world_models.iter().map(|model| &model.name);
        let providers = manifest.providers.iter().map(|provider| &provider.name);
        let stores = manifest.memory.iter().flat_map(|memory| &memory.stores);
        let stores = stores.map(|store| &store.name);
        let members = manifest.swarm.iter().flat_map(|swarm| &swarm.agents);
        let members = members.map(|member| &member.identity_ref);
        let all = tools
            .chain(skills)
            .chain(models)
            .chain(providers)
            .chain(stores)
            .chain(members);
        let of_providers = manifest.providers.iter();
        Self {
            declared: all.cloned().collect(),
            tools: BTreeSet::new(),
            models: of_providers
                .map(|provider| (provider.name.clone(), provider.model.clone()))
                .collect(),
        }
    }

    /// Adds a tool of the catalogue. A name that only a model invented is never added.
    fn learn(&mut self, tool: String) {
        if self.tools.len() < MAX_TOOLS {
            self.tools.insert(tool);
        }
    }

    fn label(&self, name: &str) -> Label {
        if self.declared.contains(name) || self.tools.contains(name) {
            Label::from_declared(name)
        } else {
            Label::from_declared(Label::OTHER)
        }
    }
}

/// Returns the digest of a swarm task's id, which may be a caller's own text.
fn task_digest(task: &str) -> Option<Digest> {
    (!task.is_empty()).then(|| Digest(Sha256::digest(task).into()))
}

/// Parses an id from a field that may hold any text.
fn id_of(text: &str) -> Option<Uuid> {
    text.parse().ok() // silent-ok: there is none
}

/// Converts an event to a fact, if telemetry covers its type. An unreadable event becomes an error fact and is logged; its numbers
/// are missing in the sums.
pub(super) fn of(event: &RecordedEvent, names: &mut DeclaredNames) -> Option<TelemetryFact> {
    let read = match Event::read(&event.kind, &event.payload) {
        Ok(read) => read,
        Err(error) => {
            let (session, sequence) = (event.session, event.sequence);
            tracing::warn!(%error, %session, sequence, "an event can't be read, and is in no sum of telemetry");
            return Some(fact_of(event, unreadable()));
        }
    };
    if let Event::ToolDescribed(tool) = read {
        names.learn(tool.action_id);
        return None;
    }
    Some(fact_of(event, what(&read, names)?))
}

fn fact_of(event: &RecordedEvent, what: TelemetryFactKind) -> TelemetryFact {
    TelemetryFact {
        at_us: event.at.0,
        session: event.session.0,
        sequence: event.sequence,
        what,
    }
}

fn unreadable() -> TelemetryFactKind {
    TelemetryFactKind::Trouble(ErrorFact {
        kind: Label::from_declared(UNREADABLE),
        turn: None,
    })
}

#[expect(clippy::too_many_lines, reason = "one arm for each type of event")]
fn what(event: &Event, names: &DeclaredNames) -> Option<TelemetryFactKind> {
    let trouble = |turn| {
        TelemetryFactKind::Trouble(ErrorFact {
            kind: Label::from_declared(event.kind()),
            turn,
        })
    };
    Some(match event {
        Event::LifecycleChanged(change) => TelemetryFactKind::Lifecycle {
            from: Label::one_of(&change.from, STATES),
            to: Label::one_of(&change.to, STATES),
        },
        Event::MessageAccepted(message) => TelemetryFactKind::TurnBegan {
            turn: message.message_id,
            task: message.task_id.value().and_then(|task| task_digest(task)),
        },
        Event::MessageAnswered(answer) => TelemetryFactKind::TurnEnded {
            turn: answer.message_id,
            duration_ms: answer.duration_ms,
            tokens: (answer.input_tokens, answer.output_tokens),
        },
        Event::ProviderCompleted(completed) => {
            TelemetryFactKind::Inferred(completed_inference(completed, names))
        }
        Event::ProviderFailed(failed) => TelemetryFactKind::Inferred(failed_inference(failed, names)),
        Event::ActionRequested(request) => TelemetryFactKind::CallWanted {
            request: id_of(&request.request_id)?,
            arguments: request.parameters_hash,
        },
        Event::ActionDenied(denied) => TelemetryFactKind::Called(ToolCallFact {
            request: id_of(&denied.request_id)?,
            turn: denied.turn,
            tool: names.label(&denied.action_id),
            outcome: "denied",
            duration_ms: 0,
            result: Some(denied.result_hash),
            fault: Some(Label::from_declared("denied")),
        }),
        Event::ActionExecuted(executed) => TelemetryFactKind::Called(ToolCallFact {
            request: id_of(&executed.request_id)?,
            turn: executed.turn,
            tool: names.label(&executed.action_id),
            outcome: "executed",
            duration_ms: executed.duration_ms,
            result: Some(executed.result_hash),
            fault: executed.is_error.then(|| Label::from_declared("tool_error")),
        }),
        Event::ActionFailed(failed) => TelemetryFactKind::Called(ToolCallFact {
            request: id_of(&failed.request_id)?,
            turn: failed.turn,
            tool: names.label(&failed.action_id),
            outcome: "failed",
            duration_ms: failed.duration_ms,
            result: Some(failed.result_hash),
            fault: Some(Label::from_declared("failed")),
        }),
        Event::SkillInvoked(skill) => skill_fact(names, "invoked", &skill.skill, skill.turn),
        Event::SkillRepaired(skill) => skill_fact(names, "repaired", &skill.skill, skill.turn),
        Event::SkillFinished(skill) => skill_fact(names, "finished", &skill.skill, skill.turn),
        Event::WorldModelPlanned(planned) => TelemetryFactKind::Planned {
            skill: names.label(&planned.skill),
            world_model: names.label(&planned.world_model),
            candidates: planned.candidates,
            revisions: u64::from(planned.tries)
                .saturating_sub(1)
                .saturating_add(u64::from(planned.fallback.is_some())),
            turn: planned.turn,
        },
        Event::WorldModelCompared(compared) => TelemetryFactKind::Compared {
            skill: names.label(&compared.skill),
            world_model: names.label(&compared.world_model),
            error_permille: compared.error_permille,
            turn: Some(compared.turn),
        },
        Event::MemoryStored(stored) => memory_fact(names, "stored", &stored.store, stored.count),
        Event::MemoryQueried(queried) => TelemetryFactKind::Memory {
            op: "queried",
            store: names.label(&queried.store),
            count: queried.found,
            hit: Some(queried.found > 0),
            turn: None,
        },
        Event::MemoryRecalled(recalled) => recalled_fact(names, recalled),
        Event::MemoryCompacted(compacted) => {
            memory_fact(names, "compacted", &compacted.store, compacted.entries_after)
        }
        Event::MemoryExpired(expired) => memory_fact(names, "expired", &expired.store, expired.entries),
        Event::SwarmRun(progress)
        | Event::SwarmTry(progress)
        | Event::SwarmRefused(progress)
        | Event::SwarmDeadLettered(progress)
        | Event::SwarmAggregated(progress)
        | Event::SwarmEnded(progress) => SwarmStep {
            member: progress.member.as_deref(),
            task: progress.task_id.as_deref(),
            state: progress.status.as_deref().or(progress.state.as_deref()),
            duration_ms: progress.duration_ms.unwrap_or_default(),
        }
        .fact(event.kind(), names),
        Event::SwarmDelegated(delegated) => SwarmStep {
            member: delegated.member.as_deref(),
            task: Some(&delegated.task_id),
            ..SwarmStep::default()
        }
        .fact(event.kind(), names),
        Event::SwarmReported(reported) => SwarmStep {
            member: reported.member.as_deref(),
            task: Some(&reported.task_id),
            state: Some(&reported.status),
            duration_ms: reported.duration_ms,
        }
        .fact(event.kind(), names),
        Event::SwarmBroadcast(_) => SwarmStep::default().fact(event.kind(), names),
        Event::TurnStopped(stopped) => trouble(Some(stopped.turn)),
        Event::MessageDead(dead) => trouble(Some(dead.message_id)),
        Event::MessageRefused(refused) => trouble(Some(refused.message_id)),
        Event::ProviderUnreachable(_) | Event::CarpErrorOccurred(_) | Event::ChannelRefused(_) => {
            trouble(None)
        }
        Event::Shortened { .. } => unreadable(),
        // Telemetry does not cover these events.
        Event::SessionStarted(_)
        | Event::AgentDescribed(_)
        | Event::ToolDescribed(_)
        | Event::SessionEnded(_)
        | Event::MessageAttached(_)
        | Event::MessageFramed(_)
        | Event::MessageTools(_)
        | Event::ClientToolCalled(_)
        | Event::MessageResumed(_)
        | Event::ClaimsJudged(_)
        | Event::ConversationCleared(_)
        | Event::ConversationModel(_)
        | Event::DeliveryStarted(_)
        | Event::DeliveryEnded(_)
        | Event::DeliveryRequeued(_)
        | Event::ProviderRequested(_)
        | Event::ProviderAdapted(_)
        | Event::BudgetWarned(_)
        | Event::DryRunSpent(_)
        | Event::ActionApproved(_)
        | Event::ActionAudited(_)
        | Event::EffectResolved(_)
        | Event::EgressConnected(_)
        | Event::EgressRefused(_)
        | Event::EgressSummed(_)
        | Event::ApprovalRequested(_)
        | Event::ApprovalAnswered(_)
        | Event::ApprovalVoided(_)
        | Event::ApprovalGranted(_)
        | Event::ApprovalRevoked(_)
        | Event::StopEngaged(_)
        | Event::StopLifted(_)
        | Event::UndoStarted(_)
        | Event::UndoEnded(_)
        | Event::ContextTrimmed(_)
        | Event::ContextCompacted(_)
        | Event::ContextWritten(_)
        | Event::ContextRead(_)
        | Event::ContextTainted(_)
        | Event::ScreenSecret(_)
        | Event::ScreenInjection(_)
        | Event::ScreenInput(_)
        | Event::ScreenJudged(_)
        | Event::ContentRedacted(_)
        | Event::MemoryRequested(_)
        | Event::MemoryForgotten(_)
        | Event::MemoryRestored(_)
        | Event::SwarmCircuit(_)
        | Event::SwarmLed(_)
        | Event::ChannelPairing(_)
        | Event::ChannelRun(_)
        | Event::PushGivenUp(_)
        | Event::CarpRequestReceived(_)
        | Event::CarpResolutionCompleted(_)
        | Event::PolicyEvaluated(_)
        | Event::PolicyViolated(_)
        | Event::ContextInjected(_)
        | Event::ContextRedacted(_)
        | Event::CarpSessionOpened(_)
        | Event::CarpResolutionIssued(_)
        | Event::CarpLimitsCharged(_)
        | Event::CarpApprovalAnswered(_)
        | Event::AtlasDescribed(_)
        | Event::AtlasLoaded(_)
        | Event::AtlasRemoved(_)
        | Event::Unknown { .. } => return None,
    })
}

fn inference_model(provider: &str, names: &DeclaredNames) -> Label {
    Label::from_declared(names.models.get(provider).map_or(Label::OTHER, String::as_str))
}

fn completed_inference(completed: &ProviderCompleted, names: &DeclaredNames) -> InferenceFact {
    InferenceFact {
        inference: completed.inference_id,
        attempt: completed.attempt.into(),
        turn: completed.turn,
        provider: names.label(&completed.provider),
        model: inference_model(&completed.provider, names),
        input_tokens: completed.input_tokens,
        output_tokens: completed.output_tokens,
        cost_microusd: completed.cost_microusd,
        duration_ms: completed.duration_ms,
        fault: None,
    }
}

fn failed_inference(failed: &ProviderFailed, names: &DeclaredNames) -> InferenceFact {
    InferenceFact {
        inference: failed.inference_id,
        attempt: failed.attempt.into(),
        turn: failed.turn,
        provider: names.label(&failed.provider),
        model: inference_model(&failed.provider, names),
        input_tokens: failed.input_tokens,
        output_tokens: failed.output_tokens,
        cost_microusd: failed.cost_microusd,
        duration_ms: failed.duration_ms,
        fault: Some(Label::one_of(&failed.kind, FAULTS)),
    }
}

fn skill_fact(names: &DeclaredNames, op: &'static str, skill: &str, turn: Uuid) -> TelemetryFactKind {
    TelemetryFactKind::Skill {
        op,
        skill: names.label(skill),
        turn: Some(turn),
    }
}

fn memory_fact(names: &DeclaredNames, op: &'static str, store: &str, count: u64) -> TelemetryFactKind {
    TelemetryFactKind::Memory {
        op,
        store: names.label(store),
        count,
        hit: None,
        turn: None,
    }
}

/// Makes the fact of a recall. A recall asks several stores and counts as a hit if one of them found something.
fn recalled_fact(names: &DeclaredNames, recalled: &MemoryRecalled) -> TelemetryFactKind {
    let count = recalled
        .searches
        .iter()
        .map(|search| search.ids.len())
        .sum::<usize>();
    let store = match recalled.searches.as_slice() {
        [one] => one.store.as_str(),
        _ => "",
    };
    TelemetryFactKind::Memory {
        op: "recalled",
        store: names.label(store),
        count: u64::try_from(count).unwrap_or(u64::MAX),
        hit: Some(count > 0),
        turn: Some(recalled.turn),
    }
}

/// The fields of a swarm event that telemetry uses.
#[derive(Debug, Default)]
struct SwarmStep<'a> {
    member: Option<&'a str>,
    task: Option<&'a str>,
    state: Option<&'a str>,
    duration_ms: u64,
}

impl SwarmStep<'_> {
    fn fact(&self, kind: &str, names: &DeclaredNames) -> TelemetryFactKind {
        TelemetryFactKind::Swarm {
            op: Label::from_declared(kind.rsplit('.').next().unwrap_or_default()),
            member: self.member.map(|member| names.label(member)),
            task: self.task.and_then(task_digest),
            status: self.state.map(|state| Label::one_of(state, STATUSES)),
            duration_ms: self.duration_ms,
        }
    }
}
