//! Samples of all eleven runtimes, written after their public documentation: each becomes a manifest that validates, and no
//! secret of it is in any new file.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;

use clawk_import::{Import, Runtime, import};
use tempfile::TempDir;

/// No value with this text may be written anywhere.
const CANARY: &str = "CANARY-5f2c";

/// Writes files below a folder, reads them as the runtime's, and checks what holds for every import.
fn imported(runtime: Runtime, files: &[(&str, &str)]) -> (Import, String) {
    let old = TempDir::new().unwrap();
    let home = old.path().join(runtime.home());
    for (name, content) in files {
        let path = home.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let import = import(runtime, &home).unwrap();
    let text = valid(runtime, &import);
    (import, text)
}

/// The new folder's manifest loads without an error; no file and no line of the report holds the canary.
fn valid(runtime: Runtime, import: &Import) -> String {
    let new = TempDir::new().unwrap();
    for (name, content) in &import.files {
        let path = new.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        let text = String::from_utf8_lossy(content);
        assert!(
            !text.contains(CANARY),
            "{}: {} holds a secret",
            runtime.name(),
            name.display()
        );
    }
    let report = serde_json::to_string(&import.report).unwrap();
    assert!(
        !report.contains(CANARY),
        "{}: the report holds a secret",
        runtime.name()
    );
    let manifest = new.path().join("claw.yaml");
    let text = fs::read_to_string(&manifest).unwrap();
    let loaded = clawk_manifest::validate(&manifest, &clawk_manifest::LoadOptions::default()).report();
    let errors: Vec<String> = loaded.errors.iter().map(|error| format!("{error:?}")).collect();
    assert!(errors.is_empty(), "{}: {errors:#?}\n{text}", runtime.name());
    text
}

fn left(import: &Import, part: &str) -> bool {
    let mut all = import.report.left.iter();
    all.any(|left| left.setting.contains(part) || left.reason.contains(part))
}

fn local(import: &Import) -> String {
    let (_, content) = import
        .files
        .iter()
        .find(|(name, _)| name == Path::new("clawk.toml"))
        .unwrap();
    String::from_utf8(content.clone()).unwrap()
}

#[test]
fn openclaw() {
    let (import, text) = imported(
        Runtime::Openclaw,
        &[
            (
                "openclaw.json",
                r##"{
  // Comments and trailing commas are allowed.
  identity: { name: "Samantha", theme: "helpful sloth" },
  agents: { defaults: {
    workspace: "~/.openclaw/workspace",
    model: { primary: "anthropic/claude-sonnet-4-5", fallbacks: ["house/llama-3.1-8b"] },
    heartbeat: { every: "30m" },
  } },
  models: { providers: { house: { baseUrl: "http://127.0.0.1:4000/v1", apiKey: "CANARY-5f2c-a", api: "openai-responses" } } },
  channels: {
    telegram: { enabled: true, botToken: "CANARY-5f2c-b", allowFrom: ["123456789"] },
    discord: { enabled: true, token: "${DISCORD_TOKEN}", dm: { allowFrom: ["*"] } },
    signal: { account: "+1555" },
    slack: { enabled: false, botToken: "CANARY-5f2c-c" },
  },
  tools: { deny: ["browser"], elevated: { enabled: true } },
  gateway: { port: 18789, auth: { token: "CANARY-5f2c-d" } },
}"##,
            ),
            ("workspace/SOUL.md", "Be kind.\n\nBe brief.\n"),
            ("workspace/USER.md", "The user likes tea.\n"),
            ("workspace/HEARTBEAT.md", "# Heartbeat\n- Look at the mail\n"),
            ("workspace/memory/2026-01-02.md", "We talked about boats.\n"),
            (
                "workspace/skills/weather/SKILL.md",
                "---\nname: weather\ndescription: Says how the weather is\nhomepage: https://example.com\n---\nFetch the page and sum it up.\n",
            ),
            ("workspace/skills/weather/scripts/get.sh", "echo sunny\n"),
            (
                "cron/jobs.json",
                r#"{"version": 1, "jobs": [
  {"name": "morning", "enabled": true, "schedule": {"kind": "cron", "expr": "0 7 * * *", "tz": "Europe/Vienna"},
   "payload": {"kind": "agentTurn", "message": "Sum up the news"}, "delivery": {"to": "123456789"}},
  {"name": "once", "enabled": true, "schedule": {"kind": "at", "at": "2027-01-01T00:00:00Z"}, "payload": {"message": "Happy new year"}}
]}"#,
            ),
        ],
    );
    for part in [
        "Be kind.",
        "claude-sonnet-4-5",
        "127.0.0.1:4000",
        "\"123456789\"",
        "weather",
        "0 7 * * *",
        "DISCORD_TOKEN",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(
        text.contains("pairing"),
        "an open channel becomes one with pairing\n{text}"
    );
    assert!(!text.contains("slack"), "what was off stays off");
    for part in [
        "signal",
        "tools.elevated",
        "gateway",
        "homepage",
        "scripts",
        "once",
        "everybody was let in",
    ] {
        assert!(left(&import, part), "{part}: {:#?}", import.report.left);
    }
    assert!(local(&import).contains("timezone = \"Europe/Vienna\""));
}

#[test]
fn zeroclaw() {
    let config = r#"
default_provider = "openrouter"
default_model = "anthropic/claude-sonnet-4-6"
api_key = "CANARY-5f2c"
[autonomy]
level = "full"
allowed_commands = ["git", "ls"]
max_cost_per_day_cents = 500
[agent]
max_tool_iterations = 12
[agents.researcher]
provider = "openrouter"
model = "x/y"
api_key = "CANARY-5f2c-1"
[channels_config.telegram]
bot_token = "CANARY-5f2c-2"
allowed_users = ["alice"]
[gateway]
port = 3000
"#;
    let (import, text) = imported(
        Runtime::Zeroclaw,
        &[("config.toml", config), ("workspace/IDENTITY.md", "You are Z.")],
    );
    assert!(
        text.contains("anthropic/claude-sonnet-4-6") && text.contains("openrouter.ai"),
        "{text}"
    );
    assert!(text.contains("supervised"), "{text}");
    for part in [
        "autonomy.level",
        "allowed_commands",
        "agents.researcher",
        "gateway.port",
    ] {
        assert!(left(&import, part), "{part}: {:#?}", import.report.left);
    }
    let local = local(&import);
    assert!(
        local.contains("cost_microusd = 5000000") && local.contains("steps_per_turn = 12"),
        "{local}"
    );
}

#[test]
fn nanobot() {
    let config = r#"{
  "agents": {"defaults": {"model": "anthropic/claude-opus-4-5", "maxToolIterations": 20}},
  "providers": {"openrouter": {"apiKey": "CANARY-5f2c"}, "anthropic": {"apiKey": "${ANTHROPIC_KEY}"}},
  "channels": {"telegram": {"enabled": true, "token": "CANARY-5f2c-2", "allowFrom": ["1|ann"]},
               "email": {"enabled": true, "imapHost": "mail.example.com", "imapPort": 993, "imapUsername": "a@example.com",
                         "imapPassword": "CANARY-5f2c-3", "smtpHost": "mail.example.com", "allowFrom": ["b@example.com"]}},
  "tools": {"restrictToWorkspace": false, "mcpServers": {
     "github": {"command": "npx", "args": ["-y", "some-server"], "env": {"GITHUB_TOKEN": "CANARY-5f2c-4", "MODE": "fast"}},
     "remote": {"url": "https://example.com/mcp/", "headers": {"Authorization": "Bearer ${REMOTE}"}}}}
}"#;
    let (import, text) = imported(
        Runtime::Nanobot,
        &[
            ("config.json", config),
            ("workspace/memory/MEMORY.md", "Likes tea."),
        ],
    );
    assert!(
        text.contains("stdio:///usr/bin/env?arg=npx&arg=-y&arg=some-server"),
        "{text}"
    );
    assert!(
        text.contains("MEMORY.md") && text.contains("ANTHROPIC_KEY"),
        "{text}"
    );
    let local = local(&import);
    for part in [
        "imaps://a%40example.com@mail.example.com:993",
        "GITHUB_TOKEN",
        "\"MODE\" = \"fast\"",
        "REMOTE",
    ] {
        assert!(local.contains(part), "{part} is missing in\n{local}");
    }
    assert!(
        left(&import, "restrictToWorkspace") && left(&import, "openrouter"),
        "{:#?}",
        import.report.left
    );
}

#[test]
fn picoclaw() {
    let config = r#"{
  "agents": {"defaults": {"model_name": "gpt4", "workspace": "~/.picoclaw/workspace"}},
  "model_list": [{"model_name": "gpt4", "model": "openai/gpt-5.2", "api_key": "CANARY-5f2c"}],
  "channels": {"line": {"enabled": true, "channel_secret": "CANARY-5f2c-1", "channel_access_token": "CANARY-5f2c-2", "allow_from": ["U1"]},
               "maixcam": {"enabled": true, "port": 1}},
  "heartbeat": {"enabled": true, "interval": 30}
}"#;
    let (import, text) = imported(
        Runtime::Picoclaw,
        &[
            ("config.json", config),
            ("workspace/HEARTBEAT.md", "Look around."),
        ],
    );
    assert!(
        text.contains("gpt-5.2") && text.contains("*/30 * * * *") && text.contains("\"line\""),
        "{text}"
    );
    assert!(left(&import, "maixcam"));
}

#[test]
fn ironclaw() {
    let env = "LLM_BACKEND=openai_compatible\nLLM_BASE_URL=https://models.example.com/v1\nLLM_API_KEY=CANARY-5f2c\nLLM_MODEL=big/model\nDATABASE_URL=postgres://u:CANARY-5f2c@h/d\n";
    let (import, text) = imported(
        Runtime::Ironclaw,
        &[
            (".env", env),
            (
                "config.toml",
                "[agent]\nname = \"iron\"\n[heartbeat]\nenabled = true\n",
            ),
        ],
    );
    assert!(
        text.contains("big/model") && text.contains("models.example.com") && text.contains("iron"),
        "{text}"
    );
    assert!(left(&import, "DATABASE_URL") && left(&import, "heartbeat"));
}

#[test]
fn zeptoclaw() {
    let config = r#"{
  "agents": {"defaults": {"model": "claude-sonnet-4-5-20250929", "max_tool_iterations": 9}},
  "providers": {"default": "anthropic", "anthropic": {"api_key": "CANARY-5f2c"}, "openai": {"api_key": "CANARY-5f2c-1", "model": "gpt-5.1"},
                "fallback": {"enabled": true, "provider": "openai"}, "retry": {"enabled": true, "max_retries": 3}},
  "channels": {"telegram": {"enabled": true, "token": "CANARY-5f2c-2"}},
  "safety": {"enabled": true}
}"#;
    let (import, text) = imported(
        Runtime::Zeptoclaw,
        &[("config.json", config), ("skills/tidy/SKILL.md", "Tidy up.")],
    );
    assert!(
        text.contains("claude-sonnet-4-5-20250929") && text.contains("gpt-5.1") && text.contains("tidy"),
        "{text}"
    );
    assert!(left(&import, "safety"));
}

#[test]
fn nullclaw() {
    let config = r#"{
  "models": {"providers": {"openrouter": {"api_key": "CANARY-5f2c"}}},
  "agents": {"defaults": {"model": {"primary": "openrouter/anthropic/claude-sonnet-4"}}},
  "channels": {"cli": true, "telegram": {"accounts": {"main": {"bot_token": "CANARY-5f2c-1", "allow_from": ["7"]},
      "family": {"bot_token": "CANARY-5f2c-2", "allow_from": ["8"]}}}, "irc": {"accounts": {"x": {"host": "irc.example.com"}}}},
  "autonomy": {"level": "read_only"},
  "tunnel": {"provider": "none"}
}"#;
    let (import, text) = imported(Runtime::Nullclaw, &[("config.json", config)]);
    assert!(
        text.contains("anthropic/claude-sonnet-4") && text.contains("telegram-family"),
        "{text}"
    );
    assert!(
        text.contains("observer") && !text.contains("file-write"),
        "who only read writes nothing here\n{text}"
    );
    assert!(left(&import, "irc") && left(&import, "tunnel"));
}

#[test]
fn moltis() {
    let config = r#"
[identity]
name = "Molt"
vibe = "calm"
[providers.anthropic]
api_key = "CANARY-5f2c"
models = ["claude-sonnet-4-5"]
[providers.groq]
enabled = false
api_key = "CANARY-5f2c-0"
[channels]
offered = ["telegram"]
[channels.telegram.my-bot]
token = "CANARY-5f2c-1"
dm_policy = "open"
mention_mode = "always"
[mcp.servers.files]
command = "/usr/bin/files"
args = ["/srv"]
[tools.exec]
approval_mode = "never"
"#;
    let (import, text) = imported(
        Runtime::Moltis,
        &[("moltis.toml", config), ("../../.moltis/USER.md", "Knows Rust.")],
    );
    assert!(
        text.contains("claude-sonnet-4-5") && text.contains("telegram-my-bot") && text.contains("USER.md"),
        "{text}"
    );
    assert!(local(&import).contains("respond = \"all\""));
    assert!(left(&import, "approval_mode") && left(&import, "everybody was let in"));
}

#[test]
fn tinyclaw() {
    let config = r#"{
  "workspace": {"path": "~/.tinyclaw/workspace", "name": "team"},
  "models": {"provider": "anthropic", "anthropic": {"model": "sonnet", "auth_token": "CANARY-5f2c"}},
  "channels": {"enabled": ["discord"], "discord": {"bot_token": "CANARY-5f2c-1"}, "telegram": {"bot_token": "CANARY-5f2c-2"}},
  "agents": {"coder": {"name": "Coder", "provider": "anthropic", "model": "sonnet", "working_directory": "~/w/coder", "system_prompt": "You write code."},
             "reviewer": {"name": "Reviewer", "provider": "anthropic", "model": "opus", "working_directory": "~/w/reviewer"}},
  "teams": {"dev": {"name": "Dev", "agents": ["coder", "reviewer"], "leader_agent": "coder"}}
}"#;
    let (import, text) = imported(Runtime::Tinyclaw, &[("settings.json", config)]);
    assert!(
        text.contains("leader-worker") && text.contains("discord") && !text.contains("telegram"),
        "{text}"
    );
    let member = import
        .files
        .iter()
        .find(|(name, _)| name == Path::new("identities/coder.yaml"))
        .unwrap();
    assert!(String::from_utf8_lossy(&member.1).contains("You write code."));
}

#[test]
fn nanoclaw() {
    let old = TempDir::new().unwrap();
    let home = old.path().join("nanoclaw");
    fs::create_dir_all(home.join("groups/main")).unwrap();
    fs::create_dir_all(home.join("groups/family")).unwrap();
    fs::create_dir_all(home.join("store")).unwrap();
    fs::write(home.join("groups/main/CLAUDE.md"), "You are Andy.").unwrap();
    fs::write(
        home.join(".env"),
        "ASSISTANT_NAME=Andy\nANTHROPIC_API_KEY=CANARY-5f2c\nTELEGRAM_BOT_TOKEN=CANARY-5f2c-1\n",
    )
    .unwrap();
    let database = rusqlite::Connection::open(home.join("store/messages.db")).unwrap();
    database
        .execute_batch(
            "CREATE TABLE scheduled_tasks (id TEXT, prompt TEXT, schedule_type TEXT, schedule_value TEXT, status TEXT);
             INSERT INTO scheduled_tasks VALUES ('t1', 'Water the plants', 'cron', '0 9 * * *', 'active');
             INSERT INTO scheduled_tasks VALUES ('t2', 'Gone', 'once', '2025-01-01', 'active');",
        )
        .unwrap();
    let import = import(Runtime::Nanoclaw, &home).unwrap();
    let text = valid(Runtime::Nanoclaw, &import);
    assert!(
        text.contains("You are Andy.") && text.contains("0 9 * * *") && text.contains("telegram"),
        "{text}"
    );
    assert!(left(&import, "groups/family") && left(&import, "t2"));
}

#[test]
fn clawlet() {
    let config = "provider:\n  primary: openrouter\n  openrouter:\n    api_key: CANARY-5f2c\n    model: anthropic/claude-sonnet-4\nchannels:\n  telegram:\n    enabled: true\n    token: CANARY-5f2c-1\nagent:\n  mode: full_exec\n  max_iterations: 15\nstorage:\n  backend: sqlite\n";
    let (import, text) = imported(
        Runtime::Clawlet,
        &[
            ("config.yaml", config),
            ("SOUL.md", "A calm soul."),
            ("USER.md", "Ann."),
        ],
    );
    assert!(
        text.contains("A calm soul.") && text.contains("anthropic/claude-sonnet-4"),
        "{text}"
    );
    assert!(left(&import, "full_exec") && left(&import, "storage"));
}

#[test]
fn what_is_not_there_or_not_readable_is_said() {
    let empty = TempDir::new().unwrap();
    for runtime in Runtime::ALL {
        let error = import(runtime, empty.path()).unwrap_err().to_string();
        assert!(
            error.contains("has no configuration"),
            "{}: {error}",
            runtime.name()
        );
    }
    fs::write(empty.path().join("openclaw.json"), "{ token: \"CANARY-5f2c\", ").unwrap();
    let error = import(Runtime::Openclaw, empty.path()).unwrap_err().to_string();
    assert!(
        error.contains("openclaw.json") && !error.contains(CANARY),
        "{error}"
    );
}

/// A name in the old files reaches nothing outside of the new folder.
#[test]
fn no_name_leads_out_of_the_new_folder() {
    let config = r#"{"agents": {"../../up": {"name": "x", "provider": "anthropic", "model": "sonnet"}, "b": {"name": "y", "provider": "anthropic", "model": "opus"}}}"#;
    let (import, _) = imported(Runtime::Tinyclaw, &[("settings.json", config)]);
    for (name, _) in &import.files {
        assert!(
            name.components()
                .all(|part| matches!(part, std::path::Component::Normal(_))),
            "{}",
            name.display()
        );
    }
}
