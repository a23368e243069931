//! Explains a command line that clap refuses: the command that was meant, with the person's own words in it.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::out;

/// Exit code of a usage error, the same as clap's.
pub(crate) const USAGE_ERROR: u8 = 2;

/// Words that people type in the place of a command, and the command that does what they mean.
const MEANT: [(&[&str], &str); 16] = [
    (
        &["secrets", "secret", "keys", "key", "auth", "credentials"],
        "`clawk login PROVIDER` tests a key and keeps it; a manifest names keys by `secret_ref`, and `clawk doctor CLAW` says which are \
         missing",
    ),
    (
        &["update", "self-update"],
        "clawk does not replace its own program: install the new one as you installed this one; `clawk upgrade CLAW --shadow PROGRAM` \
         tries it on recorded sessions first",
    ),
    (
        &["new", "create", "setup", "onboard", "configure"],
        "`clawk init DIR` writes an agent",
    ),
    (
        &["talk", "ask", "prompt", "exec", "message"],
        "`clawk run CLAW -m TEXT` runs one turn, `clawk run CLAW` talks",
    ),
    (
        &["up", "daemon", "gateway", "server"],
        "`clawk serve CLAW` runs an agent as a service",
    ),
    (
        &["status", "ps", "agents"],
        "`clawk state info --agent NAME` says what serves an agent, `clawk channels --agent NAME` how its channels are",
    ),
    (
        &["check", "lint"],
        "`clawk validate CLAW` checks a manifest, `clawk doctor CLAW` this machine",
    ),
    (
        &["test"],
        "`clawk policy test CLAW` runs the policies' tests, `clawk skill test` those of a skill",
    ),
    (
        &["history", "audit"],
        "`clawk trace show --agent NAME` shows what happened",
    ),
    (
        &["kill", "shutdown", "down"],
        "`clawk stop --agent NAME` stops an agent at once",
    ),
    (
        &["plugins", "plugin", "extensions"],
        "`clawk mcp add` adds an MCP server, `clawk skill import` a skill",
    ),
    (
        &["models", "model", "providers"],
        "`clawk provider models` lists the models of an agent's providers",
    ),
    (
        &["cost", "costs", "usage", "spend", "spending"],
        "`clawk budget --agent NAME` shows what is spent",
    ),
    (
        &["add", "install"],
        "`clawk mcp add`, `clawk channels add`, `clawk provider add` and `clawk skill import` add to an agent",
    ),
    (
        &["cron", "schedule"],
        "`clawk channels add cron` adds a schedule to an agent",
    ),
    (&["version"], "`clawk --version`"),
];

/// Prints the refusal, and the command that was meant if it is known. Returns the exit code; `--help` and `--version` are not
/// errors.
pub(crate) fn print_usage_error(error: &clap::Error, words: &[OsString]) -> u8 {
    if !error.use_stderr() {
        return match error.print() {
            Ok(()) => 0,
            Err(_) => 1, // silent-ok: the reader is gone
        };
    }
    let words: Vec<String> = words
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    match explain_usage(error, &words) {
        Some((what, cure)) => {
            let paint = out::TerminalStyle::for_stderr();
            let what = out::one_line(&what);
            out::notes(&format!(
                "{} {what}\n  {}",
                paint.red("error:"),
                out::sanitize_block(&cure)
            ));
        }
        None => {
            let _ = error.print(); // silent-ok: there is no other place to say it
        }
    }
    USAGE_ERROR
}

/// Returns what is wrong, and the cure.
fn explain_usage(error: &clap::Error, words: &[String]) -> Option<(String, String)> {
    let verb: Vec<&str> = words
        .iter()
        .map(String::as_str)
        .take_while(|word| !word.starts_with('-') && !Path::new(word).exists())
        .collect();
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = context_text(error, ContextKind::InvalidSubcommand)?;
            if words.first() == Some(&word) {
                return explain_command(&word, words);
            }
            explain_manifest(&word, verb.first()?)
        }
        ErrorKind::UnknownArgument => {
            let word = context_text(error, ContextKind::InvalidArg)?;
            if word.starts_with('-') {
                return None;
            }
            match verb.first().copied() {
                Some("run" | "chat") => {
                    let text = words_from(words, &word);
                    let claw = words
                        .get(1)
                        .filter(|claw| **claw != word)
                        .map_or("CLAW", String::as_str);
                    Some((
                        format!("`{word}` is not part of the command; a message is given with `-m`"),
                        format!("clawk run {claw} -m {}", quote_word(&text)),
                    ))
                }
                Some(verb) => explain_manifest(&word, verb),
                None => None,
            }
        }
        _ => None,
    }
}

fn context_text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    }
}

fn explain_command(word: &str, words: &[String]) -> Option<(String, String)> {
    let what = format!("there is no command `{word}`");
    let small = word.to_ascii_lowercase();
    if small == "help" {
        let rest = words.get(1..).unwrap_or_default().join(" ");
        let space = if rest.is_empty() { "" } else { " " };
        return Some((what, format!("clawk {rest}{space}--help")));
    }
    if let Some((_, cure)) = MEANT.iter().find(|(names, _)| names.contains(&small.as_str())) {
        return Some((what, (*cure).to_owned()));
    }
    is_manifest(Path::new(word)).then(|| {
        let cure = format!(
            "`clawk run {0}` talks to the agent, `clawk validate {0}` checks it, `clawk serve {0}` serves it",
            quote_word(word)
        );
        (what, cure)
    })
}

/// Explains a manifest that was given to a command that looks for the agent's state by its name.
fn explain_manifest(word: &str, verb: &str) -> Option<(String, String)> {
    let path = Path::new(word);
    if !is_manifest(path) {
        return None;
    }
    let name = agent_name(path).unwrap_or_else(|| "NAME".to_owned());
    Some((
        format!("`clawk {verb}` takes the agent by its name or its state directory, not by its manifest"),
        format!(
            "write `--agent {}`, or `--state DIR`; `clawk {verb} --help` shows both",
            quote_word(&name)
        ),
    ))
}

fn is_manifest(path: &Path) -> bool {
    let yaml = path
        .extension()
        .is_some_and(|ending| ending == "yaml" || ending == "yml");
    path.join("claw.yaml").is_file() || yaml && path.is_file()
}

/// Reads the agent's name from its manifest.
fn agent_name(path: &Path) -> Option<String> {
    let inside = path.join("claw.yaml");
    let file = if inside.is_file() { inside } else { path.to_owned() };
    let loaded = clawk_manifest::load_manifest(&file, &clawk_manifest::LoadOptions::default());
    loaded.manifest.map(|manifest| manifest.metadata.name)
}

/// Returns the words from `first` to the end or to the next flag, as one text.
fn words_from(words: &[String], first: &str) -> String {
    let rest = words.iter().skip_while(|word| *word != first);
    let text: Vec<&str> = rest
        .map(String::as_str)
        .take_while(|word| !word.starts_with('-'))
        .collect();
    text.join(" ")
}

/// Quotes a word for a shell where it needs that.
pub(crate) fn quote_word(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,~".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}
