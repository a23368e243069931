//! nanobot and PicoClaw: `config.json` with a common structure, the workspace folder, `cron/jobs.json`.

use serde_json::Value;

use crate::ImportError;
use crate::draft::Draft;
use crate::providers::{VendorAccount, VendorChoice};
use crate::runtimes::{self, ImportSource, Runtime};
use crate::settings::Settings;
use crate::source::SourcePath;
use crate::vendors;
use crate::{channels, tools, workspace};

const DEFAULTS: &str = "agents.defaults";

pub(super) fn read(runtime: Runtime, source: &ImportSource) -> Result<Draft, ImportError> {
    let (root, file) = source.main_file(runtime, &["config.json"])?;
    let settings = Settings::read(&file)?;
    let mut draft = Draft::default();
    import_models(&mut draft, &settings);
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
        draft
            .report
            .add_left_out("config.json: restrictToWorkspace", reason);
    }
    draft.steps_per_turn = settings.number(&format!("{DEFAULTS}.max_tool_iterations"));
    tools::import_servers(&mut draft, &settings, "tools.mcp_servers");
    tools::import_servers(&mut draft, &settings, "tools.mcp.servers");
    tools::import_servers(&mut draft, &settings, "tools.mcp");
    let configured = settings.text(&format!("{DEFAULTS}.workspace"));
    let folder = runtimes::find_workspace(&mut draft, &root, configured.as_deref());
    workspace::read(&mut draft, &folder)?;
    import_heartbeat(&mut draft, &settings, &folder)?;
    runtimes::import_jobs(
        &mut draft,
        &[root.join("cron/jobs.json"), folder.join("cron/jobs.json")],
    )?;
    runtimes::leave_rest(&mut draft, &settings);
    Ok(draft)
}

/// Reads the models. A model is a name, a name with a vendor, a preset, or an entry of `model_list`.
fn import_models(draft: &mut Draft, settings: &Settings) {
    let named = settings.first_text(&[
        &format!("{DEFAULTS}.model_preset"),
        &format!("{DEFAULTS}.model_name"),
        &format!("{DEFAULTS}.model"),
        "llm.model",
    ]);
    let vendor = settings
        .text(&format!("{DEFAULTS}.provider"))
        .filter(|vendor| vendor != "auto");
    let mut wanted: Vec<String> = agent_of_list(draft, settings).or(named).into_iter().collect();
    wanted.extend(settings.list(&format!("{DEFAULTS}.fallback_models")));
    wanted.extend(settings.list(&format!("{DEFAULTS}.model_fallbacks")));
    let list = settings.take_value("model_list").and_then(Value::as_array);
    for name in &wanted {
        let preset = format!("model_presets.{name}");
        let entry = list.and_then(|list| {
            list.iter()
                .find(|entry| first_text(entry, &["model_name"]).as_deref() == Some(name))
        });
        if let Some(entry) = entry {
            import_listed_model(draft, entry);
        } else if let Some(model) = settings.text(&format!("{preset}.model")) {
            let vendor = settings
                .text(&format!("{preset}.provider"))
                .filter(|vendor| vendor != "auto");
            let router = router_for(settings, &model);
            runtimes::import_models(
                draft,
                settings,
                "providers",
                vendor_choice(vendor.as_deref(), router.as_deref()),
                &[model],
            );
        } else if settings.peek_value("llm.model").is_some() {
            crate::providers::add_provider(draft, name, VendorChoice::InName, &|_| VendorAccount {
                key: settings.text("llm.api_key"),
                place: "config.json: llm.api_key".to_owned(),
                base_url: settings.text("llm.base_url"),
                dialect: None,
            });
        } else {
            let router = router_for(settings, name);
            let choice = vendor_choice(vendor.as_deref(), router.as_deref());
            runtimes::import_models(draft, settings, "providers", choice, std::slice::from_ref(name));
        }
    }
    runtimes::unused_accounts(draft, settings, "providers");
}

/// The first agent's model, if `agents` is a list or contains one.
fn agent_of_list(draft: &mut Draft, settings: &Settings) -> Option<String> {
    let at = match settings.peek_value("agents") {
        Some(Value::Array(_)) => "agents",
        Some(_) | None => "agents.list",
    };
    let list = settings.take_value(at)?.as_array()?;
    let is_default = |agent: &&Value| agent.get("default") == Some(&Value::Bool(true));
    let chosen = list.iter().find(is_default).or_else(|| list.first())?;
    for other in list.iter().filter(|other| !std::ptr::eq(*other, chosen)) {
        let id = first_text(other, &["name", "id"]).unwrap_or_else(|| "without a name".to_owned());
        let reason = "one agent is one `claw.yaml`: import it by itself, or make it a member of a Swarm";
        draft
            .report
            .add_left_out(format!("config.json: {at}, agent {id}"), reason);
    }
    draft.name = first_text(chosen, &["name", "id"]).or_else(|| draft.name.take());
    first_text(chosen, &["model", "model_name"])
        .or_else(|| chosen.pointer("/model/primary")?.as_str().map(str::to_owned))
}

/// The vendor that the configuration names. Otherwise, a router that has a key, if the vendor in the model's name has none: these
/// runtimes then use the router.
fn vendor_choice<'a>(vendor: Option<&'a str>, router: Option<&'a str>) -> VendorChoice<'a> {
    vendor
        .or(router)
        .map_or(VendorChoice::InName, VendorChoice::Named)
}

fn router_for(settings: &Settings, model: &str) -> Option<String> {
    let (prefix, _) = model.split_once('/')?;
    let has_key = |name: &str| {
        let at = format!("providers.{name}");
        ["api_key", "key", "token"].iter().any(|word| {
            let key = settings
                .peek_value(&format!("{at}.{word}"))
                .and_then(Value::as_str);
            key.is_some_and(|key| !key.trim().is_empty())
        })
    };
    if has_key(prefix) {
        return None;
    }
    settings
        .names("providers")
        .into_iter()
        .find(|name| vendors::is_router(name) && has_key(name))
}

/// Reads an entry `{model_name, model: "vendor/model", api_key, api_base}`.
fn import_listed_model(draft: &mut Draft, entry: &Value) {
    let Some(model) = first_text(entry, &["model"]) else {
        return;
    };
    let name = first_text(entry, &["model_name"]).unwrap_or_default();
    crate::providers::add_provider(draft, &model, VendorChoice::InName, &|_| VendorAccount {
        key: first_text(entry, &["api_key"]).or_else(|| {
            entry
                .pointer("/api_keys/0")
                .and_then(Value::as_str)
                .map(str::to_owned)
        }),
        place: format!("config.json: model_list, {name}"),
        base_url: first_text(entry, &["api_base", "base_url"]),
        dialect: None,
    });
}

fn first_text(entry: &Value, names: &[&str]) -> Option<String> {
    let found = names.iter().find_map(|name| entry.get(name))?.as_str()?;
    (!found.is_empty()).then(|| found.to_owned())
}

/// Reads the heartbeat: seconds in nanobot (below `gateway`), minutes in PicoClaw.
fn import_heartbeat(draft: &mut Draft, settings: &Settings, folder: &SourcePath) -> Result<(), ImportError> {
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
        workspace::import_heartbeat(draft, folder, every.unwrap_or(30 * 60_000))
    }
}
