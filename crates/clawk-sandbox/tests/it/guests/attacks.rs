//! What a guest could try against the agent that it runs in: its time, its memory, its stack, and other ways to denied files.

use super::*;

const SPIN_AT_START: &str = r#"(module (memory (export "memory") 1)
  (func $spin (loop $l (br $l))) (start $spin) (func (export "_start")))"#;

const DEEP: &str = r#"(module (memory (export "memory") 1)
  (func $down (param i64) (result i64) (i64.add (call $down (i64.add (local.get 0) (i64.const 1))) (i64.const 1)))
  (func (export "_start") (drop (call $down (i64.const 0)))))"#;

/// Asks for more and more room in its table; ends with a trap when it got a hundred million elements.
const TABLES: &str = r#"(module (memory (export "memory") 1) (table $t 1 funcref)
  (func (export "_start") (local $n i32)
    (loop $l
      (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (if (i32.gt_u (local.get $n) (i32.const 1000)) (then unreachable))
      (br_if $l (i32.ne (table.grow $t (ref.null func) (i32.const 100000)) (i32.const -1))))))"#;

/// Three memories of 10 MiB.
const MANY: &str = r#"(component
  (core module $hog (memory (export "memory") 160))
  (core instance (instantiate $hog)) (core instance (instantiate $hog)) (core instance (instantiate $hog))
  (core module $m (func (export "run") (result i32) i32.const 0))
  (core instance $i (instantiate $m))
  (func $run (result (result)) (canon lift (core func $i "run")))
  (instance $run-instance (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $run-instance)))"#;

/// Asks for 60 MB of random bytes at once.
const RANDOM: &str = r#"(component
  (import "wasi:random/random@0.2.0" (instance $random (export "get-random-bytes" (func (param "len" u64) (result (list u8))))))
  (core module $libc (memory (export "memory") 1600)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 65536))
  (core instance $libc (instantiate $libc))
  (alias export $random "get-random-bytes" (func $bytes))
  (core func $bytes (canon lower (func $bytes) (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core module $m (import "r" "b" (func $b (param i64 i32))) (func (export "run") (result i32) (call $b (i64.const 60000000) (i32.const 16)) i32.const 0))
  (core instance $i (instantiate $m (with "r" (instance (export "b" (func $bytes))))))
  (func $run (result (result)) (canon lift (core func $i "run")))
  (instance $run-instance (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $run-instance)))"#;

/// Lists the folder that it is given, from the beginning.
const LIST: &str = r#"(module
  (import "wasi_snapshot_preview1" "fd_readdir" (func $list (param i32 i32 i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start") (call $exit (call $list (i32.const 3) (i32.const 1024) (i32.const 4096) (i64.const 0) (i32.const 8)))))"#;

#[tokio::test]
async fn a_module_that_spins_before_it_begins_ends_at_the_deadline() {
    let rig = Rig::new(SPIN_AT_START);
    let mut spec = rig.spec(json!({}));
    spec.timeout_ms = Some(300);
    let outcome = rig.run(&spec).await;
    assert_eq!(
        (outcome.limit, outcome.exit_code),
        (Some(LimitHit::Time(300)), None)
    );
    let started = Instant::now();
    assert_eq!(rig.run(&spec).await.limit, Some(LimitHit::Time(300)));
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn a_stack_that_overflows_is_the_guests_own() {
    let rig = Rig::new(DEEP);
    for _ in 0..3 {
        let outcome = rig.run(&rig.spec(json!({}))).await;
        assert_eq!(outcome.exit_code, Some(134));
        assert!(
            text(&outcome.stderr).contains("stack"),
            "{}",
            text(&outcome.stderr)
        );
    }
}

#[tokio::test]
async fn tables_memories_and_random_bytes_have_limits() {
    let rig = Rig::new(TABLES);
    assert_eq!(
        rig.run(&rig.spec(json!({}))).await.exit_code,
        Some(0),
        "it was told no"
    );
    let little = json!({"resource_limits": {"memory_mb": 25}});
    let rig = Rig::new(MANY);
    let outcome = rig.run(&rig.spec(little)).await;
    assert_eq!(
        (outcome.limit, outcome.exit_code),
        (Some(LimitHit::Memory(25)), Some(134))
    );
    assert_eq!(rig.run(&rig.spec(json!({}))).await.exit_code, Some(0));
    let rig = Rig::new(RANDOM);
    let outcome = rig.run(&rig.spec(json!({}))).await;
    assert_eq!(outcome.exit_code, Some(134), "{}", text(&outcome.stderr));
    assert!(
        text(&outcome.stderr).contains("exceeds limit"),
        "{}",
        text(&outcome.stderr)
    );
}

#[tokio::test]
async fn a_folder_that_would_fill_the_agents_memory_is_not_listed() {
    let rig = Rig::new(LIST);
    let plan = scoped(&rig.data(""), "ro", json!([]));
    let mut spec = rig.spec_of(plan);
    assert_eq!(rig.run(&spec).await.exit_code, Some(0));
    let first = rig.data("0");
    fs::write(&first, "").expect("written");
    // Names cost less than files.
    for name in 1..=65_536 {
        if name % 30_000 == 0 {
            fs::write(rig.data(&format!("f{name}")), "").expect("written");
        }
        let from = if name >= 60_000 {
            "f60000"
        } else if name >= 30_000 {
            "f30000"
        } else {
            "0"
        };
        fs::hard_link(rig.data(from), rig.data(&format!("n{name}"))).expect("linked");
    }
    spec.timeout_ms = Some(20_000);
    assert_ne!(rig.run(&spec).await.exit_code, Some(0));
}

#[tokio::test]
async fn a_denied_file_is_denied_by_every_name_and_through_every_mount() {
    let rig = Rig::new(FILES);
    let outside = rig.folder.path().join("outside");
    fs::create_dir_all(outside.join("deep")).expect("made");
    fs::create_dir_all(rig.data("sub")).expect("made");
    fs::create_dir_all(rig.data("keys/x.d")).expect("made");
    for path in [
        outside.join("deep/secret"),
        outside.join("alone"),
        rig.data("keys/key"),
        rig.data("keys/x.d/inner"),
        rig.data("sub/one"),
        rig.data("sub/fine"),
    ] {
        fs::write(path, "secret").expect("written");
    }
    for (from, to) in [
        (outside.join("deep/secret"), "of-a-denied-folder-elsewhere"),
        (outside.join("alone"), "of-a-denied-file-elsewhere"),
        (rig.data("keys/key"), "of-a-denied-folder"),
        (rig.data("keys/x.d/inner"), "of-a-folder-that-a-glob-fits"),
        (rig.data("sub/fine"), "of-a-fine-one"),
    ] {
        fs::hard_link(from, rig.data(to)).expect("linked");
    }
    std::os::unix::fs::symlink("sub", rig.data("alias")).expect("linked");
    let denied = json!([
        outside.join("deep"),
        outside.join("alone"),
        rig.data("keys/key/.."),
        "**/x.d",
        rig.data("sub/one")
    ]);
    let plan = scoped(&rig.data(""), "rw", denied.clone());
    for name in [
        "of-a-denied-folder-elsewhere",
        "of-a-denied-file-elsewhere",
        "of-a-denied-folder",
        "of-a-folder-that-a-glob-fits",
        "sub/one",
        "alias/one",
    ] {
        let (said, code) = ask(&rig, &plan, b'r', name, "").await;
        assert!(said.is_empty() && code != Some(0), "{name}: {said} {code:?}");
        assert_ne!(ask(&rig, &plan, b't', name, "").await.1, Some(0), "{name}");
    }
    assert_eq!(ask(&rig, &plan, b'r', "of-a-fine-one", "").await.0, "secret");
    // By another mount's name: the first one is the guest's folder 3.
    let plan = sandbox(
        "wasm",
        json!({"capabilities": {"filesystem": {"mode": "scoped", "denied_paths": denied, "mount_paths": [
            {"path": rig.data("sub"), "permissions": "rw"}, {"path": rig.data(""), "permissions": "rw"}]}}}),
    );
    assert_eq!(ask(&rig, &plan, b'r', "one", "").await.0, "");
    assert_ne!(ask(&rig, &plan, b'm', "one", "two").await.1, Some(0));
    assert_eq!(ask(&rig, &plan, b'r', "fine", "").await.0, "secret");
    // A denied file's name by the other one.
    let named = scoped(&rig.data(""), "rw", json!([rig.data("alias/one")]));
    assert_eq!(ask(&rig, &named, b'r', "sub/one", "").await.0, "");
    // Nor does a folder of the kernel's, given as a mount, show a process.
    let kernels = scoped(Path::new("/proc"), "ro", json!([]));
    for path in ["self/environ", "1/comm", "version"] {
        assert_eq!(ask(&rig, &kernels, b'r', path, "").await.0, "", "{path}");
    }
}

/// A denied folder is kept at its place: neither it nor one above it goes elsewhere, and nothing takes its place.
#[tokio::test]
async fn folders_around_a_denied_one_stay() {
    let rig = Rig::new(FILES);
    fs::create_dir_all(rig.data("a/b/keys")).expect("made");
    fs::create_dir_all(rig.data("empty")).expect("made");
    fs::write(rig.data("a/b/keys/key"), "secret").expect("written");
    let plan = scoped(
        &rig.data(""),
        "rw",
        json!([rig.data("a/b/keys"), rig.data("new")]),
    );
    for (from, to) in [
        ("a", "x"),
        ("a/b", "x"),
        ("a/b/keys", "x"),
        ("empty", "new"),
        ("empty", "a/b/keys"),
    ] {
        assert_ne!(ask(&rig, &plan, b'm', from, to).await.1, Some(0), "{from} {to}");
    }
    // Through a link of its own making, which leads up.
    assert_eq!(ask(&rig, &plan, b's', "a/b", "up").await.1, Some(0));
    assert_ne!(ask(&rig, &plan, b'm', "up/keys", "x").await.1, Some(0));
    assert_eq!(ask(&rig, &plan, b'r', "up/keys/key", "").await.0, "");
    assert_eq!(
        fs::read_to_string(rig.data("a/b/keys/key")).expect("there"),
        "secret"
    );
}
