//! Compiles flags and a manifest's Sandbox into a plan.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clawk_manifest::model::{
    FilesystemMode, MountPermission, MountSettings, NetworkMode, Sandbox, SandboxLevel, ShellMode,
};
use clawk_plan::{Plan, RuntimeFiles};
use clawk_sandbox::{Launcher, Spec};
use clawk_secrets::env;
use serde_json::json;

use crate::compose::own;
use crate::config::{AllowOutsideArgs, Config};
use crate::{manifest, trust};

/// What a box is made of. Flags add to the manifest's Sandbox, and win over it.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct BoxArgs {
    /// A manifest, or the file of a Sandbox; without one, only the flags grant anything
    #[arg(short, long, value_name = "FILE", value_parser = crate::manifest::manifest_path_parser())]
    file: Option<PathBuf>,

    #[command(flatten)]
    outside: AllowOutsideArgs,

    /// `none`, `process`, `wasm`, `container` or `vm` [default without a manifest: `process`]
    #[arg(long, value_name = "LEVEL", value_parser = parse_word::<SandboxLevel>)]
    level: Option<SandboxLevel>,

    /// Mount a path, `:ro` (the default) or `:rw`
    #[arg(long, value_name = "PATH[:ro|rw]", value_parser = parse_mount)]
    mount: Vec<MountSettings>,

    /// Deny a path and everything below it, or a pattern; it wins over mounts
    #[arg(long, value_name = "PATH")]
    deny: Vec<String>,

    /// `deny`, `read-only`, `scoped` or `full`; `scoped` where --mount is given
    #[arg(long, value_name = "MODE", value_parser = parse_word::<FilesystemMode>)]
    files: Option<FilesystemMode>,

    /// Allow a host: `example.com` or `*.example.com`, each with or without `:PORT`
    #[arg(long, value_name = "HOST")]
    allow_host: Vec<String>,

    /// Allow a host of your own network: a name or an address, with or without `:PORT`
    #[arg(long, value_name = "HOST")]
    allow_private: Vec<String>,

    /// `deny`, `restricted` or `full`: which system calls are allowed [default without a manifest: `restricted`]
    #[arg(long, value_name = "MODE", value_parser = parse_word::<ShellMode>)]
    shell: Option<ShellMode>,

    /// Time limit
    #[arg(long, value_name = "N")]
    timeout_ms: Option<u64>,

    /// Memory limit of all processes together, in MiB
    #[arg(long, value_name = "N")]
    memory_mb: Option<u64>,

    /// Processor weight; 1024 stands for one core
    #[arg(long, value_name = "N")]
    cpu_shares: Option<u64>,

    /// Limit of processes and threads together
    #[arg(long, value_name = "N")]
    max_processes: Option<u64>,

    /// Limit of open files per process
    #[arg(long, value_name = "N")]
    max_open_files: Option<u64>,

    /// Limit of output, in bytes
    #[arg(long, value_name = "N")]
    max_output_bytes: Option<u64>,

    /// Working directory [default: the manifest's folder, or the current one]
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
}

/// Parses one of a closed set of words.
fn parse_word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(json!(text)).map_err(|error| error.to_string())
}

fn parse_mount(text: &str) -> Result<MountSettings, String> {
    let (path, permissions) = match text.rsplit_once(':') {
        Some((path, "rw")) => (path, MountPermission::Rw),
        Some((path, "ro")) => (path, MountPermission::Ro),
        Some(_) | None => (text, MountPermission::Ro),
    };
    if path.is_empty() {
        return Err("a path, then `:ro` or `:rw`".to_owned());
    }
    Ok(MountSettings {
        path: path.to_owned(),
        permissions,
    })
}

/// The box to try.
#[derive(Debug)]
pub(super) struct BoxRequest {
    /// The Sandbox as a manifest would declare it.
    pub(super) sandbox: Option<Sandbox>,
    /// The compiled plan.
    pub(super) plan: Arc<Plan>,
    /// The launcher that starts it.
    pub(super) launcher: Launcher,
    /// The base of relative paths.
    pub(super) base: PathBuf,
    /// Allowed hosts in the private network.
    pub(super) allow_private: Vec<String>,
}

/// The purpose of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SandboxPurpose {
    /// To run a command in it, with the programs that the folder's files name.
    Run,
    /// To describe it. No program that the folder's files name is run.
    Explain,
}

impl BoxArgs {
    /// Uses this manifest if none is named.
    pub(super) fn with_manifest(mut self, manifest: Option<PathBuf>) -> Self {
        self.file = self.file.or(manifest);
        self
    }

    /// Returns the plan in force.
    ///
    /// # Errors
    /// The manifest or the configuration is not valid, or the folder does not exist.
    pub(super) fn resolve_request(
        &self,
        config: Option<&Path>,
        purpose: SandboxPurpose,
    ) -> Result<BoxRequest> {
        let mut config = Config::load(config, self.file.as_deref())?.with_outside_access(self.outside);
        if purpose == SandboxPurpose::Explain {
            config = config.running_nothing();
        }
        let file = self.file.as_ref();
        // A person may try a Sandbox before an agent uses it.
        let alone = file
            .map(|file| manifest::load_sandbox(file, &config))
            .transpose()?
            .flatten();
        let read = file
            .filter(|_| alone.is_none())
            .map(|file| manifest::load_valid_manifest(file, &config))
            .transpose()?;
        if purpose == SandboxPurpose::Run {
            let manifest = read.as_ref().map(|(manifest, _)| manifest);
            trust::obtain_consent(&config, manifest, false, trust::can_ask_user())?;
        }
        let (declared, folder) = match &read {
            None => (alone, file.and_then(|file| file.parent()).map(Path::to_path_buf)),
            Some((manifest, _)) => {
                let folder = config.settings.workdir.as_ref().unwrap_or(&manifest.dir);
                (manifest.sandbox.clone(), Some(folder.clone()))
            }
        };
        let sandbox = if self.is_plain() && (declared.is_some() || self.file.is_some()) {
            declared
        } else {
            Some(self.merge_sandbox(declared)?)
        };
        let folder = self
            .workdir
            .clone()
            .or(folder)
            .filter(|f| !f.as_os_str().is_empty());
        let folder = folder.unwrap_or_else(|| PathBuf::from("."));
        let base = folder
            .canonicalize()
            .with_context(|| format!("the working directory `{}` does not exist", folder.display()))?;
        let own = match (&self.file, &read) {
            (Some(file), Some((manifest, loaded))) => {
                own::collect_runtime_files(file, &loaded.sources, &config, manifest, &base)?
            }
            (Some(file), None) => own::of_sandbox(file)?,
            (None, _) => RuntimeFiles::empty(),
        };
        let plan = Plan::compile(sandbox.as_ref(), &config.settings.sandbox.plan_defaults());
        Ok(BoxRequest {
            plan: Arc::new(plan.with_runtime_files(&own, &base)),
            sandbox,
            launcher: Launcher::default()
                .with_levels(config.level_settings(None))
                .leaving_free(config.settings.sandbox.min_free()),
            base,
            allow_private: self.allow_private.clone(),
        })
    }

    /// Returns whether no flag changes the manifest's Sandbox.
    fn is_plain(&self) -> bool {
        self.level.is_none()
            && self.mount.is_empty()
            && self.deny.is_empty()
            && self.files.is_none()
            && self.allow_host.is_empty()
            && self.shell.is_none()
            && [
                self.timeout_ms,
                self.memory_mb,
                self.cpu_shares,
                self.max_processes,
                self.max_open_files,
                self.max_output_bytes,
            ]
            .iter()
            .all(Option::is_none)
    }

    fn merge_sandbox(&self, declared: Option<Sandbox>) -> Result<Sandbox> {
        let mut sandbox = match declared {
            Some(sandbox) => sandbox,
            None => serde_json::from_value(json!({
                "name": "sandbox",
                "level": "process",
                "capabilities": {"shell": {"mode": "restricted"}},
            }))?,
        };
        sandbox.level = self.level.unwrap_or(sandbox.level);
        let capabilities = &mut sandbox.capabilities;
        let files = &mut capabilities.filesystem;
        files.mount_paths.extend(self.mount.iter().cloned());
        files.denied_paths.extend(self.deny.iter().cloned());
        match self.files {
            Some(mode) => files.mode = mode,
            None if !self.mount.is_empty() => files.mode = files.mode.max(FilesystemMode::Scoped),
            None => {}
        }
        if files.mode == FilesystemMode::Deny && !files.mount_paths.is_empty() {
            bail!("`--files deny` shows no files, so `--mount` would have no effect; leave one of them out");
        }
        capabilities
            .network
            .allowed_hosts
            .extend(self.allow_host.iter().cloned());
        if !self.allow_host.is_empty() {
            capabilities.network.mode = capabilities.network.mode.max(NetworkMode::Allowlist);
        }
        capabilities.shell.mode = self.shell.unwrap_or(capabilities.shell.mode);
        let limits = &mut sandbox.resource_limits;
        for (limit, flag) in [
            (&mut limits.timeout_ms, self.timeout_ms),
            (&mut limits.memory_mb, self.memory_mb),
            (&mut limits.cpu_shares, self.cpu_shares),
            (&mut limits.max_processes, self.max_processes),
            (&mut limits.max_open_files, self.max_open_files),
            (&mut limits.max_output_bytes, self.max_output_bytes),
        ] {
            *limit = flag.or(*limit);
        }
        Ok(sandbox)
    }
}

impl BoxRequest {
    /// Returns the launch specification, with the environment of the `shell` tool.
    pub(super) fn spec(&self, program: &str, args: Vec<String>) -> Spec {
        let mut spec = Spec::new(program, Arc::clone(&self.plan));
        spec.args = args;
        spec.base = Some(self.base.clone());
        spec.workdir = Some(self.base.clone());
        let path = env::non_empty("PATH").unwrap_or_else(|| clawk_plan::plan::MINIMAL_PATH.to_owned());
        let home = match self.plan.private_home() {
            Some(home) => home.to_owned(),
            None => self.base.to_string_lossy().into_owned(),
        };
        spec.env = vec![
            ("PATH".to_owned(), path),
            ("HOME".to_owned(), home),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ];
        spec
    }
}
