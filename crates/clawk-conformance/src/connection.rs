//! One connection to an agent: sends and receives lines, and records both.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clawk_client::{AgentAddress, ClientError, OpenTransport};
use clawk_secrets::Secret;
use serde_json::Value;
use tokio::sync::mpsc;

/// Longest line of an agent, in bytes. A longer one is a fault.
const LONGEST_LINE: u64 = 8 * 1024 * 1024;
/// Amount of standard error that is kept for reports, in bytes.
const KEPT_STDERR: usize = 4096;
const FAREWELL: Duration = Duration::from_secs(5);

/// The record's lines: `>` sent, `<` received.
pub(super) type ConversationRecord = Vec<String>;

/// An open connection. Dropping it ends the agent.
pub(super) struct AgentConnection {
    writer: Option<Box<dyn Write + Send>>,
    lines: Receiver<Vec<u8>>,
    /// Received messages that no step has claimed.
    unclaimed: Vec<Value>,
    record: ConversationRecord,
    child: Option<Child>,
    /// The thread that transports messages of an agent at a URL.
    carrier: Option<thread::JoinHandle<()>>,
    /// Time limit for the agent's exit after its input has ended.
    pub(super) farewell: Duration,
    stderr: Arc<Mutex<Vec<u8>>>,
}

/// Why no message was received.
#[derive(Debug)]
pub(super) enum ReceiveFailure {
    /// No matching message arrived in time.
    Deadline,
    /// The agent closed its output.
    Gone,
    /// The agent sent a line that is not a protocol message.
    Noise(String),
}

impl AgentConnection {
    /// Starts `command` and uses its standard streams.
    pub(super) fn start(mut command: Command) -> Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .spawn()
            .with_context(|| format!("`{program}` could not be started"))?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            anyhow::bail!("`{program}` has no standard streams");
        };
        let mut connection = Self::from_streams(stdin, stdout);
        connection.child = Some(child);
        let kept = Arc::clone(&connection.stderr);
        thread::spawn(move || keep_tail(stderr, &kept));
        Ok(connection)
    }

    /// Connects to a served agent. For a queue it uses a unique client name.
    pub(super) fn connect_remote(target: AgentAddress, token: Option<Secret>) -> Result<Self> {
        let (sender, lines) = sync_channel(1024);
        let (to, out) = mpsc::channel(1024);
        let (tell, opened) = sync_channel(1);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let carrier =
            thread::spawn(move || runtime.block_on(carry_messages(target, token, out, sender, tell)));
        opened.recv().context("the connection was given up")??;
        let mut connection = Self::from_streams(WireLineWriter { to, line: Vec::new() }, std::io::empty());
        connection.lines = lines;
        connection.carrier = Some(carrier);
        Ok(connection)
    }

    /// Uses any pair of streams.
    pub(super) fn from_streams(
        writer: impl Write + Send + 'static,
        reader: impl Read + Send + 'static,
    ) -> Self {
        let (sender, lines) = sync_channel(1024);
        thread::spawn(move || read_lines(reader, &sender));
        Self {
            writer: Some(Box::new(writer)),
            lines,
            unclaimed: Vec::new(),
            record: Vec::new(),
            child: None,
            carrier: None,
            farewell: FAREWELL,
            stderr: Arc::default(),
        }
    }

    /// Sends one line. If the agent is gone, that is noticed when its answer is awaited.
    pub(super) fn send_line(&mut self, line: &str) {
        self.record.push(format!("> {line}"));
        if let Some(writer) = &mut self.writer
            && writer
                .write_all(format!("{line}\n").as_bytes())
                .and_then(|()| writer.flush())
                .is_err()
        {
            self.writer = None;
        }
    }

    /// Waits for the first message that `wanted` accepts. Other messages are kept for later.
    pub(super) fn wait_for_message(
        &mut self,
        until: Instant,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value, ReceiveFailure> {
        if let Some(at) = self.unclaimed.iter().position(&wanted) {
            return Ok(self.unclaimed.remove(at));
        }
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = match self.lines.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return Err(ReceiveFailure::Deadline),
                Err(RecvTimeoutError::Disconnected) => return Err(ReceiveFailure::Gone),
            };
            let text = String::from_utf8_lossy(&line);
            self.record.push(format!("< {text}"));
            let message = read_message(&text).map_err(ReceiveFailure::Noise)?;
            if wanted(&message) {
                return Ok(message);
            }
            self.unclaimed.push(message);
        }
    }

    /// Returns a response that no step waited for.
    pub(super) fn stray_response(&self) -> Option<&Value> {
        self.unclaimed.iter().find(|message| is_response(message))
    }

    /// Returns what was sent and received so far, and the end of standard error.
    pub(super) fn record(&self) -> ConversationRecord {
        let mut record = self.record.clone();
        let stderr = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&stderr);
        record.extend(text.lines().map(|line| format!("! {line}")));
        record
    }
}

impl Drop for AgentConnection {
    /// Ends the input, which requests a normal shutdown (R4). An agent that does not exit is killed, so that its state is released.
    fn drop(&mut self) {
        self.writer = None;
        if let Some(carrier) = self.carrier.take() {
            // The carrier disconnects within its own deadline before the next connection opens.
            let _ended = carrier.join(); // silent-ok: a panic in there was told by itself
        }
        let Some(child) = &mut self.child else { return };
        let until = Instant::now() + self.farewell;
        while Instant::now() < until {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        // silent-ok: the process just exited by itself
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Writes lines as messages of a transport.
struct WireLineWriter {
    to: mpsc::Sender<String>,
    line: Vec<u8>,
}

impl Write for WireLineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8(line).map_err(io::Error::other)?;
        let sent = self.to.blocking_send(text.trim_end_matches('\n').to_owned());
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

/// Transports messages in both directions until one side ends.
async fn carry_messages(
    target: AgentAddress,
    token: Option<Secret>,
    mut out: mpsc::Receiver<String>,
    lines: SyncSender<Vec<u8>>,
    tell: SyncSender<Result<(), ClientError>>,
) {
    let name = format!("conformance-{}", clawk_client::request_id());
    let mut wire = match OpenTransport::open(&target, &name, token.as_ref()).await {
        Ok(wire) => wire,
        Err(error) => {
            // silent-ok: the caller no longer waits
            let _told = tell.send(Err(error));
            return;
        }
    };
    // silent-ok: the caller no longer waits
    let _told = tell.send(Ok(()));
    loop {
        tokio::select! {
            message = out.recv() => match message {
                Some(message) => {
                    if wire.send(message).await.is_err() {
                        return;
                    }
                }
                None => return wire.close().await,
            },
            heard = wire.receive() => match heard {
                Ok(text) => {
                    if lines.send(text.into_bytes()).is_err() {
                        return wire.close().await;
                    }
                }
                Err(error) => return tracing::debug!(%error, "the connection has ended"),
            },
        }
    }
}

/// Returns whether the message has an id and no method.
pub(super) fn is_response(message: &Value) -> bool {
    message.get("id").is_some() && message.get("method").is_none()
}

fn read_lines(reader: impl Read, sender: &SyncSender<Vec<u8>>) {
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(read) if read > 0 => {}
            Ok(_) | Err(_) => return, // silent-ok: the end of the conversation shows as a closed channel
        }
        while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            line.pop();
        }
        if sender.send(line).is_err() {
            return;
        }
    }
}

fn keep_tail(mut reader: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 1024];
    while let Ok(read @ 1..) = reader.read(&mut buffer) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(buffer.get(..read).unwrap_or_default());
        let surplus = kept.len().saturating_sub(KEPT_STDERR);
        kept.drain(..surplus);
    }
}

/// Parses a line of an agent. It must be one JSON-RPC 2.0 message: a response with either `result` or `error`, or a message with a
/// method.
fn read_message(text: &str) -> Result<Value, String> {
    let shown: String = text.chars().take(200).collect();
    let message: Value =
        serde_json::from_str(text).map_err(|error| format!("`{shown}` is not valid JSON: {error}"))?;
    let has = |key| message.get(key).is_some();
    if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(format!("`{shown}` does not say `\"jsonrpc\": \"2.0\"`"));
    }
    let sound = if has("method") {
        message.get("method").is_some_and(Value::is_string) && !has("result") && !has("error")
    } else {
        has("id") && (has("result") != has("error"))
    };
    if sound {
        Ok(message)
    } else {
        Err(format!("`{shown}` is neither a response nor a notification"))
    }
}
