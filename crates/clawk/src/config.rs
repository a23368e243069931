//! `clawk.toml`: this machine's settings (DESIGN §5). Each crate defines the type of its section. This module combines, finds and
//! reads them.
//!
//! Long because it has every table of the file, each once.

mod doors;
mod egress;
mod pasted_keys;
mod postgres;
mod qdrant;
mod zone;

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clawk_channels::ChannelConfig;
use clawk_kernel::purse::{BudgetSettings, PriceTable};
use clawk_kernel::{
    Claims, InboxLimits, JudgeSettings, ModelCatalogue, OutboxLimits, PlanLimits, ResultExcerpt,
};
use clawk_manifest::model::{FilesystemMode, McpUri, NetworkMode, ShellMode};
use clawk_plan as plan;
use clawk_providers::ProviderConfig;
use clawk_sandbox as sandbox;
use clawk_secrets::{StoreConfig, env};
use clawk_tools::ToolsConfig;
use serde::{Deserialize, Serialize};

use crate::activity::ActivitySettings;
use crate::atlases::AtlasConfig;
use crate::http::HttpConfig;
pub(crate) use doors::{DoorsConfig, QueueDoor};
pub(crate) use egress::{LocalEgressConfig, SecretBinding};
#[cfg(feature = "postgres")]
pub(crate) use postgres::PostgresTlsMode as PostgresTls;
pub(crate) use postgres::{PostgresConfig, ServerUrl};
pub(crate) use qdrant::QdrantConfig;

use crate::keeper::{CheckpointsConfig, Retention};
use crate::peers::{PeerConfig, SwarmConfig};
use crate::state::server::StateConfig;

/// Name of the configuration file beside a manifest.
pub(crate) const BESIDE: &str = "clawk.toml";

/// All keys with their defaults. An unknown key is an error.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// State directory, relative to the file's folder. Absent: `$XDG_STATE_HOME/clawk/<agent>`. A table instead names a PostgreSQL
    /// server.
    pub(crate) state: Option<StateConfig>,
    /// The tools' working directory and the base of relative paths; relative to the file's folder. Absent: the manifest's folder.
    pub(crate) workdir: Option<PathBuf>,
    /// IANA name of the time zone in which the agent sees the time. Absent: the host's.
    #[serde(deserialize_with = "zone::deserialize_zone")]
    pub(crate) timezone: Option<String>,
    /// When a decision counts as durable.
    pub(crate) durability: DecisionDurability,
    /// Destinations of audit records.
    pub(crate) audit: crate::audit::Settings,
    /// Settings of `clawk run`.
    pub(crate) run: RunConfig,
    /// The secrets store that is asked before the environment.
    pub(crate) secrets_store: StoreConfig,
    /// Local settings of the manifest's providers, by name.
    pub(crate) providers: BTreeMap<String, ProviderConfig>,
    /// Sandbox of tools that the manifest declares without one.
    pub(crate) sandbox: Sandbox,
    /// Folders for references `claw://registry/NAME/…`; relative to the file's folder.
    pub(crate) registries: BTreeMap<String, PathBuf>,
    /// Screening of text.
    pub(crate) screen: ScreenConfig,
    /// The model that checks answers against the record.
    pub(crate) claims: ClaimsConfig,
    /// How much of a tool's result a model reads.
    pub(crate) output: Output,
    /// Network hosts that tools may reach from this machine.
    pub(crate) egress: LocalEgressConfig,
    /// Secrets that the egress proxy inserts into requests, by reference.
    pub(crate) secrets: BTreeMap<String, SecretBinding>,
    /// Programs that run the manifest's tools, by name.
    pub(crate) tools: ToolsConfig,
    /// When the journal is signed, and where signatures are copied to.
    pub(crate) checkpoints: CheckpointsConfig,
    /// The Atlases that govern the agent.
    pub(crate) atlases: AtlasConfig,
    /// The HTTP listener.
    pub(crate) http: HttpConfig,
    /// Entry points without a listener: folders and queues.
    pub(crate) doors: DoorsConfig,
    /// How long contents are kept.
    pub(crate) retention: Retention,
    /// Spending limits of the agent.
    pub(crate) budgets: BudgetSettings,
    /// Prices of models.
    pub(crate) prices: PriceTable,
    /// The catalogue of models.
    pub(crate) models: ModelsConfig,
    /// Limits for waiting and concurrent messages.
    pub(crate) inbox: InboxLimits,
    /// Limits for the delivery of answers.
    pub(crate) outbox: OutboxLimits,
    /// Local settings of the manifest's channels, by name.
    pub(crate) channels: BTreeMap<String, ChannelConfig>,
    /// Conversations that get approval requests if nobody in the original conversation may answer.
    pub(crate) approvals: ApprovalsConfig,
    /// Swarm settings that the manifest does not have.
    pub(crate) swarm: SwarmConfig,
    /// Peers of the Swarm, by the names of their identities.
    pub(crate) peers: BTreeMap<String, PeerConfig>,
    /// Local settings of memory stores.
    pub(crate) memory: MemoryConfig,
    /// Backups of what calls overwrite.
    pub(crate) undo: UndoConfig,
    /// Limits for a plan step of a skill's world model.
    pub(crate) world_models: PlanLimits,
    /// The server of memory stores on PostgreSQL.
    pub(crate) postgres: PostgresConfig,
    /// The server of memory stores on Qdrant.
    pub(crate) qdrant: QdrantConfig,
}

/// `[models]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ModelsConfig {
    /// File with a catalogue of models that replaces the built-in one; relative to the file's folder.
    pub(crate) catalogue: Option<PathBuf>,
}

impl ModelsConfig {
    /// Loads the catalogue in force.
    ///
    /// # Errors
    /// The file can't be read, or a row is not plausible.
    fn load_catalogue(&self) -> Result<Arc<ModelCatalogue>> {
        let Some(file) = &self.catalogue else {
            return Ok(ModelCatalogue::built_in());
        };
        let text = fs::read_to_string(file).with_context(|| format!("can't read `{}`", file.display()))?;
        let read = ModelCatalogue::parse(&text);
        Ok(Arc::new(read.with_context(|| {
            format!("the catalogue of models `{}` is not valid", file.display())
        })?))
    }
}

/// `[undo]`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UndoConfig {
    /// What calls overwrite is backed up.
    pub(crate) enabled: bool,
    /// Largest backup for one call, in MiB.
    pub(crate) max_mb: u64,
    /// Largest size of all backups, in MiB.
    pub(crate) total_mb: u64,
}

impl Default for UndoConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            max_mb: 64,
            total_mb: 1024,
        }
    }
}

impl UndoConfig {
    pub(crate) const fn limits(self) -> clawk_tools::undo::Limits {
        clawk_tools::undo::Limits {
            call_bytes: self.max_mb.saturating_mul(1 << 20),
            total_bytes: self.total_mb.saturating_mul(1 << 20),
        }
    }
}

/// `[memory]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MemoryConfig {
    /// The value of `{tenant_id}` in stores' paths.
    pub(crate) tenant_id: Option<String>,
    /// Name of the secret with the key of encrypted stores: 64 hexadecimal digits.
    pub(crate) encryption_key: Option<String>,
    /// `[memory.NAME]`: settings by store name. An unknown store is an error.
    #[serde(flatten)]
    pub(crate) stores: BTreeMap<String, MemoryStore>,
}

/// `[memory.NAME]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MemoryStore {
    /// The turns of every sender may recall every entry, whoever it came from.
    pub(crate) across_senders: bool,
    /// MCP server of a store with `backend: custom`: `stdio:///…` or a URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
    /// Environment variables for that server, besides `PATH`, `HOME` and `LANG`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    /// Environment variables with secret values: variable name to secret reference.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) secret_env: BTreeMap<String, String>,
    /// HTTP headers with secret values for the server: header name to secret reference.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) secret_headers: BTreeMap<String, String>,
    /// Host paths that the server sees read-only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) read_paths: Vec<PathBuf>,
    /// Time limit for an answer of that server, in milliseconds; 30 seconds if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<NonZeroU64>,
}

impl MemoryStore {
    /// Returns the time limit for an answer of the store's server.
    pub(crate) fn answer_timeout(&self) -> Duration {
        const DEFAULT: Duration = Duration::from_secs(30);
        self.timeout_ms
            .map_or(DEFAULT, |limit| Duration::from_millis(limit.get()))
    }

    /// Returns the address of the store's server; `None` if it has none.
    ///
    /// # Errors
    /// What is wrong with the address.
    pub(crate) fn server_uri(&self) -> Result<Option<McpUri>, String> {
        let uri = self.server.clone().map(McpUri::try_from).transpose();
        uri.map_err(|error| error.to_string())
    }

    /// Returns the secret references in these settings.
    pub(crate) fn secret_names(&self) -> impl Iterator<Item = &String> {
        self.secret_env.values().chain(self.secret_headers.values())
    }
}

impl MemoryConfig {
    pub(crate) fn across_senders(&self) -> std::collections::BTreeSet<String> {
        let open = self.stores.iter().filter(|(_, store)| store.across_senders);
        open.map(|(name, _)| name.clone()).collect()
    }

    /// Returns warnings for stores that show one sender's text to other senders. A start and `validate` print them.
    pub(crate) fn open_to_all(&self) -> Vec<String> {
        let warning = |name: String| {
            format!(
                "`[memory.{name}] across_senders`: every turn may recall what any sender said to the store `{name}`, and tell it to \
                 whoever asks"
            )
        };
        self.across_senders().into_iter().map(warning).collect()
    }
}

/// When a decision counts as durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DecisionDurability {
    /// The decision is written to disk. A power failure loses nothing that was acted on.
    #[default]
    Durable,
    /// The decision is passed to the operating system. A crash of the process loses nothing; a power failure may.
    Relaxed,
}

/// `[run]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RunConfig {
    /// The first message of `clawk run`, if the user gives none.
    pub(crate) opening: Option<String>,
}

/// `[approvals]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ApprovalsConfig {
    /// Conversations as `CHANNEL:CONVERSATION`. Each of them gets every request.
    pub(crate) to: Vec<String>,
}

/// `[screen]`: the model that judges text if a policy says `llm-based` or `hybrid`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ScreenConfig {
    /// Name of the provider; the manifest's first one if absent.
    pub(crate) judge: Option<String>,
    /// Time limit for judging one text, in milliseconds. After it the text counts as suspect.
    pub(crate) judge_timeout_ms: u64,
}

impl Default for ScreenConfig {
    fn default() -> Self {
        let JudgeSettings { provider, timeout_ms } = JudgeSettings::default();
        Self {
            judge: provider,
            judge_timeout_ms: timeout_ms,
        }
    }
}

/// `[claims]`: the model that finds sentences of an answer that the turn's record does not support.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClaimsConfig {
    /// Name of the provider; answers are not checked if absent.
    pub(crate) judge: Option<String>,
    /// Time limit for checking one answer, in milliseconds. After it the answer is sent unchecked, and its record line says so.
    pub(crate) judge_timeout_ms: u64,
}

impl Default for ClaimsConfig {
    fn default() -> Self {
        Self {
            judge: None,
            judge_timeout_ms: Claims::DEFAULT_TIMEOUT_MS,
        }
    }
}

impl ClaimsConfig {
    /// Converts the settings for the kernel.
    pub(crate) fn to_claims(&self) -> Option<Claims> {
        self.judge.clone().map(|judge| Claims {
            judge,
            timeout_ms: self.judge_timeout_ms,
        })
    }
}

/// `[output]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Output {
    /// Longest result that a model reads completely, in bytes. Of a longer one it reads the beginning and the end, and can read the
    /// rest with `output-read`.
    #[serde(deserialize_with = "shown_bytes")]
    pub(crate) shown_bytes: usize,
}

/// Upper limit for `shown_bytes`.
const MAX_SHOWN_BYTES: usize = 1 << 20;

impl Default for Output {
    fn default() -> Self {
        let (ResultExcerpt::Ends(shown_bytes) | ResultExcerpt::Head(shown_bytes)) = ResultExcerpt::default();
        Self { shown_bytes }
    }
}

fn shown_bytes<'de, D: serde::Deserializer<'de>>(given: D) -> Result<usize, D::Error> {
    let bytes = usize::deserialize(given)?;
    if (ResultExcerpt::MIN_BYTES..=MAX_SHOWN_BYTES).contains(&bytes) {
        return Ok(bytes);
    }
    let least = ResultExcerpt::MIN_BYTES;
    Err(serde::de::Error::custom(format!(
        "`shown_bytes` is {bytes}; it must lie between {least} and {MAX_SHOWN_BYTES}"
    )))
}

impl ScreenConfig {
    /// Converts the settings for the kernel.
    pub(crate) fn judge_settings(&self) -> JudgeSettings {
        JudgeSettings {
            provider: self.judge.clone(),
            timeout_ms: self.judge_timeout_ms,
        }
    }
}

/// `[sandbox]`: the sandbox of tools without a declared one. The default is the most restrictive.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sandbox {
    /// These tools may run at level `none`, inside the agent's process. Otherwise at level `process`.
    pub(crate) allow_none: bool,
    /// File access of these tools. `read-only` and `scoped` mean the working directory.
    pub(crate) filesystem: FilesystemMode,
    /// Network access of these tools.
    pub(crate) network: NetworkMode,
    /// Shell access of these tools.
    pub(crate) shell: ShellMode,
    /// Largest number of prewarmed boxes of level `process` for one sandbox configuration; 0: none.
    pub(crate) warm_boxes: usize,
    /// Largest number of prewarmed boxes of all configurations.
    pub(crate) warm_boxes_total: usize,
    /// Idle time after which a prewarmed box ends, in milliseconds.
    pub(crate) warm_idle_ms: u64,
    /// Free disk space in MiB below which a run that may write there is ended; 0: no limit.
    pub(crate) min_free_disk_mb: u64,
    /// Free inodes below which a run that may write to the disk is ended; 0: no limit.
    pub(crate) min_free_files: u64,
    /// `[sandbox.container]`: settings of level `container`.
    pub(crate) container: sandbox::container::Settings,
    /// `[sandbox.vm]`: settings of level `vm`.
    pub(crate) vm: sandbox::VmSettings,
}

impl Default for Sandbox {
    fn default() -> Self {
        let (warm, free) = (sandbox::WarmPoolLimits::default(), sandbox::MinFree::default());
        Self {
            allow_none: false,
            filesystem: FilesystemMode::Deny,
            network: NetworkMode::Deny,
            shell: ShellMode::Deny,
            warm_boxes: warm.boxes,
            warm_boxes_total: warm.boxes_total,
            warm_idle_ms: warm.idle_ms,
            min_free_disk_mb: free.disk_mb,
            min_free_files: free.files,
            container: sandbox::container::Settings::default(),
            vm: sandbox::VmSettings::default(),
        }
    }
}

impl Sandbox {
    /// Returns the free space and inodes that must remain on each disk.
    pub(crate) fn min_free(&self) -> sandbox::MinFree {
        sandbox::MinFree {
            disk_mb: self.min_free_disk_mb,
            files: self.min_free_files,
        }
    }

    /// Converts the settings for the plan compiler.
    pub(crate) fn plan_defaults(&self) -> plan::PlanDefaults {
        plan::PlanDefaults {
            allow_none: self.allow_none,
            limits: plan::Limits::default(),
            shell: match self.shell {
                ShellMode::Deny => plan::ShellMode::Deny,
                ShellMode::Restricted => plan::ShellMode::Restricted,
                ShellMode::Full => plan::ShellMode::Full,
            },
            network: match self.network {
                NetworkMode::Deny => plan::NetworkMode::Deny,
                NetworkMode::Allowlist => plan::NetworkMode::Allowlist,
                NetworkMode::AllowAll => plan::NetworkMode::AllowAll,
            },
            filesystem: match self.filesystem {
                FilesystemMode::Deny => plan::FsMode::Deny,
                FilesystemMode::ReadOnly => plan::FsMode::ReadOnly,
                FilesystemMode::Scoped => plan::FsMode::Scoped,
                FilesystemMode::Full => plan::FsMode::Full,
            },
        }
    }
}

/// The configuration in force, and its source.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// All keys.
    pub(crate) settings: Settings,
    /// The configuration file; `None`: all defaults.
    pub(crate) file: Option<PathBuf>,
    /// The file was found beside the manifest. The user did not name it.
    pub(crate) beside: bool,
    /// File references of the manifest may point outside its folder: `--allow-outside` (R9).
    pub(crate) allow_outside: bool,
    /// The activity log that a served agent writes to standard error; `None`: the agent is not served, or has none.
    pub(crate) activity: Option<ActivitySettings>,
    /// The keys that the file sets.
    given: toml::Table,
}

/// `--allow-outside`, of every verb that reads a manifest.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct AllowOutsideArgs {
    /// Let file references leave the manifest's folder
    #[arg(long)]
    pub(crate) allow_outside: bool,
}

/// One key of the configuration in force.
#[derive(Debug, Serialize)]
pub(crate) struct InForce {
    /// The dotted name of the key.
    pub(crate) key: String,
    /// The key's value.
    pub(crate) value: toml::Value,
    /// `default`, or the path of the file.
    pub(crate) from: String,
}

impl Config {
    /// Reads the file named by `--config`, else `clawk.toml` beside the manifest, else the user's own file.
    ///
    /// # Errors
    /// The named file is missing, or a file can't be read or has an unknown key. The error gives line and column.
    pub(crate) fn load(flag: Option<&Path>, manifest: Option<&Path>) -> Result<Self> {
        let beside = || manifest.map(|path| path.parent().unwrap_or(Path::new("")).join(BESIDE));
        let found = beside().filter(|file| flag.is_none() && file.is_file());
        let is_beside = found.is_some();
        let file = match flag {
            Some(file) => Some(file.to_owned()),
            None => found.or_else(|| users_own().filter(|file| file.is_file())),
        };
        let Some(file) = file else {
            return Ok(Self {
                settings: Settings::default(),
                file: None,
                beside: false,
                allow_outside: false,
                activity: None,
                given: toml::Table::new(),
            });
        };
        let text = fs::read_to_string(&file).with_context(|| format!("can't read `{}`", file.display()))?;
        let (mut settings, given) =
            parse(&text).with_context(|| format!("`{}` is not valid", file.display()))?;
        let folder = file.parent().unwrap_or(Path::new(""));
        settings.audit.file = settings.audit.file.map(|file| folder.join(file));
        settings.audit.sqlite = settings.audit.sqlite.map(|file| folder.join(file));
        settings.state = settings.state.map(|state| state.relative_to(folder));
        settings.workdir = settings.workdir.map(|workdir| folder.join(workdir));
        settings.checkpoints.file = settings.checkpoints.file.map(|file| folder.join(file));
        settings.models.catalogue = settings.models.catalogue.map(|file| folder.join(file));
        settings.prices.catalogue = settings.models.load_catalogue()?;
        settings.postgres.ca_file = settings.postgres.ca_file.map(|file| folder.join(file));
        for registry in settings.registries.values_mut() {
            *registry = folder.join(&*registry);
        }
        Ok(Self {
            settings,
            file: Some(file),
            beside: is_beside,
            allow_outside: false,
            activity: None,
            given,
        })
    }

    /// Applies the command line's setting for file references.
    #[must_use]
    pub(crate) fn with_outside_access(mut self, outside: AllowOutsideArgs) -> Self {
        self.allow_outside = outside.allow_outside;
        self
    }

    /// Removes the programs that a file beside the manifest names. Used by commands that only inspect and must run nothing (S.12).
    #[must_use]
    pub(crate) fn running_nothing(mut self) -> Self {
        if self.beside {
            self.settings.secrets_store.command = None;
            self.settings.sandbox.container = sandbox::container::Settings::default();
            self.settings.sandbox.vm = sandbox::VmSettings::default();
        }
        self
    }

    /// Returns the folder for relative paths in the file.
    pub(crate) fn folder(&self) -> PathBuf {
        let folder = self
            .file
            .as_deref()
            .and_then(Path::parent)
            .unwrap_or(Path::new(""));
        if folder.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            folder.to_owned()
        }
    }

    /// Returns the limits for prewarmed boxes.
    pub(crate) fn warm_pool_limits(&self) -> sandbox::WarmPoolLimits {
        let given = &self.settings.sandbox;
        sandbox::WarmPoolLimits {
            boxes: given.warm_boxes,
            boxes_total: given.warm_boxes_total,
            idle_ms: given.warm_idle_ms,
        }
    }

    /// Returns the local settings of the levels above `process`. These levels store their files in `cache`.
    pub(crate) fn level_settings(&self, cache: Option<&Path>) -> sandbox::LevelSettings {
        let mut container = self.settings.sandbox.container.clone();
        container.image = container.image.map(|image| self.folder().join(image));
        let mut vm = self.settings.sandbox.vm.clone();
        vm.kernel = vm.kernel.map(|kernel| self.folder().join(kernel));
        sandbox::LevelSettings {
            container,
            vm,
            cache: cache.map(Path::to_path_buf),
        }
    }

    /// Returns every key with its value and source, sorted.
    pub(crate) fn in_force(&self) -> Result<Vec<InForce>> {
        let table = toml::Table::try_from(&self.settings)?;
        let file = self
            .file
            .as_deref()
            .map(|file| file.display().to_string())
            .unwrap_or_default();
        let mut keys = Vec::new();
        flatten_table("", &table, Some(&self.given), &file, &mut keys);
        Ok(keys)
    }
}

/// Returns the parser's message. A line with a word that looks like a secret is not repeated.
fn toml_error_text(error: &toml::de::Error, text: &str) -> String {
    let whole = error.to_string();
    let word_end = |c: char| c.is_whitespace() || "\"'`,=[]{}".contains(c);
    let mut words = whole
        .split(word_end)
        .chain(whole.split(|c: char| word_end(c) || c == '.'));
    if !words.any(clawk_proto::secret_name::looks_like_key) {
        return whole.trim_end().to_owned();
    }
    let start = error.span().map_or(0, |span| span.start);
    let line = text.get(..start).unwrap_or_default().matches('\n').count() + 1;
    format!(
        "line {line} can't be read, and is not shown, because it seems to hold a secret: only the secret's name belongs here, its value \
         into an environment variable or a file below `$CLAW_SECRETS_DIR`; replace the key, because it has stood in a file"
    )
}

fn parse(text: &str) -> Result<(Settings, toml::Table)> {
    // The parser's message has the line, the column, the text of the line, and the expected value.
    let settings: Settings =
        toml::from_str(text).map_err(|error| anyhow!("{}", toml_error_text(&error, text)))?;
    let given: toml::Table = toml::from_str(text)?;
    pasted_keys::refuse_pasted_keys(&given, text)?;
    for (name, folder) in &settings.registries {
        if folder.to_string_lossy().contains("://") {
            anyhow::bail!(
                "`[registries] {name}` is an address, and a registry is a folder: clawk fetches none; clone or mount it, and write its folder"
            );
        }
    }
    Ok((settings, given))
}

fn flatten_table(
    prefix: &str,
    table: &toml::Table,
    given: Option<&toml::Table>,
    file: &str,
    keys: &mut Vec<InForce>,
) {
    for (name, value) in table {
        let key = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}.{name}")
        };
        let here = given.and_then(|given| given.get(name));
        match value {
            toml::Value::Table(inner) => {
                flatten_table(&key, inner, here.and_then(toml::Value::as_table), file, keys)
            }
            value => {
                let from = if here.is_some() {
                    file.to_owned()
                } else {
                    "default".to_owned()
                };
                keys.push(InForce {
                    key,
                    value: value.clone(),
                    from,
                });
            }
        }
    }
}

/// Returns the path of the user's own configuration, if there is one.
pub(crate) fn users_own() -> Option<PathBuf> {
    let base = env::path_variable("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let base = base.or_else(|| env::path_variable("HOME").map(|home| home.join(".config")))?;
    Some(base.join("clawk").join("config.toml"))
}

#[cfg(test)]
mod tests {
    use super::{Config, parse};

    #[test]
    fn nothing_given_is_all_defaults() {
        let (settings, _) = parse("").unwrap();
        assert!(!settings.sandbox.allow_none);
        assert!(settings.run.opening.is_none());
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_line() {
        for text in ["\nallow_nothing = 1\n", "\n[sandbox]\nallow_non = true\n"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("unknown field"), "{error}");
            assert!(error.contains("line "), "{error}");
        }
    }

    #[test]
    fn says_where_each_key_is_from() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("clawk.toml");
        std::fs::write(
            &file,
            "durability = \"relaxed\"\nstate = \"here\"\n[sandbox]\nallow_none = true\n",
        )
        .unwrap();
        let config = Config::load(Some(&file), None).unwrap();
        assert_eq!(
            config.settings.state.as_ref().and_then(super::StateConfig::dir),
            Some(folder.path().join("here").as_path())
        );
        let keys = config.in_force().unwrap();
        let from = |key: &str| {
            keys.iter()
                .find(|k| k.key == key)
                .map(|k| k.from.as_str())
                .unwrap()
        };
        assert_eq!(from("sandbox.allow_none"), file.display().to_string());
        assert_eq!(from("durability"), file.display().to_string());
        assert_eq!(from("sandbox.network"), "default");
    }

    #[test]
    fn every_key_is_documented() {
        let page = include_str!("../../../docs/reference/config.md");
        for key in Config::load(None, Some(std::path::Path::new("/nowhere/claw.yaml")))
            .unwrap()
            .in_force()
            .unwrap()
        {
            let last = key.key.rsplit('.').next().unwrap();
            assert!(
                page.contains(&format!("`{last}`")),
                "docs/reference/config.md does not name `{}`",
                key.key
            );
        }
    }
}
