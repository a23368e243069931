//! `denied_paths` in a box, however they are written, against a judge that asks the kernel.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_plan::{Plan, PlanDefaults, RuntimeFiles};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::json;

use super::{run, script, text};

const FILES: [&str; 6] = [
    "ws/denied/key",
    "ws/sub/denied/key",
    "ws/sub/plain",
    "ws/plain",
    "ws/hard",
    "ws/sub/hard",
];

fn lab() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().canonicalize().expect("its place");
    for name in FILES.iter().take(4) {
        std::fs::create_dir_all(root.join(name).parent().expect("a parent")).expect("a folder");
        std::fs::write(root.join(name), format!("CANARY {name}")).expect("a file");
    }
    std::fs::hard_link(root.join("ws/denied/key"), root.join("ws/hard")).expect("a hard link");
    std::fs::hard_link(root.join("ws/sub/denied/key"), root.join("ws/sub/hard")).expect("a hard link");
    for (link, target) in [("alias", "ws"), ("second", "alias"), ("ws/inner", "sub")] {
        symlink(target, root.join(link)).expect("a link");
    }
    (folder, root)
}

/// A mount and a denied path.
fn written() -> impl Strategy<Value = (String, String)> {
    let ws = || {
        let names = vec![
            "ws",
            "alias",
            "second",
            "alias/../ws",
            "ws/sub/..",
            "second//.",
            "alias/inner/..",
        ];
        prop::sample::select(names)
    };
    let below = prop::sample::select(vec![
        "denied",
        "denied/",
        "denied//key",
        "sub/denied",
        "inner/denied/",
        "inner/../denied",
        "inner",
        "plain",
        "inner/d*",
        "*/denied",
        "denied/*",
    ]);
    (ws(), ws(), below, any::<bool>()).prop_map(|(mount, ws, below, relative)| {
        let root = if relative { "" } else { "ROOT/" };
        (mount.to_owned(), format!("{root}{ws}/{below}"))
    })
}

fn places(root: &Path, denied: &str) -> Vec<PathBuf> {
    let line = format!("printf '%s\\n' {denied}");
    #[expect(
        clippy::disallowed_methods,
        reason = "the judge is a shell, which knows links and patterns by itself"
    )]
    let said = std::process::Command::new("sh")
        .args(["-c", &line])
        .current_dir(root)
        .output();
    let said = text(&said.expect("a shell").stdout);
    said.lines()
        .filter_map(|line| root.join(line).canonicalize().ok())
        .collect()
}

/// The judge: a file is denied when what the shell finds by the written name is this file, by any of its names, or a folder of it.
fn naive(root: &Path, denied: &str, file: &str) -> bool {
    let which = |path: &Path| {
        path.metadata()
            .map(|about| (about.dev(), about.ino()))
            .expect("there")
    };
    let places = places(root, denied);
    let names = FILES
        .iter()
        .filter(|other| which(&root.join(other)) == which(&root.join(file)));
    let mut names = names.map(|name| root.join(name));
    names.any(|name| places.iter().any(|place| name.starts_with(place)))
}

#[tokio::test]
async fn what_is_denied_is_denied_however_it_is_written() {
    let mut runner = TestRunner::deterministic();
    for _ in 0..60 {
        let (mount, denied) = written().new_tree(&mut runner).expect("a case").current();
        let (_folder, root) = lab();
        let denied = denied.replace("ROOT", &root.display().to_string());
        let sandbox = json!({"name": "s", "level": "process", "capabilities": {"shell": {"mode": "full"}, "filesystem": {
            "mode": "scoped", "mount_paths": [{"path": mount, "permissions": "rw"}], "denied_paths": [denied]}}});
        let given = serde_json::from_value(sandbox).expect("a sandbox");
        let plan = Plan::compile(Some(&given), &PlanDefaults::default())
            .with_runtime_files(&RuntimeFiles::empty(), &root);
        let lines: Vec<String> = FILES
            .iter()
            .map(|file| format!("cat {}", root.join(file).display()))
            .collect();
        // Links and names that the tool makes itself lead no further.
        let own = format!(
            "cd {}; ln -s ws made; ln -s denied own; cat own/key; ln denied/key own2 && cat own2; mv sub moved && cat moved/denied/key",
            root.join("ws").display()
        );
        let mut spec = script(&format!("{}; {own}", lines.join("; ")));
        spec.plan = Arc::new(plan);
        spec.base = Some(root.clone());
        let judged: Vec<bool> = FILES.iter().map(|file| naive(&root, &denied, file)).collect();
        let outcome = run(&spec).await;
        let seen = text(&outcome.stdout);
        for (file, denies) in FILES.iter().zip(judged).take(4) {
            let expected = !denies;
            assert_eq!(
                seen.contains(&format!("CANARY {file}")),
                expected,
                "mount {mount}, denied {denied}, {file}: {seen}"
            );
        }
    }
}

#[tokio::test]
async fn a_link_made_between_two_calls_counts() {
    let (_folder, root) = lab();
    let sandbox = json!({"name": "s", "level": "process", "capabilities": {"filesystem": {
        "mode": "scoped", "mount_paths": [{"path": "ws", "permissions": "rw"}], "denied_paths": ["later/denied"]}}});
    let given = serde_json::from_value(sandbox).expect("a sandbox");
    let plan = Plan::compile(Some(&given), &PlanDefaults::default())
        .with_runtime_files(&RuntimeFiles::empty(), &root);
    let mut spec = script(&format!("cat {}", root.join("ws/denied/key").display()));
    spec.plan = Arc::new(plan);
    spec.base = Some(root.clone());
    assert!(text(&run(&spec).await.stdout).contains("CANARY"));
    symlink("alias", root.join("later")).expect("a link");
    assert!(!text(&run(&spec).await.stdout).contains("CANARY"));
}
