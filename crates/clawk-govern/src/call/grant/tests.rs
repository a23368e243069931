//! What standing grants are bound to keeps its bytes: a grant that a person gave under an earlier version holds under this one.

use clawk_manifest::model::Sandbox;
use clawk_plan::{Plan, PlanDefaults};
use serde_json::json;

use super::{basis_digest, digest_of_plan};
use crate::witness::GrantPrecondition;

/// If this fails, something changed how a plan is written, a renamed type, field or variant for example. Every standing grant of every
/// user would then be void. Give the changed type a `Debug` that writes the old text; do not change the digests.
#[test]
fn the_digest_of_a_plan_is_that_of_earlier_versions() {
    let declared: Sandbox = serde_json::from_value(json!({
        "name": "box",
        "level": "container",
        "runtime": "docker",
        "capabilities": {
            "network": {"mode": "allowlist", "allowed_hosts": ["api.example.com:443", "*.example.org"]},
            "filesystem": {
                "mode": "scoped",
                "mount_paths": [{"path": "./work", "permissions": "rw"}, {"path": "/data", "permissions": "ro"}],
                "denied_paths": ["./work/private", "/data/keys"]
            },
            "shell": {"mode": "restricted", "blocked_commands": ["rm", "git push"]},
            "secrets": {"injection": "environment"}
        },
        "resource_limits": {"memory_mb": 512, "cpu_shares": 256, "max_processes": 64, "max_open_files": 128,
            "timeout_ms": 9000, "max_output_bytes": 4096}
    }))
    .unwrap();
    let defaults = PlanDefaults::default();
    for (plan, pinned) in [
        (
            Plan::compile(Some(&declared), &defaults),
            "3720e0169b254d79faf3df0dc2a0472a04249a589adde3abe0b3bf6bf22d9184",
        ),
        (
            Plan::for_undeclared(&defaults),
            "62a2e73d464fc0d27585fe40897074b2567b5b8c72a34ba51ee196b5ea8bcd73",
        ),
        (
            Plan::for_undeclared(&PlanDefaults {
                allow_none: true,
                ..defaults
            }),
            "a9f5b28448ac771c5f4417889ab37424abca0a107650ad1ca1c67d224f71c325",
        ),
    ] {
        assert_eq!(digest_of_plan(&plan).to_hex(), pinned, "{plan:?}");
    }
}

#[test]
fn the_basis_of_a_standing_grant_is_that_of_earlier_versions() {
    let stands_on = [
        GrantPrecondition::new("the program /bin/ls", "00ff"),
        GrantPrecondition::new("the server files", "stdio"),
    ];
    assert_eq!(
        basis_digest("agent 1.0.0", &stands_on).to_hex(),
        "e7b39ca869745f3fea54e893717c8434b17bba031beaf83cbf573c5f2802034a"
    );
}
