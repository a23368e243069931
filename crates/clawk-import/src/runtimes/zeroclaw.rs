//! ZeroClaw: `config.toml`, the workspace folder, scheduled jobs in `workspace/cron/jobs.db`.

use std::path::Path;

use crate::ImportError;
use crate::draft::Draft;
use crate::runtimes::{self, Runtime};
use crate::settings::Settings;
use crate::{channels, tools, workspace};

#[expect(clippy::too_many_lines, reason = "one section of the file after the other")]
pub(super) fn read(path: &Path) -> Result<Draft, ImportError> {
    let (root, file) = runtimes::main_file(Runtime::Zeroclaw, path, &["config.toml"])?;
    let settings = Settings::read(&file)?;
    let mut draft = Draft {
        name: settings.text("agent.name"),
        ..Draft::default()
    };
    let vendor = settings
        .text("default_provider")
        .unwrap_or_else(|| "openrouter".to_owned());
    // `custom:https://…/v1` names an endpoint of one's own.
    let custom = vendor.split_once(':').map(|(_, url)| url.to_owned());
    let model = settings.text("default_model").into_iter().collect::<Vec<_>>();
    let key = settings.text("api_key");
    let url = custom.or_else(|| settings.first(&["api_url", "base_url"]));
    for model in &model {
        let name = if url.is_some() { "custom" } else { vendor.as_str() };
        // The whole name belongs to a router.
        let plain = if name == "openrouter" {
            format!("openrouter/{model}")
        } else {
            model.clone()
        };
        crate::providers::add(&mut draft, &plain, Some(name), &|name| {
            let mut account = runtimes::account(&settings, "providers.models", name);
            if account.key.is_none() {
                account.key.clone_from(&key);
                account.place = "config.toml: api_key".to_owned();
            }
            account.base_url = account.base_url.or_else(|| url.clone());
            account
        });
    }
    channels::read(&mut draft, &settings, "channels_config");
    channels::read(&mut draft, &settings, "channels");
    runtimes::autonomy(&mut draft, &settings, "autonomy");
    draft.day_microusd = settings
        .number("autonomy.max_cost_per_day_cents")
        .map(|cents| cents.saturating_mul(10_000));
    if settings.flag("cost.enabled") == Some(true) {
        draft.day_microusd = runtimes::microusd(&settings, "cost.daily_limit_usd").or(draft.day_microusd);
        draft.month_microusd = runtimes::microusd(&settings, "cost.monthly_limit_usd");
    }
    draft.steps_per_turn = settings
        .number("agent.max_tool_iterations")
        .filter(|steps| *steps > 0);
    draft.shell = !draft.observer;
    draft.web = settings.flag("http_request.enabled") == Some(true)
        || settings.flag("web_fetch.enabled") == Some(true);
    draft.memory = settings
        .text("memory.backend")
        .is_none_or(|backend| backend != "none");
    for name in settings.names("agents") {
        let place = settings.place(&format!("agents.{name}"));
        settings.take(&format!("agents.{name}"));
        draft.report.left(
            place,
            "a sub-agent is a member of a Swarm here: add it to `swarm.agents`",
        );
    }
    tools::servers(&mut draft, &settings, "mcp.servers");
    let folder = runtimes::workspace(&root, settings.text("workspace_dir").as_deref());
    workspace::read(&mut draft, &folder)?;
    let minutes = settings.number("heartbeat.interval_minutes").unwrap_or(30);
    if settings.flag("heartbeat.enabled") == Some(true) {
        workspace::heartbeat(&mut draft, &folder, minutes.saturating_mul(60_000))?;
    }
    let jobs = folder.join("cron/jobs.db");
    if jobs.is_file() {
        super::nanoclaw::rows(
            &mut draft,
            &jobs,
            "SELECT coalesce(name, id), expression, coalesce(prompt, command), 'cron' FROM cron_jobs WHERE enabled = 1",
        )?;
    }
    runtimes::leave_rest(&mut draft, &settings);
    Ok(draft)
}
