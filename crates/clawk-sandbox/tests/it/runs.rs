use std::time::{Duration, Instant};

use clawk_plan::{Level, Limits, SandboxRefusal};
use clawk_sandbox::{LaunchError, Launcher, LimitHit, Spec};

use super::{bytes, launcher, lives, plan, run, script, seconds, text};

#[tokio::test]
async fn output_exit_code_and_facts() {
    let outcome = run(&script("echo out; echo err >&2; exit 3")).await;
    assert_eq!((outcome.exit_code, outcome.signal), (Some(3), None));
    assert_eq!(
        (text(&outcome.stdout), text(&outcome.stderr)),
        ("out\n".to_owned(), "err\n".to_owned())
    );
    assert_eq!(outcome.obtained.level, Level::Process);
    for mechanism in [
        "session",
        "view",
        "network:empty",
        "capabilities:none",
        "no_new_privs",
        "seccomp:allow-list",
        "rlimit:nofile",
    ] {
        assert!(
            outcome.obtained.mechanisms.iter().any(|m| m == mechanism),
            "{mechanism}: {:?}",
            outcome.obtained
        );
    }
    assert_eq!(outcome.obtained.missing, Vec::<String>::new());
    assert!(!outcome.is_success() && outcome.limit.is_none() && !outcome.truncated);
}

#[tokio::test]
async fn a_signal_is_told() {
    let outcome = run(&script("kill -SEGV $$")).await;
    assert_eq!((outcome.exit_code, outcome.signal), (None, Some(11)));
}

#[tokio::test]
async fn the_environment_is_what_was_given_and_nothing_else() {
    let mut spec = Spec::new("/usr/bin/env", plan(Limits::default()));
    assert_eq!(text(&run(&spec).await.stdout), "");
    spec.env = vec![("A".to_owned(), "1".to_owned())];
    assert_eq!(text(&run(&spec).await.stdout), "A=1\n");
}

#[tokio::test]
async fn standard_input_workdir_and_search_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut spec = Spec::new("cat", plan(Limits::default()));
    let long = "0123456789".repeat(100_000);
    spec.stdin = bytes(&long);
    assert_eq!(text(&run(&spec).await.stdout), long);
    let mut spec = script("pwd; cat");
    spec.workdir = Some(folder.path().to_path_buf());
    assert_eq!(
        text(&run(&spec).await.stdout).trim(),
        folder.path().to_str().expect("utf-8")
    );
    // A program that reads nothing does not hold the run up.
    let mut spec = script("exec true");
    spec.stdin = bytes(&long);
    assert!(run(&spec).await.is_success());
}

#[tokio::test]
async fn only_three_descriptors_are_inherited() {
    let leak = std::fs::File::open("/dev/null").expect("null");
    rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).expect("inheritable");
    let outcome = run(&script("ls -m /proc/self/fd")).await;
    assert_eq!(
        text(&outcome.stdout).trim(),
        "0, 1, 2, 3",
        "3 is the listing itself"
    );
}

#[tokio::test]
async fn a_child_that_ignores_sigterm_is_killed_after_the_grace() {
    let mut spec = script(&format!(
        "trap '' TERM; echo ready; while :; do sleep {}; done",
        seconds()
    ));
    spec.timeout_ms = Some(300);
    let started = Instant::now();
    let outcome = run(&spec).await;
    assert_eq!(outcome.limit, Some(LimitHit::Time(300)));
    assert_eq!(outcome.signal, Some(9));
    assert_eq!(text(&outcome.stdout), "ready\n");
    // It was asked before it was killed, and not for long.
    assert!(started.elapsed() >= Duration::from_millis(400) && started.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_timeout_asks_first_and_reaches_the_whole_group() {
    let word = seconds();
    let mut spec = script(&format!(
        "trap 'echo asked; exit 7' TERM; sleep {word} & sleep {word}; echo no"
    ));
    spec.timeout_ms = Some(300);
    let outcome = run(&spec).await;
    assert_eq!(text(&outcome.stdout), "asked\n");
    assert_eq!(
        (outcome.exit_code, outcome.limit),
        (Some(7), Some(LimitHit::Time(300)))
    );
    assert!(!lives(&word));
}

#[tokio::test]
async fn a_daemon_that_left_group_and_session_is_gone_when_the_call_returns() {
    let word = seconds();
    let outcome = run(&script(&format!(
        "(setsid sh -c 'sleep {word} & sleep {word}' </dev/null >/dev/null 2>&1 &) ; sleep 0.2; echo done"
    )))
    .await;
    assert_eq!(
        (text(&outcome.stdout).as_str(), outcome.exit_code),
        ("done\n", Some(0))
    );
    assert!(outcome.swept >= 1, "it had left something: {outcome:?}");
    assert!(!lives(&word));
}

#[tokio::test]
async fn dropping_the_call_kills_all_of_it() {
    let word = seconds();
    let mut spec = script(&format!("trap '' TERM; (setsid sleep {word} &); sleep {word}"));
    spec.timeout_ms = Some(60_000);
    let launcher = launcher();
    assert!(
        tokio::time::timeout(Duration::from_millis(500), launcher.launch(&spec))
            .await
            .is_err()
    );
    let started = Instant::now();
    while lives(&word) {
        assert!(started.elapsed() < Duration::from_secs(5), "still there");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .expect("VmRSS");
    line.split_ascii_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("a number")
}

#[tokio::test]
async fn a_hundred_megabytes_of_output_are_read_and_not_kept() {
    let spec = script("head -c 104857600 /dev/zero; echo end >&2");
    let before = resident_kib();
    let outcome = run(&spec).await;
    assert_eq!((outcome.stdout.len(), outcome.exit_code), (1 << 20, Some(0)));
    assert!(outcome.truncated && !outcome.is_success());
    assert_eq!(outcome.limit, Some(LimitHit::Output(1 << 20)));
    assert!(resident_kib() < before + 16 * 1024, "memory stayed bounded");
}

#[tokio::test]
async fn memory_above_the_limit_is_ended_and_told() {
    let mut spec = script("x=$(head -c 300000000 /dev/zero | tr '\\0' x); sleep 30");
    spec.plan = plan(Limits {
        memory_mb: 100,
        ..Limits::default()
    });
    assert_eq!(run(&spec).await.limit, Some(LimitHit::Memory(100)));
}

#[tokio::test]
async fn too_many_processes_are_ended_and_told() {
    let word = seconds();
    let mut spec = script(&format!(
        "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep {word} & done; wait"
    ));
    spec.plan = plan(Limits {
        max_processes: 8,
        ..Limits::default()
    });
    assert_eq!(run(&spec).await.limit, Some(LimitHit::Processes(8)));
    assert!(!lives(&word));
}

#[tokio::test]
async fn open_files_and_cores_are_limited() {
    let mut spec = script("ulimit -n; ulimit -c; nice");
    spec.plan = plan(Limits {
        max_open_files: 77,
        cpu_shares: 256,
        ..Limits::default()
    });
    let outcome = run(&spec).await;
    let weighed = outcome
        .obtained
        .mechanisms
        .iter()
        .any(|held| held.ends_with(":cpu") && held.starts_with("cgroup"));
    // The weight is served below the niceness that clawk itself runs with.
    let own = rustix::process::getpriority_process(None).expect("its own niceness");
    let nice = if weighed { own } else { (own + 7).min(19) };
    assert_eq!(text(&outcome.stdout), format!("77\n0\n{nice}\n"));
}

#[tokio::test]
async fn what_cannot_start_is_a_refusal_with_a_cause() {
    let refused = |spec: Spec| async move {
        match launcher().launch(&spec).await {
            Err(LaunchError::Refused(SandboxRefusal::Setup { reason, .. })) => reason,
            other => panic!("{other:?}"),
        }
    };
    let open = || plan(Limits::default());
    assert!(
        refused(Spec::new("no-such-program-anywhere", open()))
            .await
            .contains("no such program")
    );
    assert!(
        refused(Spec::new("/no/such/file", open()))
            .await
            .contains("No such file")
    );
    let mut spec = script("true");
    spec.workdir = Some("/no/such/folder".into());
    assert!(refused(spec).await.contains("is not a folder"));
    assert!(refused(script("a\0b")).await.contains("null byte"));
    let lost = Launcher::new("/bin/true", Vec::new())
        .launch(&script("true"))
        .await;
    assert!(matches!(lost, Err(LaunchError::Refused(_))), "{lost:?}");
}

#[tokio::test]
async fn a_tool_cannot_kill_what_watches_it() {
    let word = seconds();
    let mut spec = script(&format!(
        "kill -9 $PPID 1; kill -9 -1; echo survived; sleep {word}"
    ));
    spec.timeout_ms = Some(400);
    // Its parent is the first process of its own namespace, which it can't kill; all others are its own.
    let outcome = run(&spec).await;
    assert_eq!(text(&outcome.stdout), "survived\n");
    assert!(!lives(&word));
}

#[tokio::test]
async fn a_fork_bomb_is_put_out_while_it_grows() {
    let word = seconds();
    // Doubles six times and no more: 127 processes if nobody stops it, so a failure harms nobody.
    let bomb = format!("b() {{ [ $1 -gt 0 ] && {{ b $(($1-1)) & b $(($1-1)) & }}; sleep {word}; }}; b 6");
    let mut spec = script(&bomb);
    spec.plan = plan(Limits {
        max_processes: 30,
        ..Limits::default()
    });
    assert_eq!(run(&spec).await.limit, Some(LimitHit::Processes(30)));
    assert!(!lives(&word));
}

#[tokio::test]
async fn many_at_once() {
    let specs: Vec<Spec> = (0..20).map(|n| script(&format!("echo {n}"))).collect();
    let all = futures_join(&specs).await;
    for (n, output) in all.iter().enumerate() {
        assert_eq!(output, &format!("{n}\n"));
    }
}

async fn futures_join(specs: &[Spec]) -> Vec<String> {
    let mut set = tokio::task::JoinSet::new();
    for (n, spec) in specs.iter().cloned().enumerate() {
        set.spawn(async move { (n, text(&run(&spec).await.stdout)) });
    }
    let mut all = set.join_all().await;
    all.sort();
    all.into_iter().map(|(_, output)| output).collect()
}
