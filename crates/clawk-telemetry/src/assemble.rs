//! Assembles telemetry records from facts: parents, times, selection by category, redaction, sampling of sessions.

use std::collections::{HashMap, VecDeque};

use clawk_manifest::model::{Events, Redaction, Telemetry};
use clawk_proto::Digest;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::fact::{ErrorFact, InferenceFact, Label, TelemetryFact, TelemetryFactKind, ToolCallFact};
use crate::item::{AttributeValue, EventCategory, TelemetryRecord, span_of, task_trace, trace_of};

/// Open turns and calls that are kept in memory. A new one replaces the oldest.
const MAX_OPEN: usize = 4096;

/// The telemetry settings of the manifest.
#[derive(Debug, Clone)]
pub struct TelemetrySelection {
    events: Events,
    redaction: Redaction,
    rate: f64,
    agent: Label,
}

impl TelemetrySelection {
    /// Builds the selection from the manifest.
    #[must_use]
    pub fn from_manifest(telemetry: &Telemetry, agent: &str) -> Self {
        Self {
            events: telemetry.events.clone(),
            redaction: telemetry.redaction.clone(),
            rate: telemetry.sampling.rate,
            agent: Label::from_declared(agent),
        }
    }

    /// Returns whether telemetry is off. `sampling.rate: 0` switches everything off, also metrics.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.rate <= 0.0
    }

    /// Returns whether a session, or the trace of a swarm task, is exported. The decision holds for the whole session and is the
    /// same on every host.
    #[must_use]
    pub fn is_sampled(&self, id: &[u8]) -> bool {
        if self.rate >= 1.0 {
            return true;
        }
        let hash = Sha256::digest(id);
        let first = hash
            .iter()
            .take(4)
            .fold(0_u32, |sum, byte| (sum << 8) | u32::from(*byte));
        f64::from(first) / f64::from(u32::MAX) < self.rate
    }

    fn selects_record(&self, item: &TelemetryRecord) -> bool {
        let on = match item.category {
            EventCategory::ToolCalls => self.events.tool_calls,
            EventCategory::MemoryOps => self.events.memory_ops,
            EventCategory::SwarmOps => self.events.swarm_ops,
            EventCategory::Lifecycle => self.events.lifecycle,
            EventCategory::Errors => self.events.errors,
            EventCategory::PlanningOps => self.events.planning_ops,
            EventCategory::WorldModelOps => self.events.world_model_ops,
        };
        on || (self.events.errors && item.fault.is_some())
    }

    const fn digest_attribute(stripped: bool, digest: Digest) -> AttributeValue {
        if stripped {
            AttributeValue::Redacted
        } else {
            AttributeValue::Digest(digest)
        }
    }
}

/// A map by id with at most [`MAX_OPEN`] values.
#[derive(Debug)]
struct BoundedIdMap<T> {
    by_id: HashMap<Uuid, T>,
    order: VecDeque<Uuid>,
}

impl<T> Default for BoundedIdMap<T> {
    fn default() -> Self {
        Self {
            by_id: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<T> BoundedIdMap<T> {
    fn insert(&mut self, id: Uuid, value: T) {
        if self.by_id.insert(id, value).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > MAX_OPEN {
            if let Some(oldest) = self.order.pop_front() {
                self.by_id.remove(&oldest);
            }
        }
    }
}

/// Assembles the records of one exporter from facts.
#[derive(Debug)]
pub struct TelemetryAssembler {
    wanted: TelemetrySelection,
    /// Swarm task of each open turn.
    tasks: BoundedIdMap<Digest>,
    /// Start time (microseconds since the epoch) and digest of the arguments of each open call.
    calls: BoundedIdMap<(i64, Digest)>,
}

impl TelemetryAssembler {
    /// Creates an assembler without open turns and calls.
    #[must_use]
    pub fn new(wanted: TelemetrySelection) -> Self {
        Self {
            wanted,
            tasks: BoundedIdMap::default(),
            calls: BoundedIdMap::default(),
        }
    }

    /// Adds a fact. Returns the record that this fact completes, if the manifest wants a record of its category.
    pub fn assemble_record(&mut self, fact: &TelemetryFact) -> Option<TelemetryRecord> {
        let mut item = self.build_record(fact)?;
        let sampled = match self.task_of(&fact.what) {
            Some(task) => self.wanted.is_sampled(&task_trace(&task)),
            None => self.wanted.is_sampled(fact.session.as_bytes()),
        };
        if !sampled || !self.wanted.selects_record(&item) {
            return None;
        }
        item.attributes.push((
            "gen_ai.agent.name",
            AttributeValue::Label(self.wanted.agent.clone()),
        ));
        item.attributes
            .push(("gen_ai.conversation.id", AttributeValue::Id(fact.session)));
        if let Some(fault) = &item.fault {
            item.attributes
                .push(("error.type", AttributeValue::Label(fault.clone())));
        }
        Some(item)
    }

    fn task_of(&self, what: &TelemetryFactKind) -> Option<Digest> {
        match what {
            TelemetryFactKind::Swarm { task, .. } => *task,
            other => self.tasks.by_id.get(&turn_of(other)?).copied(),
        }
    }

    /// Builds a record whose parent is its turn; without a turn it has no parent.
    fn nested_record(
        &self,
        fact: &TelemetryFact,
        category: EventCategory,
        name: String,
        own: [u8; 8],
    ) -> TelemetryRecord {
        let turn = turn_of(&fact.what);
        let trace = match (self.task_of(&fact.what), turn) {
            (Some(task), _) => task_trace(&task),
            (None, Some(turn)) => trace_of(turn),
            (None, None) => {
                let mut trace = [0; 16];
                let bytes = own.iter().chain(own.iter().rev());
                trace.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                trace
            }
        };
        TelemetryRecord {
            category,
            name,
            trace,
            span: own,
            parent: turn.map(|turn| span_of("turn", turn.as_bytes())),
            start_us: fact.at_us,
            end_us: fact.at_us,
            session: fact.session,
            sequence: fact.sequence,
            is_client: false,
            attributes: Vec::new(),
            fault: None,
        }
    }

    /// Builds a record that starts and ends at the time of the fact.
    fn moment_record(&self, fact: &TelemetryFact, category: EventCategory, name: String) -> TelemetryRecord {
        let mut id = fact.session.as_bytes().to_vec();
        id.extend_from_slice(&fact.sequence.to_be_bytes());
        self.nested_record(fact, category, name, span_of("moment", &id))
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each kind of fact")]
    fn build_record(&mut self, fact: &TelemetryFact) -> Option<TelemetryRecord> {
        Some(match &fact.what {
            TelemetryFactKind::TurnBegan { turn, task } => {
                if let Some(task) = task {
                    self.tasks.insert(*turn, *task);
                }
                return None;
            }
            TelemetryFactKind::CallWanted { request, arguments } => {
                self.calls.insert(*request, (fact.at_us, *arguments));
                return None;
            }
            TelemetryFactKind::Lifecycle { from, to } => {
                let mut item = self.moment_record(
                    fact,
                    EventCategory::Lifecycle,
                    format!("lifecycle {}", to.as_str()),
                );
                item.attributes
                    .push(("clawk.lifecycle.from", AttributeValue::Label(from.clone())));
                item.attributes
                    .push(("clawk.lifecycle.to", AttributeValue::Label(to.clone())));
                item
            }
            TelemetryFactKind::TurnEnded {
                turn,
                duration_ms,
                tokens,
            } => self.turn_record(fact, *turn, *duration_ms, *tokens),
            TelemetryFactKind::Inferred(inferred) => self.inference_record(fact, inferred),
            TelemetryFactKind::Called(called) => self.call(fact, called),
            TelemetryFactKind::Memory {
                op,
                store,
                count,
                hit,
                ..
            } => {
                let mut item = self.moment_record(
                    fact,
                    EventCategory::MemoryOps,
                    format!("memory.{op} {}", store.as_str()),
                );
                item.attributes
                    .push(("clawk.memory.store", AttributeValue::Label(store.clone())));
                item.attributes
                    .push(("clawk.memory.count", AttributeValue::Int(*count)));
                item.attributes
                    .extend(hit.map(|hit| ("clawk.memory.hit", AttributeValue::Flag(hit))));
                item
            }
            TelemetryFactKind::Swarm { .. } => self.swarm_record(fact)?,
            TelemetryFactKind::Planned {
                skill,
                world_model,
                candidates,
                revisions,
                ..
            } => {
                let name = format!("world_model.planned {}", world_model.as_str());
                let mut item = self.moment_record(fact, EventCategory::WorldModelOps, name);
                item.attributes
                    .push(("clawk.skill", AttributeValue::Label(skill.clone())));
                item.attributes
                    .push(("clawk.plan.candidates", AttributeValue::Int(*candidates)));
                item.attributes
                    .push(("clawk.plan.revisions", AttributeValue::Int(*revisions)));
                item
            }
            TelemetryFactKind::Compared {
                skill,
                world_model,
                error_permille,
                ..
            } => {
                let name = format!("world_model.compared {}", world_model.as_str());
                let mut item = self.moment_record(fact, EventCategory::WorldModelOps, name);
                item.attributes
                    .push(("clawk.skill", AttributeValue::Label(skill.clone())));
                item.attributes
                    .push(("clawk.plan.error_permille", AttributeValue::Int(*error_permille)));
                item
            }
            TelemetryFactKind::Skill { op, skill, .. } => {
                let mut item = self.moment_record(
                    fact,
                    EventCategory::PlanningOps,
                    format!("skill.{op} {}", skill.as_str()),
                );
                item.attributes
                    .push(("clawk.skill", AttributeValue::Label(skill.clone())));
                item
            }
            TelemetryFactKind::Trouble(ErrorFact { kind, .. }) => {
                let mut item =
                    self.moment_record(fact, EventCategory::Errors, format!("error {}", kind.as_str()));
                item.fault = Some(kind.clone());
                item
            }
        })
    }

    fn turn_record(
        &self,
        fact: &TelemetryFact,
        turn: Uuid,
        duration_ms: u64,
        (input, output): (u64, u64),
    ) -> TelemetryRecord {
        let agent = self.wanted.agent.as_str();
        let own = span_of("turn", turn.as_bytes());
        let mut item = self.nested_record(
            fact,
            EventCategory::ToolCalls,
            format!("invoke_agent {agent}"),
            own,
        );
        // The parent is the task's span on the delegating host. Both hosts derive the same span id from the task.
        item.parent = self.task_of(&fact.what).map(|task| span_of("task", &task.0));
        item.start_us = start_time_us(fact.at_us, duration_ms);
        item.attributes
            .push(("gen_ai.operation.name", AttributeValue::Word("invoke_agent")));
        item.attributes
            .push(("gen_ai.usage.input_tokens", AttributeValue::Int(input)));
        item.attributes
            .push(("gen_ai.usage.output_tokens", AttributeValue::Int(output)));
        item
    }

    fn inference_record(&self, fact: &TelemetryFact, inferred: &InferenceFact) -> TelemetryRecord {
        let mut id = inferred.inference.as_bytes().to_vec();
        id.extend_from_slice(&inferred.attempt.to_be_bytes());
        let name = format!("chat {}", inferred.model.as_str());
        let mut item = self.nested_record(fact, EventCategory::ToolCalls, name, span_of("inference", &id));
        item.start_us = start_time_us(fact.at_us, inferred.duration_ms);
        item.is_client = true;
        item.fault.clone_from(&inferred.fault);
        item.attributes.extend([
            ("gen_ai.operation.name", AttributeValue::Word("chat")),
            (
                "gen_ai.provider.name",
                AttributeValue::Label(inferred.provider.clone()),
            ),
            (
                "gen_ai.request.model",
                AttributeValue::Label(inferred.model.clone()),
            ),
            (
                "gen_ai.usage.input_tokens",
                AttributeValue::Int(inferred.input_tokens),
            ),
            (
                "gen_ai.usage.output_tokens",
                AttributeValue::Int(inferred.output_tokens),
            ),
        ]);
        item
    }

    fn call(&mut self, fact: &TelemetryFact, called: &ToolCallFact) -> TelemetryRecord {
        let own = span_of("call", called.request.as_bytes());
        let name = format!("execute_tool {}", called.tool.as_str());
        let mut item = self.nested_record(fact, EventCategory::ToolCalls, name, own);
        let wanted = self.calls.by_id.remove(&called.request);
        self.calls.order.retain(|id| *id != called.request);
        item.start_us = wanted.map_or_else(
            || start_time_us(fact.at_us, called.duration_ms),
            |(at, _)| at.min(fact.at_us),
        );
        item.fault.clone_from(&called.fault);
        item.attributes.extend([
            ("gen_ai.operation.name", AttributeValue::Word("execute_tool")),
            ("gen_ai.tool.name", AttributeValue::Label(called.tool.clone())),
            ("gen_ai.tool.call.id", AttributeValue::Id(called.request)),
            ("clawk.tool.outcome", AttributeValue::Word(called.outcome)),
            ("clawk.tool.duration_ms", AttributeValue::Int(called.duration_ms)),
        ]);
        let Redaction {
            strip_arguments,
            strip_results,
        } = self.wanted.redaction;
        if let Some((_, arguments)) = wanted {
            let value = TelemetrySelection::digest_attribute(strip_arguments, arguments);
            item.attributes.push(("clawk.tool.arguments_digest", value));
        }
        if let Some(result) = called.result {
            let value = TelemetrySelection::digest_attribute(strip_results, result);
            item.attributes.push(("clawk.tool.result_digest", value));
        }
        item
    }

    fn swarm_record(&self, fact: &TelemetryFact) -> Option<TelemetryRecord> {
        let TelemetryFactKind::Swarm {
            op,
            member,
            task,
            status,
            duration_ms,
        } = &fact.what
        else {
            return None;
        };
        let mut item = self.moment_record(fact, EventCategory::SwarmOps, format!("swarm.{}", op.as_str()));
        if let Some(task) = task {
            let root = span_of("task", &task.0);
            if op.as_str() == "reported" {
                // The end of a task is recorded in the task's own span.
                item.span = root;
            } else {
                item.parent = Some(root);
            }
        }
        item.start_us = start_time_us(fact.at_us, *duration_ms);
        item.attributes.extend(
            member
                .clone()
                .map(|member| ("clawk.swarm.member", AttributeValue::Label(member))),
        );
        item.attributes.extend(
            status
                .clone()
                .map(|status| ("clawk.swarm.status", AttributeValue::Label(status))),
        );
        item.fault = status.clone().filter(|status| status.as_str() == "failed");
        Some(item)
    }
}

fn start_time_us(at_us: i64, duration_ms: u64) -> i64 {
    at_us.saturating_sub(i64::try_from(duration_ms.saturating_mul(1000)).unwrap_or(i64::MAX))
}

fn turn_of(what: &TelemetryFactKind) -> Option<Uuid> {
    match what {
        TelemetryFactKind::TurnBegan { turn, .. } | TelemetryFactKind::TurnEnded { turn, .. } => Some(*turn),
        TelemetryFactKind::Inferred(inferred) => Some(inferred.turn),
        TelemetryFactKind::Called(called) => called.turn,
        TelemetryFactKind::Memory { turn, .. }
        | TelemetryFactKind::Planned { turn, .. }
        | TelemetryFactKind::Compared { turn, .. }
        | TelemetryFactKind::Skill { turn, .. }
        | TelemetryFactKind::Trouble(ErrorFact { turn, .. }) => *turn,
        TelemetryFactKind::Lifecycle { .. }
        | TelemetryFactKind::CallWanted { .. }
        | TelemetryFactKind::Swarm { .. } => None,
    }
}
