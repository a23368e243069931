//! `@FILE` in a message at the prompt: the file's text follows the message.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// Largest file, and largest number of files of one message.
const MAX_FILE_BYTES: u64 = 256 * 1024;
const MAX_FILES: usize = 8;

/// A message with the texts of the files that it names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MessageWithFiles {
    pub(super) text: String,
    /// Each file with its size in bytes.
    pub(super) files: Vec<(String, usize)>,
}

/// Adds the text of each file that the message names as `@FILE`, relative to `folder`. A word that names no file stays a word.
///
/// # Errors
/// A file is not UTF-8 text, too large, can't be read, or is one too many.
pub(super) fn attach_files(message: &str, folder: &Path) -> Result<MessageWithFiles> {
    let mut whole = MessageWithFiles {
        text: message.to_owned(),
        files: Vec::new(),
    };
    for word in message.split_whitespace() {
        let Some(name) = word.strip_prefix('@').filter(|name| !name.is_empty()) else {
            continue;
        };
        // A sentence's mark is no part of a name, unless such a file exists.
        let short = name.trim_end_matches(['.', ',', ';', ':', '?', '!', ')']);
        let is_file = |name: &&str| !name.is_empty() && folder.join(name).is_file();
        let Some(name) = [name, short].into_iter().find(is_file) else {
            continue;
        };
        if whole.files.iter().any(|(known, _)| known == name) {
            continue;
        }
        if whole.files.len() == MAX_FILES {
            bail!("a message takes at most {MAX_FILES} files with `@`");
        }
        let text = read_text(&folder.join(name)).with_context(|| format!("`@{name}` can't be sent"))?;
        let fence = fence_around(&text);
        whole.text.push_str(&format!(
            "\n\nThe file `{name}`:\n{fence}\n{}\n{fence}",
            text.trim_end_matches('\n')
        ));
        whole.files.push((name.to_owned(), text.len()));
    }
    Ok(whole)
}

fn read_text(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_FILE_BYTES {
        bail!("it is larger than {MAX_FILE_BYTES} bytes; let the agent read it with a tool");
    }
    String::from_utf8(bytes).context("it is not UTF-8 text")
}

/// Returns a fence that is longer than every row of backticks in the text.
fn fence_around(text: &str) -> String {
    let (mut longest, mut row) = (0, 0);
    for c in text.chars() {
        row = if c == '`' { row + 1 } else { 0 };
        longest = longest.max(row);
    }
    "`".repeat((longest + 1).max(3))
}

#[cfg(test)]
mod tests {
    use super::attach_files;

    #[test]
    fn files_that_a_message_names_follow_it_once_and_other_words_stay() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), "one\ntwo\n").unwrap();
        std::fs::write(folder.path().join("b.md"), "```\ncode\n```\n").unwrap();
        let message = "Compare @a.txt, (@a.txt) with @b.md. Mail ann@b.md or @nobody";
        let whole = attach_files(message, folder.path()).unwrap();
        assert_eq!(whole.files, [("a.txt".to_owned(), 8), ("b.md".to_owned(), 13)]);
        assert_eq!(
            whole.text,
            format!(
                "{message}\n\nThe file `a.txt`:\n```\none\ntwo\n```\n\nThe file `b.md`:\n````\n```\ncode\n```\n````"
            )
        );
    }

    #[test]
    fn a_file_that_is_no_text_or_too_large_is_told() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("bin"), [0xff, 0xfe]).unwrap();
        std::fs::write(folder.path().join("big"), "x".repeat(300_000)).unwrap();
        for (name, why) in [("bin", "not UTF-8"), ("big", "larger than 262144 bytes")] {
            let error = format!(
                "{:#}",
                attach_files(&format!("read @{name}"), folder.path()).unwrap_err()
            );
            assert!(
                error.contains(&format!("`@{name}`")) && error.contains(why),
                "{error}"
            );
        }
    }
}
