use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use super::manifest;
use crate::load::{LoadError, load_atlas};

fn folder(files: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let parts = json!({"context_packs": [{"pack_id": "p", "files": files}]});
    let text = manifest("com.example.test", &parts).to_string();
    fs::write(dir.path().join("atlas.json"), text).expect("written");
    fs::create_dir(dir.path().join("context")).expect("made");
    fs::write(dir.path().join("context/in.md"), "inside").expect("written");
    dir
}

fn contents(path: &Path) -> Vec<String> {
    let atlas = load_atlas(path).expect("loads");
    atlas.packs[0]
        .blocks
        .iter()
        .map(|block| block.content.clone())
        .collect()
}

fn refusal(dir: &TempDir) -> String {
    match load_atlas(dir.path()) {
        Err(LoadError::Invalid { faults, .. }) => {
            assert_eq!(faults.errors[0].path, "/context_packs/0/files/0");
            faults.errors[0].message.clone()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_or_its_manifest_is_loaded() {
    let dir = folder(&["in.md", "context/in.md", "./in.md"]);
    assert_eq!(contents(dir.path()), ["inside", "inside", "inside"]);
    assert_eq!(contents(&dir.path().join("atlas.json")).len(), 3);
}

#[test]
fn a_lone_file_has_no_context_of_its_own() {
    let dir = folder(&["in.md"]);
    fs::rename(dir.path().join("atlas.json"), dir.path().join("other.json")).expect("renamed");
    let atlas = load_atlas(&dir.path().join("other.json")).expect("loads");
    assert_eq!(
        (atlas.packs[0].blocks.len(), atlas.warnings[0].code.as_str()),
        (0, "missing_file")
    );
    assert!(matches!(load_atlas(dir.path()), Err(LoadError::Io { .. })));
}

#[test]
fn nothing_outside_the_directory_is_read() {
    for outside in ["../x.md", "/etc/passwd", "context/../../x.md", "a\\..\\x.md"] {
        let message = refusal(&folder(&[outside]));
        assert!(message.contains("outside the Atlas's directory"), "{message}");
    }
    let elsewhere = tempfile::tempdir().expect("a directory");
    fs::write(elsewhere.path().join("secret.md"), "secret").expect("written");
    for (link, file) in [("link.md", "link.md"), ("folder", "folder/secret.md")] {
        let dir = folder(&[file]);
        let target = if link == "folder" {
            elsewhere.path().to_owned()
        } else {
            elsewhere.path().join("secret.md")
        };
        symlink(target, dir.path().join(link)).expect("linked");
        assert!(refusal(&dir).contains("symbolic link"));
    }
}

#[test]
fn odd_files_are_refused_and_missing_ones_are_not() {
    assert!(refusal(&folder(&["context"])).contains("not a regular file"));
    let dir = folder(&["big.md"]);
    fs::write(dir.path().join("big.md"), vec![b'x'; 1024 * 1024 + 1]).expect("written");
    assert!(refusal(&dir).contains("larger than"));
    fs::write(dir.path().join("big.md"), [0xff, 0xfe]).expect("written");
    assert!(refusal(&dir).contains("UTF-8"));
    fs::remove_file(dir.path().join("big.md")).expect("removed");
    assert_eq!(contents(dir.path()), [""; 0]);
}

#[test]
fn policies_in_files_of_their_own_are_warned_of() {
    let dir = folder(&["in.md"]);
    fs::create_dir(dir.path().join("policies")).expect("made");
    fs::write(dir.path().join("policies/deny.json"), "{}").expect("written");
    let atlas = load_atlas(dir.path()).expect("loads");
    assert_eq!(
        (atlas.warnings[0].path.as_str(), atlas.warnings[0].code.as_str()),
        ("/policies", "not_read")
    );
}

#[test]
fn what_an_atlas_holds_for_other_programs_is_warned_of() {
    let dir = folder(&["in.md"]);
    for name in ["adapters", "tests"] {
        fs::create_dir(dir.path().join(name)).expect("made");
        fs::write(dir.path().join(name).join("one.py"), "").expect("written");
    }
    let file = dir.path().join("atlas.json");
    let mut atlas: serde_json::Value = serde_json::from_slice(&fs::read(&file).expect("read")).expect("JSON");
    atlas["adapters"] = json!({"one": "one.py"});
    atlas["metadata"] = json!({"team": "a"});
    atlas["actions"] = json!([{"action_id": "a.b", "name": "n", "description": "d", "parameters_schema": {"type": "object"},
        "examples": [{"x": 1}]}]);
    fs::write(&file, atlas.to_string()).expect("written");
    let atlas = load_atlas(dir.path()).expect("loads");
    let told: Vec<(&str, &str)> = atlas
        .warnings
        .iter()
        .map(|told| (told.path.as_str(), told.code.as_str()))
        .collect();
    for expected in [
        ("/adapters", "no_effect"),
        ("/metadata", "no_effect"),
        ("/actions/0/examples", "no_effect"),
        ("/adapters", "not_read"),
        ("/tests", "not_read"),
    ] {
        assert!(told.contains(&expected), "{expected:?} in {told:?}");
    }
    assert_eq!(told.len(), 5, "{told:?}");
}
