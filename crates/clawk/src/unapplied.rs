//! Warns about manifest settings that have no effect here, beyond the leaves in `coverage`.

use std::collections::BTreeMap;

use clawk_channels::{ChannelConfig, is_trigger};
use clawk_manifest::model::{AccessControl, ChannelType, Role, RuleAction, SandboxLevel};
use clawk_manifest::{Diagnostic, Manifest};
use clawk_swarm::plan::identity_name;

use crate::config::Settings;
use crate::peers::PeerConfig;

/// Returns one warning for each such setting.
pub(crate) fn unapplied_warnings(manifest: &Manifest, settings: &Settings) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if let Err(reason) = clawk_policy::ScreeningPolicy::compile(&manifest.policies) {
        found.push(Diagnostic::warning(
            "unserved-screening",
            "/spec/policies",
            format!("the agent will not start: {reason}"),
        ));
    }
    let open = |tool| {
        let sandbox = manifest.sandbox_of(tool);
        sandbox.is_some_and(|sandbox| sandbox.level == SandboxLevel::None)
    };
    if manifest.tools.iter().any(open) {
        found.push(
            Diagnostic::warning(
                "own-files-open",
                "/spec/sandbox",
                "at level `none` nothing keeps tools from the agent's own files: a program can rewrite this manifest, its policies or \
                 `clawk.toml` for the next start",
            )
            .with_help("level `process` or above keeps them; see docs/reference/sandbox.md"),
        );
    }
    found.extend(member_warnings(manifest, &settings.peers));
    found.extend(unanswerable_warning(manifest, settings));
    found.extend(feature_warnings(manifest));
    found.extend(dead_channel_warnings(manifest, settings));
    found.extend(registry_warnings(settings));
    found.extend(retry_warnings(manifest, settings));
    found
}

/// Finds tools with `retry` that nothing declares safe to repeat. Properties of an Atlas's action or a trusted server are not known
/// before the start.
fn retry_warnings(manifest: &Manifest, settings: &Settings) -> Vec<Diagnostic> {
    const HINT: &str = "idempotentHint";
    let configured = |name: &str| settings.tools.tools.get(name);
    let idle = manifest.tools.iter().enumerate().filter(|(_, tool)| {
        let own = || {
            clawk_tools::builtin::describe_builtin(&tool.name).filter(|_| configured(&tool.name).is_none())
        };
        tool.retry.is_some()
            && tool.mcp_source.is_none()
            && !tool.annotations.contains_key(HINT)
            && !configured(&tool.name).is_some_and(|config| config.trust_annotations)
            && !own().is_some_and(|own| own.trusted_annotations.get(HINT) == Some(&true.into()))
    });
    idle.filter(|_| settings.atlases.paths.is_empty())
        .map(|(at, tool)| {
            let said = format!(
                "`retry` has no effect: nothing says that `{}` may be run again",
                tool.name
            );
            Diagnostic::warning("no-effect", format!("/spec/tools/{at}/retry"), said)
                .with_help("write `annotations: {idempotentHint: true}` if a second run does no harm")
        })
        .collect()
}

/// Finds channel features that the channel's type does not have.
fn feature_warnings(manifest: &Manifest) -> Vec<Diagnostic> {
    let all = manifest.channels.iter().enumerate().flat_map(|(at, channel)| {
        clawk_channels::unsupported_features(channel, &manifest.providers)
            .into_iter()
            .map(move |(field, why)| {
                let pointer = format!("/spec/channels/{at}/{field}");
                Diagnostic::warning("unserved-feature", pointer, why)
            })
    });
    all.collect()
}

/// Finds channels that no start will connect. The others work, so the agent starts.
fn dead_channel_warnings(manifest: &Manifest, settings: &Settings) -> Vec<Diagnostic> {
    let none = ChannelConfig::default();
    let dead = manifest.channels.iter().enumerate().filter_map(|(at, channel)| {
        let config = settings.channels.get(&channel.name).unwrap_or(&none);
        let (field, why) = clawk_channels::dead_channel_reason(channel, config)?;
        let said = format!("the channel `{}` will not be connected: {why}", channel.name);
        Some(Diagnostic::warning(
            "dead-channel",
            format!("/spec/channels/{at}/{field}"),
            said,
        ))
    });
    dead.collect()
}

/// Finds registries whose folder is not there, so that nothing is looked for in them.
fn registry_warnings(settings: &Settings) -> Vec<Diagnostic> {
    let missing = settings.registries.iter().filter(|(_, folder)| !folder.is_dir());
    let said = missing.map(|(name, folder)| {
        let said = format!(
            "`[registries] {name}` of clawk.toml: there is no folder `{}`, so nothing is found in it",
            folder.display()
        );
        Diagnostic::warning("registry-missing", "", said)
    });
    said.collect()
}

/// Finds approval requests that nobody could answer: the person who causes them is not an admin, and no conversation for requests
/// is configured.
fn unanswerable_warning(manifest: &Manifest, settings: &Settings) -> Option<Diagnostic> {
    let mut rules = manifest.policies.iter().flat_map(|policy| &policy.rules);
    let asks = rules.any(|rule| rule.action == RuleAction::RequireApproval);
    if !asks || !settings.approvals.to.is_empty() {
        return None;
    }
    let none = ChannelConfig::default();
    let silent = manifest.channels.iter().filter(|channel| {
        let config = settings.channels.get(&channel.name).unwrap_or(&none);
        let is_admin = |id: &String| config.admins.contains(id);
        match (&channel.kind, &channel.access_control) {
            (ChannelType::Cli, _) => false,
            (kind, _) if is_trigger(*kind) => true,
            (_, Some(AccessControl::Allowlist { allowed_ids })) => !allowed_ids.iter().all(is_admin),
            (_, Some(AccessControl::RoleBased { roles })) => {
                roles.iter().any(|assigned| assigned.role == Role::User)
            }
            (_, Some(AccessControl::Open | AccessControl::Pairing { .. }) | None) => true,
        }
    });
    let names: Vec<String> = silent.map(|channel| format!("`{}`", channel.name)).collect();
    let (first, rest) = names.split_first()?;
    let names = match rest.len() {
        0 => first.clone(),
        more => format!("{first} and {more} more"),
    };
    let said = format!(
        "a rule asks for approval, and messages of {names} can cause such a question without an admin who would see it there: it waits for \
         `clawk approve` alone, and ends with its time"
    );
    let help = "name a conversation of an admin in clawk.toml: `[approvals] to = [\"CHANNEL:CONVERSATION\"]`";
    Some(Diagnostic::warning("question-unheard", "/spec/channels", said).with_help(help))
}

/// Finds swarm members without an Identity. They act as the Claw itself under another name.
fn member_warnings(manifest: &Manifest, peers: &BTreeMap<String, PeerConfig>) -> Vec<Diagnostic> {
    let agents = manifest.swarm.iter().flat_map(|swarm| &swarm.agents).enumerate();
    let lost = agents.filter_map(|(at, agent)| {
        let name = identity_name(&agent.identity_ref);
        let file =
            ["yaml", "json"].map(|form| manifest.dir.join("identities").join(format!("{name}.{form}")));
        let known = name == manifest.identity.name || peers.contains_key(&name) || file.iter().any(|file| file.is_file());
        let pointer = format!("/spec/swarm/agents/{at}/identity_ref");
        let uri = clawk_proto::uri::ClawUri::parse(&agent.identity_ref).is_ok();
        let said = match (known, uri) {
            (true, _) => return None,
            (false, false) => format!(
                "no Identity `{name}` is found: its members have this Claw's own Identity under that name"
            ),
            (false, true) => format!("no Identity `{name}` is found: its members are unavailable"),
        };
        let help = format!("put an Identity document into `identities/{name}.yaml` beside the manifest, or bind it by `[peers.{name}]` in clawk.toml");
        Some(Diagnostic::warning("member_without_identity", pointer, said).with_help(help))
    });
    lost.collect()
}
