//! The pictures of terminals in the README and in `docs/`: each is drawn from what the program shows on a terminal.
//!
//! `cargo xtask screens` writes them (it sets `CLAWK_SCREENS=write`). A plain test run compares the words of each picture with what
//! the program shows now, so a picture that is out of date fails.

mod svg;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::pty::Terminal;

/// The most bytes that a picture may have.
const LARGEST: usize = 30_000;
/// The home in a picture. It has as many characters as the test's own folder, so that every line breaks where it did.
const HOME: &str = "/home/alice";

/// One picture.
struct Scene {
    /// `docs/screens/NAME.svg`.
    name: &'static str,
    /// Columns of the terminal, and so of the picture.
    columns: u16,
    /// What is typed at the shell, without `clawk`.
    args: &'static [&'static str],
    /// What is waited for on the screen, and what is typed then.
    typed: &'static [(&'static str, &'static str)],
    /// What of a line must not change; `None`: the line may be anything.
    kept: fn(&str) -> Option<String>,
}

const SCENES: [Scene; 5] = [
    Scene {
        name: "run",
        columns: 100,
        args: &["run", "notes/claw.yaml"],
        typed: &[("you ▸", "Sum up the notes"), ("hy ▸", "y"), ("you ▸", "/quit")],
        kept: whole,
    },
    Scene {
        name: "trace",
        columns: 100,
        args: &["trace", "show", "--session", "last"],
        typed: &[],
        kept: |line| Some(first(line, 3)),
    },
    Scene {
        name: "explain",
        columns: 116,
        args: &["policy", "explain", "notes/claw.yaml", "--tool", "file-write"],
        typed: &[],
        kept: whole,
    },
    Scene {
        name: "dry-run",
        columns: 100,
        args: &["run", "notes/claw.yaml", "-m", "Sum up the notes", "--dry-run"],
        typed: &[],
        kept: whole,
    },
    Scene {
        name: "doctor",
        columns: 116,
        args: &["doctor", "notes/claw.yaml"],
        typed: &[],
        // What a sandbox is held by, and which levels there are, is another machine's matter.
        kept: |line| {
            let judged = line.starts_with("ok ") && !line.contains("sandbox-");
            judged.then(|| first(line, 2))
        },
    },
];

fn whole(line: &str) -> Option<String> {
    Some(line.to_owned())
}

/// The first `count` words.
fn first(line: &str, count: usize) -> String {
    line.split_whitespace().take(count).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_pictures_in_the_docs_are_what_the_program_shows() {
    let write = std::env::var("CLAWK_SCREENS").is_ok_and(|word| word == "write");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/screens");
    let home = home();
    let made = clawk(home.path())
        .args(["init", "notes", "--template", "tutorial"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    for scene in SCENES {
        let file = folder.join(scene.name).with_extension("svg");
        let shown = shown(&scene, home.path());
        // The next scene writes it as a new file again.
        let _ = fs::remove_file(home.path().join("notes/summary.md"));
        let picture = svg::picture(&prompt(&scene), &shown, usize::from(scene.columns));
        assert!(
            picture.len() <= LARGEST,
            "{}: {} bytes",
            scene.name,
            picture.len()
        );
        if write {
            fs::write(&file, picture).unwrap();
            continue;
        }
        let committed = fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(
            judged(&scene, &committed),
            judged(&scene, &picture),
            "{} is not what the program shows; run `cargo xtask screens`",
            file.display()
        );
    }
}

/// A home whose name is as long as [`HOME`].
fn home() -> TempDir {
    let home = tempfile::Builder::new()
        .prefix("")
        .rand_bytes(6)
        .tempdir_in("/tmp")
        .unwrap();
    assert_eq!(home.path().to_str().unwrap().len(), HOME.len());
    fs::create_dir(home.path().join("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_clawk"), home.path().join("bin/clawk")).unwrap();
    home
}

/// A program with nothing of this machine's settings.
fn bare(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env(
            "PATH",
            format!(
                "{}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                home.display()
            ),
        )
        .env("HOME", home)
        .env("LANG", "C.UTF-8")
        .current_dir(home);
    command
}

fn clawk(home: &Path) -> Command {
    bare(&home.join("bin/clawk"), home)
}

/// The line that a person typed at the shell.
fn prompt(scene: &Scene) -> String {
    let words = scene.args.iter().map(|word| {
        if word.contains(' ') {
            format!("'{word}'")
        } else {
            (*word).to_owned()
        }
    });
    format!("$ clawk {}", words.collect::<Vec<_>>().join(" "))
}

/// What the terminal got, byte for byte, with [`HOME`] for the test's own folder.
fn shown(scene: &Scene, home: &Path) -> String {
    let mut setting = bare(&PathBuf::from("setsid"), home);
    let mut terminal = Terminal::start(&mut setting, scene.columns, Path::new("clawk"), scene.args);
    for (awaited, words) in scene.typed {
        terminal.expect(awaited);
        // Keys are no answer in the first half second of a question.
        std::thread::sleep(Duration::from_millis(800));
        terminal.line(words);
    }
    let (status, raw) = terminal.end_raw();
    let text = String::from_utf8(raw).unwrap();
    assert!(status.success(), "{}: {status}\n{text}", scene.name);
    text.replace(home.to_str().unwrap(), HOME)
}

/// The lines of a picture that must not change, with `#` for numbers, digests and ids.
fn judged(scene: &Scene, picture: &str) -> Vec<String> {
    svg::lines(picture)
        .iter()
        .filter_map(|line| (scene.kept)(line))
        .map(|line| line.split_whitespace().map(masked).collect::<Vec<_>>().join(" "))
        .collect()
}

/// A word with `#` for each run of hexadecimal digits that has a digit.
fn masked(word: &str) -> String {
    let mut out = String::new();
    let mut run = String::new();
    for c in word.chars().chain(['\0']) {
        if c.is_ascii_hexdigit() || "-:.".contains(c) {
            run.push(c);
            continue;
        }
        if run.contains(|c: char| c.is_ascii_digit()) {
            out.push('#');
        } else {
            out.push_str(&run);
        }
        run.clear();
        if c != '\0' {
            out.push(c);
        }
    }
    out
}
