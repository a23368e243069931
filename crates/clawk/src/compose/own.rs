//! The agent's own files (ADR 0025): the list of everything that its start reads. These files determine what tools may do, so no
//! tool may change them; `clawk_plan::own` enforces that.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clawk_manifest::model::{McpUri, Store, StoreType};
use clawk_manifest::{Manifest, SourceFiles};
use clawk_memory::FolderMemory;
use clawk_plan::{Level, Plan, RuntimeFiles};
use clawk_recall::seal::SealKeyring;
use clawk_secrets::env;

use super::AUTO;
use crate::companion::tests_path;
use crate::config::{self, Config};
use crate::{out, trust};

/// Extensions of arguments that are scripts. Other files that a command names may be its data.
const SCRIPTS: [&str; 14] = [
    "py", "js", "mjs", "cjs", "ts", "sh", "bash", "rb", "pl", "php", "lua", "jar", "wasm", "r",
];

/// Content of a `clawk.toml` that clawk creates so that no tool can create one.
const EMPTY_CONFIG: &str = "# Made by clawk: tools may write in this folder, and a container can keep only what is there from being made by one.\n";

/// Content of a policy test file that clawk creates for the same reason.
const EMPTY_TESTS: &str = "# Made by clawk: tools may write in this folder, and a container can keep only what is there from being made by one.\ncases: []\n";

/// Returns the paths of a manifest, of everything it refers to, of the folders in which its patterns search, and of the policy
/// tests beside its files, even if they do not exist.
pub(crate) fn of_sources(sources: &SourceFiles) -> Vec<PathBuf> {
    let files = sources.files().map(Path::to_path_buf);
    let tests = sources.files().filter_map(tests_path);
    files
        .chain(tests)
        .chain(sources.folders().map(Path::to_path_buf))
        .collect()
}

/// Returns the folders of memory stores: below `memory` in the state, or at the manifest's paths.
pub(super) fn folder_memory(
    config: &Config,
    state: &Path,
    outside: bool,
    vault: Option<Arc<SealKeyring>>,
) -> FolderMemory {
    FolderMemory::new(clawk_memory::Options {
        root: state.join("memory"),
        home: env::path_variable("HOME"),
        tenant: config.settings.memory.tenant_id.clone().unwrap_or_default(),
        outside,
        vault,
    })
}

/// Returns the folders of stores outside the state. Their entries record their own provenance, so no tool may change them. A
/// workspace's files belong to the tools.
fn outside_stores(config: &Config, manifest: &Manifest) -> Vec<PathBuf> {
    let files = folder_memory(config, Path::new("/"), true, None);
    let stores = manifest.memory.iter().flat_map(|memory| &memory.stores);
    let outside = |store: &&Store| {
        let path = store.path.as_deref().unwrap_or_default();
        store.kind != StoreType::Workspace && (path.starts_with("~/") || Path::new(path).is_absolute())
    };
    let folder = |store| files.base_folder(store, &manifest.identity.name).ok(); // silent-ok: the start says what is wrong with it
    stores.filter(outside).filter_map(folder).collect()
}

/// Returns `clawk.toml`, and the files that it and the manifest name.
pub(crate) fn of_config(config: &Config, manifest: &Manifest) -> Vec<PathBuf> {
    let settings = &config.settings;
    let folder = config.folder();
    let mut read: Vec<PathBuf> = config.file.iter().cloned().chain(config::users_own()).collect();
    read.extend(trust::consent_file());
    read.extend(settings.secrets_store.file.iter().map(|file| folder.join(file)));
    read.extend(settings.atlases.paths.iter().map(|path| folder.join(path)));
    read.extend(settings.registries.values().cloned());
    read.extend(settings.postgres.ca_file.clone());
    read.extend(
        settings
            .sandbox
            .container
            .image
            .iter()
            .map(|image| folder.join(image)),
    );
    read.extend(
        settings
            .sandbox
            .vm
            .kernel
            .iter()
            .map(|kernel| folder.join(kernel)),
    );
    read.extend(settings.doors.dir.served.clone());
    if let Some(tls) = &settings.http.tls {
        read.extend([tls.certificate.clone(), tls.key.clone()]);
        read.extend(tls.client_authorities.clone());
    }
    read.extend(outside_stores(config, manifest));
    // The record is checked against this file.
    read.extend(settings.checkpoints.file.iter().cloned());
    read.extend(settings.audit.file.iter().cloned());
    for provider in &manifest.providers {
        let script = ["script:", "file:", AUTO]
            .iter()
            .find_map(|scheme| provider.endpoint.strip_prefix(scheme))
            // `auto:` alone names no script, and so must not protect the whole folder.
            .filter(|path| !path.trim_matches('/').is_empty());
        read.extend(script.map(|path| manifest.dir.join(path.strip_prefix("//").unwrap_or(path))));
    }
    read
}

/// Returns programs that the agent starts by a path: this program, executors, servers, and the scripts in their arguments. Each may
/// have rights and secrets that the tools do not have.
pub(crate) fn started_programs(config: &Config, manifest: &Manifest, workdir: &Path) -> Vec<PathBuf> {
    let folder = config.folder();
    let mut found: Vec<PathBuf> = std::env::current_exe().into_iter().collect();
    let mut command = |words: &[String], from: &Path| {
        let Some((program, args)) = words.split_first() else {
            return;
        };
        if program.contains('/') {
            found.push(from.join(program));
        }
        found.extend(args.iter().filter_map(|arg| script_path(arg, workdir)));
    };
    let settings = &config.settings;
    let mut skills = Vec::new();
    for tool in settings.tools.tools.values() {
        let checks = tool
            .reconcile
            .iter()
            .filter_map(|reconcile| reconcile.command.as_ref());
        for words in tool.command.iter().chain(checks) {
            command(words, &folder);
        }
        // The files of a skill are instructions.
        skills.extend(tool.start_in.iter().map(|start| folder.join(start)));
    }
    for channel in settings
        .channels
        .values()
        .filter(|channel| !channel.command.is_empty())
    {
        command(&channel.command, &folder);
    }
    if let Some(words) = &settings.secrets_store.command {
        command(words, &folder);
    }
    let sources = manifest.tools.iter().filter_map(|tool| tool.mcp_source.as_ref());
    let keepers = settings.memory.stores.values();
    let keepers = keepers.filter_map(|store| store.server_uri().ok().flatten()); // silent-ok: said where it is used
    let named = settings.atlases.mcp.values();
    let uris = sources
        .map(|source| source.uri.clone())
        .chain(named.filter_map(|uri| McpUri::try_from(uri.clone()).ok())) // silent-ok: said where it is used
        .chain(keepers);
    for uri in uris {
        if let McpUri::Stdio { path, args } = uri {
            let words: Vec<String> = std::iter::once(path).chain(args).collect();
            command(&words, &manifest.dir);
        }
    }
    let guests = settings
        .tools
        .tools
        .values()
        .filter_map(|tool| tool.wasm.as_ref());
    found.extend(guests.map(|module| folder.join(module)));
    found.extend(skills);
    found
}

/// Returns the file that an argument names, if it is a script.
fn script_path(arg: &str, workdir: &Path) -> Option<PathBuf> {
    let path = workdir.join(arg);
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    (SCRIPTS.contains(&ending.as_str()) && path.is_file()).then_some(path)
}

/// Returns all own files, for commands that start nothing.
pub(crate) fn collect_runtime_files(
    file: &Path,
    sources: &SourceFiles,
    config: &Config,
    manifest: &Manifest,
    workdir: &Path,
) -> Result<RuntimeFiles> {
    let mut read = of_sources(sources);
    read.push(file.with_file_name(config::BESIDE));
    read.extend(of_config(config, manifest));
    read.extend(started_programs(config, manifest, workdir));
    Ok(RuntimeFiles {
        state: None,
        files: make_absolute(read)?,
    })
}

/// Returns the own files for a Sandbox alone: its file.
pub(crate) fn of_sandbox(file: &Path) -> Result<RuntimeFiles> {
    Ok(RuntimeFiles {
        state: None,
        files: make_absolute(vec![file.to_path_buf(), file.with_file_name(config::BESIDE)])?,
    })
}

/// Makes paths absolute. Symbolic links are not resolved, because each link is a location of its own.
pub(crate) fn make_absolute(read: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    let mut all = Vec::with_capacity(read.len());
    for path in read {
        let path = if path.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            path
        };
        all.push(std::path::absolute(&path).with_context(|| format!("`{}`", path.display()))?);
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// Refuses `rw` mounts in which nothing could be written.
pub(crate) fn check_mounts(
    config: &Config,
    manifest: &Manifest,
    read: &[PathBuf],
    workdir: &Path,
) -> Result<()> {
    let own = RuntimeFiles {
        state: None,
        files: read.to_vec(),
    };
    let defaults = config.settings.sandbox.plan_defaults();
    let plans = manifest
        .sandboxes()
        .map(|sandbox| Plan::compile(Some(sandbox), &defaults));
    let undeclared = manifest.sandbox.is_none().then(|| Plan::compile(None, &defaults));
    for plan in plans.chain(undeclared) {
        let contradiction = plan.filesystem().find_contradiction(&own, workdir);
        let Some((mount, by)) = contradiction.filter(|_| plan.level() != Level::None) else {
            continue;
        };
        bail!(
            "the mount `{}` (rw) lies in `{}`, all of which the agent's start reads, so that no tool may write there; mount it `ro`, \
             let a pattern or an Atlas have a folder of its own, or mount another folder",
            mount.display(),
            by.display()
        );
    }
    Ok(())
}

/// Returns `denied_paths` entries that match nothing on this machine; they may be misspelt.
pub(crate) fn denied_in_vain(config: &Config, manifest: &Manifest, workdir: &Path) -> Vec<String> {
    let plan = Plan::compile(
        manifest.sandbox.as_ref(),
        &config.settings.sandbox.plan_defaults(),
    );
    let denied = plan.filesystem().denied.iter();
    denied
        .filter(|denied| !denied.names_something(workdir))
        .map(|denied| {
            format!(
                "`{}` in `denied_paths` names nothing on this machine; it will be denied when it is there",
                denied.text()
            )
        })
        .collect()
}

/// Creates missing files that a start would read. Needed at level `container`, which can only protect existing files.
///
/// # Errors
/// A file can't be created. Then nothing starts.
pub(crate) fn make_missing(plan: &Plan, read: &[PathBuf], workdir: &Path) -> Result<()> {
    if plan.level() != Level::Container {
        return Ok(());
    }
    let own = RuntimeFiles {
        state: None,
        files: read.to_vec(),
    };
    let plan = plan.clone().with_runtime_files(&own, workdir);
    for path in read.iter().filter(|path| plan.filesystem().is_protected(path)) {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let text = match name {
            config::BESIDE => EMPTY_CONFIG,
            name if name.ends_with(".tests.yaml") => EMPTY_TESTS,
            _ => continue,
        };
        let beside = ["yaml", "yml"].map(|kind| path.with_file_name(name.replace("tests.yaml", kind)));
        let wanted = name == config::BESIDE || beside.iter().any(|file| is_policy(file));
        if path.symlink_metadata().is_ok() || !wanted {
            continue;
        }
        std::fs::write(path, text).with_context(|| {
            format!(
                "`{}` is not there, a tool could make it, and at level `container` only what is there can be kept; make it, or mount \
                 a folder below the agent's own",
                path.display()
            )
        })?;
        out::print_note(format!(
            "made an empty `{}`: tools may write there, and none may make one of its own",
            path.display()
        ));
    }
    Ok(())
}

fn is_policy(file: &Path) -> bool {
    clawk_manifest::load_policy(file, &clawk_manifest::LoadOptions::default())
        .1
        .is_some()
}
