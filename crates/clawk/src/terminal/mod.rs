//! The terminal interface of a running agent: streamed Markdown, tool calls, approval requests, an editable line.

pub(crate) mod input;
pub(crate) mod markdown;
mod prompt_help;
pub(crate) mod show;
pub(crate) mod thoughts;

use std::io::{self, IsTerminal};

/// Returns the columns of the terminal on standard output, at most `limit`; `limit` if there is no terminal.
pub(crate) fn terminal_columns(limit: usize) -> usize {
    let size = rustix::termios::tcgetwinsize(io::stdout());
    match size {
        Ok(size) if size.ws_col >= 20 => usize::from(size.ws_col).min(limit),
        _ => limit,
    }
}

/// Returns whether a person can be asked: standard error is a terminal, and a terminal can be read even if standard input is a
/// file.
pub(crate) fn can_ask() -> bool {
    io::stderr().is_terminal() && (io::stdin().is_terminal() || std::fs::File::open("/dev/tty").is_ok())
}
