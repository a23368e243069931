use std::os::unix::fs::symlink;

use super::*;

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    (folder, root)
}

fn seen(paths: &[PathBuf], roots: &[PathBuf]) -> RealLocations {
    resolve_paths_blocking(&PathSearch {
        paths: paths.to_vec(),
        roots: roots.iter().map(|root| (root.clone(), true)).collect(),
        then: BTreeMap::new(),
    })
}

#[test]
fn links_are_followed_as_the_system_follows_them() {
    let (_folder, root) = folder();
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::write(root.join("a/b/f"), "x").unwrap();
    for (target, link) in [
        (".", "up"),
        ("a/b", "deep"),
        ("gone", "broken"),
        ("two", "one"),
        ("one", "two"),
    ] {
        symlink(target, root.join(link)).unwrap();
    }
    let at = |path: &str| {
        let path = root.join(path);
        let found = seen(std::slice::from_ref(&path), &[])
            .paths
            .remove(&path)
            .unwrap();
        let below = |at: &PathBuf| at.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        (
            found.at.iter().map(below).collect::<Vec<_>>().join(","),
            found.exists,
            found.unknown.is_some(),
        )
    };
    let is = |path: &str, exists| (path.to_owned(), exists, false);
    assert_eq!(at("up/up/a/b/f"), is("a/b/f", true));
    assert_eq!(at("deep/../b/f/"), is("a/b/f", true)); // `..` of the real folder
    assert_eq!(at("deep/.."), is("a", true));
    assert_eq!(at("broken/x"), is("gone/x", false));
    assert_eq!(at("a/b/f/g"), is("a/b/f/g", false));
    assert_eq!(at("new/../x"), is("x", false));
    assert_eq!(at(&"n".repeat(300)), is(&"n".repeat(300), false));
    assert!(at("one/x").2);
}

#[test]
fn further_names_are_found_where_a_rule_restricts() {
    let (_folder, root) = folder();
    std::fs::create_dir_all(root.join("keys/deep")).unwrap();
    std::fs::write(root.join("keys/deep/k"), "x").unwrap();
    std::fs::write(root.join(".env"), "x").unwrap();
    std::fs::write(root.join("own"), "x").unwrap();
    for (file, name) in [("keys/deep/k", "k"), (".env", "e"), ("own", "own2")] {
        std::fs::hard_link(root.join(file), root.join(name)).unwrap();
    }
    let paths = ["k", "e", "own", "keys/deep/k"].map(|name| root.join(name));
    let found = seen(&paths, &[root.join("keys"), root.join(".env")]).paths;
    let names = |name: &str| found[&root.join(name)].at.clone();
    assert!(names("k").contains(&root.join("keys/deep/k")));
    assert!(names("e").contains(&root.join(".env")));
    assert_eq!(names("own"), [root.join("own")]);
    assert_eq!(names("keys/deep/k"), [root.join("keys/deep/k")]);
}

#[test]
fn the_deepest_root_says_what_is_left_out() {
    let apart = ExcludedPaths {
        out: vec!["/w/keys".into(), "/w/keys/open/not".into()],
        open: vec!["/w/keys/open".into()],
    };
    let left = |path: &str| apart.leaves_out(Path::new(path));
    assert!(left("/w/keys") && left("/w/keys/a") && left("/w/keys/open/not/b"));
    assert!(!left("/w") && !left("/w/keys/open/a") && !left("/w/keys2"));
}
