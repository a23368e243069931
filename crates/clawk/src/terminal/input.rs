//! The line editor. It blocks, so it runs on its own thread and reads one line per request.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::termios::{QueueSelector, tcdrain, tcflush};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Behavior, Config, Editor};
use tokio::sync::oneshot;

use super::prompt_help::{PromptHelper, join_lines};

type PromptEditor = Editor<PromptHelper, FileHistory>;

/// The result of reading a line.
#[derive(Debug)]
pub(crate) enum LineOutcome {
    /// A line, without its newline.
    Line(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D, or the terminal is closed.
    End,
}

/// Keys pressed within this time after a question do not count as an answer.
const UNREAD: Duration = Duration::from_millis(500);

enum Request {
    Line {
        prompt: String,
        /// Adds the line to the history. Messages to the agent are added, answers to questions are not.
        remember: bool,
        reply: oneshot::Sender<LineOutcome>,
    },
    /// Discards every key that was pressed before the screen could be read.
    Fresh(oneshot::Sender<io::Result<()>>),
}

/// Requests lines. Cloned handles share the terminal.
#[derive(Debug, Clone)]
pub(crate) struct LineEditor {
    requests: mpsc::SyncSender<Request>,
}

impl LineEditor {
    /// Starts the editor. `history` is created if it is missing, readable only by its owner. Without it, the history is kept in
    /// memory. `commands` are completed at the beginning of a message.
    ///
    /// # Errors
    /// The terminal can't be used.
    pub(crate) fn start(history: Option<PathBuf>, commands: Vec<String>) -> Result<Self> {
        // Standard input may be a pipe with a message; the person still uses the terminal.
        let behavior = if io::stdin().is_terminal() {
            Behavior::Stdio
        } else {
            Behavior::PreferTerm
        };
        let config = Config::builder()
            .max_history_size(1000)?
            .history_ignore_dups(true)?
            .behavior(behavior)
            .build();
        let mut editor = PromptEditor::with_config(config).context("the terminal can't be used")?;
        editor.set_helper(Some(PromptHelper::new(commands)));
        let history = history.filter(|history| {
            let usable = private_file(history).is_ok() && editor.load_history(history).is_ok();
            if !usable {
                tracing::warn!(history = %history.display(), "no line history: the file can't be used");
            }
            usable
        });
        let (requests, queue) = mpsc::sync_channel::<Request>(1);
        std::thread::Builder::new()
            .name("line-editor".into())
            .spawn(move || {
                let history = history.as_deref();
                for request in queue {
                    // silent-ok, both: the caller no longer waits
                    match request {
                        Request::Line {
                            prompt,
                            remember,
                            reply,
                        } => drop(reply.send(read(&mut editor, &prompt, remember, history))),
                        Request::Fresh(done) => drop(done.send(discard_typed_keys())),
                    }
                }
            })?;
        Ok(Self { requests })
    }

    /// Waits until the output is drawn and half a second has passed, then discards all earlier keys. Call it between a question and
    /// its answer.
    ///
    /// # Errors
    /// The terminal does not support it. Then no answer from it counts.
    pub(crate) async fn discard_typed_keys(&self) -> io::Result<()> {
        let (done, waiting) = oneshot::channel();
        self.requests
            .try_send(Request::Fresh(done))
            .map_err(io::Error::other)?;
        waiting.await.map_err(io::Error::other)?
    }

    /// Reads one line.
    pub(crate) async fn read_line(&self, prompt: String, remember: bool) -> LineOutcome {
        let (reply, answer) = oneshot::channel();
        if self
            .requests
            .try_send(Request::Line {
                prompt,
                remember,
                reply,
            })
            .is_err()
        {
            return LineOutcome::End;
        }
        answer.await.unwrap_or(LineOutcome::End)
    }
}

/// Discards keys that wait in the terminal. The editor itself keeps no keys between two lines.
pub(crate) fn discard_typed_keys() -> io::Result<()> {
    tcdrain(io::stderr())?;
    std::thread::sleep(UNREAD);
    if io::stdin().is_terminal() {
        tcflush(io::stdin(), QueueSelector::IFlush)?;
    } else {
        tcflush(File::open("/dev/tty")?, QueueSelector::IFlush)?;
    }
    Ok(())
}

fn read(editor: &mut PromptEditor, prompt: &str, remember: bool, history: Option<&Path>) -> LineOutcome {
    if let Some(helper) = editor.helper_mut() {
        // Answers to questions are one line, without completion.
        helper.is_message = remember;
    }
    match editor.readline(prompt) {
        Ok(line) => {
            if remember && !line.trim().is_empty() && editor.add_history_entry(&line).is_ok() {
                // silent-ok: a full disk only loses the history
                let _ = history.map(|path| editor.append_history(path));
            }
            LineOutcome::Line(if remember { join_lines(&line) } else { line })
        }
        Err(ReadlineError::Interrupted) => LineOutcome::Interrupted,
        Err(ReadlineError::Eof) => LineOutcome::End,
        Err(error) => {
            tracing::warn!(%error, "the terminal can't be read");
            LineOutcome::End
        }
    }
}

fn private_file(path: &Path) -> io::Result<()> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .map(drop)
}
