//! Consent (S.12): lists the programs that a folder's own files would start on this machine, and the secrets that they would
//! receive, and records whether the user agreed. A manifest and the `clawk.toml` beside it may come with a cloned folder.
//! Inspecting them runs nothing; starting the agent asks once.
//!
//! Consent is stored as a digest over everything that would run: commands with their environment, and the content of those files of
//! theirs that are in the folder.
//!
//! Long because each section that names a program or a receiver has a piece here.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_channels::ChannelConfig;
use clawk_egress::Url;
use clawk_kernel::sheet::visible_text;
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_kernel::witness::{self, digest_of};
use clawk_manifest::Manifest;
use clawk_manifest::model::McpUri;
use clawk_proto::Digest;
use clawk_sandbox::{VmSettings, container};
use clawk_tools::ToolConfig;
use serde::Serialize;

use crate::config::{Config, MemoryStore};
use crate::out::{self, TerminalStyle};
use crate::state;
use crate::terminal::{can_ask, input};

/// File with the stored consents, in the folder of all states.
const REMEMBERED: &str = "trusted";
/// File in a state directory that records what its agent was allowed to run, and who allowed it.
const CONSENTS: &str = "consents.jsonl";
/// Largest question, in bytes. More can't be accepted with a yes.
const MAX_SHOWN_BYTES: usize = 16 * 1024;
/// Known key variables and the hosts of their vendors. Sending a key to its own vendor needs no question.
const VENDORS: [(&str, &str); 3] = [
    ("ANTHROPIC_API_KEY", "api.anthropic.com"),
    ("OPENAI_API_KEY", "api.openai.com"),
    ("OPENROUTER_API_KEY", "openrouter.ai"),
];
/// Longest folder path that is stored beside a digest, in characters.
const KEPT_CHARS: usize = 400;

/// A program that the agent's start would run, or a setting it would use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct StartupProgram {
    /// The file and the entry that names it.
    pub(crate) by: String,
    /// The command as words, or the file.
    pub(crate) what: Vec<String>,
    /// Its inputs: variables, secret references, host paths.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) env: Vec<String>,
    /// Files of the folder that it names, with their contents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) files: Vec<(PathBuf, String)>,
}

impl StartupProgram {
    /// Returns one complete line for people. Invisible characters are written out.
    pub(crate) fn display_line(&self) -> String {
        let mut words = self.what.join(" ");
        if !self.env.is_empty() {
            words = format!("{words} (with {})", self.env.join(" "));
        }
        visible_text(&format!("{}: {words}", self.by))
    }
}

/// Lists everything that a start would run because of the manifest or a file beside it. Settings from the user's own configuration
/// or from `--config` are not listed, because the user chose them.
pub(crate) fn find_startup_programs(config: &Config, manifest: Option<&Manifest>) -> Vec<StartupProgram> {
    let mut found = StartupProgramFinder {
        folders: [
            manifest.map(|manifest| manifest.dir.clone()),
            Some(config.folder()),
        ]
        .into_iter()
        .flatten()
        .filter_map(|folder| folder.canonicalize().ok()) // silent-ok: nothing lies in a folder that is not there
        .collect(),
        runs: Vec::new(),
    };
    if config.beside {
        found.add_configured(config, manifest);
    }
    if let Some(manifest) = manifest {
        found.add_servers(config, manifest);
        found.add_providers(manifest);
        found.add_telemetry(manifest);
    }
    found.runs
}

/// Returns the digest over all of them.
pub(crate) fn digest_programs(runs: &[StartupProgram]) -> Digest {
    digest_of(&serde_json::to_vec(runs).unwrap_or_default()) // silent-ok: words and digests always serialise
}

struct StartupProgramFinder {
    /// Folders whose contents came with the manifest.
    folders: Vec<PathBuf>,
    runs: Vec<StartupProgram>,
}

impl StartupProgramFinder {
    #[expect(
        clippy::too_many_lines,
        reason = "one piece for each section that names a program"
    )]
    fn add_configured(&mut self, config: &Config, manifest: Option<&Manifest>) {
        let (settings, folder) = (&config.settings, config.folder());
        if let Some(words) = &settings.secrets_store.command {
            self.add_program("[secrets_store] command", words, Vec::new(), &folder);
        }
        let given = &settings.sandbox.container;
        let usual = container::Settings::default();
        if given.runtimes != usual.runtimes {
            self.add_program(
                "[sandbox.container] runtimes",
                &given.runtimes,
                Vec::new(),
                &folder,
            );
        }
        if given.engine != usual.engine {
            let engine = std::slice::from_ref(&given.engine);
            self.add_program("[sandbox.container] engine", engine, Vec::new(), &folder);
        }
        if let Some(image) = &given.image {
            let image = [image.display().to_string()];
            self.add_program("[sandbox.container] image", &image, Vec::new(), &folder);
        }
        let (given, usual) = (&settings.sandbox.vm, VmSettings::default());
        if given.qemu != usual.qemu {
            let qemu = std::slice::from_ref(&given.qemu);
            self.add_program("[sandbox.vm] qemu", qemu, Vec::new(), &folder);
        }
        if let Some(kernel) = &given.kernel {
            let kernel = [kernel.display().to_string()];
            self.add_program("[sandbox.vm] kernel", &kernel, Vec::new(), &folder);
        }
        for (name, tool) in &settings.tools.tools {
            self.add_tool(name, tool, &folder);
        }
        for (name, peer) in &settings.peers {
            let token = peer
                .token
                .iter()
                .map(|reference| format!("token=(secret {reference})"));
            if let Some(words) = peer.command_words() {
                self.add_program(
                    &format!("[peers.{name}] command"),
                    &words,
                    token.collect(),
                    &folder,
                );
            } else if let Some(url) = peer.url.as_ref().or(peer.a2a.as_ref()).or(peer.bus.as_ref()) {
                let url = std::slice::from_ref(url);
                self.add_program(&format!("[peers.{name}] at"), url, token.collect(), &folder);
            }
        }
        if let Some(url) = &settings.swarm.url {
            let url = [url.clone()];
            self.add_program("[swarm] url", &url, Vec::new(), &folder);
        }
        for (name, channel) in &settings.channels {
            let declared =
                manifest.and_then(|manifest| manifest.channels.iter().find(|one| one.name == *name));
            let own = declared.map(|declared| &declared.auth.secret_ref);
            self.add_channel((name, own), channel, &folder);
        }
        if let Some(whom) = settings
            .http
            .oauth
            .as_ref()
            .and_then(|oauth| oauth.introspection.as_ref())
        {
            let secret = vec![format!("(secret {})", whom.secret_ref)];
            self.add_program(
                "[http.oauth.introspection] url",
                std::slice::from_ref(&whom.url),
                secret,
                &folder,
            );
        }
        for (name, binding) in &settings.secrets {
            let hosts = binding.hosts.iter().map(ToString::to_string);
            let words: Vec<String> = std::iter::once(format!("{name} for")).chain(hosts).collect();
            self.add_program(&format!("[secrets.{name}]"), &words, Vec::new(), &folder);
        }
        // The server receives the agent's memory and the password.
        let server = &settings.postgres;
        if server.url.is_some() || server.secret_ref.is_some() {
            let url = server.url.as_ref().map(|url| format!("{url:?}"));
            let secret = server.secret_ref.as_ref();
            let secret = secret.map(|name| format!("(secret {name})"));
            let words = [url.unwrap_or_else(|| "where the secret says".to_owned())];
            self.add_program("[postgres] at", &words, secret.into_iter().collect(), &folder);
        }
        let server = &settings.qdrant;
        if let Some(url) = &server.url {
            let secret = server.secret_ref.as_ref();
            let secret = secret.map(|name| format!("(secret {name})"));
            let url = std::slice::from_ref(url);
            self.add_program("[qdrant] at", url, secret.into_iter().collect(), &folder);
        }
        for (name, store) in &settings.memory.stores {
            self.add_store(name, store, &folder);
        }
        // The state is not a program, but it determines the memory and the record that the agent uses.
        if let Some(state) = &settings.state {
            let secret = state.password_reference().map(|name| format!("(secret {name})"));
            self.add_program(
                "state",
                &[state.display_location()],
                secret.into_iter().collect(),
                &folder,
            );
        }
        for entry in &mut self.runs {
            entry.by = format!("clawk.toml `{}`", entry.by);
        }
    }

    fn add_tool(&mut self, name: &str, tool: &ToolConfig, folder: &Path) {
        let plain = tool.env.iter().map(|(name, value)| format!("{name}={value}"));
        let secret = tool.secret_env.iter().chain(&tool.secret_headers);
        let secret = secret.map(|(name, reference)| format!("{name}=(secret {reference})"));
        let read = tool
            .read_paths
            .iter()
            .map(|path| format!("reading {}", path.display()));
        let with: Vec<String> = plain.chain(secret).chain(read).collect();
        if let Some(words) = &tool.command {
            self.add_program(&format!("[tools.{name}] command"), words, with.clone(), folder);
        } else if !with.is_empty() {
            self.add_program(&format!("[tools.{name}]"), &[], with.clone(), folder);
        }
        if let Some(http) = tool.http.as_ref().filter(|http| !http.secret_headers.is_empty()) {
            let secret = http.secret_headers.iter();
            let secret = secret.map(|(name, reference)| format!("{name}=(secret {reference})"));
            let url = std::slice::from_ref(&http.url);
            self.add_program(&format!("[tools.{name}.http] url"), url, secret.collect(), folder);
        }
        // The folder's files choose the agents it talks to, with or without secrets.
        if let Some(other) = &tool.a2a {
            let secret = other.secret_headers.iter();
            let secret = secret.map(|(name, reference)| format!("{name}=(secret {reference})"));
            let url = std::slice::from_ref(&other.url);
            self.add_program(&format!("[tools.{name}.a2a] url"), url, secret.collect(), folder);
        }
        if let Some(search) = &tool.search {
            // A key goes to an address that the folder chose, unless it is the vendor's own.
            if let Some(url) = &search.url {
                let secret = search.secret_ref.iter();
                let secret = secret.map(|reference| format!("(secret {reference})"));
                let url = std::slice::from_ref(url);
                self.add_program(
                    &format!("[tools.{name}.search] url"),
                    url,
                    secret.collect(),
                    folder,
                );
            } else if let Some(reference) = &search.secret_ref
                && reference != search.provider.usual_secret()
            {
                // Another secret of this machine would go to the vendor.
                let vendor = [search.provider.name().to_owned()];
                let secret = vec![format!("(secret {reference})")];
                self.add_program(&format!("[tools.{name}.search]"), &vendor, secret, folder);
            }
        }
        if let Some(module) = &tool.wasm {
            let module = [module.display().to_string()];
            self.add_program(&format!("[tools.{name}] wasm"), &module, Vec::new(), folder);
        }
        let check = tool.reconcile.as_ref();
        if let Some(words) = check.and_then(|reconcile| reconcile.command.as_ref()) {
            self.add_program(&format!("[tools.{name}.reconcile] command"), words, with, folder);
        }
    }

    /// Adds a memory server that is reached over HTTP, or gets secrets or host files. A command without these is listed by
    /// [`Self::add_servers`].
    fn add_store(&mut self, name: &str, store: &MemoryStore, folder: &Path) {
        let plain = store.env.iter().map(|(name, value)| format!("{name}={value}"));
        let secret = store.secret_env.iter().chain(&store.secret_headers);
        let secret = secret.map(|(name, reference)| format!("{name}=(secret {reference})"));
        let read = store
            .read_paths
            .iter()
            .map(|path| format!("reading {}", path.display()));
        let with: Vec<String> = plain.chain(secret).chain(read).collect();
        let Some(server) = &store.server else { return };
        let is_started = server.starts_with("stdio:");
        if !is_started || !with.is_empty() {
            self.add_program(
                &format!("[memory.{name}] server"),
                std::slice::from_ref(server),
                with,
                folder,
            );
        }
    }

    fn add_channel(&mut self, (name, own): (&str, Option<&String>), channel: &ChannelConfig, folder: &Path) {
        let plain = channel.env.iter().map(|(name, value)| format!("{name}={value}"));
        let secret = channel.secret_env.iter();
        let secret = secret.map(|(name, reference)| format!("{name}=(secret {reference})"));
        let read = channel
            .read_paths
            .iter()
            .map(|path| format!("reading {}", path.display()));
        if !channel.command.is_empty() {
            let with = plain.chain(secret).chain(read).collect();
            self.add_program(
                &format!("[channels.{name}] command"),
                &channel.command,
                with,
                folder,
            );
        }
        // The platform's address receives its secrets: those of the channel settings, and those that the manifest names.
        let given = channel.secrets.values().chain(own);
        let given = given.map(|reference| format!("(secret {reference})"));
        let urls: Vec<String> = [&channel.base_url, &channel.url, &channel.smtp_url]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        if !urls.is_empty() {
            self.add_program(&format!("[channels.{name}] at"), &urls, given.collect(), folder);
        }
    }

    /// Adds providers whose key would go to a host that is not its vendor's.
    fn add_providers(&mut self, manifest: &Manifest) {
        for provider in &manifest.providers {
            let Some(secret) = &provider.auth.secret_ref else {
                continue;
            };
            let at = Url::parse(&provider.endpoint).ok(); // silent-ok: what is no URL reaches nobody
            let Some(at) = at.filter(|at| matches!(at.scheme(), "http" | "https")) else {
                continue;
            };
            let host = at.host_str().unwrap_or_default();
            let here = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
            let vendor =
                at.scheme() == "https" && at.port().is_none() && VENDORS.contains(&(secret.as_str(), host));
            if !here && !vendor {
                self.add_program(
                    &format!("claw.yaml provider `{}` at", provider.name),
                    std::slice::from_ref(&provider.endpoint),
                    vec![format!("(secret {secret})")],
                    &manifest.dir,
                );
            }
        }
    }

    /// Adds telemetry destinations: another machine, one with a secret, or a file outside the state.
    fn add_telemetry(&mut self, manifest: &Manifest) {
        for exporter in manifest
            .telemetry
            .iter()
            .flat_map(|telemetry| &telemetry.exporters)
        {
            let file = exporter
                .path
                .as_ref()
                .filter(|path| Path::new(path).is_absolute());
            let Some(place) = exporter.endpoint.as_ref().or(file) else {
                continue;
            };
            let secret = exporter
                .auth
                .as_ref()
                .map(|auth| format!("(secret {})", auth.secret_ref));
            let at = Url::parse(place).ok(); // silent-ok: what is no URL reaches nobody
            let host = at.as_ref().and_then(Url::host_str).unwrap_or_default();
            if secret.is_none() && matches!(host, "localhost" | "127.0.0.1" | "[::1]") {
                continue;
            }
            let by = format!("claw.yaml telemetry `{}` to", exporter.kind.as_str());
            self.add_program(
                &by,
                std::slice::from_ref(place),
                secret.into_iter().collect(),
                &manifest.dir,
            );
        }
    }

    fn add_servers(&mut self, config: &Config, manifest: &Manifest) {
        let of_tools = manifest.tools.iter().filter_map(|tool| {
            let source = tool.mcp_source.as_ref()?;
            Some((format!("claw.yaml tool `{}`", tool.name), source.uri.clone()))
        });
        let atlases = &config.settings.atlases.mcp;
        let of_atlases = atlases.iter().filter_map(|(name, uri)| {
            // silent-ok: reported where it is used
            Some((
                format!("clawk.toml `[atlases.mcp] {name}`"),
                McpUri::try_from(uri.clone()).ok()?,
            ))
        });
        let stores = &config.settings.memory.stores;
        let of_stores = stores.iter().filter_map(|(name, store)| {
            // silent-ok: reported where it is used
            Some((
                format!("clawk.toml `[memory.{name}] server`"),
                store.server_uri().ok()??,
            ))
        });
        let mut seen = BTreeSet::new();
        for (by, uri) in of_tools.chain(of_atlases).chain(of_stores) {
            if let McpUri::Stdio { path, args } = uri {
                let words: Vec<String> = std::iter::once(path).chain(args).collect();
                if seen.insert(words.clone()) {
                    self.add_program(&by, &words, Vec::new(), &manifest.dir);
                }
            }
        }
    }

    fn add_program(&mut self, by: &str, words: &[String], env: Vec<String>, from: &Path) {
        let mut files = Vec::new();
        for word in words {
            // silent-ok: a word that is not a file of the folder is hashed as a word
            let Some(path) = from.join(word).canonicalize().ok() else {
                continue;
            };
            if path.is_file() && self.folders.iter().any(|folder| path.starts_with(folder)) {
                let content = match witness::observe_file(&path).mark.state {
                    witness::State::Present(identity) => identity.content.map(|content| content.to_hex()),
                    witness::State::Absent | witness::State::Unknown(_) => None,
                };
                files.push((path, content.unwrap_or_default()));
            }
        }
        self.runs.push(StartupProgram {
            by: by.to_owned(),
            what: words.iter().map(|word| without_password(word)).collect(),
            env,
            files,
        });
    }
}

/// Returns an address without its password, for display.
fn without_password(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else {
        return word.to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(end).unwrap_or((rest, ""));
    let user = authority
        .rsplit_once('@')
        .and_then(|(user, host)| Some((user.split_once(':')?.0, host)));
    match user {
        Some((user, host)) => format!("{scheme}://{user}:…@{host}{path}"),
        None => word.to_owned(),
    }
}

/// How the user gave consent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ConsentSource {
    /// The user answered yes at the terminal.
    Asked,
    /// The user gave `--trust` or ran `clawk trust`.
    Told,
    /// The user consented earlier.
    Remembered,
    /// Nobody can be asked. Naming the manifest counts as consent.
    Named,
}

/// A consent, as it is recorded in the state directory.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TrustConsent {
    digest: Digest,
    how: ConsentSource,
    runs: Vec<StartupProgram>,
}

/// Makes sure that the user consents to what a start would run. `told`: consent was given on the command line; `asks`: there is a
/// terminal to ask at. Blocks while it asks.
///
/// # Errors
/// The user refuses, or the consent can't be stored.
pub(crate) fn obtain_consent(
    config: &Config,
    manifest: Option<&Manifest>,
    told: bool,
    asks: bool,
) -> Result<Option<TrustConsent>> {
    let runs = find_startup_programs(config, manifest);
    let folder = manifest.map_or_else(|| config.folder(), |manifest| manifest.dir.clone());
    if runs.is_empty() {
        return Ok(None);
    }
    let digest = digest_programs(&runs);
    let how = if told {
        remember_consent(digest, &folder)?;
        ConsentSource::Told
    } else if load_consents()?.contains(&digest.to_hex()) {
        ConsentSource::Remembered
    } else if asks {
        ask_consent(&runs, &folder)?;
        remember_consent(digest, &folder)?;
        ConsentSource::Asked
    } else {
        ConsentSource::Named
    };
    Ok(Some(TrustConsent { digest, how, runs }))
}

/// Returns whether the folder's files would run nothing, or the user has consented to all of it before.
pub(crate) fn is_trusted(config: &Config, manifest: Option<&Manifest>) -> bool {
    let runs = find_startup_programs(config, manifest);
    // silent-ok: an unreadable consent counts as none
    runs.is_empty() || load_consents().is_ok_and(|known| known.contains(&digest_programs(&runs).to_hex()))
}

/// Returns whether a person can be asked before a conversation.
pub(crate) fn can_ask_user() -> bool {
    can_ask()
}

impl TrustConsent {
    /// Appends the consent to the state directory's record, unless the last line is the same.
    ///
    /// # Errors
    /// The record can't be read or written.
    pub(crate) fn record_in_state(&self, state: &Path) -> Result<()> {
        let file = state.join(CONSENTS);
        let about = || format!("can't record in `{}` what may run", file.display());
        let before = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(about),
        };
        let digest = format!("\"digest\":\"{}\"", self.digest);
        if before.lines().last().is_some_and(|line| line.contains(&digest)) {
            return Ok(());
        }
        let at = SystemClock::default().now().to_string();
        let mut line = serde_json::to_string(&serde_json::json!({
            "at": at, "digest": self.digest, "how": self.how, "runs": self.runs,
        }))?;
        line.push('\n');
        let mut open = fs::OpenOptions::new();
        let mut out = open
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&file)
            .with_context(about)?;
        out.write_all(line.as_bytes()).with_context(about)
    }
}

fn ask_consent(runs: &[StartupProgram], folder: &Path) -> Result<()> {
    let lines: Vec<String> = runs.iter().map(StartupProgram::display_line).collect();
    if lines.iter().map(String::len).sum::<usize>() > MAX_SHOWN_BYTES {
        let folder = folder.display();
        bail!(
            "nothing was started: what the files in `{folder}` would run is too long for a question; `clawk trust --show {folder}` \
             prints it, `clawk trust {folder}` agrees to it"
        );
    }
    let paint = TerminalStyle::for_stderr();
    let head = format!(
        "the files in `{}` would run or use on this machine:",
        folder.display()
    );
    out::print_note(paint.bold(&out::one_line(&head)));
    for line in lines {
        out::print_note(format!("  {line}"));
    }
    let mut error = io::stderr();
    write!(
        error,
        "start it? It is asked again when one of them changes. [y/N] ▸ "
    )?;
    error.flush()?;
    // Keys pressed before the question was visible do not count as an answer.
    input::discard_typed_keys().context("the terminal can't be used; say --trust")?;
    let mut line = String::new();
    if io::stdin().is_terminal() {
        io::stdin().lock().read_line(&mut line)?;
    } else {
        io::BufReader::new(fs::File::open("/dev/tty")?).read_line(&mut line)?;
    }
    if matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    bail!(
        "nothing was started: `{}` is not trusted to run its programs (`clawk trust {}` trusts it)",
        folder.display(),
        folder.display()
    )
}

/// Returns the file of stored consents. An agent's tools must not change it.
pub(crate) fn consent_file() -> Option<PathBuf> {
    Some(state::state_home().ok()?.join(REMEMBERED)) // silent-ok: without a home nothing is remembered
}

/// Returns the digests with consent.
fn load_consents() -> Result<BTreeSet<String>> {
    let Some(file) = consent_file() else {
        return Ok(BTreeSet::new());
    };
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error).with_context(|| format!("can't read `{}`", file.display())),
    };
    state::refuse_others(&file)?;
    let words = text.lines().filter_map(|line| line.split(' ').next());
    Ok(words.map(str::to_owned).collect())
}

/// Stores a consent. `folder` helps people who read the file.
///
/// # Errors
/// The file can't be written, or belongs to another user.
pub(crate) fn remember_consent(digest: Digest, folder: &Path) -> Result<()> {
    if load_consents()?.contains(&digest.to_hex()) {
        return Ok(());
    }
    let file = consent_file()
        .context("neither XDG_STATE_HOME nor HOME is set, so clawk has no place to store the agreement")?;
    let write = || -> io::Result<()> {
        if let Some(home) = file.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(home)?;
        }
        let mut open = fs::OpenOptions::new();
        let mut out = open.create(true).append(true).mode(0o600).open(&file)?;
        let folder = out::clip_line(&folder.display().to_string(), KEPT_CHARS);
        out.write_all(format!("{digest} {folder}\n").as_bytes())
    };
    write().with_context(|| format!("can't write `{}`", file.display()))
}

/// Deletes every consent to these programs. Returns whether there was one.
///
/// # Errors
/// The file can't be read or written.
pub(crate) fn forget_consent(digest: Digest) -> Result<bool> {
    let hex = digest.to_hex();
    let (true, Some(file)) = (load_consents()?.contains(&hex), consent_file()) else {
        return Ok(false);
    };
    let text = fs::read_to_string(&file)?;
    let kept = text.lines().filter(|line| line.split(' ').next() != Some(&hex));
    let kept: String = kept.map(|line| format!("{line}\n")).collect();
    let part = file.with_extension("part");
    let mut open = fs::OpenOptions::new();
    let mut out = open
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&part)?;
    out.write_all(kept.as_bytes())?;
    fs::rename(&part, &file)?;
    Ok(true)
}

#[cfg(test)]
mod tests;
