//! `custom`: a program in a box that speaks the line protocol, one JSON object a line.

mod entry;
mod files;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use clawk_kernel::ports::{BoxFuture, Delivery};
use clawk_manifest::model::Channel;
use clawk_sandbox::{Launcher, SandboxedService, Spec};
use futures::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::CUSTOM;
use crate::adapter::{
    ButtonPress, ChannelAdapter, ChannelDisconnect, CodeBlock, FileSupport, InboundPipeline, IngestOutcome,
    LengthUnit, MarkupFormat, OutboundMessage, PlatformCapabilities, PlatformMessage, QuestionMessage,
};
use crate::dependencies::ChannelDependencies;
use crate::platform_kit::message_line::{FilesBy, MessageLine, PressSender, attached};

/// Longest line of the program, bytes.
const MAX_LINE: u64 = 1 << 20;
/// The longest text of one `send`, characters.
const MAX_TEXT: usize = 65_536;
/// How long the program has to say that a message is delivered, milliseconds.
const DELIVERED_MS: u64 = 50_000;
/// Lines to the program that wait. As many as a program may have messages in its pipe, so that a program that writes
/// before it reads blocks neither itself nor others.
const BACKLOG: usize = 16_384;
/// Messages taken at a time; those of one conversation in their order.
const WORKERS: usize = 16;
const WORKER_BACKLOG: usize = 16;
/// How often a message that can't be kept now is tried before the program is started again, and how long it waits, milliseconds.
const TRIES: u32 = 6;
const TRY_MS: u64 = 250;
/// Characters of the program's own words that are shown.
const SHOWN_CHARS: usize = 200;

/// What the program says.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum ProgramLine {
    Message(MessageLine),
    Press {
        #[serde(default)]
        #[expect(dead_code, reason = "a press is told apart by its question")]
        id: Option<String>,
        question: String,
        choice: String,
        sender: PressSender,
        conversation: String,
    },
    Delivered {
        out: String,
        #[serde(default)]
        id: Option<String>,
    },
    Failed {
        out: String,
        reason: String,
        #[serde(default)]
        retry_after_ms: Option<u64>,
        /// It is never taken.
        #[serde(default, rename = "final")]
        for_good: bool,
    },
    State {
        state: String,
        #[serde(default)]
        reason: Option<String>,
    },
}

/// A program beside the agent.
#[derive(Debug)]
pub(crate) struct CustomAdapter {
    launcher: Launcher,
    spec: Box<Spec>,
    live: Mutex<Option<RunningProgram>>,
}

/// The running program.
#[derive(Debug)]
struct RunningProgram {
    lines: mpsc::Sender<String>,
    waiting: HashMap<String, oneshot::Sender<Delivery>>,
}

impl CustomAdapter {
    pub(crate) fn new(channel: &Channel, parts: &ChannelDependencies) -> Result<Self, String> {
        let spec = match parts.programs.get(&channel.name) {
            Some(spec) => spec.clone()?,
            None => {
                return Err(format!(
                    "`[channels.{}] command = [\"program\"]` is missing in clawk.toml",
                    channel.name
                ));
            }
        };
        Ok(Self {
            launcher: parts.launcher.clone(),
            spec: Box::new(spec),
            live: Mutex::default(),
        })
    }

    fn lock_program(&self) -> MutexGuard<'_, Option<RunningProgram>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve_program(&self, inlet: &InboundPipeline, over: &CancellationToken) -> ChannelDisconnect {
        let mut service = match self.launcher.start_service(&self.spec).await {
            Ok(service) => service,
            Err(error) => {
                return ChannelDisconnect::temporary(format!("the program can't be started: {error}"));
            }
        };
        let (Some(stdin), Some(stdout)) = (service.stdin.take(), service.stdout.take()) else {
            return ChannelDisconnect::temporary("the program has no standard streams");
        };
        let (lines, to_write) = mpsc::channel(BACKLOG);
        *self.lock_program() = Some(RunningProgram {
            lines: lines.clone(),
            waiting: HashMap::new(),
        });
        inlet.report_ready();
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..WORKERS).map(|_| mpsc::channel(WORKER_BACKLOG)).unzip();
        let workers = join_all(
            receivers
                .into_iter()
                .map(|work| ingest_inputs(work, inlet, &lines)),
        );
        let ended = tokio::select! {
            ended = self.read(stdout, inlet, &senders) => ended,
            () = write(stdin, to_write) => ChannelDisconnect::temporary("the program does not read its standard input"),
            broken = workers => broken.into_iter().flatten().next().unwrap_or_else(|| ChannelDisconnect::temporary("nobody takes its messages")),
            () = over.cancelled() => ChannelDisconnect::temporary("the agent ends"),
        };
        *self.lock_program() = None;
        let stopped = lines.try_send(json!({"type": "stop"}).to_string());
        drop(stopped);
        ChannelDisconnect {
            reason: format!("{}{}", ended.reason, last_words(&service).await),
            ..ended
        }
    }

    /// Reads lines until there are no more.
    async fn read(
        &self,
        stdout: impl tokio::io::AsyncRead + Unpin,
        inlet: &InboundPipeline,
        workers: &[mpsc::Sender<ConversationInput>],
    ) -> ChannelDisconnect {
        let mut reader = BufReader::new(stdout);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line).await;
            match read {
                Ok(0) => return ChannelDisconnect::temporary("the program ended"),
                Ok(_) if line.last() != Some(&b'\n') => {
                    return ChannelDisconnect::temporary(format!(
                        "a line of the program is longer than {MAX_LINE} bytes, or was cut"
                    ));
                }
                Ok(_) => {}
                Err(error) => {
                    return ChannelDisconnect::temporary(format!("the program can't be read: {error}"));
                }
            }
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let work = match serde_json::from_slice(&line) {
                Ok(ProgramLine::Message(message)) => ConversationInput::Message(Box::new(message)),
                Ok(ProgramLine::Press {
                    question,
                    choice,
                    sender,
                    conversation,
                    ..
                }) => ConversationInput::Press(ButtonPress {
                    reason: None,
                    question,
                    choice,
                    sender: sender.id(),
                    conversation,
                }),
                Ok(ProgramLine::Delivered { out, id }) => {
                    self.settle_delivery(&out, Delivery::Delivered { platform_id: id });
                    continue;
                }
                Ok(ProgramLine::Failed {
                    out,
                    reason,
                    retry_after_ms,
                    for_good,
                }) => {
                    self.settle_delivery(&out, failed_delivery(&reason, retry_after_ms, for_good));
                    continue;
                }
                Ok(ProgramLine::State { state, reason }) => {
                    let reason = reason.map(|reason| bounded_line(&reason));
                    match state.as_str() {
                        "ready" => inlet.report_ready(),
                        "failed" => {
                            return ChannelDisconnect::fatal(
                                reason.unwrap_or_else(|| "the program says so".to_owned()),
                            );
                        }
                        _ => {
                            inlet.report_degraded(reason.unwrap_or_else(|| "the program says so".to_owned()))
                        }
                    }
                    continue;
                }
                Err(error) => {
                    tracing::warn!(channel = %inlet.channel().name, %error, "a line of the program is not of the protocol");
                    continue;
                }
            };
            let mut hasher = DefaultHasher::new();
            work.conversation().hash(&mut hasher);
            let at = usize::try_from(hasher.finish() % u64::try_from(WORKERS).unwrap_or(1)).unwrap_or(0);
            if let Some(worker) = workers.get(at)
                && worker.send(work).await.is_err()
            {
                return ChannelDisconnect::temporary("its messages can't be taken now");
            }
        }
    }

    fn settle_delivery(&self, out: &str, delivery: Delivery) {
        let waiting = self
            .lock_program()
            .as_mut()
            .and_then(|live| live.waiting.remove(out));
        if let Some(waiting) = waiting {
            let _gone = waiting.send(delivery); // silent-ok: whoever waited has given it up as unknown
        }
    }

    async fn send_and_wait(&self, id: &str, line: Value) -> Delivery {
        let (told, telling) = oneshot::channel();
        let lines = {
            let mut live = self.lock_program();
            let Some(live) = live.as_mut() else {
                return Delivery::Retry {
                    after_ms: None,
                    reason: "the program does not run".to_owned(),
                };
            };
            live.waiting.insert(id.to_owned(), told);
            live.lines.clone()
        };
        if lines.send(line.to_string()).await.is_err() {
            return Delivery::Retry {
                after_ms: None,
                reason: "the program has ended".to_owned(),
            };
        }
        match tokio::time::timeout(Duration::from_millis(DELIVERED_MS), telling).await {
            Ok(Ok(delivery)) => delivery,
            Ok(Err(_)) => Delivery::Unknown {
                reason: "the program ended before it said what became of it".to_owned(),
            },
            Err(_) => {
                if let Some(live) = self.lock_program().as_mut() {
                    live.waiting.remove(id);
                }
                Delivery::Unknown {
                    reason: format!("the program did not say within {DELIVERED_MS} ms what became of it"),
                }
            }
        }
    }

    fn try_send_line(&self, line: &Value) {
        let lines = self.lock_program().as_ref().map(|live| live.lines.clone());
        if let Some(lines) = lines {
            let _full = lines.try_send(line.to_string()); // silent-ok: it is only shown
        }
    }
}

fn failed_delivery(reason: &str, retry_after_ms: Option<u64>, for_good: bool) -> Delivery {
    let reason = bounded_line(reason);
    if for_good {
        Delivery::Failed { reason }
    } else {
        Delivery::Retry {
            after_ms: retry_after_ms,
            reason,
        }
    }
}

fn bounded_line(text: &str) -> String {
    crate::plain_name::harmless(text)
        .chars()
        .take(SHOWN_CHARS)
        .collect()
}

/// What is done in its conversation's order.
enum ConversationInput {
    Message(Box<MessageLine>),
    Press(ButtonPress),
}

impl ConversationInput {
    fn conversation(&self) -> &str {
        match self {
            Self::Message(message) => &message.conversation,
            Self::Press(press) => &press.conversation,
        }
    }
}

/// Takes messages of some conversations, and says what became of each.
async fn ingest_inputs(
    mut work: mpsc::Receiver<ConversationInput>,
    inlet: &InboundPipeline,
    lines: &mpsc::Sender<String>,
) -> Option<ChannelDisconnect> {
    while let Some(work) = work.recv().await {
        let told = match work {
            ConversationInput::Press(press) => {
                inlet.press_and_say(&press).await;
                continue;
            }
            ConversationInput::Message(message) => {
                let id = message.id.clone();
                match message.into_platform_message(FilesBy::Path) {
                    Ok(incoming) => match ingest_until_settled(inlet, incoming).await {
                        IngestOutcome::Accepted { .. } | IngestOutcome::Ignored => {
                            json!({"type": "accepted", "id": id})
                        }
                        IngestOutcome::Refused(reason) => {
                            json!({"type": "refused", "id": id, "reason": reason})
                        }
                        IngestOutcome::Later(reason) => {
                            return Some(ChannelDisconnect::temporary(format!(
                                "a message could not be kept: {reason}"
                            )));
                        }
                    },
                    Err(reason) => json!({"type": "refused", "id": id, "reason": reason}),
                }
            }
        };
        // Never waited for: whoever waits here reads no more of the program, which may be waiting for that.
        if lines.try_send(told.to_string()).is_err() {
            return Some(ChannelDisconnect::temporary(
                "the program does not read its standard input",
            ));
        }
    }
    None
}

/// Takes one message; one that can't be kept now, again after a while.
async fn ingest_until_settled(inlet: &InboundPipeline, incoming: PlatformMessage) -> IngestOutcome {
    let mut wait_ms = TRY_MS;
    for _ in 1..TRIES {
        let taken = inlet.ingest_message(incoming.clone()).await;
        if taken.is_settled() {
            return taken;
        }
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        wait_ms *= 2;
    }
    inlet.ingest_message(incoming).await
}

async fn write(mut stdin: impl tokio::io::AsyncWrite + Unpin, mut lines: mpsc::Receiver<String>) {
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        if stdin.write_all(line.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
            return;
        }
    }
}

/// Ends the program with all of its processes. How it ended, and the last line of its standard error.
async fn last_words(service: &SandboxedService) -> String {
    let end = service.stop().await;
    let mut text = match end {
        Some(end) => match (end.limit, end.exit_code) {
            (Some(limit), _) => format!("; it was {limit}"),
            (None, Some(code)) => format!("; exit code {code}"),
            (None, None) => String::new(),
        },
        None => String::new(),
    };
    let tail = service.stderr_tail();
    if let Some(line) = tail.lines().rev().find(|line| !line.trim().is_empty()) {
        text.push_str(&format!("; its last words: {}", bounded_line(line.trim())));
    }
    text
}

impl ChannelAdapter for CustomAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            // The same `out` twice is the same message, but only where the program says so: it may have lost its memory.
            idempotent: false,
            markup: MarkupFormat::Markdown,
            code: CodeBlock::Fence,
            buttons: true,
            edits: true,
            typing: true,
            files: FileSupport::Inside,
            ..PlatformCapabilities::plain_text(MAX_TEXT, LengthUnit::Chars)
        }
    }

    fn run_listener<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ChannelDisconnect> {
        Box::pin(self.serve_program(inlet, over))
    }

    fn send_message<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        let line = json!({"type": "send", "out": out.id, "conversation": out.conversation, "reply_to": out.reply_to,
            "text": out.markdown, "attachments": attached(out)});
        Box::pin(self.send_and_wait(&out.id, line))
    }

    fn edit_message<'a>(&'a self, of: &'a str, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        let line = json!({"type": "edit", "out": out.id, "of": of, "text": out.markdown});
        Box::pin(self.send_and_wait(&out.id, line))
    }

    fn send_question<'a>(&'a self, asking: &'a QuestionMessage) -> BoxFuture<'a, Delivery> {
        let out = &asking.out;
        let choices: Vec<Value> = asking
            .choices
            .iter()
            .map(|(id, label)| json!({"id": id, "label": label}))
            .collect();
        let line = json!({"type": "ask", "out": out.id, "question": asking.question, "conversation": out.conversation,
            "text": out.markdown, "choices": choices});
        Box::pin(self.send_and_wait(&out.id, line))
    }

    fn fetch_attachment<'a>(&'a self, at: &'a str, max_bytes: u64) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(async move {
            let folder = self.spec.workdir.clone();
            let folder = folder.ok_or("the program has no folder of its own")?;
            // What the program can't read, it doesn't get read by naming it.
            let place = folder.join(at);
            if !self.spec.plan.shows_path(&place, &folder) {
                return Err("the program's box does not show it".to_owned());
            }
            let at = at.to_owned();
            let read = tokio::task::spawn_blocking(move || files::read(&folder, &at, max_bytes)).await;
            read.map_err(|error| error.to_string())?
        })
    }

    fn show_typing<'a>(&'a self, conversation: &'a str) -> BoxFuture<'a, ()> {
        self.try_send_line(&json!({"type": "typing", "conversation": conversation}));
        Box::pin(std::future::ready(()))
    }
}
