//! Plays a page in a folder and a home of its own: its commands in one shell, its terminals on terminals.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use super::page::{Step, fits, steps, typed};
use super::{fragment, root};
use crate::pty::Terminal;

/// For all commands between two terminals.
const PATIENCE: Duration = Duration::from_secs(150);
/// Keys are no answer in the first half second of a question.
const DRAWN: Duration = Duration::from_millis(800);
/// The port that the pages name: one page at a time.
const PORT: &str = "127.0.0.1:8420";

/// What `cargo` does in a page: the chores of the repository are CI's own steps, `cargo run` is the program under test.
const CARGO: &str = "#!/bin/sh
case \"$1 $2\" in
  'run --release') shift 3; exec clawk \"$@\" ;;
  'build --release' | 'test -p' | 'xtask '*) exit 0 ;;
  *) echo \"cargo $*: not known to the guide's test\" >&2; exit 1 ;;
esac
";

/// A page's world, and what it started.
struct Stage {
    folder: TempDir,
    /// Where the next command starts.
    here: PathBuf,
    groups: Vec<Pid>,
    count: usize,
}

/// Plays every step of a page; the first that does not go as written fails the test.
pub(super) fn page(name: &str) {
    let text = fs::read_to_string(root().join(name)).unwrap();
    let alone = text.contains(PORT).then(|| {
        let lock = File::create(std::env::temp_dir().join("clawk-guide-port.lock")).unwrap();
        lock.lock().unwrap();
        lock
    });
    let mut stage = Stage::new();
    let mut waiting = Vec::new();
    for step in steps(name, &text) {
        match step {
            Step::Typed { command, shown, line } => {
                stage.shell(name, &std::mem::take(&mut waiting));
                stage.terminal(&format!("{name}:{line}"), &command, &shown);
            }
            Step::Fragment { language, text, line } => fragment::tried(
                &stage.folder.path().join("fragment"),
                &language,
                &text,
                &format!("{name}:{line}"),
            ),
            other => waiting.push(other),
        }
    }
    stage.shell(name, &waiting);
    drop(stage);
    drop(alone);
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bin", "home", "out", "work", "fragment"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        symlink(env!("CARGO_BIN_EXE_clawk"), folder.path().join("bin/clawk")).unwrap();
        let cargo = folder.path().join("bin/cargo");
        fs::write(&cargo, CARGO).unwrap();
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
        let here = folder.path().join("work");
        Self {
            folder,
            here,
            groups: Vec::new(),
            count: 0,
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let bin = self.folder.path().join("bin");
        command
            .env_clear()
            .env(
                "PATH",
                format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", bin.display()),
            )
            .env("HOME", self.folder.path().join("home"))
            .env("LANG", "C.UTF-8")
            .env("REPO", root())
            // Real servers that a page installs from the network: CI has them already.
            .envs(std::env::var_os("CLAWK_PARTS").map(|parts| ("CLAWK_PARTS", parts)))
            .current_dir(&self.here);
        command
    }

    /// Files and commands in one shell, so that `cd`, variables and background jobs hold.
    fn shell(&mut self, name: &str, steps: &[Step]) {
        if steps.is_empty() {
            return;
        }
        self.count += 1;
        let out = self.folder.path().join(format!("out/{}", self.count));
        fs::create_dir(&out).unwrap();
        let at = out.display();
        let mut script = String::new();
        for (index, step) in steps.iter().enumerate() {
            match step {
                Step::File { path, text } => {
                    script.push_str(&format!(
                        "mkdir -p \"$(dirname '{path}')\"\ncat > '{path}' <<'END OF FILE'\n{text}END OF FILE\n"
                    ));
                }
                Step::Run { script: lines, .. } => script.push_str(&format!(
                    "trap 'echo \"failed: $BASH_COMMAND\" >> {at}/{index}.failed' ERR\n{{ {lines}\n}} > {at}/{index} 2>&1 < /dev/null\ntrap - ERR\n"
                )),
                Step::Shown { command, .. } => {
                    script.push_str(&format!("{{ {command}\n}} > {at}/{index} 2>&1 < /dev/null\n"));
                }
                Step::Typed { .. } | Step::Fragment { .. } => unreachable!("not for a shell"),
            }
        }
        script.push_str(&format!("pwd > {at}/here\n"));
        fs::write(out.join("script"), script).unwrap();
        let mut child = self
            .command("bash")
            .arg(out.join("script"))
            .stdin(Stdio::null())
            .stdout(File::create(out.join("stdout")).unwrap())
            .stderr(File::create(out.join("stderr")).unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        self.groups.push(Pid::from_child(&child));
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "{name}: {}", told(&out, steps));
            std::thread::sleep(Duration::from_millis(10));
        }
        for (index, step) in steps.iter().enumerate() {
            judge(name, &out, index, step, steps);
        }
        self.here = PathBuf::from(fs::read_to_string(out.join("here")).unwrap().trim());
    }

    /// A program on a terminal: types what the page types, and holds what is shown against the page.
    fn terminal(&self, place: &str, command: &str, shown: &[String]) {
        let mut setting = self.command("setsid");
        let mut terminal = Terminal::start(&mut setting, 100, Path::new("/bin/bash"), &["-c", command]);
        for line in shown {
            let Some((prompt, words)) = typed(line) else {
                continue;
            };
            terminal.expect(prompt.split('…').next().unwrap().trim());
            if !prompt.contains("you") {
                std::thread::sleep(DRAWN);
            }
            terminal.line(words);
        }
        let (_, actual) = terminal.end();
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let actual = flat(&actual);
        let mut rest = actual.as_str();
        for line in shown {
            let line = typed(line).map_or(line.as_str(), |(prompt, _)| prompt);
            for piece in line.split('…').map(flat).filter(|piece| !piece.is_empty()) {
                let Some(at) = rest.find(&piece) else {
                    panic!("{place}: `{piece}` was not shown behind what is before it; shown was:\n{actual}");
                };
                rest = &rest[at + piece.len()..];
            }
        }
    }
}

/// Fails when a step did not go as written.
fn judge(name: &str, out: &Path, index: usize, step: &Step, steps: &[Step]) {
    let actual = fs::read(out.join(index.to_string())).unwrap_or_default();
    let actual = String::from_utf8_lossy(&actual);
    match step {
        Step::Run { line, script } => {
            let failed = fs::read_to_string(out.join(format!("{index}.failed"))).unwrap_or_default();
            assert!(
                failed.is_empty(),
                "{name}:{line}: {failed}in\n{script}\nprinted:\n{actual}\n{}",
                told(out, steps)
            );
        }
        Step::Shown {
            command,
            output,
            line,
        } => {
            if let Err(piece) = fits(output, &actual) {
                panic!("{name}:{line}: `{command}` did not print `{piece}`; it printed:\n{actual}");
            }
        }
        Step::File { .. } | Step::Typed { .. } | Step::Fragment { .. } => {}
    }
}

/// Everything that was printed so far, for a failure.
fn told(out: &Path, steps: &[Step]) -> String {
    let mut all = String::new();
    for index in 0..steps.len() {
        let printed = fs::read(out.join(index.to_string())).unwrap_or_default();
        all.push_str(&format!("--- {index}\n{}\n", String::from_utf8_lossy(&printed)));
    }
    all + &fs::read_to_string(out.join("stderr")).unwrap_or_default()
}

impl Drop for Stage {
    fn drop(&mut self) {
        for group in &self.groups {
            // Gone already, as a rule.
            let _ = kill_process_group(*group, Signal::TERM);
        }
        if !self.groups.is_empty() {
            std::thread::sleep(Duration::from_millis(300));
        }
        for group in &self.groups {
            let _ = kill_process_group(*group, Signal::KILL);
        }
    }
}
