//! Blocked command lines (R35). This check only stops accidents: the real protection is the restricted view of the process, not the
//! text match.

use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

use crate::level::SandboxRefusal;
use crate::plan::{Shell, ShellMode};

/// The longest command line that is checked, in bytes. A longer one is refused in mode `restricted`.
const MAX_COMMAND_BYTES: usize = 128 * 1024;

/// One entry of `blocked_commands`. `*` matches any text, and blanks match any blanks. It blocks if it occurs anywhere as whole
/// words.
#[derive(Debug, Clone)]
pub(crate) struct CommandPattern {
    text: String,
    regex: Regex,
}

impl CommandPattern {
    pub(crate) fn compile(text: &str) -> Result<Self, regex::Error> {
        let words: Vec<&str> = text.split_whitespace().collect();
        // Match whole words only: `rm -r` blocks `/bin/rm -r x`, but not `farm -r`.
        let mut source = String::from(if text.trim_start().starts_with(is_word) {
            r"(?:^|[^\w.-])"
        } else {
            ""
        });
        for (at, word) in words.iter().enumerate() {
            if let Some(before) = at.checked_sub(1).and_then(|before| words.get(before)) {
                source.push_str(gap_pattern(before, word));
            }
            let literals: Vec<String> = word.split('*').map(regex::escape).collect();
            source.push_str(&literals.join("(?s:.*)"));
        }
        source.push_str(match text.trim_end().chars().next_back() {
            Some('*') | None => "",
            Some(last) if is_word(last) => r"(?:$|[^\w.-])",
            Some(_) => r"(?:$|[\s;|&()<>*'\x22])",
        });
        let regex = RegexBuilder::new(&source).size_limit(1 << 20).build()?;
        Ok(Self {
            text: text.to_owned(),
            regex,
        })
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The regex for a blank in the pattern: one or more blanks between two plain words; zero or more beside an operator or a `*`,
/// because the shell needs none there.
fn gap_pattern(before: &str, after: &str) -> &'static str {
    let loose = |character: char| "|;&<>*".contains(character);
    match (before.ends_with(loose), after.starts_with(loose)) {
        (false, false) => r"\s+",
        (false, true) if before.ends_with(is_word) => r"\b\s*",
        _ => r"\s*",
    }
}

/// Compiles one `blocked_patterns` entry.
pub(crate) fn compile_pattern(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text).size_limit(4 << 20).build()
}

pub(super) fn check_command(shell: &Shell, command: &str) -> Result<(), SandboxRefusal> {
    let refused = |rule: &str, subject: String, allowed: &str| {
        Err(SandboxRefusal::Blocked {
            rule: rule.to_owned(),
            subject,
            allowed: allowed.to_owned(),
        })
    };
    match shell.mode {
        ShellMode::Full => return Ok(()),
        ShellMode::Deny => {
            return refused(
                "shell.mode: deny",
                "every command line".to_owned(),
                "none, until the Sandbox's `capabilities.shell.mode` is `restricted` or `full`",
            );
        }
        ShellMode::Restricted => {}
    }
    if command.len() > MAX_COMMAND_BYTES {
        return refused(
            "shell",
            format!("a command of {} bytes", command.len()),
            "at most 131072 bytes",
        );
    }
    let plain = normal_form(command);
    for form in [command, plain.as_str()] {
        if let Some(hit) = shell.commands.iter().find(|pattern| pattern.regex.is_match(form)) {
            let subject = format!("a command that fits `{}`", hit.text);
            return refused(
                "shell.blocked_commands",
                subject,
                "commands that fit none of the blocked ones",
            );
        }
        if let Some(hit) = shell.patterns.iter().find(|pattern| pattern.is_match(form)) {
            let subject = format!("a command that matches `{}`", hit.as_str());
            return refused(
                "shell.blocked_patterns",
                subject,
                "commands that match none of the patterns",
            );
        }
    }
    Ok(())
}

/// Removes quotes, escapes, `$IFS` and joined lines from the command (R35), so that `c''url` becomes `curl`.
#[must_use]
pub(crate) fn normal_form(command: &str) -> String {
    let mut out = String::with_capacity(command.len());
    let mut rest = command.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '\'' | '"' => {}
            '\\' => match rest.next() {
                Some('\n') | None => {}
                Some(escaped) => out.push(escaped),
            },
            '$' => strip_dollar(&mut rest, &mut out),
            other => out.push(other),
        }
    }
    out
}

fn strip_dollar(rest: &mut Peekable<Chars<'_>>, out: &mut String) {
    let ahead: String = rest.clone().take(5).collect();
    if ahead.starts_with("{IFS") {
        // Skip `${IFS}`, `${IFS%?}`, … up to the closing brace.
        for character in rest.by_ref() {
            if character == '}' {
                break;
            }
        }
        out.push(' ');
    } else if ahead.starts_with("IFS") {
        rest.by_ref().take(3).for_each(drop);
        // `$IFS$9`: the positional parameter after the name is empty.
        let mut peek = rest.clone();
        if peek.next() == Some('$')
            && peek
                .next()
                .is_some_and(|digit| digit.is_ascii_digit() || digit == '@' || digit == '*')
        {
            rest.by_ref().take(2).for_each(drop);
        }
        out.push(' ');
    } else if ahead.starts_with(['@', '*']) {
        // `$@` is empty in a plain command line: `c$@url`.
        rest.next();
    } else if ahead.starts_with(['\'', '"']) {
        // `$'…'` and `$"…"`: remove the quotes and the dollar sign.
    } else {
        out.push('$');
    }
}
