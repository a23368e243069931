//! `clawk memory`: lists, searches and exports an agent's memory, and deletes entries on the record.

mod copies;
mod forget;
mod held;
mod rekey;
mod server;
mod versions;
mod why;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::state::kept::{self, MemoryPart, RestoreSelection};
use anyhow::{Context, Result, bail};
use clawk_kernel::time::SystemClock;
use serde_json::{Value, json};

use held::{LocatedEntry, OpenedMemory, ScopedStore, content_text, entry_json, format_location};

use crate::out::{self, Format, TerminalStyle, clip_line, one_line, sanitize_block};
use crate::{compose, state};

/// Flags of `clawk memory`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: MemoryCommand,
}

const EXAMPLES: &str = "\
Examples:
  clawk memory list --agent hello
  clawk memory search 'the lamp in the hall' --store notes
  clawk memory show 550e8400-e29b-41d4-a716-446655440000-0 --format json
  clawk memory forget lamp-code --store facts --reason 'asked for by the customer'
  clawk memory restore --all --store notes
  clawk memory why lamp-code --store facts
  clawk memory versions agents/hello/MEMORY.md
  clawk memory export -o memory.jsonl
  clawk memory list --claw claw.yaml
  clawk memory rekey --agent hello --to MEMORY_KEY_2027

Looking works while the agent runs. Forgetting is done while it does not, and is recorded; it erases what the trace holds of the
same text, too. `--claw FILE` reaches the stores on PostgreSQL, on Qdrant and with MCP servers.";

#[derive(Debug, clap::Subcommand)]
enum MemoryCommand {
    /// Show the stores, and their entries, the newest first
    List {
        #[command(flatten)]
        part: PartArgs,

        /// Print at most this many entries of each scope of a store
        #[arg(long, default_value_t = 20)]
        limit: usize,

        /// What compaction set aside, instead
        #[arg(long)]
        aside: bool,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Find entries by their words, as the agent itself would, the best first
    Search {
        /// The words to search for
        #[arg(value_name = "WORDS", required = true)]
        words: Vec<String>,

        #[command(flatten)]
        part: PartArgs,

        /// Print at most this many entries
        #[arg(long, default_value_t = 10)]
        limit: usize,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Show one entry, whole
    Show {
        /// The id or key of an entry, as `list` prints it
        #[arg(value_name = "ID")]
        id: String,

        #[command(flatten)]
        part: PartArgs,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Remove entries for good, on the record
    Forget {
        /// The ids or keys of the entries
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,

        #[command(flatten)]
        part: PartArgs,

        /// The reason; it is recorded as a content, which `clawk trace redact` erases in its turn
        #[arg(long, value_name = "TEXT")]
        reason: String,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Restore entries that compaction set aside: one entry, the entries behind a summary, or all of a store
    Restore {
        /// The id of an entry, or of a summary
        #[arg(value_name = "ID", required_unless_present = "all")]
        id: Option<String>,

        /// Everything that was set aside
        #[arg(long, conflicts_with = "id")]
        all: bool,

        #[command(flatten)]
        part: PartArgs,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Show where an entry came from: the chain back to the message or the page
    Why {
        /// The id or key of an entry, as `list` prints it
        #[arg(value_name = "ID")]
        id: String,

        #[command(flatten)]
        part: PartArgs,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// List earlier versions of a context file
    Versions {
        /// The file, as it lies on the disk
        #[arg(value_name = "FILE")]
        file: PathBuf,

        #[command(flatten)]
        which: state::StateSelector,

        /// Print this version, by its number in the list
        #[arg(long, value_name = "N")]
        show: Option<usize>,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Seal everything that is encrypted with another key; what is interrupted is done again by the same command
    Rekey {
        #[command(flatten)]
        which: state::StateSelector,

        /// The secret that holds the new key, 64 hexadecimal digits
        #[arg(long, value_name = "REF")]
        to: String,

        /// The secret that holds the old key [default: the reference that the state directory names]
        #[arg(long, value_name = "REF")]
        from: Option<String>,

        /// The agent's manifest, if it has encrypted stores on a PostgreSQL server: they are sealed anew, too
        #[arg(long, value_name = "FILE")]
        claw: Option<PathBuf>,

        #[arg(from_global)]
        config: Option<PathBuf>,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Write every entry as a line of JSON, the newest of each scope first
    Export {
        #[command(flatten)]
        part: PartArgs,

        /// Write to this file instead of standard output
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// Whose memory, and which part of it.
#[derive(Debug, clap::Args)]
struct PartArgs {
    #[command(flatten)]
    which: state::StateSelector,

    #[command(flatten)]
    claw: server::MemoryServerArgs,

    /// Only this store of the manifest
    #[arg(long, value_name = "NAME")]
    store: Option<String>,

    /// Only this scope: `identity/NAME` or `channel/IDENTITY/CHANNEL`; an empty word means the shared scope
    #[arg(long, value_name = "SCOPE")]
    scope: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        MemoryCommand::List {
            part,
            limit,
            aside,
            format,
        } => list_entries(part, *limit, *aside, *format),
        MemoryCommand::Search {
            words,
            part,
            limit,
            format,
        } => search_entries(part, &words.join(" "), *limit, *format),
        MemoryCommand::Show { id, part, format } => show_entry(part, id, *format),
        MemoryCommand::Forget {
            ids,
            part,
            reason,
            format,
        } => forget::run(part, ids, reason, *format),
        MemoryCommand::Restore { id, part, format, .. } => restore_entries(part, id.as_deref(), *format),
        MemoryCommand::Why { id, part, format } => why::run(part, id, *format),
        MemoryCommand::Versions {
            file,
            which,
            show,
            format,
        } => versions::run(which, file, *show, *format),
        MemoryCommand::Rekey {
            which,
            to,
            from,
            claw,
            config,
            format,
        } => rekey::run(
            which,
            from.as_deref(),
            to,
            (claw.as_deref(), config.as_deref()),
            *format,
        ),
        MemoryCommand::Export { part, output } => export_entries(part, output.as_deref()),
    }
}

fn list_entries(which: &PartArgs, limit: usize, aside: bool, format: Format) -> Result<ExitCode> {
    let OpenedMemory { reader, parts, .. } = which.open_memory()?;
    let mut entries = Vec::new();
    for part in &parts {
        let found = part.newest_entries(&reader, aside, limit)?;
        entries.push((part, found));
    }
    if format == Format::Json {
        let stores: Vec<Value> = parts
            .iter()
            .map(
                |part| json!({ "store": part.store(), "scope": part.scope(), "entries": part.entry_count() }),
            )
            .collect();
        let entries: Vec<Value> = entries
            .iter()
            .flat_map(|(_, found)| found)
            .map(entry_json)
            .collect();
        out::print_json(&json!({ "stores": stores, "entries": entries }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let paint = TerminalStyle::for_stdout();
    if parts.is_empty() {
        out::print_line("nothing is remembered yet")?;
    }
    for (part, found) in &entries {
        let shown = if aside {
            format!("set aside, the newest {}", found.len())
        } else if part.entry_count() > u64::try_from(found.len()).unwrap_or(u64::MAX) {
            format!("{} entries, the newest {}", part.entry_count(), found.len())
        } else {
            format!("{} entries", part.entry_count())
        };
        out::print_line(format!(
            "{}  {}",
            paint.bold(&format_location(part.store(), part.scope())),
            paint.dim(&shown)
        ))?;
        found.iter().try_for_each(|entry| print_summary(entry, paint))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn search_entries(which: &PartArgs, words: &str, limit: usize, format: Format) -> Result<ExitCode> {
    let OpenedMemory { reader, parts, .. } = which.open_memory()?;
    let mut found = Vec::new();
    for part in &parts {
        found.extend(part.search_entries(&reader, words, limit)?);
    }
    let score = |found: &LocatedEntry| found.hit.entry.score.unwrap_or(0.0);
    found.sort_by(|a, b| score(b).total_cmp(&score(a)));
    found.truncate(limit);
    if format == Format::Json {
        let entries: Vec<Value> = found.iter().map(entry_json).collect();
        out::print_json(&json!({ "entries": entries }))?;
    } else if found.is_empty() {
        out::print_line("nothing is found")?;
    } else {
        let paint = TerminalStyle::for_stdout();
        for entry in &found {
            print_summary(entry, paint)?;
        }
    }
    Ok(if found.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn show_entry(which: &PartArgs, id: &str, format: Format) -> Result<ExitCode> {
    let OpenedMemory { dir, reader, parts } = which.open_memory()?;
    let mut found = Vec::new();
    for part in &parts {
        found.extend(part.find_named(&reader, id)?);
    }
    if found.is_empty() {
        bail!(
            "nothing is remembered as `{}` in `{}`; `clawk memory list` shows what is",
            one_line(id),
            dir.display()
        );
    }
    if format == Format::Json {
        let entries: Vec<Value> = found.iter().map(entry_json).collect();
        out::print_json(&json!({ "entries": entries }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let paint = TerminalStyle::for_stdout();
    for entry in &found {
        let about = &entry.hit.entry;
        out::print_line(paint.bold(&one_line(&about.id)))?;
        out::print_line(format!("  in {}", format_location(&entry.store, &entry.scope)))?;
        if let Some(key) = &about.key {
            out::print_line(format!("  key {}", one_line(key)))?;
        }
        if let Some(time) = &about.timestamp {
            out::print_line(format!("  {time}"))?;
        }
        out::print_line(format!("  {}", said_by(entry)))?;
        if let Some(metadata) = &about.metadata {
            out::print_line(paint.dim(&format!("  {}", one_line(&metadata.to_string()))))?;
        }
        out::lines(&sanitize_block(&content_text(&about.content)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn restore_entries(which: &PartArgs, id: Option<&str>, format: Format) -> Result<ExitCode> {
    if which.store.is_none() {
        bail!("say of which store: `--store NAME`");
    }
    let by = format!("local user {}", rustix::process::getuid().as_raw());
    let (state, OpenedMemory { parts, .. }) =
        which.open_exclusive("an agent that runs may be compacting the store")?;
    let (mut rows, mut others): (Vec<MemoryPart>, Vec<ScopedStore>) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            ScopedStore::Rows(part) => rows.push(*part),
            other @ (ScopedStore::Folder(_) | ScopedStore::Server(_)) => others.push(other),
        }
    }
    let mut back = 0;
    for part in &mut others {
        back += match part {
            ScopedStore::Folder(held) => held.restore_entries(id)?,
            ScopedStore::Server(one) => one.restore_entries(id)?,
            ScopedStore::Rows(_) => 0,
        };
    }
    let named: Vec<(&str, &str)> = others.iter().map(|part| (part.store(), part.scope())).collect();
    let clock = SystemClock::default();
    let told = if back > 0 {
        kept::restored_journal_entries(&named, id, &by, &clock)?
    } else {
        Vec::new()
    };
    back += compose::build_runtime()?.block_on(async {
        if !told.is_empty() {
            state.restored_elsewhere(told).await?;
        }
        let what = id.map_or(RestoreSelection::All, |id| RestoreSelection::Id(id.to_owned()));
        let from_rows = match rows.is_empty() {
            true => 0,
            false => state.restore(&rows, what, &by, &clock).await?,
        };
        state.close();
        Ok::<_, anyhow::Error>(from_rows)
    })?;
    if format == Format::Json {
        out::print_json(&json!({ "restored": back }))?;
    } else if back == 0 {
        out::print_line("nothing was set aside by that name; `clawk memory list --aside` shows what is")?;
    } else {
        out::print_line(format!("{back} entries are back"))?;
    }
    Ok(if back == 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn export_entries(which: &PartArgs, output: Option<&Path>) -> Result<ExitCode> {
    let OpenedMemory { reader, parts, .. } = which.open_memory()?;
    let mut to: Box<dyn Write> = match output {
        Some(path) => {
            let made = std::fs::File::create_new(path);
            let file = made.with_context(|| format!("can't make `{}`", path.display()))?;
            Box::new(std::io::BufWriter::new(file))
        }
        None => Box::new(std::io::BufWriter::new(std::io::stdout())),
    };
    for part in &parts {
        part.for_each_entry(&reader, |entry| Ok(writeln!(to, "{}", entry_json(&entry))?))?;
    }
    to.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Describes the source of an entry in words.
fn said_by(found: &LocatedEntry) -> String {
    let mark = &found.hit.mark;
    let origin = if mark.origin.is_empty() {
        "unknown"
    } else {
        &mark.origin
    };
    let trust = if mark.untrusted { ", untrusted" } else { "" };
    format!("from {}{trust}", one_line(origin))
}

fn print_summary(found: &LocatedEntry, paint: TerminalStyle) -> Result<()> {
    let about = &found.hit.entry;
    let name = about
        .key
        .as_ref()
        .map_or_else(String::new, |key| format!(" {}", one_line(key)));
    let score = about
        .score
        .map_or_else(String::new, |score| format!("  {score:.2}"));
    out::print_line(format!(
        "  {}{name}  {}",
        paint.bold(&one_line(&about.id)),
        clip_line(&content_text(&about.content), 80)
    ))?;
    let time = about.timestamp.as_deref().unwrap_or_default();
    let place = format_location(&found.store, &found.scope);
    Ok(out::print_line(
        paint.dim(&format!("    {time}  {place}{score}")),
    )?)
}
