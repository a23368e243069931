use std::path::Path;
use std::time::{Duration, Instant};

use clawk_kernel::ports::{RunError, RunOutcome};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{FileTool, Job, apart};
use crate::call::ExecutorCall;
use crate::testing::{Ran, builtins, launcher, open_plan, plan_at, text};

/// The whole host, so that a file tool can look at its own process.
fn whole(level: &str) -> Ran {
    Ran::new(plan_at(level, json!({"filesystem": {"mode": "full"}})))
}

async fn status(level: &str, dir: &Path) -> RunOutcome {
    whole(level)
        .run(
            &builtins(dir),
            dir,
            "file-read",
            json!({"path": "/proc/self/status"}),
        )
        .await
        .expect("read")
}

fn field(status: &RunOutcome, name: &str) -> String {
    let text = text(status);
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.expect("there").trim().to_owned()
}

#[tokio::test]
async fn at_level_process_a_file_tool_is_another_process_and_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let own = std::process::id().to_string();
    let inside = status("none", dir.path()).await;
    assert_eq!(field(&inside, "Pid:"), own);
    assert_eq!(inside.obtained.label(), "none");
    let apart = status("process", dir.path()).await;
    assert_ne!(field(&apart, "Pid:"), own);
    assert_eq!(field(&apart, "NoNewPrivs:"), "1");
    assert_eq!(
        field(&apart, "Threads:"),
        "1",
        "`max_processes` may allow just one"
    );
    assert_eq!(apart.obtained.label(), "process");
    for mechanism in [
        "view",
        "environment:explicit",
        "rlimit:nofile",
        "checks:filesystem",
    ] {
        assert!(
            apart.obtained.mechanisms.iter().any(|held| held == mechanism),
            "{mechanism}"
        );
    }
}

#[tokio::test]
async fn a_failure_keeps_the_level_and_the_environment_is_empty() {
    let dir = tempfile::tempdir().expect("a folder");
    let runner = builtins(dir.path());
    let ran = whole("process");
    let absent = ran
        .run(&runner, dir.path(), "file-read", json!({"path": "absent"}))
        .await
        .expect("ran");
    assert!(absent.is_error && absent.obtained.label() == "process");
    let variables = ran
        .run(
            &runner,
            dir.path(),
            "file-read",
            json!({"path": "/proc/self/environ"}),
        )
        .await
        .expect("ran");
    assert_eq!(text(&variables), "");
}

#[tokio::test]
async fn what_needs_no_walls_says_built_in() {
    let dir = tempfile::tempdir().expect("a folder");
    let ran = Ran::new(open_plan());
    let echo = ran
        .run(
            &builtins(dir.path()),
            dir.path(),
            "echo",
            json!({"text": "hello"}),
        )
        .await
        .expect("ran");
    assert_eq!(
        (echo.obtained.label(), echo.obtained.mechanisms.as_slice()),
        ("built-in", ["no-host-access".to_owned()].as_slice())
    );
    let web = ran
        .run(
            &builtins(dir.path()),
            dir.path(),
            "web-fetch",
            json!({"url": "http://127.0.0.1:1/"}),
        )
        .await
        .expect("nobody listens there");
    assert_eq!(
        (web.obtained.label(), web.obtained.mechanisms.as_slice()),
        ("built-in", ["egress:guarded".to_owned()].as_slice())
    );
}

/// A write whose process is replaced by the fixture's `mode`.
async fn broken(dir: &Path, mode: &str) -> RunError {
    let arguments: Map<String, Value> =
        serde_json::from_value(json!({"path": "f", "content": "new"})).expect("an object");
    let plan = open_plan();
    let call = ExecutorCall {
        request_id: "a-call",
        key: None,
        marks: &[],
        apart: &clawk_kernel::place::ExcludedPaths::default(),
        arguments: &arguments,
        plan: &plan,
        workdir: dir,
        timeout_ms: 20_000,
        tool: "tool",
        connections: clawk_kernel::ports::ConnectionCollector::default(),
        stop: CancellationToken::new(),
    };
    let job = Job {
        marks: Vec::new(),
        apart: clawk_kernel::place::ExcludedPaths::default(),
        linked: super::left::HardLinkedFiles::default(),
        tool: FileTool::Write,
        arguments: arguments.clone(),
        filesystem: plan.filesystem().clone(),
        workdir: dir.to_path_buf(),
        stop: CancellationToken::new(),
    };
    let mut spec = apart::job_spec(&call, &job).expect("a process");
    spec.args = vec![mode.to_owned()];
    apart::run(&launcher(), &spec).await.expect_err("broken")
}

#[tokio::test]
async fn a_broken_process_is_an_unknown_outcome_and_no_half_a_file() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("f"), "old").expect("written");
    for (mode, part) in [
        ("crash", "signal 6"),
        ("garbage", "no readable reply"),
        ("unheard-of", "code 2"),
    ] {
        match broken(dir.path(), mode).await {
            RunError::Unknown(why) => assert!(why.contains(part), "{why}"),
            other => panic!("{mode}: {other:?}"),
        }
        assert_eq!(
            std::fs::read_to_string(dir.path().join("f")).expect("there"),
            "old"
        );
    }
}

#[tokio::test]
async fn a_write_ended_at_any_moment_leaves_the_old_file_or_the_new_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let runner = builtins(dir.path());
    let new = "n".repeat(1_000_000);
    let mut ran = Ran::new(open_plan());
    let mut ends = [0, 0];
    for timeout_ms in (1..=10).chain([20_000]) {
        std::fs::write(dir.path().join("f"), "old").expect("written");
        ran.timeout_ms = timeout_ms;
        let write = json!({"path": "f", "content": new});
        match ran.run(&runner, dir.path(), "file-write", write).await {
            Ok(outcome) => {
                assert!(!outcome.is_error, "{}", text(&outcome));
                ends[0] += 1;
            }
            Err(RunError::Timeout { .. }) => ends[1] += 1,
            Err(other) => panic!("{other:?}"),
        }
        let held = std::fs::read_to_string(dir.path().join("f")).expect("there");
        assert!(held == "old" || held == new, "{} bytes", held.len());
    }
    assert!(ends.iter().all(|count| *count > 0), "{ends:?}");
}

#[tokio::test]
async fn time_and_output_are_held() {
    let dir = tempfile::tempdir().expect("a folder");
    // Slow to search without being large: every start of a line is tried, and no line ends it.
    std::fs::write(dir.path().join("slow"), "a".repeat(8_000_000)).expect("written");
    for n in 0..40 {
        std::fs::hard_link(dir.path().join("slow"), dir.path().join(format!("slow{n}"))).expect("linked");
    }
    let runner = builtins(dir.path());
    let mut ran = Ran::new(open_plan());
    ran.timeout_ms = 300;
    let started = Instant::now();
    let search = json!({"pattern": "(?i)a.{50}[^a]{3}b"});
    match ran.run(&runner, dir.path(), "file-search", search).await {
        Err(RunError::Timeout { timeout_ms, obtained }) => {
            assert_eq!((timeout_ms, obtained.label()), (300, "process"));
        }
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() < Duration::from_secs(10));
    let small = json!({"name": "s", "level": "process", "resource_limits": {"max_output_bytes": 1000},
        "capabilities": {"filesystem": {"mode": "full"}}});
    let ran = Ran::new(std::sync::Arc::new(clawk_plan::Plan::compile(
        Some(&serde_json::from_value(small).expect("a sandbox")),
        &clawk_plan::PlanDefaults::default(),
    )));
    std::fs::write(dir.path().join("text"), "line\n".repeat(1000)).expect("written");
    let cut = ran
        .run(&runner, dir.path(), "file-read", json!({"path": "text"}))
        .await
        .expect("ran");
    assert!(
        cut.is_error && text(&cut).contains("max_output_bytes"),
        "{}",
        text(&cut)
    );
}
