//! The agent's own files (ADR 0025): everything that its start reads, gathered in one place. What a start reads decides what
//! tools may do, so that no tool may change it; `clawk_plan::own` sees to that.

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
use crate::companion::companion;
use crate::config::{self, Config};
use crate::{out, trust};

/// Endings of arguments that are a program's text; other files that a command names may be its data.
const SCRIPTS: [&str; 14] = [
    "py", "js", "mjs", "cjs", "ts", "sh", "bash", "rb", "pl", "php", "lua", "jar", "wasm", "r",
];

/// What stands in a `clawk.toml` that is made so that no tool can make one.
const EMPTY_CONFIG: &str = "# Made by clawk: tools may write in this folder, and a container can keep only what is there from being made by one.\n";

/// The same for tests beside a policy.
const EMPTY_TESTS: &str = "# Made by clawk: tools may write in this folder, and a container can keep only what is there from being made by one.\ncases: []\n";

/// A manifest with everything it refers to, the folders where its patterns look, and tests beside each of its files, also
/// where there are none.
pub(crate) fn of_sources(sources: &SourceFiles) -> Vec<PathBuf> {
    let files = sources.files().map(Path::to_path_buf);
    let tests = sources.files().filter_map(companion);
    files
        .chain(tests)
        .chain(sources.folders().map(Path::to_path_buf))
        .collect()
}

/// Stores of memory in folders: below `memory` in the state, or where the manifest's paths say.
pub(super) fn folders(
    config: &Config,
    state: &Path,
    outside: bool,
    vault: Option<Arc<SealKeyring>>,
) -> FolderMemory {
    FolderMemory::new(clawk_memory::Options {
        root: state.join("memory"),
        home: env::path("HOME"),
        tenant: config.settings.memory.tenant_id.clone().unwrap_or_default(),
        outside,
        vault,
    })
}

/// Folders of stores that lie outside of the state: what they hold says of itself where it came from, so that no tool may change
/// it. A workspace's files are the tools' own.
fn stores(config: &Config, manifest: &Manifest) -> Vec<PathBuf> {
    let files = folders(config, Path::new("/"), true, None);
    let stores = manifest.memory.iter().flat_map(|memory| &memory.stores);
    let outside = |store: &&Store| {
        let path = store.path.as_deref().unwrap_or_default();
        store.kind != StoreType::Workspace && (path.starts_with("~/") || Path::new(path).is_absolute())
    };
    let folder = |store| files.base(store, &manifest.identity.name).ok(); // silent-ok: the start says what is wrong with it
    stores.filter(outside).filter_map(folder).collect()
}

/// `clawk.toml` and what it and the manifest name.
pub(crate) fn of_config(config: &Config, manifest: &Manifest) -> Vec<PathBuf> {
    let settings = &config.settings;
    let folder = config.folder();
    let mut read: Vec<PathBuf> = config.file.iter().cloned().chain(config::users_own()).collect();
    read.extend(trust::file());
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
    read.extend(stores(config, manifest));
    // What the record is checked against.
    read.extend(settings.checkpoints.file.iter().cloned());
    read.extend(settings.audit.file.iter().cloned());
    for provider in &manifest.providers {
        let script = ["script:", "file:", AUTO]
            .iter()
            .find_map(|scheme| provider.endpoint.strip_prefix(scheme))
            // `auto:` alone names no script, and so not the whole folder.
            .filter(|path| !path.trim_matches('/').is_empty());
        read.extend(script.map(|path| manifest.dir.join(path.strip_prefix("//").unwrap_or(path))));
    }
    read
}

/// Programs that the agent starts by a path: this very one, executors, servers, with scripts that they are given. Each may
/// have rights and secrets that the tool which would change it has not.
pub(crate) fn programs(config: &Config, manifest: &Manifest, workdir: &Path) -> Vec<PathBuf> {
    let folder = config.folder();
    let mut found: Vec<PathBuf> = std::env::current_exe().into_iter().collect();
    let mut command = |words: &[String], from: &Path| {
        let Some((program, args)) = words.split_first() else {
            return;
        };
        if program.contains('/') {
            found.push(from.join(program));
        }
        found.extend(args.iter().filter_map(|arg| script(arg, workdir)));
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
    let keepers = keepers.filter_map(|store| store.server().ok().flatten()); // silent-ok: said where it is used
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

/// A file that an argument names, if it is a program's text.
fn script(arg: &str, workdir: &Path) -> Option<PathBuf> {
    let path = workdir.join(arg);
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    (SCRIPTS.contains(&ending.as_str()) && path.is_file()).then_some(path)
}

/// All of it, for verbs that start nothing.
pub(crate) fn of(
    file: &Path,
    sources: &SourceFiles,
    config: &Config,
    manifest: &Manifest,
    workdir: &Path,
) -> Result<RuntimeFiles> {
    let mut read = of_sources(sources);
    read.push(file.with_file_name(config::BESIDE));
    read.extend(of_config(config, manifest));
    read.extend(programs(config, manifest, workdir));
    Ok(RuntimeFiles {
        state: None,
        files: absolute(read)?,
    })
}

/// Of a Sandbox alone: its file.
pub(crate) fn of_sandbox(file: &Path) -> Result<RuntimeFiles> {
    Ok(RuntimeFiles {
        state: None,
        files: absolute(vec![file.to_path_buf(), file.with_file_name(config::BESIDE)])?,
    })
}

/// As names that mean the same from anywhere. Links stay: each is a place of its own.
pub(crate) fn absolute(read: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
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

/// Refuses mounts that say `rw` and of which nothing could be written.
pub(crate) fn consistent(
    config: &Config,
    manifest: &Manifest,
    read: &[PathBuf],
    workdir: &Path,
) -> Result<()> {
    let own = RuntimeFiles {
        state: None,
        files: read.to_vec(),
    };
    let defaults = config.settings.sandbox.defaults();
    let plans = manifest
        .sandboxes()
        .map(|sandbox| Plan::compile(Some(sandbox), &defaults));
    let undeclared = manifest.sandbox.is_none().then(|| Plan::compile(None, &defaults));
    for plan in plans.chain(undeclared) {
        let contradiction = plan.filesystem().contradicts(&own, workdir);
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

/// Entries of `denied_paths` that name nothing on this machine, as far as one can say: perhaps they are misspelt.
pub(crate) fn denied_in_vain(config: &Config, manifest: &Manifest, workdir: &Path) -> Vec<String> {
    let plan = Plan::compile(manifest.sandbox.as_ref(), &config.settings.sandbox.defaults());
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

/// At level `container`, where only what is there can be covered: makes what a start would read if a tool made it.
///
/// # Errors
/// It can't be made; then nothing starts.
pub(crate) fn make_missing(plan: &Plan, read: &[PathBuf], workdir: &Path) -> Result<()> {
    if plan.level() != Level::Container {
        return Ok(());
    }
    let own = RuntimeFiles {
        state: None,
        files: read.to_vec(),
    };
    let plan = plan.clone().keeping(&own, workdir);
    for path in read.iter().filter(|path| plan.filesystem().keeps(path)) {
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
        out::note(&format!(
            "made an empty `{}`: tools may write there, and none may make one of its own",
            path.display()
        ));
    }
    Ok(())
}

fn is_policy(file: &Path) -> bool {
    clawk_manifest::policy(file, &clawk_manifest::LoadOptions::default())
        .1
        .is_some()
}
