//! Describes the machine on which the benchmark ran.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::rows::disk;
use crate::run::{command, output};

/// The machine's properties that a reader needs to compare numbers.
#[derive(Debug)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    memory_gib: u64,
    kernel: String,
    load: String,
    file_system: String,
    fdatasync_ms: f64,
    rustc: String,
    /// The program that was measured.
    program: String,
}

/// Collects the properties. `folder`: the state's folder; `given`: a program that was not built from this tree; `profile`: the
/// cargo profile of the others.
pub(crate) fn note(folder: &Path, given: Option<&str>, profile: &str) -> Result<Machine> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default(); // silent-ok: an unknown machine is one, too
    let field = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim_start_matches([' ', '\t', ':']).to_owned())
    };
    let memory_kib: u64 = field(&read("/proc/meminfo"), "MemTotal")
        .and_then(|value| value.split(' ').next()?.parse().ok()) // silent-ok: as above
        .unwrap_or(0);
    let tool = |program: &str, words: &[&str]| output(command(program).args(words)).unwrap_or_default(); // silent-ok: as above
    let commit = tool("git", &["rev-parse", "--short", "HEAD"]);
    let changed = !tool("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
    Ok(Machine {
        cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_gib: memory_kib.div_ceil(1024 * 1024),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        load: read("/proc/loadavg")
            .split(' ')
            .take(3)
            .collect::<Vec<_>>()
            .join(" "),
        file_system: file_system(&read("/proc/self/mounts"), folder),
        fdatasync_ms: disk::fdatasync_ms(folder, 200)?.median(),
        rustc: tool("rustc", &["--version"]).trim().to_owned(),
        program: match given {
            Some(program) => program.to_owned(),
            None => format!(
                "profile `{profile}`, commit {}{}",
                commit.trim(),
                if changed { " with changes" } else { "" }
            ),
        },
    })
}

/// Returns the type of the file system that holds `folder`: that of the deepest mount above it.
fn file_system(mounts: &str, folder: &Path) -> String {
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(place, _)| folder.starts_with(place))
        .max_by_key(|(place, _)| place.len())
        .map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.to_owned())
}

impl Machine {
    /// Returns the description as one sentence.
    pub(crate) fn text(&self) -> String {
        format!(
            "Machine: {} × {}, {} GiB, Linux {}, {} (one fdatasync of 4 KiB: {:.2} ms), load average {}; {}, {}.",
            self.cores,
            self.cpu,
            self.memory_gib,
            self.kernel,
            self.file_system,
            self.fdatasync_ms,
            self.load,
            self.rustc,
            self.program
        )
    }

    /// Returns the description as JSON.
    pub(crate) fn json(&self) -> Value {
        json!({
            "cpu": self.cpu, "cores": self.cores, "memory_gib": self.memory_gib, "kernel": self.kernel, "load": self.load,
            "file_system": self.file_system, "fdatasync_ms": self.fdatasync_ms, "rustc": self.rustc, "program": self.program,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::file_system;

    #[test]
    fn the_deepest_mount_names_the_file_system() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/x xfs rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/tmp/x/y")), "xfs");
        assert_eq!(file_system(mounts, Path::new("/tmp/z")), "tmpfs");
        assert_eq!(file_system(mounts, Path::new("/home")), "ext4");
        assert_eq!(file_system("", Path::new("/home")), "unknown");
    }
}
