//! Attacks on `path_within`, and what counts as a path.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::path::{
    CallPaths, MAX_DEPTH, RealLocation, RealLocations, RootPlace, RuleRoots, resolve_lexically,
};

fn paths(arguments: &Value) -> CallPaths {
    CallPaths::from_arguments(
        arguments.as_object().expect("an object"),
        None,
        Path::new("/workspace"),
        None,
    )
}

fn roots(roots: &[&str]) -> RuleRoots {
    RuleRoots::new(roots.iter().map(PathBuf::from).collect(), None)
}

fn inside(arguments: &Value) -> bool {
    paths(arguments).all_within(&roots(&["/workspace"]))
}

#[test]
fn what_lies_inside_is_inside() {
    for arguments in [
        json!({"path": "/workspace"}),
        json!({"path": "/workspace/"}),
        json!({"path": "/workspace/a/./b"}),
        json!({"path": "a/b"}),
        json!({"path": "."}),
        json!({"path": ""}),
        json!({"path": "./a"}),
        json!({"paths": ["a", "/workspace/b"]}),
        json!({"source": "a", "destination": "/workspace/c"}),
        json!({"options": {"output_path": "x"}}),
        json!({"path": "a~"}),
        json!({"workdir": "sub", "path": "x"}),
        json!({"workdir": "/workspace/sub", "command": "ls -la /etc"}),
        json!({"content": "a text about /etc/passwd and ..", "path": "a"}),
        json!({}),
    ] {
        assert!(inside(&arguments), "{arguments}");
    }
}

#[test]
fn nothing_gets_out() {
    for arguments in [
        json!({"path": "/etc/passwd"}),
        json!({"path": "/workspace-2/x"}),
        json!({"path": "/workspace/../etc"}),
        json!({"path": "a/../../etc"}),
        json!({"path": ".."}),
        json!({"path": "a/.."}),
        json!({"path": "~/.ssh/id"}),
        json!({"path": "~root/x"}),
        json!({"path": "a/~root/x"}),
        json!({"path": "//etc/passwd"}),
        json!({"path": "/workspace//etc"}),
        json!({"path": "/workspace/a\0b"}),
        json!({"path": "file:///workspace/x"}),
        json!({"path": "FILE:/etc/passwd"}),
        json!({"paths": ["a", "/etc/passwd"]}),
        json!({"paths": [["/etc/passwd"]]}),
        json!({"source": "/etc/shadow", "destination": "a"}),
        json!({"Path": "/etc/passwd"}),
        json!({"file_path": "/etc/passwd"}),
        json!({"output-dir": "/etc"}),
        json!({"options": {"deep": {"cwd": "/etc"}}}),
        json!({"workdir": "/etc", "path": "passwd"}),
        json!({"workdir": "/etc"}),
        json!({"cwd": "/", "path": "workspace/x"}),
        json!({"oddly": "/etc/passwd"}),
        json!({"oddly": ["../x"]}),
        json!({"oddly": "a/../../b"}),
        json!({"oddly": "~/.netrc"}),
        json!({"oddly": "file:/etc/passwd"}),
    ] {
        assert!(!inside(&arguments), "{arguments}");
    }
}

#[test]
fn the_schema_may_say_that_a_string_is_a_path() {
    let schema = json!({"properties": {"target": {"type": "string", "format": "path"},
        "many": {"type": "array", "items": {"type": "string", "format": "directory"}}}});
    for (arguments, root, expected) in [
        (json!({"target": "x y"}), "/workspace/a", false),
        (json!({"target": "a/x y"}), "/workspace/a", true),
        (json!({"many": ["a/b", "c"]}), "/workspace/a", false),
        (json!({"other": "x y"}), "/workspace", true),
    ] {
        let found = CallPaths::from_arguments(
            arguments.as_object().expect("object"),
            Some(&schema),
            Path::new("/workspace"),
            None,
        );
        assert_eq!(found.all_within(&roots(&[root])), expected, "{arguments}");
    }
}

#[test]
fn restrictive_rules_need_only_one_path_inside_or_one_refused() {
    let secrets = roots(&["/workspace/secrets"]);
    for (arguments, expected) in [
        (json!({"source": "secrets/key", "destination": "/tmp/x"}), true),
        (json!({"path": "/tmp/x"}), false),
        (json!({"path": "/tmp/../workspace/secrets/key"}), true),
        (json!({"workdir": "/", "path": "workspace/secrets/key"}), true),
        (
            json!({"workdir": "/workspace/secrets", "command": "cat key"}),
            true,
        ),
    ] {
        assert_eq!(
            paths(&arguments).any_within(&secrets, true),
            expected,
            "{arguments}"
        );
    }
}

#[test]
fn a_relative_working_directory_and_deep_nesting_are_refused() {
    let arguments = json!({"path": "a"});
    let found = CallPaths::from_arguments(
        arguments.as_object().expect("object"),
        None,
        Path::new("relative"),
        None,
    );
    assert!(!found.all_within(&roots(&["/"])));
    let mut deep = json!("x");
    for _ in 0..=MAX_DEPTH {
        deep = json!([deep]);
    }
    assert!(
        paths(&json!({"a": deep}))
            .refusal_reason()
            .is_some_and(|why| why.contains("nested too deep"))
    );
}

#[test]
fn resolving_keeps_to_the_text() {
    let base = Path::new("/w");
    assert_eq!(resolve_lexically("a/./b/", base), Ok(PathBuf::from("/w/a/b")));
    assert_eq!(resolve_lexically("/a", base), Ok(PathBuf::from("/a")));
    assert_eq!(resolve_lexically("a/../b", base), Err("`..` in a path"));
}

#[test]
fn any_string_counts_for_rules_that_restrict() {
    let secrets = roots(&["/workspace/secrets", "/workspace/.env"]);
    for (arguments, expected) in [
        (json!({"target": "secrets/key"}), true),
        (json!({"target": "secrets/my key"}), true),
        (json!({"a": [{"b": "a b/../secrets/key"}]}), true),
        (json!({"target": "/workspace/my folder/../.env"}), true),
        (json!({"target": "file:///workspace/secrets/my key"}), true),
        (json!({"cwd": "secrets", "target": "my key/x"}), true),
        (json!({"text": "secrets"}), false), // without a separator it has to be there
        (json!({"text": "see secrets/key"}), false),
        (json!({"path": "a", "content": "more/../text"}), true), // it can't be judged
    ] {
        assert_eq!(
            paths(&arguments).any_within(&secrets, true),
            expected,
            "{arguments}"
        );
    }
    let many: Vec<String> = (0..5000).map(|n| format!("word {n}")).collect();
    let many = paths(&json!({ "words": many }));
    assert!(many.any_within(&secrets, true) && !many.any_within(&secrets, false));
    assert!(many.all_within(&roots(&["/workspace"])));
}

fn place(at: &str, exists: bool) -> RealLocation {
    RealLocation {
        at: vec![PathBuf::from(at)],
        exists,
        unknown: None,
    }
}

#[test]
fn words_and_place_must_both_lie_inside() {
    let root = |then: &str, now: &str| RootPlace {
        then: then.into(),
        now: now.into(),
    };
    let places = RealLocations {
        paths: [
            ("/workspace/a", place("/workspace/a", true)),
            ("/workspace/up/.env", place("/workspace/.env", true)),
            ("/workspace/out/x", place("/etc/x", false)),
            ("/workspace/moved/x", place("/etc/x", true)),
            ("/workspace/key", place("/workspace/.env", true)),
            ("/workspace/word", place("/workspace/word", false)),
            (
                "/workspace/odd",
                RealLocation {
                    unknown: Some("too many links".to_owned()),
                    ..RealLocation::default()
                },
            ),
        ]
        .map(|(path, place)| (PathBuf::from(path), place))
        .into(),
        roots: [
            ("/workspace", root("/workspace", "/workspace")),
            ("/workspace/.env", root("/workspace/.env", "/workspace/.env")),
            ("/workspace/moved", root("/workspace/moved", "/etc")),
        ]
        .map(|(path, root)| (PathBuf::from(path), root))
        .into(),
    };
    let within = |arguments: Value, names: &[&str], all: bool| {
        let arguments = arguments.as_object().expect("an object");
        let found = CallPaths::from_arguments(arguments, None, Path::new("/workspace"), Some(&places));
        let roots = RuleRoots::new(names.iter().map(PathBuf::from).collect(), Some(&places));
        if all {
            found.all_within(&roots)
        } else {
            found.any_within(&roots, true)
        }
    };
    let (all, any) = (true, false);
    assert!(within(json!({"path": "a"}), &["/workspace"], all));
    assert!(!within(json!({"path": "out/x"}), &["/workspace"], all));
    assert!(!within(json!({"path": "odd"}), &["/workspace"], all));
    assert!(!within(json!({"path": "nobody looked"}), &["/workspace"], all));
    // A string that nothing calls a path must not lead out either.
    assert!(!within(json!({"target": "out/x"}), &["/workspace"], all));
    // A link that was put in the place of a root widens no rule that allows, and none that denies is narrowed by it.
    assert!(!within(json!({"path": "moved/x"}), &["/workspace/moved"], all));
    assert!(within(json!({"path": "moved/x"}), &["/workspace/moved"], any));
    assert!(within(json!({"path": "up/.env"}), &["/workspace/.env"], any));
    assert!(within(json!({"target": "key"}), &["/workspace/.env"], any));
    assert!(!within(json!({"target": "word"}), &["/workspace/word"], any));
    assert!(within(json!({"path": "odd"}), &["/workspace/.env"], any));
    assert!(!within(json!({"path": "a"}), &["/workspace/.env"], any));
}
