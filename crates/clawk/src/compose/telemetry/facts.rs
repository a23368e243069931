//! From an event of the journal to a fact without contents: numbers, ids, digests, words of ours, and names that the operator
//! declared. Every other text of a payload stays here.

use std::collections::{BTreeMap, BTreeSet};

use clawk_kernel::kind;
use clawk_kernel::ports::Recorded;
use clawk_manifest::Manifest;
use clawk_proto::Digest;
use clawk_telemetry::{Called, Fact, Inferred, Label, Trouble, What};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// Tools that are known by name; those behind them are `other`.
const MAX_TOOLS: usize = 512;
/// States of the lifecycle.
const STATES: &[&str] = &["INIT", "STARTING", "READY", "STOPPING", "STOPPED", "ERROR"];
/// How a task of a swarm ends, or what its try does.
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
/// Why an inference failed.
const FAULTS: &[&str] = &[
    "timeout",
    "rate_limited",
    "overloaded",
    "unreachable",
    "network",
    "auth",
    "refused",
    "invalid",
    "cancelled",
    "server",
    "budget",
];

/// Events that facts are made of.
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

/// The names that may be told.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    declared: BTreeSet<String>,
    tools: BTreeSet<String>,
    /// The model of each provider.
    models: BTreeMap<String, String>,
}

impl Names {
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

    /// A tool of the catalog was looked at: it exists, whatever a model calls.
    fn learn(&mut self, event: &Seen<'_>) {
        if self.tools.len() < MAX_TOOLS {
            self.tools.insert(event.text("action_id").to_owned());
        }
    }

    fn label(&self, name: &str) -> Label {
        if self.declared.contains(name) || self.tools.contains(name) {
            Label::declared(name)
        } else {
            Label::declared(Label::OTHER)
        }
    }
}

/// An event with its payload.
struct Seen<'a> {
    event: &'a Recorded,
    payload: Value,
}

impl Seen<'_> {
    fn text(&self, key: &str) -> &str {
        self.payload.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    fn number(&self, key: &str) -> u64 {
        self.payload.get(key).and_then(Value::as_u64).unwrap_or_default()
    }

    fn id(&self, key: &str) -> Option<Uuid> {
        self.text(key).parse().ok() // silent-ok: there is none
    }

    fn digest(&self, key: &str) -> Option<Digest> {
        serde_json::from_value(self.payload.get(key)?.clone()).ok() // silent-ok: there is none
    }

    /// The id of a swarm's task, which may be a caller's own text, as a digest.
    fn task(&self) -> Option<Digest> {
        let task = self.text("task_id");
        (!task.is_empty()).then(|| Digest(Sha256::digest(task).into()))
    }
}

/// The fact that an event tells, if it is one of telemetry's.
pub(super) fn of(event: &Recorded, names: &mut Names) -> Option<Fact> {
    // silent-ok: payloads of ours read; another one tells nothing
    let payload = serde_json::from_str(&event.payload).unwrap_or_default();
    let seen = Seen { event, payload };
    if event.kind == kind::TOOL_DESCRIBED {
        names.learn(&seen);
        return None;
    }
    Some(Fact {
        at_us: event.at.0,
        session: event.session.0,
        sequence: event.sequence,
        what: what(&seen, names)?,
    })
}

fn what(seen: &Seen<'_>, names: &Names) -> Option<What> {
    Some(match seen.event.kind.as_str() {
        kind::LIFECYCLE => What::Lifecycle {
            from: Label::one_of(seen.text("from"), STATES),
            to: Label::one_of(seen.text("to"), STATES),
        },
        kind::MESSAGE_ACCEPTED => What::TurnBegan {
            turn: seen.id("message_id")?,
            task: seen.task(),
        },
        kind::MESSAGE_ANSWERED => What::TurnEnded {
            turn: seen.id("message_id")?,
            duration_ms: seen.number("duration_ms"),
            tokens: (seen.number("input_tokens"), seen.number("output_tokens")),
        },
        kind::PROVIDER_COMPLETED | kind::PROVIDER_FAILED => What::Inferred(inferred(seen, names)?),
        kind::ACTION_REQUESTED => What::CallWanted {
            request: seen.id("request_id")?,
            arguments: seen.digest("parameters_hash")?,
        },
        kind::ACTION_DENIED | kind::ACTION_EXECUTED | kind::ACTION_FAILED => {
            What::Called(called(seen, names)?)
        }
        kind::SKILL_INVOKED => skill(seen, names, "invoked"),
        kind::SKILL_REPAIRED => skill(seen, names, "repaired"),
        kind::SKILL_FINISHED => skill(seen, names, "finished"),
        kind::WORLD_MODEL_PLANNED => What::Planned {
            skill: names.label(seen.text("skill")),
            world_model: names.label(seen.text("world_model")),
            candidates: seen.number("candidates"),
            revisions: seen
                .number("tries")
                .saturating_sub(1)
                .saturating_add(u64::from(!seen.text("fallback").is_empty())),
            turn: seen.id("turn"),
        },
        kind::WORLD_MODEL_COMPARED => What::Compared {
            skill: names.label(seen.text("skill")),
            world_model: names.label(seen.text("world_model")),
            error_permille: seen.number("error_permille"),
            turn: seen.id("turn"),
        },
        kind::MEMORY_STORED => memory(seen, names, "stored", seen.number("count"), None),
        kind::MEMORY_QUERIED => {
            let found = seen.number("found");
            memory(seen, names, "queried", found, Some(found > 0))
        }
        kind::MEMORY_RECALLED => recalled(seen, names),
        kind::MEMORY_COMPACTED => memory(seen, names, "compacted", seen.number("entries_after"), None),
        kind::MEMORY_EXPIRED => memory(seen, names, "expired", seen.number("entries"), None),
        swarm if swarm.starts_with("ckp.swarm.") => {
            let state = [seen.text("status"), seen.text("state")];
            let state = state.into_iter().find(|word| !word.is_empty());
            let member = seen.text("member");
            What::Swarm {
                op: Label::declared(swarm.rsplit('.').next().unwrap_or_default()),
                member: (!member.is_empty()).then(|| names.label(member)),
                task: seen.task(),
                status: state.map(|word| Label::one_of(word, STATUSES)),
                duration_ms: seen.number("duration_ms"),
            }
        }
        trouble => What::Trouble(Trouble {
            // One of `KINDS`: nothing else is read.
            kind: Label::declared(trouble),
            turn: seen.id("turn").or_else(|| seen.id("message_id")),
        }),
    })
}

fn inferred(seen: &Seen<'_>, names: &Names) -> Option<Inferred> {
    let provider = seen.text("provider");
    let model = names.models.get(provider).map_or(Label::OTHER, String::as_str);
    let failed = seen.event.kind == kind::PROVIDER_FAILED;
    Some(Inferred {
        inference: seen.id("inference_id")?,
        attempt: seen.number("attempt"),
        turn: seen.id("turn")?,
        provider: names.label(provider),
        model: Label::declared(model),
        input_tokens: seen.number("input_tokens"),
        output_tokens: seen.number("output_tokens"),
        cost_microusd: seen.payload.get("cost_microusd").and_then(Value::as_u64),
        duration_ms: seen.number("duration_ms"),
        fault: failed.then(|| Label::one_of(seen.text("kind"), FAULTS)),
    })
}

fn called(seen: &Seen<'_>, names: &Names) -> Option<Called> {
    let (outcome, fault) = match seen.event.kind.as_str() {
        kind::ACTION_DENIED => ("denied", Some(Label::declared("denied"))),
        kind::ACTION_FAILED => ("failed", Some(Label::declared("failed"))),
        _ if seen.payload.get("is_error") == Some(&Value::Bool(true)) => {
            ("executed", Some(Label::declared("tool_error")))
        }
        _ => ("executed", None),
    };
    Some(Called {
        request: seen.id("request_id")?,
        turn: seen.id("turn"),
        tool: names.label(seen.text("action_id")),
        outcome,
        duration_ms: seen.number("duration_ms"),
        result: seen.digest("result_hash"),
        fault,
    })
}

fn skill(seen: &Seen<'_>, names: &Names, op: &'static str) -> What {
    What::Skill {
        op,
        skill: names.label(seen.text("skill")),
        turn: seen.id("turn"),
    }
}

fn memory(seen: &Seen<'_>, names: &Names, op: &'static str, count: u64, hit: Option<bool>) -> What {
    What::Memory {
        op,
        store: names.label(seen.text("store")),
        count,
        hit,
        turn: seen.id("turn"),
    }
}

/// One recall asks several stores; it is a hit if one of them found something.
fn recalled(seen: &Seen<'_>, names: &Names) -> What {
    let searches = seen.payload.get("searches").and_then(Value::as_array);
    let searches = searches.map(Vec::as_slice).unwrap_or_default();
    let found = |search: &Value| search.get("ids").and_then(Value::as_array).map_or(0, Vec::len);
    let count = searches.iter().map(found).sum::<usize>();
    let store = match searches {
        [one] => one.get("store").and_then(Value::as_str).unwrap_or_default(),
        _ => "",
    };
    What::Memory {
        op: "recalled",
        store: names.label(store),
        count: u64::try_from(count).unwrap_or_default(),
        hit: Some(count > 0),
        turn: seen.id("turn"),
    }
}
