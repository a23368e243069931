//! One module per runtime: the location of its files, and the meaning of their members. This module holds the common parts.

mod claw;
mod claw_package;
mod clawlet;
mod ironclaw;
mod moltis;
mod nanobot;
mod nanoclaw;
mod openclaw;
mod tinyclaw;
mod zeroclaw;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::ImportError;
use crate::draft::{Draft, secret_text};
use crate::providers::{self, VendorAccount, VendorChoice};
use crate::settings::{Settings, first_file, text_of};
use crate::source::SourcePath;

/// A runtime whose configuration can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the name of a project")]
pub enum Runtime {
    Openclaw,
    Zeroclaw,
    Nanobot,
    Picoclaw,
    Ironclaw,
    Zeptoclaw,
    Nullclaw,
    Moltis,
    Tinyclaw,
    Nanoclaw,
    Clawlet,
}

impl Runtime {
    /// All runtimes.
    pub const ALL: [Self; 11] = [
        Self::Openclaw,
        Self::Zeroclaw,
        Self::Nanobot,
        Self::Picoclaw,
        Self::Ironclaw,
        Self::Zeptoclaw,
        Self::Nullclaw,
        Self::Moltis,
        Self::Tinyclaw,
        Self::Nanoclaw,
        Self::Clawlet,
    ];

    /// The runtime's name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Openclaw => "openclaw",
            Self::Zeroclaw => "zeroclaw",
            Self::Nanobot => "nanobot",
            Self::Picoclaw => "picoclaw",
            Self::Ironclaw => "ironclaw",
            Self::Zeptoclaw => "zeptoclaw",
            Self::Nullclaw => "nullclaw",
            Self::Moltis => "moltis",
            Self::Tinyclaw => "tinyclaw",
            Self::Nanoclaw => "nanoclaw",
            Self::Clawlet => "clawlet",
        }
    }

    /// The project's own spelling of its name.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Openclaw => "OpenClaw",
            Self::Zeroclaw => "ZeroClaw",
            Self::Nanobot => "nanobot",
            Self::Picoclaw => "PicoClaw",
            Self::Ironclaw => "IronClaw",
            Self::Zeptoclaw => "ZeptoClaw",
            Self::Nullclaw => "NullClaw",
            Self::Moltis => "Moltis",
            Self::Tinyclaw => "TinyClaw",
            Self::Nanoclaw => "NanoClaw",
            Self::Clawlet => "Clawlet",
        }
    }

    /// The default folder, below the user's home.
    #[must_use]
    pub const fn default_home(self) -> &'static str {
        match self {
            Self::Openclaw => ".openclaw",
            Self::Zeroclaw => ".zeroclaw",
            Self::Nanobot => ".nanobot",
            Self::Picoclaw => ".picoclaw",
            Self::Ironclaw => ".ironclaw",
            Self::Zeptoclaw => ".zeptoclaw",
            Self::Nullclaw => ".nullclaw",
            Self::Moltis => ".config/moltis",
            Self::Tinyclaw => ".tinyclaw",
            Self::Nanoclaw => "nanoclaw",
            Self::Clawlet => ".clawlet",
        }
    }
}

/// The path that a person gave: the old runtime's folder, and the file in it if the path is a file.
struct ImportSource {
    root: SourcePath,
    file: Option<OsString>,
}

/// Collects the agent below `path`.
pub(crate) fn read(runtime: Runtime, path: &Path) -> Result<Draft, ImportError> {
    let (root, file) = SourcePath::open_named(path).map_err(|cause| ImportError::Read {
        path: path.to_owned(),
        cause,
    })?;
    let source = ImportSource { root, file };
    let mut draft = match runtime {
        Runtime::Openclaw => openclaw::read(&source),
        Runtime::Zeroclaw => zeroclaw::read(&source),
        Runtime::Nanobot | Runtime::Picoclaw => nanobot::read(runtime, &source),
        Runtime::Zeptoclaw | Runtime::Nullclaw => claw::read(runtime, &source),
        Runtime::Ironclaw => ironclaw::read(&source),
        Runtime::Moltis => moltis::read(&source),
        Runtime::Tinyclaw => tinyclaw::read(&source),
        Runtime::Nanoclaw => nanoclaw::read(&source),
        Runtime::Clawlet => clawlet::read(&source),
    }?;
    for link in source.root.skipped_links() {
        let reason = "it is a link, and an import follows none: copy the file there and import again";
        draft.report.add_left_out(link.to_string_lossy(), reason);
    }
    Ok(draft)
}

impl ImportSource {
    /// The folder and its main file: the given file, or the first of these names.
    fn main_file(&self, runtime: Runtime, names: &[&str]) -> Result<(SourcePath, SourcePath), ImportError> {
        if let Some(name) = &self.file {
            let file = self.root.join(name);
            return Ok((self.root.clone(), file));
        }
        match first_file(&self.root, names)? {
            Some(file) => Ok((self.root.clone(), file)),
            None => Err(self.not_there(runtime, names)),
        }
    }

    fn not_there(&self, runtime: Runtime, names: &[&str]) -> ImportError {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        ImportError::NotThere {
            runtime: runtime.title(),
            path: self.root.display_path(),
            looked_for: names.join(", "),
        }
    }
}

/// The agent's own folder: the configured one (`~` and paths that do not exist here are ignored), or else `workspace` below the
/// home. The report names a folder outside the root.
fn find_workspace(draft: &mut Draft, root: &SourcePath, configured: Option<&str>) -> SourcePath {
    let usual = root.join("workspace");
    let Some(configured) = configured else {
        return usual;
    };
    // The folder below `~` that contains this configuration: its parent is used as the home.
    let path = match (configured.strip_prefix("~/"), root.above_root()) {
        (Some(rest), Some(home)) => home.join(rest),
        (Some(rest), None) => PathBuf::from(rest),
        (None, _) => PathBuf::from(configured),
    };
    match root.place_named(&path).filter(SourcePath::is_dir) {
        Some(folder) => {
            if !folder.shares_root(root) {
                draft.report.add_carried(format!(
                    "the agent's own files from `{}`, outside of the old runtime's folder",
                    folder.display_path().display()
                ));
            }
            folder
        }
        None => usual,
    }
}

/// One vendor's account below `at`, in any known spelling.
fn vendor_account(settings: &Settings, at: &str, name: &str) -> VendorAccount {
    let here = format!("{at}.{name}");
    let key = ["api_key", "key", "token", "auth_token", "oauth_token"]
        .iter()
        .find_map(|word| {
            let path = format!("{here}.{word}");
            let value = settings.take_value(&path).and_then(secret_text)?;
            Some((value, settings.display_path(&path)))
        });
    let (key, place) = key.map_or((None, settings.display_path(&here)), |(key, place)| {
        (Some(key), place)
    });
    VendorAccount {
        key,
        place,
        base_url: settings.first_text(&[
            &format!("{here}.base_url"),
            &format!("{here}.api_base"),
            &format!("{here}.url"),
            &format!("{here}.uri"),
            &format!("{here}.endpoint"),
        ]),
        dialect: settings.text(&format!("{here}.api")),
    }
}

/// Adds the first model and its fallbacks, with accounts below `at`.
fn import_models(
    draft: &mut Draft,
    settings: &Settings,
    at: &str,
    choice: VendorChoice<'_>,
    models: &[String],
) {
    for model in models {
        providers::add_provider(draft, model, choice, &|name| vendor_account(settings, at, name));
    }
}

/// Reports accounts that no model uses, because the new files do not mention their keys.
fn unused_accounts(draft: &mut Draft, settings: &Settings, at: &str) {
    for name in settings.names(at) {
        let here = format!("{at}.{name}");
        let used = draft
            .providers
            .iter()
            .any(|provider| provider.name == crate::draft::fit_name(&name));
        if !used && settings.peek_value(&here).is_some_and(Value::is_object) {
            if vendor_account(settings, at, &name).key.is_some() {
                draft.report.add_left_out(
                    settings.display_path(&here),
                    "no model of the agent uses this account",
                );
            }
            settings.take_value(&here);
        }
    }
}

/// Reads the first existing JSON file of jobs.
fn import_jobs(draft: &mut Draft, files: &[SourcePath]) -> Result<(), ImportError> {
    for path in files.iter().filter(|path| path.is_file()) {
        let text = text_of(path)?;
        let name = path.file_name();
        let root: Value = serde_json::from_str(&text).map_err(|error| ImportError::Malformed {
            path: path.display_path(),
            format: "JSON",
            cause: format!("line {}, column {}", error.line(), error.column()),
        })?;
        crate::jobs::from_json(draft, &name, &root);
    }
    Ok(())
}

/// Reads the autonomy. Only a read-only agent stays read-only; all others need approvals.
fn import_autonomy(draft: &mut Draft, settings: &Settings, at: &str) {
    let level = settings.text(&format!("{at}.level"));
    match level.as_deref() {
        Some("read_only" | "readonly" | "read-only") => draft.observer = true,
        Some("supervised") | None => {}
        Some(other) => {
            let reason = format!(
                "`{other}` acted without asking; here the agent is `supervised` and every act is asked for"
            );
            draft
                .report
                .add_left_out(settings.display_path(&format!("{at}.level")), reason);
        }
    }
    for list in ["auto_approve", "allowed_commands", "allowed_tools"] {
        let path = format!("{at}.{list}");
        if !settings.list(&path).is_empty() {
            let reason = "it ran without a question; here it is asked for. Add an `allow` rule to policies/standard.yaml if you want that";
            draft.report.add_left_out(settings.display_path(&path), reason);
        }
    }
}

/// A budget per day or month in dollars, as millionths.
fn read_microusd(settings: &Settings, path: &str) -> Option<u64> {
    let text = settings.text(path)?;
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction: String = fraction.chars().chain("000000".chars()).take(6).collect();
    let whole: u64 = whole.parse().ok()?; // silent-ok: a word is no amount
    let fraction: u64 = fraction.parse().ok()?; // silent-ok: as above
    whole.checked_mul(1_000_000)?.checked_add(fraction)
}

/// Common sections that have no meaning here, with the reason.
const REASONS: &[(&str, &str)] = &[
    (
        "gateway",
        "the listener and its tokens are set by `clawk serve --listen` and `[http]`",
    ),
    (
        "server",
        "the listener and its tokens are set by `clawk serve --listen` and `[http]`",
    ),
    (
        "auth",
        "signing in to a vendor by browser is not carried over: use an API key",
    ),
    (
        "logging",
        "clawk logs to standard error (`-v`) and keeps its trace in the state directory",
    ),
    (
        "log",
        "clawk logs to standard error (`-v`) and keeps its trace in the state directory",
    ),
    (
        "observability",
        "use a Telemetry in the manifest or `clawk trace export`",
    ),
    (
        "metrics",
        "use a Telemetry in the manifest or `clawk trace export`",
    ),
    (
        "telemetry",
        "use a Telemetry in the manifest or `clawk trace export`",
    ),
    (
        "session",
        "clawk keeps one session per conversation, durable, and compacts it by itself",
    ),
    ("messages", "clawk has no such setting for messages"),
    (
        "memory",
        "clawk's stores have settings of their own: see Memory in the manifest reference",
    ),
    ("tunnel", "clawk opens no tunnel: set `public_url` of the channel"),
    (
        "tailscale",
        "clawk opens no tunnel: set `public_url` of the channel",
    ),
    (
        "browser",
        "clawk has no browser tool; an MCP server can bring one",
    ),
    ("sandbox", "each tool runs in the Sandbox of the new manifest"),
    ("security", "policy and Sandbox of the new manifest hold instead"),
    ("safety", "policy and Sandbox of the new manifest hold instead"),
    ("approval", "every act is asked for by the new policy"),
    ("autonomy", "every act is asked for by the new policy"),
    ("heartbeat", "a heartbeat is a `cron` channel here"),
    (
        "skills",
        "skills of the agent's own folder came over; others have to be imported one by one",
    ),
    (
        "hooks",
        "clawk runs no scripts at events: use a channel, a tool or a policy",
    ),
    (
        "secrets",
        "values stay where they are: give them to clawk by reference",
    ),
    ("meta", "it is about the old configuration file itself"),
    ("wizard", "it is about the old configuration file itself"),
    ("ui", "it is about the old runtime's own page"),
    ("temperature", "a Provider has no temperature in CKP"),
];

/// Reports every setting that no reader has used.
fn leave_rest(draft: &mut Draft, settings: &Settings) {
    for (place, path) in settings.untaken_members() {
        let words: Vec<String> = path.split('.').map(str::to_ascii_lowercase).collect();
        let known = REASONS.iter().find(|(word, _)| {
            words.first().is_some_and(|first| first == word)
                || words.last().is_some_and(|last| last.contains(word))
        });
        let reason = known.map_or("clawk has no setting for this", |(_, reason)| reason);
        draft.report.add_left_out(place, reason);
    }
}
