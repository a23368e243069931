use super::{
    ContextFiles, MAX_CONTEXT_FILE_BYTES, context_file, context_texts, result_text, share_of_each,
    system_prompt,
};
use crate::error::CallError;
use crate::output::ResultExcerpt;

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
fn context_files_take_a_quarter_of_the_window_and_what_is_cut_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut manifest = crate::testing::manifest(serde_json::json!({}));
    manifest.dir = dir.path().to_owned();
    for (name, size) in [("USER.md", 100), ("MEMORY.md", 30_000), ("RULES.md", 20_000)] {
        std::fs::write(dir.path().join(name), "x".repeat(size)).unwrap();
        manifest
            .identity
            .context_files
            .insert(name.to_owned(), name.to_owned());
    }
    let files = ContextFiles {
        texts: context_texts(&manifest, &manifest.identity),
        ..ContextFiles::default()
    };
    // 4,000 tokens are 16,000 bytes: 100 for the small file, and 1,950 for each of the others.
    let text = system_prompt(&manifest, None, &[], &files, 4_000);
    assert!(text.len() < 4_000 + 500, "{}", text.len());
    assert!(text.contains("[cut: 1950 of 30000 bytes shown]"), "{text}");
    assert!(text.contains("[cut: 1950 of 20000 bytes shown]"), "{text}");
    let text = system_prompt(&manifest, None, &[], &files, 100_000);
    assert!(text.len() > 50_000 && !text.contains("[cut:"));
    assert_eq!(share_of_each(&mut [], 10), usize::MAX);
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
        let told = result_text(&Err(error.clone()), ResultExcerpt::default());
        let text = told.text;
        assert!(told.is_error && !text.contains("not done"), "{text}");
        assert!(
            text.contains("may have been done") && text.contains("Do not call it again"),
            "{text}"
        );
        // What every other surface shows: the terminal, the wire, the trace.
        assert!(error.to_string().contains("may have been done"), "{error}");
    }
    let text = result_text(&Err(CallError::Cancelled { tool }), ResultExcerpt::default()).text;
    assert!(text.starts_with("not done: "), "{text}");
}
