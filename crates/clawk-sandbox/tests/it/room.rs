//! A disk is not filled: not by one file, not by many, not by a service.

#![expect(clippy::unwrap_used, reason = "tests: a panic is how they fail")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use clawk_plan::{FsMode, Limits, Plan, PlanDefaults};
use clawk_sandbox::{Launcher, LimitHit, MinFree, Spec};

use super::{launcher, script};

/// Writes file after file into its folder, faster than any of them is large.
const FILL: &str = "i=0; while :; do i=$((i+1)); head -c 8388608 /dev/zero > f$i || exit 9; done";
/// What it may write before the floor, MiB.
const ROOM_MB: u64 = 64;

/// Makes empty files, which take no room for their bytes.
const LITTER: &str = "i=0; while :; do i=$((i+1)); : > f$i || exit 9; done";
/// Files that it may make before the floor.
const ROOM_FILES: u64 = 20_000;

fn left(disk_mb: u64) -> MinFree {
    MinFree { disk_mb, files: 0 }
}

/// A folder, and a launcher for which its disk has [`ROOM_MB`] left.
fn small_disk() -> (tempfile::TempDir, Launcher, u64) {
    let folder = tempfile::tempdir().unwrap();
    let free_mb = {
        let found = rustix::fs::statvfs(folder.path()).unwrap();
        (found.f_bavail * found.f_frsize) >> 20
    };
    let floor = free_mb - ROOM_MB;
    (folder, launcher().leaving_free(left(floor)), floor)
}

fn filling(folder: &std::path::Path) -> Spec {
    writing(FILL, folder)
}

fn writing(what: &str, folder: &std::path::Path) -> Spec {
    let defaults = PlanDefaults {
        filesystem: FsMode::Scoped,
        limits: Limits {
            memory_mb: 8192,
            timeout_ms: 60_000,
            ..Limits::default()
        },
        ..PlanDefaults::default()
    };
    let mut spec = script(what);
    spec.plan = Arc::new(Plan::compile(None, &defaults));
    spec.workdir = Some(folder.to_owned());
    spec.base = Some(folder.to_owned());
    spec
}

/// Nothing of it writes any more.
fn is_still(folder: &std::path::Path) -> bool {
    let files = || std::fs::read_dir(folder).unwrap().count();
    let before = files();
    std::thread::sleep(Duration::from_millis(300));
    files() == before
}

#[tokio::test]
async fn a_run_that_fills_a_disk_is_ended_and_told() {
    let (folder, launcher, floor) = small_disk();
    let outcome = launcher.launch(&filling(folder.path())).await.unwrap();
    assert_eq!(outcome.limit, Some(LimitHit::Disk(floor)));
    assert!(is_still(folder.path()));
    let text = outcome.limit.unwrap().to_string();
    assert!(text.contains("min_free_disk_mb"), "{text}");
}

#[tokio::test]
async fn a_run_that_fills_a_disk_with_empty_files_is_ended_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let found = rustix::fs::statvfs(folder.path()).unwrap();
    assert!(
        found.f_favail > ROOM_FILES,
        "a file system that says how many files it has room for"
    );
    let files = found.f_favail - ROOM_FILES;
    let launcher = launcher().leaving_free(MinFree { disk_mb: 0, files });
    let outcome = launcher.launch(&writing(LITTER, folder.path())).await.unwrap();
    assert_eq!(outcome.limit, Some(LimitHit::Files(files)));
    assert!(is_still(folder.path()));
    let text = outcome.limit.unwrap().to_string();
    assert!(text.contains("min_free_files"), "{text}");
}

#[tokio::test]
async fn a_service_that_fills_a_disk_is_ended_and_told() {
    let (folder, launcher, floor) = small_disk();
    let service = launcher.start_service(&filling(folder.path())).await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(30), service.wait()).await;
    let end = end.unwrap().unwrap();
    assert_eq!(end.limit, Some(LimitHit::Disk(floor)));
    assert!(is_still(folder.path()));
}

#[tokio::test]
async fn where_little_is_free_from_the_start_work_goes_on_until_half_of_it_is_gone() {
    let (folder, _kept, floor) = small_disk();
    // As if it were almost full: nothing that is there would satisfy this.
    let launcher = launcher().leaving_free(left((floor + ROOM_MB) * 4));
    let mut spec = filling(folder.path());
    spec.args = vec![
        "-c".to_owned(),
        "head -c 1000000 /dev/zero > f; sleep 0.5; echo done".to_owned(),
    ];
    let started = Instant::now();
    let outcome = launcher.launch(&spec).await.unwrap();
    assert_eq!((outcome.limit, &outcome.stdout[..]), (None, &b"done\n"[..]));
    assert!(started.elapsed() >= Duration::from_millis(500));
}
