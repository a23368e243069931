//! Real components for tests: MCP servers and a small language model. `tests/parts/install.sh` installs them into a cache folder.
//! Tests find the folder through [`VARIABLE`].

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::run::{command, env, has, must};

/// Environment variable with the folder's path, for tests.
pub(crate) const VARIABLE: &str = "CLAWK_PARTS";

/// Returns the folder of the components, which may not exist yet.
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

/// Installs the Debian packages for the build and the tests whose program is missing.
pub(crate) fn system() -> Result<()> {
    let wanted: &[(&str, &[&str], &[&str])] = &[
        ("cc", &["--version"], &["build-essential"]),
        ("git", &["--version"], &["git"]),
        ("openssl", &["version"], &["openssl"]),
        ("curl", &["--version"], &["curl"]),
        ("runc", &["--version"], &["runc"]),
        ("bwrap", &["--version"], &["bubblewrap"]),
        ("/bin/busybox", &["true"], &["busybox-static"]),
        ("/usr/sbin/mke2fs", &["-V"], &["e2fsprogs"]),
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

/// Installs the missing components and returns the folder.
pub(crate) fn install() -> Result<PathBuf> {
    let dir = dir()?;
    must(command("tests/parts/install.sh").env(VARIABLE, &dir))?;
    Ok(dir)
}
