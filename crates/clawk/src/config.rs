//! `clawk.toml`: what is local to this machine (DESIGN §5). Each crate owns the type of its section; here they are
//! composed, found and read.
//!
//! Long because it has every table of the file, each once.

mod doors;
mod egress;
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

/// The configuration beside a manifest.
pub(crate) const BESIDE: &str = "clawk.toml";

/// Every key, with its default. An unknown key is an error.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// State directory; relative to the file's folder. Absent: `$XDG_STATE_HOME/clawk/<agent>`. Or a table: a PostgreSQL server.
    pub(crate) state: Option<StateConfig>,
    /// Where tools start and relative paths begin; relative to the file's folder. Absent: the manifest's folder.
    pub(crate) workdir: Option<PathBuf>,
    /// IANA name of the time zone in which the agent is told the time; the host's when absent.
    #[serde(deserialize_with = "zone::known")]
    pub(crate) timezone: Option<String>,
    /// When a decision counts as durable.
    pub(crate) durability: DecisionDurability,
    /// Where audit records go.
    pub(crate) audit: crate::audit::Settings,
    /// `clawk run`.
    pub(crate) run: RunConfig,
    /// Where secrets come from before the environment.
    pub(crate) secrets_store: StoreConfig,
    /// What is local about a provider of the manifest, by its name.
    pub(crate) providers: BTreeMap<String, ProviderConfig>,
    /// Tools that the manifest declares without a sandbox.
    pub(crate) sandbox: Sandbox,
    /// Folders that `claw://registry/NAME/…` stands for; relative to the file's folder.
    pub(crate) registries: BTreeMap<String, PathBuf>,
    /// Screening of text.
    pub(crate) screen: ScreenConfig,
    /// Who judges answers before they leave.
    pub(crate) claims: ClaimsConfig,
    /// What a model reads of tools' results.
    pub(crate) output: Output,
    /// Where tools may go on this machine.
    pub(crate) egress: LocalEgressConfig,
    /// Secrets that are put in at the boundary, by reference.
    pub(crate) secrets: BTreeMap<String, SecretBinding>,
    /// What runs a tool of the manifest, by its name.
    pub(crate) tools: ToolsConfig,
    /// When the journal is signed, and where else the signatures go.
    pub(crate) checkpoints: CheckpointsConfig,
    /// Atlases that govern.
    pub(crate) atlases: AtlasConfig,
    /// The listener.
    pub(crate) http: HttpConfig,
    /// Doors that are no listener: folders and queues.
    pub(crate) doors: DoorsConfig,
    /// How long contents are kept.
    pub(crate) retention: Retention,
    /// What the agent may use up.
    pub(crate) budgets: BudgetSettings,
    /// What models cost.
    pub(crate) prices: PriceTable,
    /// What is known of models.
    pub(crate) models: ModelsConfig,
    /// How much waits, and how much runs at once.
    pub(crate) inbox: InboxLimits,
    /// How long a delivery is tried.
    pub(crate) outbox: OutboxLimits,
    /// What is local about a channel of the manifest, by its name.
    pub(crate) channels: BTreeMap<String, ChannelConfig>,
    /// Where questions go whose conversation has nobody who may answer.
    pub(crate) approvals: ApprovalsConfig,
    /// What the manifest does not say of its Swarm.
    pub(crate) swarm: SwarmConfig,
    /// Who members of the Swarm are, by the names of their identities.
    pub(crate) peers: BTreeMap<String, PeerConfig>,
    /// What is local about stores of memory.
    pub(crate) memory: MemoryConfig,
    /// What is kept of what calls overwrite.
    pub(crate) undo: UndoConfig,
    /// How much a plan step of a skill's world model may take.
    pub(crate) world_models: PlanLimits,
    /// The server of stores on PostgreSQL.
    pub(crate) postgres: PostgresConfig,
    /// The server of stores on Qdrant.
    pub(crate) qdrant: QdrantConfig,
}

/// `[models]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ModelsConfig {
    /// A catalogue of models in the place of the one that is built in; relative to the file's folder.
    pub(crate) catalogue: Option<PathBuf>,
}

impl ModelsConfig {
    /// The catalogue in force.
    ///
    /// # Errors
    /// The file can't be read, or a row of it can't be meant.
    fn load(&self) -> Result<Arc<ModelCatalogue>> {
        let Some(file) = &self.catalogue else {
            return Ok(ModelCatalogue::shipped());
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
    /// What calls overwrite is kept.
    pub(crate) enabled: bool,
    /// The most that is kept for one call, MiB.
    pub(crate) max_mb: u64,
    /// The most that is kept for all calls, MiB.
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
    /// What `{tenant_id}` stands for in stores' paths.
    pub(crate) tenant_id: Option<String>,
    /// The secret that holds the key of encrypted stores: 64 hexadecimal digits.
    pub(crate) encryption_key: Option<String>,
    /// `[memory.NAME]`: by a store's name. What is none of these is an error.
    #[serde(flatten)]
    pub(crate) stores: BTreeMap<String, MemoryStore>,
}

/// `[memory.NAME]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MemoryStore {
    /// Everybody's turns may recall its entries, whoever said them.
    pub(crate) across_senders: bool,
    /// The MCP server that keeps a store of `backend: custom`: `stdio:///…` or a URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
    /// Variables for that server, besides `PATH`, `HOME` and `LANG`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    /// Variables whose values are secrets: variable name to secret reference.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) secret_env: BTreeMap<String, String>,
    /// Headers for a server over HTTP, whose values are secrets: header name to secret reference.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) secret_headers: BTreeMap<String, String>,
    /// Host paths that the server sees read-only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) read_paths: Vec<PathBuf>,
    /// How long that server may take for an answer, milliseconds; 30 seconds when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<NonZeroU64>,
}

impl MemoryStore {
    /// How long its server may take for an answer.
    pub(crate) fn limit(&self) -> Duration {
        const DEFAULT: Duration = Duration::from_secs(30);
        self.timeout_ms
            .map_or(DEFAULT, |limit| Duration::from_millis(limit.get()))
    }

    /// Where its server is; `None`: it has none.
    ///
    /// # Errors
    /// What is wrong with the address.
    pub(crate) fn server(&self) -> Result<Option<McpUri>, String> {
        let uri = self.server.clone().map(McpUri::try_from).transpose();
        uri.map_err(|error| error.to_string())
    }

    /// Secrets that it names.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &String> {
        self.secret_env.values().chain(self.secret_headers.values())
    }
}

impl MemoryConfig {
    pub(crate) fn across_senders(&self) -> std::collections::BTreeSet<String> {
        let open = self.stores.iter().filter(|(_, store)| store.across_senders);
        open.map(|(name, _)| name.clone()).collect()
    }

    /// What a start and `validate` warn of: stores that bring what one sender said before others.
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
    /// It is on the disk: a power failure loses nothing that was acted on.
    #[default]
    Durable,
    /// The operating system has it: a crash of the process loses nothing, a power failure may.
    Relaxed,
}

/// `[run]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RunConfig {
    /// Said first by itself when `clawk run` is given no message.
    pub(crate) opening: Option<String>,
}

/// `[approvals]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ApprovalsConfig {
    /// `CHANNEL:CONVERSATION`, each of which is asked.
    pub(crate) to: Vec<String>,
}

/// `[screen]`: who judges text where a policy says `llm-based` or `hybrid`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ScreenConfig {
    /// A provider of the manifest; its first one when absent.
    pub(crate) judge: Option<String>,
    /// How long one text's judgement may take; past it the text counts as suspect.
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

/// `[claims]`: who names the sentences of an answer that the record of its turn does not support.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClaimsConfig {
    /// A provider of the manifest; nobody judges when absent.
    pub(crate) judge: Option<String>,
    /// How long one answer's judgement may take; past it the answer leaves unjudged, and its record line says so.
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
    /// As the kernel takes it.
    pub(crate) fn claims(&self) -> Option<Claims> {
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
    /// A longer result is shown with its beginning and its end, so many bytes together; the rest is read by `output-read`.
    #[serde(deserialize_with = "shown_bytes")]
    pub(crate) shown_bytes: usize,
}

/// Most of one result that a model reads at once, bytes.
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
    /// As the kernel takes it.
    pub(crate) fn judge(&self) -> JudgeSettings {
        JudgeSettings {
            provider: self.judge.clone(),
            timeout_ms: self.judge_timeout_ms,
        }
    }
}

/// `[sandbox]`: what holds for tools without a declared sandbox; the most restrictive by default.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sandbox {
    /// They may run at level `none`, inside the agent; else `process`.
    pub(crate) allow_none: bool,
    /// Their file access; `read-only` and `scoped` mean the working directory.
    pub(crate) filesystem: FilesystemMode,
    /// Their network.
    pub(crate) network: NetworkMode,
    /// Their shell.
    pub(crate) shell: ShellMode,
    /// Boxes of level `process` that wait for calls of one configuration, at most; 0: none.
    pub(crate) warm_boxes: usize,
    /// Boxes that wait, of all configurations together.
    pub(crate) warm_boxes_total: usize,
    /// A box that waits ends when nobody has used it for so long, milliseconds.
    pub(crate) warm_idle_ms: u64,
    /// A run that may write to a disk with less left than this is ended, MiB; 0: none is.
    pub(crate) min_free_disk_mb: u64,
    /// A run that may write to a disk with room for fewer files than this is ended; 0: none is.
    pub(crate) min_free_files: u64,
    /// `[sandbox.container]`: what serves level `container`.
    pub(crate) container: sandbox::container::Settings,
    /// `[sandbox.vm]`: what serves level `vm`.
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
    /// What of every disk must stay free.
    pub(crate) fn min_free(&self) -> sandbox::MinFree {
        sandbox::MinFree {
            disk_mb: self.min_free_disk_mb,
            files: self.min_free_files,
        }
    }

    /// As a plan takes it.
    pub(crate) fn defaults(&self) -> plan::PlanDefaults {
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

/// The configuration in force, and where it came from.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// All keys.
    pub(crate) settings: Settings,
    /// The file; none: all defaults.
    pub(crate) file: Option<PathBuf>,
    /// The file was found beside the manifest: nobody but the manifest's folder named it.
    pub(crate) beside: bool,
    /// File references of a manifest may leave its folder: `--allow-outside` (R9).
    pub(crate) allow_outside: bool,
    /// The keys that the file gives.
    given: toml::Table,
}

/// `--allow-outside`, of every verb that reads a manifest.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct AllowOutsideArgs {
    /// Let file references leave the manifest's folder
    #[arg(long)]
    pub(crate) allow_outside: bool,
}

/// One key in force.
#[derive(Debug, Serialize)]
pub(crate) struct InForce {
    /// Dotted.
    pub(crate) key: String,
    /// Its value.
    pub(crate) value: toml::Value,
    /// `default`, or the file.
    pub(crate) from: String,
}

impl Config {
    /// Reads the file that `--config` names; else `clawk.toml` beside the manifest; else the user's own.
    ///
    /// # Errors
    /// The named file is missing, or a file can't be read or holds something unknown: with line and column.
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
                given: toml::Table::new(),
            });
        };
        let text = fs::read_to_string(&file).with_context(|| format!("can't read `{}`", file.display()))?;
        let (mut settings, given) =
            parse(&text).with_context(|| format!("`{}` is not valid", file.display()))?;
        let folder = file.parent().unwrap_or(Path::new(""));
        settings.audit.file = settings.audit.file.map(|file| folder.join(file));
        settings.audit.sqlite = settings.audit.sqlite.map(|file| folder.join(file));
        settings.state = settings.state.map(|state| state.below(folder));
        settings.workdir = settings.workdir.map(|workdir| folder.join(workdir));
        settings.checkpoints.file = settings.checkpoints.file.map(|file| folder.join(file));
        settings.models.catalogue = settings.models.catalogue.map(|file| folder.join(file));
        settings.prices.catalogue = settings.models.load()?;
        settings.postgres.ca_file = settings.postgres.ca_file.map(|file| folder.join(file));
        for registry in settings.registries.values_mut() {
            *registry = folder.join(&*registry);
        }
        Ok(Self {
            settings,
            file: Some(file),
            beside: is_beside,
            allow_outside: false,
            given,
        })
    }

    /// With what the command line says of file references.
    #[must_use]
    pub(crate) fn outside(mut self, outside: AllowOutsideArgs) -> Self {
        self.allow_outside = outside.allow_outside;
        self
    }

    /// Without the programs that a file beside the manifest names: for verbs that look and run nothing (S.12).
    #[must_use]
    pub(crate) fn running_nothing(mut self) -> Self {
        if self.beside {
            self.settings.secrets_store.command = None;
            self.settings.sandbox.container = sandbox::container::Settings::default();
            self.settings.sandbox.vm = sandbox::VmSettings::default();
        }
        self
    }

    /// The folder that relative paths of the file start from.
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

    /// How many boxes wait for calls.
    pub(crate) fn warm(&self) -> sandbox::WarmPoolLimits {
        let given = &self.settings.sandbox;
        sandbox::WarmPoolLimits {
            boxes: given.warm_boxes,
            boxes_total: given.warm_boxes_total,
            idle_ms: given.warm_idle_ms,
        }
    }

    /// What is local about the levels above `process`; what they keep lies in `cache`.
    pub(crate) fn levels(&self, cache: Option<&Path>) -> sandbox::LevelSettings {
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

    /// Every key with its value and origin, in order.
    pub(crate) fn in_force(&self) -> Result<Vec<InForce>> {
        let table = toml::Table::try_from(&self.settings)?;
        let file = self
            .file
            .as_deref()
            .map(|file| file.display().to_string())
            .unwrap_or_default();
        let mut keys = Vec::new();
        flatten("", &table, Some(&self.given), &file, &mut keys);
        Ok(keys)
    }
}

fn parse(text: &str) -> Result<(Settings, toml::Table)> {
    // The parser's words: line, column, the line itself, and what it expected.
    let settings: Settings =
        toml::from_str(text).map_err(|error| anyhow!("{}", error.to_string().trim_end()))?;
    Ok((settings, toml::from_str(text)?))
}

fn flatten(
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
                flatten(&key, inner, here.and_then(toml::Value::as_table), file, keys)
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

/// Where the user's own configuration lies, if there is one.
pub(crate) fn users_own() -> Option<PathBuf> {
    let base = env::path("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let base = base.or_else(|| env::path("HOME").map(|home| home.join(".config")))?;
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
