//! Level `wasm`, judged by effects: guests written as text.

mod attacks;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clawk_plan::{Level, Plan, SandboxRefusal};
use clawk_sandbox::{LaunchError, LaunchInput, LaunchOutcome, Launcher, LevelSettings, LimitHit, Spec};
use serde_json::json;

use super::containers::sandbox;
use super::{launcher, text};

/// Does to files what its input says: a letter, the length of the first path, both paths. Ends with the error's number.
const FILES: &str = r#"(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_rename" (func $rename (param i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_link" (func $link (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_symlink" (func $symlink (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_unlink_file" (func $unlink (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_filestat_get" (func $stat (param i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func $try (param i32) (if (local.get 0) (then (call $exit (local.get 0)))))
  (func (export "_start") (local $a i32) (local $al i32) (local $b i32) (local $bl i32) (local $op i32)
    (i32.store (i32.const 0) (i32.const 1024)) (i32.store (i32.const 4) (i32.const 1000))
    (call $try (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (local.set $op (i32.load8_u (i32.const 1024)))
    (local.set $al (i32.load8_u (i32.const 1025)))
    (local.set $a (i32.const 1026))
    (local.set $b (i32.add (local.get $a) (local.get $al)))
    (local.set $bl (i32.sub (i32.sub (i32.load (i32.const 8)) (i32.const 2)) (local.get $al)))
    ;; m: rename, h: hard link, s: symbolic link, u: unlink, t: stat, w: create and write, else read
    (if (i32.eq (local.get $op) (i32.const 109)) (then (call $exit (call $rename (i32.const 3) (local.get $a) (local.get $al) (i32.const 3) (local.get $b) (local.get $bl)))))
    (if (i32.eq (local.get $op) (i32.const 104)) (then (call $exit (call $link (i32.const 3) (i32.const 0) (local.get $a) (local.get $al) (i32.const 3) (local.get $b) (local.get $bl)))))
    (if (i32.eq (local.get $op) (i32.const 115)) (then (call $exit (call $symlink (local.get $a) (local.get $al) (i32.const 3) (local.get $b) (local.get $bl)))))
    (if (i32.eq (local.get $op) (i32.const 117)) (then (call $exit (call $unlink (i32.const 3) (local.get $a) (local.get $al)))))
    (if (i32.eq (local.get $op) (i32.const 116)) (then (call $exit (call $stat (i32.const 3) (i32.const 1) (local.get $a) (local.get $al) (i32.const 4096)))))
    (if (i32.eq (local.get $op) (i32.const 119)) (then
      (call $try (call $open (i32.const 3) (i32.const 1) (local.get $a) (local.get $al) (i32.const 9) (i64.const 64) (i64.const 0) (i32.const 0) (i32.const 16)))
      (i32.store (i32.const 0) (i32.const 1024)) (i32.store (i32.const 4) (i32.const 1))
      (call $exit (call $write (i32.load (i32.const 16)) (i32.const 0) (i32.const 1) (i32.const 8)))))
    (call $try (call $open (i32.const 3) (i32.const 1) (local.get $a) (local.get $al) (i32.const 0) (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 16)))
    (call $try (call $read (i32.load (i32.const 16)) (i32.const 0) (i32.const 1) (i32.const 8)))
    (i32.store (i32.const 4) (i32.load (i32.const 8)))
    (call $try (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;

/// Copies its input to its output and ends with 3, of which `wasi:cli/exit` tells that it was no success: 1.
const COPY: &str = r#"(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (loop $more
      (i32.store (i32.const 0) (i32.const 1024)) (i32.store (i32.const 4) (i32.const 4096))
      (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
      (i32.store (i32.const 4) (i32.load (i32.const 8)))
      (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
      (br_if $more (i32.load (i32.const 8))))
    (call $exit (i32.const 3))))"#;

const SPIN: &str = r#"(module (memory (export "memory") 1) (func (export "_start") (loop $l (br $l))))"#;

const SLEEP: &str = r#"(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (i32.store (i32.const 16) (i32.const 1))
    (i64.store (i32.const 24) (i64.const 60000000000))
    (drop (call $poll (i32.const 0) (i32.const 100) (i32.const 1) (i32.const 200)))))"#;

const HOG: &str = r#"(module (memory (export "memory") 1)
  (func (export "_start") (loop $l (br_if $l (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable))"#;

const FLOOD: &str = r#"(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1) (global $n (mut i32) (i32.const 1000))
  (func (export "_start") (loop $l
    (i32.store (i32.const 4) (i32.const 4096))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
    (global.set $n (i32.sub (global.get $n) (i32.const 1)))
    (br_if $l (global.get $n)))))"#;

const COMPONENT: &str = r#"(component
  (core module $m (func (export "run") (result i32) i32.const 1))
  (core instance $i (instantiate $m))
  (func $run (result (result)) (canon lift (core func $i "run")))
  (instance $run-instance (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $run-instance)))"#;

const WANTS_HTTP: &str = r#"(component
  (import "wasi:http/types@0.2.0" (instance (export "fields" (type (sub resource)))))
  (core module $m (func (export "run") (result i32) i32.const 0))
  (core instance $i (instantiate $m))
  (func $run (result (result)) (canon lift (core func $i "run")))
  (instance $run-instance (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $run-instance)))"#;

const WANTS_MORE: &str = r#"(component
  (import "wasi:keyvalue/store@0.2.0" (instance (export "bucket" (type (sub resource)))))
  (core module $m (func (export "run") (result i32) i32.const 0))
  (core instance $i (instantiate $m))
  (func $run (result (result)) (canon lift (core func $i "run")))
  (instance $run-instance (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $run-instance)))"#;

/// A folder with a guest in it, and what runs it.
struct Rig {
    folder: tempfile::TempDir,
    launcher: Launcher,
}

impl Rig {
    fn new(guest: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(
            folder.path().join("guest.wasm"),
            wat::parse_str(guest).expect("a guest"),
        )
        .expect("written");
        fs::create_dir(folder.path().join("data")).expect("made");
        let settings = LevelSettings {
            cache: Some(folder.path().join("cache")),
            ..Default::default()
        };
        Self {
            folder,
            launcher: launcher().with_levels(settings),
        }
    }

    fn data(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join("data").join(name)
    }

    fn spec(&self, more: serde_json::Value) -> Spec {
        self.spec_of(sandbox("wasm", more))
    }

    fn spec_of(&self, plan: Arc<Plan>) -> Spec {
        let mut spec = Spec::new(
            self.folder.path().join("guest.wasm").to_str().expect("utf-8"),
            plan,
        );
        spec.workdir = Some(self.folder.path().join("data"));
        spec
    }

    async fn run(&self, spec: &Spec) -> LaunchOutcome {
        self.launcher.launch(spec).await.expect("runs")
    }

    async fn refused(&self, spec: &Spec) -> String {
        match self.launcher.launch(spec).await {
            Err(LaunchError::Refused(refusal)) => refusal.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn output_exit_code_and_input() {
    let rig = Rig::new(COPY);
    let mut spec = rig.spec(json!({}));
    let long = r#"{"a": 1}"#.repeat(10_000);
    spec.stdin = LaunchInput::Bytes(long.clone().into_bytes());
    let outcome = rig.run(&spec).await;
    assert_eq!(
        (text(&outcome.stdout) == long, outcome.exit_code),
        (true, Some(1))
    );
    assert_eq!(outcome.obtained.level, Level::Wasm);
    assert!(outcome.obtained.mechanisms.contains(&"wasmtime".to_owned()));
}

#[tokio::test]
async fn a_component_says_how_it_ended_and_gets_what_is_wasis_alone() {
    let rig = Rig::new(COMPONENT);
    assert_eq!(rig.run(&rig.spec(json!({}))).await.exit_code, Some(1));
    // The names of `wasi:http` are there for everybody; what is asked for through them goes by the call's way out or nowhere.
    let rig = Rig::new(WANTS_HTTP);
    assert_eq!(rig.run(&rig.spec(json!({}))).await.exit_code, Some(0));
    let rig = Rig::new(WANTS_MORE);
    let said = rig.refused(&rig.spec(json!({}))).await;
    assert!(
        said.contains("wasi:keyvalue/store") && said.contains("what a guest does not get"),
        "{said}"
    );
}

#[tokio::test]
async fn what_is_no_guest_is_refused() {
    let rig = Rig::new(COPY);
    for program in ["/bin/sh", "/no/such.wasm"] {
        let spec = Spec::new(program, sandbox("wasm", json!({})));
        let said = rig.refused(&spec).await;
        assert!(
            said.contains(program) && said.contains("[tools.NAME] wasm"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn a_deadline_ends_loops_and_sleeps() {
    for guest in [SPIN, SLEEP] {
        let rig = Rig::new(guest);
        let mut spec = rig.spec(json!({}));
        spec.timeout_ms = Some(300);
        rig.run(&spec).await;
        let started = Instant::now();
        let outcome = rig.run(&spec).await;
        assert_eq!(outcome.limit, Some(LimitHit::Time(300)));
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "{:?}",
            started.elapsed()
        );
        nothing_spins().await;
    }
}

/// No guest computes that nobody waits for.
async fn nothing_spins() {
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = processor_ms();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(processor_ms() - before < 200, "nothing spins any more");
}

/// Wherever it is just then: not yet compiled, about to start, computing.
#[tokio::test]
async fn a_call_that_is_dropped_at_any_moment_leaves_nothing_that_computes() {
    let rig = Rig::new(SPIN);
    let spec = rig.spec(json!({}));
    for microseconds in (0..2_000).step_by(10) {
        tokio::select! {
            biased;
            outcome = rig.launcher.launch(&spec) => panic!("{outcome:?}"),
            () = async { std::thread::sleep(Duration::from_micros(microseconds)) } => {}
        }
    }
    // Behind this one, they are all compiled.
    let mut last = rig.spec(json!({}));
    last.timeout_ms = Some(50);
    rig.run(&last).await;
    nothing_spins().await;
}

#[tokio::test]
async fn calls_that_come_together_compile_a_guest_once() {
    let mut took = Vec::new();
    for calls in [1, 16] {
        let rig = Rig::new(COPY);
        let spec = rig.spec(json!({}));
        let before = processor_ms();
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..calls {
            let (launcher, spec) = (rig.launcher.clone(), spec.clone());
            all.spawn(async move { launcher.launch(&spec).await.expect("it runs") });
        }
        all.join_all().await;
        took.push(processor_ms() - before);
    }
    assert!(took[1] < took[0] * 4 + 100, "{took:?} ms of processor");
}

#[tokio::test]
async fn dropping_the_call_ends_the_guest() {
    let rig = Rig::new(SPIN);
    let spec = rig.spec(json!({}));
    let gone = tokio::time::timeout(Duration::from_millis(3000), rig.launcher.launch(&spec)).await;
    assert!(gone.is_err());
    nothing_spins().await;
}

fn processor_ms() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("stat");
    let fields: Vec<u64> = stat
        .rsplit_once(')')
        .expect("stat")
        .1
        .split_ascii_whitespace()
        .map(|f| f.parse().unwrap_or(0))
        .collect();
    (fields[11] + fields[12]) * 10
}

#[tokio::test]
async fn memory_and_output_have_limits_and_the_result_says_which() {
    let rig = Rig::new(HOG);
    let outcome = rig
        .run(&rig.spec(json!({"resource_limits": {"memory_mb": 16}})))
        .await;
    assert_eq!(
        (outcome.limit, outcome.exit_code),
        (Some(LimitHit::Memory(16)), Some(134))
    );
    assert!(
        text(&outcome.stderr).contains("unreachable"),
        "{}",
        text(&outcome.stderr)
    );
    let rig = Rig::new(FLOOD);
    let outcome = rig
        .run(&rig.spec(json!({"resource_limits": {"max_output_bytes": 5000}})))
        .await;
    assert_eq!(
        (outcome.stdout.len(), outcome.limit),
        (5000, Some(LimitHit::Output(5000)))
    );
}

/// Asks the guest for one thing; its exit code is the error's number, 0 for done.
async fn ask(rig: &Rig, plan: &Arc<Plan>, letter: u8, one: &str, two: &str) -> (String, Option<i32>) {
    let mut spec = rig.spec_of(Arc::clone(plan));
    let mut input = vec![letter, u8::try_from(one.len()).expect("short")];
    input.extend(one.bytes().chain(two.bytes()));
    spec.stdin = LaunchInput::Bytes(input);
    let outcome = rig.run(&spec).await;
    (text(&outcome.stdout), outcome.exit_code)
}

fn scoped(folder: &Path, right: &str, denied: serde_json::Value) -> Arc<Plan> {
    sandbox(
        "wasm",
        json!({"capabilities": {"filesystem": {"mode": "scoped",
        "mount_paths": [{"path": folder, "permissions": right}], "denied_paths": denied}}}),
    )
}

#[tokio::test]
async fn files_are_those_of_the_plan() {
    let rig = Rig::new(FILES);
    fs::write(rig.data("in"), "text").expect("written");
    fs::write(rig.folder.path().join("outside"), "secret").expect("written");
    std::os::unix::fs::symlink("../outside", rig.data("way-out")).expect("linked");
    std::os::unix::fs::symlink("/etc/passwd", rig.data("absolute")).expect("linked");
    let rw = scoped(&rig.data(""), "rw", json!([]));
    assert_eq!(ask(&rig, &rw, b'r', "in", "").await, ("text".to_owned(), Some(0)));
    for path in [
        "../outside",
        "way-out",
        "absolute",
        "/etc/passwd",
        "x/../../outside",
    ] {
        let (said, code) = ask(&rig, &rw, b'r', path, "").await;
        assert!(said.is_empty() && code != Some(0), "{path}: {said} {code:?}");
    }
    assert_eq!(ask(&rig, &rw, b'w', "new", "").await.1, Some(0));
    assert_eq!(fs::read_to_string(rig.data("new")).expect("made"), "w");
    let ro = scoped(&rig.data(""), "ro", json!([]));
    assert_ne!(ask(&rig, &ro, b'w', "no", "").await.1, Some(0));
    assert_ne!(ask(&rig, &ro, b'u', "in", "").await.1, Some(0));
    assert_eq!(ask(&rig, &ro, b'r', "in", "").await.0, "text");
    // Mode `deny`: there is no folder at all.
    let none = sandbox("wasm", json!({}));
    assert_ne!(ask(&rig, &none, b'r', "in", "").await.1, Some(0));
    // What would stop the agent's own thread is not opened.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        rig.data("pipe"),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .expect("a pipe");
    assert_ne!(ask(&rig, &rw, b'r', "pipe", "").await.1, Some(0));
}

#[tokio::test]
async fn denied_paths_hold_through_links_renames_and_later_files() {
    let rig = Rig::new(FILES);
    fs::create_dir_all(rig.data("keys/deep")).expect("made");
    for name in ["keys/deep/a", ".env", "one", "plain"] {
        fs::write(rig.data(name), "secret").expect("written");
    }
    fs::hard_link(rig.data("one"), rig.data("other-name")).expect("linked");
    fs::hard_link(rig.data(".env"), rig.data("env-name")).expect("linked");
    std::os::unix::fs::symlink("keys/deep", rig.data("link")).expect("linked");
    std::os::unix::fs::symlink("later", rig.data("dangling")).expect("linked");
    let plan = scoped(
        &rig.data(""),
        "rw",
        json!([
            rig.data("keys/deep"),
            "**/.env",
            rig.data("one"),
            rig.data("later")
        ]),
    );
    for path in [
        "keys/deep/a",
        "keys/../keys/deep/a",
        "link/a",
        ".env",
        "one",
        "other-name",
        "env-name",
        "./one",
    ] {
        let (said, code) = ask(&rig, &plan, b'r', path, "").await;
        assert!(said.is_empty() && code != Some(0), "{path}: {said} {code:?}");
        assert_ne!(ask(&rig, &plan, b't', path, "").await.1, Some(0), "{path}");
    }
    // A denied thing is not brought to another name, nor its folder to another place.
    for (letter, from, to) in [
        (b'm', "one", "x"),
        (b'm', "keys", "x"),
        (b'h', "one", "x"),
        (b'm', "plain", "later"),
        (b'u', "one", ""),
        (b's', "y", "later"),
    ] {
        assert_ne!(
            ask(&rig, &plan, letter, from, to).await.1,
            Some(0),
            "{} {from} {to}",
            char::from(letter)
        );
    }
    for path in ["later", "dangling", "sub/.env"] {
        let _ = fs::create_dir(rig.data("sub"));
        assert_ne!(ask(&rig, &plan, b'w', path, "").await.1, Some(0), "{path}");
    }
    // A link that the guest itself makes leads it nowhere.
    assert_eq!(ask(&rig, &plan, b's', "keys/deep/a", "mine").await.1, Some(0));
    assert_eq!(ask(&rig, &plan, b'r', "mine", "").await.0, "");
    // Made by the host after the plan was compiled.
    fs::write(rig.data("later"), "secret").expect("written");
    assert_eq!(ask(&rig, &plan, b'r', "later", "").await.0, "");
    assert_eq!(ask(&rig, &plan, b'r', "dangling", "").await.0, "");
    assert_eq!(ask(&rig, &plan, b'r', "plain", "").await.0, "secret");
}

#[tokio::test]
async fn the_whole_hosts_view_has_no_process_of_the_agents() {
    let rig = Rig::new(FILES);
    let plan = sandbox("wasm", json!({"capabilities": {"filesystem": {"mode": "full"}}}));
    for path in [
        "proc/self/environ",
        "proc/1/cmdline",
        "sys/kernel/mm/ksm/run",
        "dev/null",
    ] {
        let (said, code) = ask(&rig, &plan, b'r', path, "").await;
        assert!(said.is_empty() && code != Some(0), "{path}");
    }
    assert!(ask(&rig, &plan, b'r', "etc/passwd", "").await.0.contains("root"));
}

#[tokio::test]
async fn a_compiled_guest_is_kept_checked_and_made_anew_when_changed() {
    let rig = Rig::new(COPY);
    let spec = rig.spec(json!({}));
    rig.run(&spec).await;
    let kept = fs::read_dir(rig.folder.path().join("cache/wasm"))
        .expect("kept")
        .flatten()
        .next()
        .expect("one")
        .path();
    let first = fs::metadata(&kept).expect("meta");
    assert_eq!(first.mode() & 0o077, 0, "nobody else's to write");
    let fresh = || {
        launcher().with_levels(LevelSettings {
            cache: Some(rig.folder.path().join("cache")),
            ..Default::default()
        })
    };
    assert_eq!(fresh().launch(&spec).await.expect("runs").exit_code, Some(1));
    assert_eq!(
        fs::metadata(&kept).expect("meta").ino(),
        first.ino(),
        "it was used, not made again"
    );
    let mut content = fs::read(&kept).expect("read");
    let at = content.len() / 2;
    content[at] ^= 1;
    fs::write(&kept, content).expect("written");
    assert_eq!(
        fresh().launch(&spec).await.expect("runs").exit_code,
        Some(1),
        "a changed one is not trusted"
    );
    assert_ne!(fs::metadata(&kept).expect("meta").ino(), first.ino());
}

/// Not a benchmark: that a guest whose code is known costs far less than a process. The number is in the report.
#[tokio::test]
async fn a_known_guest_starts_at_once() {
    let rig = Rig::new(COPY);
    let spec = rig.spec(json!({}));
    rig.run(&spec).await;
    let started = Instant::now();
    for _ in 0..200 {
        rig.run(&spec).await;
    }
    let each = started.elapsed() / 200;
    println!("instantiate and call: {each:?}");
    assert!(each < Duration::from_millis(20), "{each:?}");
}

#[tokio::test]
async fn a_plan_below_wasm_is_not_run_here() {
    let launcher = launcher();
    let probe = launcher
        .probe_level(Level::Wasm)
        .await
        .expect("this build has it");
    assert_eq!(probe.level, Level::Wasm);
    assert!(!matches!(
        launcher.level_availability(Level::Wasm),
        Err(SandboxRefusal::Unavailable { .. })
    ));
}
