//! Attacks on `path_within`, and what counts as a path.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::path::{CallPaths, MAX_DEPTH, resolve};

fn paths(arguments: &Value) -> CallPaths {
    CallPaths::of(
        arguments.as_object().expect("an object"),
        None,
        Path::new("/workspace"),
    )
}

fn inside(arguments: &Value) -> bool {
    paths(arguments).all_within(&[PathBuf::from("/workspace")])
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
    for (arguments, roots, expected) in [
        (json!({"target": "x y"}), "/workspace/a", false),
        (json!({"target": "a/x y"}), "/workspace/a", true),
        (json!({"many": ["a/b", "c"]}), "/workspace/a", false),
        (json!({"other": "x y"}), "/workspace", true),
    ] {
        let found = CallPaths::of(
            arguments.as_object().expect("object"),
            Some(&schema),
            Path::new("/workspace"),
        );
        assert_eq!(found.all_within(&[PathBuf::from(roots)]), expected, "{arguments}");
    }
}

#[test]
fn restrictive_rules_need_only_one_path_inside_or_one_refused() {
    let secrets = [PathBuf::from("/workspace/secrets")];
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
        assert_eq!(paths(&arguments).any_within(&secrets), expected, "{arguments}");
    }
}

#[test]
fn a_relative_working_directory_and_deep_nesting_are_refused() {
    let arguments = json!({"path": "a"});
    let found = CallPaths::of(
        arguments.as_object().expect("object"),
        None,
        Path::new("relative"),
    );
    assert!(!found.all_within(&[PathBuf::from("/")]));
    let mut deep = json!("x");
    for _ in 0..=MAX_DEPTH {
        deep = json!([deep]);
    }
    assert!(
        paths(&json!({"a": deep}))
            .refused()
            .is_some_and(|why| why.contains("nested too deep"))
    );
}

#[test]
fn resolving_keeps_to_the_text() {
    let base = Path::new("/w");
    assert_eq!(resolve("a/./b/", base), Ok(PathBuf::from("/w/a/b")));
    assert_eq!(resolve("/a", base), Ok(PathBuf::from("/a")));
    assert_eq!(resolve("a/../b", base), Err("`..` in a path"));
}
