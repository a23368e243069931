//! The slash commands of the prompt.

use anyhow::Result;
use clawk_kernel::ports::JournalScan;
use clawk_kernel::{ModelInUse, SessionHandle};
use clawk_proto::SessionId;

use crate::compose::Agent;
use crate::out::{self, TerminalStyle, clip_line};

const LINES_OF_TRACE: usize = 20;

/// `/help`
pub(super) fn print_help() {
    // A line continued with a backslash would lose its indentation.
    out::notes(
        "  /tools     the agent's tools, what may be done with them
  /policy    the rules, in the order they are asked
  /trace     the last events of this session, as recorded
  /session   which session this is
  /model     which model answers; /model NAME EFFORT chooses another one, /model default goes back
  /clear     the agent forgets this conversation; the trace keeps it
  /quit      leave; so do Ctrl-D and two Ctrl-C

  Ctrl-C while the agent works cancels the turn. Arrow keys bring back earlier lines.",
    );
}

/// `/tools`
pub(super) fn print_tools(agent: &Agent) {
    let paint = TerminalStyle::for_stderr();
    let manifest = &agent.manifest;
    if manifest.tools.is_empty() && manifest.skills.is_empty() {
        out::print_note("  this agent has no tools");
    }
    for tool in &manifest.tools {
        let source = match (&tool.mcp_source, &tool.skill_ref) {
            (Some(source), _) => format!("MCP {}", source.uri),
            (None, Some(skill)) => format!("runs the skill `{skill}`"),
            (None, None) => "local".to_owned(),
        };
        let category = tool
            .category()
            .map(|category| format!(" · category {category}"))
            .unwrap_or_default();
        out::print_note(format!(
            "  {} {}",
            paint.cyan(&tool.name),
            paint.dim(&format!("{source}{category}"))
        ));
        if let Some(description) = &tool.description {
            out::print_note(format!("    {}", clip_line(description, 96)));
        }
    }
    for skill in &manifest.skills {
        out::print_note(format!("  {} {}", paint.cyan(&skill.name), paint.dim("skill")));
        out::print_note(format!("    {}", clip_line(&skill.description, 96)));
    }
}

/// `/policy`
pub(super) fn print_policy(agent: &Agent) {
    let paint = TerminalStyle::for_stderr();
    let autonomy = agent.manifest.identity.autonomy;
    out::print_note(format!("  autonomy {}", paint.bold(autonomy.as_str())));
    for policy in &agent.manifest.policies {
        for rule in &policy.rules {
            let reason = rule
                .reason
                .as_deref()
                .map(|reason| clip_line(reason, 70))
                .unwrap_or_default();
            let line = format!(
                "  {:<16} {:<24} {}",
                rule.action.as_str(),
                rule.id,
                paint.dim(&reason)
            );
            out::print_note(&line);
        }
    }
    out::print_note(format!(
        "  {:<16} {}",
        "deny",
        paint.dim("whatever no rule matches")
    ));
}

/// `/trace`
pub(super) async fn print_trace(agent: &Agent, session: SessionId) -> Result<()> {
    let events = agent
        .journal
        .scan_events(JournalScan {
            session: Some(session),
            with_content: true,
            ..JournalScan::default()
        })
        .await?;
    let paint = TerminalStyle::for_stderr();
    if events.is_empty() {
        out::print_note("  nothing yet");
    }
    for event in events.iter().skip(events.len().saturating_sub(LINES_OF_TRACE)) {
        let payload = clip_line(&event.payload_with_words(), 90);
        out::print_note(format!(
            "  {:>4} {} {}",
            event.sequence,
            paint.cyan(&event.kind),
            paint.dim(&payload)
        ));
    }
    Ok(())
}

/// `/model [NAME [EFFORT]]`
pub(super) async fn model(session: &SessionHandle, command: &str) -> Result<()> {
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    let chosen = match words.is_empty() {
        true => Ok(session.model_in_use()),
        false => session.choose_model(&words).await?,
    };
    match chosen {
        Ok(model) => out::print_note(format!("  {}", answers(model.as_ref()))),
        Err(error) => out::print_note(format!("  nothing has changed: {error}")),
    }
    Ok(())
}

/// Which model answers, in words.
fn answers(model: Option<&ModelInUse>) -> String {
    let Some(model) = model else {
        return "no model is set".to_owned();
    };
    let effort = model.effort.map(|effort| format!(", effort {}", effort.as_str()));
    format!(
        "{} by {}{}",
        model.model,
        model.provider,
        effort.unwrap_or_default()
    )
}

/// `/session`
pub(super) async fn print_session(agent: &Agent, handle: &SessionHandle) -> Result<()> {
    let session = handle.id;
    let known = agent.journal.list_sessions(100).await?;
    let events = known
        .iter()
        .find(|row| row.session == session)
        .map_or(0, |row| row.events);
    out::print_note(format!("  session {session}, {events} events"));
    out::print_note(format!("  model   {}", answers(handle.model_in_use().as_ref())));
    out::print_note(format!("  state   {}", agent.state_dir.display()));
    out::print_note(format!("  again   clawk run CLAW --session {session}"));
    Ok(())
}
