//! Edits an agent's files together: manifest, policy, policy tests and `clawk.toml`. Comments and layout stay.
//!
//! An edit is drafted in memory, validated in a copy of the agent's files, shown as a difference, agreed to, and then written
//! whole. If a file can't be written, the earlier ones get their old content back.

mod agent_copy;
pub(crate) mod channel_add;
mod line_diff;
pub(crate) mod mcp_add;
pub(crate) mod provider_add;
mod replacing;
mod tool_rule;

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_manifest::{
    ListInsertion, LoadedDocument, Manifest, Severity, insert_list_item, render_diagnostics,
};

use super::validate::check_document;
use crate::config::{AllowOutsideArgs, Config};
use crate::out::{self, TerminalStyle};

/// Flags of every verb that edits an agent.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct EditArgs {
    /// The agent's manifest, or its folder
    #[arg(long, value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser(), default_value = ".")]
    pub(crate) manifest: PathBuf,

    /// Write without a question
    #[arg(long)]
    pub(crate) yes: bool,

    /// Show the difference and write nothing
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) outside: AllowOutsideArgs,
}

/// A file's old and new text.
#[derive(Debug, Clone)]
struct FileChange {
    path: PathBuf,
    /// `None`: the file is new.
    before: Option<String>,
    after: String,
}

/// The result of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EditOutcome {
    /// The files are written.
    Written,
    /// `--dry-run`: the difference was shown.
    Shown,
}

/// A valid agent, and the changes to its files that are not written yet.
pub(crate) struct AgentEdit<'a> {
    args: &'a EditArgs,
    /// `--config`.
    flag: Option<&'a Path>,
    pub(crate) config: Config,
    pub(crate) manifest: Manifest,
    loaded: LoadedDocument,
    changes: Vec<FileChange>,
    /// Lines for the person, after the difference.
    notes: Vec<String>,
    /// New files that are written already, which the edited agent names.
    written: Vec<PathBuf>,
}

impl<'a> AgentEdit<'a> {
    /// Reads the agent.
    ///
    /// # Errors
    /// It is not valid; its findings are printed.
    pub(crate) fn open(args: &'a EditArgs, flag: Option<&'a Path>) -> Result<Self> {
        let config = Config::load(flag, Some(&args.manifest))?.with_outside_access(args.outside);
        let mut loaded = check_document(&args.manifest, &config)?;
        let Some(manifest) = loaded.manifest.take() else {
            let (manifest, _) = crate::manifest::load_valid_manifest(&args.manifest, &config)
                .context("mend the agent first; `clawk validate` shows the same findings")?;
            // Only the policies' tests, the mounts or the rules are at fault.
            let name = manifest.metadata.name;
            bail!(
                "`{name}` is not valid; `clawk validate {}` says why",
                args.manifest.display()
            );
        };
        Ok(Self {
            args,
            flag,
            config,
            manifest,
            loaded,
            changes: Vec::new(),
            notes: Vec::new(),
            written: Vec::new(),
        })
    }

    /// Adds a line for the person.
    pub(crate) fn note(&mut self, line: String) {
        self.notes.push(line);
    }

    /// Says that the edited agent names a file that is written already.
    pub(crate) fn name_written_file(&mut self, path: PathBuf) {
        self.written.push(path);
    }

    /// Returns a file's text with the changes so far; empty for a file that does not exist.
    fn current_text(&self, path: &Path) -> Result<String> {
        if let Some(change) = self.changes.iter().find(|change| change.path == path) {
            return Ok(change.after.clone());
        }
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error).with_context(|| format!("can't read `{}`", path.display())),
        }
    }

    fn change_file(&mut self, path: &Path, after: String) -> Result<()> {
        if let Some(change) = self.changes.iter_mut().find(|change| change.path == path) {
            change.after = after;
            return Ok(());
        }
        let before = if path.exists() {
            Some(self.current_text(path)?)
        } else {
            None
        };
        self.changes.push(FileChange {
            path: path.to_owned(),
            before,
            after,
        });
        Ok(())
    }

    /// Adds an item to a list of the manifest's `spec`. `item`: its lines, without dash and indentation.
    ///
    /// # Errors
    /// The list has a layout that can't be edited.
    pub(crate) fn add_to_manifest(&mut self, section: &str, item: &str) -> Result<()> {
        let path = self.args.manifest.clone();
        let insertion = ListInsertion {
            parent: "spec",
            section,
            item,
            before: None,
        };
        self.insert(&path, insertion)
    }

    fn insert(&mut self, path: &Path, insertion: ListInsertion<'_>) -> Result<()> {
        let text = self.current_text(path)?;
        let edited = insert_list_item(&text, insertion).with_context(|| {
            format!(
                "`{}` can't be edited; this was to be added:\n{}",
                path.display(),
                insertion.item
            )
        })?;
        self.change_file(path, edited)
    }

    /// Appends a table to the `clawk.toml` in force, or to a new one beside the manifest.
    ///
    /// # Errors
    /// The file would not be TOML, or would lose or change a key.
    pub(crate) fn add_to_config(&mut self, table: &str) -> Result<()> {
        let beside = self
            .args
            .manifest
            .parent()
            .unwrap_or(Path::new(""))
            .join("clawk.toml");
        let path = self.config.file.clone().unwrap_or(beside);
        let before = self.current_text(&path)?;
        let newline = if before.contains("\r\n") { "\r\n" } else { "\n" };
        let mut after = before.trim_end().to_owned();
        if !after.is_empty() {
            after.push_str(newline);
            after.push_str(newline);
        }
        after.push_str(table.trim_end().replace('\n', newline).as_str());
        after.push_str(newline);
        let mut wanted: toml::Table = toml::from_str(&before).context("clawk.toml can't be read")?;
        let fits = merge_tables(&mut wanted, toml::from_str(table)?);
        let read_again = toml::from_str::<toml::Table>(&after);
        if !fits || read_again.ok().as_ref() != Some(&wanted) {
            bail!(
                "`{}` has such a table already, or writes it in another way; nothing was changed. This was to be added:\n{}",
                path.display(),
                table.trim_end()
            );
        }
        self.change_file(&path, after)
    }

    /// Validates the edited agent, shows the difference, asks, and writes.
    ///
    /// # Errors
    /// The edited agent would not be valid, the person says no, or a file can't be written. The files are then as before.
    pub(crate) fn finish(self) -> Result<EditOutcome> {
        let (checked, copy) = agent_copy::check_edited(&self)?;
        if !checked.is_valid() {
            let findings = render_diagnostics(&checked.diagnostics, &checked.sources, false);
            // The person knows the files by their own paths, not by those of the copy.
            out::notes(&findings.replace(&format!("{}/", copy.display()), ""));
            bail!("the edited agent would not be valid; nothing was changed");
        }
        let style = TerminalStyle::for_stdout();
        for change in &self.changes {
            let before = change.before.as_deref().unwrap_or_default();
            out::lines(&line_diff::render_difference(
                &change.path,
                before,
                &change.after,
                style,
            ))?;
        }
        for note in &self.notes {
            out::print_note(note.as_str());
        }
        let known = |text: &str| self.loaded.diagnostics.iter().any(|found| found.message == text);
        let new = checked.diagnostics.iter().filter(|found| {
            found.severity == Severity::Warning && !agent_copy::is_about_copy(found) && !known(&found.message)
        });
        for found in new {
            let style = TerminalStyle::for_stderr();
            out::print_note(format!(
                "{} {}",
                style.yellow("warning:"),
                out::one_line(&found.message)
            ));
        }
        if self.args.dry_run {
            return Ok(EditOutcome::Shown);
        }
        self.ask_person()?;
        replacing::replace_files(&self.changes)?;
        for change in &self.changes {
            let path = change.path.display();
            out::print_line(format!("{} {path}", style.green("wrote")))?;
        }
        Ok(EditOutcome::Written)
    }

    fn ask_person(&self) -> Result<()> {
        if self.args.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            bail!("nothing was changed: there is no terminal to ask; say `--yes` to write it");
        }
        out::print_note("Write this? [y/N]");
        let mut line = String::new();
        io::stdin()
            .read_line(&mut line)
            .context("can't read the answer")?;
        if !matches!(line.trim(), "y" | "yes") {
            bail!("nothing was changed");
        }
        Ok(())
    }
}

/// Merges `more` into `table`. Returns `false` if a key of both is not a table in both.
fn merge_tables(table: &mut toml::Table, more: toml::Table) -> bool {
    more.into_iter()
        .all(|(key, value)| match (table.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge_tables(old, new),
            (Some(_), _) => false,
            (None, value) => {
                table.insert(key, value);
                true
            }
        })
}

/// Checks a new name of the manifest.
///
/// # Errors
/// It is not a name, or another item of the kind has it.
pub(crate) fn check_new_name<'n>(
    kind: &str,
    name: &str,
    mut others: impl Iterator<Item = &'n str>,
) -> Result<()> {
    if !clawk_proto::uri::is_name(name) {
        bail!(
            "`{}` can't be a name: letters, digits and hyphens, at most 63",
            out::clip_line(name, 60)
        );
    }
    if others.any(|other| other == name) {
        bail!("the agent has a {kind} `{name}` already; choose another name");
    }
    Ok(())
}
