//! Rules of Tool, Skill and Memory (CKP §5.4 to §5.6).

use std::collections::HashSet;

use super::{LocatedNode, repeated};
use crate::check::DocumentChecker;
use crate::diagnostic::quoted;

pub(super) fn tool(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    let served = spec.has("mcp_source");
    for field in ["description", "input_schema"]
        .into_iter()
        .filter(|field| !served && !spec.has(field))
    {
        let error = spec.missing(field, format!("a Tool without `mcp_source` needs `{field}`"));
        checker
            .findings
            .push(error.help("give it, or name the MCP server that supplies it with `mcp_source`"));
    }
    let composite = spec.node.get("composite").and_then(|node| node.bool()) == Some(true);
    if composite && !spec.has("skill_ref") {
        checker
            .findings
            .push(spec.missing("skill_ref", "a composite tool needs `skill_ref`"));
    }
    if composite && served {
        let message = "a composite tool runs a skill and cannot have `mcp_source`";
        checker
            .findings
            .push(spec.stray("mcp_source", "composite-mcp", message));
    }
    if !composite && spec.has("skill_ref") {
        let idle = spec.idle("skill_ref", "`skill_ref` has no effect without `composite: true`");
        checker.findings.push(idle.help("write `composite: true`"));
    }
    if spec.has("retry") {
        let idempotent = spec
            .find(&["annotations", "idempotentHint"])
            .and_then(|hint| hint.node.bool());
        if idempotent == Some(false) {
            let idle = spec.idle(
                "retry",
                "`retry` has no effect: the tool says `idempotentHint: false`",
            );
            checker.findings.push(idle);
        }
    }
}

pub(super) fn skill(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    let mut seen = HashSet::new();
    for tool in spec
        .get("tools_required")
        .map(|list| list.items())
        .unwrap_or_default()
    {
        if let Some(name) = tool.node.text()
            && !seen.insert(name)
        {
            checker
                .findings
                .push(tool.warning("repeated-entry", format!("{} is listed twice", quoted(name))));
        }
    }
}

/// A block of a store, and the store types for which it has an effect.
const BLOCKS: [(&str, &[&str]); 7] = [
    ("compaction", &["conversation"]),
    ("embedding", &["semantic"]),
    ("search", &["semantic"]),
    ("path", &["workspace"]),
    ("isolation", &["workspace"]),
    ("max_size_mb", &["workspace"]),
    ("checkpoint", &["checkpoint"]),
];

pub(super) fn memory(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    let stores = spec
        .get("stores")
        .map(|stores| stores.items())
        .unwrap_or_default();
    for (spot, name) in repeated(&stores, "name") {
        checker.findings.push(spot.error(
            "name-collision",
            format!("two stores are called {}", quoted(name)),
        ));
    }
    for store in &stores {
        let Some(kind) = store.text_at("type") else {
            continue;
        };
        // Stores of every type may be in their own folder.
        let in_folder = store.text_at("backend") == Some("filesystem");
        for (block, _) in BLOCKS.iter().filter(|(block, kinds)| {
            store.has(block) && !kinds.contains(&kind) && !(in_folder && *block == "path")
        }) {
            let message = format!("`{block}` has no effect on a store of type {}", quoted(kind));
            checker.findings.push(store.idle(block, message));
        }
        if let Some(path) = store.get("path") {
            template(&path, checker);
        }
        if kind == "workspace"
            && let (Some(isolation), true) = (store.text_at("isolation"), store.has("scope"))
        {
            let message = format!(
                "`scope` has no effect beside `isolation: {isolation}`, which says the same of files"
            );
            checker.findings.push(store.idle("scope", message));
        }
        weight(store, kind, checker);
        settling(store, kind, checker);
    }
}

/// Warns about search and ranking settings that have no effect in this store.
fn weight(store: &LocatedNode<'_>, kind: &str, checker: &mut DocumentChecker<'_>) {
    if let Some(forgetting) = store.get("forgetting")
        && !matches!(forgetting.text_at("strategy"), Some("decay" | "adaptive"))
        && forgetting.has("signals")
    {
        let idle = forgetting.idle(
            "signals",
            "`signals` has no effect without `strategy: decay` or `adaptive`",
        );
        checker.findings.push(idle);
    }
    if let Some(salience) = store.get("salience")
        && salience.node.get("enabled").and_then(|node| node.bool()) == Some(false)
        && salience.has("signals")
    {
        let idle = salience.idle("signals", "`signals` has no effect with `enabled: false`");
        checker.findings.push(idle);
    }
    if kind == "semantic"
        && let Some(search) = store.get("search")
        && let Some(strategy @ ("fts-only" | "vector-only")) = search.text_at("strategy")
    {
        if search.has("fusion") {
            let message = format!("`fusion` has no effect with `strategy: {strategy}`: there is one ranking");
            checker.findings.push(search.idle("fusion", message));
        }
        if let Some(lifecycle) = store.get("lifecycle")
            && let Some(retrieval @ ("exact" | "semantic" | "hybrid")) = lifecycle.text_at("retrieval")
        {
            let message =
                format!("`retrieval: {retrieval}` has no effect beside `search.strategy: {strategy}`");
            checker.findings.push(lifecycle.idle("retrieval", message));
        }
    }
}

/// Warns about automatic acquisition or summaries that never happen in this store.
fn settling(store: &LocatedNode<'_>, kind: &str, checker: &mut DocumentChecker<'_>) {
    let by_key = matches!(kind, "key-value" | "workspace" | "checkpoint");
    let lifecycle = store.get("lifecycle");
    if let Some(lifecycle) = &lifecycle
        && let Some(word @ ("continuous" | "event-driven")) = lifecycle.text_at("acquisition")
        && (by_key || (kind, word) == ("semantic", "event-driven"))
    {
        let message = format!(
            "`acquisition: {word}` has no effect on a store of type {}: it takes up nothing by itself",
            quoted(kind)
        );
        checker.findings.push(lifecycle.idle("acquisition", message));
    }
    let summarises = [
        (lifecycle, "consolidation", ["summarize", "adaptive"].as_slice()),
        (store.get("forgetting"), "strategy", ["summarize"].as_slice()),
    ];
    for (block, key, words) in summarises {
        let Some(block) = block else { continue };
        let Some(word) = block.text_at(key).filter(|word| words.contains(word)) else {
            continue;
        };
        let why = if by_key {
            format!(
                "on a store of type {}: its entries are kept by their keys",
                quoted(kind)
            )
        } else if store.find(&["retention", "max_entries"]).is_none() {
            "without `retention.max_entries`: only a store that is nearly full is summarised by itself"
                .to_owned()
        } else {
            continue;
        };
        checker
            .findings
            .push(block.idle(key, format!("`{key}: {word}` has no effect {why}")));
    }
}

/// Checks the variables: only `{identity_name}` and `{tenant_id}` exist (CKP §5.6).
fn template(path: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    let mut rest = path.node.text().unwrap_or_default();
    while let Some((_, after)) = rest.split_once('{') {
        let Some((name, tail)) = after.split_once('}') else {
            checker
                .findings
                .push(path.error("unknown-variable", "a `{` without its `}`"));
            return;
        };
        if !["identity_name", "tenant_id"].contains(&name) {
            let error = path.error(
                "unknown-variable",
                format!("{} is not a variable of a path", quoted(name)),
            );
            checker
                .findings
                .push(error.help("`{identity_name}` and `{tenant_id}` are"));
        }
        rest = tail;
    }
}
