//! An import reads beneath the folder that it was given: a link in it is not followed, at no place, and is named.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use clawk_import::{ImportError, Runtime, import_agent, import_skill};
use tempfile::TempDir;

use crate::valid;

const CONFIG: &str = r#"{"agents": {"defaults": {"model": {"primary": "anthropic/claude-opus-5"}}}}"#;
const SECRET: &str = "---\nname: stolen\n---\nCANARY-5f2c of another folder\n";

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Places of an OpenClaw folder at which a link leads to a file or a folder outside.
const LINKS: &[(&str, bool)] = &[
    ("workspace/SOUL.md", false),
    ("workspace/USER.md", false),
    ("workspace/HEARTBEAT.md", false),
    ("workspace/memory/notes.md", false),
    ("workspace/memory", true),
    ("workspace/skills/weather/SKILL.md", false),
    ("workspace/skills/weather", true),
    ("workspace/skills", true),
    ("workspace/skills/alone.md", false),
    ("skills/weather/reference.md", false),
    ("skills", true),
    ("cron/jobs.json", false),
    ("workspace", true),
];

#[test]
fn no_link_is_followed() {
    for (place, is_folder) in LINKS {
        let (old, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        for name in [
            "SOUL.md",
            "SKILL.md",
            "notes.md",
            "weather/SKILL.md",
            "skills/x/SKILL.md",
        ] {
            write(&other.path().join(name), SECRET);
        }
        let jobs = r#"[{"name": "CANARY-5f2c", "schedule": "0 0 * * *", "message": "CANARY-5f2c"}]"#;
        write(&other.path().join("jobs.json"), jobs);
        write(&old.path().join("openclaw.json"), CONFIG);
        write(
            &old.path().join("skills/weather/SKILL.md"),
            "---\nname: weather\n---\nLook outside.\n",
        );
        let link = old.path().join(place);
        let _ = fs::remove_dir_all(&link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        let leads_to = match (*is_folder, link.file_name().unwrap().to_str().unwrap()) {
            (true, _) => other.path().to_owned(),
            (false, "jobs.json") => other.path().join("jobs.json"),
            (false, _) => other.path().join("SKILL.md"),
        };
        symlink(leads_to, &link).unwrap();
        // `valid` looks for the canary in every file and in the report.
        let import = import_agent(Runtime::Openclaw, old.path()).unwrap();
        valid(Runtime::Openclaw, &import);
        let named = import
            .report
            .left
            .iter()
            .any(|left| left.reason.contains("is a link"));
        assert!(named, "{place} is not named: {:#?}", import.report.left);
    }
}

#[test]
fn a_configuration_that_is_a_link_is_refused() {
    for file in ["openclaw.json", "CLAW.md"] {
        let (old, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        write(&other.path().join(file), CONFIG);
        symlink(other.path().join(file), old.path().join(file)).unwrap();
        for named in [old.path().to_owned(), old.path().join(file)] {
            let opened = import_agent(Runtime::Openclaw, &named);
            // A person may name a link to a folder; a file behind a link is refused.
            assert!(
                matches!(opened, Err(ImportError::Link { .. })),
                "{named:?}: {opened:?}"
            );
        }
    }
}

#[test]
fn a_workspace_elsewhere_is_read_without_links_and_named() {
    let (old, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    write(&other.path().join("real/SOUL.md"), "A far soul.");
    symlink(other.path().join("real"), other.path().join("link")).unwrap();
    for (folder, comes) in [("real", true), ("link", false)] {
        let workspace = other.path().join(folder);
        let config = format!(
            r#"{{"agents": {{"defaults": {{"workspace": "{}", "model": "openai/gpt-5"}}}}}}"#,
            workspace.display()
        );
        write(&old.path().join("openclaw.json"), &config);
        let import = import_agent(Runtime::Openclaw, old.path()).unwrap();
        let text = valid(Runtime::Openclaw, &import);
        assert_eq!(text.contains("A far soul."), comes, "{folder}");
        let told = import
            .report
            .carried
            .iter()
            .any(|line| line.contains("outside of the old runtime's folder"));
        assert_eq!(told, comes, "{folder}: {:#?}", import.report);
    }
}

#[test]
fn a_skill_that_is_a_link_is_refused_and_links_in_it_are_left() {
    let (own, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    write(&other.path().join("SKILL.md"), SECRET);
    let folder = own.path().join("weather");
    fs::create_dir(&folder).unwrap();
    symlink(other.path().join("SKILL.md"), folder.join("SKILL.md")).unwrap();
    let output = own.path().join("out/weather.yaml");
    let none = BTreeSet::new();
    let refused = import_skill(&folder, &output, Some(&none));
    assert!(matches!(refused, Err(ImportError::Link { .. })), "{refused:?}");

    fs::remove_file(folder.join("SKILL.md")).unwrap();
    write(
        &folder.join("SKILL.md"),
        "---\nname: weather\n---\nLook outside.\n",
    );
    symlink(other.path().join("SKILL.md"), folder.join("more.md")).unwrap();
    symlink(other.path(), folder.join("scripts")).unwrap();
    let taken = import_skill(&folder, &output, Some(&none)).unwrap();
    let all: Vec<u8> = taken
        .files
        .iter()
        .flat_map(|(_, content)| content.clone())
        .collect();
    assert!(!String::from_utf8_lossy(&all).contains("CANARY"));
    assert!(
        taken
            .notes
            .iter()
            .any(|note| note.contains("more.md") && note.contains("link")),
        "{:?}",
        taken.notes
    );
}

/// Names that lead upward reach nothing, wherever a configuration or a package has them.
#[test]
fn no_name_leads_upward() {
    let above = TempDir::new().unwrap();
    write(&above.path().join("secret/SOUL.md"), SECRET);
    let old = above.path().join("old");
    let config = r#"{"agents": {"defaults": {"workspace": "../secret", "model": "openai/gpt-5"}}}"#;
    write(&old.join("openclaw.json"), config);
    valid(Runtime::Openclaw, &import_agent(Runtime::Openclaw, &old).unwrap());
    fs::remove_file(old.join("openclaw.json")).unwrap();
    let package = "---\nschemaVersion: 1\nagent: {id: x}\nworkspace:\n  bootstrapFiles: {SOUL.md: {source: ../secret/SOUL.md}}\n  files:\n    - {source: ../secret/SOUL.md, path: a.md}\n    - {source: CLAW.md, path: ../../up.md}\n    - {source: CLAW.md, path: /up.md}\n---\n";
    write(&old.join("CLAW.md"), package);
    let import = import_agent(Runtime::Openclaw, &old).unwrap();
    valid(Runtime::Openclaw, &import);
    assert!(
        import
            .files
            .iter()
            .all(|(name, _)| !name.to_string_lossy().contains("up.md"))
    );
}
