use std::os::unix::fs::symlink;

use super::*;
use crate::plan::Mount;

fn scoped(mounts: &[(&str, bool)]) -> Filesystem {
    let mount = |(path, writable): &(&str, bool)| Mount {
        path: PathBuf::from(path),
        writable: *writable,
    };
    Filesystem {
        mode: FsMode::Scoped,
        mounts: mounts.iter().map(mount).collect(),
        ..Filesystem::default()
    }
}

fn kept(filesystem: &mut Filesystem, base: &Path, own: &[&str]) -> Vec<String> {
    let files: Vec<PathBuf> = own.iter().map(|name| base.join(name)).collect();
    filesystem.protect_files(&files, base);
    let below = |path: &PathBuf| path.strip_prefix(base).unwrap().to_string_lossy().into_owned();
    filesystem.own.iter().map(below).collect()
}

#[test]
fn what_a_writable_mount_shows_is_kept_under_every_name() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().canonicalize().unwrap();
    std::fs::create_dir_all(base.join("work/real")).unwrap();
    std::fs::create_dir_all(base.join("other")).unwrap();
    std::fs::write(base.join("work/real/claw.yaml"), "").unwrap();
    symlink("real/claw.yaml", base.join("work/claw.yaml")).unwrap();
    symlink("work", base.join("alias")).unwrap();
    let own = ["work/claw.yaml", "other/policy.yaml"];
    assert_eq!(
        kept(&mut scoped(&[("work", true), ("other", false)]), &base, &own),
        ["work/claw.yaml", "work/real/claw.yaml"]
    );
    assert_eq!(
        kept(&mut scoped(&[("alias", true)]), &base, &own),
        [
            "alias/claw.yaml",
            "alias/real/claw.yaml",
            "work/claw.yaml",
            "work/real/claw.yaml"
        ]
    );
    // What is not there yet is kept by its name.
    assert_eq!(
        kept(&mut scoped(&[("work", true)]), &base, &["work/clawk.toml"]),
        ["work/clawk.toml"]
    );
    assert!(kept(&mut scoped(&[("work", false)]), &base, &own).is_empty());
    let mut read = Filesystem {
        mode: FsMode::ReadOnly,
        ..scoped(&[("work", true)])
    };
    assert!(kept(&mut read, &base, &own).is_empty());
}

#[test]
fn of_a_link_on_the_way_the_link_is_kept_and_not_what_lies_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().canonicalize().unwrap();
    std::fs::create_dir_all(base.join("real/bin")).unwrap();
    std::fs::create_dir_all(base.join("real/out")).unwrap();
    std::fs::create_dir_all(base.join("links")).unwrap();
    std::fs::write(base.join("real/bin/run"), "x").unwrap();
    symlink("../real", base.join("links/link")).unwrap();
    let own = ["links/link/bin/run"];
    let own_names = ["links/link/bin/run", "real/bin/run"];
    assert_eq!(kept(&mut scoped(&[("links", true)]), &base, &own), own_names);
    let mut all = scoped(&[(".", true)]);
    assert_eq!(kept(&mut all, &base, &own), own_names);
    assert!(!all.is_protected(&base.join("links/link/out/a")));
    // Through the link, the folder may be written.
    let mut behind = scoped(&[("links/link", true)]);
    assert_eq!(kept(&mut behind, &base, &own), own_names);
    assert!(behind.mounts.iter().all(|mount| mount.writable));
    let kept = RuntimeFileGuard::from_paths(&all.own);
    assert!(kept.contains_path(&base.join("links/link")) && kept.contains_path(&base.join("real/bin/run")));
    for other in ["real", "real/out/a", "real/bin/other"] {
        assert!(!kept.contains_path(&base.join(other)), "{other}");
    }
}

#[test]
fn a_mount_in_an_own_folder_is_read_only() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().canonicalize().unwrap();
    std::fs::create_dir_all(base.join("atlas/data")).unwrap();
    std::fs::write(base.join("claw.yaml"), "").unwrap();
    let mut filesystem = scoped(&[("atlas/data", true), ("claw.yaml", true), (".", true)]);
    let own = RuntimeFiles {
        state: None,
        files: vec![base.join("atlas"), base.join("claw.yaml")],
    };
    let (mount, by) = filesystem.find_contradiction(&own, &base).unwrap();
    assert_eq!((mount, by), (PathBuf::from("atlas/data"), base.join("atlas")));
    filesystem.protect_files(&own.files, &base);
    let writable: Vec<bool> = filesystem.mounts.iter().map(|mount| mount.writable).collect();
    assert_eq!(writable, [false, false, true]);
    assert_eq!(filesystem.find_contradiction(&own, &base), None);
}

#[test]
fn changes_are_judged_by_name_by_folder_and_by_file() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().canonicalize().unwrap();
    std::fs::create_dir_all(base.join("a/tools")).unwrap();
    std::fs::write(base.join("a/claw.yaml"), "x").unwrap();
    std::fs::write(base.join("a/tools/one.yaml"), "x").unwrap();
    std::fs::hard_link(base.join("a/tools/one.yaml"), base.join("a/second")).unwrap();
    let kept = RuntimeFileGuard::from_paths(&[
        base.join("a/claw.yaml"),
        base.join("a/tools"),
        base.join("a/clawk.toml"),
    ]);
    let which = |name: &str| {
        let about = base.join(name).metadata().unwrap();
        (about.dev(), about.ino())
    };
    for name in ["a/claw.yaml", "a/tools", "a/tools/new.yaml", "a/clawk.toml"] {
        assert!(kept.contains_path(&base.join(name)), "{name}");
    }
    for name in ["a", "a/other", "a/claw.yaml.bak"] {
        assert!(!kept.contains_path(&base.join(name)), "{name}");
    }
    assert!(kept.leads_to_own(&base.join("a")) && !kept.leads_to_own(&base.join("a/other")));
    for name in ["a/claw.yaml", "a/second"] {
        let (dev, ino) = which(name);
        assert!(kept.is_same_file(dev, ino), "{name}");
    }
    let (dev, ino) = which("a");
    assert!(kept.is_above(dev, ino));
    assert!(kept.is_entry(dev, ino, OsStr::new("clawk.toml")));
    assert!(!kept.is_entry(dev, ino, OsStr::new("other")));
}
