//! Rules of Provider and Channel (CKP §5.2, §5.3).

use super::LocatedNode;
use crate::check::DocumentChecker;
use crate::diagnostic::quoted;
use crate::texts;

pub(super) fn provider(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    if let Some(auth) = spec.get("auth") {
        match auth.text_at("type") {
            Some("none") if auth.has("secret_ref") => {
                checker
                    .findings
                    .push(auth.idle("secret_ref", "`secret_ref` has no effect with `type: none`"));
            }
            Some("bearer" | "api-key-header" | "oauth2") if !auth.has("secret_ref") => {
                let error = auth.missing(
                    "secret_ref",
                    "`auth` needs `secret_ref` unless its type is `none`",
                );
                checker
                    .findings
                    .push(error.help("name the secret, such as `secret_ref: \"LLM_API_KEY\"`"));
            }
            _ => {}
        }
    }
    let scripted = spec.text_at("protocol") == Some("custom");
    if let (false, Some(endpoint)) = (scripted, spec.get("endpoint"))
        && let Some(text) = endpoint.node.text()
        && !text.trim().is_empty()
        && let Err(message) = texts::url(text)
    {
        checker.findings.push(
            endpoint
                .error("bad-url", message)
                .help("the base URL of the API, such as `http://localhost:11434/v1`"),
        );
    }
}

/// A mode of access control, and the member that it requires.
const MODES: [(&str, Option<&str>); 4] = [
    ("open", None),
    ("allowlist", Some("allowed_ids")),
    ("pairing", Some("pairing")),
    ("role-based", Some("roles")),
];
const TRIGGERS: [(&str, &str); 4] = [
    ("cron", "schedule"),
    ("queue", "queue_name"),
    ("imap", "mailbox"),
    ("db-trigger", "table"),
];

pub(super) fn channel(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    if let Some(access) = spec.get("access_control") {
        access_control(&access, checker);
    }
    let kind = spec.text_at("type").unwrap_or_default();
    let needed = TRIGGERS
        .iter()
        .find(|(name, _)| *name == kind)
        .map(|(_, field)| *field);
    match (needed, spec.get("trigger")) {
        (Some(field), None) => {
            let error = spec.missing("trigger", format!("a `{kind}` channel needs `trigger.{field}`"));
            checker
                .findings
                .push(error.help(format!("write `trigger: {{{field}: …}}`")));
        }
        (Some(field), Some(trigger)) => {
            if !trigger.has(field) {
                checker
                    .findings
                    .push(trigger.missing(field, format!("a `{kind}` channel needs `trigger.{field}`")));
            }
            let others = TRIGGERS
                .iter()
                .map(|(_, other)| *other)
                .filter(|other| *other != field);
            for other in others
                .chain((kind != "db-trigger").then_some("events"))
                .filter(|other| trigger.has(other))
            {
                let message = format!("{} has no effect on a `{kind}` channel", quoted(other));
                checker.findings.push(trigger.idle(other, message));
            }
        }
        (None, Some(_)) if !kind.is_empty() && kind != "custom" => {
            checker.findings.push(spec.idle(
                "trigger",
                format!("`trigger` has no effect on a {} channel", quoted(kind)),
            ));
        }
        (None, _) => {}
    }
}

fn access_control(access: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    let Some((mode, needed)) = access
        .text_at("mode")
        .and_then(|mode| MODES.into_iter().find(|(name, _)| *name == mode))
    else {
        return; // the shape says so
    };
    if let Some(field) = needed.filter(|field| !access.has(field)) {
        checker
            .findings
            .push(access.missing(field, format!("mode `{mode}` needs `{field}`")));
    }
    for (other, field) in MODES
        .into_iter()
        .filter_map(|(name, field)| field.map(|field| (name, field)))
    {
        if other != mode && access.has(field) {
            let error = access.stray(
                field,
                "field-of-other-mode",
                format!("`{field}` must not stand in mode `{mode}`"),
            );
            checker
                .findings
                .push(error.help(format!("remove it, or set `mode: {other}`")));
        }
    }
}
