//! `clawk skill test --run INPUT`: runs one skill with the agent's own model, under all its restrictions.
//!
//! The skill runs as a composite tool that the manifest does not declare: an inner turn with the skill's tools only, each call over
//! the usual path. One rule is added, which allows only that tool.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clawk_kernel::kind;
use clawk_kernel::ports::JournalScan;
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_kernel::{ApprovalQuestion, EntryPoint};
use clawk_manifest::Manifest;
use clawk_proto::content::ContentBlock;
use clawk_proto::method::{CallContext, ToolCallParams, ToolCallResult};
use clawk_proto::{RequestId, SessionId};
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::error::RecvError;

use crate::compose;
use crate::config::AllowOutsideArgs;
use crate::dry::CallPredictions;
use crate::out::{self, Format, TerminalStyle};
use crate::terminal::can_ask;

/// Flags of a run.
#[derive(Debug, Default, clap::Args)]
pub(super) struct SkillTrialArgs {
    /// Run the skill with this input, a JSON object, by the agent's own model; `{}` where it needs none
    #[arg(long, value_name = "INPUT", value_parser = parse_input)]
    run: Option<SkillTrialInput>,

    /// Predict every call that would change something instead of doing it
    #[arg(long, requires = "run")]
    dry_run: bool,

    /// State directory
    #[arg(long, value_name = "DIR", requires = "run")]
    state: Option<PathBuf>,

    /// Agree to what the folder's files run here
    #[arg(long, requires = "run")]
    trust: bool,
}

type SkillTrialInput = Map<String, Value>;

fn parse_input(text: &str) -> Result<SkillTrialInput, String> {
    serde_json::from_str(text).map_err(|error| format!("it is not a JSON object: {error}"))
}

impl SkillTrialArgs {
    /// Returns whether a trial is requested.
    pub(super) const fn is_wanted(&self) -> bool {
        self.run.is_some()
    }
}

/// Returns the name of the tool that represents the skill in the trial.
fn name_of(skill: &str) -> String {
    format!("skill-test-{skill}")
}

/// Adds a tool for the trial to the manifest, and a rule that allows it.
///
/// # Errors
/// The manifest does not have the skill, or already has a tool with that name.
pub(crate) fn with_trial(manifest: &mut Manifest, skill: &str) -> Result<()> {
    let tool = name_of(skill);
    if manifest.skill(skill).is_none() || manifest.tool(&tool).is_some() {
        bail!("the skill `{skill}` can't be tried: there is none, or a tool is called `{tool}`");
    }
    let declared = json!({"name": tool, "composite": true, "skill_ref": skill});
    let rule = json!({"id": tool, "action": "allow", "scope": "tool", "match": {"name": tool},
        "reason": "`clawk skill test` runs it; each call of the skill is decided by itself"});
    manifest.tools.push(serde_json::from_value(declared)?);
    match manifest.policies.first_mut() {
        Some(policy) => policy.rules.insert(0, serde_json::from_value(rule)?),
        None => {
            let policy = json!({"name": "skill-test", "rules": [rule]});
            manifest.policies.push(serde_json::from_value(policy)?);
        }
    }
    Ok(())
}

/// Runs the skill and prints the result.
pub(super) async fn run(
    claw: &Path,
    (config, outside): (Option<&Path>, AllowOutsideArgs),
    skill: &str,
    trial: &SkillTrialArgs,
    format: Format,
) -> Result<ExitCode> {
    let input = trial.run.clone().unwrap_or_default();
    let request = compose::Request {
        manifest: claw,
        config,
        state: trial.state.as_deref(),
        outside,
        trust: trial.trust,
        dry: trial.dry_run.then(CallPredictions::default),
        trial: Some(skill),
    };
    let agent = compose::start_agent(&request, None).await?;
    for note in &agent.notes {
        out::print_note(note);
    }
    let session = agent.kernel.open_session(EntryPoint::Cli).await?;
    let id = session.id;
    let context = CallContext {
        request_id: RequestId::from(SystemClock::default().new_uuid()),
        identity: agent.manifest.identity.name.clone(),
        sandbox: None,
        policy: None,
    };
    let params = ToolCallParams {
        name: name_of(skill),
        arguments: input,
        context,
    };
    let mut questions = agent.kernel.subscribe_questions();
    let called = agent.kernel.call(id, params);
    tokio::pin!(called);
    let ended = loop {
        tokio::select! {
            ended = &mut called => break ended,
            asked = questions.recv() => match asked {
                Ok(question) => answer_question(&agent, &question, trial.dry_run).await,
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break called.await,
            },
        }
    };
    let facts = collect_facts(&agent, id, skill).await;
    agent.close("the skill has been tried").await;
    let report = report_json(
        skill,
        id,
        ended.map_err(|error| error.to_string()),
        facts?,
        trial.dry_run,
    );
    print_report(&report, format)?;
    Ok(match report.get("ok") == Some(&Value::Bool(true)) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Answers an approval request. In a dry run the answer is yes, because nothing happens. Otherwise a person answers elsewhere, or
/// the request times out.
async fn answer_question(agent: &compose::Agent, question: &ApprovalQuestion, dry: bool) {
    if dry {
        agent
            .kernel
            .answer_question(
                &question.request_id,
                clawk_kernel::ApprovalAnswer::Approve,
                None,
                "dry run",
            )
            .await;
        return;
    }
    let id = question.request_id.as_str();
    out::print_note(format!(
        "`{}` waits for a person: {} (in another terminal: clawk approve {id})",
        out::one_line(&question.tool),
        out::one_line(&question.reason)
    ));
    if !can_ask() {
        agent
            .kernel
            .answer_question(
                &question.request_id,
                clawk_kernel::ApprovalAnswer::Deny,
                None,
                "nobody is at a terminal",
            )
            .await;
    }
}

/// Returns a member's text; empty if it is missing.
fn text_member<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the calls of the run, and the skill's actual use.
async fn collect_facts(
    agent: &compose::Agent,
    session: SessionId,
    skill: &str,
) -> Result<(Vec<Value>, Value)> {
    let kinds = &[
        kind::ACTION_REQUESTED,
        kind::ACTION_EXECUTED,
        kind::ACTION_FAILED,
        kind::ACTION_DENIED,
        kind::SKILL_FINISHED,
    ];
    let scan = JournalScan {
        session: Some(session),
        kinds,
        limit: usize::MAX,
        with_content: true,
        ..JournalScan::default()
    };
    let events = agent.journal.scan_events(scan).await?;
    let (mut calls, mut took) = (Vec::new(), Value::Null);
    for event in &events {
        event.read()?;
        let payload = Value::Object(event.members_with_words()?);
        let tool = text_member(&payload, "action_id");
        let outcome = match event.kind.as_str() {
            kind::SKILL_FINISHED if text_member(&payload, "skill") == skill => {
                took = payload;
                continue;
            }
            kind::ACTION_EXECUTED
                if payload
                    .get("mechanisms")
                    .is_some_and(|used| used.to_string().contains(clawk_kernel::PREDICTED)) =>
            {
                "predicted"
            }
            kind::ACTION_EXECUTED if payload.get("is_error") == Some(&Value::Bool(true)) => "failed",
            kind::ACTION_EXECUTED => "ran",
            kind::ACTION_FAILED => "failed",
            kind::ACTION_DENIED => "refused",
            _ => continue,
        };
        if tool != name_of(skill) {
            calls.push(json!({"tool": tool, "outcome": outcome, "reason": payload.get("reason")}));
        }
    }
    Ok((calls, took))
}

fn report_json(
    skill: &str,
    session: SessionId,
    ended: Result<ToolCallResult, String>,
    (calls, took): (Vec<Value>, Value),
    dry_run: bool,
) -> Value {
    let (ok, text, result, fault) = match ended {
        Ok(result) => {
            let texts: Vec<String> = result.content.iter().map(ContentBlock::as_model_text).collect();
            let text = texts.join("\n");
            let found = result
                .structured_content
                .and_then(|facts| facts.get("result").cloned());
            match result.is_error {
                true => (false, String::new(), None, Some(text)),
                false => (true, text, found, None),
            }
        }
        Err(error) => (false, String::new(), None, Some(error)),
    };
    json!({
        "name": skill, "ok": ok, "session": session, "dry_run": dry_run, "answer": text, "result": result, "fault": fault,
        "calls": calls, "took": took,
    })
}

fn print_report(report: &Value, format: Format) -> Result<()> {
    if format == Format::Json {
        return out::print_json(report);
    }
    let paint = TerminalStyle::for_stdout();
    let text = |key: &str| out::one_line(text_member(report, key)).to_string();
    let word = match report.get("ok") == Some(&Value::Bool(true)) {
        true => paint.green("ok   "),
        false => paint.red("fails"),
    };
    out::print_line(format!("{word} {}", text("name")))?;
    for call in report
        .get("calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let of = |key: &str| out::one_line(text_member(call, key)).to_string();
        out::print_line(format!(
            "      {:9} {} {}",
            of("outcome"),
            of("tool"),
            paint.dim(&of("reason"))
        ))?;
    }
    if let Some(took) = report.get("took").filter(|took| took.is_object()) {
        let number = |of: &Value, key: &str| {
            let number = of.get(key).and_then(Value::as_u64);
            number.map_or_else(|| "-".to_owned(), |n| n.to_string())
        };
        let said = took.get("estimates").unwrap_or(&Value::Null);
        out::print_line(format!(
            "      took {} tokens (estimated {}), {} calls (estimated {})",
            number(took, "tokens"),
            number(said, "tokens"),
            number(took, "calls"),
            number(said, "calls")
        ))?;
    }
    match (report.get("fault"), report.get("result")) {
        (Some(Value::String(fault)), _) => out::print_line(format!("      {}", out::one_line(fault)))?,
        (_, Some(Value::Null) | None) => out::lines(&out::sanitize_block(&text("answer")))?,
        (_, Some(result)) => out::print_line(out::one_line(&result.to_string()))?,
    }
    out::print_line(paint.dim(&format!("      clawk trace show --session {}", text("session"))))?;
    Ok(())
}

/// Prepares the manifest for the trial.
///
/// # Errors
/// The errors of [`with_trial`].
pub(crate) fn prepare_manifest(manifest: &mut Arc<Manifest>, skill: Option<&str>) -> Result<()> {
    match skill {
        None => Ok(()),
        Some(skill) => with_trial(Arc::make_mut(manifest), skill),
    }
}
