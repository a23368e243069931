use super::{MAX_CONTEXT_FILE_BYTES, context_file, result_text};
use crate::error::CallError;

#[test]
fn only_plain_files_inside_the_folder_join_the_prompt() {
    let dir = tempfile::tempdir().unwrap();
    let outside = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(outside.path(), "secret").unwrap();
    std::fs::write(dir.path().join("USER.md"), "Ann").unwrap();
    std::os::unix::fs::symlink(outside.path(), dir.path().join("LINK.md")).unwrap();
    assert_eq!(context_file(dir.path(), "./USER.md").as_deref(), Some("Ann"));
    for refused in ["LINK.md", "../USER.md", "/etc/hostname", "ABSENT.md", "."] {
        assert_eq!(context_file(dir.path(), refused), None, "{refused}");
    }
}

#[test]
fn a_long_context_file_is_cut_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("MEMORY.md"),
        "x".repeat(MAX_CONTEXT_FILE_BYTES * 3),
    )
    .unwrap();
    let text = context_file(dir.path(), "MEMORY.md").unwrap();
    assert!(text.len() < MAX_CONTEXT_FILE_BYTES + 100 && text.contains("[cut:"));
}

#[test]
fn what_may_have_been_done_is_never_told_as_not_done() {
    let tool = "order".to_owned();
    let begun = [
        CallError::Unknown {
            tool: tool.clone(),
            reason: "the connection broke".to_owned(),
        },
        CallError::Timeout {
            tool: tool.clone(),
            timeout_ms: 1000,
        },
    ];
    for error in begun {
        let (text, is_error) = result_text(&Err(error.clone()));
        assert!(is_error && !text.contains("not done"), "{text}");
        assert!(
            text.contains("may have been done") && text.contains("Do not call it again"),
            "{text}"
        );
        // What every other surface shows: the terminal, the wire, the trace.
        assert!(error.to_string().contains("may have been done"), "{error}");
    }
    let (text, _) = result_text(&Err(CallError::Cancelled { tool }));
    assert!(text.starts_with("not done: "), "{text}");
}
