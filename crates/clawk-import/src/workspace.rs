//! The files of an agent's own folder: who it is, what it knows of its user, what it remembers, its skills.

use std::fs;
use std::path::{Path, PathBuf};

use crate::ImportError;
use crate::draft::{Draft, Skill, fit};
use crate::settings::text_of;

/// Files whose text says who the agent is, in the order in which the runtimes read them.
const IDENTITY: &[&str] = &[
    "IDENTITY.md",
    "SOUL.md",
    "AGENTS.md",
    "AGENT.md",
    "CLAUDE.md",
    "BOOT.md",
];
/// Files that the agent reads about its user and its work.
const CONTEXT: &[&str] = &["USER.md", "MEMORY.md", "TOOLS.md", "RULES.md"];
/// Files that belong to the runtime's set-up alone.
const NOT_WANTED: &[&str] = &["BOOTSTRAP.md"];
/// Files and bytes that are copied at most.
const MAX_FILES: usize = 2_000;
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Reads the folder. Missing files are no errors; an unreadable one is.
pub(crate) fn read(draft: &mut Draft, folder: &Path) -> Result<(), ImportError> {
    for name in IDENTITY {
        let path = folder.join(name);
        if path.is_file() {
            draft.says(name, &text_of(&path)?);
            draft
                .report
                .carried(format!("`{name}` as part of the identity's personality"));
        }
    }
    for name in CONTEXT {
        let path = [folder.join(name), folder.join("memory").join(name)]
            .into_iter()
            .find(|path| path.is_file());
        if let Some(path) = path {
            draft.context.insert((*name).to_owned(), text_of(&path)?);
            draft.report.carried(format!("`{name}` as a context file"));
        }
    }
    for name in NOT_WANTED {
        if folder.join(name).is_file() {
            draft
                .report
                .left(*name, "it tells the old runtime how to set an agent up");
        }
    }
    notes(draft, &folder.join("memory"))?;
    skills(draft, &folder.join("skills"))
}

/// The heartbeat file and its interval become a cron channel.
pub(crate) fn heartbeat(draft: &mut Draft, folder: &Path, every_ms: u64) -> Result<(), ImportError> {
    let file = ["HEARTBEAT.md", "heartbeat.md"]
        .iter()
        .map(|name| folder.join(name))
        .find(|path| path.is_file());
    let Some(file) = file else { return Ok(()) };
    let text = text_of(&file)?;
    let has_work = text
        .lines()
        .map(str::trim)
        .any(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("<!--"));
    if !has_work {
        draft.report.left("HEARTBEAT.md", "it names no work");
        return Ok(());
    }
    match crate::jobs::every_ms(every_ms) {
        Ok(schedule) => {
            crate::jobs::add(draft, "heartbeat", &schedule, None, &text);
        }
        Err(reason) => draft.report.left("HEARTBEAT.md", reason),
    }
    Ok(())
}

/// Notes of days are copied; the agent reads them with its file tools.
fn notes(draft: &mut Draft, folder: &Path) -> Result<(), ImportError> {
    let mut copied = 0_usize;
    for path in files_below(folder) {
        let is_note = path.extension().is_some_and(|extension| extension == "md");
        let known = path
            .file_name()
            .is_some_and(|name| CONTEXT.iter().any(|context| name == *context));
        if is_note && !known {
            let name = path.strip_prefix(folder).unwrap_or(&path);
            draft
                .files
                .push((Path::new("memory").join(name), text_of(&path)?.into_bytes()));
            copied += 1;
        }
    }
    if copied > 0 {
        draft.memory = true;
        draft
            .report
            .carried(format!("{copied} files of notes below `memory/`"));
    }
    Ok(())
}

/// Each folder with a `SKILL.md` becomes a skill; its other files are copied beside it.
pub(crate) fn skills(draft: &mut Draft, folder: &Path) -> Result<(), ImportError> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    }; // silent-ok: no folder, no skills
    let mut entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        let (file, own) = if path.is_dir() {
            (path.join("SKILL.md"), path.clone())
        } else {
            (path.clone(), PathBuf::new())
        };
        let is_skill = file.is_file() && file.extension().is_some_and(|extension| extension == "md");
        if !is_skill {
            continue;
        }
        let fallback = path.file_stem().map(|name| name.to_string_lossy().into_owned());
        skill(draft, &text_of(&file)?, &fallback.unwrap_or_default());
        if own.as_os_str().is_empty() {
            continue;
        }
        copy(draft, folder, &own)?;
    }
    Ok(())
}

fn skill(draft: &mut Draft, text: &str, fallback: &str) {
    let (front, body) = frontmatter(text);
    let member = |wanted: &str| {
        front
            .iter()
            .find(|(name, _)| name == wanted)
            .map(|(_, value)| value.clone())
            .filter(|value| !value.is_empty())
    };
    let name = fit(&member("name").unwrap_or_else(|| fallback.to_owned()));
    for (member, _) in &front {
        if !matches!(member.as_str(), "name" | "description") {
            draft.report.left(
                format!("skills/{name}/SKILL.md: {member}"),
                "clawk's Skill has no such member",
            );
        }
    }
    let description = member("description").unwrap_or_else(|| format!("The skill {name}"));
    let instruction = if body.trim().is_empty() {
        description.clone()
    } else {
        body.trim().to_owned()
    };
    draft.report.carried(format!("skill `{name}`"));
    draft.skills.retain(|known| known.name != name);
    draft.skills.push(Skill {
        name,
        description,
        instruction,
    });
}

/// `name: value` lines between two lines of `---`, and what follows.
pub(crate) fn frontmatter(text: &str) -> (Vec<(String, String)>, &str) {
    let Some(rest) = text
        .strip_prefix("---")
        .and_then(|rest| rest.trim_start_matches([' ', '\r']).strip_prefix('\n'))
    else {
        return (Vec::new(), text);
    };
    let Some((front, body)) = rest.split_once("\n---") else {
        return (Vec::new(), text);
    };
    let members = front
        .lines()
        .filter(|line| !line.starts_with([' ', '\t', '#', '-']));
    let members = members.filter_map(|line| line.split_once(':'));
    let members = members.map(|(name, value)| {
        (
            name.trim().to_owned(),
            value.trim().trim_matches(['"', '\'']).to_owned(),
        )
    });
    (
        members.collect(),
        body.split_once('\n').map_or("", |(_, rest)| rest),
    )
}

fn copy(draft: &mut Draft, base: &Path, folder: &Path) -> Result<(), ImportError> {
    let mut has_scripts = false;
    let mut total = 0_u64;
    for path in files_below(folder) {
        let name = Path::new("skills").join(path.strip_prefix(base).unwrap_or(&path));
        let bytes = fs::read(&path).map_err(|cause| ImportError::Read {
            path: path.clone(),
            cause,
        })?;
        total = total.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if total > MAX_BYTES {
            draft.report.left(
                name.to_string_lossy(),
                format!("the skill's folder is larger than {MAX_BYTES} bytes"),
            );
            break;
        }
        has_scripts |= path.components().any(|part| part.as_os_str() == "scripts");
        draft.files.push((name, bytes));
    }
    if has_scripts {
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let reason = "its scripts were copied; they run only by the `shell` tool, each time after a question";
        draft.report.left(format!("skills/{name}/scripts"), reason);
    }
    Ok(())
}

/// Ordinary files below a folder, sorted; links are not followed, hidden ones not read.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        let Ok(entries) = fs::read_dir(&next) else {
            continue;
        }; // silent-ok: a folder that is not there has no files
        for entry in entries.flatten() {
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !hidden => open.push(entry.path()),
                Ok(kind) if kind.is_file() && !hidden => found.push(entry.path()),
                Ok(_) | Err(_) => {}
            }
        }
        if found.len() > MAX_FILES {
            break;
        }
    }
    found.sort();
    found.truncate(MAX_FILES);
    found
}
