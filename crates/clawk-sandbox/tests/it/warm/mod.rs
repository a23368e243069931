//! Boxes that wait: the suites of ordinary boxes once more, each run in a box that has waited for it, and in a blank one; and what
//! only a box that waits can get wrong.

mod blanks;
mod ends;
mod fresh;
mod groups;
#[path = "../runs.rs"]
mod runs;
#[path = "../walls.rs"]
mod walls;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clawk_sandbox::{EgressGate, LaunchInput, LaunchOutcome, Launcher, Spec, WarmPoolLimits};

use super::{bytes, lives, plan, script, seconds, text};

/// A launcher whose processes can be told from others' by their command lines.
fn marked(limits: WarmPoolLimits) -> (Launcher, String) {
    let word = format!("box-{}", seconds());
    let program = env!("CARGO_BIN_EXE_clawk-sandbox-launcher");
    let launcher = Launcher::new(program, vec![word.clone().into()]).with_warm(limits);
    (launcher, word)
}

fn launcher() -> Launcher {
    marked(WarmPoolLimits::default()).0
}

/// Until so many boxes wait.
async fn ready(launcher: &Launcher, boxes: usize) {
    let started = Instant::now();
    while launcher.waiting_count() != boxes {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{} wait instead of {boxes}",
            launcher.waiting_count()
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Has a box made that this run will take.
async fn warmed(launcher: &Launcher, spec: &Spec) {
    let mut first = spec.clone();
    first.program = "/bin/true".to_owned();
    first.args = Vec::new();
    first.stdin = LaunchInput::Null;
    first.tee = None;
    first.gate = spec.gate.as_ref().map(|_| EgressGate::new(|_| Ok(Box::new(()))));
    let outcome = launcher.launch(&first).await.expect("the first run");
    assert!(outcome.is_success(), "{outcome:?}");
    ready(launcher, 1).await;
}

/// As the suites' own, in a box that has waited.
async fn run(spec: &Spec) -> LaunchOutcome {
    let launcher = launcher();
    // Files in memory are the call's own: such runs have their boxes made for them.
    let warm = spec.files.is_empty();
    if warm {
        warmed(&launcher, spec).await;
    }
    let outcome = tokio::time::timeout(Duration::from_secs(20), launcher.launch(spec))
        .await
        .expect("in time")
        .expect("runs");
    assert_eq!(
        launcher.served_warm(),
        u64::from(warm),
        "a box had waited for this"
    );
    outcome
}

/// Processes with this word in their command line; zombies have none.
fn with_word(word: &str) -> Vec<i32> {
    let listing = std::fs::read_dir("/proc").expect("proc");
    let pids = listing.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(word).then_some(pid)
    });
    pids.collect()
}

/// Field of `/proc/PID/stat` behind the name: 0 is the state, 1 the parent.
fn stat(pid: i32, field: usize) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = text.rsplit_once(')')?.1.trim().to_owned();
    rest.split_ascii_whitespace().nth(field).map(str::to_owned)
}

fn parent(pid: i32) -> Option<i32> {
    stat(pid, 1)?.parse().ok()
}

/// The nursery, the supervisors and the first processes among them.
fn family(word: &str) -> (Vec<i32>, Vec<i32>, Vec<i32>) {
    let all = with_word(word);
    let own = i32::try_from(std::process::id()).expect("a pid");
    let nurseries: Vec<i32> = all
        .iter()
        .copied()
        .filter(|pid| parent(*pid) == Some(own))
        .collect();
    let below = |above: &[i32]| -> Vec<i32> {
        let is_below = |pid: &i32| parent(*pid).is_some_and(|parent| above.contains(&parent));
        all.iter().copied().filter(is_below).collect()
    };
    let supervisors = below(&nurseries);
    let firsts = below(&supervisors);
    (nurseries, supervisors, firsts)
}

/// The supervisor of the blank box, when that waits.
fn blank(word: &str) -> Option<i32> {
    let is_blank = |pid: &i32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim() == "clawk-blank")
    };
    with_word(word).into_iter().find(is_blank)
}

/// Whether something waits to become a tool in this supervisor's box.
fn waits(supervisor: i32) -> bool {
    let below = |above: i32| -> Vec<i32> {
        let text = std::fs::read_to_string(format!("/proc/{above}/task/{above}/children"));
        let text = text.unwrap_or_default();
        text.split_ascii_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    };
    below(supervisor).iter().any(|first| !below(*first).is_empty())
}

/// Waits for what must come to pass.
async fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happened() {
        assert!(started.elapsed() < Duration::from_secs(10), "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
}

/// The names of the control groups that these first processes of boxes are in.
fn groups_in_use(firsts: &[i32]) -> Vec<String> {
    let text = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let lines: Vec<String> = firsts.iter().map(text).collect();
    let names = lines.iter().flat_map(|text| text.lines());
    let names = names.filter_map(|line| line.rsplit('/').next());
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with("clawk-"))
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Control groups of these names that are still there.
fn groups_left(names: &[String]) -> Vec<PathBuf> {
    fn look(folder: PathBuf, names: &[String], depth: usize, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if names.contains(&name) {
                found.push(entry.path());
            } else if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                look(entry.path(), names, depth - 1, found);
            }
        }
    }
    let mut found = Vec::new();
    look("/sys/fs/cgroup".into(), names, 4, &mut found);
    found
}
