//! Where the real parts are (`tests/parts/install.sh`).

use std::path::PathBuf;

const CURE: &str = "run tests/parts/install.sh, which installs what these tests need";

/// A part by its path in the folder of parts.
///
/// # Panics
/// It is not installed; the text says how to install it.
pub(crate) fn part(name: &str) -> PathBuf {
    let path = folder().join(name);
    assert!(path.exists(), "`{}` is missing: {CURE}", path.display());
    path
}

/// A file of ours beside the installer.
pub(crate) fn ours(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/parts"))
        .canonicalize()
        .expect("tests/parts is in the repository")
        .join(name)
}

/// The `mcp_source.uri` of a program with arguments.
pub(crate) fn stdio(program: &std::path::Path, arguments: &[&str]) -> String {
    let query: Vec<String> = arguments.iter().map(|text| format!("arg={text}")).collect();
    format!("stdio://{}?{}", program.display(), query.join("&"))
        .trim_end_matches('?')
        .to_owned()
}

/// The search path of this test, for MCP servers whose interpreter is somewhere else than usual.
pub(crate) fn search_path() -> String {
    env("PATH").expect("PATH is set")
}

fn folder() -> PathBuf {
    if let Some(folder) = env("CLAWK_PARTS") {
        return folder.into();
    }
    let cache = env("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env("HOME").map(|home| PathBuf::from(home).join(".cache")));
    cache
        .unwrap_or_else(|| panic!("neither CLAWK_PARTS nor XDG_CACHE_HOME nor HOME is set: {CURE}"))
        .join("clawk-ci/parts")
}

#[expect(clippy::disallowed_methods, reason = "a test finds what was installed for it")]
fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
