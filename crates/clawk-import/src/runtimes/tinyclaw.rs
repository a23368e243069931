//! TinyClaw: `settings.json` with agents, teams and channels; one folder per agent.

use std::path::Path;

use serde_json::json;

use crate::ImportError;
use crate::draft::{Draft, Member, fit_name};
use crate::providers::VendorChoice;
use crate::runtimes::{self, ImportSource, Runtime};
use crate::settings::{Settings, first_file, text_of};
use crate::source::SourcePath;
use crate::{channels, emit, workspace};

/// Short model names, with the catalogue's names for their present meaning.
const SHORT: &[(&str, &str)] = &[
    ("sonnet", "anthropic:medium"),
    ("opus", "anthropic:large"),
    ("haiku", "anthropic:small"),
];

pub(super) fn read(source: &ImportSource) -> Result<Draft, ImportError> {
    let (root, file) = source.main_file(Runtime::Tinyclaw, &["settings.json"])?;
    let settings = Settings::read(&file)?;
    let mut draft = Draft {
        name: settings.text("workspace.name"),
        ..Draft::default()
    };
    let vendor = settings
        .text("models.provider")
        .unwrap_or_else(|| "anthropic".to_owned());
    if let Some(model) = settings.text(&format!("models.{vendor}.model")) {
        runtimes::import_models(
            &mut draft,
            &settings,
            "models",
            VendorChoice::Named(&vendor),
            &[full_model_name(&model)],
        );
    }
    let enabled = settings.list("channels.enabled");
    for name in settings.names("channels") {
        if name != "enabled" && !enabled.is_empty() && !enabled.contains(&name) {
            settings.take_value(&format!("channels.{name}"));
        }
    }
    let on = |name: &str| enabled.is_empty() || enabled.iter().any(|enabled| enabled == name);
    channels::read_some(&mut draft, &settings, "channels", &on);
    draft.shell = true;
    draft.web = true;
    let base = runtimes::find_workspace(&mut draft, &root, settings.text("workspace.path").as_deref());
    import_agents(&mut draft, &settings, &base)?;
    import_teams(&mut draft, &settings);
    workspace::read(&mut draft, &base)?;
    workspace::import_skills(&mut draft, &root.join("skills"))?;
    let seconds = settings.number("monitoring.heartbeat_interval").unwrap_or(3_600);
    workspace::import_heartbeat(&mut draft, &root, seconds.saturating_mul(1_000))?;
    runtimes::leave_rest(&mut draft, &settings);
    Ok(draft)
}

fn full_model_name(model: &str) -> String {
    let known = SHORT.iter().find(|(short, _)| *short == model);
    known.map_or(model, |(_, long)| long).to_owned()
}

/// Reads the agents. A single agent becomes the Claw itself; several become members of a swarm.
fn import_agents(draft: &mut Draft, settings: &Settings, base: &SourcePath) -> Result<(), ImportError> {
    let names = settings.names("agents");
    for name in &names {
        let here = format!("agents.{name}");
        let title = settings
            .text(&format!("{here}.name"))
            .unwrap_or_else(|| name.clone());
        let vendor = settings
            .text(&format!("{here}.provider"))
            .unwrap_or_else(|| "anthropic".to_owned());
        let model = settings
            .text(&format!("{here}.model"))
            .map(|model| full_model_name(&model));
        let folder = settings.text(&format!("{here}.working_directory"));
        let named = folder.and_then(|folder| match folder.strip_prefix("~/") {
            Some(rest) => Some(base.join(rest)),
            None => base.place_named(Path::new(&folder)),
        });
        let mut own = named.unwrap_or_else(|| base.join(name));
        if !own.is_dir() {
            own = base.join(name);
        }
        let mut personality = settings
            .text(&format!("{here}.system_prompt"))
            .unwrap_or_default();
        if let Some(file) = first_file(&own, &["AGENTS.md", "SOUL.md", ".tinyclaw/SOUL.md"])? {
            personality = format!("{personality}\n\n{}", text_of(&file)?).trim().to_owned();
        }
        if personality.is_empty() {
            personality = format!("You are {title}.");
        }
        if let Some(model) = model {
            runtimes::import_models(draft, settings, "models", VendorChoice::Named(&vendor), &[model]);
        }
        if names.len() == 1 {
            draft.add_prompt(name, &personality);
            draft.name.get_or_insert(title);
            continue;
        }
        let member = draft.free_member(&fit_name(name));
        let identity = json!({
            "claw": "0.3.0", "kind": "Identity", "metadata": {"name": member, "version": "0.1.0"},
            "spec": {"personality": personality, "autonomy": "supervised"},
        });
        draft.files.push((
            format!("identities/{member}.yaml").into(),
            emit::to_yaml(&identity).into_bytes(),
        ));
        draft
            .report
            .add_carried(format!("agent `{name}` as the member `{member}`"));
        draft.members.push(Member { name: member });
    }
    Ok(())
}

fn import_teams(draft: &mut Draft, settings: &Settings) {
    for (index, name) in settings.names("teams").into_iter().enumerate() {
        let here = format!("teams.{name}");
        let leader = settings.text(&format!("{here}.leader_agent"));
        let members: Vec<String> = settings
            .list(&format!("{here}.agents"))
            .iter()
            .map(|name| fit_name(name))
            .collect();
        settings.take_value(&format!("{here}.name"));
        if index > 0 {
            draft.report.add_left_out(
                settings.display_path(&here),
                "one agent has one Swarm: the first team came over",
            );
            continue;
        }
        draft.members.retain(|member| members.contains(&member.name));
        let leader = leader
            .map(|leader| fit_name(&leader))
            .or_else(|| members.first().cloned());
        if let Some(leader) = leader.filter(|_| draft.members.len() > 1) {
            draft
                .report
                .add_carried(format!("team `{name}` as a Swarm led by `{leader}`"));
            draft.swarm = Some((fit_name(&name), leader));
        }
    }
    if draft.swarm.is_none() && draft.members.len() > 1 {
        let leader = draft
            .members
            .first()
            .map(|member| member.name.clone())
            .unwrap_or_default();
        draft.swarm = Some(("team".to_owned(), leader));
    }
}
