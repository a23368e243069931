use super::*;
use clawk_manifest::model;

fn sandbox(value: serde_json::Value) -> model::Sandbox {
    serde_json::from_value(value).expect("a sandbox")
}

#[test]
fn without_a_sandbox_everything_is_denied_and_the_level_is_process() {
    let plan = Plan::compile(None, &PlanDefaults::default());
    assert_eq!(plan.level(), Level::Process);
    assert_eq!(plan.network().mode, NetworkMode::Deny);
    assert_eq!(plan.filesystem().mode, FsMode::Deny);
    assert_eq!(plan.shell_mode(), ShellMode::Deny);
    let loose = Plan::compile(
        None,
        &PlanDefaults {
            allow_none: true,
            ..PlanDefaults::default()
        },
    );
    assert_eq!(loose.level(), Level::None);
}

#[test]
fn limits_come_from_the_manifest_and_else_from_the_defaults() {
    let given =
        sandbox(serde_json::json!({"name": "s", "level": "process", "resource_limits": {"memory_mb": 64}}));
    let plan = Plan::compile(Some(&given), &PlanDefaults::default());
    assert_eq!(plan.limits().memory_mb, 64);
    assert_eq!(plan.limits().max_output_bytes, 1 << 20);
}

#[test]
fn a_pattern_that_cannot_be_read_refuses_every_call() {
    let given = sandbox(
        serde_json::json!({"name": "s", "level": "process", "capabilities": {
        "shell": {"mode": "restricted", "blocked_patterns": ["(?=x)"]}}}),
    );
    let refusal = Plan::compile(Some(&given), &PlanDefaults::default())
        .check_available()
        .expect_err("no such syntax");
    assert!(refusal.to_string().contains("(?=x)"), "{refusal}");
}

#[test]
fn what_a_plan_shows_is_its_view() {
    let plan = |level: &str, mode: &str| {
        let given = sandbox(
            serde_json::json!({"name": "s", "level": level, "capabilities": {"filesystem": {
            "mode": mode, "mount_paths": [{"path": "work", "permissions": "ro"}],
            "denied_paths": ["work/secret", "/usr/games"]}}}),
        );
        Plan::compile(Some(&given), &PlanDefaults::default())
    };
    let shows = |level: &str, mode: &str, path: &str| {
        plan(level, mode).shows_path(Path::new(path), Path::new("/home/a"))
    };
    for (path, seen) in [
        ("/usr/bin/git", true),
        ("/bin/sh", true),
        ("/usr/games/rogue", false),
        ("/home/a/work/run.sh", true),
        ("/home/a/work/secret/run.sh", false),
        ("/home/a/other/run.sh", false),
        ("/root/bin/git", false),
    ] {
        assert_eq!(shows("process", "scoped", path), seen, "{path}");
        let whole = seen || path == "/root/bin/git" || path == "/home/a/other/run.sh";
        assert_eq!(shows("process", "full", path), whole, "{path}");
    }
    assert!(!shows("process", "deny", "/home/a/work/run.sh"));
    assert!(shows("none", "deny", "/root/bin/git"));
    assert!(!shows("container", "full", "/usr/bin/git"));
}
