//! ZeroClaw: `config.toml`, the workspace folder, scheduled jobs in `workspace/cron/jobs.db`.

use crate::ImportError;
use crate::draft::Draft;
use crate::providers::{self, VendorChoice};
use crate::runtimes::{self, ImportSource, Runtime};
use crate::settings::Settings;
use crate::{channels, tools, workspace};

pub(super) fn read(source: &ImportSource) -> Result<Draft, ImportError> {
    let (root, file) = source.main_file(Runtime::Zeroclaw, &["config.toml"])?;
    let settings = Settings::read(&file)?;
    let mut draft = Draft {
        name: settings.text("agent.name"),
        ..Draft::default()
    };
    import_models(&mut draft, &settings);
    channels::read(&mut draft, &settings, "channels_config");
    channels::read(&mut draft, &settings, "channels");
    runtimes::import_autonomy(&mut draft, &settings, "autonomy");
    draft.day_microusd = settings
        .number("autonomy.max_cost_per_day_cents")
        .map(|cents| cents.saturating_mul(10_000));
    if settings.flag("cost.enabled") == Some(true) {
        draft.day_microusd =
            runtimes::read_microusd(&settings, "cost.daily_limit_usd").or(draft.day_microusd);
        draft.month_microusd = runtimes::read_microusd(&settings, "cost.monthly_limit_usd");
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
    let chosen = chosen_agent(&settings);
    for name in settings.names("agents") {
        let place = settings.display_path(&format!("agents.{name}"));
        settings.take_value(&format!("agents.{name}"));
        if chosen.as_ref() != Some(&name) {
            let reason = "a sub-agent is a member of a Swarm here: add it to `swarm.agents`";
            draft.report.add_left_out(place, reason);
        }
    }
    tools::import_servers(&mut draft, &settings, "mcp.servers");
    let folder = runtimes::find_workspace(&mut draft, &root, settings.text("workspace_dir").as_deref());
    workspace::read(&mut draft, &folder)?;
    let minutes = settings.number("heartbeat.interval_minutes").unwrap_or(30);
    if settings.flag("heartbeat.enabled") == Some(true) {
        workspace::import_heartbeat(&mut draft, &folder, minutes.saturating_mul(60_000))?;
    }
    let jobs = folder.join("cron/jobs.db");
    if jobs.is_file() {
        super::nanoclaw::import_rows(
            &mut draft,
            &jobs,
            "SELECT coalesce(name, id), expression, coalesce(prompt, command), 'cron' FROM cron_jobs WHERE enabled = 1",
        )?;
    }
    runtimes::leave_rest(&mut draft, &settings);
    Ok(draft)
}

/// Reads the models. Older files have one provider and one model at the top. Newer ones have a table per vendor and alias, which an
/// agent names.
fn import_models(draft: &mut Draft, settings: &Settings) {
    if let Some(agent) = chosen_agent(settings) {
        let named = settings.text(&format!("agents.{agent}.model_provider"));
        let mut wanted: Vec<String> = named.into_iter().collect();
        wanted.extend(settings.list(&format!("agents.{agent}.fallback_providers")));
        for reference in wanted {
            import_slot(draft, settings, &reference);
        }
        return unused_slots(draft, settings);
    }
    let Some(model) = settings.text("default_model") else {
        return;
    };
    let vendor = settings
        .text("default_provider")
        .unwrap_or_else(|| "openrouter".to_owned());
    let key = settings.text("api_key");
    // `custom:https://…/v1` names a custom endpoint.
    let custom = vendor.split_once(':').map(|(_, url)| url.to_owned());
    let dialect = vendor
        .starts_with("anthropic-custom:")
        .then(|| "anthropic".to_owned());
    let url = custom.or_else(|| settings.first_text(&["api_url", "base_url"]));
    let name = if url.is_some() { "custom" } else { vendor.as_str() };
    providers::add_provider(draft, &model, VendorChoice::Named(name), &|name| {
        let mut account = runtimes::vendor_account(settings, "providers.models", name);
        if account.key.is_none() {
            account.key.clone_from(&key);
            account.place = "config.toml: api_key".to_owned();
        }
        account.base_url = account.base_url.or_else(|| url.clone());
        account.dialect = account.dialect.or_else(|| dialect.clone());
        account
    });
}

/// The agent of a newer file: `default`, or else the first one whose model names a vendor and an alias.
fn chosen_agent(settings: &Settings) -> Option<String> {
    let names = settings.names("agents");
    let has_model = |name: &&String| {
        settings
            .peek_value(&format!("agents.{name}.model_provider"))
            .is_some()
    };
    let mut having = names.iter().filter(has_model);
    having
        .clone()
        .find(|name| *name == "default")
        .or_else(|| having.next())
        .cloned()
}

/// Reads `[providers.models.VENDOR.ALIAS]`, which is named `VENDOR.ALIAS`.
fn import_slot(draft: &mut Draft, settings: &Settings, reference: &str) {
    let at = format!("providers.models.{reference}");
    let (vendor, _) = reference.split_once('.').unwrap_or((reference, ""));
    let Some(model) = settings.text(&format!("{at}.model")) else {
        return draft
            .report
            .add_left_out(format!("config.toml: {at}"), "no model is named there");
    };
    let (above, alias) = at.rsplit_once('.').unwrap_or(("providers.models", reference));
    let found = runtimes::vendor_account(settings, above, alias);
    let reserved = settings.flag(&format!("{at}.requires_openai_auth")) == Some(true)
        || settings.text(&format!("{at}.auth_mode")).as_deref() == Some("oauth");
    let vendor = if reserved { "openai-codex" } else { vendor };
    providers::add_provider(draft, &model, VendorChoice::Named(vendor), &|_| found.clone());
}

/// Reports tables that no agent names, because the new files do not mention their keys.
fn unused_slots(draft: &mut Draft, settings: &Settings) {
    for vendor in settings.names("providers.models") {
        for alias in settings.names(&format!("providers.models.{vendor}")) {
            let at = format!("providers.models.{vendor}.{alias}");
            if settings.peek_value(&format!("{at}.api_key")).is_some()
                && !settings.is_taken(&format!("{at}.api_key"))
            {
                let place = settings.display_path(&at);
                draft
                    .report
                    .add_left_out(place, "no model of the agent uses this account");
                settings.take_value(&at);
            }
        }
    }
}
