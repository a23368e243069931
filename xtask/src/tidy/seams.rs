//! Checks each crate that has its own `clippy.toml`. Clippy does not read the root's file for it, so the file must repeat every
//! rule of the root's.

use std::path::Path;

use super::Finding;

/// Returns the lines of the root's `clippy.toml` that the file at `path` lacks.
pub(super) fn check(root: &str, path: &Path, text: &str) -> Vec<Finding> {
    let own = path.file_name().is_some_and(|name| name == "clippy.toml") && path.components().count() > 1;
    if !own {
        return Vec::new();
    }
    let rules = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim);
        lines
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(str::to_owned)
            .collect()
    };
    let has = rules(text);
    rules(root)
        .into_iter()
        .filter(|rule| !has.contains(rule))
        .map(|rule| {
            format!(
                "{}: it lacks `{rule}` of the root's `clippy.toml`",
                path.display()
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use std::path::Path;

    #[test]
    fn a_seam_that_is_missing_is_found() {
        let root = "# words\ntoo-many-lines-threshold = 70\ndisallowed-methods = [\n  { path = \"a\", reason = \"b\" },\n]\n";
        let path = Path::new("crates/x/clippy.toml");
        assert!(check(root, path, root).is_empty());
        assert!(check(root, Path::new("clippy.toml"), "").is_empty());
        let found = check(
            root,
            path,
            &root.replace("  { path = \"a\", reason = \"b\" },\n", ""),
        );
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
