use std::os::unix::fs::{chown, symlink};

use super::*;

fn wanted<'a>(dir: &'a Path, origin: &'a Origin) -> StateLookup<'a> {
    StateLookup {
        flag: Some(dir),
        configured: None,
        agent: "a",
        origin,
    }
}

#[test]
fn a_directory_or_a_link_of_another_user_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let origin = Origin::Atlases;
    fs::create_dir(at("mine")).unwrap();
    symlink(at("mine"), at("link")).unwrap();
    wanted(&at("mine"), &origin).prepare_dir().unwrap();
    wanted(&at("link"), &origin).prepare_dir().unwrap();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    std::os::unix::fs::lchown(at("link"), Some(1234), None).unwrap();
    let refused = wanted(&at("link"), &origin)
        .prepare_dir()
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("link to the state directory") && refused.contains("1234"),
        "{refused}"
    );
    chown(at("mine"), Some(1234), None).unwrap();
    let refused = wanted(&at("mine"), &origin)
        .prepare_dir()
        .unwrap_err()
        .to_string();
    assert!(refused.contains("belongs to user 1234"), "{refused}");
}

#[test]
fn a_directory_with_a_link_in_it_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    symlink("/tmp", folder.path().join("cache")).unwrap();
    let refused = wanted(folder.path(), &Origin::Atlases)
        .prepare_dir()
        .unwrap_err()
        .to_string();
    assert!(refused.contains("holds no links"), "{refused}");
}

#[test]
fn a_directory_is_taken_once() {
    let folder = tempfile::tempdir().unwrap();
    let [mine, other] = ["/a/claw.yaml", "/b/claw.yaml"].map(|path| Origin::File(path.into()));
    identity::claim_dir(folder.path(), &mine.owner()).unwrap();
    identity::claim_dir(folder.path(), &mine.owner()).unwrap();
    assert_eq!(owner_of(folder.path()).unwrap().unwrap(), "/a/claw.yaml");
    identity::claim_dir(folder.path(), &other.owner()).unwrap_err();
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "no part is left behind");
}

#[test]
fn keys_and_running_files_are_in_no_backup() {
    use places::{BackupMethod, StatePlace};
    let method = |path: &str| StatePlace::of_entry(Path::new(path)).backup_method();
    for secret in [
        "keys/checkpoint.key",
        "oauth/a.sealed",
        "peers/one/keys/checkpoint.key",
    ] {
        assert_eq!(method(secret), BackupMethod::Secret, "{secret}");
    }
    for left in [
        "lock",
        "control.sock",
        "cache/x",
        "peers/one/lock",
        ".backup",
        "postgres.json",
    ] {
        assert_eq!(method(left), BackupMethod::LeftOut, "{left}");
    }
    for taken in [
        "history",
        "channels/a.web/b",
        "audit/p.db",
        "something-new",
        "peers/one/history",
    ] {
        assert_eq!(method(taken), BackupMethod::Files, "{taken}");
    }
    for own in ["state.db", "state.db-wal", "blobs/ab/cd"] {
        assert_eq!(method(own), BackupMethod::State, "{own}");
    }
    let distinct: std::collections::BTreeSet<_> = StatePlace::ALL.into_iter().collect();
    assert_eq!(distinct.len(), StatePlace::ALL.len());
}
