//! `clawk approvals`, `clawk approve`, `clawk deny`: lists the approval requests of a running agent, and sends a person's answer.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clawk_proto::{Digest, RequestId};
use clawk_server::{ControlClient, ControlError};
use serde_json::{Value, json};

use crate::out::{self, Format, TerminalStyle};
use crate::{compose, state};

mod past;

/// Flags of `clawk approvals`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  clawk approvals\n  clawk approvals --agent hello --format json\n  clawk approvals show 550e8400-e29b-41d4-a716-446655440000\n  clawk approvals --granted\n  clawk approvals --revoke 019ab9e2-6f4c-7d31-9a55-0d6d3c9c2f10"
)]
pub(crate) struct ListArgs {
    /// List standing grants: calls that clawk does not ask about again
    #[arg(long)]
    granted: bool,

    /// List past questions: who answered what, where and why
    #[arg(long, conflicts_with = "granted")]
    answered: bool,

    #[command(subcommand)]
    show: Option<ApprovalsCommand>,

    /// End a standing grant
    #[arg(long, value_name = "GRANT", conflicts_with_all = ["granted", "answered"])]
    revoke: Option<String>,

    #[command(flatten)]
    which: state::StateSelector,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Looks of `clawk approvals`.
#[derive(Debug, clap::Subcommand)]
enum ApprovalsCommand {
    /// Print the whole question, nothing folded, and the command that approves it
    Show(ShowArgs),
}

/// Flags of `clawk approvals show`.
#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// The id of the call or the plan, as `clawk approvals` prints it
    #[arg(value_name = "ID", value_parser = id)]
    id: RequestId,

    #[command(flatten)]
    which: state::StateSelector,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Flags of `clawk approve`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  clawk approve 550e8400-e29b-41d4-a716-446655440000\n  clawk approve 550e8400-e29b-41d4-a716-446655440000 --for-session\n  clawk approve 550e8400-e29b-41d4-a716-446655440000 --steps 1,3"
)]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    answer: AnswerArgs,

    /// Do not ask again about the same call in this session
    #[arg(long)]
    for_session: bool,

    /// Never ask again about the same call; clawk suggests a rule to the operator
    #[arg(long, conflicts_with = "for_session")]
    always: bool,

    /// With --for-session or --always: include every path in the folder that the question names
    #[arg(long)]
    folder: bool,

    /// The digest of a folded question that you have read whole, as `clawk approvals show ID` prints it
    #[arg(long, value_name = "DIGEST", value_delimiter = ',', value_parser = parse_digest)]
    seen: Vec<Digest>,
}

/// Flags of `clawk deny`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  clawk deny 550e8400-e29b-41d4-a716-446655440000 --reason 'not on a Friday'"
)]
pub(crate) struct DenyArgs {
    #[command(flatten)]
    answer: AnswerArgs,
}

#[derive(Debug, clap::Args)]
struct AnswerArgs {
    /// The id of the call or the plan, as `clawk approvals` prints it
    #[arg(value_name = "ID", value_parser = id)]
    id: RequestId,

    /// Only these steps of a plan; the others keep waiting
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<Vec<u32>>,

    /// The reason; clawk records it and tells the caller
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    which: state::StateSelector,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

fn id(text: &str) -> Result<RequestId, String> {
    RequestId::parse(text).map_err(|e| e.to_string())
}

fn parse_digest(text: &str) -> Result<Digest, String> {
    Digest::from_hex(text).ok_or_else(|| "a digest is 64 hex digits".to_owned())
}

/// Lists the waiting requests.
pub(crate) fn list_waiting(args: &ListArgs) -> Result<ExitCode> {
    if let Some(ApprovalsCommand::Show(args)) = &args.show {
        return show_question(args);
    }
    if let Some(grant) = &args.revoke {
        return past::revoke_grant(args, grant);
    }
    if args.granted || args.answered {
        return past::list_past(args);
    }
    let answer = ask_agent(&args.which.find_dir()?, "clawk.approvals.list", &json!({}))?;
    if args.format == Format::Json {
        out::print_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let waiting = array_member(&answer, "approvals");
    if waiting.is_empty() {
        out::print_line("no question waits for a person")?;
    }
    print_questions(waiting)?;
    Ok(ExitCode::SUCCESS)
}

fn array_member<'a>(value: &'a Value, member: &str) -> &'a [Value] {
    let array = value.get(member).and_then(Value::as_array);
    array.map(Vec::as_slice).unwrap_or_default()
}

/// Shows one request completely, and how to approve it. Exit code 1 if no request has this id.
fn show_question(args: &ShowArgs) -> Result<ExitCode> {
    let params = json!({"request_id": args.id});
    let answer = ask_agent(&args.which.find_dir()?, "clawk.approvals.show", &params)?;
    let waiting = array_member(&answer, "approvals");
    if args.format == Format::Json {
        out::print_json(&answer)?;
    } else {
        print_questions(waiting)?;
        let plans = waiting.iter().filter_map(|question| question.get("plan"));
        let steps = plans.flat_map(|plan| array_member(plan, "steps"));
        let folded = waiting
            .iter()
            .chain(steps)
            .filter(|question| hidden_bytes(question) > 0);
        let mut digests: Vec<&str> = folded
            .filter_map(|question| question.get("digest")?.as_str())
            .collect();
        digests.sort_unstable();
        digests.dedup();
        let seen = if digests.is_empty() {
            String::new()
        } else {
            format!(" --seen {}", digests.join(","))
        };
        match waiting {
            [] => out::print_note(not_waiting_message(&args.id)),
            _ => out::lines(&format!(
                "
to approve it: clawk approve {}{seen}",
                args.id
            ))?,
        }
    }
    Ok(if waiting.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn not_waiting_message(id: &RequestId) -> String {
    format!("nothing waits under {id}: it was answered, it lapsed, or it never asked")
}

/// Returns the number of bytes that the request's short text omits.
fn hidden_bytes(question: &Value) -> u64 {
    question.get("hidden_bytes").and_then(Value::as_u64).unwrap_or(0)
}

fn print_questions(waiting: &[Value]) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    for (position, question) in waiting.iter().enumerate() {
        if position > 0 {
            out::print_line("")?;
        }
        match question.get("plan") {
            Some(plan) => show_plan(plan, paint)?,
            None => print_question(question, paint)?,
        }
    }
    Ok(())
}

/// Shows one request for several calls, step by step.
fn show_plan(plan: &Value, paint: TerminalStyle) -> Result<()> {
    let steps = plan.get("steps").and_then(Value::as_array).map(Vec::as_slice);
    let steps = steps.unwrap_or_default();
    let id = plan.get("id").and_then(Value::as_str).unwrap_or_default();
    out::print_line(format!(
        "{}  a plan; {} of its steps wait (answer all with this id, some with --steps)",
        paint.bold(&out::one_line(id)),
        steps.len()
    ))?;
    for line in plan.get("beside").and_then(Value::as_array).into_iter().flatten() {
        let line = line.as_str().unwrap_or_default();
        out::print_line(paint.dim(&format!("  {}", out::one_line(line))))?;
    }
    for step in steps {
        let number = step.pointer("/step/step").and_then(Value::as_u64).unwrap_or(1);
        out::print_line(format!("step {number}"))?;
        print_question(step, paint)?;
    }
    Ok(())
}

fn print_question(question: &Value, paint: TerminalStyle) -> Result<()> {
    let text = |member: &str| out::one_line(question.get(member).and_then(Value::as_str).unwrap_or_default());
    out::print_line(format!(
        "{}  {}",
        paint.bold(&text("request_id")),
        paint.cyan(&text("tool"))
    ))?;
    match question.get("text").and_then(Value::as_str) {
        Some(whole) => {
            for line in whole.split('\n') {
                out::print_line(format!("  {}", out::one_line(line)))?;
            }
        }
        None => {
            for line in array_member(question, "preview").iter().filter_map(Value::as_str) {
                out::print_line(format!("  {}", out::one_line(line)))?;
            }
            if hidden_bytes(question) > 0 {
                let folded = format!(
                    "  {} bytes are folded; read them before you approve: clawk approvals show {}",
                    hidden_bytes(question),
                    text("request_id")
                );
                out::print_line(paint.yellow(&folded))?;
            }
        }
    }
    let rule = question
        .get("rule_id")
        .and_then(Value::as_str)
        .map(|rule| format!(" (rule {})", out::one_line(rule)));
    if let Some(cost) = question.get("cost").and_then(Value::as_str) {
        out::print_line(format!("  cost: {}", out::one_line(cost)))?;
    }
    out::print_line(paint.dim(&format!("  why: {}{}", text("reason"), rule.unwrap_or_default())))?;
    out::print_line(paint.dim(&format!(
        "  until {}, then {}",
        text("expires_at"),
        text("default_if_timeout")
    )))?;
    Ok(())
}

/// Approves a request.
pub(crate) fn approve_call(args: &ApproveArgs) -> Result<ExitCode> {
    let how = json!({"for_session": args.for_session, "always": args.always, "folder": args.folder, "seen": args.seen});
    let code = send_answer(&args.answer, "clawk.approve", "approved", how)?;
    if args.always && code == ExitCode::SUCCESS && args.answer.format == Format::Human {
        let file = args
            .answer
            .which
            .find_dir()?
            .join(clawk_kernel::call::SUGGESTED_RULES);
        // An encrypted state stores no suggested rules.
        if file.is_file() {
            out::print_note(format!("a rule is suggested in `{}`", file.display()));
        }
    }
    Ok(code)
}

/// Denies a request.
pub(crate) fn deny_call(args: &DenyArgs) -> Result<ExitCode> {
    send_answer(&args.answer, "clawk.deny", "denied", json!({}))
}

/// Sends the answer. Exit code 1 if no request waits for it, or it was answered before (R18).
fn send_answer(args: &AnswerArgs, method: &str, done: &str, how: Value) -> Result<ExitCode> {
    let mut params = json!({"request_id": args.id, "reason": args.reason, "steps": args.steps});
    if let (Value::Object(params), Value::Object(how)) = (&mut params, how) {
        params.extend(how);
    }
    let answer = ask_agent(&args.which.find_dir()?, method, &params)?;
    let taken = answer.get("acknowledged") == Some(&Value::Bool(true));
    if args.format == Format::Json {
        out::print_json(&answer)?;
    } else if taken {
        out::print_line(format!("{done} {}{}", args.id, format_steps(&answer)))?;
    } else if answer.get("unseen").is_some() {
        out::print_note(format!(
            "not approved{}: a part of the question is folded, and you have not read it; `clawk approvals show {}` prints all \
             of it and the command that approves it then",
            format_steps(&answer),
            args.id
        ));
    } else {
        out::print_note(not_waiting_message(&args.id));
    }
    Ok(if taken {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Describes which steps of a plan were answered, and which still wait.
fn format_steps(answer: &Value) -> String {
    let list = |member: &str| -> Vec<String> {
        let numbers = answer.get(member).and_then(Value::as_array).into_iter().flatten();
        numbers.filter_map(Value::as_u64).map(|n| n.to_string()).collect()
    };
    match (list("steps"), list("waiting")) {
        (done, _) if done.is_empty() => String::new(),
        (done, waiting) if waiting.is_empty() => format!(": steps {}", done.join(", ")),
        (done, waiting) => format!(": steps {}; {} still wait", done.join(", "), waiting.join(", ")),
    }
}

fn ask_agent(state: &Path, method: &str, params: &Value) -> Result<Value> {
    compose::build_runtime()?.block_on(async {
        match ControlClient::connect(state).await {
            Ok(mut client) => client
                .call_method(method, params)
                .await
                .context("the running agent refused"),
            Err(e @ ControlError::NotRunning { .. }) => Err(e).context(
                "nothing to approve: approvals live in a running agent (`clawk run` or `clawk serve`)",
            ),
            Err(e) => Err(e.into()),
        }
    })
}
