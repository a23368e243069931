//! OpenClaw's portable package of one agent: `CLAW.md` (or a JSON file) with declarations, and the files that it names.
//!
//! The manifest's first part declares the agent and its needs; the text below it is the agent's prompt. A package contains no
//! model, no credential and no channel.

use std::path::{Component, Path};

use serde_json::Value;

use crate::ImportError;
use crate::draft::Draft;
use crate::runtimes;
use crate::settings::{Settings, text_of, yaml_value};
use crate::source::SourcePath;
use crate::{jobs, tools, workspace};

/// The usual manifest.
pub(super) const MANIFEST: &str = "CLAW.md";
/// The file that names a manifest with another name.
pub(super) const PACKAGE: &str = "package.json";
/// Settings only for OpenClaw.
const PROFILES: &[&str] = &["profiles/openclaw.yml", "profiles/openclaw.yaml"];
/// Files that become part of the prompt or the context; all others are copied.
const PROMPT_FILES: &[&str] = &["IDENTITY.md", "SOUL.md", "AGENTS.md"];
const CONTEXT_FILES: &[&str] = &["USER.md", "MEMORY.md", "TOOLS.md"];
/// The largest copied file, bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The manifest of a package, with the prompt below it.
#[derive(Debug)]
pub(super) struct ClawPackage {
    file: String,
    settings: Settings,
    prompt: String,
}

/// Reads `file` as a package's manifest, or as the `package.json` that names it; `None` if it is neither.
pub(super) fn open_package(root: &SourcePath, file: &SourcePath) -> Result<Option<ClawPackage>, ImportError> {
    let name = file.file_name();
    if name == PACKAGE {
        let settings = Settings::read(file)?;
        let Some(named) = settings.text("openclaw.claw") else {
            return Err(ImportError::NotThere {
                runtime: "OpenClaw",
                path: root.display_path(),
                looked_for: "`openclaw.json`, `CLAW.md`, `openclaw.claw` in `package.json`".to_owned(),
            });
        };
        return open_package(root, &root.join(named));
    }
    if file.has_extension("md") {
        return read_markdown(file, &name).map(Some);
    }
    let settings = Settings::read(file)?;
    let is_package =
        settings.peek_value("schemaVersion").is_some() && settings.peek_value("agent.id").is_some();
    Ok(is_package.then(|| ClawPackage {
        file: name,
        settings,
        prompt: String::new(),
    }))
}

fn read_markdown(file: &SourcePath, name: &str) -> Result<ClawPackage, ImportError> {
    let text = text_of(file)?;
    let malformed = |cause: String| ImportError::Malformed {
        path: file.display_path(),
        format: "YAML",
        cause,
    };
    let text = text.replace("\r\n", "\n");
    let parts = text.strip_prefix("---\n").and_then(|rest| {
        rest.split_once("\n---\n")
            .or_else(|| Some((rest.strip_suffix("\n---")?, "")))
    });
    let Some((front, prompt)) = parts else {
        return Err(malformed(
            "it does not begin with a part between two lines of `---`".to_owned(),
        ));
    };
    let root = yaml_value(front).map_err(malformed)?;
    Ok(ClawPackage {
        file: name.to_owned(),
        settings: Settings::of_value(name, root),
        prompt: prompt.to_owned(),
    })
}

/// Collects the agent of a package.
pub(super) fn read(root: &SourcePath, package: ClawPackage) -> Result<Draft, ImportError> {
    let settings = &package.settings;
    let mut draft = Draft {
        name: settings.first_text(&["agent.id", "agent.name"]),
        memory: true,
        shell: true,
        web: true,
        ..Draft::default()
    };
    if settings
        .text("schema_version")
        .is_some_and(|version| version != "1")
    {
        let reason = "only version 1 of the package's form is known here; what it says was read as that";
        draft
            .report
            .add_left_out(format!("{}: schemaVersion", package.file), reason);
    }
    settings.take_value("agent.name");
    settings.take_value("agent.description");
    draft.add_prompt(&package.file, &package.prompt);
    if !package.prompt.trim().is_empty() {
        let carried = format!("the text of `{}` as the identity's personality", package.file);
        draft.report.add_carried(carried);
    }
    allowed_tools(&mut draft, settings);
    let profile = PROFILES
        .iter()
        .map(|name| root.join(name))
        .find(SourcePath::is_file);
    if let Some(profile) = profile {
        let profile = Settings::read(&profile)?;
        profile.take_value("schemaVersion");
        allowed_tools(&mut draft, &profile);
        report_extensions(&mut draft, &profile, "extensions");
        runtimes::leave_rest(&mut draft, &profile);
    }
    import_files(&mut draft, root, settings)?;
    report_extensions(&mut draft, settings, "packages");
    tools::import_servers(&mut draft, settings, "mcpServers");
    if let Some(list) = settings.take_value("cronJobs") {
        jobs::from_json(&mut draft, &package.file, list);
    }
    workspace::import_skills(&mut draft, &root.join("skills"))?;
    if root.join("BOOTSTRAP.md").is_file() {
        draft
            .report
            .add_left_out("BOOTSTRAP.md", "it tells the old runtime how to set an agent up");
    }
    runtimes::leave_rest(&mut draft, settings);
    Ok(draft)
}

/// Imports the package's tool restrictions. A tool that it grants still needs an approval.
fn allowed_tools(draft: &mut Draft, settings: &Settings) {
    let allow = settings.list("agent.tools.allow");
    let deny = settings.list("agent.tools.deny");
    let has = |names: &[&str]| {
        let listed = |list: &[String]| list.iter().any(|word| names.contains(&word.as_str()));
        (allow.is_empty() || listed(&allow)) && !listed(&deny)
    };
    draft.shell &= has(&["exec", "bash", "process", "group:runtime", "*"]);
    draft.web &= has(&["web_fetch", "web_search", "group:web", "*"]);
    settings.take_value("agent.tools.fs.workspace_only");
}

/// Reads `workspace.bootstrapFiles` and `workspace.files`: each entry has a source in the package and a name in the agent's folder.
fn import_files(draft: &mut Draft, root: &SourcePath, settings: &Settings) -> Result<(), ImportError> {
    for target in settings.names("workspace.bootstrap_files") {
        let path = format!("workspace.bootstrap_files.{target}");
        // A file's name contains dots, which also separate member paths. So its source is read from the value.
        let listed = settings
            .peek_value("workspace.bootstrap_files")
            .and_then(Value::as_object);
        let source = listed.and_then(|files| files.get(&target)).and_then(source_of);
        import_file(draft, root, &FileWanted { source, target, path })?;
    }
    settings.take_value("workspace.bootstrap_files");
    let listed = settings.take_value("workspace.files").and_then(Value::as_array);
    for (number, entry) in listed.into_iter().flatten().enumerate() {
        let source = source_of(entry);
        let target = entry.get("path").and_then(Value::as_str).map(str::to_owned);
        let target = target.or_else(|| source.clone()).unwrap_or_default();
        let path = format!("workspace.files.{number}");
        import_file(draft, root, &FileWanted { source, target, path })?;
    }
    Ok(())
}

/// One file of a package.
struct FileWanted {
    /// Its path in the package.
    source: Option<String>,
    /// Its path in the agent's folder.
    target: String,
    /// The path of the entry in the manifest.
    path: String,
}

fn source_of(entry: &Value) -> Option<String> {
    let text = entry.as_str().or_else(|| entry.get("source")?.as_str())?;
    Some(text.to_owned())
}

fn import_file(draft: &mut Draft, root: &SourcePath, wanted: &FileWanted) -> Result<(), ImportError> {
    let setting = format!("{MANIFEST}: {}", wanted.path);
    let Some(source) = wanted.source.as_ref().map(|source| root.join(source)) else {
        draft.report.add_left_out(setting, "it names no `source`");
        return Ok(());
    };
    let inside = Path::new(&wanted.target)
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if wanted.target.is_empty() || !inside {
        draft
            .report
            .add_left_out(setting, "its `path` does not lie in the agent's folder");
        return Ok(());
    }
    if !source.is_file() {
        draft
            .report
            .add_left_out(setting, "there is no such file in the package");
        return Ok(());
    }
    let target = wanted.target.as_str();
    if target == "HEARTBEAT.md" {
        draft.report.add_left_out(
            setting,
            "a package names no interval: add a `cron` channel for it",
        );
    } else if PROMPT_FILES.contains(&target) {
        draft.add_prompt(target, &text_of(&source)?);
        draft
            .report
            .add_carried(format!("`{target}` as part of the identity's personality"));
    } else if CONTEXT_FILES.contains(&target) {
        draft.context.insert(target.to_owned(), text_of(&source)?);
        draft.report.add_carried(format!("`{target}` as a context file"));
    } else {
        draft.files.push((target.into(), source.read(MAX_FILE_BYTES)?));
        draft.report.add_carried(format!("the file `{target}`"));
    }
    Ok(())
}

/// Reports skills and plugins from a registry: nothing is downloaded.
fn report_extensions(draft: &mut Draft, settings: &Settings, at: &str) {
    let listed = settings.take_value(at).and_then(Value::as_array);
    for entry in listed.into_iter().flatten() {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let reason = match text("kind") {
            "skill" => "fetch it yourself, read it, and take it over with `clawk skill import FOLDER`",
            _ => "clawk has no plugins: an MCP server or a skill can bring what it brought",
        };
        let setting = format!("{} `{}` {}", text("kind"), text("ref"), text("version"));
        draft.report.add_left_out(setting.trim(), reason);
    }
}
