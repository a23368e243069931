//! `clawk stop`: the emergency stop. It reaches a running agent over its control socket. If none runs, it is written into the state
//! directory, so that the next start is stopped.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use crate::state::kept::StateDir;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use clawk_kernel::time::SystemClock;
use clawk_kernel::{KnownPerson, stop};
use clawk_proto::SessionId;
use clawk_secrets::env;
use clawk_server::{ControlClient, ControlError};
use serde_json::{Value, json};

use crate::out::{self, Format, TerminalStyle};
use crate::{compose, state};

/// Flags of `clawk stop`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  clawk stop --all --reason 'it deletes things'\n  clawk stop --all --level frozen --agent hello\n  clawk stop --session 019ab9e2-6f4c-7d31-9a55-0d6d3c9c2f10 --level no-network\n  clawk stop --status\n  clawk stop --lift --all"
)]
pub(crate) struct Args {
    /// Stop the whole agent; without --agent and --state, every agent that has run here
    #[arg(long)]
    all: bool,

    /// Stop one session
    #[arg(long, value_name = "ID", conflicts_with = "all")]
    session: Option<SessionId>,

    /// What to stop: the network; all tools; all tools and the model (messages wait)
    #[arg(long, value_enum, default_value_t = Level::NoTools)]
    level: Level,

    /// The reason; it is recorded and told with every refusal
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Lift the stop of the whole agent, or of --session
    #[arg(long)]
    lift: bool,

    /// Show what is stopped
    #[arg(long, conflicts_with_all = ["lift", "all", "session"])]
    status: bool,

    #[command(flatten)]
    which: state::StateSelector,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Level {
    NoNetwork,
    NoTools,
    Frozen,
}

impl From<Level> for stop::Level {
    fn from(level: Level) -> Self {
        match level {
            Level::NoNetwork => Self::NoNetwork,
            Level::NoTools => Self::NoTools,
            Level::Frozen => Self::Frozen,
        }
    }
}

/// Runs the command. Exit code 1 if there was no stop to lift.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if !(args.all || args.session.is_some() || args.lift || args.status) {
        bail!("say what to stop: `--all`, or `--session ID`; `--status` says what is stopped");
    }
    let dirs = match args.all {
        true => args.which.find_dirs()?,
        false => vec![args.which.find_dir()?],
    };
    match dirs.as_slice() {
        [dir] => send_order(dir, args),
        several => send_to_all(several, args),
    }
}

/// Stops every agent, or lifts every stop. One that can't be reached keeps no other from it.
fn send_to_all(dirs: &[PathBuf], args: &Args) -> Result<ExitCode> {
    let (mut answers, mut faults) = (Vec::new(), Vec::new());
    let mut nothing = true;
    for dir in dirs {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match order_agent(dir, args) {
            Ok(answer) => {
                nothing &= answer.get("lifted") == Some(&Value::Bool(false));
                answers.push((name, answer));
            }
            Err(error) => faults.push((name, format!("{error:#}"))),
        }
    }
    if args.format == Format::Json {
        let agents: Vec<Value> = answers
            .iter()
            .map(|(name, answer)| json!({"agent": name, "answer": answer}))
            .chain(
                faults
                    .iter()
                    .map(|(name, fault)| json!({"agent": name, "error": fault})),
            )
            .collect();
        out::print_json(&json!({ "agents": agents }))?;
    } else {
        let paint = TerminalStyle::for_stdout();
        for (name, answer) in &answers {
            out::print_line(paint.bold(&out::one_line(name)))?;
            print_answer(answer)?;
        }
        for (name, fault) in &faults {
            out::print_note(out::one_line(&format!("`{name}` was not reached: {fault}")));
        }
    }
    if !faults.is_empty() {
        bail!("{} of {} agents were not reached", faults.len(), dirs.len());
    }
    Ok(ExitCode::from(u8::from(nothing)))
}

/// Orders one agent and prints its answer.
fn send_order(dir: &Path, args: &Args) -> Result<ExitCode> {
    let answer = order_agent(dir, args)?;
    let nothing = answer.get("lifted") == Some(&Value::Bool(false));
    if args.format == Format::Json {
        out::print_json(&answer)?;
    } else {
        print_answer(&answer)?;
    }
    Ok(if nothing {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Gives the order to the running agent, or writes it for the next start.
fn order_agent(dir: &Path, args: &Args) -> Result<Value> {
    let (method, params) = if args.status {
        ("clawk.stop.status", json!({}))
    } else if args.lift {
        ("clawk.stop.lift", json!({"session": args.session}))
    } else {
        let level: stop::Level = args.level.into();
        (
            "clawk.stop",
            json!({"session": args.session, "level": level, "reason": args.reason}),
        )
    };
    compose::build_runtime()?.block_on(async {
        match ControlClient::connect(dir).await {
            Ok(mut client) => client
                .call_method(method, &params)
                .await
                .context("the running agent refused"),
            Err(ControlError::NotRunning { .. }) => stop_offline(dir, args).await,
            Err(error) => Err(error.into()),
        }
    })
}

/// No agent runs with this state, so the stop is written into its journal for the next start.
async fn stop_offline(dir: &Path, args: &Args) -> Result<Value> {
    if !crate::state::kept::holds_state(dir) {
        bail!("there is no agent's state in `{}`", dir.display());
    }
    let order = if args.status {
        None
    } else if args.lift {
        Some(stop::StopOrder::Lift {
            session: args.session,
        })
    } else {
        Some(stop::StopOrder::Engage {
            level: args.level.into(),
            session: args.session,
            reason: args.reason.clone(),
        })
    };
    let who = env::non_empty("USER").unwrap_or_else(|| "unknown".to_owned());
    let person = KnownPerson::admin("offline", &format!("local user {who}"));
    let state = StateDir::open(dir, crate::state::kept::Options::default())?;
    let clock = || Arc::new(SystemClock::default());
    let before = stop::write_offline_order(state.journal(), clock(), None, &person).await?;
    let stops = stop::write_offline_order(state.journal(), clock(), order, &person).await?;
    state.close();
    let mut answer = json!({"stops": stops, "running": false});
    if let (true, Value::Object(answer)) = (args.lift, &mut answer) {
        answer.insert("lifted".to_owned(), json!(before.len() > stops.len()));
    }
    Ok(answer)
}

fn print_answer(answer: &Value) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let stops = answer.get("stops").and_then(Value::as_array);
    let stops = stops.map(Vec::as_slice).unwrap_or_default();
    match answer.get("lifted").and_then(Value::as_bool) {
        Some(true) => out::print_line("lifted")?,
        Some(false) => out::print_note("nothing to lift: it was not stopped"),
        None => {}
    }
    if stops.is_empty() {
        out::print_line("nothing is stopped")?;
    }
    for stop in stops {
        let text = |member: &str| out::one_line(stop.get(member).and_then(Value::as_str).unwrap_or_default());
        let what = match text("session") {
            session if session.is_empty() => "the agent".to_owned(),
            session => format!("session {session}"),
        };
        let reason = match text("reason") {
            reason if reason.is_empty() => String::new(),
            reason => format!(": {reason}"),
        };
        let line = format!(
            "{what} is stopped ({}) by {} since {}{reason}",
            text("level"),
            text("by"),
            text("at")
        );
        out::print_line(paint.red(&line))?;
    }
    Ok(())
}
