//! What the activity log says of each event of the journal.

use std::collections::{BTreeMap, BTreeSet};

use clawk_events::Event;
use clawk_events::payload::{DeliveryEnded, ProviderFailed, SwarmProgress};
use clawk_events::shape::{PairingStep, PolicyViolation};
use clawk_telemetry::Label;
use uuid::Uuid;

use super::line::{ActivityLevel, ActivityLine};

/// Largest number of tools whose names are known. Further ones are written as `other`.
const MAX_TOOLS: usize = 4096;
/// Largest number of open turns whose cost is summed.
const MAX_TURNS: usize = 4096;

/// Makes lines of events. Keeps the names of the catalogue's tools, so that a name that a model invented is not written, and the
/// cost of open turns.
#[derive(Debug, Default)]
pub(crate) struct ActivityDescriber {
    tools: BTreeSet<String>,
    costs: BTreeMap<Uuid, u64>,
}

fn info(what: &'static str) -> ActivityLine {
    ActivityLine::new(ActivityLevel::Info, what)
}

fn warn(what: &'static str) -> ActivityLine {
    ActivityLine::new(ActivityLevel::Warn, what)
}

fn error(what: &'static str) -> ActivityLine {
    ActivityLine::new(ActivityLevel::Error, what)
}

impl ActivityDescriber {
    /// Returns the line of an event; `None`: the event has none. An event that can't be read has a line that says so.
    pub(crate) fn describe_event(&mut self, kind: &str, payload: &str) -> Option<ActivityLine> {
        let event = match Event::read(kind, payload) {
            Ok(event) => event,
            // silent-ok: the fault may quote the payload; `clawk trace verify` names it
            Err(_) => return Some(warn("an event can't be read").with_code("type", kind)),
        };
        self.note_facts(&event);
        let line = self.describe_work(&event);
        self.forget_ended(&event);
        line
    }

    /// Remembers tools of the catalogue and costs of turns.
    fn note_facts(&mut self, event: &Event) {
        if let Event::ToolDescribed(tool) = event {
            self.learn_tool(&tool.action_id);
        }
        // Only a tool of the catalogue is ever approved.
        if let Event::ActionApproved(approved) = event {
            self.learn_tool(&approved.action_id);
        }
        if let Event::ProviderCompleted(done) = event {
            self.add_cost(done.turn, done.cost_microusd);
        }
        if let Event::ProviderFailed(failed) = event {
            self.add_cost(failed.turn, failed.cost_microusd);
        }
    }

    fn learn_tool(&mut self, name: &str) {
        if self.tools.len() < MAX_TOOLS && !self.tools.contains(name) {
            self.tools.insert(name.to_owned());
        }
    }

    fn add_cost(&mut self, turn: Uuid, cost: Option<u64>) {
        if let Some(cost) = cost {
            if self.costs.len() >= MAX_TURNS {
                self.costs.pop_first();
            }
            let sum = self.costs.entry(turn).or_default();
            *sum = sum.saturating_add(cost);
        }
    }

    fn forget_ended(&mut self, event: &Event) {
        if let Event::MessageAnswered(answered) = event {
            self.costs.remove(&answered.message_id);
        }
    }

    fn tool<'a>(&self, name: &'a str) -> &'a str {
        if self.tools.contains(name) {
            name
        } else {
            Label::OTHER
        }
    }

    /// One arm for each event, without `_`: a new event breaks the build here until somebody says what its line is, or that it has
    /// none.
    #[expect(clippy::too_many_lines, reason = "one arm for each type of event")]
    fn describe_work(&self, event: &Event) -> Option<ActivityLine> {
        Some(match event {
            Event::LifecycleChanged(change) => info("agent")
                .with_code("from", &change.from)
                .with_code("to", &change.to),
            Event::MessageAccepted(message) => {
                let line = match message.channel.value() {
                    Some(channel) => info("turn began").with_name("channel", channel),
                    None => info("turn began").with_code("door", &message.door),
                };
                line.with_code("role", message.role.as_deref().unwrap_or("none"))
                    .with_number("bytes", message.size_bytes)
                    .in_turn(Some(message.message_id))
            }
            Event::MessageRefused(refused) => warn("message refused")
                .with_code("door", &refused.door)
                .with_code("reason", refused.reason.as_str())
                .in_turn(Some(refused.message_id)),
            Event::MessageAnswered(answered) => info("turn ended")
                .with_code("end", &answered.end)
                .with_number("ms", answered.duration_ms)
                .with_number("input_tokens", answered.input_tokens)
                .with_number("output_tokens", answered.output_tokens)
                .with_cost(self.costs.get(&answered.message_id).copied())
                .with_flag("declined", answered.declined)
                .in_turn(Some(answered.message_id)),
            Event::MessageResumed(resumed) => info("turn goes on after a restart")
                .with_number("attempt", resumed.attempt.into())
                .with_flag("waits_for_person", resumed.waiting)
                .in_turn(Some(resumed.message_id)),
            Event::MessageDead(dead) => error("turn is a dead letter; `clawk dead-letters` lists it")
                .with_code("reason", dead.why.as_deref().unwrap_or(Label::OTHER))
                .in_turn(Some(dead.message_id)),
            Event::TurnStopped(stopped) => warn("turn stopped by a guard")
                .with_code("guard", &stopped.guard)
                .in_turn(Some(stopped.turn)),
            Event::ConversationCleared(cleared) => {
                info("conversation begins anew").with_number("messages", cleared.messages)
            }
            Event::ConversationModel(chosen) => {
                let line = info("model chosen");
                match &chosen.provider {
                    Some(provider) => line.with_name("provider", provider),
                    None => line.with_code("provider", "default"),
                }
            }
            Event::DeliveryEnded(delivery) => delivery_line(delivery),
            Event::DeliveryRequeued(requeued) => {
                info("delivery is tried again").in_turn(Some(requeued.message_id))
            }
            Event::ProviderCompleted(done) => info("model answered")
                .with_name("provider", &done.provider)
                .with_name("model", &done.model)
                .with_number("ms", done.duration_ms)
                .with_number("input_tokens", done.input_tokens)
                .with_number("cached_tokens", done.cached_tokens)
                .with_number("output_tokens", done.output_tokens)
                .with_number("calls", done.call_count)
                .with_cost(done.cost_microusd)
                .in_turn(Some(done.turn)),
            Event::ProviderFailed(failed) => failed_line(failed),
            Event::ProviderAdapted(adapted) => info("model requests are written differently from now on")
                .with_name("provider", &adapted.provider)
                .in_turn(Some(adapted.turn)),
            Event::ProviderUnreachable(lost) => {
                warn("provider can't be reached").with_name("provider", &lost.provider)
            }
            Event::BudgetWarned(warned) => warn("budget is nearly used up")
                .with_name("budget", &warned.purse)
                .with_name("limit", &warned.limit)
                .with_number("spent", warned.spent)
                .with_number("bound", warned.bound),
            Event::DryRunSpent(_) => info("a dry run was paid for"),
            Event::ActionApproved(approved) => info("call allowed")
                .with_name("tool", self.tool(&approved.action_id))
                .with_code("rule", approved.rule_id.as_deref().unwrap_or("none"))
                .with_code("request", &approved.request_id)
                .in_turn(approved.turn),
            Event::ActionDenied(denied) => warn("call denied")
                .with_name("tool", self.tool(&denied.action_id))
                .with_code("rule", denied.rule_id.as_deref().unwrap_or("none"))
                .with_code("request", &denied.request_id)
                .in_turn(denied.turn),
            Event::ActionExecuted(done) => info("call done")
                .with_name("tool", self.tool(&done.action_id))
                .with_number("ms", done.duration_ms)
                .with_flag("error", done.is_error)
                .with_code("level", &done.level)
                .with_code("request", &done.request_id)
                .in_turn(done.turn),
            Event::ActionFailed(failed) => warn("call failed")
                .with_name("tool", self.tool(&failed.action_id))
                .with_code("code", &failed.error_code)
                .with_number("ms", failed.duration_ms)
                .with_code("request", &failed.request_id)
                .in_turn(failed.turn),
            Event::EffectResolved(effect) => info("outcome of a call is known")
                .with_name("tool", self.tool(&effect.action_id))
                .with_code("outcome", &effect.outcome),
            Event::EgressRefused(refused) => warn("connection refused")
                .with_name("tool", self.tool(&refused.action_id))
                .with_code("code", &refused.code)
                .with_code("request", &refused.request_id),
            Event::ApprovalRequested(question) => info("question put")
                .with_name("tool", self.tool(&question.action_id))
                .with_code("rule", question.rule_id.as_deref().unwrap_or("none"))
                .with_code("expires_at", &question.expires_at)
                .with_code("request", &question.request_id),
            Event::ApprovalAnswered(answered) => info("question answered")
                .with_name("tool", self.tool(&answered.action_id))
                .with_code("answer", &answered.answer)
                .with_name("channel", &answered.channel)
                .with_code("role", &answered.role)
                .with_code("request", &answered.request_id),
            Event::ApprovalVoided(voided) => warn("approval is void: something changed before the call")
                .with_name("tool", self.tool(&voided.action_id))
                .with_code("request", &voided.request_id),
            Event::ApprovalGranted(granted) => info("standing approval given")
                .with_name("tool", self.tool(&granted.action_id))
                .with_code("lasting", &granted.lasting)
                .with_name("channel", &granted.channel)
                .with_code("grant", &granted.grant_id),
            Event::ApprovalRevoked(revoked) => {
                info("standing approval ended").with_code("grant", &revoked.grant_id)
            }
            Event::StopEngaged(stop) => warn("stopped by a person")
                .with_code("level", &stop.level)
                .with_name("channel", &stop.channel)
                .with_flag("whole_agent", stop.session.is_none()),
            Event::StopLifted(lifted) => info("stop lifted")
                .with_name("channel", &lifted.channel)
                .with_flag("whole_agent", lifted.session.is_none()),
            Event::UndoEnded(undo) => info("undo ended")
                .with_number("restored", undo.done)
                .with_number("failed", undo.failed),
            Event::ContextTrimmed(trimmed) => info("context trimmed")
                .with_number("dropped_messages", trimmed.dropped_messages)
                .with_number("kept_messages", trimmed.kept_messages)
                .in_turn(Some(trimmed.turn)),
            Event::ContextCompacted(compacted) => info("context summed up")
                .with_number("replaced_messages", compacted.replaced_messages)
                .with_number("kept_messages", compacted.kept_messages)
                .in_turn(Some(compacted.turn)),
            Event::ScreenSecret(found) => warn("secret found")
                .with_code("place", &found.place)
                .with_code("action", &found.action)
                .with_number("count", found.count),
            Event::ScreenInjection(found) => warn("injection found")
                .with_code("place", &found.place)
                .with_code("action", &found.action)
                .with_number("count", found.count),
            Event::ScreenInput(found) => warn("input is not valid")
                .with_code("place", &found.place)
                .with_code("action", &found.action),
            Event::ContentRedacted(redacted) => info("contents erased").with_number("count", redacted.count),
            Event::MemoryStored(stored) => info("memory stored")
                .with_name("store", &stored.store)
                .with_number("count", stored.count),
            Event::MemoryExpired(expired) => info("memory expired")
                .with_name("store", &expired.store)
                .with_number("count", expired.entries),
            Event::MemoryCompacted(compacted) => info("memory compacted")
                .with_name("store", &compacted.store)
                .with_number("before", compacted.entries_before)
                .with_number("after", compacted.entries_after),
            Event::MemoryForgotten(forgotten) => {
                info("memory forgotten").with_number("count", forgotten.count)
            }
            Event::SkillInvoked(invoked) => info("skill began")
                .with_name("skill", &invoked.skill)
                .with_flag("error", invoked.is_error)
                .in_turn(Some(invoked.turn)),
            Event::SkillFinished(finished) => info("skill ended")
                .with_name("skill", &finished.skill)
                .with_number("ms", finished.duration_ms)
                .with_number("calls", finished.calls)
                .with_number("tokens", finished.tokens)
                .in_turn(Some(finished.turn)),
            Event::SwarmRun(progress) => swarm_line(info("swarm run began"), progress),
            Event::SwarmRefused(progress) => swarm_line(warn("swarm report refused"), progress),
            Event::SwarmCircuit(progress) => swarm_line(warn("swarm circuit breaker"), progress),
            Event::SwarmDeadLettered(progress) => swarm_line(error("swarm task is a dead letter"), progress),
            Event::SwarmEnded(progress) => swarm_line(info("swarm run ended"), progress),
            Event::SwarmLed(progress) => swarm_line(info("swarm has a new coordinator"), progress),
            Event::SwarmReported(report) => info("swarm task reported")
                .with_name("member", report.member.as_deref().unwrap_or("none"))
                .with_code("status", &report.status)
                .with_number("ms", report.duration_ms)
                .with_cost(Some(report.cost_microusd)),
            Event::ChannelRefused(refused) => warn("channel refused a message")
                .with_name("channel", &refused.channel)
                .with_number("count", refused.count),
            Event::ChannelPairing(pairing) => info("pairing")
                .with_name("channel", &pairing.channel)
                .with_code("step", pairing_word(pairing.step)),
            Event::ChannelRun(run) => info("trigger")
                .with_name("channel", &run.channel)
                .with_code("step", &run.what),
            Event::PushGivenUp(push) => {
                warn("push notification given up").with_number("attempts", push.attempts.into())
            }
            Event::CarpResolutionCompleted(done) => info("resolution")
                .with_code("decision", &done.decision_type)
                .with_number("allowed", done.allowed_count)
                .with_number("denied", done.denied_count),
            Event::CarpErrorOccurred(failed) => {
                warn("CARP request failed").with_code("code", &failed.error_code)
            }
            Event::PolicyViolated(violated) => warn("Atlas policy violated")
                .with_name("policy", &violated.policy_id)
                .with_code("violation", violation_word(violated.violation_type)),
            Event::CarpApprovalAnswered(answered) => {
                info("question of an Atlas answered").with_code("answer", &answered.answer)
            }
            Event::AtlasLoaded(loaded) => info("Atlas loaded").with_name("atlas", &loaded.atlas_id),
            Event::AtlasRemoved(removed) => info("Atlas removed").with_name("atlas", &removed.atlas_id),
            Event::Shortened { kind, .. } => info("large event").with_name("type", kind),
            Event::Unknown { .. } => info("event of a later version"),
            // Steps within what has a line, and facts without interest to an operator.
            Event::SessionStarted(_)
            | Event::AgentDescribed(_)
            | Event::ToolDescribed(_)
            | Event::SessionEnded(_)
            | Event::MessageAttached(_)
            | Event::MessageFramed(_)
            | Event::MessageTools(_)
            | Event::ClientToolCalled(_)
            | Event::ClaimsJudged(_)
            | Event::DeliveryStarted(_)
            | Event::ProviderRequested(_)
            | Event::ActionRequested(_)
            | Event::ActionAudited(_)
            | Event::EgressConnected(_)
            | Event::EgressSummed(_)
            | Event::UndoStarted(_)
            | Event::ContextWritten(_)
            | Event::ContextRead(_)
            | Event::ContextTainted(_)
            | Event::ScreenJudged(_)
            | Event::MemoryRequested(_)
            | Event::MemoryQueried(_)
            | Event::MemoryRecalled(_)
            | Event::MemoryRestored(_)
            | Event::SkillRepaired(_)
            | Event::WorldModelPlanned(_)
            | Event::WorldModelCompared(_)
            | Event::SwarmTry(_)
            | Event::SwarmAggregated(_)
            | Event::SwarmDelegated(_)
            | Event::SwarmBroadcast(_)
            | Event::CarpRequestReceived(_)
            | Event::PolicyEvaluated(_)
            | Event::ContextInjected(_)
            | Event::ContextRedacted(_)
            | Event::CarpSessionOpened(_)
            | Event::CarpResolutionIssued(_)
            | Event::CarpLimitsCharged(_)
            | Event::AtlasDescribed(_) => return None,
        })
    }
}

fn delivery_line(delivery: &DeliveryEnded) -> ActivityLine {
    let line = match (delivery.dead, delivery.outcome == "delivered") {
        (true, _) => error("answer can't be delivered; `clawk outbox` lists it"),
        (false, true) => info("answer delivered"),
        (false, false) => warn("answer not delivered yet"),
    };
    let line = line
        .with_name("channel", &delivery.channel)
        .with_code("outcome", &delivery.outcome)
        .with_number("attempt", delivery.attempt.into());
    match &delivery.next_at {
        Some(next) => line.with_code("next_at", next),
        None => line,
    }
    .in_turn(Some(delivery.message_id))
}

fn failed_line(failed: &ProviderFailed) -> ActivityLine {
    let mut line = warn("provider refused or failed")
        .with_name("provider", &failed.provider)
        .with_code("kind", &failed.kind);
    if let Some(status) = failed.status {
        line = line.with_number("status", status.into());
    }
    if let Some(wait) = failed.retry_after_ms {
        line = line.with_number("retry_after_ms", wait);
    }
    line.with_number("attempt", failed.attempt.into())
        .with_number("ms", failed.duration_ms)
        .with_cost(failed.cost_microusd)
        .in_turn(Some(failed.turn))
}

fn swarm_line(line: ActivityLine, progress: &SwarmProgress) -> ActivityLine {
    let mut line = line.with_name("swarm", &progress.swarm);
    if let Some(member) = &progress.member {
        line = line.with_name("member", member);
    }
    if let Some(state) = progress.status.as_ref().or(progress.state.as_ref()) {
        line = line.with_code("state", state);
    }
    if let Some(ms) = progress.duration_ms {
        line = line.with_number("ms", ms);
    }
    line.with_cost(progress.cost_microusd)
}

const fn pairing_word(step: PairingStep) -> &'static str {
    match step {
        PairingStep::Asked => "asked",
        PairingStep::Approved => "approved",
        PairingStep::Denied => "denied",
        PairingStep::Revoked => "revoked",
    }
}

const fn violation_word(violation: PolicyViolation) -> &'static str {
    match violation {
        PolicyViolation::RateLimit => "rate-limit",
        PolicyViolation::Budget => "budget",
        PolicyViolation::DeniedAction => "denied-action",
        PolicyViolation::InvalidParameters => "invalid-parameters",
        PolicyViolation::Unauthorized => "unauthorized",
    }
}
