//! Rules of Provider and Channel (CKP §5.2, §5.3).

use super::LocatedNode;
use crate::check::DocumentChecker;
use crate::diagnostic::quote_text;
use crate::texts;

pub(super) fn check_provider(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    if let Some(auth) = spec.get("auth") {
        match auth.text_at("type") {
            Some("none") if auth.has_member("secret_ref") => {
                checker
                    .findings
                    .push(auth.idle_member("secret_ref", "`secret_ref` has no effect with `type: none`"));
            }
            Some("bearer" | "api-key-header" | "oauth2") if !auth.has_member("secret_ref") => {
                let error = auth.missing_member(
                    "secret_ref",
                    "`auth` needs `secret_ref` unless its type is `none`",
                );
                checker
                    .findings
                    .push(error.with_help("name the secret, such as `secret_ref: \"LLM_API_KEY\"`"));
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
                .with_help("the base URL of the API, such as `http://localhost:11434/v1`"),
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

pub(super) fn check_channel(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
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
            let error = spec.missing_member("trigger", format!("a `{kind}` channel needs `trigger.{field}`"));
            checker
                .findings
                .push(error.with_help(format!("write `trigger: {{{field}: …}}`")));
        }
        (Some(field), Some(trigger)) => {
            if !trigger.has_member(field) {
                checker.findings.push(
                    trigger.missing_member(field, format!("a `{kind}` channel needs `trigger.{field}`")),
                );
            }
            let others = TRIGGERS
                .iter()
                .map(|(_, other)| *other)
                .filter(|other| *other != field);
            for other in others
                .chain((kind != "db-trigger").then_some("events"))
                .filter(|other| trigger.has_member(other))
            {
                let message = format!("{} has no effect on a `{kind}` channel", quote_text(other));
                checker.findings.push(trigger.idle_member(other, message));
            }
        }
        (None, Some(_)) if !kind.is_empty() && kind != "custom" => {
            checker.findings.push(spec.idle_member(
                "trigger",
                format!("`trigger` has no effect on a {} channel", quote_text(kind)),
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
    if let Some(field) = needed.filter(|field| !access.has_member(field)) {
        checker
            .findings
            .push(access.missing_member(field, format!("mode `{mode}` needs `{field}`")));
    }
    for (other, field) in MODES
        .into_iter()
        .filter_map(|(name, field)| field.map(|field| (name, field)))
    {
        if other != mode && access.has_member(field) {
            let error = access.stray_member(
                field,
                "field-of-other-mode",
                format!("`{field}` must not stand in mode `{mode}`"),
            );
            checker
                .findings
                .push(error.with_help(format!("remove it, or set `mode: {other}`")));
        }
    }
}
