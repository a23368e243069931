//! Writes the draft as files: `claw.yaml`, `clawk.toml`, the files that they name, and `IMPORT.md`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::channels::quote_toml;
use crate::draft::{Channel, Draft, Member, ProviderDraft, fit_name};
use crate::{ImportReport, ImportResult, Runtime, emit};

/// The policy: reading in the folder is free, everything else needs an approval or is refused. Nothing that the other runtime
/// allowed silently is allowed silently here.
const POLICY: &str = include_str!("../../../examples/policies/standard.yaml");
const POLICY_TESTS: &str = include_str!("../../../examples/policies/standard.tests.yaml");

/// Converts the draft to files in memory. Nothing is written to the disk.
pub(crate) fn write(runtime: Runtime, mut draft: Draft) -> ImportResult {
    if draft.providers.is_empty() {
        let reason = if draft.unplaced.is_some() {
            "no configured model came over: the new agent answers once `providers` in claw.yaml names an address"
        } else {
            "no model was configured: the new agent takes what is found on this machine (`auto:`)"
        };
        draft.report.add_left_out("model", reason);
    }
    let name = fit_name(draft.name.as_deref().unwrap_or(runtime.name()));
    let mut files = vec![
        (
            PathBuf::from("claw.yaml"),
            render_manifest(runtime, &name, &draft).into_bytes(),
        ),
        (
            PathBuf::from("clawk.toml"),
            render_settings(runtime, &draft).into_bytes(),
        ),
        (
            PathBuf::from("policies/standard.yaml"),
            POLICY.as_bytes().to_vec(),
        ),
        (
            PathBuf::from("policies/standard.tests.yaml"),
            POLICY_TESTS.as_bytes().to_vec(),
        ),
    ];
    for (name, text) in &draft.context {
        files.push((PathBuf::from(name), text.clone().into_bytes()));
    }
    files.append(&mut draft.files);
    let mut report = draft.report;
    keep_first_of_each_path(&mut files, &mut report);
    files.push((
        PathBuf::from("IMPORT.md"),
        render_report(runtime, &report).into_bytes(),
    ));
    ImportResult { files, report }
}

/// Keeps the first file of each path, so that no imported file replaces another one; paths that differ only in case count as the
/// same.
fn keep_first_of_each_path(files: &mut Vec<(PathBuf, Vec<u8>)>, report: &mut ImportReport) {
    let mut known = BTreeSet::from(["import.md".to_owned()]);
    files.retain(|(path, _)| {
        let shown = path.to_string_lossy();
        let is_first = known.insert(shown.to_lowercase());
        if !is_first {
            report.add_left_out(shown, "a file of this name is in the new folder already");
        }
        is_first
    });
}

fn render_manifest(runtime: Runtime, name: &str, draft: &Draft) -> String {
    let mut spec = Map::new();
    spec.insert("identity".into(), identity_value(name, draft));
    spec.insert("providers".into(), providers_value(draft));
    if !draft.channels.is_empty() {
        spec.insert(
            "channels".into(),
            draft.channels.iter().map(channel_value).collect(),
        );
    }
    let tools = all_tools(draft);
    let skills = skill_values(draft, &tools);
    spec.insert("tools".into(), Value::Array(tools));
    if !skills.is_empty() {
        spec.insert("skills".into(), Value::Array(skills));
    }
    if draft.memory {
        let stores = json!([
            {"name": "conversations", "type": "conversation", "backend": "sqlite"},
            {"name": "facts", "type": "semantic", "backend": "sqlite"},
        ]);
        spec.insert(
            "memory".into(),
            json!({"inline": {"name": "memory", "stores": stores}}),
        );
    }
    spec.insert("sandbox".into(), sandbox_value(draft));
    spec.insert("policies".into(), json!(["./policies/standard.yaml"]));
    if let Some((swarm, leader)) = &draft.swarm {
        spec.insert("swarm".into(), swarm_value(swarm, leader, &draft.members));
    }
    let whole = json!({
        "claw": "0.3.0",
        "kind": "Claw",
        "metadata": {"name": name, "version": "0.1.0", "description": format!("Imported from {}", runtime.title())},
        "spec": spec,
    });
    format!(
        "# Written by `clawk import {}`. What did not come over, and what you have to give it, stands in IMPORT.md.\n{}",
        runtime.name(),
        emit::to_yaml(&whole)
    )
}

fn identity_value(name: &str, draft: &Draft) -> Value {
    let mut texts: Vec<String> = draft.personality.iter().map(|(_, text)| text.clone()).collect();
    if texts.is_empty() {
        texts.push("You are a helpful assistant.".to_owned());
    }
    let autonomy = if draft.observer { "observer" } else { "supervised" };
    let mut identity = json!({"name": name, "personality": texts.join("\n\n"), "autonomy": autonomy});
    if let (false, Some(members)) = (draft.context.is_empty(), identity.as_object_mut()) {
        let files = draft
            .context
            .keys()
            .map(|file| (key_of(file), json!(format!("./{file}"))));
        members.insert("context_files".into(), Value::Object(files.collect()));
    }
    json!({"inline": identity})
}

/// The key of a context file: `user` for `USER.md`.
fn key_of(file: &str) -> String {
    file.split('.').next().unwrap_or(file).to_ascii_lowercase()
}

fn providers_value(draft: &Draft) -> Value {
    if let (true, Some(model)) = (draft.providers.is_empty(), &draft.unplaced) {
        // A host name that never exists (RFC 2606): nothing is sent until a person sets the address.
        return json!([{"inline": {
            "name": model.vendor, "protocol": "openai-compatible", "endpoint": format!("https://{}.invalid/v1", model.vendor),
            "model": model.model, "auth": {"type": "none"}, "streaming": true,
        }}]);
    }
    if draft.providers.is_empty() {
        return json!([{"inline": {
            "name": "found-here", "protocol": "custom", "endpoint": "auto:", "model": "auto",
            "auth": {"type": "none"}, "streaming": true,
        }}]);
    }
    let all = draft.providers.iter().enumerate();
    all.map(|(index, one)| {
        let mut value = provider_value(one);
        if let (0, Some(members)) = (index, value.as_object_mut()) {
            let chain: Vec<Value> = draft
                .providers
                .iter()
                .skip(1)
                .map(|next| json!({"provider_ref": next.name}))
                .collect();
            if !chain.is_empty() {
                members.insert("fallback".into(), Value::Array(chain));
            }
        }
        json!({"inline": value})
    })
    .collect()
}

fn provider_value(one: &ProviderDraft) -> Value {
    let auth = match &one.secret {
        None => json!({"type": "none"}),
        Some(secret) if one.protocol == "anthropic-native" => {
            json!({"type": "api-key-header", "secret_ref": secret})
        }
        Some(secret) => json!({"type": "bearer", "secret_ref": secret}),
    };
    json!({
        "name": one.name, "protocol": one.protocol, "endpoint": one.endpoint, "model": one.model, "auth": auth, "streaming": true,
    })
}

fn channel_value(one: &Channel) -> Value {
    let mut value = json!({
        "name": one.name, "type": one.kind, "transport": one.transport, "auth": {"secret_ref": one.secret},
    });
    if let Some(members) = value.as_object_mut() {
        if let Some(schedule) = &one.schedule {
            let trigger = json!({"schedule": schedule, "max_parallel": 1, "overlap_policy": "skip"});
            members.insert("trigger".into(), trigger);
        } else if one.allowed.is_empty() {
            let pairing =
                json!({"mode": "pairing", "pairing": {"code_expiry_minutes": 60, "max_pending": 10}});
            members.insert("access_control".into(), pairing);
        } else {
            let allow = json!({"mode": "allowlist", "allowed_ids": one.allowed});
            members.insert("access_control".into(), allow);
        }
    }
    json!({"inline": value})
}

fn all_tools(draft: &Draft) -> Vec<Value> {
    let mut names = vec!["file-read", "file-list", "file-search", "ask-user"];
    if !draft.observer {
        names.extend(["file-write", "file-edit"]);
    }
    if draft.shell {
        names.push("shell");
    }
    if draft.web {
        names.push("web-fetch");
    }
    // The runtime describes its built-in tools itself.
    let mut tools: Vec<Value> = names.into_iter().map(Value::from).collect();
    for server in &draft.servers {
        let over_http = server.uri.starts_with("http");
        let label = json!({"category": if over_http { "network" } else { "mcp" }});
        tools.push(
            json!({"inline": {"name": server.name, "labels": label, "mcp_source": {"uri": server.uri}}}),
        );
    }
    tools
}

fn skill_values(draft: &Draft, tools: &[Value]) -> Vec<Value> {
    let declared = |name: &str| tools.iter().any(|tool| tool.as_str() == Some(name));
    let mut needed = vec!["file-read"];
    if declared("shell") {
        needed.push("shell");
    }
    let one = |skill: &crate::draft::Skill| {
        json!({"inline": {
            "name": skill.name, "description": skill.description, "tools_required": needed,
            "instruction": skill.instruction,
        }})
    };
    draft.skills.iter().map(one).collect()
}

fn sandbox_value(draft: &Draft) -> Value {
    let shell = if draft.shell { "full" } else { "deny" };
    let mut network = json!({"mode": "deny"});
    let hosts: Vec<String> = draft
        .servers
        .iter()
        .filter_map(|server| uri_host(&server.uri))
        .collect();
    if draft.web {
        network = json!({"mode": "allow-all"});
    } else if !hosts.is_empty() {
        network = json!({"mode": "allowlist", "allowed_hosts": hosts});
    }
    json!({"inline": {
        "name": "this-folder", "level": "process",
        "capabilities": {
            "filesystem": {"mode": "scoped", "mount_paths": [{"path": ".", "permissions": "rw"}]},
            "network": network,
            "shell": {"mode": shell},
        },
    }})
}

fn uri_host(uri: &str) -> Option<String> {
    let rest = uri
        .strip_prefix("https://")
        .or_else(|| uri.strip_prefix("http://"))?;
    let authority = rest.split(['/', '?', '#']).next()?;
    Some(authority.split(':').next().unwrap_or(authority).to_owned())
}

fn swarm_value(name: &str, leader: &str, members: &[Member]) -> Value {
    let agents: Vec<Value> = members
        .iter()
        .map(|member| {
            let role = if member.name == leader { "leader" } else { "worker" };
            json!({"identity_ref": member.name, "role": role, "count": 1})
        })
        .collect();
    json!({"inline": {
        "name": name, "topology": "leader-worker", "agents": agents,
        "coordination": {"message_passing": "queue", "backend": "in-process", "concurrency": {}},
        "aggregation": {"strategy": "leader-decides"},
    }})
}

/// Writes `clawk.toml` with the local settings.
fn render_settings(runtime: Runtime, draft: &Draft) -> String {
    let mut out = format!(
        "# Written by `clawk import {}`. docs/reference/config.md says what each key means.\n",
        runtime.name()
    );
    if let Some(steps) = draft.steps_per_turn {
        let _ = write!(out, "\n[budgets]\nsteps_per_turn = {steps}\n"); // silent-ok: a String takes everything
    }
    for (window, amount) in [("day", draft.day_microusd), ("month", draft.month_microusd)] {
        if let Some(amount) = amount {
            let _ = write!(out, "\n[budgets.{window}]\ncost_microusd = {amount}\n"); // silent-ok: as above
        }
    }
    for channel in &draft.channels {
        if !(channel.local.is_empty() && channel.secrets.is_empty() && channel.settings.is_empty()) {
            let _ = write!(out, "\n[channels.{}]\n", channel.name); // silent-ok: as above
            for (key, value) in &channel.local {
                let _ = writeln!(out, "{key} = {value}"); // silent-ok: as above
            }
            write_table(
                &mut out,
                &format!("channels.{}.secrets", channel.name),
                &channel.secrets,
            );
            write_table(
                &mut out,
                &format!("channels.{}.settings", channel.name),
                &channel.settings,
            );
        }
    }
    for server in &draft.servers {
        write_table(&mut out, &format!("tools.{}.env", server.name), &server.env);
        write_table(
            &mut out,
            &format!("tools.{}.secret_env", server.name),
            &server.secret_env,
        );
        write_table(
            &mut out,
            &format!("tools.{}.secret_headers", server.name),
            &server.secret_headers,
        );
    }
    for member in &draft.members {
        let _ = write!(
            out,
            "\n[peers.{}]\nidentity = {}\n",
            member.name,
            quote_toml(&format!("identities/{}.yaml", member.name))
        ); // silent-ok: as above
    }
    out
}

fn write_table(out: &mut String, name: &str, members: &std::collections::BTreeMap<String, String>) {
    if members.is_empty() {
        return;
    }
    let _ = write!(out, "\n[{name}]\n"); // silent-ok: a String takes everything
    for (key, value) in members {
        let _ = writeln!(out, "{} = {}", quote_toml(key), quote_toml(value)); // silent-ok: as above
    }
}

/// Writes `IMPORT.md` for the user.
fn render_report(runtime: Runtime, report: &ImportReport) -> String {
    let mut out = format!(
        "# Imported from {}\n\n## Give it these secrets\n\n",
        runtime.title()
    );
    if report.secrets.is_empty() {
        out.push_str("None.\n");
    } else {
        out.push_str("Each one as an environment variable, or as a file of that name in `$CLAW_SECRETS_DIR`. No value was copied.\n\n");
        out.push_str("| reference | where its value is |\n|---|---|\n");
        for secret in &report.secrets {
            let _ = writeln!(out, "| `{}` | {} |", secret.name, escape_cell(&secret.found)); // silent-ok: a String takes everything
        }
    }
    out.push_str("\n## What came over\n\n");
    for line in &report.carried {
        let _ = writeln!(out, "* {line}"); // silent-ok: as above
    }
    out.push_str("\n## What did not come over\n\n| setting | why |\n|---|---|\n");
    for left in &report.left {
        let _ = writeln!(
            out,
            "| {} | {} |",
            escape_cell(&left.setting),
            escape_cell(&left.reason)
        ); // silent-ok: as above
    }
    out
}

fn escape_cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
