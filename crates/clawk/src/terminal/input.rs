//! The line that a person edits. The editor blocks, so it lives on a thread of its own and is asked for one line at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::termios::{QueueSelector, tcdrain, tcflush};
use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};
use tokio::sync::oneshot;

/// What came of asking for a line.
#[derive(Debug)]
pub(crate) enum LineOutcome {
    /// A line, without its newline.
    Line(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D, or the terminal has gone.
    End,
}

/// Keys that are pressed earlier than this behind a question are no answer to it.
const UNREAD: Duration = Duration::from_millis(500);

enum Request {
    Line {
        prompt: String,
        /// Goes to the history: words to the agent do, answers to questions don't.
        remember: bool,
        reply: oneshot::Sender<LineOutcome>,
    },
    /// Forget every key that was pressed before what is on the screen could be read.
    Fresh(oneshot::Sender<io::Result<()>>),
}

/// Asks for lines; cloned handles share the one terminal.
#[derive(Debug, Clone)]
pub(crate) struct LineEditor {
    requests: mpsc::SyncSender<Request>,
}

impl LineEditor {
    /// Starts the editor. `history` is made when missing, readable by its owner only; without it, lines are remembered in memory.
    ///
    /// # Errors
    /// The terminal can't be used.
    pub(crate) fn start(history: Option<PathBuf>) -> Result<Self> {
        // Standard input may be a message in a pipe; the person is at the terminal all the same.
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
        let mut editor = DefaultEditor::with_config(config).context("the terminal can't be used")?;
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
                    // silent-ok, both: whoever asked has stopped waiting
                    match request {
                        Request::Line {
                            prompt,
                            remember,
                            reply,
                        } => drop(reply.send(read(&mut editor, &prompt, remember, history))),
                        Request::Fresh(done) => drop(done.send(fresh())),
                    }
                }
            })?;
        Ok(Self { requests })
    }

    /// Waits until what was written is drawn and half a second has passed, and forgets all keys of before. To be called
    /// between a question and its answer.
    ///
    /// # Errors
    /// The terminal can't do it: no answer from it counts.
    pub(crate) async fn fresh(&self) -> io::Result<()> {
        let (done, waiting) = oneshot::channel();
        self.requests
            .try_send(Request::Fresh(done))
            .map_err(io::Error::other)?;
        waiting.await.map_err(io::Error::other)?
    }

    /// Asks for one line.
    pub(crate) async fn line(&self, prompt: String, remember: bool) -> LineOutcome {
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

/// The editor keeps no keys between two lines: what was pressed ahead waits in the terminal.
pub(crate) fn fresh() -> io::Result<()> {
    tcdrain(io::stderr())?;
    std::thread::sleep(UNREAD);
    if io::stdin().is_terminal() {
        tcflush(io::stdin(), QueueSelector::IFlush)?;
    } else {
        tcflush(File::open("/dev/tty")?, QueueSelector::IFlush)?;
    }
    Ok(())
}

fn read(editor: &mut DefaultEditor, prompt: &str, remember: bool, history: Option<&Path>) -> LineOutcome {
    match editor.readline(prompt) {
        Ok(line) => {
            if remember && !line.trim().is_empty() && editor.add_history_entry(&line).is_ok() {
                // silent-ok: a full disk costs the history and nothing else
                let _ = history.map(|path| editor.append_history(path));
            }
            LineOutcome::Line(line)
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
