//! Rules of Tool, Skill and Memory (CKP §5.4 to §5.6).

use std::collections::HashSet;

use super::{LocatedNode, repeated_items};
use crate::check::DocumentChecker;
use crate::diagnostic::quote_text;
use crate::model::{builtin_tool_name, similar_builtin_tool};

pub(super) fn check_tool(spec: &LocatedNode<'_>, name: &str, checker: &mut DocumentChecker<'_>) {
    let served = spec.has_member("mcp_source");
    let composite = spec.node.get("composite").and_then(|node| node.as_bool()) == Some(true);
    // The runtime describes its built-in tools itself (R54).
    let described = served || (!composite && builtin_tool_name(name).is_some());
    for field in ["description", "input_schema"]
        .into_iter()
        .filter(|field| !described && !spec.has_member(field))
    {
        let error = spec.missing_member(field, format!("a Tool without `mcp_source` needs `{field}`"));
        let help = match similar_builtin_tool(name) {
            Some(near) if !composite => format!(
                "did you mean the built-in `{near}`, which needs none? else give it, or name the MCP server that supplies it with `mcp_source`"
            ),
            Some(_) | None => "give it, name the MCP server that supplies it with `mcp_source`, or use the name of a built-in tool \
                               (`clawk tools` lists them)"
                .to_owned(),
        };
        checker.findings.push(error.with_help(help));
    }
    if composite && !spec.has_member("skill_ref") {
        checker
            .findings
            .push(spec.missing_member("skill_ref", "a composite tool needs `skill_ref`"));
    }
    if composite && served {
        let message = "a composite tool runs a skill and cannot have `mcp_source`";
        checker
            .findings
            .push(spec.stray_member("mcp_source", "composite-mcp", message));
    }
    if !composite && spec.has_member("skill_ref") {
        let idle = spec.idle_member("skill_ref", "`skill_ref` has no effect without `composite: true`");
        checker.findings.push(idle.with_help("write `composite: true`"));
    }
    if spec.has_member("retry") {
        let idempotent = spec
            .find_member(&["annotations", "idempotentHint"])
            .and_then(|hint| hint.node.as_bool());
        if idempotent == Some(false) {
            let idle = spec.idle_member(
                "retry",
                "`retry` has no effect: the tool says `idempotentHint: false`",
            );
            checker.findings.push(idle);
        }
    }
}

pub(super) fn check_skill(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
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
                .push(tool.warning("repeated-entry", format!("{} is listed twice", quote_text(name))));
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

pub(super) fn check_memory(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    let stores = spec
        .get("stores")
        .map(|stores| stores.items())
        .unwrap_or_default();
    for (spot, name) in repeated_items(&stores, "name") {
        checker.findings.push(spot.error(
            "name-collision",
            format!("two stores are called {}", quote_text(name)),
        ));
    }
    for store in &stores {
        let Some(kind) = store.text_at("type") else {
            continue;
        };
        // Stores of every type may be in their own folder.
        let in_folder = store.text_at("backend") == Some("filesystem");
        for (block, _) in BLOCKS.iter().filter(|(block, kinds)| {
            store.has_member(block) && !kinds.contains(&kind) && !(in_folder && *block == "path")
        }) {
            let message = format!("`{block}` has no effect on a store of type {}", quote_text(kind));
            checker.findings.push(store.idle_member(block, message));
        }
        if let Some(path) = store.get("path") {
            check_template(&path, checker);
        }
        if kind == "workspace"
            && let (Some(isolation), true) = (store.text_at("isolation"), store.has_member("scope"))
        {
            let message = format!(
                "`scope` has no effect beside `isolation: {isolation}`, which says the same of files"
            );
            checker.findings.push(store.idle_member("scope", message));
        }
        check_meaning_fields(store, kind, checker);
        check_search_fields(store, kind, checker);
        check_lifecycle(store, kind, checker);
    }
}

/// Warns about settings of meaning, vectors and confidence that have no effect in this store.
fn check_meaning_fields(store: &LocatedNode<'_>, kind: &str, checker: &mut DocumentChecker<'_>) {
    let search = store.get("search");
    let retrieval = store
        .get("lifecycle")
        .and_then(|lifecycle| lifecycle.text_at("retrieval"));
    let strategy = search.as_ref().and_then(|search| search.text_at("strategy"));
    let words_only = match (strategy, retrieval) {
        (Some("fts-only"), _) => Some("`search.strategy: fts-only`"),
        (None | Some("hybrid"), Some("exact")) => Some("`lifecycle.retrieval: exact`"),
        _ => None,
    };
    if let Some(words_only) = words_only.filter(|_| kind == "semantic") {
        if store.has_member("embedding") {
            let message = format!("`embedding` has no effect beside {words_only}: only words are searched");
            checker.findings.push(store.idle_member("embedding", message));
        }
        if let Some(search) = search.filter(|search| search.text_at("strategy") == Some("hybrid")) {
            let message =
                format!("`strategy: hybrid` has no effect beside {words_only}: only words are searched");
            checker.findings.push(search.idle_member("strategy", message));
        }
    }
    if let Some(confidence) = store.get("confidence").filter(|one| one.has_member("decay"))
        && confidence
            .node
            .get("source_tracking")
            .and_then(|node| node.as_bool())
            != Some(true)
    {
        let message = "`decay` has no effect without `source_tracking: true`: no entry has a confidence";
        checker.findings.push(confidence.idle_member("decay", message));
    }
}

/// Warns about search and ranking settings that have no effect in this store.
fn check_search_fields(store: &LocatedNode<'_>, kind: &str, checker: &mut DocumentChecker<'_>) {
    if let Some(forgetting) = store.get("forgetting")
        && !matches!(forgetting.text_at("strategy"), Some("decay" | "adaptive"))
        && forgetting.has_member("signals")
    {
        let idle = forgetting.idle_member(
            "signals",
            "`signals` has no effect without `strategy: decay` or `adaptive`",
        );
        checker.findings.push(idle);
    }
    if let Some(salience) = store.get("salience")
        && salience.node.get("enabled").and_then(|node| node.as_bool()) == Some(false)
        && salience.has_member("signals")
    {
        let idle = salience.idle_member("signals", "`signals` has no effect with `enabled: false`");
        checker.findings.push(idle);
    }
    if kind == "semantic"
        && let Some(search) = store.get("search")
        && let Some(strategy @ ("fts-only" | "vector-only")) = search.text_at("strategy")
    {
        if search.has_member("fusion") {
            let message = format!("`fusion` has no effect with `strategy: {strategy}`: there is one ranking");
            checker.findings.push(search.idle_member("fusion", message));
        }
        if let Some(lifecycle) = store.get("lifecycle")
            && let Some(retrieval @ ("exact" | "semantic" | "hybrid")) = lifecycle.text_at("retrieval")
        {
            let message =
                format!("`retrieval: {retrieval}` has no effect beside `search.strategy: {strategy}`");
            checker.findings.push(lifecycle.idle_member("retrieval", message));
        }
    }
}

/// Warns about automatic acquisition or summaries that never happen in this store.
fn check_lifecycle(store: &LocatedNode<'_>, kind: &str, checker: &mut DocumentChecker<'_>) {
    let by_key = matches!(kind, "key-value" | "workspace" | "checkpoint");
    let lifecycle = store.get("lifecycle");
    if let Some(lifecycle) = &lifecycle
        && let Some(word @ ("continuous" | "event-driven")) = lifecycle.text_at("acquisition")
        && (by_key || (kind, word) == ("semantic", "event-driven"))
    {
        let message = format!(
            "`acquisition: {word}` has no effect on a store of type {}: it takes up nothing by itself",
            quote_text(kind)
        );
        checker
            .findings
            .push(lifecycle.idle_member("acquisition", message));
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
                quote_text(kind)
            )
        } else if store.find_member(&["retention", "max_entries"]).is_none() {
            "without `retention.max_entries`: only a store that is nearly full is summarised by itself"
                .to_owned()
        } else {
            continue;
        };
        checker
            .findings
            .push(block.idle_member(key, format!("`{key}: {word}` has no effect {why}")));
    }
}

/// Checks the variables: only `{identity_name}` and `{tenant_id}` exist (CKP §5.6).
fn check_template(path: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
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
                format!("{} is not a variable of a path", quote_text(name)),
            );
            checker
                .findings
                .push(error.with_help("`{identity_name}` and `{tenant_id}` are"));
        }
        rest = tail;
    }
}
