//! Checks file sizes, crate headers, and words that must not be committed.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::Finding;

const WITH_REASON: usize = 600;
const NEVER: usize = 1000;
const REASON: &str = "Long because ";

/// Checks a file's length, without tests. Over 600 lines its head must say why; over 1,000 lines it must be split.
pub(super) fn size(path: &Path, text: &str) -> Option<Finding> {
    let source = path.extension().is_some_and(|extension| {
        ["rs", "py", "ts", "js", "mjs", "svelte", "sh"]
            .iter()
            .any(|e| extension == *e)
    });
    let lines = text.lines().count();
    if !source || is_test(path) || lines <= WITH_REASON {
        return None;
    }
    if lines > NEVER {
        return Some(format!(
            "{}: {lines} lines, more than {NEVER}: split it",
            path.display()
        ));
    }
    let reasoned = text
        .lines()
        .take(20)
        .any(|line| line.starts_with("//") && line.contains(REASON));
    (!reasoned).then(|| {
        format!(
            "{}: {lines} lines, more than {WITH_REASON}: split it, or say `{REASON}…` in its head",
            path.display()
        )
    })
}

pub(super) fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
        || path.file_name().is_some_and(|name| name == "tests.rs")
}

/// Finds hosts of package registries, and paths of this machine.
pub(super) fn words(path: &Path, text: &str, machine_paths: &[String]) -> Vec<Finding> {
    if path.file_name().is_some_and(|name| name == "Cargo.lock") {
        return Vec::new();
    }
    // Written in halves, so that the check does not find this file.
    let hosts = [
        ("crates", ".io"),
        ("pypi", ".org"),
        ("pythonhosted", ".org"),
        ("registry.npmjs", ".org"),
        ("deb.debian", ".org"),
    ];
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let place = || format!("{}:{}", path.display(), number + 1);
        for (left, right) in hosts {
            if line.contains(&[left, right].concat()) {
                findings.push(format!(
                    "{}: names a package registry's host; name the package and its client instead",
                    place()
                ));
            }
        }
        if let Some(known) = machine_paths.iter().find(|known| line.contains(known.as_str())) {
            findings.push(format!("{}: `{known}` exists on this machine only", place()));
        }
    }
    findings
}

/// Checks that every crate's root says what the crate owns, depends on, must not know, and where to start reading.
pub(super) fn headers(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let crates = root.join("crates");
    for entry in fs::read_dir(&crates).with_context(|| format!("can't read `{}`", crates.display()))? {
        let folder = entry?.path();
        let Some(file) = ["src/lib.rs", "src/main.rs"]
            .iter()
            .map(|name| folder.join(name))
            .find(|file| file.is_file())
        else {
            continue;
        };
        let text = fs::read_to_string(&file)?;
        let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
        for words in ["Owns", "Depends on", "Must not know", "Start reading at"] {
            // Any emphasis is accepted.
            if !head
                .iter()
                .any(|line| line.replace('*', "").contains(&format!("{words}:")))
            {
                let file = file.strip_prefix(root).unwrap_or(&file);
                findings.push(format!("{}: its header has no line `{words}:`", file.display()));
            }
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{size, words};

    #[test]
    fn judges_sizes_by_lines_reason_and_place() {
        let text = |lines: usize, head: &str| format!("{head}\n{}", "x\n".repeat(lines - 1));
        assert_eq!(size(Path::new("a.rs"), &text(600, "")), None);
        assert!(size(Path::new("a.rs"), &text(601, "")).is_some());
        assert_eq!(
            size(Path::new("a.rs"), &text(601, "//! Long because it is one table.")),
            None
        );
        assert!(
            size(
                Path::new("a.rs"),
                &text(1001, "//! Long because it is one table.")
            )
            .is_some()
        );
        assert_eq!(size(Path::new("a/tests.rs"), &text(2000, "")), None);
        assert_eq!(size(Path::new("a/tests/it/main.rs"), &text(2000, "")), None);
        assert_eq!(size(Path::new("a.md"), &text(2000, "")), None);
    }

    #[test]
    fn finds_machine_paths_and_registry_hosts() {
        let host = ["https://", "pypi", ".org", "/simple"].concat();
        let text = format!("fine\n{host}\nsee /build/here/x\n");
        let findings = words(Path::new("a.md"), &text, &["/build/here".to_owned()]);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings.iter().any(|finding| finding.starts_with("a.md:2:")));
        assert!(findings.iter().any(|finding| finding.starts_with("a.md:3:")));
    }
}
