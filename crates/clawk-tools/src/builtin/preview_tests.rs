//! Tests: compares the preview text of a built-in with what the built-in receives and does.

use std::os::unix::fs::symlink;
use std::path::Path;

use clawk_kernel::ports::InspectedCall;
use clawk_kernel::sheet::{CallPreview, visible_text};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::BuiltinTool;
use crate::testing::open_plan;

fn sheet(builtin: BuiltinTool, dir: &Path, arguments: &Value) -> CallPreview {
    let arguments = arguments.as_object().expect("an object");
    let look = InspectedCall {
        tool: builtin.name(),
        arguments,
        plan: &open_plan(),
        workdir: dir,
    };
    CallPreview::of(arguments, builtin.preview(&look), Vec::new())
}

fn lines(builtin: BuiltinTool, dir: &Path, arguments: Value) -> Vec<String> {
    let whole = sheet(builtin, dir, &arguments).whole();
    whole.split('\n').map(str::to_owned).collect()
}

#[test]
fn a_write_shows_what_it_replaces() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name);
    let write = |name: &str, content: &str| {
        lines(
            BuiltinTool::FileWrite,
            dir.path(),
            json!({"path": name, "content": content}),
        )
    };
    assert_eq!(
        write("a", "x\u{1b}[2Jy\nz"),
        ["write a: a new file, 8 bytes", "+ x⟨U+001B⟩[2Jy", "+ z"]
    );
    std::fs::write(path("a"), "one\ntwo\nthree\n").expect("written");
    assert_eq!(
        write("a", "one\n2\nthree"),
        [
            "write a: 14 bytes become 11",
            "  one",
            "- two",
            "- three",
            "+ 2",
            "+ three",
            "\\ no line end at the end of the file"
        ]
    );
    std::fs::write(path("b"), "\u{0}\u{1}binary").expect("written");
    let binary = write("b", "x");
    let digest = clawk_kernel::witness::digest_of("\u{0}\u{1}binary".as_bytes());
    assert_eq!(
        binary[0],
        format!("write b: 1 bytes replace a binary file of 8 bytes, sha256 {digest}")
    );
    std::fs::write(path("large"), "l\n".repeat(1 << 20)).expect("written");
    let large = write("large", "x");
    assert!(
        large[0].starts_with("write large: 1 bytes replace a file of 2097152 bytes, sha256 "),
        "{large:?}"
    );
    symlink("a", path("link")).expect("a link");
    symlink("/etc/passwd", path("out")).expect("a link");
    symlink("/etc", path("etc")).expect("a link");
    std::fs::create_dir(path("folder")).expect("a folder");
    for (name, says) in [
        (
            "link",
            "`link` is a link to `a`, and nothing is written through it",
        ),
        ("out", "`out` is a link to `/etc/passwd`"),
        ("etc/passwd", "a link on the way leads out of the allowed folders"),
        ("folder", "`folder` is a folder"),
        ("/etc/passwd", "the sandbox refuses it: "),
    ] {
        let shown = write(name, "x");
        assert!(shown[0].contains(says), "{shown:?}");
        assert_eq!(shown[1], "+ x", "the content stands there all the same");
        assert!(!shown[0].contains("a new file"), "{shown:?}");
    }
}

#[test]
fn an_edit_shows_the_difference_and_its_texts() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("a"), "one\ntwo\nthree\n").expect("written");
    let edit = |old: &str, new: &str| {
        lines(
            BuiltinTool::FileEdit,
            dir.path(),
            json!({"path": "a", "old_text": old, "new_text": new}),
        )
    };
    assert_eq!(
        edit("two", "2"),
        ["edit a: 14 bytes become 12", "  one", "- two", "+ 2", "  three"]
    );
    assert_eq!(
        edit("e", "E"),
        [
            "edit a: the old text does not stand there exactly once",
            "- e",
            "+ E"
        ]
    );
}

#[test]
fn a_command_shows_its_input_and_its_environment() {
    let shown = lines(
        BuiltinTool::Shell,
        Path::new("/"),
        json!({"command": "sh", "stdin": "rm -rf x\n", "env": {"LD_PRELOAD": "./evil.so"}, "workdir": "w"}),
    );
    for line in [
        "$ sh",
        "stdin: 1 lines, 9 bytes",
        "  | rm -rf x",
        "  LD_PRELOAD: \"./evil.so\"",
        "workdir: \"w\"",
    ] {
        assert!(shown.iter().any(|shown| shown == line), "{line}: {shown:#?}");
    }
    let request =
        json!({"url": "https://example.com/x", "method": "POST", "body": "b", "headers": {"A": "v"}});
    assert_eq!(
        lines(BuiltinTool::HttpRequest, Path::new("/"), request),
        [
            "POST https://example.com/x",
            "  to example.com port 443 (https)",
            "body: \"b\"",
            "headers: 1 members",
            "  A: \"v\""
        ]
    );
}

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        3 => "[a-c \"+-]{0,4}",
        3 => Just("\n".to_owned()),
        1 => Just("\r".to_owned()),
        1 => (1_usize..40).prop_map(|n| " ".repeat(n)),
        1 => (1_usize..900).prop_map(|n| "y".repeat(n)),
        1 => (1_usize..90).prop_map(|n| "l\n".repeat(n)),
        1 => proptest::sample::select(vec!["\u{202e}", "\u{200b}", "\u{1b}[1A", "⟨", "\t", "\u{e0020}"]).prop_map(str::to_owned),
    ];
    proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

/// Whether the shown lines contain every line of a text, in order.
fn stands_in(shown: &str, text: &str) -> bool {
    let mut shown = shown.split('\n');
    let mut parts = text.split('\n').filter(|part| !part.is_empty());
    parts.all(|part| {
        let part = visible_text(part);
        shown.any(|line| line.contains(&part))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// The preview contains all of a call's arguments, for every tool and every replaced content.
    #[test]
    fn no_argument_of_a_built_in_is_absent(texts in proptest::collection::vec(text(), 6), before in proptest::option::of(text())) {
        let dir = tempfile::tempdir().expect("a folder");
        if let Some(before) = &before {
            std::fs::write(dir.path().join("f"), before).expect("written");
        }
        let [a, b, c, d, e, f] = &texts[..] else { panic!("six") };
        let calls = [
            (BuiltinTool::Shell, json!({"command": a, "stdin": b, "workdir": c, "env": {"X": d, "Y": e}, f: 1})),
            (BuiltinTool::FileWrite, json!({"path": "f", "content": a, "more": b})),
            (BuiltinTool::FileWrite, json!({"path": c, "content": d})),
            (BuiltinTool::FileEdit, json!({"path": "f", "old_text": b, "new_text": c})),
            (BuiltinTool::FileEdit, json!({"path": "f", "old_text": before.as_deref().unwrap_or_default(), "new_text": c})),
            (BuiltinTool::HttpRequest, json!({"url": format!("https://h/{a}"), "method": b, "body": c, "headers": {"X": d, e: f}})),
            (BuiltinTool::WebFetch, json!({"url": a, "headers": {"X": b}, "raw": true, "method": c})),
            (BuiltinTool::FileSearch, json!({"pattern": a, "path": b, "glob": c})),
        ];
        for (builtin, arguments) in &calls {
            let sheet = sheet(*builtin, dir.path(), arguments);
            let whole = sheet.whole();
            let mut left = vec![arguments];
            while let Some(value) = left.pop() {
                match value {
                    Value::String(text) => prop_assert!(stands_in(&whole, text), "{:?} is absent from {}", text, whole),
                    Value::Object(members) => {
                        for (name, member) in members {
                            // Names of a built-in's own arguments may occur as words of the text.
                            prop_assert!(members.len() > 2 || whole.contains(&visible_text(name).replace('"', "⟨U+0022⟩")) || builtin.name().starts_with("file"));
                            left.push(member);
                        }
                    }
                    other => prop_assert!(whole.contains(&other.to_string())),
                }
            }
            prop_assert_eq!(sheet.is_folded(), sheet.hidden_bytes() > 0);
        }
    }
}
