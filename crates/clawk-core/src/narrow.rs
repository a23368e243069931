//! Checks that one sandbox grants nothing that another does not, because `context.sandbox` can only narrow (R15).

use clawk_manifest::model::{
    FilesystemMode, FilesystemSettings, MountPermission, NetworkMode, NetworkSettings, Sandbox,
    SecretInjection, Secrets, ShellMode, ShellSettings,
};
use clawk_plan::plan::Limits;

/// `inner` grants nothing beyond `outer`. What can't be compared counts as beyond.
pub fn sandbox_within(inner: &Sandbox, outer: &Sandbox) -> bool {
    let (a, b) = (&inner.capabilities, &outer.capabilities);
    inner.level >= outer.level
        && network_within(&a.network, &b.network)
        && files_within(&a.filesystem, &b.filesystem)
        && shell_within(&a.shell, &b.shell)
        && secrets_within(&a.secrets, &b.secrets)
}

/// The same of limits.
pub const fn limits_within(inner: &Limits, outer: &Limits) -> bool {
    inner.memory_mb <= outer.memory_mb
        && inner.cpu_shares <= outer.cpu_shares
        && inner.max_processes <= outer.max_processes
        && inner.max_open_files <= outer.max_open_files
        && inner.timeout_ms <= outer.timeout_ms
        && inner.max_output_bytes <= outer.max_output_bytes
}

/// Returns whether every one of `these` is in `those`.
fn all_in<T: PartialEq>(these: &[T], those: &[T]) -> bool {
    these.iter().all(|one| those.contains(one))
}

fn network_within(inner: &NetworkSettings, outer: &NetworkSettings) -> bool {
    let (a, b) = (&inner.ssrf_protection, &outer.ssrf_protection);
    let guarded = (a.enabled || !b.enabled)
        && (a.block_private_ips || !b.block_private_ips)
        && (a.dns_pinning || !b.dns_pinning);
    match (inner.mode, outer.mode) {
        (NetworkMode::Deny, _) => true,
        (NetworkMode::Allowlist, NetworkMode::Allowlist) => {
            guarded && all_in(&inner.allowed_hosts, &outer.allowed_hosts)
        }
        (NetworkMode::Allowlist | NetworkMode::AllowAll, NetworkMode::AllowAll) => guarded,
        (NetworkMode::Allowlist | NetworkMode::AllowAll, NetworkMode::Deny)
        | (NetworkMode::AllowAll, NetworkMode::Allowlist) => false,
    }
}

fn files_within(inner: &FilesystemSettings, outer: &FilesystemSettings) -> bool {
    if inner.mode > outer.mode {
        return false;
    }
    if inner.mode == FilesystemMode::Deny {
        return true;
    }
    let mounted = inner.mount_paths.iter().all(|mount| {
        outer.mode == FilesystemMode::Full
            || outer.mount_paths.iter().any(|own| {
                own.path == mount.path
                    && (own.permissions == MountPermission::Rw || mount.permissions == MountPermission::Ro)
            })
    });
    mounted && all_in(&outer.denied_paths, &inner.denied_paths)
}

fn shell_within(inner: &ShellSettings, outer: &ShellSettings) -> bool {
    inner.mode == ShellMode::Deny
        || (inner.mode <= outer.mode
            && all_in(&outer.blocked_commands, &inner.blocked_commands)
            && all_in(&outer.blocked_patterns, &inner.blocked_patterns))
}

fn secrets_within(inner: &Secrets, outer: &Secrets) -> bool {
    let (a, b) = (&inner.leak_detection, &outer.leak_detection);
    (inner.injection == SecretInjection::HostBoundary || inner.injection == outer.injection)
        && (!b.enabled || (a.enabled && a.patterns >= b.patterns))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::sandbox_within;

    fn sandbox(level: &str, capabilities: Value) -> clawk_manifest::model::Sandbox {
        let value = json!({"name": "s", "level": level, "capabilities": capabilities});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn each_part_that_grants_more_is_wider() {
        let outer = json!({
            "network": {"mode": "allowlist", "allowed_hosts": ["a.example"]},
            "filesystem": {"mode": "scoped", "mount_paths": [{"path": "./w", "permissions": "ro"}], "denied_paths": ["./w/.env"]},
            "shell": {"mode": "restricted", "blocked_commands": ["rm *"]},
        });
        let own = sandbox("process", outer.clone());
        assert!(sandbox_within(&own, &own));
        assert!(
            sandbox_within(&sandbox("process", json!({})), &own),
            "nothing granted"
        );
        assert!(
            sandbox_within(&sandbox("container", outer.clone()), &own),
            "stronger"
        );
        let wider = [
            ("/network", json!({"mode": "allow-all"})),
            (
                "/network",
                json!({"mode": "allowlist", "allowed_hosts": ["b.example"]}),
            ),
            (
                "/network",
                json!({"mode": "allowlist", "allowed_hosts": ["a.example"], "ssrf_protection": {"enabled": false}}),
            ),
            ("/filesystem/mode", json!("full")),
            ("/filesystem/mount_paths/0/permissions", json!("rw")),
            ("/filesystem/mount_paths/0/path", json!("./other")),
            ("/filesystem/denied_paths", json!([])),
            ("/shell/mode", json!("full")),
            ("/shell/blocked_commands", json!([])),
            ("/secrets", json!({"injection": "environment"})),
            ("/secrets", json!({"leak_detection": {"enabled": false}})),
        ];
        for (at, value) in wider {
            let mut other = outer.clone();
            match other.pointer_mut(at) {
                Some(found) => *found = value.clone(),
                None => other["secrets"] = value.clone(),
            }
            assert!(
                !sandbox_within(&sandbox("process", other), &own),
                "{at} = {value}"
            );
        }
        assert!(!sandbox_within(&sandbox("none", outer), &own), "a lower level");
    }
}
