//! Error details for a server that ended or did not start: its last output, shortened and with hidden characters made visible, and
//! hints for a program that downloads its server.

use std::path::Path;
use std::time::Duration;

use clawk_kernel::sheet::visible_text;
use clawk_plan::{Level, NetworkMode};
use clawk_sandbox::{SandboxedService, Spec};

use crate::call::truncate_text;

/// How many lines and bytes of a server's last output are reported.
const LAST_LINES: usize = 6;
const LAST_BYTES: usize = 1_200;
/// Programs that download a server from a registry when they start it.
const STARTERS: [&str; 8] = ["npx", "npm", "bunx", "pnpm", "uvx", "uv", "pipx", "deno"];

/// How a process ended, and its last lines on standard error, for an error's text.
pub(super) async fn last_words(service: Option<&SandboxedService>) -> String {
    let Some(service) = service else {
        return String::new();
    };
    // The exit status arrives shortly after the stream is closed.
    let end = tokio::time::timeout(Duration::from_millis(500), service.wait()).await;
    // silent-ok: then the process is still running
    let mut text = match end.ok().flatten() {
        Some(end) => match (end.limit, end.exit_code, end.signal) {
            (Some(limit), _, _) => format!("; it was {limit}"),
            (None, Some(code), _) => format!("; it ended with exit code {code}"),
            (None, None, signal) => format!("; it was ended by signal {}", signal.unwrap_or_default()),
        },
        None => String::new(),
    };
    let words = last_lines(&service.stderr_tail());
    if !words.is_empty() {
        text.push_str(&format!("; its last words: {words}"));
    }
    text
}

/// The last lines of a text, at most [`LAST_LINES`] and [`LAST_BYTES`], joined to one line, with hidden characters made visible.
pub(super) fn last_lines(text: &str) -> String {
    let lines = text.lines().rev().map(without_escapes);
    let lines = lines.filter(|line| !line.trim().is_empty()).take(LAST_LINES);
    let mut kept: Vec<String> = Vec::new();
    let mut bytes = 0;
    for line in lines {
        let line = visible_text(truncate_text(line.trim(), 300).0);
        bytes += line.len() + 3;
        if bytes > LAST_BYTES {
            break;
        }
        kept.push(line);
    }
    kept.reverse();
    kept.join(" | ")
}

/// Reports that the program is not on this machine. Not checked for files inside a container or a virtual machine.
pub(super) fn absent_program(spec: &Spec) -> Option<String> {
    let of_host = matches!(spec.plan.level(), Level::None | Level::Process);
    let path = Path::new(&spec.program);
    (of_host && path.is_absolute() && !path.exists())
        .then(|| format!(": there is no file `{}`", spec.program))
}

/// What a downloading program needs: network access to its registry, and a folder for its files.
pub(super) fn starter_hint(spec: &Spec) -> Option<String> {
    let name = spec.program.rsplit('/').next().unwrap_or_default();
    if !STARTERS.contains(&name) {
        return None;
    }
    let network = match spec.plan.network().mode {
        NetworkMode::Deny => "its sandbox has no network, so it can fetch nothing",
        NetworkMode::Allowlist | NetworkMode::AllowAll => {
            "its registry must be in `allowed_hosts` of its sandbox"
        }
    };
    Some(format!(
        ". `{name}` fetches the server when it starts it: {network}; and it needs a folder that it may write for its cache. \
         Install the server once and name its own program in `mcp_source.uri`"
    ))
}

/// Removes a terminal's escape sequences from a line.
fn without_escapes(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        if c == '\u{1b}' && rest.next_if_eq(&'[').is_some() {
            let _end = rest.by_ref().find(|c| ('@'..='~').contains(c));
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clawk_plan::Plan;
    use clawk_sandbox::Spec;

    use super::{absent_program, last_lines, starter_hint};

    #[test]
    fn last_words_are_bounded_and_hide_nothing() {
        assert_eq!(last_lines("Error: KEY is not set\n\n"), "Error: KEY is not set");
        let lines: String = (0..20).map(|n| format!("line {n}\n")).collect();
        assert_eq!(
            last_lines(&lines),
            "line 14 | line 15 | line 16 | line 17 | line 18 | line 19"
        );
        assert_eq!(last_lines("\x1b[31mred\x1b[0m \u{202e}x\r\n"), "red ⟨U+202E⟩x");
        assert!(last_lines(&"y".repeat(100_000)).len() <= 300);
        assert!(last_lines(&"\u{200b}".repeat(5_000)).len() <= 1_200);
        assert_eq!(last_lines("\x1b]0;title\x07x"), "⟨U+001B⟩]0;title⟨U+0007⟩x");
    }

    #[test]
    fn a_program_that_fetches_its_server_says_what_it_lacks() {
        let plan = Arc::new(Plan::compile(None, &clawk_plan::PlanDefaults::default()));
        let hint = |program: &str| starter_hint(&Spec::new(program.to_owned(), Arc::clone(&plan)));
        let said = hint("/usr/bin/npx").expect("a hint");
        assert!(said.contains("no network") && said.contains("cache"), "{said}");
        assert_eq!(hint("/opt/npx-server"), None);
        let absent = |program: &str| absent_program(&Spec::new(program.to_owned(), Arc::clone(&plan)));
        assert!(absent("/opt/no/such/program").is_some_and(|said| said.contains("`/opt/no/such/program`")));
        assert_eq!(absent("/bin/sh"), None);
    }
}
