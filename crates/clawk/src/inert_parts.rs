//! Warns about parts of a manifest that are valid and do nothing, or would fail where nobody looks: a mount that does not exist,
//! a channel that lets nobody in, a server that a package manager fetches in a sandbox without network.

use std::path::Path;

use clawk_channels::is_trigger;
use clawk_manifest::model::{ChannelType, FilesystemMode, McpUri, NetworkMode, Sandbox, SandboxLevel, Tool};
use clawk_manifest::{Diagnostic, Manifest};

/// Programs that download a server from a registry when they start it.
const FETCHERS: [&str; 8] = ["npx", "npm", "bunx", "pnpm", "uvx", "uv", "pipx", "deno"];

/// Returns one warning for each such part. `workdir`: the folder to which mounts are relative.
pub(crate) fn inert_part_warnings(manifest: &Manifest, workdir: &Path) -> Vec<Diagnostic> {
    let mut found = missing_mount_warnings(manifest, workdir);
    found.extend(closed_channel_warnings(manifest));
    found.extend(fetched_server_warnings(manifest));
    found
}

/// Finds mounts whose path does not exist. The sandbox leaves them out.
fn missing_mount_warnings(manifest: &Manifest, workdir: &Path) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut seen = Vec::new();
    for sandbox in manifest.sandboxes() {
        let files = &sandbox.capabilities.filesystem;
        let mounts = matches!(files.mode, FilesystemMode::ReadOnly | FilesystemMode::Scoped);
        for mount in files.mount_paths.iter().filter(|_| mounts) {
            let path = workdir.join(&mount.path);
            if path.exists() || seen.contains(&(&sandbox.name, &mount.path)) {
                continue;
            }
            seen.push((&sandbox.name, &mount.path));
            let text = format!(
                "the mount `{}` of `{}` does not exist ({}): tools see nothing there",
                mount.path,
                sandbox.name,
                path.display()
            );
            found.push(
                Diagnostic::warning("mount-missing", "/spec/sandbox", text).with_help(
                    "make the folder, or mend the path; it is relative to the manifest's folder, or to `workdir` of clawk.toml",
                ),
            );
        }
    }
    found
}

/// Finds channels that let nobody in because they have no `access_control`.
fn closed_channel_warnings(manifest: &Manifest) -> Vec<Diagnostic> {
    let channels = manifest.channels.iter().enumerate();
    let closed = channels.filter(|(_, channel)| {
        channel.access_control.is_none() && channel.kind != ChannelType::Cli && !is_trigger(channel.kind)
    });
    closed
        .map(|(at, channel)| {
            let text = format!(
                "the channel `{}` has no `access_control`: it lets in nobody but `admins` of `[channels.{}]` in clawk.toml",
                channel.name, channel.name
            );
            Diagnostic::warning("channel-closed", format!("/spec/channels/{at}"), text).with_help(
                "`access_control: { mode: pairing, pairing: { code_expiry_minutes: 30, max_pending: 10 } }` gives a newcomer a code that you \
                 approve; `{ mode: allowlist, allowed_ids: [\"ID\"] }` lets in the listed people",
            )
        })
        .collect()
}

/// Finds MCP servers that a package manager fetches when it starts them, in a sandbox that has no network for that.
fn fetched_server_warnings(manifest: &Manifest) -> Vec<Diagnostic> {
    let tools = manifest.tools.iter().enumerate();
    tools
        .filter_map(|(at, tool)| {
            let fetcher = fetching_program(tool)?;
            let sandbox = manifest.sandbox_of(tool);
            let text = fetch_obstacle(fetcher, sandbox)?;
            let text = format!("the server of `{}` will not start: {text}", tool.name);
            Some(
                Diagnostic::warning("server-unfetched", format!("/spec/tools/{at}/mcp_source"), text).with_help(
                    "install the server once and name its own program in `mcp_source.uri`, or give the tool a sandbox of its own with the \
                     registry's host in `allowed_hosts` and a folder for the cache",
                ),
            )
        })
        .collect()
}

/// Returns the package manager that starts the tool's server, if it is one.
pub(crate) fn fetching_program(tool: &Tool) -> Option<&str> {
    let McpUri::Stdio { path, .. } = &tool.mcp_source.as_ref()?.uri else {
        return None;
    };
    let name = path.rsplit('/').next()?;
    FETCHERS.contains(&name).then_some(name)
}

/// Returns why the package manager can't fetch anything in this sandbox.
fn fetch_obstacle(fetcher: &str, sandbox: Option<&Sandbox>) -> Option<String> {
    let Some(sandbox) = sandbox else {
        return Some(format!(
            "`{fetcher}` fetches it from a registry, and without a Sandbox nothing has network"
        ));
    };
    if sandbox.level == SandboxLevel::None {
        return None;
    }
    let network = &sandbox.capabilities.network;
    let none = match network.mode {
        NetworkMode::Deny => true,
        NetworkMode::Allowlist => network.allowed_hosts.is_empty(),
        NetworkMode::AllowAll => false,
    };
    none.then(|| {
        format!(
            "`{fetcher}` fetches it from a registry, and its sandbox `{}` has no network",
            sandbox.name
        )
    })
}
