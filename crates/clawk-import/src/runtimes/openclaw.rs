//! OpenClaw: `openclaw.json` (JSON5), the workspace folder, `cron/jobs.json`.

use serde_json::Value;

use crate::ImportError;
use crate::draft::Draft;
use crate::providers::VendorChoice;
use crate::runtimes::{self, ImportSource, Runtime, claw_package};
use crate::settings::Settings;
use crate::{channels, tools, workspace};

const FILES: &[&str] = &[
    "openclaw.json",
    "clawdbot.json",
    "moltbot.json",
    claw_package::MANIFEST,
    claw_package::PACKAGE,
];
/// The default interval of a heartbeat.
const HEARTBEAT_MS: u64 = 30 * 60_000;

pub(super) fn read(source: &ImportSource) -> Result<Draft, ImportError> {
    let (root, file) = source.main_file(Runtime::Openclaw, FILES)?;
    if let Some(package) = claw_package::open_package(&root, &file)? {
        return claw_package::read(&root, package);
    }
    let settings = Settings::read(&file)?;
    let mut draft = Draft::default();
    // Of several agents, the first is imported; the report names the others.
    let agent = first_agent(&mut draft, &settings);
    let identity = settings.peek_value("identity").is_some();
    draft.name = settings.first_text(&["identity.name"]).or(agent.name);
    if identity {
        for member in ["theme", "emoji", "avatar"] {
            if let Some(text) = settings
                .text(&format!("identity.{member}"))
                .filter(|_| member == "theme")
            {
                draft.add_prompt("openclaw.json: identity.theme", &format!("You are a {text}."));
            }
        }
    }
    let mut names = settings.first_text(&["agents.defaults.model.primary", "agent.model.primary"]);
    names = names.or_else(|| settings.first_text(&["agents.defaults.model", "agent.model"]));
    let own_fallbacks = agent.fallbacks.is_some();
    let mut all: Vec<String> = agent.model.or(names).into_iter().collect();
    all.extend(agent.fallbacks.unwrap_or_default());
    for path in ["agents.defaults.model", "agent.model"] {
        for word in ["fallbacks", "fallback"] {
            let listed = settings.list(&format!("{path}.{word}"));
            all.extend(listed.into_iter().filter(|_| !own_fallbacks));
        }
    }
    let all: Vec<String> = all.iter().map(|model| resolve_alias(&settings, model)).collect();
    runtimes::import_models(
        &mut draft,
        &settings,
        "models.providers",
        VendorChoice::InName,
        &all,
    );
    runtimes::unused_accounts(&mut draft, &settings, "models.providers");
    for aliases in ["agents.defaults.models", "agent.models", "models.mode"] {
        settings.take_value(aliases);
    }
    channels::read(&mut draft, &settings, "channels");
    allowed_tools(&mut draft, &settings);
    tools::import_servers(&mut draft, &settings, "mcp.servers");
    tools::import_servers(&mut draft, &settings, "mcpServers");
    let configured = agent
        .workspace
        .or_else(|| settings.first_text(&["agents.defaults.workspace", "agent.workspace"]));
    let folder = runtimes::find_workspace(&mut draft, &root, configured.as_deref());
    workspace::read(&mut draft, &folder)?;
    workspace::import_skills(&mut draft, &root.join("skills"))?;
    let every = settings.first_text(&["agents.defaults.heartbeat.every", "agent.heartbeat.every"]);
    workspace::import_heartbeat(
        &mut draft,
        &folder,
        every
            .as_deref()
            .and_then(parse_milliseconds)
            .unwrap_or(HEARTBEAT_MS),
    )?;
    runtimes::import_jobs(&mut draft, &[root.join("cron/jobs.json")])?;
    for part in ["cron.enabled", "cron.store"] {
        settings.take_value(part);
    }
    runtimes::leave_rest(&mut draft, &settings);
    Ok(draft)
}

#[derive(Default)]
struct Agent {
    name: Option<String>,
    model: Option<String>,
    /// Its own list of fallbacks, if it has one.
    fallbacks: Option<Vec<String>>,
    workspace: Option<String>,
}

/// The model behind an alias in `agents.defaults.models`.
fn resolve_alias(settings: &Settings, name: &str) -> String {
    let models = settings
        .peek_value("agents.defaults.models")
        .and_then(Value::as_object);
    let aliased = models.into_iter().flatten().find(|(_, model)| {
        let alias = model.get("alias").and_then(Value::as_str);
        alias.is_some_and(|alias| alias.eq_ignore_ascii_case(name))
    });
    aliased.map_or(name, |(model, _)| model.as_str()).to_owned()
}

/// The default agent, or else the first, in `agents.list` or in `agents` if that is a list.
fn first_agent(draft: &mut Draft, settings: &Settings) -> Agent {
    let at = match settings.peek_value("agents") {
        Some(Value::Array(_)) => "agents",
        Some(_) | None => "agents.list",
    };
    let Some(Value::Array(list)) = settings.take_value(at) else {
        return Agent::default();
    };
    let is_default = |agent: &&Value| agent.get("default") == Some(&Value::Bool(true));
    let Some(chosen) = list.iter().find(is_default).or_else(|| list.first()) else {
        return Agent::default();
    };
    let text = |pointer: &str| chosen.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    for other in list.iter().filter(|other| !std::ptr::eq(*other, chosen)) {
        let id = other.get("id").or_else(|| other.get("name"));
        let id = id.and_then(Value::as_str).unwrap_or("without an id");
        draft.report.add_left_out(
            format!("openclaw.json: {at}, agent {id}"),
            "one agent is one `claw.yaml`: import it by itself, or make it a member of a Swarm",
        );
    }
    if settings.take_value("bindings").is_some() {
        draft
            .report
            .add_left_out("openclaw.json: bindings", "all channels reach the one agent");
    }
    Agent {
        name: text("/identity/name")
            .or_else(|| text("/name"))
            .or_else(|| text("/id")),
        model: text("/model/primary").or_else(|| text("/model")),
        fallbacks: ["/model/fallbacks", "/model/fallback"]
            .iter()
            .find_map(|pointer| chosen.pointer(pointer).map(text_list)),
        workspace: text("/workspace"),
    }
}

/// Reads a list of texts, or one text.
fn text_list(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        Value::String(text) => vec![text.clone()],
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

/// Reads the agent's tools: lists of names and groups.
fn allowed_tools(draft: &mut Draft, settings: &Settings) {
    let allow = settings.list("tools.allow");
    let deny = settings.list("tools.deny");
    let has = |names: &[&str]| {
        let listed = |list: &[String]| list.iter().any(|word| names.contains(&word.as_str()));
        (allow.is_empty() || listed(&allow)) && !listed(&deny)
    };
    draft.shell = has(&["exec", "bash", "process", "group:runtime", "*"]);
    draft.web = has(&["web_fetch", "web_search", "group:web", "*"]);
    if settings.take_value("tools.elevated").is_some() {
        draft.report.add_left_out(
            "openclaw.json: tools.elevated",
            "no sender gets out of the sandbox here",
        );
    }
    draft.memory = true;
}

/// Parses `30m`, `2h`, `1d`.
fn parse_milliseconds(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u64 = number.parse().ok()?; // silent-ok: no number, no interval
    let unit = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(unit)
}
