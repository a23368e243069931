//! Rules of Swarm, Telemetry and WorldModel (CKP §5.9, §5.10, 0.3.0).

use clawk_proto::uri::{ClawUri, Kind, is_name};

use super::LocatedNode;
use crate::check::{DocumentChecker, RefUse, read_ref};
use crate::diagnostic::quote_text;

pub(super) fn check_swarm(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    let agents = spec
        .get("agents")
        .map(|agents| agents.items())
        .unwrap_or_default();
    for identity in agents.iter().filter_map(|agent| agent.get("identity_ref")) {
        let Some(text) = identity.node.text().filter(|text| !text.trim().is_empty()) else {
            continue;
        };
        let problem = match ClawUri::parse(text) {
            _ if !text.contains("://") && is_name(text) => None,
            Ok(
                ClawUri::Local {
                    kind: Kind::Identity, ..
                }
                | ClawUri::Registry { .. },
            ) => None,
            Ok(ClawUri::Local { kind, .. }) => {
                Some(format!("{} names a {kind}, not an Identity", quote_text(text)))
            }
            Err(_) if !text.contains("://") => Some(format!("{} is not a valid name", quote_text(text))),
            Err(error) => Some(error.to_string()),
        };
        if let Some(message) = problem {
            checker.findings.push(identity.error("bad-reference", message));
        }
    }
    let leads = |agent: &LocatedNode<'_>| agent.text_at("role") == Some("leader");
    let strategy = spec
        .find_member(&["aggregation", "strategy"])
        .and_then(|strategy| strategy.node.text());
    let needs_leader =
        spec.text_at("topology") == Some("leader-worker") || strategy == Some("leader-decides");
    if needs_leader && !agents.is_empty() && !agents.iter().any(leads) {
        let warning = spec
            .get("agents")
            .map(|a| a.warning("no-leader", "no agent has the role `leader`"));
        warning
            .into_iter()
            .for_each(|warning| checker.findings.push(warning));
    }
}

pub(super) fn check_telemetry(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    for exporter in spec.get("exporters").map(|list| list.items()).unwrap_or_default() {
        let kind = exporter.text_at("type").unwrap_or_default();
        let (needed, idle): (_, &[&str]) = match kind {
            "otlp" | "webhook" => (Some("endpoint"), &["path"]),
            "file" | "sqlite" => (Some("path"), &["endpoint", "auth"]),
            "console" => (None, &["endpoint", "auth", "path"]),
            _ => continue,
        };
        for field in idle.iter().filter(|field| exporter.has_member(field)) {
            let message = format!("`{field}` has no effect on a `{kind}` exporter");
            checker.findings.push(exporter.idle_member(field, message));
        }
        if let Some(needed) = needed.filter(|needed| !exporter.has_member(needed)) {
            checker
                .findings
                .push(exporter.missing_member(needed, format!("a `{kind}` exporter needs `{needed}`")));
        }
    }
}

pub(super) fn world_model(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    check_learning(spec, checker);
    let backend = spec.get("backend");
    let kind = match backend.as_ref().and_then(|backend| backend.text_at("type")) {
        Some("tool") => Some(Kind::Tool),
        Some("provider") => Some(Kind::Provider),
        _ => None,
    };
    let reference = backend.and_then(|backend| backend.get("ref"));
    let named = [(kind, reference), (Some(Kind::Memory), spec.get("memory_ref"))];
    for (kind, spot) in named.into_iter().filter_map(|(kind, spot)| Some((kind?, spot?))) {
        let Some(text) = spot.node.text() else { continue };
        if kind == Kind::Memory && !text.contains("://") {
            add_reference(checker, kind, text.to_owned(), None, spot); // a store's name may be any text
            continue;
        }
        match read_ref(text, kind) {
            Ok((name, version)) => add_reference(checker, kind, name, version, spot),
            Err(message) => checker.findings.push(spot.error("bad-reference", message)),
        }
    }
}

/// Warns about settings of learning in a world model that does not learn.
fn check_learning(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    if spec.find_member(&["update", "mode"]).is_some() {
        return;
    }
    let idle = |place: &LocatedNode<'_>, key: &str| {
        let message = format!(
            "`{key}` has no effect without `update.mode`: this world model learns nothing, and reads only what it has learnt before"
        );
        place
            .idle_member(key, message)
            .with_help("write `update: {mode: online}` and a `memory_ref`, or leave it out")
    };
    for key in ["memory_ref", "scope"] {
        if spec.has_member(key) {
            checker.findings.push(idle(spec, key));
        }
    }
    if let Some(update) = spec.get("update").filter(|update| update.has_member("evidence")) {
        checker.findings.push(idle(&update, "evidence"));
    }
}

fn add_reference(
    checker: &mut DocumentChecker<'_>,
    kind: Kind,
    name: String,
    version: Option<String>,
    spot: LocatedNode<'_>,
) {
    checker.refs.push(RefUse {
        kind,
        name,
        version,
        place: spot.node.place,
        pointer: spot.pointer,
    });
}
