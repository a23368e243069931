//! Samples of all eleven runtimes (`samples`), written after their public documentation: each becomes a manifest that validates, and no
//! secret of it is in any new file.

#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests read and write folders of their own"
)]

mod forms;
mod links;
mod vendors;

use std::fs;
use std::path::Path;

use clawk_import::{ImportResult, Runtime, import_agent};
use tempfile::TempDir;

/// No value with this text may be written anywhere.
const CANARY: &str = "CANARY-5f2c";

/// Writes files below a folder, reads them as the runtime's, and checks what holds for every import.
fn imported(runtime: Runtime, files: &[(&str, &str)]) -> (ImportResult, String) {
    let old = TempDir::new().unwrap();
    let home = old.path().join(runtime.default_home());
    for (name, content) in files {
        let path = home.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let import = import_agent(runtime, &home).unwrap();
    let text = valid(runtime, &import);
    (import, text)
}

/// A copy of the runtime's sample, as it lies in a user's home.
fn copied(runtime: Runtime) -> TempDir {
    let old = TempDir::new().unwrap();
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    copy(&samples.join(runtime.name()), old.path());
    old
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Reads the runtime's sample, and checks what holds for every import.
fn sample(runtime: Runtime) -> (ImportResult, String) {
    let old = copied(runtime);
    let import = import_agent(runtime, &old.path().join(runtime.default_home())).unwrap();
    let text = valid(runtime, &import);
    (import, text)
}

/// The new folder's manifest loads without an error; no file and no line of the report holds the canary.
fn valid(runtime: Runtime, import: &ImportResult) -> String {
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
    let loaded = clawk_manifest::validate_file(&manifest, &clawk_manifest::LoadOptions::default()).report();
    let errors: Vec<String> = loaded.errors.iter().map(|error| format!("{error:?}")).collect();
    assert!(errors.is_empty(), "{}: {errors:#?}\n{text}", runtime.name());
    text
}

fn left(import: &ImportResult, part: &str) -> bool {
    let mut all = import.report.left.iter();
    all.any(|left| left.setting.contains(part) || left.reason.contains(part))
}

fn local(import: &ImportResult) -> String {
    let (_, content) = import
        .files
        .iter()
        .find(|(name, _)| name == Path::new("clawk.toml"))
        .unwrap();
    String::from_utf8(content.clone()).unwrap()
}

#[test]
fn openclaw() {
    let (import, text) = sample(Runtime::Openclaw);
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
    let (import, text) = sample(Runtime::Zeroclaw);
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
    let (import, text) = sample(Runtime::Nanobot);
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
    let (import, text) = sample(Runtime::Picoclaw);
    assert!(
        text.contains("gpt-5.2") && text.contains("*/30 * * * *") && text.contains("\"line\""),
        "{text}"
    );
    assert!(left(&import, "maixcam"));
}

#[test]
fn ironclaw() {
    let (import, text) = sample(Runtime::Ironclaw);
    assert!(
        text.contains("big/model") && text.contains("models.example.com") && text.contains("iron"),
        "{text}"
    );
    assert!(left(&import, "DATABASE_URL") && left(&import, "heartbeat"));
}

#[test]
fn zeptoclaw() {
    let (import, text) = sample(Runtime::Zeptoclaw);
    assert!(
        text.contains("claude-sonnet-4-5-20250929") && text.contains("gpt-5.1") && text.contains("tidy"),
        "{text}"
    );
    assert!(left(&import, "safety"));
}

#[test]
fn nullclaw() {
    let (import, text) = sample(Runtime::Nullclaw);
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
    let (import, text) = sample(Runtime::Moltis);
    assert!(
        text.contains("claude-sonnet-4-5") && text.contains("telegram-my-bot") && text.contains("USER.md"),
        "{text}"
    );
    assert!(local(&import).contains("respond = \"all\""));
    assert!(left(&import, "approval_mode") && left(&import, "everybody was let in"));
}

#[test]
fn tinyclaw() {
    let (import, text) = sample(Runtime::Tinyclaw);
    assert!(
        text.contains("leader-worker") && text.contains("discord") && !text.contains("telegram"),
        "{text}"
    );
    assert!(
        text.contains("model: \"anthropic:medium\"") || text.contains("model: anthropic:medium"),
        "a short name means a current model\n{text}"
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
    let old = copied(Runtime::Nanoclaw);
    let home = old.path().join("nanoclaw");
    fs::create_dir_all(home.join("store")).unwrap();
    let database = rusqlite::Connection::open(home.join("store/messages.db")).unwrap();
    database
        .execute_batch(
            "CREATE TABLE scheduled_tasks (id TEXT, prompt TEXT, schedule_type TEXT, schedule_value TEXT, status TEXT);
             INSERT INTO scheduled_tasks VALUES ('t1', 'Water the plants', 'cron', '0 9 * * *', 'active');
             INSERT INTO scheduled_tasks VALUES ('t2', 'Gone', 'once', '2025-01-01', 'active');",
        )
        .unwrap();
    let import = import_agent(Runtime::Nanoclaw, &home).unwrap();
    let text = valid(Runtime::Nanoclaw, &import);
    assert!(
        text.contains("anthropic:medium"),
        "the usual model is a current one\n{text}"
    );
    assert!(
        text.contains("You are Andy.") && text.contains("0 9 * * *") && text.contains("telegram"),
        "{text}"
    );
    assert!(left(&import, "groups/family") && left(&import, "t2"));
}

#[test]
fn clawlet() {
    let (import, text) = sample(Runtime::Clawlet);
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
        let error = import_agent(runtime, empty.path()).unwrap_err().to_string();
        assert!(
            error.contains("has no configuration"),
            "{}: {error}",
            runtime.name()
        );
    }
    fs::write(empty.path().join("openclaw.json"), "{ token: \"CANARY-5f2c\", ").unwrap();
    let error = import_agent(Runtime::Openclaw, empty.path())
        .unwrap_err()
        .to_string();
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
