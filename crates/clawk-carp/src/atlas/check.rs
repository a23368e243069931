//! Builds an Atlas from a manifest's JSON, and reports all faults.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use clawk_proto::carp::{AllowedAction, RiskTier};
use semver::{Version, VersionReq};
use serde_json::{Map, Value, json};

use super::{
    Atlas, AtlasAction, Capability, ContextPack, Executor, Policy, PolicyConditions, Schema, bounds, policy,
};
use crate::fault::{FaultCollector, InputPath, LengthBounds};
use crate::glob::Pattern;

const KNOWN: [&str; 17] = [
    "atlas_version",
    "atlas_id",
    "version",
    "name",
    "description",
    "authors",
    "license",
    "homepage",
    "repository",
    "domains",
    "capabilities",
    "context_packs",
    "policies",
    "actions",
    "adapters",
    "dependencies",
    "metadata",
];

pub(super) fn read_manifest(report: &mut FaultCollector, value: &Value) -> Option<Atlas> {
    let at = InputPath::Root;
    let map = report.read_object(value, &at, &KNOWN)?;
    if let Some(text) = report.required_text(map, &at, "atlas_version", LengthBounds(1, 64))
        && text != "1.0"
    {
        report.add_fault(
            &at.key("atlas_version"),
            "version",
            format!("`{text}` is not spoken here; `1.0` is"),
        );
    }
    let id = report.required_text(map, &at, "atlas_id", LengthBounds(1, 255));
    let id = id.filter(|id| {
        let fits = is_atlas_id(id);
        if !fits {
            let wanted = "lower-case names joined by dots, such as `com.example.support`";
            report.add_fault(
                &at.key("atlas_id"),
                "pattern",
                format!("`{id}` is not a valid Atlas id ({wanted})"),
            );
        }
        fits
    });
    let version = read_version(report, map, &at);
    let name = report.required_text(map, &at, "name", LengthBounds(1, 100));
    let description = report.required_text(map, &at, "description", LengthBounds(0, 1000));
    let about = read_about(report, map, &at);
    let actions = read_actions(report, map, &at);
    let packs = read_packs(report, map, &at);
    let capabilities = read_capabilities(report, map, &at, &packs, &actions);
    let policies = read_policies(report, map, &at);
    let dependencies = read_dependencies(report, map, &at, id);
    Some(Atlas {
        id: id?.into(),
        version: version?,
        name: name?.to_owned(),
        description: description?.to_owned(),
        capabilities,
        packs,
        policies,
        actions,
        dependencies,
        about,
        warnings: Vec::new(),
        source: Arc::default(),
    })
}

/// `^[a-z][a-z0-9]*(\.[a-z][a-z0-9-]*)+$`
pub(crate) fn is_atlas_id(text: &str) -> bool {
    is_dotted_name(text, 2, false, true)
}

/// `^[a-z][a-z0-9]*(\.[a-z][a-z0-9]*)+$`
fn is_action_id(text: &str) -> bool {
    is_dotted_name(text, 2, false, false)
}

/// `^[a-z][a-z0-9]*(\.[a-z][a-z0-9]*)*$`
fn is_capability_id(text: &str) -> bool {
    is_dotted_name(text, 1, false, false)
}

fn is_dotted_name(text: &str, least: usize, first_hyphen: bool, later_hyphen: bool) -> bool {
    let mut count = 0;
    let all = text.split('.').enumerate().all(|(index, part)| {
        count += 1;
        let hyphen = if index == 0 { first_hyphen } else { later_hyphen };
        part.starts_with(|first: char| first.is_ascii_lowercase())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || (hyphen && byte == b'-'))
    });
    all && count >= least
}

fn read_version(
    report: &mut FaultCollector,
    map: &Map<String, Value>,
    at: &InputPath<'_>,
) -> Option<Version> {
    let text = report.required_text(map, at, "version", LengthBounds(1, 255))?;
    match Version::parse(text) {
        Ok(version) => Some(version),
        Err(cause) => {
            let message = format!("`{text}` is not a valid semantic version such as `1.0.0`: {cause}");
            report.add_fault(&at.key("version"), "pattern", message);
            None
        }
    }
}

fn read_about(
    report: &mut FaultCollector,
    map: &Map<String, Value>,
    at: &InputPath<'_>,
) -> Map<String, Value> {
    report.read_texts(map, at, "authors", 100, LengthBounds(1, 255));
    report.read_texts(map, at, "domains", 100, LengthBounds(1, 255));
    for key in ["license", "homepage", "repository"] {
        report.optional_text(map, at, key, LengthBounds(1, 2000));
    }
    for (key, what) in [
        (
            "adapters",
            "no adapter is loaded; `executor` of an action says what runs it",
        ),
        (
            "metadata",
            "it is kept for your own programs, and decides nothing",
        ),
    ] {
        if let Some(value) = map.get(key) {
            report.read_map(value, &at.key(key));
            if value.as_object().is_some_and(|members| !members.is_empty()) {
                report.add_warning(
                    &at.key(key),
                    "no_effect",
                    format!("`{key}` has no effect: {what}"),
                );
            }
        }
    }
    [
        "authors",
        "license",
        "homepage",
        "repository",
        "domains",
        "adapters",
        "metadata",
    ]
    .into_iter()
    .filter_map(|key| Some((key.to_owned(), map.get(key)?.clone())))
    .collect()
}

fn read_actions(
    report: &mut FaultCollector,
    map: &Map<String, Value>,
    at: &InputPath<'_>,
) -> Vec<AtlasAction> {
    let mut out: Vec<AtlasAction> = Vec::new();
    let mut seen = HashSet::new();
    // Many actions share a schema, so each schema is compiled once.
    let mut schemas: HashMap<String, Arc<Schema>> = HashMap::new();
    if let Some(value) = map.get("actions") {
        report.read_list(value, &at.key("actions"), bounds::ITEMS, |report, item, at| {
            if let Some(action) = read_action(report, item, at, &mut schemas) {
                if !seen.insert(Arc::clone(&action.shown.action_id)) {
                    let id = &action.shown.action_id;
                    report.add_fault(
                        &at.key("action_id"),
                        "duplicate",
                        format!("`{id}` is declared twice"),
                    );
                }
                out.push(action);
            }
        });
    }
    out
}

fn read_action(
    report: &mut FaultCollector,
    value: &Value,
    at: &InputPath<'_>,
    schemas: &mut HashMap<String, Arc<Schema>>,
) -> Option<AtlasAction> {
    let known = [
        "action_id",
        "name",
        "description",
        "parameters_schema",
        "returns_schema",
        "risk_tier",
        "idempotent",
        "requires_confirmation",
        "executor",
        "timeout_seconds",
        "rate_limit",
        "examples",
    ];
    let map = report.read_object(value, at, &known)?;
    let id = report.required_text(map, at, "action_id", LengthBounds(1, 255));
    if let Some(id) = id.filter(|id| !is_action_id(id)) {
        let wanted = "lower-case names joined by dots, such as `ticket.lookup`";
        report.add_fault(
            &at.key("action_id"),
            "pattern",
            format!("`{id}` is not a valid action id ({wanted})"),
        );
    }
    let name = report.required_text(map, at, "name", LengthBounds(1, 255));
    let description = report.required_text(map, at, "description", LengthBounds(0, 10_000));
    let parameters = read_schema(report, map, at, "parameters_schema", schemas);
    let returns = read_schema(report, map, at, "returns_schema", schemas);
    let tiers = RiskTier::ALL.map(|tier| (tier.name(), tier));
    let risk_tier = match map.get("risk_tier") {
        None => Some(RiskTier::Low),
        Some(value) => report.read_word(value, &at.key("risk_tier"), &tiers),
    };
    let idempotent = report.read_flag(map, at, "idempotent");
    let requires_confirmation = report.read_flag(map, at, "requires_confirmation");
    let executor = report
        .optional_text(map, at, "executor", LengthBounds(1, 2000))
        .and_then(|text| read_executor(report, text, &at.key("executor")));
    let timeout = map.get("timeout_seconds");
    let timeout_seconds = timeout.map_or(Some(30), |value| {
        report.read_integer(value, &at.key("timeout_seconds"), 1, 300)
    });
    let rate_limit = map.get("rate_limit").and_then(|value| {
        let at = at.key("rate_limit");
        let limit = report.read_object(value, &at, &["max_calls", "window_seconds"])?;
        policy::rate_limit(report, limit, &at)
    });
    if let Some(value) = map.get("examples") {
        report.read_list(value, &at.key("examples"), 1000, |_, _, _| {});
        if value.as_array().is_some_and(|examples| !examples.is_empty()) {
            let what = "`examples` have no effect: the model reads the action's `description` and its schema";
            report.add_warning(&at.key("examples"), "no_effect", what.to_owned());
        }
    }
    Some(AtlasAction {
        shown: Arc::new(AllowedAction {
            action_id: id?.into(),
            name: name?.to_owned(),
            description: description?.to_owned(),
            parameters_schema: map.get("parameters_schema").cloned().unwrap_or_else(|| json!({})),
            returns_schema: map.get("returns_schema").cloned(),
            risk_tier: risk_tier?,
            requires_confirmation,
            idempotent,
            rate_limit,
        }),
        parameters: parameters?,
        returns: returns?,
        executor,
        timeout_seconds: timeout_seconds?,
    })
}

fn read_schema(
    report: &mut FaultCollector,
    map: &Map<String, Value>,
    at: &InputPath<'_>,
    key: &str,
    known: &mut HashMap<String, Arc<Schema>>,
) -> Option<Arc<Schema>> {
    let Some(value) = map.get(key) else {
        return Some(Arc::new(Schema::ANY));
    };
    let at = at.key(key);
    report.read_map(value, &at)?;
    let text = value.to_string();
    if text.len() > bounds::SCHEMA_BYTES {
        report.add_fault(
            &at,
            "too_large",
            format!("a schema has at most {} bytes", bounds::SCHEMA_BYTES),
        );
        return None;
    }
    if let Some(schema) = known.get(&text) {
        return Some(Arc::clone(schema));
    }
    match Schema::compile(value) {
        Ok(schema) => {
            let schema = Arc::new(schema);
            known.insert(text, Arc::clone(&schema));
            Some(schema)
        }
        Err(message) => {
            report.add_fault(&at, "schema", message);
            None
        }
    }
}

fn read_executor(report: &mut FaultCollector, text: &str, at: &InputPath<'_>) -> Option<Executor> {
    let found = match text.split_once(':') {
        None => Some(Executor::Tool(text.into())),
        Some(("tool", name)) if !name.is_empty() => Some(Executor::Tool(name.into())),
        Some(("mcp", target)) => target
            .split_once('/')
            .filter(|(server, tool)| !server.is_empty() && !tool.is_empty())
            .map(|(server, tool)| Executor::Mcp {
                server: server.into(),
                tool: tool.into(),
            }),
        Some(("http" | "https", rest)) if rest.len() > 2 && rest.starts_with("//") => {
            Some(Executor::Http(text.into()))
        }
        Some(_) => None,
    };
    if found.is_none() {
        let wanted = "a tool's name, `tool:NAME`, `mcp:SERVER/TOOL` or an http(s) address";
        report.add_fault(at, "executor", format!("expected {wanted}"));
    }
    found
}

fn read_packs(report: &mut FaultCollector, map: &Map<String, Value>, at: &InputPath<'_>) -> Vec<ContextPack> {
    let known = [
        "pack_id",
        "name",
        "files",
        "priority",
        "conditions",
        "max_tokens",
        "description",
    ];
    let mut out = Vec::new();
    let mut seen = HashSet::new();
    let Some(value) = map.get("context_packs") else {
        return out;
    };
    report.read_list(
        value,
        &at.key("context_packs"),
        bounds::PACKS,
        |report, item, at| {
            let Some(map) = report.read_object(item, at, &known) else {
                return;
            };
            let id = report.required_text(map, at, "pack_id", LengthBounds(1, 255));
            if let Some(id) = id.filter(|id| !seen.insert(*id)) {
                report.add_fault(
                    &at.key("pack_id"),
                    "duplicate",
                    format!("`{id}` is declared twice"),
                );
            }
            report.required_text(map, at, "name", LengthBounds(1, 255));
            report.optional_text(map, at, "description", LengthBounds(0, 10_000));
            report.read_required(map, at, "files");
            let files = report.read_texts(map, at, "files", bounds::FILES, LengthBounds(1, 1000));
            let priority = map.get("priority").map_or(Some(100), |value| {
                report.read_integer(value, &at.key("priority"), 0, 1000)
            });
            let max_tokens = map
                .get("max_tokens")
                .and_then(|value| report.read_integer(value, &at.key("max_tokens"), 1, u64::MAX));
            let conditions = PolicyConditions::read(report, map.get("conditions"), &at.key("conditions"));
            if let (Some(id), Some(priority), Some(conditions)) = (id, priority, conditions) {
                out.push(ContextPack {
                    id: id.into(),
                    priority: u16::try_from(priority).unwrap_or(1000), // INVARIANT: at most 1000
                    conditions,
                    blocks: Vec::new(),
                    files,
                    max_tokens,
                    in_capability: false,
                });
            }
        },
    );
    out
}

fn read_capabilities(
    report: &mut FaultCollector,
    map: &Map<String, Value>,
    at: &InputPath<'_>,
    packs: &[ContextPack],
    actions: &[AtlasAction],
) -> Vec<Capability> {
    let mut out: Vec<Capability> = Vec::new();
    let mut seen = HashSet::new();
    let declared: HashSet<&str> = actions.iter().map(|action| &*action.shown.action_id).collect();
    let packs: HashSet<&str> = packs.iter().map(|pack| &*pack.id).collect();
    if let Some(value) = map.get("capabilities") {
        report.read_list(
            value,
            &at.key("capabilities"),
            bounds::ITEMS,
            |report, item, at| {
                if let Some(capability) = read_capability(report, item, at, &packs, &declared) {
                    if !seen.insert(Arc::clone(&capability.id)) {
                        let id = &capability.id;
                        let message = format!("`{id}` is declared twice");
                        report.add_fault(&at.key("capability_id"), "duplicate", message);
                    }
                    out.push(capability);
                }
            },
        );
    }
    out
}

fn read_capability(
    report: &mut FaultCollector,
    value: &Value,
    at: &InputPath<'_>,
    packs: &HashSet<&str>,
    declared: &HashSet<&str>,
) -> Option<Capability> {
    let known = ["capability_id", "name", "description", "actions", "context_packs"];
    let map = report.read_object(value, at, &known)?;
    let id = report.required_text(map, at, "capability_id", LengthBounds(1, 255));
    if let Some(id) = id.filter(|id| !is_capability_id(id)) {
        let message = format!("`{id}` is not a valid capability id (lower-case names joined by dots)");
        report.add_fault(&at.key("capability_id"), "pattern", message);
    }
    report.required_text(map, at, "name", LengthBounds(1, 255));
    report.optional_text(map, at, "description", LengthBounds(0, 10_000));
    let names = report.read_texts(map, at, "actions", bounds::ENTRIES, LengthBounds(1, 255));
    let names_at = at.key("actions");
    let mut actions = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let pattern = Pattern::new(name);
        if let Some(refusal) = pattern.refusal() {
            report.add_fault(&names_at.index(index), "pattern", refusal);
        } else if matches!(pattern, Pattern::Exact(_)) && !declared.contains(name.as_str()) {
            let message = format!("`{name}` is not an action of this Atlas; declare it under `actions`");
            report.add_fault(&names_at.index(index), "unknown_action", message);
        }
        actions.push(pattern);
    }
    let context_packs = report.read_texts(map, at, "context_packs", bounds::PACKS, LengthBounds(1, 255));
    let packs_at = at.key("context_packs");
    let unknown = context_packs
        .iter()
        .enumerate()
        .filter(|(_, name)| !packs.contains(name.as_str()));
    for (index, name) in unknown {
        let message = format!("`{name}` is not a context pack of this Atlas");
        report.add_fault(&packs_at.index(index), "unknown_pack", message);
    }
    Some(Capability {
        id: id?.into(),
        actions,
        context_packs,
    })
}

fn read_policies(
    report: &mut FaultCollector,
    map: &Map<String, Value>,
    at: &InputPath<'_>,
) -> Vec<Arc<Policy>> {
    let mut out: Vec<Arc<Policy>> = Vec::new();
    let mut seen = HashSet::new();
    if let Some(value) = map.get("policies") {
        report.read_list(value, &at.key("policies"), bounds::ITEMS, |report, item, at| {
            if let Some(policy) = policy::read(report, item, at) {
                if !seen.insert(Arc::clone(&policy.id)) {
                    let id = &policy.id;
                    report.add_fault(
                        &at.key("policy_id"),
                        "duplicate",
                        format!("`{id}` is declared twice"),
                    );
                }
                out.push(Arc::new(policy));
            }
        });
    }
    out
}

fn read_dependencies(
    report: &mut FaultCollector,
    map: &Map<String, Value>,
    at: &InputPath<'_>,
    own: Option<&str>,
) -> BTreeMap<String, VersionReq> {
    let mut out = BTreeMap::new();
    let Some(value) = map.get("dependencies") else {
        return out;
    };
    let at = at.key("dependencies");
    for (id, value) in report.read_map(value, &at).into_iter().flatten() {
        let at = at.key(id);
        if !is_atlas_id(id) {
            report.add_fault(&at, "pattern", "the key is not a valid Atlas id");
        }
        if own == Some(id) {
            report.add_fault(&at, "cycle", "an Atlas cannot depend on itself");
        }
        let Some(text) = report.read_text(value, &at, LengthBounds(1, 255)) else {
            continue;
        };
        match parse_range(text) {
            Ok(range) => {
                out.insert(id.clone(), range);
            }
            Err(cause) => {
                let message = format!(
                    "`{text}` is not a valid version range such as `^1.2` or `>=1.0.0, <2.0.0`: {cause}"
                );
                report.add_fault(&at, "range", message);
            }
        }
    }
    out
}

/// Parses a version range as Cargo does; blanks between comparators count as commas.
fn parse_range(text: &str) -> Result<VersionReq, semver::Error> {
    VersionReq::parse(text).or_else(|cause| {
        let parts: Vec<&str> = text.split_whitespace().collect();
        VersionReq::parse(&parts.join(", ")).map_err(|_| cause) // silent-ok: the first cause is about the text as written
    })
}
