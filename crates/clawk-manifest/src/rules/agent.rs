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

/// Blocks of a channel that are for messages of people from outside, and what acts instead of them. A pair: a block and a member;
/// `None`: the block as a whole.
const OUTSIDE_ONLY: [(&str, Option<&str>); 5] = [
    ("access_control", None),
    ("processing", Some("max_message_length")),
    ("processing", Some("rate_limit")),
    ("features", Some("files")),
    ("features", Some("inline_images")),
];

/// Warns about settings for people that have no effect on the terminal or on a trigger.
fn check_outside_settings(spec: &LocatedNode<'_>, kind: &str, checker: &mut DocumentChecker<'_>) {
    let is_trigger = TRIGGERS.iter().any(|(name, _)| *name == kind);
    let why = match (kind, is_trigger) {
        ("cli", _) => "whoever starts `clawk run` is the owner, and types at the terminal",
        (_, true) => "nobody writes there; each event begins a run with the role `user`",
        (_, false) => return,
    };
    for (block, member) in OUTSIDE_ONLY {
        // The files of a mail that triggers a run are files of a message.
        let Some(block_node) = spec
            .get(block)
            .filter(|_| !is_trigger || block == "access_control")
        else {
            continue;
        };
        let idle = match member {
            None => spec.idle_member(
                block,
                format!("`{block}` has no effect on a `{kind}` channel: {why}"),
            ),
            Some(member) if block_node.has_member(member) => {
                let message = format!("`{block}.{member}` has no effect on a `{kind}` channel: {why}");
                block_node.idle_member(member, message)
            }
            Some(_) => continue,
        };
        let help = if is_trigger {
            "a policy decides what such runs may do; leave `access_control` out"
        } else {
            "leave it out"
        };
        checker.findings.push(idle.with_help(help));
    }
    if kind == "cli"
        && let Some(auth) = spec.get("auth")
        && auth.text_at("secret_ref").is_some_and(|name| name != NO_SECRET)
    {
        let idle = auth.idle_member(
            "secret_ref",
            "a `cli` channel asks for no secret: this one is never read",
        );
        checker
            .findings
            .push(idle.with_help(format!("write `secret_ref: {NO_SECRET}`")));
    }
}

/// What stands in `auth.secret_ref`, which is required, where no secret is meant.
const NO_SECRET: &str = "NONE";

pub(super) fn check_channel(spec: &LocatedNode<'_>, checker: &mut DocumentChecker<'_>) {
    if let Some(access) = spec.get("access_control") {
        access_control(&access, checker);
    }
    let kind = spec.text_at("type").unwrap_or_default();
    check_outside_settings(spec, kind, checker);
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
