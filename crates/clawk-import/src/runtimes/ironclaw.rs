//! IronClaw: `.env` and `config.toml`. The data that it keeps in PostgreSQL (identity files, routines, secrets) is not imported.

use crate::ImportError;
use crate::draft::Draft;
use crate::providers::{self, VendorAccount, VendorChoice};
use crate::runtimes::{self, ImportSource, Runtime};
use crate::settings::Settings;
use crate::source::SourcePath;
use crate::{channels, tools, workspace};

/// Back ends by name: the vendor, and the variables of model, key and address.
const BACKENDS: &[(&str, &str, &str, &str, &str)] = &[
    (
        "openai",
        "openai",
        "OPENAI_MODEL",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
    ),
    (
        "anthropic",
        "anthropic",
        "ANTHROPIC_MODEL",
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_BASE_URL",
    ),
    ("ollama", "ollama", "OLLAMA_MODEL", "", "OLLAMA_BASE_URL"),
    (
        "openai_compatible",
        "compatible",
        "LLM_MODEL",
        "LLM_API_KEY",
        "LLM_BASE_URL",
    ),
    (
        "nearai",
        "nearai",
        "NEARAI_MODEL",
        "NEARAI_API_KEY",
        "NEARAI_BASE_URL",
    ),
];

pub(super) fn read(source: &ImportSource) -> Result<Draft, ImportError> {
    let (root, file) = source.main_file(Runtime::Ironclaw, &[".env", "config.toml"])?;
    let env = Settings::read(&file)?;
    let mut draft = Draft::default();
    let word = env.text("LLM_BACKEND").unwrap_or_else(|| "nearai".to_owned());
    match BACKENDS.iter().find(|(backend, ..)| *backend == word) {
        Some((_, vendor, model, key, url)) => {
            let Some(model) = env.text(model) else {
                draft
                    .report
                    .add_left_out(format!(".env: {model}"), "no model is named");
                return finish_draft(draft, &root, &env);
            };
            let found = VendorAccount {
                key: (!key.is_empty()).then(|| format!("${{{key}}}")),
                place: format!(".env: {key}"),
                base_url: env.text(url),
                dialect: None,
            };
            env.take_value(key);
            // The whole name belongs to the model: a router's model name may contain a slash.
            providers::add_provider(
                &mut draft,
                &format!("{vendor}/{model}"),
                VendorChoice::Named(vendor),
                &|_| found.clone(),
            );
        }
        None => {
            let model = env.text("LLM_MODEL").unwrap_or_else(|| "unknown".to_owned());
            let found = VendorAccount {
                key: env.text("LLM_API_KEY").map(|_| "${LLM_API_KEY}".to_owned()),
                place: ".env: LLM_API_KEY".to_owned(),
                base_url: env.text("LLM_BASE_URL"),
                dialect: None,
            };
            providers::add_provider(&mut draft, &model, VendorChoice::Named(&word), &|_| found.clone());
        }
    }
    finish_draft(draft, &root, &env)
}

fn finish_draft(mut draft: Draft, root: &SourcePath, env: &Settings) -> Result<Draft, ImportError> {
    draft.shell = true;
    draft.web = true;
    draft.memory = true;
    draft.name = env.text("AGENT_NAME");
    let toml = root.join("config.toml");
    if toml.is_file() {
        let settings = Settings::read(&toml)?;
        draft.name = settings.text("agent.name").or(draft.name);
        draft.steps_per_turn = settings
            .first_text(&["agent.max_iterations", "agent.max_tool_iterations"])
            .and_then(|steps| steps.parse().ok()); // silent-ok: a word is no number
        channels::read(&mut draft, &settings, "channels");
        tools::import_servers(&mut draft, &settings, "mcp.servers");
        runtimes::leave_rest(&mut draft, &settings);
    }
    let servers = root.join("mcp-servers.json");
    if servers.is_file() {
        let settings = Settings::read(&servers)?;
        tools::import_servers(&mut draft, &settings, "servers");
        tools::import_servers(&mut draft, &settings, "mcpServers");
        runtimes::leave_rest(&mut draft, &settings);
    }
    workspace::read(&mut draft, &root.join("workspace"))?;
    workspace::import_skills(&mut draft, &root.join("skills"))?;
    if env.take_value("DATABASE_URL").is_some() {
        let reason = "identity files, routines, secrets and memory lie in its database: export them to `workspace/` and import again";
        draft.report.add_left_out(".env: DATABASE_URL", reason);
    }
    let bot = env.take_value("TELEGRAM_BOT_TOKEN").is_some();
    if bot && draft.channels.iter().all(|channel| channel.kind != "telegram") {
        let secret = draft.add_secret(
            "${TELEGRAM_BOT_TOKEN}",
            "TELEGRAM_BOT_TOKEN",
            ".env: TELEGRAM_BOT_TOKEN",
        );
        draft.add_channel(crate::draft::Channel {
            name: "telegram".to_owned(),
            kind: "telegram",
            transport: "polling",
            secret,
            ..crate::draft::Channel::default()
        });
    }
    runtimes::leave_rest(&mut draft, env);
    Ok(draft)
}
