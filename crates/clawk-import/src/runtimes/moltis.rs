//! Moltis: `moltis.toml`, its data folder with identity files, skills and `cron/jobs.json`.

use std::path::Path;

use serde_json::Value;

use crate::ImportError;
use crate::draft::Draft;
use crate::providers::VendorChoice;
use crate::runtimes::{self, ImportSource, Runtime};
use crate::settings::Settings;
use crate::source::SourcePath;
use crate::{channels, tools, workspace};

pub(super) fn read(source: &ImportSource) -> Result<Draft, ImportError> {
    let (root, file) = source.main_file(Runtime::Moltis, &["moltis.toml"])?;
    let settings = Settings::read(&file)?;
    let mut draft = Draft {
        name: settings.text("identity.name"),
        ..Draft::default()
    };
    for (member, words) in [
        ("creature", "You are a"),
        ("vibe", "Your manner:"),
        ("theme", "Your manner:"),
        ("soul", ""),
    ] {
        if let Some(text) = settings.text(&format!("identity.{member}")) {
            draft.add_prompt("moltis.toml: identity", format!("{words} {text}").trim());
        }
    }
    import_models(&mut draft, &settings);
    settings.take_value("channels.offered");
    channels::read(&mut draft, &settings, "channels");
    draft.shell = settings.flag("tools.exec.enabled") != Some(false);
    draft.web = settings.flag("tools.web.fetch.enabled") != Some(false);
    draft.memory = true;
    draft.steps_per_turn = settings.number("tools.agent_max_iterations");
    if settings
        .text("tools.exec.approval_mode")
        .is_some_and(|mode| mode == "never" || mode == "off")
    {
        draft.report.add_left_out(
            "moltis.toml: tools.exec.approval_mode",
            "commands ran without a question; here each is asked for",
        );
    }
    tools::import_servers(&mut draft, &settings, "mcp.servers");
    let data = data_folder(&root);
    for folder in [&root, &data] {
        workspace::read(&mut draft, folder)?;
    }
    let every = settings
        .text("heartbeat.every")
        .or_else(|| settings.text("heartbeat.interval"));
    if settings.flag("heartbeat.enabled") != Some(false) {
        let every = every
            .as_deref()
            .and_then(|text| text.strip_suffix('m')?.parse::<u64>().ok())
            .unwrap_or(30); // silent-ok: another form means the default
        workspace::import_heartbeat(&mut draft, &data, every.saturating_mul(60_000))?;
    }
    runtimes::import_jobs(
        &mut draft,
        &[data.join("cron/jobs.json"), root.join("cron/jobs.json")],
    )?;
    runtimes::leave_rest(&mut draft, &settings);
    Ok(draft)
}

/// `~/.moltis`, next to `~/.config/moltis`.
fn data_folder(root: &SourcePath) -> SourcePath {
    let home = root.above_root().and_then(Path::parent);
    let data = home.and_then(|home| root.place_named(&home.join(".moltis")));
    data.unwrap_or_else(|| root.clone())
}

/// Reads the models. Each vendor's table may name some; `chat.priority_models` come first.
fn import_models(draft: &mut Draft, settings: &Settings) {
    let mut first = settings.list("chat.priority_models");
    let names = settings.names("providers");
    let offered = settings.list("providers.offered");
    let mut all = Vec::new();
    for vendor in names.iter().filter(|vendor| *vendor != "offered") {
        let here = format!("providers.{vendor}");
        let is_table = settings.peek_value(&here).is_some_and(Value::is_object);
        if !is_table || settings.flag(&format!("{here}.enabled")) == Some(false) {
            settings.take_value(&here);
            continue;
        }
        let mut models = settings.list(&format!("{here}.models"));
        models.extend(settings.text(&format!("{here}.model")));
        all.extend(models.into_iter().map(|model| format!("{vendor}/{model}")));
    }
    first.retain(|model| {
        offered.is_empty() || offered.iter().any(|vendor| model.starts_with(vendor.as_str()))
    });
    first.extend(all);
    runtimes::import_models(draft, settings, "providers", VendorChoice::InName, &first);
    runtimes::unused_accounts(draft, settings, "providers");
}
