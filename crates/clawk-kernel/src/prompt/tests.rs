use super::{MAX_CONTEXT_FILE_BYTES, context_file};

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
