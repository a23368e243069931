//! `clawk run`: talks to an agent in the terminal.

mod commands;
mod conversation;
pub(crate) mod dry;

use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use clawk_kernel::{EntryPoint, ForkPoint, TurnEnd};
use clawk_proto::MessageId;

use crate::compose::{self, Agent};
use crate::config::AllowOutsideArgs;
use crate::manifest;
use crate::out::{self, TerminalStyle};
use crate::terminal::{can_ask, input::LineEditor};
use crate::usage::quote_word;
use conversation::{AnswerScript, Conversation, PromptAction, TurnWaitOutcome, question_channel};

/// Exit code after Ctrl-C during a single requested turn.
const INTERRUPTED: u8 = 130;
/// Exit code after SIGTERM during a turn.
const TERMINATED: u8 = 143;

/// Delay before a message says that clawk waits for standard input.
const WAITING_FOR_INPUT: std::time::Duration = std::time::Duration::from_secs(3);

/// Longest message from standard input, in bytes.
const MAX_MESSAGE_BYTES: u64 = 1024 * 1024;

/// Flags of `clawk run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The manifest, or its folder
    #[arg(value_name = "CLAW", default_value = ".", value_parser = manifest::manifest_path_parser())]
    pub(crate) manifest: PathBuf,

    /// Run one turn with this message, then end; what is piped in follows it
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) message: Option<String>,

    /// How clawk answers questions whether a call may run
    #[arg(long, value_enum, default_value_t = ApproveMode::Ask)]
    pub(crate) approve: ApproveMode,

    /// State directory; default `$XDG_STATE_HOME/clawk/<agent>`
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,

    /// Continue an earlier session: its id, or `last`
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,

    /// Agree to the programs that the folder's files would run here, without a question
    #[arg(long)]
    pub(crate) trust: bool,

    #[command(flatten)]
    pub(crate) dry: dry::DryRunArgs,

    #[command(flatten)]
    pub(crate) outside: AllowOutsideArgs,
}

const EXAMPLES: &str = "\
Examples:
  clawk run claw.yaml                          chat; /help lists what can be typed
  clawk run claw.yaml -m 'Sum up notes.txt'    one turn
  git diff | clawk run claw.yaml               standard input is one message
  git diff | clawk run claw.yaml -m 'Review this'
                                               the question, then what is piped in; `< /dev/null` for none of it
  clawk run claw.yaml --session last           go on where you left off
  clawk run claw.yaml -m 'Tidy up' --dry-run --report plan.json
                                               predict every change, make none
  clawk run claw.yaml --plan plan.json         approve what was predicted, and do it

The agent's words go to standard output, everything else to standard error.

Before the first turn, a sandbox of each level that the agent's tools need is started and looked at from inside. One
that this host can't give keeps the agent from starting; `clawk doctor` says more.";

/// How questions are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ApproveMode {
    /// Ask in the terminal; without a terminal the answer is no
    Ask,
    /// Answer no to every question
    Never,
}

/// Runs the conversation and ends the agent normally.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let runtime = compose::build_runtime()?;
    runtime.block_on(run_conversation(args, config, None))
}

/// Sends a recorded message again, with the rights of its original sender. Its answer also goes to the conversation of the message.
/// `accepted`: the payload of its `ckp.message.accepted` event.
pub(crate) fn run_again(args: &Args, config: Option<&Path>, accepted: &str) -> Result<ExitCode> {
    let runtime = compose::build_runtime()?;
    runtime.block_on(run_conversation(args, config, Some(accepted)))
}

/// Runs one turn from a step of an earlier session, which `point` finds in the state directory.
pub(crate) fn run_fork(
    args: &Args,
    config: Option<&Path>,
    point: impl FnOnce(&Path) -> Result<ForkPoint>,
) -> Result<ExitCode> {
    compose::build_runtime()?.block_on(async {
        let request = compose::Request {
            manifest: &args.manifest,
            config,
            state: args.state.as_deref(),
            outside: args.outside,
            trust: args.trust,
            dry: None,
            trial: None,
        };
        let (ask, asked) = question_channel();
        let agent = compose::start_agent(&request, can_ask().then_some(ask)).await?;
        let outcome = fork_turn(args, &agent, asked, point).await;
        agent.close("clawk trace fork has ended").await;
        let (code, session) = outcome?;
        say_proof(&agent, session).await?;
        Ok(code)
    })
}

async fn fork_turn(
    args: &Args,
    agent: &Agent,
    asked: tokio::sync::mpsc::Receiver<conversation::PendingElicitation>,
    point: impl FnOnce(&Path) -> Result<ForkPoint>,
) -> Result<(ExitCode, clawk_proto::SessionId)> {
    let point = point(&agent.state_dir)?;
    let (session, goes_on) = agent
        .kernel
        .fork_session(point, EntryPoint::Cli, args.message.is_none())
        .await?;
    let input = if can_ask() {
        Some(LineEditor::start(agent.history_file()?)?)
    } else {
        None
    };
    let mut conversation = Conversation::new(agent, session, input, asked, args.approve)?;
    let end = match &args.message {
        Some(text) => conversation.run_turn(text.clone()).await?,
        None if goes_on => conversation.finish_turn().await?,
        None => bail!("no turn was under way there; say what comes next with `-m TEXT`"),
    };
    Ok((code_of(&end), conversation.end_conversation().await))
}

async fn run_conversation(args: &Args, config: Option<&Path>, again: Option<&str>) -> Result<ExitCode> {
    if args.dry.dry_run {
        return dry::run(args, config).await;
    }
    let plan = args.dry.load_approved_plan(&args.manifest)?;
    let message = match &plan {
        Some((said, _)) => Some(said.clone()),
        None if again.is_some() => args.message.clone(),
        None => one_message(args)?,
    };
    let request = compose::Request {
        manifest: &args.manifest,
        config,
        state: args.state.as_deref(),
        outside: args.outside,
        trust: args.trust,
        dry: None,
        trial: None,
    };
    let (ask, asked) = question_channel();
    let agent = match compose::start_agent(&request, can_ask().then_some(ask)).await {
        Ok(agent) => agent,
        Err(error) => return Err(name_send(error, &args.manifest)),
    };
    let chatting = message.is_none() && io::stdin().is_terminal();
    let input = if can_ask() {
        Some(LineEditor::start(agent.history_file()?)?)
    } else {
        None
    };
    print_greeting(&agent, chatting);
    let message = message.or_else(|| opening_message(&agent, chatting));
    if message.is_none() && !chatting {
        agent.close("nothing was said").await;
        bail!("standard input is empty; say something with `-m TEXT`, or run it in a terminal to chat");
    }
    told_since(&agent, &[]).await?;
    let session = agent.open_session(args.session.as_deref()).await?;
    let mut conversation = Conversation::new(&agent, session, input, asked, args.approve)?;
    if let Some((_, approved)) = plan {
        conversation.script = AnswerScript::Plan(approved);
    }
    let code = match message {
        Some(text) if again.is_some() => {
            let accepted = again.unwrap_or_default();
            code_of(&conversation.turn_again(accepted, text).await?)
        }
        Some(text) if !chatting => one_turn(&mut conversation, text).await?,
        first => run_chat(&mut conversation, first).await?,
    };
    let shown = conversation.shown_messages();
    let session = conversation.end_conversation().await;
    told_since(&agent, &shown).await?;
    agent.close("clawk run has ended").await;
    say_proof(&agent, session).await?;
    Ok(code)
}

/// Names `clawk send` if another process serves the agent.
fn name_send(error: anyhow::Error, manifest: &Path) -> anyhow::Error {
    match crate::state::kept::lock_holder(&error) {
        Some(holder) => {
            let claw = quote_word(&manifest.display().to_string());
            error.context(format!(
                "the agent runs already, in {holder}; say it there: `clawk send {claw} TEXT`"
            ))
        }
        None => error,
    }
}

/// Returns the single message of `-m` or of a standard input that is not a terminal; `None` means a chat, or no input.
fn one_message(args: &Args) -> Result<Option<String>> {
    if let Some(text) = &args.message {
        if text.trim().is_empty() {
            bail!("the message is empty");
        }
        return Ok(Some(match read_piped_input()? {
            Some(data) => format!("{text}\n\n{data}"),
            None => text.clone(),
        }));
    }
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    standard_input()
}

/// Returns what a pipe or a file on standard input holds, in addition to a message on the command line. A terminal and `/dev/null`
/// hold nothing.
fn read_piped_input() -> Result<Option<String>> {
    let stat = match rustix::fs::fstat(io::stdin()) {
        Ok(stat) => stat,
        Err(_) => return Ok(None), // silent-ok: it is closed
    };
    match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::Fifo | rustix::fs::FileType::RegularFile | rustix::fs::FileType::Socket => {}
        _ => return Ok(None),
    }
    let (read, waits) = std::sync::mpsc::sync_channel::<()>(1);
    let hint = std::thread::spawn(move || {
        if waits.recv_timeout(WAITING_FOR_INPUT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            out::print_note("reading standard input, which follows the message (`< /dev/null` for none)");
        }
    });
    let text = standard_input();
    drop(read);
    let _ = hint.join(); // silent-ok: it only prints
    text
}

/// Reads all of standard input as one text, without a byte order mark and with plain line ends; `None` if it is empty.
fn standard_input() -> Result<Option<String>> {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .take(MAX_MESSAGE_BYTES + 1)
        .read_to_end(&mut bytes)
        .context("can't read standard input")?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_MESSAGE_BYTES {
        bail!("the message on standard input is longer than {MAX_MESSAGE_BYTES} bytes");
    }
    let text = String::from_utf8(bytes).context("the message on standard input is not UTF-8")?;
    let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    Ok(Some(text.trim_end().to_owned()).filter(|text| !text.is_empty()))
}

/// Returns `run.opening` of `clawk.toml`, which is sent if the user gives no message.
fn opening_message(agent: &Agent, chatting: bool) -> Option<String> {
    let text = agent.settings.run.opening.clone()?;
    let hint = if chatting {
        " (run.opening in clawk.toml)"
    } else {
        ""
    };
    out::print_note(format!(
        "{} {}{}",
        TerminalStyle::for_stderr().bold("you ▸"),
        text,
        TerminalStyle::for_stderr().dim(hint)
    ));
    Some(text)
}

fn print_greeting(agent: &Agent, chatting: bool) {
    let paint = TerminalStyle::for_stderr();
    for line in &agent.notes {
        out::print_note(paint.dim(line));
    }
    if chatting {
        let name = &agent.manifest.identity.name;
        out::print_note(format!(
            "{} {}",
            paint.bold(name),
            paint.dim("· /help for help, Ctrl-D to leave")
        ));
    }
}

/// Prints the answers of turns that continued by themselves, once. `shown`: messages whose answers the person has already read.
/// They are recorded in the background, so the journal may still list them.
async fn told_since(agent: &Agent, shown: &[MessageId]) -> Result<()> {
    let paint = TerminalStyle::for_stderr();
    let answers = agent
        .kernel
        .undelivered_answers(clawk_kernel::EntryPoint::Cli.name())
        .await?;
    for answer in answers
        .into_iter()
        .filter(|answer| !shown.contains(&answer.message))
    {
        let session = answer.session;
        let text = match &answer.text {
            Ok(text) => {
                let head = format!(
                    "the turn that was cut off in session {session} was answered at {}:",
                    answer.at
                );
                format!("{}\n{}", paint.bold(&head), out::sanitize_block(text))
            }
            Err(why) => {
                let head = format!(
                    "the turn that was cut off in session {session} failed at {}:",
                    answer.at
                );
                format!("{} {}", paint.red(&head), out::one_line(why))
            }
        };
        out::notes(&text);
        agent.kernel.mark_delivered(session, answer.message).await?;
    }
    Ok(())
}

async fn one_turn(conversation: &mut Conversation<'_>, text: String) -> Result<ExitCode> {
    Ok(code_of(&conversation.run_turn(text).await?))
}

fn code_of(end: &TurnWaitOutcome) -> ExitCode {
    match end {
        TurnWaitOutcome::Turn(TurnEnd::Answered) => ExitCode::SUCCESS,
        TurnWaitOutcome::Turn(TurnEnd::Cancelled) => ExitCode::from(INTERRUPTED),
        TurnWaitOutcome::Turn(TurnEnd::Failed(_)) => ExitCode::FAILURE,
        TurnWaitOutcome::Terminated => ExitCode::from(TERMINATED),
    }
}

async fn run_chat(conversation: &mut Conversation<'_>, first: Option<String>) -> Result<ExitCode> {
    let mut said = first;
    loop {
        let text = match said.take() {
            Some(text) => text,
            None => match conversation.next().await? {
                PromptAction::Say(text) => text,
                PromptAction::Done => continue,
                PromptAction::Leave => return Ok(ExitCode::SUCCESS),
            },
        };
        // A refused message is reported, and the conversation continues.
        match conversation.run_turn(text).await {
            Ok(TurnWaitOutcome::Terminated) => return Ok(ExitCode::from(TERMINATED)),
            Ok(TurnWaitOutcome::Turn(_)) => {}
            Err(error) if conversation.has_ended() => return Err(error),
            Err(error) => out::print_note(format!("{} {error:#}", TerminalStyle::for_stderr().red("error:"))),
        }
    }
}

/// Prints the last line: whether the record is complete, and how to view it.
async fn say_proof(agent: &Agent, session: clawk_proto::SessionId) -> Result<()> {
    let paint = TerminalStyle::for_stderr();
    let proof = agent.chain_proof(session)?;
    let verdict = if proof.valid {
        paint.green("chain valid")
    } else {
        paint.red("CHAIN BROKEN")
    };
    out::print_note(format!(
        "{} {} events, {verdict}, session {session}",
        paint.bold("trace:"),
        proof.events
    ));
    if let Some(fault) = &proof.fault {
        out::print_note(format!("       {fault}"));
    }
    // Use the program's name as it was started, so that the line also works after `cargo run`.
    let program = std::env::args().next().unwrap_or_else(|| "clawk".to_owned());
    let look = format!(
        "{program} trace show --state {} --session {session}",
        agent.state_dir.display()
    );
    out::print_note(paint.dim(&format!("       look at it: {look}")));
    if !proof.valid {
        bail!("the trace of this session does not verify");
    }
    Ok(())
}
