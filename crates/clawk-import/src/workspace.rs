//! The files in an agent's own folder: its identity, knowledge about its user, memories and skills.

use std::path::Path;

use crate::ImportError;
use crate::draft::{Draft, Skill, fit_name};
use crate::settings::text_of;
use crate::source::SourcePath;

/// Files with the agent's identity, in the order in which the runtimes read them.
const IDENTITY: &[&str] = &[
    "IDENTITY.md",
    "SOUL.md",
    "AGENTS.md",
    "AGENT.md",
    "CLAUDE.md",
    "BOOT.md",
];
/// Files about the agent's user and work.
const CONTEXT: &[&str] = &["USER.md", "MEMORY.md", "TOOLS.md", "RULES.md"];
/// Files that only the runtime's set-up needs.
const NOT_WANTED: &[&str] = &["BOOTSTRAP.md"];
/// The largest skill that is copied, bytes.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Reads the folder. A missing file is not an error; an unreadable one is.
pub(crate) fn read(draft: &mut Draft, folder: &SourcePath) -> Result<(), ImportError> {
    for name in IDENTITY {
        let path = folder.join(name);
        if path.is_file() {
            draft.add_prompt(name, &text_of(&path)?);
            draft
                .report
                .add_carried(format!("`{name}` as part of the identity's personality"));
        }
    }
    for name in CONTEXT {
        let path = [folder.join(name), folder.join("memory").join(name)]
            .into_iter()
            .find(|path| path.is_file());
        if let Some(path) = path {
            draft.context.insert((*name).to_owned(), text_of(&path)?);
            draft.report.add_carried(format!("`{name}` as a context file"));
        }
    }
    for name in NOT_WANTED {
        if folder.join(name).is_file() {
            draft
                .report
                .add_left_out(*name, "it tells the old runtime how to set an agent up");
        }
    }
    import_notes(draft, &folder.join("memory"))?;
    import_skills(draft, &folder.join("skills"))
}

/// Converts the heartbeat file and its interval to a cron channel.
pub(crate) fn import_heartbeat(
    draft: &mut Draft,
    folder: &SourcePath,
    every_ms: u64,
) -> Result<(), ImportError> {
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
        draft.report.add_left_out("HEARTBEAT.md", "it names no work");
        return Ok(());
    }
    match crate::jobs::every_ms(every_ms) {
        Ok(schedule) => {
            crate::jobs::add_job(draft, "heartbeat", &schedule, None, &text);
        }
        Err(reason) => draft.report.add_left_out("HEARTBEAT.md", reason),
    }
    Ok(())
}

/// Copies daily notes. The agent reads them with its file tools.
fn import_notes(draft: &mut Draft, folder: &SourcePath) -> Result<(), ImportError> {
    let mut copied = 0_usize;
    for path in folder.files_below() {
        let known = CONTEXT.contains(&path.file_name().as_str());
        if path.has_extension("md") && !known {
            let name = path.relative_to(folder);
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
            .add_carried(format!("{copied} files of notes below `memory/`"));
    }
    Ok(())
}

/// A skill's folder, or a single file that is a skill.
struct SkillPlace {
    file: SourcePath,
    /// The folder; `None` for a single file.
    folder: Option<SourcePath>,
    text: String,
    name: String,
}

/// Each folder with a `SKILL.md` becomes a skill; its other files are copied. Of two skills with the same name the first one stays:
/// the one whose folder has that name, or else the first by folder name.
pub(crate) fn import_skills(draft: &mut Draft, folder: &SourcePath) -> Result<(), ImportError> {
    let mut found = Vec::new();
    for path in folder.entries() {
        let (file, own) = if path.is_dir() {
            (path.join("SKILL.md"), Some(path.clone()))
        } else {
            (path.clone(), None)
        };
        if file.is_file() && file.has_extension("md") {
            let text = text_of(&file)?;
            let named = split_frontmatter(&text)
                .0
                .into_iter()
                .find(|(member, _)| member == "name");
            let name = named.map(|(_, value)| value).filter(|value| !value.is_empty());
            found.push(SkillPlace {
                name: fit_name(&name.unwrap_or_else(|| path.file_stem())),
                folder: own,
                file,
                text,
            });
        }
    }
    found.sort_by_key(|place| {
        let folder = place.folder.as_ref().unwrap_or(&place.file);
        (folder.file_stem() != place.name, folder.file_name())
    });
    for place in found {
        let is_new = import_skill(draft, &place);
        if let (true, Some(own)) = (is_new, &place.folder) {
            copy_skill_files(draft, &place.name, own)?;
        }
    }
    Ok(())
}

/// Adds a skill. Returns whether it was added.
fn import_skill(draft: &mut Draft, place: &SkillPlace) -> bool {
    let (front, body) = split_frontmatter(&place.text);
    let name = place.name.as_str();
    let description = front
        .iter()
        .find(|(member, value)| member == "description" && !value.is_empty())
        .map_or_else(|| format!("The skill {name}"), |(_, value)| value.clone());
    let instruction = if body.trim().is_empty() {
        description.clone()
    } else {
        body.trim().to_owned()
    };
    let is_new = draft.add_skill(Skill {
        name: name.to_owned(),
        description,
        instruction,
        place: place.file.shown_below_root(),
    });
    for (member, _) in front.iter().filter(|_| is_new) {
        if !matches!(member.as_str(), "name" | "description") {
            draft.report.add_left_out(
                format!("skills/{name}/SKILL.md: {member}"),
                "clawk's Skill has no such member",
            );
        }
    }
    is_new
}

/// The `name: value` lines between two lines of `---`, and the text after them.
pub(crate) fn split_frontmatter(text: &str) -> (Vec<(String, String)>, &str) {
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

/// Copies a skill's files to `skills/NAME`, a folder that no other skill uses.
fn copy_skill_files(draft: &mut Draft, skill: &str, folder: &SourcePath) -> Result<(), ImportError> {
    let mut has_scripts = false;
    let mut total = 0_u64;
    for path in folder.files_below() {
        let below = path.relative_to(folder);
        let name = Path::new("skills").join(skill).join(&below);
        let bytes = path.read(MAX_BYTES)?;
        total = total.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if total > MAX_BYTES {
            draft.report.add_left_out(
                name.to_string_lossy(),
                format!("the skill's folder is larger than {MAX_BYTES} bytes"),
            );
            break;
        }
        has_scripts |= below.starts_with("scripts");
        draft.files.push((name, bytes));
    }
    if has_scripts {
        let reason = "its scripts were copied; they run only by the `shell` tool, each time after a question";
        draft
            .report
            .add_left_out(format!("skills/{skill}/scripts"), reason);
    }
    Ok(())
}
