use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use clawk_proto::{RequestId, SessionId};
use proptest::prelude::*;

use super::look::{FileObservation, State};
use super::{Limits, UndoReach, UndoRecord, UndoStore, apply_undo, mark_undone, plan_undo, session_records};

const LIMITS: Limits = Limits {
    call_bytes: 1 << 20,
    total_bytes: 64 << 20,
};

/// Everything in a folder, with contents, modes and dates.
fn tree(root: &Path) -> BTreeMap<PathBuf, State> {
    let all = super::look::observe_trees(
        &[root.to_owned()],
        Path::new("/nowhere/undo"),
        u64::MAX,
        usize::MAX,
    );
    let all: BTreeMap<PathBuf, FileObservation> = all.unwrap().unwrap();
    let hashed = |(path, look): (PathBuf, FileObservation)| {
        let state = look.state.with_digest(&path).unwrap();
        (path, state)
    };
    all.into_iter().map(hashed).collect()
}

fn the_session() -> SessionId {
    "00000000-0000-4000-8000-000000000007".parse().unwrap()
}

fn record(n: u64, session: SessionId, tool: &str) -> UndoRecord {
    let mut record = UndoRecord::new(
        session,
        RequestId::parse(&format!("00000000-0000-4000-8000-{n:012}")).unwrap(),
        tool,
    );
    record.at_ns = n + 1;
    record
}

/// One thing that a call does.
#[derive(Debug, Clone)]
enum Deed {
    Write(usize, u8),
    Deep(usize, u8),
    Remove(usize),
    RemoveFolder(usize),
    Mode(usize, u32),
    Rename(usize, usize),
    Link(usize, usize),
    Append(usize),
    /// Another name of a file.
    Also(usize, usize),
    /// Another file that looks the same.
    Twin(usize, usize),
    /// A folder's mode.
    Close(usize, u32),
}

fn deeds() -> impl Strategy<Value = Deed> {
    let name = 0..6_usize;
    prop_oneof![
        4 => (name.clone(), any::<u8>()).prop_map(|(at, byte)| Deed::Write(at, byte)),
        1 => (name.clone(), any::<u8>()).prop_map(|(at, byte)| Deed::Deep(at, byte)),
        1 => name.clone().prop_map(Deed::Remove),
        1 => name.clone().prop_map(Deed::RemoveFolder),
        1 => (name.clone(), prop_oneof![Just(0o600), Just(0o755), Just(0o444)])
            .prop_map(|(at, mode)| Deed::Mode(at, mode)),
        1 => (name.clone(), name.clone()).prop_map(|(from, to)| Deed::Rename(from, to)),
        1 => (name.clone(), name.clone()).prop_map(|(at, to)| Deed::Link(at, to)),
        4 => (name.clone(), name.clone()).prop_map(|(at, to)| Deed::Also(at, to)),
        2 => (name.clone(), name.clone()).prop_map(|(at, to)| Deed::Twin(at, to)),
        1 => (name.clone(), prop_oneof![Just(0o755), Just(0o555)]).prop_map(|(at, mode)| Deed::Close(at, mode)),
        1 => name.prop_map(Deed::Append),
    ]
}

/// Whether it succeeds makes no difference.
fn act(root: &Path, deed: &Deed) {
    let file = |at: usize| root.join(format!("file-{at}"));
    let folder = |at: usize| root.join(format!("folder-{}", at % 2));
    let _tried = match deed {
        Deed::Write(at, byte) => fs::write(file(*at), vec![*byte; usize::from(*byte)]),
        Deed::Deep(at, byte) => fs::create_dir_all(folder(*at).join("in"))
            .and_then(|()| fs::write(folder(*at).join("in").join(format!("{at}")), [*byte])),
        Deed::Remove(at) => fs::remove_file(file(*at)),
        Deed::RemoveFolder(at) => fs::remove_dir_all(folder(*at)),
        Deed::Mode(at, mode) => fs::set_permissions(file(*at), fs::Permissions::from_mode(*mode)),
        Deed::Rename(from, to) => fs::rename(file(*from), file(*to)),
        Deed::Link(at, to) => symlink(file(*to), root.join(format!("link-{at}"))),
        Deed::Also(at, to) => also(&file(*at), &file(*to)),
        Deed::Twin(at, to) => twin(&file(*at), &file(*to)),
        Deed::Close(at, mode) => fs::set_permissions(folder(*at), fs::Permissions::from_mode(*mode)),
        // In place and of the same length where it can be: a coarse clock must not hide it.
        Deed::Append(at) => fs::read(file(*at)).and_then(|mut bytes| {
            bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            fs::write(file(*at), bytes)
        }),
    };
}

/// The file at the one place stands at the other, too.
fn also(file: &Path, to: &Path) -> std::io::Result<()> {
    if file != to && file.exists() {
        let _gone = fs::remove_file(to);
    }
    fs::hard_link(file, to)
}

/// Content, mode and date of the one in a new file at the other.
fn twin(file: &Path, to: &Path) -> std::io::Result<()> {
    let (bytes, meta) = (fs::read(file)?, fs::metadata(file)?);
    let _gone = fs::remove_file(to);
    fs::write(to, bytes)?;
    let opened = fs::File::options().write(true).open(to)?;
    opened.set_times(fs::FileTimes::new().set_modified(meta.modified()?))?;
    fs::set_permissions(to, meta.permissions())
}

fn session_of_deeds(seed: &[Deed], calls: &[Vec<Deed>]) {
    let dir = tempfile::tempdir().unwrap();
    let (root, kept) = (dir.path().join("tree"), dir.path().join("state/undo"));
    fs::create_dir_all(&root).unwrap();
    let root = root.canonicalize().unwrap();
    for deed in seed {
        act(&root, deed);
    }
    let undo = UndoStore::new(kept.clone(), LIMITS).unwrap();
    let session = the_session();
    let mut stood = vec![tree(&root)];
    for (n, call) in (0..).zip(calls) {
        let open = undo
            .begin_record(
                record(n, session, "shell"),
                Ok(UndoReach::Trees(vec![root.clone()])),
            )
            .unwrap();
        for deed in call {
            act(&root, deed);
        }
        undo.end_record(open).unwrap();
        stood.push(tree(&root));
    }
    let all = session_records(&kept, session).unwrap();
    // First the younger half, then all.
    let half = all.len() / 2;
    let back = plan_undo(&kept, &all[..half]).unwrap();
    assert_eq!(back.conflicts, []);
    assert_eq!(apply_undo(&kept, &back, None), []);
    let (younger, older) = all.split_at(half);
    for call in younger {
        mark_undone(&kept, call).unwrap();
    }
    let back = plan_undo(&kept, older).unwrap();
    assert_eq!(back.conflicts, []);
    assert_eq!(apply_undo(&kept, &back, None), []);
    assert_eq!(tree(&root), stood[0], "as before the session");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_random_session_of_edits_is_undone_to_the_byte_the_mode_and_the_date(
        seed in proptest::collection::vec(deeds(), 0..12),
        calls in proptest::collection::vec(proptest::collection::vec(deeds(), 1..5), 1..8),
    ) {
        session_of_deeds(&seed, &calls);
    }
}

/// A call that writes one file, as the file tools do.
fn write(undo: &UndoStore, n: u64, file: &Path, text: &str) {
    let session = the_session();
    let open = undo
        .begin_record(
            record(n, session, "file-write"),
            Ok(UndoReach::Places {
                places: vec![file.to_owned()],
                around: vec![
                    file.ancestors()
                        .find(|above| above.ends_with("tree"))
                        .unwrap()
                        .to_owned(),
                ],
            }),
        )
        .unwrap();
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let part = file.with_extension("part");
    fs::write(&part, text).unwrap();
    fs::rename(part, file).unwrap();
    undo.end_record(open).unwrap();
}

#[test]
fn a_new_file_in_new_folders_goes_with_its_folders() {
    let dir = tempfile::tempdir().unwrap();
    let (root, kept) = (
        dir.path().canonicalize().unwrap().join("tree"),
        dir.path().join("state/undo"),
    );
    fs::create_dir_all(&root).unwrap();
    let before = tree(&root);
    let undo = UndoStore::new(kept.clone(), LIMITS).unwrap();
    write(&undo, 1, &root.join("a/b/c.txt"), "one");
    write(&undo, 2, &root.join("a/b/c.txt"), "two");
    let all = session_records(&kept, the_session()).unwrap();
    assert_eq!(all.len(), 2);
    let back = plan_undo(&kept, &all).unwrap();
    assert_eq!((back.conflicts.len(), back.calls.len()), (0, 2));
    assert_eq!(apply_undo(&kept, &back, None), []);
    assert_eq!(tree(&root), before);
}

#[test]
fn what_somebody_else_changed_since_is_listed_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (root, kept) = (
        dir.path().canonicalize().unwrap().join("tree"),
        dir.path().join("state/undo"),
    );
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("a"), "old a").unwrap();
    fs::write(root.join("b"), "old b").unwrap();
    let undo = UndoStore::new(kept.clone(), LIMITS).unwrap();
    write(&undo, 1, &root.join("a"), "new a");
    write(&undo, 2, &root.join("b"), "new b");
    fs::write(root.join("b"), "a person's b").unwrap();
    let all = session_records(&kept, the_session()).unwrap();
    let back = plan_undo(&kept, &all).unwrap();
    assert_eq!(back.conflicts.len(), 1, "{back:?}");
    assert_eq!(back.conflicts[0].path, Some(root.join("b")));
    assert_eq!(apply_undo(&kept, &back, None), []);
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "old a");
    assert_eq!(fs::read_to_string(root.join("b")).unwrap(), "a person's b");
}

#[test]
fn a_link_that_came_into_the_way_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let (root, kept, elsewhere) = (base.join("tree"), base.join("state/undo"), base.join("elsewhere"));
    fs::create_dir_all(root.join("in")).unwrap();
    fs::create_dir_all(&elsewhere).unwrap();
    fs::write(root.join("in/file"), "old").unwrap();
    let undo = UndoStore::new(kept.clone(), LIMITS).unwrap();
    write(&undo, 1, &root.join("in/file"), "new");
    fs::write(elsewhere.join("file"), "new").unwrap();
    let meta = fs::metadata(root.join("in/file")).unwrap();
    fs::set_permissions(elsewhere.join("file"), meta.permissions()).unwrap();
    let times = fs::FileTimes::new().set_modified(meta.modified().unwrap());
    fs::File::options()
        .write(true)
        .open(elsewhere.join("file"))
        .unwrap()
        .set_times(times)
        .unwrap();
    fs::rename(root.join("in"), root.join("was")).unwrap();
    symlink(&elsewhere, root.join("in")).unwrap();
    let all = session_records(&kept, the_session()).unwrap();
    let planned = plan_undo(&kept, &all);
    if let Ok(back) = planned {
        let _failed = apply_undo(&kept, &back, None);
    }
    assert_eq!(
        fs::read_to_string(elsewhere.join("file")).unwrap(),
        "new",
        "nothing was written through the link"
    );
    assert_eq!(fs::metadata(elsewhere.join("file")).unwrap().mode(), meta.mode());
}

#[test]
fn what_is_too_large_is_said_before_and_in_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let (root, kept) = (
        dir.path().canonicalize().unwrap().join("tree"),
        dir.path().join("state/undo"),
    );
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("large"), vec![0; 2 << 20]).unwrap();
    let undo = UndoStore::new(kept.clone(), LIMITS).unwrap();
    let session = the_session();
    let open = undo
        .begin_record(
            record(1, session, "shell"),
            Ok(UndoReach::Trees(vec![root.clone()])),
        )
        .unwrap();
    fs::remove_file(root.join("large")).unwrap();
    undo.end_record(open).unwrap();
    let all = session_records(&kept, session).unwrap();
    let back = plan_undo(&kept, &all).unwrap();
    assert_eq!(back.steps, []);
    assert!(back.conflicts[0].why.contains("1 MB"), "{:?}", back.conflicts);
}

#[test]
fn a_call_that_was_cut_off_is_listed_and_old_calls_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (root, kept) = (
        dir.path().canonicalize().unwrap().join("tree"),
        dir.path().join("state/undo"),
    );
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("a"), "old").unwrap();
    let undo = UndoStore::new(kept.clone(), LIMITS).unwrap();
    let session = the_session();
    write(&undo, 1, &root.join("a"), "new");
    drop(
        undo.begin_record(
            record(2, session, "shell"),
            Ok(UndoReach::Trees(vec![root.clone()])),
        )
        .unwrap(),
    );
    let back = plan_undo(&kept, &session_records(&kept, session).unwrap()).unwrap();
    assert!(back.conflicts[0].why.contains("cut off"), "{:?}", back.conflicts);
    let none = Limits {
        total_bytes: 0,
        ..LIMITS
    };
    drop(UndoStore::new(kept.clone(), none).unwrap());
    assert_eq!(
        session_records(&kept, session)
            .unwrap()
            .iter()
            .filter(|call| call.ended)
            .count(),
        0
    );
}

/// A file with the names `a` and `b` in the tree: a call does `deed`, and the undo of it makes them one file again.
fn with_other_names(reach: impl Fn(&Path) -> UndoReach, deed: impl Fn(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let (root, kept) = (base.join("tree"), base.join("state/undo"));
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("a"), "old").unwrap();
    fs::hard_link(root.join("a"), root.join("b")).unwrap();
    let before = tree(&root);
    let undo = UndoStore::new(kept.clone(), LIMITS).unwrap();
    let open = undo
        .begin_record(record(1, the_session(), "tool"), Ok(reach(&root)))
        .unwrap();
    deed(&root);
    undo.end_record(open).unwrap();
    let back = plan_undo(&kept, &session_records(&kept, the_session()).unwrap()).unwrap();
    assert_eq!((&back.conflicts[..], &back.unlinked[..]), (&[][..], &[][..]));
    assert_eq!(apply_undo(&kept, &back, None), []);
    assert_eq!(tree(&root), before);
    let ino = |name: &str| fs::metadata(root.join(name)).unwrap().ino();
    assert_eq!(ino("a"), ino("b"), "one file again");
}

#[test]
fn two_names_of_a_file_are_one_file_again() {
    let trees = |root: &Path| UndoReach::Trees(vec![root.to_owned()]);
    let named = |root: &Path| UndoReach::Places {
        places: vec![root.join("a")],
        around: vec![root.to_owned()],
    };
    let replaced = |root: &Path| {
        fs::write(root.join("part"), "new").unwrap();
        fs::rename(root.join("part"), root.join("a")).unwrap();
    };
    with_other_names(named, replaced);
    with_other_names(trees, replaced);
    with_other_names(trees, |root| fs::write(root.join("b"), "through b").unwrap());
    with_other_names(trees, |root| fs::remove_file(root.join("a")).unwrap());
    // Another file that looks the same: content, mode and date are as they were.
    for name in ["a", "b"] {
        with_other_names(trees, |root| {
            let modified = fs::metadata(root.join(name)).unwrap().modified().unwrap();
            fs::remove_file(root.join(name)).unwrap();
            fs::write(root.join(name), "old").unwrap();
            let file = fs::File::options().write(true).open(root.join(name)).unwrap();
            file.set_times(fs::FileTimes::new().set_modified(modified))
                .unwrap();
        });
    }
    with_other_names(trees, |root| {
        fs::remove_file(root.join("a")).unwrap();
        fs::remove_file(root.join("b")).unwrap();
    });
    with_other_names(trees, |root| {
        fs::hard_link(root.join("a"), root.join("0")).unwrap()
    });
}

#[test]
fn a_name_outside_of_the_folders_is_named_where_it_keeps_what_the_call_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let (root, kept) = (base.join("tree"), base.join("state/undo"));
    fs::create_dir_all(&root).unwrap();
    for name in ["in-place", "removed"] {
        fs::write(root.join(name), "old").unwrap();
        fs::hard_link(root.join(name), base.join(name)).unwrap();
    }
    let undo = UndoStore::new(kept.clone(), LIMITS).unwrap();
    let open = undo
        .begin_record(
            record(1, the_session(), "shell"),
            Ok(UndoReach::Trees(vec![root.clone()])),
        )
        .unwrap();
    fs::write(root.join("in-place"), "new").unwrap();
    fs::remove_file(root.join("removed")).unwrap();
    undo.end_record(open).unwrap();
    let all = session_records(&kept, the_session()).unwrap();
    let back = plan_undo(&kept, &all).unwrap();
    assert_eq!(back.conflicts.len(), 1, "{back:?}");
    assert_eq!(back.conflicts[0].path, Some(root.join("in-place")));
    assert!(back.conflicts[0].why.contains("hard link"), "{back:?}");
    assert!(back.unlinked.contains(&root.join("removed")), "{back:?}");
    assert_eq!(apply_undo(&kept, &back, None), []);
    for name in ["in-place", "removed"] {
        assert_eq!(fs::read_to_string(root.join(name)).unwrap(), "old");
    }
    assert_eq!(fs::read_to_string(base.join("in-place")).unwrap(), "new");
    // Once more: nothing is left to be done, and the other name is still told.
    let again = plan_undo(&kept, &all).unwrap();
    assert_eq!((again.steps.len(), again.conflicts.len()), (0, 1), "{again:?}");
}

#[test]
fn what_stands_in_a_folder_that_its_owner_closed_is_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let (root, kept) = (base.join("tree"), base.join("state/undo"));
    fs::create_dir_all(root.join("in")).unwrap();
    fs::write(root.join("in/file"), "old").unwrap();
    let mode = |mode| fs::set_permissions(root.join("in"), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o555);
    let before = tree(&root);
    let undo = UndoStore::new(kept.clone(), LIMITS).unwrap();
    let open = undo
        .begin_record(
            record(1, the_session(), "shell"),
            Ok(UndoReach::Trees(vec![root.clone()])),
        )
        .unwrap();
    mode(0o755);
    fs::remove_file(root.join("in/file")).unwrap();
    fs::write(root.join("in/made"), "new").unwrap();
    mode(0o555);
    undo.end_record(open).unwrap();
    let back = plan_undo(&kept, &session_records(&kept, the_session()).unwrap()).unwrap();
    assert_eq!(apply_undo(&kept, &back, None), []);
    assert_eq!(tree(&root), before);
    mode(0o755);
}

#[test]
fn two_files_that_look_the_same_do_not_become_one() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let (root, kept) = (base.join("tree"), base.join("state/undo"));
    fs::create_dir_all(&root).unwrap();
    let date = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for (file, other) in [("a", "b"), ("q", "r")] {
        fs::write(root.join(file), "same").unwrap();
        let opened = fs::File::options().write(true).open(root.join(file)).unwrap();
        opened.set_times(fs::FileTimes::new().set_modified(date)).unwrap();
        fs::hard_link(root.join(file), root.join(other)).unwrap();
    }
    let before = tree(&root);
    let undo = UndoStore::new(kept.clone(), LIMITS).unwrap();
    let open = undo
        .begin_record(
            record(1, the_session(), "shell"),
            Ok(UndoReach::Trees(vec![root.clone()])),
        )
        .unwrap();
    fs::remove_file(root.join("q")).unwrap();
    fs::hard_link(root.join("a"), root.join("q")).unwrap();
    undo.end_record(open).unwrap();
    let back = plan_undo(&kept, &session_records(&kept, the_session()).unwrap()).unwrap();
    assert_eq!(apply_undo(&kept, &back, None), []);
    assert_eq!(tree(&root), before);
}
