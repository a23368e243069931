use super::bundle::{ContainerIdentity, OciBundle, Process};
use super::guard::ContainerGuardedCalls;
use super::seccomp::{self, SeccompEnforcer};
use clawk_plan::plan::Limits;

#[test]
fn a_bundle_has_no_right_no_network_and_no_writable_root() {
    let bundle = OciBundle {
        root: std::path::Path::new("/r"),
        binds: &[],
        masks: &["/secret".into()],
        process: Process {
            argv: vec!["a"],
            env: Vec::new(),
            cwd: std::path::Path::new("/tmp"),
        },
        limits: &Limits::default(),
        identity: ContainerIdentity::Mapped(1000, 1000),
        cgroup: None,
        holds: SeccompEnforcer::Runtime,
        judged: ContainerGuardedCalls::Nothing,
        listener: None,
    };
    let json = bundle.to_json();
    assert_eq!(json["root"]["readonly"], true);
    assert_eq!(json["process"]["noNewPrivileges"], true);
    for set in ["bounding", "effective", "permitted", "inheritable", "ambient"] {
        assert_eq!(json["process"]["capabilities"][set], serde_json::json!([]));
    }
    let namespaces = json["linux"]["namespaces"].to_string();
    assert!(
        ["pid", "ipc", "mount", "network", "user"]
            .iter()
            .all(|kind| namespaces.contains(kind)),
        "{namespaces}"
    );
    assert_eq!(json["linux"]["uidMappings"][0]["hostID"], 1000);
    assert!(
        json["linux"]["maskedPaths"]
            .as_array()
            .unwrap()
            .contains(&"/secret".into())
    );
}

#[test]
fn the_list_of_calls_forbids_by_default() {
    let profile = seccomp::seccomp_profile(SeccompEnforcer::Runtime, ContainerGuardedCalls::Nothing, None);
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let always: Vec<&str> = profile["syscalls"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|rule| rule["action"] == "SCMP_ACT_ALLOW" && rule.get("args").is_none())
        .flat_map(|rule| rule["names"].as_array().unwrap())
        .map(|name| name.as_str().unwrap())
        .collect();
    for name in [
        "mount",
        "unshare",
        "setns",
        "ptrace",
        "bpf",
        "keyctl",
        "io_uring_setup",
        "clone3",
        "chroot",
        "socket",
        "chmod",
        "open",
        "openat",
        "mknod",
        "ioctl",
        "clone",
    ] {
        assert!(!always.contains(&name), "{name}");
    }
    assert!(always.contains(&"read") && always.contains(&"execve"));
}

#[test]
fn a_list_that_comes_after_ours_names_nothing_that_libraries_pass_over() {
    for judged in [
        ContainerGuardedCalls::Nothing,
        ContainerGuardedCalls::Changes,
        ContainerGuardedCalls::All,
    ] {
        let profile = seccomp::seccomp_profile(SeccompEnforcer::Ours, judged, None);
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ALLOW");
        let refused: Vec<&serde_json::Value> = profile["syscalls"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|rule| rule["action"] == "SCMP_ACT_ERRNO" && rule.get("args").is_none())
            .flat_map(|rule| rule["names"].as_array().unwrap())
            .collect();
        for name in [
            "mount", "unshare", "setns", "bpf", "keyctl", "chroot", "seccomp", "fsopen",
        ] {
            assert!(refused.contains(&&serde_json::json!(name)), "{name}");
        }
    }
}
