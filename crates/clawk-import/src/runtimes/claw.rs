//! ZeptoClaw and NullClaw: `config.json` with accounts of vendors, channels and an autonomy or approval section.

use crate::ImportError;
use crate::draft::Draft;
use crate::providers::VendorChoice;
use crate::runtimes::{self, ImportSource, Runtime};
use crate::settings::Settings;
use crate::{channels, tools, workspace};

pub(super) fn read(runtime: Runtime, source: &ImportSource) -> Result<Draft, ImportError> {
    let (root, file) = source.main_file(runtime, &["config.json"])?;
    let settings = Settings::read(&file)?;
    let mut draft = Draft::default();
    let accounts = if settings.peek_value("models.providers").is_some() {
        "models.providers"
    } else {
        "providers"
    };
    import_models(&mut draft, &settings, accounts);
    channels::read(&mut draft, &settings, "channels");
    runtimes::import_autonomy(&mut draft, &settings, "autonomy");
    draft.shell = !draft.observer;
    draft.web =
        settings.flag("http_request.enabled") == Some(true) || settings.peek_value("tools.web").is_some();
    draft.memory = settings
        .text("memory.backend")
        .is_none_or(|backend| backend != "none" && backend != "disabled");
    draft.steps_per_turn = settings
        .first_text(&["agents.defaults.max_tool_iterations", "agent.max_tool_iterations"])
        .and_then(|steps| steps.parse().ok()); // silent-ok: a word is no number
    tools::import_servers(&mut draft, &settings, "mcp.servers");
    tools::import_servers(&mut draft, &settings, "mcp_servers");
    let configured = settings.first_text(&["agents.defaults.workspace", "workspace"]);
    let folder = runtimes::find_workspace(&mut draft, &root, configured.as_deref());
    workspace::read(&mut draft, &folder)?;
    workspace::import_skills(&mut draft, &root.join("skills"))?;
    if settings.flag("heartbeat.enabled") == Some(true) {
        let minutes = settings.number("heartbeat.interval_minutes");
        let seconds = settings.number("heartbeat.interval_secs");
        let every = minutes
            .map(|minutes| minutes.saturating_mul(60_000))
            .or(seconds.map(|seconds| seconds.saturating_mul(1_000)));
        workspace::import_heartbeat(&mut draft, &folder, every.unwrap_or(30 * 60_000))?;
    }
    let jobs = [
        root.join("cron.json"),
        root.join("cron/jobs.json"),
        folder.join("cron/jobs.json"),
    ];
    runtimes::import_jobs(&mut draft, &jobs)?;
    let long = root.join("memory/longterm.json");
    if long.is_file() {
        let notes = crate::settings::text_of(&long)?;
        draft
            .files
            .push(("memory/longterm.json".into(), notes.into_bytes()));
        draft
            .report
            .add_carried("`memory/longterm.json`, as a file that the agent can read");
    }
    runtimes::leave_rest(&mut draft, &settings);
    Ok(draft)
}

fn import_models(draft: &mut Draft, settings: &Settings, accounts: &str) {
    let first = settings
        .first_text(&["agents.defaults.model.primary"])
        .or_else(|| settings.first_text(&["agents.defaults.model"]));
    let default = settings.text(&format!("{accounts}.default"));
    let of_default = default
        .as_deref()
        .and_then(|vendor| settings.text(&format!("{accounts}.{vendor}.model")));
    let mut all: Vec<String> = first.or(of_default).into_iter().collect();
    all.extend(settings.list("agents.defaults.model.fallbacks"));
    let choice = default
        .as_deref()
        .map_or(VendorChoice::InName, VendorChoice::Default);
    runtimes::import_models(draft, settings, accounts, choice, &all);
    // A fallback by vendor uses that vendor's own model.
    let mut vendors = settings.list("reliability.fallback_providers");
    vendors.extend(settings.text(&format!("{accounts}.fallback.provider")));
    for vendor in vendors {
        match settings.text(&format!("{accounts}.{vendor}.model")) {
            Some(model) => {
                runtimes::import_models(draft, settings, accounts, VendorChoice::Named(&vendor), &[model]);
            }
            None => draft.report.add_left_out(
                format!("config.json: fallback `{vendor}`"),
                "no model of it is named",
            ),
        }
    }
    for part in ["retry", "fallback"] {
        if settings.peek_value(&format!("{accounts}.{part}")).is_some() {
            settings.take_value(&format!("{accounts}.{part}"));
        }
    }
    runtimes::unused_accounts(draft, settings, accounts);
}
