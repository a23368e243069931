//! Clawlet: `config.yaml`, identity files beside it.

use crate::ImportError;
use crate::draft::Draft;
use crate::providers::VendorChoice;
use crate::runtimes::{self, ImportSource, Runtime};
use crate::settings::Settings;
use crate::{channels, tools, workspace};

pub(super) fn read(source: &ImportSource) -> Result<Draft, ImportError> {
    let (root, file) = source.main_file(Runtime::Clawlet, &["config.yaml", "config.yml"])?;
    let settings = Settings::read(&file)?;
    let mut draft = Draft::default();
    let vendor = settings
        .text("provider.primary")
        .unwrap_or_else(|| "openrouter".to_owned());
    for vendor in std::iter::once(vendor).chain(settings.list("provider.fallbacks")) {
        if let Some(model) = settings.text(&format!("provider.{vendor}.model")) {
            let choice = VendorChoice::Named(&vendor);
            runtimes::import_models(&mut draft, &settings, "provider", choice, &[model]);
        }
    }
    runtimes::unused_accounts(&mut draft, &settings, "provider");
    channels::read(&mut draft, &settings, "channels");
    draft.shell = settings.text("agent.mode").is_none_or(|mode| mode != "chat");
    if settings
        .text("agent.mode")
        .is_some_and(|mode| mode == "full_exec")
    {
        draft.report.add_left_out(
            "config.yaml: agent.mode",
            "`full_exec` ran every command; here each is asked for and runs in a box",
        );
    }
    draft.web = true;
    draft.memory = true;
    draft.steps_per_turn = settings
        .first_text(&["agent.max_iterations", "agent.max_tool_iterations"])
        .and_then(|steps| steps.parse().ok()); // silent-ok: a word is no number
    tools::import_servers(&mut draft, &settings, "mcp.servers");
    tools::import_servers(&mut draft, &settings, "mcp_servers");
    workspace::read(&mut draft, &root)?;
    let minutes = settings
        .first_text(&["heartbeat.interval_minutes", "heartbeat.interval"])
        .and_then(|text| text.parse::<u64>().ok()); // silent-ok: as above
    if settings.flag("heartbeat.enabled") != Some(false) {
        workspace::import_heartbeat(&mut draft, &root, minutes.unwrap_or(30).saturating_mul(60_000))?;
    }
    for part in ["identity", "memory"] {
        if root.join(part).is_dir() {
            workspace::read(&mut draft, &root.join(part))?;
        }
    }
    runtimes::leave_rest(&mut draft, &settings);
    Ok(draft)
}
