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
    wanted(folder.path(), &mine).claim_dir(folder.path()).unwrap();
    wanted(folder.path(), &mine).claim_dir(folder.path()).unwrap();
    assert_eq!(owner_of(folder.path()).unwrap().unwrap(), "/a/claw.yaml");
    wanted(folder.path(), &other)
        .claim_dir(folder.path())
        .unwrap_err();
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "no part is left behind");
}
