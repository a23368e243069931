//! Blank boxes: a call of a configuration that no box waits for runs in one, and is enclosed as in a box made for it.

#[path = "../runs.rs"]
mod runs;
#[path = "../walls.rs"]
mod walls;

use std::time::{Duration, Instant};

use clawk_plan::Limits;
use clawk_sandbox::{LaunchOutcome, Launcher, Spec, WarmPoolLimits};

use super::fresh::{LOOK, facts, scoped};
use super::{blank, bytes, family, launcher, lives, marked, plan, script, seconds, stat, text, until};

/// Has a blank box wait; its supervisor.
async fn ready(launcher: &Launcher, word: &str) -> i32 {
    let mut other = script("true");
    other.plan = plan(Limits {
        memory_mb: 77,
        ..Limits::default()
    });
    for _ in 0..20 {
        assert!(launcher.launch(&other).await.expect("runs").is_success());
        // The box of that configuration may be made of the blank one; another follows. It ends when somebody mounts something on
        // this machine, as other tests do.
        until("no box waits", || launcher.waiting_count() >= 1).await;
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(1) {
            if let Some(supervisor) = blank(word) {
                return supervisor;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    panic!("no blank box waits");
}

fn ended(pid: i32) -> bool {
    stat(pid, 0).is_none_or(|state| state == "Z")
}

/// As the suites' own, where a blank box waits.
async fn run(spec: &Spec) -> LaunchOutcome {
    let (launcher, word) = marked(WarmPoolLimits::default());
    let supervisor = ready(&launcher, &word).await;
    let outcome = tokio::time::timeout(Duration::from_secs(20), launcher.launch(spec))
        .await
        .expect("in time")
        .expect("runs");
    assert_eq!(launcher.served_warm(), 0, "no box waited for this");
    // By this call, or in a crowd by the making of a box for the next: see the test below for which.
    until("the blank box was not taken", || blank(&word) != Some(supervisor)).await;
    outcome
}

#[tokio::test]
async fn a_program_sees_the_same_box_as_in_one_made_for_it() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(".env"), "CANARY").expect("written");
    let look = |permissions: &str, denied| {
        let mut spec = scoped(folder.path(), folder.path(), permissions, denied);
        spec.args = vec!["-c".to_owned(), LOOK.to_owned()];
        spec
    };
    let mut plain = script(LOOK);
    plain.stdin = bytes("in");
    for spec in [
        plain,
        look("rw", serde_json::json!(["**/.env", "/etc"])),
        look("ro", serde_json::json!([])),
    ] {
        let made = super::super::run(&spec).await;
        let blank = run(&spec).await;
        assert!(made.stdout.len() > 2000, "{}", text(&made.stderr));
        assert_eq!(text(&blank.stdout), text(&made.stdout));
        assert_eq!(facts(&blank), facts(&made));
    }
}

#[tokio::test]
async fn a_blank_box_serves_one_call_and_goes_with_its_launcher() {
    let mut taken = 0;
    for _ in 0..10 {
        let (launcher, word) = marked(WarmPoolLimits::default());
        let supervisor = ready(&launcher, &word).await;
        let spec = script("ls /tmp /dev/shm; echo x > /tmp/left; echo x > /dev/shm/left");
        let outcome = launcher.launch(&spec).await.expect("runs");
        assert_eq!(text(&outcome.stdout), "/dev/shm:\n\n/tmp:\n");
        until("it is blank again", || blank(&word) != Some(supervisor)).await;
        // In a crowd, the making of a box for the next call may have been quicker: that one waits now.
        taken += u32::from(!super::waits(supervisor));
        ready(&launcher, &word).await;
        let groups = super::groups_in_use(&family(&word).2);
        drop(launcher);
        until("something of it lives on", || super::with_word(&word).is_empty()).await;
        until("a control group is left", || {
            super::groups_left(&groups).is_empty()
        })
        .await;
    }
    assert!(taken >= 5, "{taken} of 10");
}

#[tokio::test]
async fn several_calls_at_once_have_a_box_each() {
    let (launcher, word) = marked(WarmPoolLimits::default());
    ready(&launcher, &word).await;
    let spec = script("readlink /proc/self/ns/mnt /proc/self/ns/net; sleep 0.3");
    let runs = tokio::join!(
        launcher.launch(&spec),
        launcher.launch(&spec),
        launcher.launch(&spec)
    );
    let mut seen = Vec::new();
    for run in [runs.0, runs.1, runs.2] {
        seen.extend(text(&run.expect("runs").stdout).lines().map(str::to_owned));
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 6, "{seen:?}");
}

#[tokio::test]
async fn what_is_mounted_on_the_host_ends_a_blank_box() {
    if !rustix::process::getuid().is_root() {
        return; // nobody else mounts anything
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("word"), "old").expect("written");
    let mut spec = scoped(folder.path(), folder.path(), "ro", serde_json::json!([]));
    spec.args = vec!["-c".to_owned(), "cat word".to_owned()];
    let (launcher, word) = marked(WarmPoolLimits::default());
    let supervisor = ready(&launcher, &word).await;
    let place = folder.path().display().to_string();
    walls::outside("mount", &["-t", "tmpfs", "none", &place]);
    std::fs::write(folder.path().join("word"), "new").expect("written");
    // At once: what it has not noticed yet must be noticed on the way.
    let outcome = launcher.launch(&spec).await;
    walls::outside("umount", &[&place]);
    let outcome = outcome.expect("runs");
    assert_eq!(text(&outcome.stdout), "new", "{}", text(&outcome.stderr));
    until("it waits on", || ended(supervisor)).await;
}

#[tokio::test]
async fn a_call_that_is_dropped_ends_in_a_blank_box() {
    let (launcher, word) = marked(WarmPoolLimits::default());
    let supervisor = ready(&launcher, &word).await;
    let sleep = seconds();
    let spec = script(&format!("sleep {sleep}"));
    let dropped = tokio::time::timeout(Duration::from_millis(500), launcher.launch(&spec)).await;
    assert!(dropped.is_err());
    until("a dropped call lives on", || !lives(&sleep)).await;
    until("its box lives on", || {
        ended(supervisor) || super::waits(supervisor)
    })
    .await;
}
