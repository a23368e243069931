//! The display of a swarm run: its progress and its end.

use anyhow::Result;
use clawk_kernel::{Kernel, SwarmView};
use clawk_proto::RequestId;
use clawk_proto::method::TaskStatus;
use clawk_swarm::coord::{Member, RunResult};

use crate::out::{self, Format, TerminalStyle};

/// Largest number of members in one line of progress.
const NAMES: usize = 5;

/// Prints the progress of a run, unless it equals the last line in `told`.
pub(super) async fn print_progress(kernel: &Kernel, run: &RequestId, told: &mut String) {
    // silent-ok: while no host coordinates the swarm there is no progress to print
    let view = kernel.swarm_view().await.ok().flatten();
    let line = view.and_then(|view| format_progress(&view, run));
    if let Some(line) = line.filter(|line| line != told) {
        out::print_note(TerminalStyle::for_stderr().dim(&line));
        *told = line;
    }
}

/// Returns the progress of a run in one line; `None` if it has ended.
fn format_progress(view: &SwarmView, run: &RequestId) -> Option<String> {
    let run = view.runs.iter().find(|known| known.task_id == *run)?;
    let names = |of: &dyn Fn(&Member) -> bool| {
        let names: Vec<&str> = view
            .members
            .iter()
            .filter(|member| of(member))
            .map(|member| member.member.as_str())
            .collect();
        let more = names.len().saturating_sub(NAMES);
        let named = names.iter().take(NAMES).copied().collect::<Vec<_>>().join(", ");
        match (names.len(), more) {
            (0, _) => String::new(),
            (_, 0) => format!(" ({named})"),
            (_, more) => format!(" ({named} and {more} more)"),
        }
    };
    let mut parts = vec![format!("{} done", run.completed)];
    if run.failed > 0 {
        parts.push(format!("{} failed", run.failed));
    }
    let busy = names(&|member| member.running > 0);
    parts.push(format!("{} at work{busy}", run.running));
    if run.waiting > 0 {
        parts.push(format!("{} waiting", run.waiting));
    }
    let gone = names(&|member| member.status == "unavailable");
    if !gone.is_empty() {
        parts.push(format!("unavailable{gone}"));
    }
    Some(out::one_line(&format!("tasks: {}", parts.join(", "))).into())
}

const fn status_label(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::Completed => "completed",
        TaskStatus::Failed => "failed",
        TaskStatus::Partial => "partial",
    }
}

pub(super) fn print_result(result: &RunResult, format: Format) -> Result<()> {
    if format == Format::Json {
        return out::print_json(result);
    }
    let paint = TerminalStyle::for_stderr();
    for answer in &result.answers {
        let why = answer
            .error
            .as_ref()
            .map(|fault| format!(" ({})", out::one_line(&fault.reason)))
            .unwrap_or_default();
        let tries = if answer.attempts == 1 { "try" } else { "tries" };
        let line = format!(
            "{} · {}{why} · {} {tries}, {} tokens",
            out::one_line(&answer.member),
            status_label(answer.status),
            answer.attempts,
            answer.tokens
        );
        out::print_note(paint.dim(&line));
    }
    if let Some(fault) = &result.error {
        out::print_note(paint.red(&format!(
            "{}: {} ({})",
            status_label(result.status),
            out::one_line(&fault.message),
            out::one_line(&fault.reason)
        )));
    }
    if !result.text.is_empty() {
        out::lines(&out::sanitize_block(&result.text))?;
    }
    Ok(())
}
