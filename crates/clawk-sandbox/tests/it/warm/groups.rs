//! Control groups: each box has its own, whoever else makes boxes in the same group; and what nobody uses goes, nothing else.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use clawk_sandbox::WarmPoolLimits;

use super::{family, groups_in_use, groups_left, marked, ready, script, seconds, warmed};

/// So many boxes are started in each of the two process namespaces.
const STARTS: u32 = 120;

/// A clawk in a process namespace of its own, where process ids begin with 1. It starts boxes, and removes stale groups between them.
#[expect(clippy::disallowed_methods, reason = "another process namespace")]
fn starts_elsewhere() -> Child {
    Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(env!("CARGO_BIN_EXE_clawk-sandbox-launcher"))
        .args(["starts", &format!("box-{}", seconds()), &STARTS.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("`unshare` of util-linux")
}

#[test]
fn two_process_namespaces_share_a_group_and_no_start_fails_or_has_weaker_limits() {
    let both = [starts_elsewhere(), starts_elsewhere()];
    let said = both.map(|mut child| {
        let mut said = String::new();
        let mut output = child.stdout.take().expect("output");
        output.read_to_string(&mut said).expect("text");
        assert!(child.wait().expect("its end").success(), "{said}");
        said
    });
    for said in &said {
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 1, "one outcome for every start: {said}");
        assert!(
            lines[0].starts_with(&format!("{STARTS} ")) && lines[0].contains("cgroup"),
            "{said}"
        );
    }
    assert_eq!(said[0], said[1]);
}

/// A folder of ours in which groups can be made.
fn holder() -> PathBuf {
    let own = std::fs::read_to_string("/proc/self/cgroup").expect("groups");
    let mut places = own.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let top = match controllers {
            "" => "/sys/fs/cgroup".to_owned(),
            name => format!("/sys/fs/cgroup/{name}"),
        };
        Some(Path::new(&top).join(path.trim_start_matches('/')))
    });
    let fits = |folder: &PathBuf| {
        let probe = folder.join(format!("probe-{}", seconds()));
        std::fs::create_dir(&probe).is_ok() && std::fs::remove_dir(&probe).is_ok()
    };
    places.find(fits).expect("a group can be made here")
}

fn set_age(group: &Path, seconds: u64) {
    #[expect(
        clippy::disallowed_methods,
        reason = "the age of a group is told by the wall clock"
    )]
    let then = SystemTime::now() - Duration::from_secs(seconds);
    let folder = std::fs::File::open(group).expect("there");
    folder.set_modified(then).expect("a group has times");
}

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "ages of groups, and a number that nobody has any more"
)]
async fn only_old_groups_that_nobody_uses_are_removed() {
    let mut gone = Command::new("/bin/true").spawn().expect("it starts");
    let dead = gone.id();
    gone.wait().expect("reaped");
    let holder = holder();
    let make = |name: &str, age: u64| {
        let group = holder.join(name);
        std::fs::create_dir(&group).expect("made");
        set_age(&group, age);
        group
    };
    let random = |first: u32| format!("clawk-box-{first:08x}{:08x}", std::process::id());
    let stale = [make(&random(1), 11), make(&format!("clawk-{dead}"), 11)];
    let locked = make(&random(2), 100);
    let lock = std::fs::File::open(&locked).expect("there");
    lock.lock_shared().expect("locked, as a supervisor does");
    let kept = [
        make(&random(3), 8),
        make(&format!("clawk-{}", std::process::id()), 100),
        make(&format!("somebody-{}", std::process::id()), 100),
        locked,
    ];
    let (launcher, _) = marked(WarmPoolLimits::default());
    assert!(launcher.remove_stale_groups() >= 2);
    let left = [
        stale.each_ref().map(|group| group.exists()).to_vec(),
        kept.each_ref().map(|group| group.exists()).to_vec(),
    ];
    for group in kept.iter().chain(&stale) {
        let _ = std::fs::remove_dir(group);
    }
    assert_eq!(left, [vec![false; 2], vec![true; 4]]);
}

#[tokio::test]
async fn the_groups_of_a_box_that_waits_long_are_kept() {
    let (launcher, word) = marked(WarmPoolLimits::default());
    warmed(&launcher, &script("true")).await;
    ready(&launcher, 1).await;
    let groups = groups_in_use(&family(&word).2);
    let left = groups_left(&groups);
    assert!(!left.is_empty());
    // The group that weighs has no process in it while a blank box waits.
    left.iter().for_each(|group| set_age(group, 3_600));
    let _ = launcher.remove_stale_groups();
    assert_eq!(groups_left(&groups).len(), left.len());
    assert!(launcher.launch(&script("true")).await.expect("runs").is_success());
}
