//! The built-in file tools, at every level.

use clawk_kernel::ports::RunError;
use clawk_plan::SandboxRefusal;
use serde_json::json;

use super::Bench;
use crate::testing::{LEVELS, plan_at, text};

#[tokio::test]
async fn write_read_edit_list_search() {
    for level in LEVELS {
        write_read_edit_list_search_at(level).await;
    }
}

async fn write_read_edit_list_search_at(level: &str) {
    let bench = Bench::at(level);
    bench
        .ok(
            "file-write",
            json!({"path": "a/b/note.txt", "content": "one\ntwo\nthree\n"}),
        )
        .await;
    assert_eq!(
        text(&bench.ok("file-read", json!({"path": "a/b/note.txt"})).await),
        "one\ntwo\nthree\n"
    );
    let two = bench
        .ok(
            "file-read",
            json!({"path": "a/b/note.txt", "start_line": 2, "end_line": 2}),
        )
        .await;
    assert_eq!(text(&two), "two\n");
    bench
        .ok(
            "file-edit",
            json!({"path": "a/b/note.txt", "old_text": "two", "new_text": "2"}),
        )
        .await;
    assert_eq!(
        std::fs::read_to_string(bench.path("a/b/note.txt")).expect("there"),
        "one\n2\nthree\n"
    );
    let listing = text(&bench.ok("file-list", json!({"recursive": true})).await);
    assert_eq!(listing, "a/\na/b/\na/b/note.txt  12 bytes");
    let found = text(
        &bench
            .ok("file-search", json!({"pattern": "t.r", "glob": "*.txt"}))
            .await,
    );
    assert_eq!(found, "a/b/note.txt:3:three");
    assert_eq!(
        text(
            &bench
                .ok("file-search", json!({"pattern": "t.r", "glob": "*.rs"}))
                .await
        ),
        "nothing found"
    );
    assert!(
        bench
            .fails("file-read", json!({"path": "a/b/note.txt", "start_line": 9}))
            .await
            .contains("no line 9")
    );
}

#[tokio::test]
async fn an_edit_must_be_unique_and_exact() {
    for level in LEVELS {
        an_edit_must_be_unique_and_exact_at(level).await;
    }
}

async fn an_edit_must_be_unique_and_exact_at(level: &str) {
    let bench = Bench::at(level);
    bench.put("f", "x\ny\nx\n");
    let many = bench
        .fails(
            "file-edit",
            json!({"path": "f", "old_text": "x", "new_text": "z"}),
        )
        .await;
    assert!(many.contains("2 times") && many.contains("1, 3"), "{many}");
    assert!(
        bench
            .fails(
                "file-edit",
                json!({"path": "f", "old_text": "q", "new_text": "z"})
            )
            .await
            .contains("does not occur")
    );
    assert_eq!(
        std::fs::read_to_string(bench.path("f")).expect("there"),
        "x\ny\nx\n"
    );
}

#[tokio::test]
async fn writing_keeps_the_mode_and_leaves_no_temporary_file() {
    for level in LEVELS {
        writing_keeps_the_mode_and_leaves_no_temporary_file_at(level).await;
    }
}

async fn writing_keeps_the_mode_and_leaves_no_temporary_file_at(level: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::at(level);
    bench.put("run.sh", "old");
    std::fs::set_permissions(bench.path("run.sh"), std::fs::Permissions::from_mode(0o750)).expect("mode");
    bench
        .ok("file-write", json!({"path": "run.sh", "content": "new"}))
        .await;
    let mode = std::fs::metadata(bench.path("run.sh"))
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o750);
    assert_eq!(std::fs::read_dir(bench.dir.path()).expect("listed").count(), 1);
}

#[tokio::test]
async fn paths_cannot_leave_the_root() {
    for level in LEVELS {
        paths_cannot_leave_the_root_at(level).await;
    }
}

async fn paths_cannot_leave_the_root_at(level: &str) {
    let bench = Bench::at(level);
    let outside = tempfile::tempdir().expect("a folder");
    std::fs::write(outside.path().join("secret"), "s3cr3t").expect("written");
    for path in ["../secret", "/etc/passwd", "a/../../secret", "./../x"] {
        assert_eq!(
            bench.refused("file-read", json!({"path": path})).await,
            "filesystem.mount_paths",
            "{path}"
        );
        assert_eq!(
            bench
                .refused("file-write", json!({"path": path, "content": "x"}))
                .await,
            "filesystem.mount_paths"
        );
    }
    assert_eq!(
        bench.refused("file-read", json!({"path": "a\0b"})).await,
        "filesystem"
    );
    std::os::unix::fs::symlink(outside.path(), bench.path("out")).expect("linked");
    std::os::unix::fs::symlink(outside.path().join("secret"), bench.path("file-out")).expect("linked");
    std::os::unix::fs::symlink("../../../../../../etc", bench.path("up")).expect("linked");
    for path in ["out/secret", "file-out", "up/passwd"] {
        let said = bench.fails("file-read", json!({"path": path})).await;
        assert!(said.contains("leads out"), "{path}: {said}");
    }
    assert!(
        bench
            .fails("file-write", json!({"path": "out/new", "content": "x"}))
            .await
            .contains("leads out")
    );
    assert!(
        bench
            .fails("file-write", json!({"path": "file-out", "content": "x"}))
            .await
            .contains("is a link")
    );
    assert!(
        bench
            .fails("file-list", json!({"path": "out"}))
            .await
            .contains("leads out")
    );
    assert!(!text(&bench.ok("file-search", json!({"pattern": "s3cr3t"})).await).contains("s3cr3t"));
    assert_eq!(
        std::fs::read_to_string(outside.path().join("secret")).expect("there"),
        "s3cr3t"
    );
    assert!(!outside.path().join("new").exists());
}

#[tokio::test]
async fn denied_paths_hold_through_links_and_in_walks() {
    for level in LEVELS {
        denied_paths_hold_through_links_and_in_walks_at(level).await;
    }
}

async fn denied_paths_hold_through_links_and_in_walks_at(level: &str) {
    let mut bench = Bench::at(level);
    bench.ran.plan = plan_at(
        level,
        json!({"filesystem": {"mode": "scoped", "mount_paths": [{"path": ".", "permissions": "rw"},
        {"path": "frozen", "permissions": "ro"}], "denied_paths": ["private", "**/.env"]}}),
    );
    bench.put("private/key", "k3y");
    bench.put("frozen/f", "ice");
    bench.put("deep/.env", "k3y");
    std::os::unix::fs::symlink("private", bench.path("innocent")).expect("linked");
    std::os::unix::fs::symlink("frozen", bench.path("warm")).expect("linked");
    assert_eq!(
        bench.refused("file-read", json!({"path": "private/key"})).await,
        "filesystem.denied_paths"
    );
    // In a box there is nothing behind the link: the denied folder is covered before the tool looks.
    for (tool, arguments) in [
        ("file-read", json!({"path": "innocent/key"})),
        ("file-write", json!({"path": "innocent/new", "content": ""})),
    ] {
        match bench.call(tool, arguments).await {
            Err(RunError::Sandbox(SandboxRefusal::Blocked { rule, .. })) => {
                assert_eq!(rule, "filesystem.denied_paths")
            }
            Ok(outcome) if level == "process" => assert!(outcome.is_error, "{outcome:?}"),
            other => panic!("{other:?}"),
        }
    }
    assert!(!bench.path("private/new").exists());
    assert_eq!(
        bench
            .refused("file-write", json!({"path": "warm/new", "content": ""}))
            .await,
        "filesystem.mount_paths"
    );
    assert_eq!(
        text(&bench.ok("file-read", json!({"path": "warm/f"})).await),
        "ice"
    );
    let listing = text(&bench.ok("file-list", json!({"recursive": true})).await);
    assert!(!listing.contains("key") && !listing.contains(".env"), "{listing}");
    let found = text(&bench.ok("file-search", json!({"pattern": "k3y"})).await);
    assert!(
        found.starts_with("nothing found\n[") && found.contains("left out"),
        "{found}"
    );
}

#[tokio::test]
async fn binary_huge_and_special_files() {
    for level in LEVELS {
        binary_huge_and_special_files_at(level).await;
    }
}

async fn binary_huge_and_special_files_at(level: &str) {
    let bench = Bench::at(level);
    bench.put("data", [0_u8, 1, 2]);
    assert!(
        bench
            .fails("file-read", json!({"path": "data"}))
            .await
            .contains("binary")
    );
    assert!(
        bench
            .fails(
                "file-edit",
                json!({"path": "data", "old_text": "a", "new_text": "b"})
            )
            .await
            .contains("binary")
    );
    bench.put("long", "0123456789\n".repeat(60_000));
    let part = bench.ok("file-read", json!({"path": "long"})).await;
    assert!(text(&part).len() < 270_000);
    assert_eq!(part.structured.expect("facts")["truncated"], true);
    bench.put("line", "x".repeat(2_000_000));
    assert!(text(&bench.ok("file-read", json!({"path": "line"})).await).len() < 270_000);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        bench.path("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .expect("made");
    assert!(
        bench
            .fails("file-read", json!({"path": "fifo"}))
            .await
            .contains("regular file")
    );
    assert!(
        bench
            .fails("file-read", json!({"path": "."}))
            .await
            .contains("folder")
    );
    assert!(
        bench
            .fails("file-read", json!({"path": "absent"}))
            .await
            .contains("no such file")
    );
    let big = "x".repeat((16 << 20) + 1);
    assert!(
        bench
            .fails("file-write", json!({"path": "big", "content": big}))
            .await
            .contains("larger")
    );
}

#[tokio::test]
async fn listings_and_searches_are_bounded() {
    for level in LEVELS {
        listings_and_searches_are_bounded_at(level).await;
    }
}

async fn listings_and_searches_are_bounded_at(level: &str) {
    let bench = Bench::at(level);
    for n in 0..1_100 {
        bench.put(&format!("f{n}"), "needle\n");
    }
    let listing = bench.ok("file-list", json!({})).await;
    assert_eq!(
        listing.structured.expect("facts"),
        json!({"path": ".", "entries": 1000, "truncated": true, "left_out": 0})
    );
    let found = bench
        .ok("file-search", json!({"pattern": "needle", "max_results": 5}))
        .await;
    assert_eq!(found.structured.expect("facts")["matches"], 5);
    assert!(
        bench
            .fails("file-search", json!({"pattern": "("}))
            .await
            .contains("pattern")
    );
    assert!(
        bench
            .fails("file-list", json!({"glob": "["}))
            .await
            .contains("glob")
    );
}
