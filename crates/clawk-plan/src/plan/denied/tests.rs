use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

use super::Denied;
use crate::{Plan, PlanDefaults, RuntimeFiles, SandboxRefusal};

/// `ws` with files at two depths; `alias` and `second` lead to it, `ws/inner` to a folder of it, `up` to the folder itself.
fn lab() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    for name in [
        "ws/denied/key",
        "ws/sub/denied/key",
        "ws/sub/plain",
        "ws/plain",
        "ws/a[1]/key",
        "ws/a1/key",
    ] {
        std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        std::fs::write(root.join(name), name).unwrap();
    }
    for (link, target) in [
        ("alias", "ws"),
        ("second", "alias"),
        ("up", "."),
        ("ws/inner", "sub"),
    ] {
        symlink(target, root.join(link)).unwrap();
    }
    (folder, root)
}

const FILES: [&str; 6] = [
    "ws/denied/key",
    "ws/sub/denied/key",
    "ws/sub/plain",
    "ws/plain",
    "ws/a[1]/key",
    "ws/a1/key",
];

fn plan(mount: &str, denied: &str, base: &Path) -> Plan {
    let sandbox = json!({"name": "s", "level": "process", "capabilities": {"filesystem": {
        "mode": "scoped", "mount_paths": [{"path": mount, "permissions": "rw"}], "denied_paths": [denied]}}});
    let given = serde_json::from_value(sandbox).unwrap();
    Plan::compile(Some(&given), &PlanDefaults::default()).with_runtime_files(&RuntimeFiles::empty(), base)
}

/// Ways to write the folder `ws`.
fn workspace() -> impl Strategy<Value = String> {
    let names = prop::sample::select(vec![
        "ws",
        "alias",
        "second",
        "up/ws",
        "up/up/alias",
        "ws/sub/..",
        "alias/inner/..",
    ]);
    (
        names,
        prop::sample::select(vec!["", "/.", "//", "/sub/..", "/../ws", "/../alias"]),
    )
        .prop_map(|(name, after)| format!("{name}{after}"))
}

/// Ways to write something in it.
fn below() -> impl Strategy<Value = String> {
    let names = [
        "denied",
        "denied/",
        "denied//key",
        "./denied",
        "sub/denied",
        "inner/denied",
        "inner/denied/../denied/",
        "inner/plain",
        "sub",
        "inner",
        "plain",
        "denied/../plain",
        "sub/../denied/key",
    ];
    prop::sample::select(names.to_vec()).prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// The judge: what the kernel finds by the written name, and all that is below it, is denied by its real name.
    #[test]
    fn a_place_is_denied_however_it_is_written(
        mount in workspace(), ws in workspace(), below in below(), relative in any::<bool>(),
    ) {
        let (_folder, root) = lab();
        let written = match relative {
            true => format!("{ws}/{below}"),
            false => format!("{}/{ws}/{below}", root.display()),
        };
        let meant = root.join(&ws).join(&below).canonicalize().unwrap();
        let plan = plan(&mount, &written, &root);
        prop_assert!(plan.check_available().is_ok());
        for file in FILES {
            let real = root.join(file);
            let naive = real.starts_with(&meant);
            prop_assert_eq!(plan.filesystem().denies_path(&real, &root), naive, "{} by {}", file, written);
            // As the mount calls it, a caller is refused before anything is opened.
            let named = crate::preflight::path::lexical_path(&root, Path::new(&mount)).join(file.strip_prefix("ws/").unwrap());
            let refused = crate::preflight::path::permit_path(plan.filesystem(), named.to_str().unwrap(), false, &root).is_err();
            prop_assert_eq!(refused, naive, "{} by {}", named.display(), written);
        }
    }

    /// The same with a pattern for the last name or the folder.
    #[test]
    fn a_pattern_holds_through_links(mount in workspace(), ws in workspace(), pattern in prop::sample::select(vec![
        ("denied/*", "ws/denied/key"), ("inner/d*/key", "ws/sub/denied/key"), ("i*/denied", "ws/sub/denied/key"),
        ("{nothing,inner}/denied/", "ws/sub/denied/key"), ("*/../denied", ""), ("inner/**/key", "ws/sub/denied/key"),
        ("d?nied//key", "ws/denied/key"), ("./d*", "ws/denied/key"), ("inner//p*n", "ws/sub/plain"),
    ])) {
        let (_folder, root) = lab();
        let (pattern, only) = pattern;
        let plan = plan(&mount, &format!("{}/{ws}/{pattern}", root.display()), &root);
        if only.is_empty() {
            prop_assert!(matches!(plan.check_available(), Err(SandboxRefusal::Unavailable { .. })), "what can't be held is refused");
            return Ok(());
        }
        let denied = FILES.into_iter().filter(|file| plan.filesystem().denies_path(&root.join(file), &root));
        prop_assert_eq!(denied.collect::<Vec<_>>(), vec![only]);
    }
}

#[test]
fn a_pattern_for_a_folder_follows_the_links_that_fit_it() {
    let (_folder, root) = lab();
    let plan = plan("ws", &format!("{}/al*/denied", root.display()), &root);
    assert!(plan.filesystem().denies_path(&root.join("ws/denied/key"), &root));
    assert!(!plan.filesystem().denies_path(&root.join("ws/plain"), &root));
}

#[test]
fn a_link_made_later_counts_when_it_is_asked_anew() {
    let (_folder, root) = lab();
    let plan = plan("ws", "later/denied", &root);
    assert!(!plan.filesystem().denies_path(&root.join("ws/denied/key"), &root));
    assert!(plan.resolved_anew(&root).is_none());
    symlink("alias", root.join("later")).unwrap();
    let plan = plan.resolved_anew(&root).unwrap();
    assert!(plan.filesystem().denies_path(&root.join("ws/denied/key"), &root));
    let origin = plan.filesystem().denied.iter().find_map(Denied::origin);
    assert_eq!(origin, Some("later/denied"));
    assert!(plan.resolved_anew(&root).is_none());
}

#[test]
fn a_place_called_like_a_pattern_is_itself_between_processes_too() {
    let (_folder, root) = lab();
    let plan = plan("ws", "ws/a[1]", &root);
    let text = serde_json::to_string(plan.filesystem()).unwrap();
    let read: crate::Filesystem = serde_json::from_str(&text).unwrap();
    for filesystem in [plan.filesystem(), &read] {
        assert!(filesystem.denies_path(&root.join("ws/a[1]/key"), &root));
        assert!(
            filesystem.denies_path(&root.join("ws/a1/key"), &root),
            "as a pattern, too"
        );
        assert!(!filesystem.denies_path(&root.join("ws/plain"), &root));
    }
    let place = Denied::from_path(root.join("ws/a[1]"));
    let read: Denied = serde_json::from_str(&serde_json::to_string(&place).unwrap()).unwrap();
    assert!(
        read.covers_path(&root.join("ws/a[1]/key"), &root)
            && !read.covers_path(&root.join("ws/a1/key"), &root)
    );
}

#[test]
fn a_circle_of_links_denies_its_own_names_alone() {
    let (_folder, root) = lab();
    symlink("b", root.join("a")).unwrap();
    symlink("a", root.join("b")).unwrap();
    symlink("c/c", root.join("c")).unwrap();
    for text in ["a", "a/x", "c", "c/x"] {
        let plan = plan("ws", text, &root);
        assert!(
            plan.check_available().is_ok(),
            "{text}: nothing can be opened by this name"
        );
        let denied = &plan.filesystem().denied;
        assert!(
            denied
                .iter()
                .any(|rule| rule.covers_path(&root.join(text), &root)),
            "{text}"
        );
    }
}

#[test]
fn long_chains_of_links_and_too_many_alternatives_are_refused() {
    let (_folder, root) = lab();
    for n in 0..60 {
        symlink(format!("l{}", n + 1), root.join(format!("l{n}"))).unwrap();
    }
    for text in ["l0/x", "{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}"] {
        match plan("ws", text, &root).check_available() {
            Err(SandboxRefusal::Unavailable {
                mechanism, missing, ..
            }) => {
                assert_eq!(mechanism, "denied_paths");
                assert!(missing.contains(text), "{missing}");
            }
            other => panic!("{other:?}"),
        }
    }
}
