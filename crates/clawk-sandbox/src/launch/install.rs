//! Finds a program's installation, so that its sandbox can show this part of the host read-only. The rule is documented
//! (docs/reference/sandbox.md): the folder above its `bin`, the `node_modules` or `site-packages` that contains it, or else only
//! the file. The same applies to the interpreter in its first line, and to the targets of links. A home folder is never shown, nor
//! a folder that would contain all files of a user or of the system.

use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use crate::child::cell::order::is_system;

/// The maximum number of steps: interpreters that name interpreters, and links to links.
const MAX_STEPS: usize = 8;

/// How many bytes of a first line are read; the kernel uses the same number.
const FIRST_LINE_BYTES: u64 = 256;

/// Folders that are too large to be the installation of one program.
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

/// Programs that run scripts. Only they may be the target of a script or a virtual environment inside a writable mount.
const INTERPRETERS: [&str; 12] = [
    "python", "pypy", "node", "ruby", "perl", "php", "lua", "bun", "deno", "java", "bash", "dash",
];

/// Folders of a home in which version managers keep only programs, and scripts that choose among them.
const MANAGERS: [&str; 9] = [
    ".pyenv", ".nvm", ".rbenv", ".nodenv", ".asdf", ".volta", ".sdkman", ".bun", ".deno",
];

/// The host paths that the program needs in addition to the system view. `search` is its future `PATH`. A tool may have written
/// what is in `writable`: links and first lines there may lead only to an installed interpreter, and to nothing else of the host.
pub(super) fn installation_paths(program: &Path, search: &str, writable: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![program.to_path_buf()];
    let inside = |path: &Path| {
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()); // silent-ok: the start says why
        let folder = path.parent().and_then(|folder| folder.canonicalize().ok()); // silent-ok: as above
        let places = [Some(path.to_path_buf()), Some(real), folder];
        places
            .iter()
            .flatten()
            .any(|place| writable.iter().any(|root| place.starts_with(root)))
    };
    let doubted = inside(program);
    for step in 0..MAX_STEPS {
        let Some(path) = next.pop() else { break };
        if doubted && step > 0 && !inside(&path) && !is_interpreter(&path) {
            continue;
        }
        let mut add = |path: PathBuf| {
            if !found.contains(&path) {
                found.push(path);
            }
        };
        add(installation_prefix(&path));
        let Ok(real) = std::fs::canonicalize(&path) else {
            continue;
        };
        if doubted && !inside(&real) && !is_interpreter(&real) {
            continue;
        }
        if real != path {
            // Also the targets of links on the path: `venv/bin/python` → `…/bin/python3` → the real one.
            if let Ok(target) = std::fs::read_link(&path) {
                let target = clawk_plan::preflight::path::lexical_path(
                    path.parent().unwrap_or(Path::new("/")),
                    &target,
                );
                if target != real {
                    next.push(target);
                }
            }
            add(installation_prefix(&real));
        }
        next.extend(script_interpreter(&real, search));
    }
    found
}

/// The folder or file that is shown for a program.
fn installation_prefix(program: &Path) -> PathBuf {
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

/// Whether this is an installed interpreter: a program with a known name and format beside its libraries, or one of a version
/// manager.
fn is_interpreter(path: &Path) -> bool {
    let Ok(real) = std::fs::canonicalize(path) else {
        return false;
    };
    let known = real
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| INTERPRETERS.iter().any(|known| name.starts_with(known)));
    let mut start = [0; 4];
    let program = File::open(&real)
        .and_then(|mut file| file.read_exact(&mut start))
        .is_ok()
        && start == *b"\x7fELF";
    let beside = installation_prefix(&real);
    known
        && (program && (beside == real || beside.join("lib").is_dir() || is_system(&real))
            || is_version_manager(&beside))
}

/// Whether this is a version manager's folder in a home.
fn is_version_manager(folder: &Path) -> bool {
    let name = folder.file_name();
    in_home(folder) && name.is_some_and(|name| MANAGERS.iter().any(|manager| name == *manager))
}

/// Whether the path is directly in a home.
fn in_home(path: &Path) -> bool {
    let above = path.parent().unwrap_or(Path::new("/"));
    above == Path::new("/root") || above.parent() == Some(Path::new("/home"))
}

/// Whether this is a hidden folder of a home, which may contain settings and keys beside programs. Virtual environments and version
/// managers are excluded.
fn is_settings_folder(folder: &Path) -> bool {
    let hidden = folder
        .file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    hidden && in_home(folder) && !is_version_manager(folder) && !folder.join("pyvenv.cfg").exists()
}

fn too_much(folder: &Path) -> bool {
    let home = folder.parent() == Some(Path::new("/home"));
    home || is_settings_folder(folder)
        || NEVER.iter().any(|never| folder == Path::new(never))
        || folder.join(".ssh").exists()
}

/// The interpreter in the first line of a script; for `env`, the program that it will find.
fn script_interpreter(program: &Path, search: &str) -> Option<PathBuf> {
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
        return super::find_program(name, search).map(PathBuf::from);
    }
    first.is_absolute().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_no_more_than_an_installation() {
        let shown = |text: &str| installation_prefix(Path::new(text)).display().to_string();
        assert_eq!(shown("/x/venv/bin/python"), "/x/venv");
        assert_eq!(shown("/x/p/node_modules/.bin/server"), "/x/p/node_modules");
        assert_eq!(shown("/home/me/bin/tool"), "/home/me/bin/tool");
        assert_eq!(shown("/root/bin/tool"), "/root/bin/tool");
        assert_eq!(shown("/work/agent/server.py"), "/work/agent/server.py");
        assert_eq!(shown("/root/.local/bin/tool"), "/root/.local/bin/tool");
        assert_eq!(shown("/home/me/.cargo/bin/tool"), "/home/me/.cargo/bin/tool");
        assert_eq!(shown("/home/me/.pyenv/shims/python3"), "/home/me/.pyenv");
        assert_eq!(shown("/srv/.pyenv/bin/x"), "/srv/.pyenv");
    }

    #[test]
    fn what_a_tool_can_write_leads_to_no_folder_of_its_choice() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in ["work", "vault/bin", "vault/lib", "py/bin", "py/lib"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        let executable = |name: &str, text: &[u8]| {
            let path = root.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let keeper = executable("vault/bin/keeper", b"\x7fELF");
        let python = executable("py/bin/python3.12", b"\x7fELF");
        let script =
            |name: &str, target: &Path| executable(name, format!("#!{}\n", target.display()).as_bytes());
        let evil = script("work/evil", &keeper);
        let absent = script("work/absent", &root.join("vault/bin/none"));
        let good = script("work/good", &python);
        symlink(&keeper, root.join("work/link")).unwrap();
        let seen = |program: &Path, writable: &[PathBuf]| {
            installation_paths(program, "/usr/bin", writable)
                .iter()
                .any(|path| path.starts_with(root.join("vault")))
        };
        let writable = [root.join("work")];
        for program in [&evil, &absent, &root.join("work/link")] {
            assert!(!seen(program, &writable), "{}", program.display());
            assert!(seen(program, &[]), "{}", program.display());
        }
        assert!(installation_paths(&good, "/usr/bin", &writable).contains(&root.join("py")));
    }
}
