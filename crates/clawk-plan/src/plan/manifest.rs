//! Converts the manifest's Sandbox to a [`Plan`].

use std::path::PathBuf;

use clawk_manifest::model;

use super::{
    Denied, Filesystem, FsMode, Limits, Mount, Network, NetworkMode, Plan, PlanDefaults, SecretInjectionMode,
    Shell, ShellMode,
};
use crate::level::{Level, SandboxRefusal};
use crate::preflight::shell::{self, CommandPattern};

impl Plan {
    /// Compiles a Sandbox. `None` means that the agent declares none: see [`Plan::for_undeclared`].
    ///
    /// If a pattern can't be compiled, the plan refuses every call ([`Plan::check_available`] names the pattern). It never blocks less
    /// than the manifest says.
    #[must_use]
    pub fn compile(sandbox: Option<&model::Sandbox>, defaults: &PlanDefaults) -> Self {
        let Some(sandbox) = sandbox else {
            return Self::for_undeclared(defaults);
        };
        let mut defects = Vec::new();
        let capabilities = &sandbox.capabilities;
        let mut plan = Self {
            name: Some(sandbox.name.clone()),
            level: compile_level(sandbox.level),
            runtime: Some(sandbox.runtime().as_str().to_owned()),
            limits: compile_limits(&sandbox.resource_limits, &defaults.limits),
            network: compile_network(&capabilities.network),
            filesystem: compile_filesystem(&capabilities.filesystem, &mut defects),
            shell: compile_shell(&capabilities.shell, &mut defects),
            injection: match capabilities.secrets.injection {
                model::SecretInjection::HostBoundary => SecretInjectionMode::HostBoundary,
                model::SecretInjection::Environment => SecretInjectionMode::Environment,
                model::SecretInjection::FileMount => SecretInjectionMode::FileMount,
            },
            defect: None,
        };
        plan.defect = defects
            .into_iter()
            .next()
            .map(|missing| SandboxRefusal::Unavailable {
                level: plan.level,
                mechanism: "pattern".to_owned(),
                missing,
                hint: "correct the pattern in the Sandbox".to_owned(),
            });
        plan
    }
}

fn compile_level(level: model::SandboxLevel) -> Level {
    match level {
        model::SandboxLevel::None => Level::None,
        model::SandboxLevel::Process => Level::Process,
        model::SandboxLevel::Wasm => Level::Wasm,
        model::SandboxLevel::Container => Level::Container,
        model::SandboxLevel::Vm => Level::Vm,
    }
}

fn compile_limits(given: &model::ResourceLimits, defaults: &Limits) -> Limits {
    Limits {
        memory_mb: given.memory_mb.unwrap_or(defaults.memory_mb),
        cpu_shares: given.cpu_shares.unwrap_or(defaults.cpu_shares),
        max_processes: given.max_processes.unwrap_or(defaults.max_processes),
        max_open_files: given.max_open_files.unwrap_or(defaults.max_open_files),
        timeout_ms: given.timeout_ms.unwrap_or(defaults.timeout_ms),
        max_output_bytes: given.max_output_bytes.unwrap_or(defaults.max_output_bytes),
    }
}

fn compile_network(given: &model::NetworkSettings) -> Network {
    let guard = &given.ssrf_protection;
    Network {
        mode: match given.mode {
            model::NetworkMode::Deny => NetworkMode::Deny,
            model::NetworkMode::Allowlist => NetworkMode::Allowlist,
            model::NetworkMode::AllowAll => NetworkMode::AllowAll,
        },
        allowed_hosts: given
            .allowed_hosts
            .iter()
            .map(|host| host.trim().to_ascii_lowercase())
            .collect(),
        block_private_ips: guard.enabled && guard.block_private_ips,
        dns_pinning: guard.enabled && guard.dns_pinning,
    }
}

fn compile_filesystem(given: &model::FilesystemSettings, defects: &mut Vec<String>) -> Filesystem {
    let mounts = given.mount_paths.iter().map(|mount| Mount {
        path: PathBuf::from(&mount.path),
        writable: mount.permissions == model::MountPermission::Rw,
    });
    Filesystem {
        mode: match given.mode {
            model::FilesystemMode::Deny => FsMode::Deny,
            model::FilesystemMode::ReadOnly => FsMode::ReadOnly,
            model::FilesystemMode::Scoped => FsMode::Scoped,
            model::FilesystemMode::Full => FsMode::Full,
        },
        mounts: mounts.collect(),
        own: Vec::new(),
        denied: given
            .denied_paths
            .iter()
            .map(|text| compile_denied(text, defects))
            .collect(),
    }
}

fn compile_denied(text: &str, defects: &mut Vec<String>) -> Denied {
    Denied::try_from(text.to_owned()).unwrap_or_else(|defect| {
        defects.push(defect);
        Denied::from_path(text)
    })
}

fn compile_shell(given: &model::ShellSettings, defects: &mut Vec<String>) -> Shell {
    let mut commands = Vec::with_capacity(given.blocked_commands.len());
    for text in given
        .blocked_commands
        .iter()
        .filter(|text| !text.trim().is_empty())
    {
        match CommandPattern::compile(text) {
            Ok(pattern) => commands.push(pattern),
            Err(error) => defects.push(format!(
                "`blocked_commands` entry `{text}` can't be read: {error}"
            )),
        }
    }
    let mut patterns = Vec::with_capacity(given.blocked_patterns.len());
    for text in &given.blocked_patterns {
        match shell::compile_pattern(text) {
            Ok(pattern) => patterns.push(pattern),
            Err(error) => defects.push(format!(
                "`blocked_patterns` entry `{text}` can't be read: {error}"
            )),
        }
    }
    let mode = match given.mode {
        model::ShellMode::Deny => ShellMode::Deny,
        model::ShellMode::Restricted => ShellMode::Restricted,
        model::ShellMode::Full => ShellMode::Full,
    };
    Shell {
        mode,
        commands,
        patterns,
    }
}
