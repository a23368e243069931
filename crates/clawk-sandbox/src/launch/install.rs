//! Where a program is installed, so that its box can show that much of the host, read-only. The rule is documented
//! (docs/reference/sandbox.md): the folder above its `bin`, the `node_modules` or `site-packages` that holds it, or else the
//! file alone; the same for the interpreter that its first line names, and for what links lead to. Never a home, never a
//! folder that such rules would make the whole of a user's or the system's files.

use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

/// Interpreters that name interpreters, and links that lead to links: so many steps.
const MAX_STEPS: usize = 8;

/// Bytes of a first line that are looked at, as the kernel does.
const FIRST_LINE_BYTES: u64 = 256;

/// Too much to be where one program is installed.
const NEVER: [&str; 12] = [
    "/",
    "/home",
    "/root",
    "/etc",
    "/var",
    "/tmp",
    "/opt",
    "/srv",
    "/mnt",
    "/media",
    "/run",
    "/usr/local",
];

/// What of the host the program needs beyond the system view. `search` is the `PATH` it will have.
pub(super) fn paths(program: &Path, search: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![program.to_path_buf()];
    for _ in 0..MAX_STEPS {
        let Some(path) = next.pop() else { break };
        let mut add = |path: PathBuf| {
            if !found.contains(&path) {
                found.push(path);
            }
        };
        add(prefix(&path));
        let Ok(real) = std::fs::canonicalize(&path) else {
            continue;
        };
        if real != path {
            // Also what the links on the way name: `venv/bin/python` → `…/bin/python3` → the real one.
            if let Ok(target) = std::fs::read_link(&path) {
                let target =
                    crate::preflight::path::lexical(path.parent().unwrap_or(Path::new("/")), &target);
                if target != real {
                    next.push(target);
                }
            }
            add(prefix(&real));
        }
        next.extend(interpreter(&real, search));
    }
    found
}

/// The folder or file that is shown for a program.
fn prefix(program: &Path) -> PathBuf {
    let whole: Vec<Component<'_>> = program.components().collect();
    let library = whole
        .iter()
        .position(|part| matches!(part, Component::Normal(name) if *name == "node_modules"));
    if let Some(at) = library {
        return whole.iter().take(at + 1).collect();
    }
    let folder = program.parent().unwrap_or(Path::new("/"));
    let named_bin = folder.file_name().is_some_and(|name| {
        ["bin", "sbin", "libexec", "shims"]
            .iter()
            .any(|known| name == *known)
    });
    match folder.parent() {
        Some(above) if named_bin && !too_much(above) => above.to_path_buf(),
        _ => program.to_path_buf(),
    }
}

fn too_much(folder: &Path) -> bool {
    let home = folder.parent() == Some(Path::new("/home"));
    home || NEVER.iter().any(|never| folder == Path::new(never)) || folder.join(".ssh").exists()
}

/// What the first line of a script names; for `env`, the program that it will find.
fn interpreter(program: &Path, search: &str) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(program)
        .ok()?
        .take(FIRST_LINE_BYTES)
        .read_to_end(&mut start)
        .ok()?; // silent-ok: the start says why
    let text = String::from_utf8_lossy(&start);
    let line = text.strip_prefix("#!")?.lines().next()?;
    let mut words = line.split_ascii_whitespace();
    let first = PathBuf::from(words.next()?);
    if first.file_name().is_some_and(|name| name == "env") {
        let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
        return super::find(name, search).map(PathBuf::from);
    }
    first.is_absolute().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_no_more_than_an_installation() {
        let shown = |text: &str| prefix(Path::new(text)).display().to_string();
        assert_eq!(shown("/x/venv/bin/python"), "/x/venv");
        assert_eq!(shown("/x/p/node_modules/.bin/server"), "/x/p/node_modules");
        assert_eq!(shown("/home/me/bin/tool"), "/home/me/bin/tool");
        assert_eq!(shown("/root/bin/tool"), "/root/bin/tool");
        assert_eq!(shown("/work/agent/server.py"), "/work/agent/server.py");
    }
}
