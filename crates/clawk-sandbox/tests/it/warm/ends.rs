//! How boxes that wait end: used, too old, too many, crashed, or with clawk; and that nothing of them stays.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use clawk_plan::Limits;
use clawk_sandbox::{Launcher, LimitHit, Spec, WarmPoolLimits};

use super::{
    blank, family, groups_in_use, groups_left, kill, lives, marked, parent, plan, ready, script, seconds,
    stat, text, until, warmed, with_word,
};

/// No process but the nursery, and no group of these names.
async fn only_the_nursery(word: &str, groups: &[String]) {
    until("processes of a box are left", || with_word(word).len() <= 1).await;
    until("a control group is left", || groups_left(groups).is_empty()).await;
    let zombies = zombies();
    assert!(zombies.is_empty(), "{zombies:?}");
}

/// Ended children of ours, or of our nursery, that nobody has reaped.
fn zombies() -> Vec<i32> {
    let own = i32::try_from(std::process::id()).expect("a pid");
    let all = std::fs::read_dir("/proc").expect("proc").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| stat(*pid, 0).is_some_and(|state| state == "Z"))
        .filter(|pid| parent(*pid).is_some_and(|above| above == own || parent(above) == Some(own)))
        .collect()
}

#[tokio::test]
async fn a_box_that_crashed_while_it_waited_is_not_used() {
    let (launcher, word) = marked(WarmPoolLimits::default());
    for which in 0..3 {
        warmed(&launcher, &script("true")).await;
        let (nurseries, supervisors, firsts) = one_waits(&word).await;
        until("one name for each box", || {
            groups_in_use(&firsts).len() == firsts.len()
        })
        .await;
        let groups = groups_in_use(&firsts);
        // The blank one's, too.
        let victims = [&nurseries, &supervisors, &firsts][which];
        victims.iter().for_each(|pid| kill(*pid));
        let dead = |pid: &i32| stat(*pid, 0).is_none_or(|state| state == "Z");
        until("they do not die", || victims.iter().all(dead)).await;
        // At once: what the supervisor has not noticed yet must be noticed on the way.
        let outcome = launcher.launch(&script("echo ran")).await.expect("runs");
        assert_eq!(text(&outcome.stdout), "ran\n", "victim {which}");
        ready(&launcher, 1).await;
        let outcome = launcher.launch(&script("echo again")).await.expect("runs");
        assert_eq!(text(&outcome.stdout), "again\n");
        ready(&launcher, 1).await;
        let now = groups_in_use(&family(&word).2);
        until("what was killed has left a group", || {
            let gone = groups.iter().filter(|name| !now.contains(name)).cloned();
            groups_left(&gone.collect::<Vec<_>>()).is_empty()
        })
        .await;
    }
    drop(launcher);
    until("the nursery lives on", || with_word(&word).is_empty()).await;
    assert_eq!(zombies(), Vec::<i32>::new());
}

#[tokio::test]
async fn idle_boxes_end_and_the_number_is_bounded() {
    let limits = WarmPoolLimits {
        boxes: 2,
        boxes_total: 3,
        idle_ms: 1_500,
    };
    let (launcher, word) = marked(limits);
    let mut seen = Vec::new();
    for memory_mb in [64, 65, 66] {
        let mut spec = script("true");
        spec.plan = plan(Limits {
            memory_mb,
            ..Limits::default()
        });
        at_once(&launcher, &spec, 2).await;
        until("no box of it waits", || launcher.waiting_count() >= 2).await;
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert!(launcher.waiting_count() <= 3, "{}", launcher.waiting_count());
        // And a blank one.
        until("boxes that made room are left", || family(&word).1.len() <= 4).await;
        seen.extend(groups_in_use(&family(&word).2));
    }
    ready(&launcher, 0).await;
    only_the_nursery(&word, &seen).await;
}

/// So many calls, none of which waits for another.
async fn at_once(launcher: &Launcher, spec: &Spec, calls: usize) {
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..calls {
        let (launcher, spec) = (launcher.clone(), spec.clone());
        running.spawn(async move { launcher.launch(&spec).await.expect("runs").is_success() });
    }
    assert_eq!(running.join_all().await, vec![true; calls]);
}

#[tokio::test]
async fn as_many_wait_as_calls_come_together_and_fewer_when_they_no_longer_do() {
    let (launcher, _) = marked(WarmPoolLimits {
        idle_ms: 1_500,
        ..WarmPoolLimits::default()
    });
    at_once(&launcher, &script("true"), 1).await;
    ready(&launcher, 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        launcher.waiting_count(),
        1,
        "one call at a time needs no second box"
    );
    // The box that waits serves one of them.
    at_once(&launcher, &script("true"), 4).await;
    ready(&launcher, 4).await;
    let before = launcher.served_warm();
    for _ in 0..4 {
        at_once(&launcher, &script("true"), 1).await;
    }
    assert_eq!(
        launcher.served_warm() - before,
        4,
        "none of them had to make its own"
    );
    ready(&launcher, 4).await;
    ready(&launcher, 0).await;
    at_once(&launcher, &script("true"), 1).await;
    ready(&launcher, 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        launcher.waiting_count(),
        1,
        "those that nobody used are not made again"
    );
}

#[tokio::test]
async fn boxes_end_with_their_launcher() {
    let (launcher, word) = marked(WarmPoolLimits::default());
    warmed(&launcher, &script("true")).await;
    // That of the call that has been answered may still be on its way out.
    until("not one box and a blank one", || family(&word).1.len() == 2).await;
    until("a box is in no group", || {
        groups_in_use(&family(&word).2).len() == 2
    })
    .await;
    let groups = groups_in_use(&family(&word).2);
    drop(launcher);
    until("something of it lives on", || with_word(&word).is_empty()).await;
    until("a control group is left", || groups_left(&groups).is_empty()).await;
    assert_eq!(zombies(), Vec::<i32>::new());
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a clawk to be killed")]
async fn boxes_end_with_a_clawk_that_is_killed() {
    let word = format!("box-{}", seconds());
    let mut clawk = std::process::Command::new(env!("CARGO_BIN_EXE_clawk-sandbox-launcher"))
        .args(["hold", &word])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(clawk.stdout.take().expect("output"))
        .read_line(&mut line)
        .expect("a line");
    assert_eq!(line, "1 waits\n");
    let own = i32::try_from(clawk.id()).expect("a pid");
    let all = with_word(&word);
    assert!(
        all.len() >= 4,
        "clawk, nursery, supervisor, first process: {all:?}"
    );
    let firsts = all.iter().copied().filter(|pid| {
        let nursery = parent(*pid).and_then(parent);
        nursery.is_some_and(|above| parent(above) == Some(own))
    });
    let groups = groups_in_use(&firsts.collect::<Vec<_>>());
    assert!(!groups.is_empty());
    clawk.kill().expect("killed");
    clawk.wait().expect("reaped");
    until("something lives on", || with_word(&word).is_empty()).await;
    until("a control group is left", || groups_left(&groups).is_empty()).await;
}

#[tokio::test]
async fn deadlines_limits_and_a_dropped_call_hold_in_a_box_that_waited() {
    let (launcher, word) = marked(WarmPoolLimits::default());
    let sleep = seconds();
    let mut spec = script(&format!(
        "trap '' TERM; (setsid sleep {sleep} &); echo ready; sleep {sleep}"
    ));
    spec.timeout_ms = Some(300);
    warmed(&launcher, &spec).await;
    // Waiting is not running: the clock starts with the call.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let started = Instant::now();
    let outcome = launcher.launch(&spec).await.expect("runs");
    assert_eq!(
        (text(&outcome.stdout).as_str(), outcome.limit),
        ("ready\n", Some(LimitHit::Time(300)))
    );
    assert!(
        started.elapsed() >= Duration::from_millis(300) && started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    assert!(!lives(&sleep), "nothing is left when the call returns");
    spec.timeout_ms = Some(60_000);
    ready(&launcher, 1).await;
    let dropped = tokio::time::timeout(Duration::from_millis(300), launcher.launch(&spec)).await;
    assert!(dropped.is_err());
    until("a dropped call lives on", || !lives(&sleep)).await;
    assert_eq!(launcher.served_warm(), 1, "the second was dropped on its way");
    ready(&launcher, 1).await;
    let groups = groups_in_use(&family(&word).2);
    drop(launcher);
    only_the_nursery(&word, &groups).await;
}

/// What the machine has of us: mounts, descriptors, our processes, zombies, temporary files of ours.
fn left(word: &str) -> [usize; 5] {
    let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    [
        mounts.lines().count(),
        count("/proc/self/fd"),
        with_word(word).len(),
        zombies().len(),
        std::fs::read_dir("/tmp").map_or(0, |all| {
            let ours = all
                .flatten()
                .filter(|entry| entry.file_name().to_string_lossy().contains("clawk"));
            ours.count()
        }),
    ]
}

/// Ten thousand are `clawk-bench calls 10000`.
#[tokio::test]
async fn five_hundred_calls_leave_nothing() {
    let (launcher, word) = marked(WarmPoolLimits::default());
    at_once(&launcher, &script("true"), 4).await;
    four_wait(&launcher, &word).await;
    let before = left(&word);
    let mut groups = Vec::new();
    for call in 0..500 {
        // Some find a box, some make their own.
        if call % 5 == 0 {
            until("no box waits", || launcher.waiting_count() > 0).await;
            groups.extend(groups_in_use(&family(&word).2));
        }
        assert!(
            launcher
                .launch(&script("echo a | cat"))
                .await
                .expect("runs")
                .is_success()
        );
    }
    assert!(launcher.served_warm() >= 100, "{}", launcher.served_warm());
    four_wait(&launcher, &word).await;
    groups.extend(groups_in_use(&family(&word).2));
    until("something is left", || left(&word) == before).await;
    groups.sort_unstable();
    groups.dedup();
    let now = groups_in_use(&family(&word).2);
    groups.retain(|name| !now.contains(name));
    assert!(groups.len() >= 90, "{}", groups.len());
    until("control groups are left", || groups_left(&groups).is_empty()).await;
}

#[tokio::test]
async fn a_waiting_box_is_small() {
    // Several: what of the program only boxes use is in memory once for all of them.
    let (launcher, word) = marked(WarmPoolLimits::default());
    at_once(&launcher, &script("true"), 4).await;
    let all = four_wait(&launcher, &word).await;
    let kib: u64 = all.iter().map(|pid| private_kib(*pid)).sum();
    // An optimised build is smaller; see the bench.
    assert!(kib > 0 && kib / 5 <= 400, "{} KiB each", kib / 5);
}

/// The processes of the only box and the blank one, when those before them have ended.
async fn one_waits(word: &str) -> (Vec<i32>, Vec<i32>, Vec<i32>) {
    let counts = |(a, b, c): &(Vec<i32>, Vec<i32>, Vec<i32>)| (a.len(), b.len(), c.len());
    until("more or less than one box and a blank one", || {
        counts(&family(word)) == (1, 2, 2) && blank(word).is_some()
    })
    .await;
    family(word)
}

/// The supervisors and first processes of four boxes and the blank one, when those before them have ended.
async fn four_wait(launcher: &Launcher, word: &str) -> Vec<i32> {
    ready(launcher, 4).await;
    until("more or less than four boxes and a blank one", || {
        let (_, supervisors, firsts) = family(word);
        (supervisors.len(), firsts.len()) == (5, 5) && blank(word).is_some()
    })
    .await;
    let (_, supervisors, firsts) = family(word);
    [supervisors, firsts].concat()
}

/// What only this process has, KiB.
fn private_kib(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it lives");
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    lines
        .filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok())
        .sum()
}
