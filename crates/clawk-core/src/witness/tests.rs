use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use clawk_plan::{FsMode, Plan, PlanDefaults};

use super::{
    GrantPrecondition, ProgramSearch, first_difference, lasting_preconditions, observe_file, observe_program,
};

fn look(path: &Path) -> Vec<GrantPrecondition> {
    observe_file(path).facts
}

/// What changed, if anything, when `swap` is done between two looks.
fn swapped(path: &Path, swap: impl FnOnce()) -> Option<String> {
    let before = look(path);
    assert_eq!(
        first_difference(&before, &look(path)),
        None,
        "looking changes nothing"
    );
    swap();
    first_difference(&before, &look(path))
}

#[test]
fn every_swap_of_a_file_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("a"), "one").unwrap();
    assert!(swapped(&at("a"), || fs::write(at("a"), "two").unwrap()).is_some());
    // The same size, the time set back.
    let time = fs::metadata(at("a")).unwrap().modified().unwrap();
    let why = swapped(&at("a"), || {
        fs::write(at("a"), "six").unwrap();
        let file = fs::File::options().write(true).open(at("a")).unwrap();
        file.set_modified(time).unwrap();
    });
    assert!(why.unwrap().contains("content"));
    assert!(swapped(&at("a"), || fs::remove_file(at("a")).unwrap()).is_some());
    assert!(swapped(&at("new"), || fs::write(at("new"), "x").unwrap()).is_some());
    // Another file of the same content.
    let why = swapped(&at("new"), || {
        fs::rename(at("new"), at("old")).unwrap();
        fs::copy(at("old"), at("new")).unwrap();
    });
    assert!(why.is_some());
}

#[test]
fn links_and_folders_on_the_way_count() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["x", "y"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("x/f"), "same").unwrap();
    fs::hard_link(at("x/f"), at("y/f")).unwrap();
    symlink("x", at("l")).unwrap();
    let why = swapped(&at("l/f"), || {
        fs::remove_file(at("l")).unwrap();
        symlink("y", at("l")).unwrap();
    });
    assert!(why.unwrap().contains("the link"));
    // The very same inode through another folder of the same name.
    let why = swapped(&at("x/f"), || {
        fs::rename(at("x"), at("z")).unwrap();
        fs::rename(at("y"), at("x")).unwrap();
    });
    assert!(why.unwrap().contains("folders on the way"));
    // What is absent is bound to the folder it is absent from.
    let why = swapped(&at("x/none"), || {
        fs::rename(at("x"), at("w")).unwrap();
        fs::create_dir(at("x")).unwrap();
    });
    assert!(why.is_some());
    symlink("loop", at("loop")).unwrap();
    assert!(matches!(
        observe_file(&at("loop")).mark.state,
        super::State::Unknown(_)
    ));
}

#[test]
fn a_program_is_the_first_of_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let make = |path: &str| {
        fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
        fs::write(dir.path().join(path), "#!/bin/sh\n").unwrap();
        fs::set_permissions(dir.path().join(path), fs::Permissions::from_mode(0o755)).unwrap();
    };
    make("b/tool");
    fs::create_dir(dir.path().join("a")).unwrap();
    let search = format!("{0}/a:{0}/b", dir.path().display());
    let look = |name: &str, filesystem: FsMode, configured: Option<()>| {
        let plan = Plan::for_undeclared(&PlanDefaults {
            filesystem,
            ..PlanDefaults::default()
        });
        observe_program(
            name,
            ProgramSearch {
                path: Some(&search),
                from: dir.path(),
                plan: configured.is_none().then_some(&plan),
                base: dir.path(),
            },
        )
    };
    let find = |name: &str, filesystem: FsMode| look(name, filesystem, None);
    let before = find("tool", FsMode::Scoped);
    assert!(before[0].value.ends_with("/b/tool"));
    make("a/tool");
    let why = first_difference(&before, &find("tool", FsMode::Scoped)).unwrap();
    assert!(why.contains("/a/tool"), "{why}");
    assert_eq!(find("no-such", FsMode::Scoped)[0].value, "not found");
    // One that the box does not show is not the one that runs.
    assert_eq!(find("tool", FsMode::Deny)[0].value, "not found");
    // One that the operator configured runs all the same, and is bound.
    let before = look("tool", FsMode::Deny, Some(()));
    assert!(before[0].value.ends_with("/a/tool"));
    fs::write(dir.path().join("a/tool"), "#!/bin/sh\nexchanged\n").unwrap();
    assert!(first_difference(&before, &look("tool", FsMode::Deny, Some(()))).is_some());
}

#[test]
fn a_file_read_is_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "x").unwrap();
    let seen = observe_file(&dir.path().join("a"));
    let super::State::Present(identity) = seen.mark.state else {
        panic!()
    };
    assert!(identity.matches_metadata(&fs::metadata(dir.path().join("a")).unwrap()));
}

#[test]
fn what_lasts_of_a_look_is_where_things_are_and_what_is_in_them() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/a"), "x").unwrap();
    symlink("sub/a", at("l")).unwrap();
    let look = || lasting_preconditions(&observe_file(&at("l")).facts);
    let before = look();
    fs::rename(at("sub"), at("old")).unwrap();
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/a"), "x").unwrap();
    assert_eq!(look(), before, "made anew with the same content");
    fs::write(at("sub/a"), "y").unwrap();
    assert_ne!(look(), before, "another content");
    fs::write(at("sub/a"), "x").unwrap();
    assert_eq!(look(), before);
    fs::remove_file(at("l")).unwrap();
    symlink("old/a", at("l")).unwrap();
    assert_ne!(look(), before, "another place");
    // Of a file that is not hashed whole, times count.
    let large = fs::File::create(at("large")).unwrap();
    large.set_len(super::HASHED_BYTES + 1).unwrap();
    let look = || lasting_preconditions(&observe_file(&at("large")).facts);
    let before = look();
    fs::File::options()
        .write(true)
        .open(at("large"))
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    assert_ne!(look(), before);
    // What only reads like an identity is none.
    let command = "file, dev 1, inode 2, size 3, modified 4, changed 5, sha256 aa";
    let other = "file, dev 9, inode 2, size 3, modified 4, changed 5, sha256 aa";
    let said = |value: &str| lasting_preconditions(&[GrantPrecondition::new("the command", value)]);
    assert_ne!(said(command), said(other));
}
