//! Runs tools and prints to the terminal.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use anyhow::{Context, Result, bail};

/// Returns the workspace's root as cargo reports it at run time. A path compiled into the program may belong to another checkout
/// that shares the target folder.
pub(crate) fn root() -> PathBuf {
    let here = env("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").to_owned());
    let here = Path::new(&here);
    here.parent().unwrap_or(here).to_owned()
}

/// Prints a line on standard output.
pub(crate) fn say(line: &str) {
    // silent-ok: with a closed standard output there is no reader
    let _ = writeln!(io::stdout(), "{}", line.trim_end());
}

/// Makes a command that runs in the workspace's root.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    #[expect(clippy::disallowed_methods, reason = "xtask runs the developer's own tools")]
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Returns an environment variable, or `None` if it is unset or empty.
pub(crate) fn env(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "xtask is no part of the product")]
    let value = std::env::var(name).ok(); // silent-ok: not UTF-8 counts as unset
    value.filter(|value| !value.is_empty())
}

/// Returns whether a program can be run: `NAME --version`, or another harmless argument.
pub(crate) fn has(program: &str, harmless: &[&str]) -> bool {
    command(program)
        .args(harmless)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs a command to its end and shows its output.
///
/// # Errors
/// The command can't be started, or fails.
pub(crate) fn must(command: &mut Command) -> Result<()> {
    let text = describe(command);
    let status = command.status().with_context(|| format!("can't run `{text}`"))?;
    if !status.success() {
        bail!("`{text}` failed ({status})");
    }
    Ok(())
}

/// Returns cargo's target folder.
pub(crate) fn target() -> Result<PathBuf> {
    let mut cargo = command("cargo");
    let text = output(cargo.args(["metadata", "--no-deps", "--format-version", "1", "--locked"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&text)?;
    let folder = metadata
        .get("target_directory")
        .and_then(serde_json::Value::as_str);
    Ok(PathBuf::from(
        folder.context("`cargo metadata` names no target_directory")?,
    ))
}

/// Returns the standard output of a command.
///
/// # Errors
/// The command can't be started, or fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let text = describe(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("can't run `{text}`"))?;
    if !output.status.success() {
        bail!("`{text}` failed ({})", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{text}` printed something that is not UTF-8"))
}

/// Runs a command to its end. Shows each line as it arrives and passes it to `look`. Returns whether the command succeeded.
pub(crate) fn watched(command: &mut Command, mut look: impl FnMut(&str)) -> Result<bool> {
    let text = describe(command);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("can't run `{text}`"))?;
    let (sender, lines) = mpsc::sync_channel::<String>(256);
    let streams: [Option<Box<dyn Read + Send>>; 2] = [
        child
            .stdout
            .take()
            .map(|stream| Box::new(stream) as Box<dyn Read + Send>),
        child
            .stderr
            .take()
            .map(|stream| Box::new(stream) as Box<dyn Read + Send>),
    ];
    for stream in streams.into_iter().flatten() {
        let sender = sender.clone();
        std::thread::spawn(move || forward(stream, &sender));
    }
    drop(sender);
    for line in lines {
        say(&line);
        look(&line);
    }
    Ok(child
        .wait()
        .with_context(|| format!("can't wait for `{text}`"))?
        .success())
}

fn forward(stream: impl Read, sender: &mpsc::SyncSender<String>) {
    for line in BufReader::new(stream).split(b'\n') {
        let Ok(line) = line else { return };
        if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
            return;
        }
    }
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}
