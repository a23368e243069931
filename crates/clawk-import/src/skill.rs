//! Converts a `SKILL.md` folder, the common format of skills, to a Skill and to tools for its scripts.
//!
//! Frontmatter without a member in a Skill is kept as annotations and reported. A script becomes a separate tool, so each of its
//! runs is decided, sandboxed and recorded like any other call.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::ImportError;
use crate::draft::fit_name;
use crate::emit::to_yaml;
use crate::settings::text_of;
use crate::source::SourcePath;
use crate::workspace::split_frontmatter;

/// The label with the names of tools that the agent lacks. The kernel refuses the skill until the agent has them.
pub const REQUIRES: &str = "requires-tools";
/// The largest folder that is copied, bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Members of the frontmatter that have an equivalent in a Skill.
const KNOWN: [&str; 5] = ["name", "description", "license", "allowed-tools", "metadata"];

/// Tool names of common runtimes, with the names here.
const NAMES: [(&str, &str); 14] = [
    ("bash", "shell"),
    ("shell", "shell"),
    ("read", "file-read"),
    ("write", "file-write"),
    ("edit", "file-edit"),
    ("multiedit", "file-edit"),
    ("glob", "file-list"),
    ("ls", "file-list"),
    ("grep", "file-search"),
    ("webfetch", "web-fetch"),
    ("web_fetch", "web-fetch"),
    ("read_file", "file-read"),
    ("write_file", "file-write"),
    ("askuserquestion", "ask-user"),
];

/// Relative paths and contents.
type SkillFiles = Vec<(PathBuf, Vec<u8>)>;

/// A skill with its files.
#[derive(Debug)]
pub struct SkillImport {
    /// Its name.
    pub name: String,
    /// Paths relative to the output file, with contents; without the Skill itself.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// The Skill as YAML.
    pub skill: String,
    /// The tool files that `claw.yaml` must name, relative to the output's folder.
    pub tools: Vec<PathBuf>,
    /// The text that `clawk.toml` must contain: `[tools.NAME]`.
    pub config: String,
    /// Frontmatter members that were kept as annotations.
    pub kept: Vec<String>,
    /// Tools that it needs and the agent lacks. Without a known agent: all tools that it names.
    pub lacks: Vec<String>,
    /// Remarks for the user.
    pub notes: Vec<String>,
}

/// Reads the `SKILL.md` in `folder`. `output`: the absolute path of the new Skill file. `agent`: the names of the agent's tools, if
/// the agent is known.
///
/// # Errors
/// There is no `SKILL.md`, it is a link, or a file can't be read.
pub fn import_skill(
    folder: &Path,
    output: &Path,
    agent: Option<&BTreeSet<String>>,
) -> Result<SkillImport, ImportError> {
    let not_there = || ImportError::NotThere {
        runtime: "a skill",
        path: folder.to_owned(),
        looked_for: "`SKILL.md`".to_owned(),
    };
    let folder = &SourcePath::open(folder).map_err(|_| not_there())?; // silent-ok: no folder, no skill in it
    let source = folder.join("SKILL.md");
    if !source.is_file() && !source.is_link() {
        return Err(not_there());
    }
    let text = text_of(&source)?;
    let (front, body, malformed) = parse_frontmatter(&text);
    let given = |key: &str| front.get(key).and_then(plain_text);
    let name = fit_name(&given("name").unwrap_or_else(|| folder.file_name()));
    let mut notes = Vec::new();
    if malformed {
        notes.push("its frontmatter is not valid YAML; it was read line by line".to_owned());
    }
    let shelf = output.parent().unwrap_or(Path::new("/"));
    let (home, files) = at_home(folder, output, shelf, &mut notes)?;
    let (own, config) = own_tools(folder, &home, &name, &mut notes);
    let (required, lacks) = needed_tools(&own, front.get("allowed-tools"), agent, &mut notes);
    for link in folder.skipped_links() {
        notes.push(format!(
            "`{}` is a link: it is not followed and not copied",
            link.display()
        ));
    }
    let (skill, kept) = skill_document(&name, &front, body, (&required, &lacks));
    let tools: Vec<PathBuf> = own
        .iter()
        .map(|(tool, _)| PathBuf::from(format!("{name}.tools")).join(format!("{tool}.yaml")))
        .collect();
    let mut files = files;
    for ((_, tool), path) in own.iter().zip(&tools) {
        files.push((path.clone(), to_yaml(tool).into_bytes()));
    }
    Ok(SkillImport {
        name,
        files,
        skill: to_yaml(&skill),
        tools,
        config,
        kept,
        lacks,
        notes,
    })
}

/// The skill's own tools, with their settings for `clawk.toml`.
fn own_tools(
    folder: &SourcePath,
    home: &Path,
    name: &str,
    notes: &mut Vec<String>,
) -> (Vec<(String, Value)>, String) {
    let mut own = vec![reader_tool(name)];
    let mut config = tool_binding(&format!("{name}-read"), &["cat", "--"], Some(home));
    for script in find_scripts(folder, notes) {
        let (tool, binding) = script_tool(name, home, &script, notes);
        if own.iter().any(|known| known.0 == tool.0) {
            notes.push(format!(
                "`{}` is left out: another script has its name",
                script.display()
            ));
            continue;
        }
        own.push(tool);
        config.push_str(&binding);
    }
    (own, config)
}

/// The tools that the skill may use, and the wanted tools that the agent lacks.
fn needed_tools(
    own: &[(String, Value)],
    wanted: Option<&Value>,
    agent: Option<&BTreeSet<String>>,
    notes: &mut Vec<String>,
) -> (Vec<String>, Vec<String>) {
    let (named, narrowed) = allowed_tools(wanted);
    if !narrowed.is_empty() {
        notes.push(format!(
            "`allowed-tools` narrows {} by a pattern; a Skill has none: use `blocked_commands` of the sandbox or a policy rule",
            narrowed.join(", ")
        ));
    }
    let mut required: Vec<String> = own.iter().map(|(tool, _)| tool.clone()).collect();
    let mut lacks = Vec::new();
    for tool in &named {
        match agent {
            Some(agent) if agent.contains(tool) => required.push(tool.clone()),
            Some(_) | None => lacks.push(tool.clone()),
        }
    }
    if let (Some(agent), None) = (agent, wanted) {
        required.extend(
            agent
                .iter()
                .filter(|tool| !own.iter().any(|(own, _)| own == *tool))
                .cloned(),
        );
        notes.push("it names no `allowed-tools`: it may use every tool that the agent has now".to_owned());
    }
    notes.push("it has no `permissions`: the agent's policies alone bound what its tools do; add `permissions` to bound it further".to_owned());
    (required, lacks)
}

/// The frontmatter, the instructions, and whether the YAML could not be parsed.
fn parse_frontmatter(text: &str) -> (Map<String, Value>, &str, bool) {
    let (lines, body) = split_frontmatter(text);
    let raw = text
        .strip_prefix("---")
        .and_then(|rest| rest.split_once('\n'))
        .and_then(|(_, rest)| rest.split_once("\n---"))
        .map(|(front, _)| front);
    match raw.map(serde_saphyr::from_str::<Map<String, Value>>) {
        Some(Ok(front)) => (front, body, false),
        // silent-ok: reported in the notes; the text is read line by line instead
        Some(Err(_)) => {
            let lines = lines
                .into_iter()
                .map(|(name, value)| (name, Value::String(value)));
            (lines.collect(), body, true)
        }
        None => (Map::new(), body, false),
    }
}

/// A scalar value as text.
fn plain_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        Value::Null => None,
        other => Some(other.to_string()),
    }
}

/// The tools under their names here, and those that a pattern restricts.
fn allowed_tools(given: Option<&Value>) -> (Vec<String>, Vec<String>) {
    let text = match given {
        Some(Value::Array(list)) => list.iter().filter_map(plain_text).collect::<Vec<_>>().join(","),
        Some(other) => plain_text(other).unwrap_or_default(),
        None => String::new(),
    };
    let (mut named, mut narrowed) = (Vec::new(), Vec::new());
    let mut depth = 0_u32;
    let words = text.split(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && (c == ',' || c.is_whitespace())
    });
    for word in words.map(str::trim).filter(|word| !word.is_empty()) {
        let (bare, pattern) = word
            .split_once('(')
            .map_or((word, None), |(bare, rest)| (bare, Some(rest)));
        let known = NAMES.iter().find(|(theirs, _)| bare.eq_ignore_ascii_case(theirs));
        let tool = known.map_or_else(|| fit_name(bare), |(_, ours)| (*ours).to_owned());
        if pattern.is_some() {
            narrowed.push(format!("`{word}`"));
        }
        if !named.contains(&tool) {
            named.push(tool);
        }
    }
    (named, narrowed)
}

/// The Skill as a document, and the frontmatter members that became annotations.
fn skill_document(
    name: &str,
    front: &Map<String, Value>,
    body: &str,
    (required, lacks): (&[String], &[String]),
) -> (Value, Vec<String>) {
    let mut annotations = Map::new();
    let mut kept = Vec::new();
    for (key, value) in front {
        let Some(text) = plain_text(value) else { continue };
        match key.as_str() {
            "name" | "description" => {}
            "metadata" if value.is_object() => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    annotations.extend(
                        plain_text(value).map(|text| (format!("skill-md/metadata.{key}"), text.into())),
                    );
                }
            }
            _ => {
                annotations.insert(format!("skill-md/{key}"), text.into());
                if !KNOWN.contains(&key.as_str()) {
                    kept.push(key.clone());
                }
            }
        }
    }
    let mut metadata = Map::from_iter([("name".to_owned(), Value::from(name))]);
    if !lacks.is_empty() {
        metadata.insert("labels".to_owned(), json!({REQUIRES: lacks.join(" ")}));
    }
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), Value::Object(annotations));
    }
    let description = front.get("description").and_then(plain_text);
    let description = description.unwrap_or_else(|| format!("The skill {name}"));
    let body = body.trim();
    let instruction = if body.is_empty() {
        description.as_str()
    } else {
        body
    };
    let instruction = format!(
        "{instruction}\n\n[The files of this skill: read them with `{name}-read`, by their paths below the skill's folder.]"
    );
    let skill = json!({
        "claw": "0.3.0",
        "kind": "Skill",
        "metadata": metadata,
        "spec": {"description": description, "tools_required": required, "instruction": instruction},
    });
    (skill, kept)
}

/// The folder of the skill's files: the present one, if it is below the output's folder, or else copies next to the output.
fn at_home(
    folder: &SourcePath,
    output: &Path,
    shelf: &Path,
    notes: &mut Vec<String>,
) -> Result<(PathBuf, SkillFiles), ImportError> {
    let here = folder.display_path();
    if here.starts_with(shelf) {
        return Ok((here, Vec::new()));
    }
    let stem = output.file_stem().map(PathBuf::from).unwrap_or_default();
    let below = PathBuf::from(format!("{}.files", stem.display()));
    let (mut files, mut total) = (Vec::new(), 0_u64);
    for path in folder.files_below() {
        let bytes = path.read(MAX_BYTES)?;
        total = total.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if total > MAX_BYTES {
            return Err(ImportError::TooLarge {
                path: here,
                limit: MAX_BYTES,
            });
        }
        files.push((below.join(path.relative_to(folder)), bytes));
    }
    notes.push(format!(
        "its {} files are copied to `{}`",
        files.len(),
        below.display()
    ));
    Ok((shelf.join(below), files))
}

/// The tool that reads the skill's files.
fn reader_tool(name: &str) -> (String, Value) {
    let tool = format!("{name}-read");
    let document = json!({
        "claw": "0.3.0",
        "kind": "Tool",
        "metadata": {"name": tool, "labels": {"category": "filesystem"}},
        "spec": {
            "description": format!("Reads one file of the skill `{name}`, by its path below the skill's folder."),
            "input_schema": {
                "type": "object", "required": ["path"], "additionalProperties": false,
                "properties": {"path": {"type": "string"}},
            },
            "annotations": {"readOnlyHint": true, "idempotentHint": true, "openWorldHint": false},
        },
    });
    (tool, document)
}

/// The files below `scripts`, relative to the folder.
fn find_scripts(folder: &SourcePath, notes: &mut Vec<String>) -> Vec<PathBuf> {
    let below = folder.join("scripts").files_below();
    let mut found: Vec<PathBuf> = below.iter().map(|path| path.relative_to(folder)).collect();
    found.sort();
    found.retain(|path| {
        let module = path.file_name().is_some_and(|name| name == "__init__.py");
        let runs = program_of(path).is_some() || folder.join(path).is_executable();
        if !runs && !module {
            notes.push(format!(
                "`{}` is no script that can be started; it can be read",
                path.display()
            ));
        }
        runs && !module
    });
    found
}

/// The program that runs a script, by its file name.
fn program_of(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()? {
        "py" => Some("python3"),
        "sh" => Some("sh"),
        "bash" => Some("bash"),
        "js" | "mjs" | "cjs" => Some("node"),
        _ => None,
    }
}

/// A script as a tool, with its settings.
fn script_tool(name: &str, home: &Path, script: &Path, notes: &mut Vec<String>) -> ((String, Value), String) {
    let below = script
        .strip_prefix("scripts")
        .unwrap_or(script)
        .with_extension("");
    let tool = fit_name(&format!("{name}-{}", below.to_string_lossy()));
    let shown = script.display().to_string();
    let document = json!({
        "claw": "0.3.0",
        "kind": "Tool",
        // The effects of a script are unknown, so it counts as a command line.
        "metadata": {"name": tool, "labels": {"category": "shell"}},
        "spec": {
            "description": format!("Runs `{shown}` of the skill `{name}` in the working directory."),
            "input_schema": {
                "type": "object", "additionalProperties": false,
                "properties": {
                    "args": {"type": "array", "items": {"type": "string"}, "description": "Its arguments, one each"},
                    "stdin": {"type": "string", "description": "Its standard input"},
                },
            },
        },
    });
    let path = home.join(script).to_string_lossy().into_owned();
    let binding = match program_of(script) {
        Some(program) => tool_command(&tool, &[program, &path], None, Some(home)),
        None => tool_command(&tool, &[&path], None, Some(home)),
    };
    notes.push(format!("`{shown}` is the tool `{tool}`"));
    ((tool, document), binding)
}

/// The `[tools.NAME]` table of a command with its start folder.
fn tool_binding(tool: &str, words: &[&str], start_in: Option<&Path>) -> String {
    tool_command(tool, words, start_in, None)
}

fn tool_command(tool: &str, words: &[&str], start_in: Option<&Path>, reads: Option<&Path>) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let mut lines = format!("[tools.{tool}]\ncommand = [{}]\nargv = true\n", words.join(", "));
    if let Some(folder) = start_in {
        lines.push_str(&format!("start_in = {}\n", quoted(&folder.to_string_lossy())));
    }
    if let Some(folder) = reads {
        lines.push_str(&format!("read_paths = [{}]\n", quoted(&folder.to_string_lossy())));
    }
    lines.push('\n');
    lines
}
