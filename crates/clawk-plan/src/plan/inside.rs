//! The paths that a program uses inside a plan's sandbox: its home, the shell for command lines, the folders of its search path.

use std::path::{Path, PathBuf};

use super::{FsMode, Plan, SYSTEM};
use crate::level::Level;
use crate::preflight::path::lexical_path;

/// The search path for programs whose environment has no `PATH`.
pub const MINIMAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Folders that are always in memory, whatever the sandbox shows of the host.
const MEMORY: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// The usual paths of bash.
const BASH: [&str; 2] = ["/bin/bash", "/usr/bin/bash"];

/// The shell that exists on every system.
const SH: &str = "/bin/sh";

impl Plan {
    /// A writable home folder for this tool only. It is in memory, counts against the run's limits, and is deleted after the run.
    /// `None`: this level has no such folder.
    #[must_use]
    pub fn private_home(&self) -> Option<&'static str> {
        match (self.level, self.filesystem.mode) {
            (Level::None | Level::Wasm, _) => None,
            // The sandbox shows the host's `/tmp`, so use another folder in memory.
            (Level::Process | Level::Vm, FsMode::Full) => Some("/dev/shm"),
            (Level::Process | Level::Vm | Level::Container, _) => Some("/tmp"),
        }
    }

    /// The shell for command lines: bash if a program under this plan surely finds it, else `/bin/sh`.
    #[must_use]
    pub fn shell_program(&self, base: &Path) -> &'static str {
        let found = match self.level {
            // The image of a container may contain another system.
            Level::Container | Level::Wasm => None,
            Level::None | Level::Process | Level::Vm => BASH.into_iter().find(|path| {
                let path = Path::new(path);
                path.is_file() && !self.filesystem.denies_path(path, base)
            }),
        };
        found.unwrap_or(SH)
    }

    /// The folders that a tool may use, one per line, for people to read. `None`: all folders of the host.
    #[must_use]
    pub fn visible_folders(&self) -> Option<Vec<String>> {
        if self.level == Level::None || self.filesystem.mode == FsMode::Full {
            return None;
        }
        let shown = self.filesystem.shown_mounts().into_iter();
        Some(
            shown
                .map(|(path, writable)| {
                    let rights = if writable { "read and write" } else { "read" };
                    format!("`{}` ({rights})", path.display())
                })
                .collect(),
        )
    }

    /// Filters a search path: keeps the folders that a program under this plan can see. `further` are folders shown in addition to
    /// the mounts. Invisible folders are removed, because each one costs a lookup per program and tells the tool what the host has.
    #[must_use]
    pub fn search_path(&self, path: &str, further: &[PathBuf], base: &Path) -> String {
        if matches!(self.level, Level::None | Level::Wasm) {
            return path.to_owned();
        }
        let mounts = self.filesystem.shown_mounts();
        let mut roots: Vec<PathBuf> = SYSTEM.iter().chain(&MEMORY).map(PathBuf::from).collect();
        roots.extend(mounts.iter().map(|(mount, _)| lexical_path(base, mount)));
        roots.extend(further.iter().map(|path| lexical_path(base, path)));
        let shown = |folder: &&str| {
            let folder = Path::new(folder);
            if !folder.is_absolute() {
                return true;
            }
            let folder = lexical_path(Path::new("/"), folder);
            let there =
                self.filesystem.mode == FsMode::Full || roots.iter().any(|root| folder.starts_with(root));
            there && !self.filesystem.denies_path(&folder, base)
        };
        path.split(':').filter(shown).collect::<Vec<_>>().join(":")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::PlanDefaults;

    fn plan(level: &str, filesystem: serde_json::Value) -> Plan {
        let sandbox = json!({"name": "s", "level": level, "capabilities": {"filesystem": filesystem}});
        Plan::compile(
            Some(&serde_json::from_value(sandbox).unwrap()),
            &PlanDefaults::default(),
        )
    }

    #[test]
    fn a_search_path_holds_what_is_shown() {
        let given = "/home/ann/.cargo/bin:/usr/local/bin:/bin:/work/bin:/work/no/bin:relative:/opt/node/bin:/usr/../home/ann/bin";
        let files = json!({"mode": "scoped", "mount_paths": [{"path": ".", "permissions": "rw"}], "denied_paths": ["no"]});
        let further = [PathBuf::from("/opt/node")];
        let path = |level: &str| plan(level, files.clone()).search_path(given, &further, Path::new("/work"));
        for level in ["process", "container", "vm"] {
            assert_eq!(
                path(level),
                "/usr/local/bin:/bin:/work/bin:relative:/opt/node/bin",
                "{level}"
            );
        }
        assert_eq!(path("none"), given);
        let full = plan(
            "process",
            json!({"mode": "full", "denied_paths": ["/home/ann/.cargo"]}),
        );
        assert_eq!(
            full.search_path("/home/ann/.cargo/bin:/home/ann/bin", &[], Path::new("/")),
            "/home/ann/bin"
        );
    }

    #[test]
    fn bash_is_used_where_it_is_surely_there() {
        let files = |denied: &str| json!({"mode": "deny", "denied_paths": [denied]});
        let shell = |level: &str, denied: &str| plan(level, files(denied)).shell_program(Path::new("/"));
        assert_eq!(shell("container", "/x"), "/bin/sh");
        if Path::new("/bin/bash").is_file() {
            assert_eq!(shell("process", "/x"), "/bin/bash");
            assert_eq!(shell("vm", "/x"), "/bin/bash");
            assert_eq!(shell("process", "**/bash"), "/bin/sh");
        }
    }
}
