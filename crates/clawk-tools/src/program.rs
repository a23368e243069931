//! Programs of the operator that run beside the agent, each in a sandbox like a tool: the adapters of `custom` channels.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use clawk_manifest::model::{self, Manifest, NetworkMode, Sandbox, SandboxLevel};
use clawk_plan::Plan;
use clawk_sandbox::Spec;

use crate::bind::{ToolBinder, ToolHost};
use crate::config::{ToolConfig, ToolsConfig};
use crate::egress::EgressProxies;

/// Such a program, as configured in `clawk.toml`.
#[derive(Debug, Clone)]
pub struct OperatorProgram<'a> {
    /// The program's name. It gets the secrets of `[secrets]` that are granted to a tool with this name.
    pub name: &'a str,
    /// Program and arguments.
    pub command: &'a [String],
    /// Environment variables.
    pub env: &'a BTreeMap<String, String>,
    /// Environment variables with secret values, as secret references.
    pub secret_env: &'a BTreeMap<String, String>,
    /// Files that it may read.
    pub read_paths: &'a [PathBuf],
    /// The name of a sandbox of the manifest. `None`: a sandbox without files that reaches only `allowed_hosts`.
    pub sandbox: Option<&'a str>,
    /// The hosts that it may connect to.
    pub allowed_hosts: &'a [String],
}

/// Builds the spec to start a program with [`clawk_sandbox::Launcher::start_service`]. Starts nothing.
///
/// # Errors
/// The reason why it can't be started, for people to read.
pub fn program_spec(
    manifest: &Manifest,
    host: &ToolHost,
    given: &OperatorProgram<'_>,
) -> Result<Spec, String> {
    let own;
    let sandbox = match given.sandbox {
        Some(name) if !given.allowed_hosts.is_empty() => {
            return Err(format!(
                "`sandbox` and `allowed_hosts` exclude each other: the network is the sandbox `{name}`'s"
            ));
        }
        Some(name) => manifest
            .sandboxes()
            .find(|sandbox| sandbox.name == name)
            .ok_or_else(|| format!("`sandbox` names `{name}`, which the manifest does not declare"))?,
        None => {
            own = closed_sandbox(given);
            &own
        }
    };
    let none = ToolsConfig::default();
    let exits = Arc::new(EgressProxies::new(
        host.egress.clone(),
        host.secrets.env().clone(),
    ));
    let binder = ToolBinder {
        exits: Arc::clone(&exits),
        manifest,
        config: &none,
        host,
        servers: BTreeMap::new(),
    };
    let plan = Plan::compile(Some(sandbox), &host.defaults).with_runtime_files(&host.own, &host.workdir);
    let config = ToolConfig {
        env: given.env.clone(),
        secret_env: given.secret_env.clone(),
        read_paths: given.read_paths.to_vec(),
        ..ToolConfig::default()
    };
    let command = binder.build_command(given.command, &config, &plan)?;
    let way = exits
        .way_out(&[given.name], &plan)
        .map_err(|refusal| refusal.to_string())?;
    let mut spec = Spec::new(command.program, Arc::new(plan));
    spec.args = command.args;
    spec.env = command.env;
    let secrets = command.secrets.iter();
    spec.env
        .extend(secrets.map(|(name, secret)| (name.clone(), secret.expose().to_owned())));
    spec.workdir = Some(host.workdir.clone());
    spec.read_paths = command.read_paths;
    way.add_to_spec(&mut spec);
    Ok(spec)
}

/// A sandbox of level `process` without files that reaches only these hosts.
fn closed_sandbox(given: &OperatorProgram<'_>) -> Sandbox {
    let network = model::NetworkSettings {
        mode: if given.allowed_hosts.is_empty() {
            NetworkMode::Deny
        } else {
            NetworkMode::Allowlist
        },
        allowed_hosts: given.allowed_hosts.to_vec(),
        ..model::NetworkSettings::default()
    };
    Sandbox {
        name: given.name.to_owned(),
        version: None,
        labels: BTreeMap::new(),
        level: SandboxLevel::Process,
        runtime: None,
        capabilities: model::Capabilities {
            network,
            ..model::Capabilities::default()
        },
        resource_limits: model::ResourceLimits::default(),
    }
}
