//! nanobot and PicoClaw: `config.json` of one shape, the workspace folder, `cron/jobs.json`.

use std::path::Path;

use serde_json::Value;

use crate::ImportError;
use crate::draft::Draft;
use crate::runtimes::{self, Runtime};
use crate::settings::Settings;
use crate::{channels, tools, workspace};

const DEFAULTS: &str = "agents.defaults";

pub(super) fn read(runtime: Runtime, path: &Path) -> Result<Draft, ImportError> {
    let (root, file) = runtimes::main_file(runtime, path, &["config.json"])?;
    let settings = Settings::read(&file)?;
    let mut draft = Draft::default();
    models(&mut draft, &settings);
    channels::read(&mut draft, &settings, "channels");
    draft.shell = settings.flag("tools.exec.enabled") != Some(false)
        && settings.flag("tools.exec.enable") != Some(false);
    draft.web = settings.flag("tools.web.enabled") != Some(false);
    draft.memory = true;
    if settings.flag("tools.restrict_to_workspace") == Some(false)
        || settings.flag(&format!("{DEFAULTS}.restrict_to_workspace")) == Some(false)
    {
        let reason =
            "it reached every file of its user; here it reaches its own folder. Add `mount_paths` for more";
        draft.report.left("config.json: restrictToWorkspace", reason);
    }
    draft.steps_per_turn = settings.number(&format!("{DEFAULTS}.max_tool_iterations"));
    tools::servers(&mut draft, &settings, "tools.mcp_servers");
    tools::servers(&mut draft, &settings, "tools.mcp.servers");
    tools::servers(&mut draft, &settings, "tools.mcp");
    let folder = runtimes::workspace(&root, settings.text(&format!("{DEFAULTS}.workspace")).as_deref());
    workspace::read(&mut draft, &folder)?;
    heartbeat(&mut draft, &settings, &folder)?;
    runtimes::jobs(
        &mut draft,
        &[root.join("cron/jobs.json"), folder.join("cron/jobs.json")],
    )?;
    runtimes::leave_rest(&mut draft, &settings);
    Ok(draft)
}

/// A model is a name, a name with a vendor, a preset, or an entry of `model_list`.
fn models(draft: &mut Draft, settings: &Settings) {
    let named = settings.first(&[
        &format!("{DEFAULTS}.model_preset"),
        &format!("{DEFAULTS}.model_name"),
        &format!("{DEFAULTS}.model"),
        "llm.model",
    ]);
    let vendor = settings
        .text(&format!("{DEFAULTS}.provider"))
        .filter(|vendor| vendor != "auto");
    let mut wanted: Vec<String> = named.into_iter().collect();
    wanted.extend(settings.list(&format!("{DEFAULTS}.fallback_models")));
    let list = settings.take("model_list").and_then(Value::as_array);
    for name in &wanted {
        let preset = format!("model_presets.{name}");
        let entry = list.and_then(|list| {
            list.iter()
                .find(|entry| text(entry, &["model_name"]).as_deref() == Some(name))
        });
        if let Some(entry) = entry {
            listed(draft, entry);
        } else if let Some(model) = settings.text(&format!("{preset}.model")) {
            let vendor = settings
                .text(&format!("{preset}.provider"))
                .filter(|vendor| vendor != "auto");
            runtimes::models(draft, settings, "providers", vendor.as_deref(), &[model]);
        } else if settings.look("llm.model").is_some() {
            crate::providers::add(draft, name, None, &|_| {
                let mut account = runtimes::account(settings, "llm", "");
                account.key = settings.text("llm.api_key");
                account.base_url = settings.text("llm.base_url");
                account.place = "config.json: llm.api_key".to_owned();
                account
            });
        } else {
            runtimes::models(
                draft,
                settings,
                "providers",
                vendor.as_deref(),
                std::slice::from_ref(name),
            );
        }
    }
    runtimes::unused_accounts(draft, settings, "providers");
}

/// `{model_name, model: "vendor/model", api_key, api_base}`.
fn listed(draft: &mut Draft, entry: &Value) {
    let Some(model) = text(entry, &["model"]) else {
        return;
    };
    let name = text(entry, &["model_name"]).unwrap_or_default();
    crate::providers::add(draft, &model, None, &|_| crate::providers::Account {
        key: text(entry, &["api_key"]).or_else(|| {
            entry
                .pointer("/api_keys/0")
                .and_then(Value::as_str)
                .map(str::to_owned)
        }),
        place: format!("config.json: model_list, {name}"),
        base_url: text(entry, &["api_base", "base_url"]),
        dialect: None,
    });
}

fn text(entry: &Value, names: &[&str]) -> Option<String> {
    let found = names.iter().find_map(|name| entry.get(name))?.as_str()?;
    (!found.is_empty()).then(|| found.to_owned())
}

/// Seconds in nanobot (below `gateway`), minutes in PicoClaw.
fn heartbeat(draft: &mut Draft, settings: &Settings, folder: &Path) -> Result<(), ImportError> {
    let seconds = settings.number("gateway.heartbeat.interval_s");
    let minutes = settings.number("heartbeat.interval");
    let off = settings.flag("gateway.heartbeat.enabled") == Some(false)
        || settings.flag("heartbeat.enabled") == Some(false);
    let every = seconds
        .map(|seconds| seconds.saturating_mul(1_000))
        .or(minutes.map(|minutes| minutes.saturating_mul(60_000)));
    if off {
        Ok(())
    } else {
        workspace::heartbeat(draft, folder, every.unwrap_or(30 * 60_000))
    }
}
