//! Rules of Sandbox and Policy (CKP §5.7, §5.8, R11).

use super::{LocatedNode, repeated_items};
use crate::check::DocumentChecker;
use crate::diagnostic::quote_text;

/// The runtimes that can provide each level.
const RUNTIMES: [(&str, &[&str]); 5] = [
    ("none", &["native"]),
    ("process", &["native"]),
    ("wasm", &["wasmtime", "native"]),
    ("container", &["docker", "apple-container", "gvisor", "native"]),
    ("vm", &["firecracker", "apple-container", "native"]),
];

pub(super) fn check_sandbox(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    if let (Some(level), Some(runtime)) = (spec.text_at("level"), spec.get("runtime"))
        && let Some(word) = runtime.node.text()
        && RUNTIMES
            .iter()
            .any(|(name, fit)| *name == level && !fit.contains(&word))
    {
        let message = format!("{} does not serve level `{level}`", quote_text(word));
        checker.findings.push(
            runtime
                .warning("runtime-mismatch", message)
                .with_help("leave `runtime` out to get the one that does"),
        );
    }
    if let Some(network) = spec.find_member(&["capabilities", "network"]) {
        let mode = network.text_at("mode").unwrap_or("deny");
        if mode != "allowlist" && network.has_member("allowed_hosts") {
            let idle = network.idle_member(
                "allowed_hosts",
                format!("`allowed_hosts` has no effect in mode {}", quote_text(mode)),
            );
            checker
                .findings
                .push(idle.with_help("write `mode: \"allowlist\"`"));
        }
        if mode == "allowlist" && !network.has_member("allowed_hosts") {
            checker.findings.push(network.warning(
                "no-effect",
                "mode `allowlist` without `allowed_hosts` reaches nothing",
            ));
        }
    }
    if let Some(files) = spec.find_member(&["capabilities", "filesystem"]) {
        let mode = files.text_at("mode").unwrap_or("deny");
        if matches!(mode, "deny" | "full") && files.has_member("mount_paths") {
            let idle = files.idle_member(
                "mount_paths",
                format!("`mount_paths` has no effect in mode {}", quote_text(mode)),
            );
            checker
                .findings
                .push(idle.with_help("write `mode: \"scoped\"` or `mode: \"read-only\"`"));
        }
    }
    if let Some(shell) = spec.find_member(&["capabilities", "shell"]) {
        let mode = shell.text_at("mode").unwrap_or("deny");
        for list in ["blocked_commands", "blocked_patterns"]
            .into_iter()
            .filter(|list| mode != "restricted" && shell.has_member(list))
        {
            checker.findings.push(shell.idle_member(
                list,
                format!("`{list}` has no effect in mode {}", quote_text(mode)),
            ));
        }
    }
}

pub(super) fn check_policy(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    let rules = spec.get("rules").map(|rules| rules.items()).unwrap_or_default();
    for (spot, id) in repeated_items(&rules, "id") {
        checker.findings.push(spot.error(
            "name-collision",
            format!("two rules are called {}", quote_text(id)),
        ));
    }
    for rule in &rules {
        check_rule(rule, checker);
    }
    if let Some(audit) = spec.get("audit")
        && let Some(destination @ ("webhook" | "syslog")) = audit.text_at("destination")
        && audit.has_member("retention")
    {
        let message = format!(
            "`retention` has no effect with `destination: {destination}`: the receiver keeps the records"
        );
        checker.findings.push(audit.idle_member("retention", message));
    }
    if let Some(injection) = spec.get("prompt_injection")
        && injection.text_at("detection") == Some("none")
        && injection.has_member("action")
    {
        let idle = injection.idle_member("action", "`action` has no effect with `detection: none`");
        checker.findings.push(idle);
    }
}

fn check_rule(rule: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    let action = rule.text_at("action").unwrap_or_default();
    if rule.has_member("approval") && action != "require-approval" && !action.is_empty() {
        checker.findings.push(rule.idle_member(
            "approval",
            format!("`approval` has no effect on action {}", quote_text(action)),
        ));
    }
    let matcher = rule.get("match");
    match rule.text_at("scope") {
        Some("category")
            if matcher
                .as_ref()
                .is_none_or(|matcher| !matcher.has_member("category")) =>
        {
            let warning = rule.warning(
                "broad-rule",
                "a rule of scope `category` without `match.category` matches every tool that has one",
            );
            checker
                .findings
                .push(warning.with_help("write `match: {category: …}`"));
        }
        Some("all") if matcher.is_some() => {
            let idle = rule.idle_member("match", "scope `all` matches everything, whatever `match` says");
            checker.findings.push(idle.with_help("write `scope: \"tool\"`"));
        }
        _ => {}
    }
    if let Some(conditions) = rule.get("conditions") {
        for entry in conditions.node.entries().unwrap_or_default() {
            if matches!(entry.key.as_str(), "taint" | "from" | "confidential") {
                continue; // what it names is checked where rules are compiled: one that can't be read fails closed, with a warning
            }
            if entry.key != "path_within" {
                let message = format!(
                    "{} is not a condition that this runtime knows",
                    quote_text(&entry.key)
                );
                let help = "`path_within`, `taint`, `from` and `confidential` are; a rule with an unknown condition never allows";
                let mut warning = conditions.idle_member(&entry.key, message);
                warning.code = "unknown-condition";
                checker.findings.push(warning.with_help(help));
            } else if entry.value.text().is_none_or(str::is_empty) {
                let spot = LocatedNode {
                    node: &entry.value,
                    pointer: format!("{}/path_within", conditions.pointer),
                };
                checker
                    .findings
                    .push(spot.error("wrong-type", "`path_within` is a path"));
            }
        }
    }
    if let Some(rate) = rule.get("rate_limit")
        && rate.node.entries().is_some_and(<[_]>::is_empty)
    {
        checker.findings.push(rate.warning(
            "no-effect",
            "an empty `rate_limit` is never spent, so the rule never applies",
        ));
    }
}
