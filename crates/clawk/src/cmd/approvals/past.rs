//! Past approvals: earlier answers and the standing grants that they made.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::{ListArgs, ask_agent};
use crate::out::{self, Format, TerminalStyle};

/// Largest number of listed past requests.
const LISTED: usize = 100;

/// Lists standing grants, or past answers.
pub(super) fn list_past(args: &ListArgs) -> Result<ExitCode> {
    let (method, member) = if args.granted {
        ("clawk.approvals.granted", "grants")
    } else {
        ("clawk.approvals.answered", "answered")
    };
    let answer = ask_agent(&args.which.find_dir()?, method, &json!({"limit": LISTED}))?;
    if args.format == Format::Json {
        out::print_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = answer.get(member).and_then(Value::as_array);
    let rows = rows.map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        out::print_line(if args.granted {
            "no standing grants"
        } else {
            "nothing was asked"
        })?;
    }
    for row in rows {
        if args.granted {
            print_grant(row)?
        } else {
            print_past_answer(row)?
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn text_member(row: &Value, member: &str) -> String {
    out::one_line(row.get(member).and_then(Value::as_str).unwrap_or_default()).into()
}

fn print_grant(row: &Value) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let covers = match row.get("folder").and_then(Value::as_str) {
        Some(folder) => format!("any path in {}", out::one_line(folder)),
        None => format!("exactly: {}", text_member(row, "shown")),
    };
    out::print_line(format!(
        "{}  {} ({})",
        paint.bold(&text_member(row, "grant")),
        paint.cyan(&text_member(row, "tool")),
        text_member(row, "lasting"),
    ))?;
    out::print_line(format!("  {covers}"))?;
    let line = format!("  by {}, {}", text_member(row, "by"), text_member(row, "at"));
    out::print_line(paint.dim(&line))?;
    Ok(())
}

fn print_past_answer(row: &Value) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let why = text_member(row, "reason");
    let why = if why.is_empty() { why } else { format!(": {why}") };
    out::print_line(format!(
        "{}  {}  {} by {} ({}){why}",
        paint.dim(&text_member(row, "at")),
        paint.cyan(&text_member(row, "tool")),
        paint.bold(&text_member(row, "answer")),
        text_member(row, "by"),
        [text_member(row, "channel"), text_member(row, "role")].join(", "),
    ))?;
    Ok(())
}

/// Revokes a standing grant. Exit code 1 if it does not exist.
pub(super) fn revoke_grant(args: &ListArgs, grant: &str) -> Result<ExitCode> {
    let answer = ask_agent(
        &args.which.find_dir()?,
        "clawk.approvals.revoke",
        &json!({"grant": grant}),
    )?;
    let revoked = answer.get("revoked") == Some(&Value::Bool(true));
    if args.format == Format::Json {
        out::print_json(&answer)?;
    } else if revoked {
        out::print_line(format!("revoked {grant}"))?;
    } else {
        out::print_note(format!("no standing grant {grant}"));
    }
    Ok(if revoked {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
