//! `clawk send`: sends a message to a running or served agent, over its control socket or a URL.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clawk_client::{AgentAddress, ClientError, Options};
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_proto::RequestId;
use clawk_proto::message::{DELTA, MessagePart, SEND, STEP, SendParams, SendResult, TurnStopCode};
use clawk_secrets::Secret;
use clawk_server::control::SOCKET;
use clawk_server::{ControlClient, ControlError};
use serde_json::{Value, json};

use super::call::read_token;
use crate::config::Config;
use crate::out::{self, Format, TerminalStyle, one_line, sanitize_block};
use crate::state::server::StateConfig;
use crate::state::{Origin, StateLookup};
use crate::{compose, manifest};

/// Longest message on standard input, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Flags of `clawk send`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  clawk send claw.yaml 'What is new?'\n  clawk send claw.yaml 'And since?' --conversation desk\n  git log -5 | clawk send claw.yaml -\n  clawk send ~/.local/state/clawk/hello/control.sock 'Hello' --format json\n  clawk send http://127.0.0.1:8420 'Hello' --token-env CLAW_TOKEN\n\nThe agent must be running: `clawk serve CLAW --stdio`, `clawk serve CLAW --listen ADDR` or `clawk run CLAW`. What waits\nfor a person is answered with `clawk approve` and `clawk deny`."
)]
pub(crate) struct Args {
    /// The agent: its manifest, its state directory, its control socket, or a URL as for `clawk call`
    #[arg(value_name = "CLAW|SOCKET|URL")]
    agent: String,

    /// The message; `-` reads it from standard input
    #[arg(value_name = "TEXT")]
    text: String,

    /// Continue the conversation of this name
    #[arg(long, value_name = "NAME", default_value = "terminal")]
    conversation: String,

    /// A UUID for this message; after a broken connection, send it again with the same id, and it is taken once
    #[arg(long, value_name = "UUID", value_parser = id)]
    request_id: Option<RequestId>,

    /// Seconds to wait for the answer
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,

    /// State directory of the manifest's agent [default: the agent's own]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// The environment variable with the token for a URL
    #[arg(long, value_name = "NAME")]
    token_env: Option<String>,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

fn id(text: &str) -> Result<RequestId, String> {
    RequestId::parse(text).map_err(|e| e.to_string())
}

/// Sends the message and prints the answer as it arrives.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let way = match AgentAddress::is_url(&args.agent) {
        true => SendRoute::Url(
            AgentAddress::parse(&args.agent)?,
            read_token(args.token_env.as_deref())?,
        ),
        false => SendRoute::State(state_of(args, config)?),
    };
    let text = read_text(args)?;
    let request_id = match &args.request_id {
        Some(id) => id.clone(),
        None => RequestId::from(SystemClock::default().new_uuid()),
    };
    let asked = SendParams {
        conversation: Some(args.conversation.clone()),
        parts: None,
        text: Some(text),
        request_id: request_id.clone(),
        stream: args.format == Format::Human,
    };
    let mut shown = SendProgress::new(&asked);
    let patience = Duration::from_secs(args.timeout);
    let answer = compose::build_runtime()?.block_on(async {
        match way {
            SendRoute::State(state) => {
                send_message(&state, &asked, patience, &mut shown)
                    .await
                    .map_err(|error| {
                        let taken = matches!(error, ControlError::Silent(_) | ControlError::Io(_));
                        (anyhow::Error::new(error), taken)
                    })
            }
            SendRoute::Url(target, token) => send_to(target, token, &asked, patience, &mut shown)
                .await
                .map_err(|error| {
                    let taken = error.may_have_been_taken();
                    (anyhow::Error::new(error), taken)
                }),
        }
    });
    let answer = match answer {
        Ok(answer) => answer,
        // The agent may have received the message. Asking again with the same id returns its answer and never repeats it.
        Err((error, true)) => {
            let again = format!(
                "the agent may have taken the message; `--request-id {request_id}` asks for its answer"
            );
            return Err(error.context(again));
        }
        Err((error, false)) => return Err(error),
    };
    if args.format == Format::Json {
        out::print_json(&answer)?;
    }
    let told: SendResult = serde_json::from_value(answer).context("the agent's answer can't be read")?;
    if args.format == Format::Human {
        print_answer(&told, shown.whole)?;
    }
    Ok(match told.stop {
        TurnStopCode::Answered => ExitCode::SUCCESS,
        TurnStopCode::Refused
        | TurnStopCode::Cancelled
        | TurnStopCode::Budget
        | TurnStopCode::Stopped
        | TurnStopCode::Failed => ExitCode::FAILURE,
    })
}

/// How the agent is reached.
enum SendRoute {
    State(PathBuf),
    Url(AgentAddress, Option<Secret>),
}

/// Returns the state directory that the argument names.
fn state_of(args: &Args, config: Option<&Path>) -> Result<PathBuf> {
    let path = Path::new(&args.agent);
    if path.file_name().is_some_and(|name| name == SOCKET) {
        return Ok(path.parent().map(Path::to_owned).unwrap_or_default());
    }
    if path.is_dir() && crate::state::kept::holds_state(path) {
        return Ok(path.to_owned());
    }
    let config = Config::load(config, Some(path))?;
    let (manifest, _, _) = manifest::read(path, &config)?;
    let configured = config.settings.state.as_ref().and_then(StateConfig::dir);
    let wanted = StateLookup {
        flag: args.state.as_deref(),
        configured,
        agent: &manifest.metadata.name,
        origin: &Origin::of_file(path)?,
    };
    wanted.dir()
}

fn read_text(args: &Args) -> Result<String> {
    if args.text != "-" {
        return Ok(args.text.clone());
    }
    let mut text = String::new();
    io::stdin()
        .lock()
        .take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .context("can't read standard input")?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_BYTES {
        bail!("the message on standard input is longer than {MAX_BYTES} bytes");
    }
    Ok(text)
}

async fn send_message(
    state: &Path,
    asked: &SendParams,
    patience: Duration,
    shown: &mut SendProgress,
) -> Result<Value, ControlError> {
    let mut client = ControlClient::connect(state).await?;
    let hello = json!({
        "protocolVersion": "0.3.0",
        "clientInfo": { "name": "clawk send", "version": env!("CARGO_PKG_VERSION") },
        "manifest": { "kind": "Claw", "metadata": { "name": "any" } },
        "capabilities": { "messages": {} },
    });
    client.call_method("claw.initialize", &hello).await?;
    let params = serde_json::to_value(asked).map_err(|e| ControlError::Malformed(e.to_string()))?;
    client
        .call_with_notices(SEND, &params, patience, |method, params| {
            shown.handle_notice(method, params)
        })
        .await
}

/// Sends the message to a URL.
async fn send_to(
    target: AgentAddress,
    token: Option<Secret>,
    asked: &SendParams,
    patience: Duration,
    shown: &mut SendProgress,
) -> Result<Value, ClientError> {
    let options = Options {
        token,
        capabilities: json!({ "messages": {} }),
        patience,
        ..Options::for_client("clawk send")
    };
    let client = clawk_client::AgentClient::connect(target, options).await?;
    let mut notices = client.subscribe_notices();
    let params = serde_json::to_value(asked).map_err(|e| ClientError::Malformed(e.to_string()))?;
    let answer = {
        let asking = client.call(SEND, params);
        tokio::pin!(asking);
        loop {
            tokio::select! {
                biased;
                Ok(notice) = notices.recv() => shown.handle_notice(&notice.method, &notice.params),
                answer = &mut asking => break answer,
            }
        }
    };
    client.close().await;
    answer
}

/// The display of a running turn: steps on standard error; the answer's text as it arrives, if it goes to a terminal.
#[derive(Debug)]
struct SendProgress {
    live: bool,
    /// A line of the answer is incomplete.
    words: bool,
    /// The complete answer has been shown.
    whole: bool,
}

impl SendProgress {
    fn new(asked: &SendParams) -> Self {
        let live = asked.stream && io::stdout().is_terminal();
        Self {
            live,
            words: false,
            whole: live,
        }
    }

    fn handle_notice(&mut self, method: &str, params: &Value) {
        let given = |name: &str| params.get(name).and_then(Value::as_str).unwrap_or_default();
        let text = |name: &str| -> String { one_line(given(name)).into() };
        // silent-ok: with the terminal closed there is no reader
        let _shown = match (method, params.get("step").and_then(Value::as_str)) {
            (DELTA, _) if self.live => {
                self.words = true;
                let mut to = io::stdout().lock();
                write!(to, "{}", sanitize_block(given("text"))).and_then(|()| to.flush())
            }
            (STEP, Some("said")) if self.live => {
                let rest = sanitize_block(if self.words { "" } else { given("text") });
                self.words = false;
                writeln!(io::stdout().lock(), "{rest}")
            }
            (STEP, Some(name)) => {
                self.whole &= name != "missed";
                match format_step(name, params, text) {
                    Some(line) => {
                        let gap = if std::mem::take(&mut self.words) { "\n" } else { "" };
                        writeln!(
                            io::stderr().lock(),
                            "{gap}{}",
                            TerminalStyle::for_stderr().dim(&line)
                        )
                    }
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        };
    }
}

fn format_step(name: &str, params: &Value, text: impl Fn(&str) -> String) -> Option<String> {
    match name {
        "decided" => Some(format!("  {}: {}", text("tool"), text("verdict"))),
        "finished" => Some(format!("  {}: done", text("tool"))),
        "asking" => {
            let question = params.get("question")?;
            let of = |name: &str| one_line(question.get(name).and_then(Value::as_str).unwrap_or_default());
            Some(format!(
                "  {} waits for a person: `clawk approve {}`",
                of("tool"),
                of("request_id")
            ))
        }
        "retrying" => Some(format!("  {}: {}", text("provider"), text("reason"))),
        "warned" => Some(format!("  {}", text("text"))),
        "missed" => Some("  (some of it was not shown: it was read too slowly)".to_owned()),
        // The answer arrives in pieces, and complete at the end.
        _ => None,
    }
}

/// Prints the answer, unless all of it was `shown` before.
fn print_answer(told: &SendResult, shown: bool) -> Result<()> {
    for part in told.parts.iter().filter(|_| !shown) {
        if let MessagePart::Text { text } = part {
            out::lines(&sanitize_block(text))?;
        }
    }
    let line = told.record.as_ref().and_then(|record| record.get("text"));
    if let Some(line) = line.and_then(Value::as_str) {
        let line = format!("  {}", one_line(line));
        // silent-ok: with the terminal closed there is no reader
        let _shown = writeln!(io::stderr().lock(), "{}", TerminalStyle::for_stderr().dim(&line));
    }
    match (told.stop, &told.reason) {
        (TurnStopCode::Answered, _) => {}
        (TurnStopCode::Refused, _) => out::print_note("the model declined to answer"),
        (TurnStopCode::Cancelled, _) => out::print_note("the turn was cancelled"),
        (TurnStopCode::Budget | TurnStopCode::Stopped | TurnStopCode::Failed, reason) => {
            out::print_note(format!(
                "the turn could not be finished: {}; `clawk dead-letters` keeps the message",
                one_line(reason.as_deref().unwrap_or("no reason was given"))
            ))
        }
    }
    Ok(())
}
